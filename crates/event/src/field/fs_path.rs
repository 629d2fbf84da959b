//! `fs.path.*`: the paths that successful calls operate on.

use super::{Class, FieldSpec, Source, evt, fd, param, path};
use crate::ValueType::{Path, Text};
use crate::{Event, EventKind, ParamType, Value};

pub(super) const CLASS: Class = Class {
    name: "fs.path",
    description: "Paths of calls that work on names: unlink, rename, link, mkdir, chmod, mount, ...",
};

pub(super) static FIELDS: &[FieldSpec] = &[
    FieldSpec::new(
        "fs.path.name",
        Path,
        Source::SuccessfulPath,
        |e, _| told(e, Part::Name, Form::Absolute),
        "The path, made absolute.",
    ),
    FieldSpec::new(
        "fs.path.nameraw",
        Text,
        Source::SuccessfulPath,
        |e, _| told(e, Part::Name, Form::Raw),
        "The path as it was passed.",
    ),
    FieldSpec::new(
        "fs.path.source",
        Path,
        Source::SuccessfulPath,
        |e, _| told(e, Part::Source, Form::Absolute),
        "The path that something comes from, made absolute; of a link, the link.",
    ),
    FieldSpec::new(
        "fs.path.sourceraw",
        Text,
        Source::SuccessfulPath,
        |e, _| told(e, Part::Source, Form::Raw),
        "The same as it was passed.",
    ),
    FieldSpec::new(
        "fs.path.target",
        Path,
        Source::SuccessfulPath,
        |e, _| told(e, Part::Target, Form::Absolute),
        "The path that something goes to, made absolute; of a link, what it leads to.",
    ),
    FieldSpec::new(
        "fs.path.targetraw",
        Text,
        Source::SuccessfulPath,
        |e, _| told(e, Part::Target, Form::Raw),
        "The same as it was passed.",
    ),
];

#[derive(Clone, Copy)]
enum Part {
    Name,
    Source,
    Target,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Absolute,
    Raw,
}

/// Positions of an event kind's paths.
enum Paths {
    One(&'static str),
    Two {
        source: &'static str,
        target: &'static str,
    },
    Descriptor,
}

fn paths(kind: EventKind) -> Option<Paths> {
    Some(match kind.name() {
        "mkdir" | "mkdirat" | "rmdir" | "unlink" | "chown" | "lchown" | "truncate" | "setxattr"
        | "lsetxattr" | "mknod" | "mknodat" => Paths::One("path"),
        "unlinkat" | "open" | "openat" | "openat2" | "creat" | "umount" | "umount2" => {
            Paths::One("name")
        }
        "chmod" | "fchmodat" | "fchmodat2" => Paths::One("filename"),
        "fchownat" => Paths::One("pathname"),
        "quotactl" => Paths::One("special"),
        "fchmod" | "fchown" | "ftruncate" | "fsetxattr" => Paths::Descriptor,
        "rename" | "renameat" | "renameat2" => Paths::Two {
            source: "oldpath",
            target: "newpath",
        },
        // For links Falco calls the new name the source and the old one the target.
        "link" | "linkat" => Paths::Two {
            source: "newpath",
            target: "oldpath",
        },
        "symlink" | "symlinkat" => Paths::Two {
            source: "linkpath",
            target: "target",
        },
        "mount" => Paths::Two {
            source: "dev",
            target: "dir",
        },
        _ => return None,
    })
}

/// Returns true if events of this kind can have any of these fields.
pub(super) fn concerns(kind: EventKind) -> bool {
    paths(kind).is_some()
}

fn told<'a>(event: &Event<'a>, part: Part, form: Form) -> Value<'a> {
    let Some(paths) = paths(event.kind) else {
        return Value::Absent;
    };
    match evt::on_result(event, |result| Value::Bool(result >= 0)) {
        Value::Bool(true) => {}
        Value::Unknown => return Value::Unknown,
        _ => return Value::Absent,
    }
    match (paths, part) {
        (Paths::Descriptor, Part::Name) => fd::name(event),
        (Paths::One(name), Part::Name)
        | (Paths::Two { source: name, .. }, Part::Source)
        | (Paths::Two { target: name, .. }, Part::Target) => shown(event, name, form),
        _ => Value::Absent,
    }
}

fn shown<'a>(event: &Event<'a>, name: &str, form: Form) -> Value<'a> {
    let Some(at) = event.kind.param_index(name) else {
        return Value::Absent;
    };
    let spec = &event.kind.spec().params[at];
    match param::value(event, at) {
        Value::Text(raw) if form == Form::Absolute => {
            // A symbolic link's target is relative to the link, and a device may be any word: only paths are
            // made absolute.
            let is_path = matches!(spec.ty, ParamType::Path) || raw.first() == Some(&b'/');
            if is_path {
                path::absolute(event, raw, param::base(event, spec))
            } else {
                Value::Text(raw)
            }
        }
        other => other,
    }
}
