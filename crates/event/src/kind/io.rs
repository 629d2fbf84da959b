//! Calls on open descriptors.

use abi::flags;

use super::row::{RES, RES_FD, arg, bytes, nowhere, row};
use crate::DescriptorKind::{Event, EventPoll, IoUring, Pipe, Signal as Signalfd, Timer};
use crate::DescriptorSource::{Argument, Created, Duplicated, None as NoDescriptor};
use crate::ParamType::{Bytes, Enum, Fd, Flags, Hex, Int, Text, Uint};
use crate::{Changes, EventSpec, IoDirection};

pub(super) static ROWS: &[EventSpec] = &[
    row!("close", IoOther, Argument(0), [RES, arg("fd", Fd, 0)]),
    row!(
        "close_range",
        IoOther,
        NoDescriptor,
        [
            RES,
            arg("first", Uint, 0),
            arg("last", Uint, 1),
            arg("flags", Flags(&flags::CLOSE_RANGE), 2),
        ]
    ),
    row!(
        "read",
        IoRead,
        Argument(0),
        [
            RES,
            nowhere("data", Bytes),
            arg("fd", Fd, 0),
            arg("size", Uint, 2),
        ]
    ),
    row!(
        "write",
        IoWrite,
        Argument(0),
        [
            RES,
            bytes("data", 1, 2),
            arg("fd", Fd, 0),
            arg("size", Uint, 2),
        ]
    ),
    row!(
        "pread",
        IoRead,
        Argument(0),
        [
            RES,
            nowhere("data", Bytes),
            arg("fd", Fd, 0),
            arg("size", Uint, 2),
            arg("pos", Uint, 3),
        ]
    ),
    row!(
        "pwrite",
        IoWrite,
        Argument(0),
        [
            RES,
            bytes("data", 1, 2),
            arg("fd", Fd, 0),
            arg("size", Uint, 2),
            arg("pos", Uint, 3),
        ]
    ),
    row!(
        "readv",
        IoRead,
        Argument(0),
        [
            RES,
            nowhere("size", Uint),
            nowhere("data", Bytes),
            arg("fd", Fd, 0),
        ]
    ),
    row!(
        "writev",
        IoWrite,
        Argument(0),
        [
            RES,
            nowhere("data", Bytes),
            arg("fd", Fd, 0),
            nowhere("size", Uint),
        ]
    ),
    row!(
        "preadv",
        IoRead,
        Argument(0),
        [
            RES,
            nowhere("size", Uint),
            nowhere("data", Bytes),
            arg("fd", Fd, 0),
            arg("pos", Uint, 3),
        ]
    ),
    row!(
        "pwritev",
        IoWrite,
        Argument(0),
        [
            RES,
            nowhere("data", Bytes),
            arg("fd", Fd, 0),
            nowhere("size", Uint),
            arg("pos", Uint, 3),
        ]
    ),
    row!(
        "lseek",
        File,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            arg("offset", Uint, 1),
            arg("whence", Enum(&flags::SEEK), 2),
        ]
    ),
    row!(
        "llseek",
        File,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            nowhere("offset", Uint),
            arg("whence", Enum(&flags::SEEK), 4),
        ]
    ),
    row!("dup", IoOther, Duplicated(0), [RES_FD, arg("oldfd", Fd, 0)]),
    row!(
        "dup2",
        IoOther,
        Duplicated(0),
        [RES_FD, arg("oldfd", Fd, 0), arg("newfd", Fd, 1)]
    ),
    row!(
        "dup3",
        IoOther,
        Duplicated(0),
        [
            RES_FD,
            arg("oldfd", Fd, 0),
            arg("newfd", Fd, 1),
            arg("flags", Flags(&flags::DESCRIPTOR), 2),
        ]
    ),
    row!(
        "fcntl",
        IoOther,
        Argument(0),
        [
            RES_FD,
            arg("fd", Fd, 0),
            arg("cmd", Enum(&flags::FCNTL), 1),
            arg("arg", Hex, 2),
        ]
    ),
    // TIOCSCTTY and TIOCNOTTY change the controlling terminal.
    row!(
        "ioctl",
        IoOther,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            arg("request", Hex, 1),
            arg("argument", Hex, 2),
        ]
    )
    .changing(Changes::SESSION),
    row!(
        "splice",
        IoOther,
        Argument(0),
        [
            RES,
            arg("fd_in", Fd, 0),
            arg("fd_out", Fd, 2),
            arg("size", Uint, 4),
            arg("flags", Flags(&flags::SPLICE), 5),
        ]
    ),
    // It writes, but Falco does not call it input or output.
    row!(
        "sendfile",
        IoWrite,
        Argument(1),
        [
            RES,
            nowhere("offset", Uint),
            arg("out_fd", Fd, 0),
            arg("in_fd", Fd, 1),
            arg("size", Uint, 3),
        ]
    )
    .moving(IoDirection::None),
    // Waiting.
    row!(
        "poll",
        Wait,
        NoDescriptor,
        [RES, nowhere("fds", Text), arg("timeout", Int, 2)]
    ),
    row!(
        "ppoll",
        Wait,
        NoDescriptor,
        [
            RES,
            nowhere("fds", Text),
            nowhere("timeout", Int),
            nowhere("sigmask", Text),
        ]
    ),
    row!("select", Wait, NoDescriptor, [RES]),
    row!(
        "epoll_create",
        Wait,
        Created(EventPoll),
        [RES, arg("size", Int, 0)]
    ),
    row!(
        "epoll_create1",
        Wait,
        Created(EventPoll),
        [RES, arg("flags", Flags(&flags::DESCRIPTOR), 0)]
    ),
    row!(
        "epoll_wait",
        Wait,
        Argument(0),
        [RES, arg("maxevents", Int, 2)]
    ),
    row!(
        "io_uring_setup",
        IoOther,
        Created(IoUring),
        [
            RES,
            arg("entries", Uint, 0),
            nowhere("sq_entries", Uint),
            nowhere("cq_entries", Uint),
            super::row::field("flags", Flags(&flags::IO_URING_SETUP), 1, 8, 4),
            super::row::field("sq_thread_cpu", Uint, 1, 12, 4),
            super::row::field("sq_thread_idle", Uint, 1, 16, 4),
            nowhere("features", Hex),
        ]
    ),
    row!(
        "io_uring_enter",
        IoOther,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            arg("to_submit", Uint, 1),
            arg("min_complete", Uint, 2),
            arg("flags", Flags(&flags::IO_URING_ENTER), 3),
            nowhere("sig", Text),
        ]
    ),
    row!(
        "io_uring_register",
        IoOther,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            arg("opcode", Enum(&flags::IO_URING_REGISTER), 1),
            arg("arg", Hex, 2),
            arg("nr_args", Uint, 3),
        ]
    ),
    // Descriptors for communication.
    row!(
        "pipe",
        Ipc,
        Created(Pipe),
        [
            RES,
            nowhere("fd1", Fd),
            nowhere("fd2", Fd),
            nowhere("ino", Uint)
        ]
    ),
    row!(
        "pipe2",
        Ipc,
        Created(Pipe),
        [
            RES,
            nowhere("fd1", Fd),
            nowhere("fd2", Fd),
            nowhere("ino", Uint),
            arg("flags", Flags(&flags::DESCRIPTOR), 1),
        ]
    ),
    row!(
        "eventfd",
        Ipc,
        Created(Event),
        [
            RES_FD,
            arg("initval", Uint, 0),
            super::row::constant("flags", Hex, 0),
        ]
    ),
    row!(
        "eventfd2",
        Ipc,
        Created(Event),
        [
            RES_FD,
            arg("flags", Flags(&flags::DESCRIPTOR), 1),
            arg("initval", Uint, 0),
        ]
    ),
    row!(
        "signalfd",
        Signal,
        Created(Signalfd),
        [
            RES_FD,
            arg("fd", Fd, 0),
            nowhere("mask", Hex),
            super::row::constant("flags", Hex, 0),
        ]
    ),
    row!(
        "signalfd4",
        Signal,
        Created(Signalfd),
        [
            RES_FD,
            arg("flags", Flags(&flags::DESCRIPTOR), 3),
            arg("fd", Fd, 0),
            nowhere("mask", Hex),
        ]
    ),
    row!(
        "timerfd_create",
        Time,
        Created(Timer),
        [RES_FD, arg("clockid", Uint, 0), arg("flags", Hex, 1),]
    ),
];
