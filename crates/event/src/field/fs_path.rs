//! `fs.path.*`: the paths that successful calls operate on.

use super::{Class, FieldSpec, Source, evt, fd, param, path};
use crate::ValueType::{Path, Text};
use crate::{Event, EventKind, ParamType, PathParams, Value};

pub(super) const CLASS: Class = Class {
    name: "fs.path",
    description: "Paths of calls that work on names: unlink, rename, link, mkdir, chmod, mount, ...",
};

pub(super) static FIELDS: &[FieldSpec] = &[
    FieldSpec::new(
        "fs.path.name",
        Path,
        Source::SuccessfulPath,
        |e, _| path_of(e, Part::Name, Form::Absolute),
        "The path, made absolute.",
    ),
    FieldSpec::new(
        "fs.path.nameraw",
        Text,
        Source::SuccessfulPath,
        |e, _| path_of(e, Part::Name, Form::Raw),
        "The path as it was passed.",
    ),
    FieldSpec::new(
        "fs.path.source",
        Path,
        Source::SuccessfulPath,
        |e, _| path_of(e, Part::Source, Form::Absolute),
        "The path that something comes from, made absolute; of a link, the link.",
    ),
    FieldSpec::new(
        "fs.path.sourceraw",
        Text,
        Source::SuccessfulPath,
        |e, _| path_of(e, Part::Source, Form::Raw),
        "The same as it was passed.",
    ),
    FieldSpec::new(
        "fs.path.target",
        Path,
        Source::SuccessfulPath,
        |e, _| path_of(e, Part::Target, Form::Absolute),
        "The path that something goes to, made absolute; of a link, what it leads to.",
    ),
    FieldSpec::new(
        "fs.path.targetraw",
        Text,
        Source::SuccessfulPath,
        |e, _| path_of(e, Part::Target, Form::Raw),
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

/// Returns true if events of this kind can have any of these fields.
pub(super) fn concerns(kind: EventKind) -> bool {
    kind.spec().paths != PathParams::None
}

fn path_of<'a>(event: &Event<'a>, part: Part, form: Form) -> Value<'a> {
    let paths = event.kind.spec().paths;
    if paths == PathParams::None {
        return Value::Absent;
    }
    match evt::on_result(event, |result| Value::Bool(result >= 0)) {
        Value::Bool(true) => {}
        Value::Unknown => return Value::Unknown,
        _ => return Value::Absent,
    }
    match (paths, part) {
        (PathParams::Descriptor, Part::Name) => fd::name(event),
        (PathParams::One(at), Part::Name)
        | (PathParams::Two { source: at, .. }, Part::Source)
        | (PathParams::Two { target: at, .. }, Part::Target) => shown(event, usize::from(at), form),
        _ => Value::Absent,
    }
}

fn shown<'a>(event: &Event<'a>, at: usize, form: Form) -> Value<'a> {
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
