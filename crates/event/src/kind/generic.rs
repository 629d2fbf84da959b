//! Kinds of calls without a row of their own, made from the system-call table.

use abi::{ArgKind, ArgSpec, Syscall};

use super::row::RES;
use crate::{Category, DescriptorSource, EventSpec, ParamSource, ParamSpec, ParamType};

/// Describes `syscall` by its result and the arguments that the system-call table names.
pub(super) fn spec(syscall: Syscall) -> EventSpec {
    let args = syscall.args();
    let mut params = vec![RES];
    params.extend((0..args.len()).map(|position| param(args, position)));
    EventSpec {
        name: syscall.event_name(),
        category: Category::Other,
        // Once per kind for the life of the program.
        params: Box::leak(params.into_boxed_slice()),
        descriptor: DescriptorSource::None,
    }
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
