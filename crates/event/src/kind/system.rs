//! Calls on the kernel as a whole, and events that are not system calls.

use abi::flags;

use super::row::{NEW_FD, RES, arg, bytes, nowhere, row, text};
use crate::DescriptorKind::Bpf;
use crate::DescriptorSource::{Argument, Created, None as NoDescriptor};
use crate::ParamType::{Bytes, Enum, Fd, Flags, Hex, Int, Text, Uint};
use crate::{EngineSupport, EventSpec, IoDirection};

pub(super) static ROWS: &[EventSpec] = &[
    row!(
        "init_module",
        Other,
        NoDescriptor,
        [
            RES,
            bytes("img", 0, 1),
            arg("length", Uint, 1),
            text("uargs", 2),
        ]
    ),
    row!(
        "finit_module",
        Other,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            text("uargs", 1),
            arg("flags", Flags(&flags::MODULE_INIT), 2),
        ]
    )
    .moving(IoDirection::Read),
    row!(
        "delete_module",
        Other,
        NoDescriptor,
        [
            RES,
            text("name", 0),
            arg("flags", Flags(&flags::DESCRIPTOR), 1),
        ]
    ),
    row!(
        "bpf",
        Other,
        Created(Bpf),
        [NEW_FD, arg("cmd", Enum(&flags::BPF_COMMAND), 0)]
    ),
    row!(
        "seccomp",
        Other,
        NoDescriptor,
        [RES, arg("op", Uint, 0), arg("flags", Hex, 1)]
    ),
    row!(
        "fsconfig",
        System,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            arg("cmd", Enum(&flags::FSCONFIG), 1),
            text("key", 2),
            nowhere("value_bytebuf", Bytes),
            nowhere("value_charbuf", Text),
            arg("aux", Int, 4),
        ]
    ),
    // Events that are not system calls. All but `drop` are known by name only, so that rules which mention
    // them load.
    row!("drop", Internal, NoDescriptor, [nowhere("ratio", Uint)]).by(EngineSupport::Every),
    row!(
        "asyncevent",
        Internal,
        NoDescriptor,
        [
            nowhere("plugin_id", Uint),
            nowhere("name", Text),
            nowhere("data", Bytes),
        ]
    ),
    row!("container", Internal, NoDescriptor, [nowhere("json", Text)]),
    row!(
        "cpu_hotplug",
        Internal,
        NoDescriptor,
        [nowhere("cpu", Uint), nowhere("action", Uint)]
    ),
    row!(
        "groupadded",
        Internal,
        NoDescriptor,
        [nowhere("gid", Uint), nowhere("name", Text)]
    ),
    row!(
        "groupdeleted",
        Internal,
        NoDescriptor,
        [nowhere("gid", Uint), nowhere("name", Text)]
    ),
    row!(
        "notification",
        Internal,
        NoDescriptor,
        [nowhere("id", Text), nowhere("desc", Text)]
    ),
    row!(
        "page_fault",
        Internal,
        NoDescriptor,
        [
            nowhere("addr", Hex),
            nowhere("ip", Hex),
            nowhere("error", Hex),
        ]
    ),
    row!(
        "pluginevent",
        Internal,
        NoDescriptor,
        [nowhere("plugin_id", Uint), nowhere("event_data", Bytes),]
    ),
    row!(
        "signaldeliver",
        Internal,
        NoDescriptor,
        [
            nowhere("spid", crate::ParamType::Pid),
            nowhere("dpid", crate::ParamType::Pid),
            nowhere("sig", crate::ParamType::Signal),
        ]
    ),
    row!(
        "switch",
        Internal,
        NoDescriptor,
        [nowhere("next", crate::ParamType::Pid)]
    ),
    row!(
        "useradded",
        Internal,
        NoDescriptor,
        [nowhere("uid", Uint), nowhere("name", Text)]
    ),
    row!(
        "userdeleted",
        Internal,
        NoDescriptor,
        [nowhere("uid", Uint), nowhere("name", Text)]
    ),
];
