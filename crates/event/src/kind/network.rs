//! Socket calls.

use abi::flags;

use super::row::{NEW_FD, RES, TUPLE, arg, bytes, nowhere, row};
use crate::DescriptorSource::{
    Accepted, Addressed, Argument, CreatedSocket, Message, None as NoDescriptor,
};
use crate::ParamType::{Bytes, Enum, Fd, Flags, Hex, Int, Tuple, Uint};
use crate::{EventSpec, ParamSpec};

const FD: ParamSpec = arg("fd", Fd, 0);
const DOMAIN: ParamSpec = arg("domain", Enum(&flags::SOCKET_DOMAIN), 0);
const TYPE: ParamSpec = arg("type", Uint, 1);
const PROTO: ParamSpec = arg("proto", Uint, 2);
/// The address argument as passed, in the format of the tuple's local end.
const ADDR: ParamSpec = nowhere("addr", Tuple);
const QUEUEPCT: ParamSpec = nowhere("queuepct", Uint);
const QUEUELEN: ParamSpec = nowhere("queuelen", Uint);
const QUEUEMAX: ParamSpec = nowhere("queuemax", Uint);

pub(super) static ROWS: &[EventSpec] = &[
    row!(
        "socket",
        Net,
        CreatedSocket,
        [
            NEW_FD,
            DOMAIN,
            TYPE,
            PROTO,
            // Falco prints SOCK_CLOEXEC and SOCK_NONBLOCK here; they are part of `type`.
            nowhere("flags", Hex),
        ]
    ),
    row!(
        "socketpair",
        Ipc,
        NoDescriptor,
        [
            RES,
            nowhere("fd1", Fd),
            nowhere("fd2", Fd),
            nowhere("source", Hex),
            nowhere("peer", Hex),
            DOMAIN,
            TYPE,
            PROTO,
        ]
    ),
    row!(
        "bind",
        Net,
        Addressed {
            fd: 0,
            address: 1,
            len: 2,
            remote: false
        },
        [RES, ADDR, FD]
    ),
    row!(
        "connect",
        Net,
        Addressed {
            fd: 0,
            address: 1,
            len: 2,
            remote: true
        },
        [RES, TUPLE, FD, ADDR,]
    ),
    row!(
        "listen",
        Net,
        Argument(0),
        [RES, FD, arg("backlog", Int, 1)]
    ),
    row!(
        "accept",
        Net,
        Accepted(0),
        [NEW_FD, TUPLE, QUEUEPCT, QUEUELEN, QUEUEMAX]
    ),
    row!(
        "accept4",
        Net,
        Accepted(0),
        [
            NEW_FD,
            TUPLE,
            QUEUEPCT,
            QUEUELEN,
            QUEUEMAX,
            arg("flags", Flags(&flags::SOCKET_TYPE), 3),
        ]
    ),
    row!(
        "sendto",
        IoWrite,
        Addressed {
            fd: 0,
            address: 4,
            len: 5,
            remote: true
        },
        [RES, bytes("data", 1, 2), FD, arg("size", Uint, 2), TUPLE,]
    ),
    row!(
        "send",
        IoWrite,
        Argument(0),
        [RES, bytes("data", 1, 2), FD, arg("size", Uint, 2), TUPLE]
    ),
    row!(
        "sendmsg",
        IoWrite,
        Message {
            fd: 0,
            message: 1,
            count: None
        },
        [
            RES,
            nowhere("data", Bytes),
            FD,
            nowhere("size", Uint),
            TUPLE,
        ]
    ),
    row!(
        "sendmmsg",
        IoWrite,
        Message {
            fd: 0,
            message: 1,
            count: Some(2)
        },
        [
            RES,
            FD,
            nowhere("size", Uint),
            nowhere("data", Bytes),
            TUPLE,
        ]
    ),
    row!(
        "recvfrom",
        IoRead,
        Argument(0),
        [RES, nowhere("data", Bytes), TUPLE, FD, arg("size", Uint, 2),]
    ),
    row!(
        "recv",
        IoRead,
        Argument(0),
        [RES, nowhere("data", Bytes), FD, arg("size", Uint, 2), TUPLE,]
    ),
    row!(
        "recvmsg",
        IoRead,
        Argument(0),
        [
            RES,
            nowhere("size", Uint),
            nowhere("data", Bytes),
            TUPLE,
            nowhere("msgcontrol", Bytes),
            FD,
        ]
    ),
    row!(
        "recvmmsg",
        IoRead,
        Argument(0),
        [
            RES,
            FD,
            nowhere("size", Uint),
            nowhere("data", Bytes),
            TUPLE,
            nowhere("msgcontrol", Bytes),
        ]
    ),
    row!(
        "shutdown",
        Net,
        Argument(0),
        [RES, FD, arg("how", Enum(&flags::SHUTDOWN), 1)]
    ),
    row!("getsockname", Net, Argument(0), [RES]),
    row!("getpeername", Net, Argument(0), [RES]),
    row!(
        "setsockopt",
        Net,
        Argument(0),
        [
            RES,
            FD,
            arg("level", Enum(&flags::SOCKET_LEVEL), 1),
            arg("optname", Uint, 2),
            nowhere("val", Bytes),
            arg("optlen", Uint, 4),
        ]
    ),
    row!(
        "getsockopt",
        Net,
        Argument(0),
        [
            RES,
            FD,
            arg("level", Enum(&flags::SOCKET_LEVEL), 1),
            arg("optname", Uint, 2),
            nowhere("val", Bytes),
            nowhere("optlen", Uint),
        ]
    ),
];
