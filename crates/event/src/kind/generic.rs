//! Event kinds of calls without a row of their own, derived from the system-call table.

use abi::{ArgKind, ArgSpec, Syscall};

use super::row::RES;
use crate::{
    Category, Changes, DescriptorSource, EngineSupport, EventSpec, IoDirection, ParamSource,
    ParamSpec, ParamType, PathParams,
};

/// Derives the row of `syscall` from its result and the arguments in the system-call table.
pub(super) fn spec(syscall: Syscall) -> EventSpec {
    let args = syscall.args();
    let mut params = vec![RES];
    params.extend((0..args.len()).map(|position| param(args, position)));
    params.extend((0_u8..).zip(args).flat_map(fields));
    let descriptor = args.iter().position(|arg| matches!(arg.kind, ArgKind::Fd));
    EventSpec {
        name: syscall.event_name(),
        category: Category::Other,
        // Once per kind for the life of the program.
        params: Box::leak(params.into_boxed_slice()),
        descriptor: descriptor
            .and_then(|position| u8::try_from(position).ok())
            .map_or(DescriptorSource::None, DescriptorSource::Argument),
        changes: CHANGES
            .iter()
            .find(|(name, _)| *name == syscall.event_name())
            .map_or(Changes::NONE, |(_, changes)| *changes),
        paths: PathParams::None,
        io: IoDirection::of(Category::Other),
        engines: EngineSupport::of(Category::Other),
    }
}

/// Calls without a row that change facts about their caller.
const CHANGES: &[(&str, Changes)] = &[
    ("pivot_root", Changes::DIRECTORY),
    ("setfsgid", Changes::CREDENTIALS),
    ("setfsuid", Changes::CREDENTIALS),
    ("setgroups", Changes::CREDENTIALS),
];

/// A field of a structure: name, offset, size, format.
type Field = (&'static str, u8, u8, ParamType);

/// Structures with the fields that exist in every version of them.
const STRUCTURES: &[(&str, &[Field])] = &[
    (
        "file_handle",
        &[
            ("handle_bytes", 0, 4, ParamType::Uint),
            ("handle_type", 4, 4, ParamType::Int),
        ],
    ),
    (
        "landlock_ruleset_attr",
        &[("handled_access_fs", 0, 8, ParamType::Hex)],
    ),
    ("mnt_id_req", &[("mnt_id", 8, 8, ParamType::Uint)]),
    (
        "mount_attr",
        &[
            ("attr_set", 0, 8, ParamType::Hex),
            ("attr_clr", 8, 8, ParamType::Hex),
            ("propagation", 16, 8, ParamType::Hex),
            ("userns_fd", 24, 8, ParamType::Int),
        ],
    ),
    (
        "perf_event_attr",
        &[
            ("event_type", 0, 4, ParamType::Uint),
            ("config", 8, 8, ParamType::Hex),
        ],
    ),
];

/// Returns the parameters in an argument's structure.
fn fields((register, arg): (u8, &ArgSpec)) -> impl Iterator<Item = ParamSpec> {
    let name = match arg.kind {
        ArgKind::Struct(name) => name,
        _ => "",
    };
    let known = STRUCTURES.iter().find(|(own, _)| *own == name);
    let fields = known.map_or(&[][..], |(_, fields)| fields).iter();
    fields.map(move |(name, offset, size, ty)| ParamSpec {
        name,
        ty: *ty,
        source: ParamSource::Field {
            arg: register,
            offset: *offset,
            size: *size,
        },
    })
}

fn param(args: &'static [ArgSpec], position: usize) -> ParamSpec {
    let arg = &args[position];
    let register = u8::try_from(position).expect("a call has at most 6 arguments");
    let before = position.checked_sub(1).map(|index| args[index].kind);
    let source = match arg.kind {
        ArgKind::Path => ParamSource::Path {
            path: register,
            base: matches!(before, Some(ArgKind::DirFd)).then(|| register - 1),
        },
        ArgKind::Text => ParamSource::Text(register),
        ArgKind::Argv | ArgKind::Envp => ParamSource::Texts(register),
        _ => ParamSource::Register(register),
    };
    ParamSpec {
        name: arg.name,
        ty: param_type(arg.kind),
        source,
    }
}

fn param_type(kind: ArgKind) -> ParamType {
    match kind {
        ArgKind::Argv | ArgKind::Envp => ParamType::Texts,
        ArgKind::DirFd | ArgKind::Fd => ParamType::Fd,
        ArgKind::Enum(set) => ParamType::Enum(set),
        ArgKind::Flags(set) => ParamType::Flags(set),
        ArgKind::Gid => ParamType::Gid,
        ArgKind::Int32 | ArgKind::Int64 => ParamType::Int,
        ArgKind::Mode => ParamType::Mode,
        ArgKind::Path => ParamType::Path,
        ArgKind::Pid => ParamType::Pid,
        ArgKind::Signal => ParamType::Signal,
        ArgKind::Size | ArgKind::SockaddrLen | ArgKind::Uint32 | ArgKind::Uint64 => ParamType::Uint,
        ArgKind::Text => ParamType::Text,
        ArgKind::Uid => ParamType::Uid,
        // Addresses, and kinds that this program does not know yet.
        _ => ParamType::Hex,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventKind;

    #[test]
    fn calls_that_change_facts_without_a_row_exist_and_have_none() {
        for (name, changes) in CHANGES {
            let kind = EventKind::from_name(name).expect("the call exists");
            assert!(
                kind.is_generic(),
                "{name} has a row: write there what it changes"
            );
            assert_eq!(kind.changes(), *changes);
        }
    }
}
