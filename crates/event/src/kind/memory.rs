//! Calls on memory and System V semaphores.

use abi::flags;

use super::row::{NEW_FD, RES, arg, nowhere, result, row, text};
use crate::DescriptorKind::Memfd;
use crate::DescriptorSource::{Argument, Created, None as NoDescriptor};
use crate::ParamType::{Fd, Flags, Hex, Int, Uint};
use crate::{EventSpec, ParamSpec};

const VM_SIZE: ParamSpec = nowhere("vm_size", Uint);
const VM_RSS: ParamSpec = nowhere("vm_rss", Uint);
const VM_SWAP: ParamSpec = nowhere("vm_swap", Uint);

pub(super) static ROWS: &[EventSpec] = &[
    row!(
        "brk",
        Memory,
        NoDescriptor,
        [
            result("res", Hex),
            VM_SIZE,
            VM_RSS,
            VM_SWAP,
            arg("addr", Hex, 0),
        ]
    ),
    row!(
        "mmap",
        Memory,
        Argument(4),
        [
            RES,
            VM_SIZE,
            VM_RSS,
            VM_SWAP,
            arg("addr", Hex, 0),
            arg("length", Uint, 1),
            arg("prot", Flags(&flags::MMAP_PROT), 2),
            arg("flags", Flags(&flags::MMAP), 3),
            arg("fd", Fd, 4),
            arg("offset", Uint, 5),
        ]
    ),
    row!(
        "mmap2",
        Memory,
        Argument(4),
        [
            RES,
            VM_SIZE,
            VM_RSS,
            VM_SWAP,
            arg("addr", Hex, 0),
            arg("length", Uint, 1),
            arg("prot", Flags(&flags::MMAP_PROT), 2),
            arg("flags", Flags(&flags::MMAP), 3),
            arg("fd", Fd, 4),
            arg("pgoffset", Uint, 5),
        ]
    ),
    row!(
        "munmap",
        Memory,
        NoDescriptor,
        [
            RES,
            VM_SIZE,
            VM_RSS,
            VM_SWAP,
            arg("addr", Hex, 0),
            arg("length", Uint, 1),
        ]
    ),
    row!(
        "mprotect",
        Memory,
        NoDescriptor,
        [
            RES,
            arg("addr", Hex, 0),
            arg("length", Uint, 1),
            arg("prot", Flags(&flags::MMAP_PROT), 2),
        ]
    ),
    row!(
        "mlock",
        Memory,
        NoDescriptor,
        [RES, arg("addr", Hex, 0), arg("len", Uint, 1)]
    ),
    row!(
        "munlock",
        Memory,
        NoDescriptor,
        [RES, arg("addr", Hex, 0), arg("len", Uint, 1)]
    ),
    row!(
        "mlock2",
        Memory,
        NoDescriptor,
        [
            RES,
            arg("addr", Hex, 0),
            arg("len", Uint, 1),
            arg("flags", Hex, 2),
        ]
    ),
    row!(
        "mlockall",
        Memory,
        NoDescriptor,
        [RES, arg("flags", Hex, 0)]
    ),
    row!("munlockall", Memory, NoDescriptor, [RES]),
    row!(
        "memfd_create",
        Memory,
        Created(Memfd),
        [
            NEW_FD,
            text("name", 0),
            arg("flags", Flags(&flags::MEMFD), 1),
        ]
    ),
    row!(
        "futex",
        Ipc,
        NoDescriptor,
        [
            RES,
            arg("addr", Hex, 0),
            arg("op", Hex, 1),
            arg("val", Uint, 2),
        ]
    ),
    row!(
        "semget",
        Process,
        NoDescriptor,
        [
            RES,
            arg("key", Hex, 0),
            arg("nsems", Int, 1),
            arg("semflg", Hex, 2),
        ]
    ),
    row!(
        "semctl",
        Process,
        NoDescriptor,
        [
            RES,
            arg("semid", Int, 0),
            arg("semnum", Int, 1),
            arg("cmd", Hex, 2),
            arg("val", Int, 3),
        ]
    ),
    row!(
        "semop",
        Process,
        NoDescriptor,
        [
            RES,
            arg("nsops", Uint, 2),
            nowhere("sem_num_0", Uint),
            nowhere("sem_op_0", Int),
            nowhere("sem_flg_0", Hex),
            nowhere("sem_num_1", Uint),
            nowhere("sem_op_1", Int),
            nowhere("sem_flg_1", Hex),
            arg("semid", Int, 0),
        ]
    ),
];
