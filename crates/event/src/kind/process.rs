//! Process calls: creation, exec, credentials, signals, tracing.

use abi::flags;

use super::row::{NEW_FD, RES, arg, field, nowhere, of_process, path, path_at, result, row, text};
use crate::DescriptorKind::Pidfd;
use crate::DescriptorSource::{Argument, Created, None as NoDescriptor};
use crate::ParamType::{
    Bytes, Enum, Errno, Fd, Flags, Gid, Hex, Int, Path, Pid, Signal, Text, Texts, Uid, Uint,
};
use crate::{Changes, EngineSupport, EventSpec, ParamSpec};

/// Builds the row of a call that creates a process. `$flags` is the parameter of that name.
macro_rules! birth {
    ($name:literal, $flags:expr) => {
        row!(
            $name,
            Process,
            NoDescriptor,
            [
                result("res", Pid),
                EXE,
                ARGS,
                TID,
                PID,
                PTID,
                CWD,
                nowhere("fdlimit", Int),
                nowhere("pgft_maj", Uint),
                nowhere("pgft_min", Uint),
                VM_SIZE,
                VM_RSS,
                nowhere("vm_swap", Uint),
                COMM,
                CGROUPS,
                $flags,
                of_process("uid", Uint),
                of_process("gid", Uint),
                of_process("vtid", Pid),
                of_process("vpid", Pid),
                nowhere("pidns_init_start_ts", Uint),
            ]
        )
    };
}

/// Builds the row of a call that executes a program; `$filename` are the parameters that name it.
macro_rules! exec {
    ($name:literal, [$($filename:expr),*]) => {
        row!($name, Process, NoDescriptor, [
            RES,
            EXE,
            ARGS,
            TID,
            PID,
            PTID,
            CWD,
            nowhere("fdlimit", Uint),
            nowhere("pgft_maj", Uint),
            nowhere("pgft_min", Uint),
            VM_SIZE,
            VM_RSS,
            nowhere("vm_swap", Uint),
            COMM,
            CGROUPS,
            of_process("env", Texts),
            of_process("tty", Uint),
            of_process("vpgid", Pid),
            of_process("loginuid", Uid),
            of_process("flags", Text),
            of_process("cap_inheritable", Hex),
            of_process("cap_permitted", Hex),
            of_process("cap_effective", Hex),
            of_process("exe_ino", Uint),
            of_process("exe_ino_ctime", Uint),
            of_process("exe_ino_mtime", Uint),
            of_process("uid", Uid),
            of_process("trusted_exepath", Path),
            of_process("pgid", Pid),
            of_process("gid", Gid)
            $(, $filename)*
        ])
        .changing(Changes::PROGRAM)
    };
}

const EXE: ParamSpec = of_process("exe", Text);
const ARGS: ParamSpec = of_process("args", Texts);
const TID: ParamSpec = of_process("tid", Pid);
const PID: ParamSpec = of_process("pid", Pid);
const PTID: ParamSpec = of_process("ptid", Pid);
const CWD: ParamSpec = of_process("cwd", Text);
const COMM: ParamSpec = of_process("comm", Text);
const CGROUPS: ParamSpec = nowhere("cgroups", Text);
const VM_SIZE: ParamSpec = of_process("vm_size", Uint);
const VM_RSS: ParamSpec = of_process("vm_rss", Uint);

pub(super) static ROWS: &[EventSpec] = &[
    // Programs and processes.
    exec!("execve", [path("filename", 0)]),
    // Falco ends the row at `gid`; the requested directory and path are added here.
    exec!("execveat", [arg("dirfd", Fd, 0), path_at("pathname", 0, 1)]),
    // The order of clone's arguments differs by architecture, but the flags are always first.
    birth!("clone", arg("flags", Flags(&flags::CLONE), 0)),
    birth!("clone3", field("flags", Flags(&flags::CLONE3), 0, 0, 8)),
    birth!("fork", super::row::constant("flags", Hex, 0)),
    birth!("vfork", super::row::constant("flags", Hex, 0)),
    row!(
        "procexit",
        Process,
        NoDescriptor,
        [
            nowhere("status", Errno),
            nowhere("ret", Errno),
            nowhere("sig", Signal),
            nowhere("core", Uint),
            nowhere("reaper_tid", Pid),
        ]
    )
    .by(EngineSupport::Kernel),
    row!("setsid", Process, NoDescriptor, [result("res", Pid)]).changing(Changes::SESSION),
    row!(
        "setpgid",
        Process,
        NoDescriptor,
        [RES, arg("pid", Pid, 0), arg("pgid", Pid, 1)]
    )
    .changing(Changes::SESSION),
    row!(
        "unshare",
        Process,
        NoDescriptor,
        [RES, arg("flags", Flags(&flags::CLONE3), 0)]
    )
    .changing(Changes::NAMESPACES),
    row!(
        "setns",
        Process,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            arg("nstype", Flags(&flags::CLONE3), 1),
        ]
    )
    .changing(Changes::NAMESPACES),
    row!(
        "prctl",
        Process,
        NoDescriptor,
        [
            RES,
            arg("option", Enum(&flags::PRCTL), 0),
            nowhere("arg2_str", Text),
            arg("arg2_int", Int, 1),
        ]
    )
    .changing(Changes::NAME_AND_CAPABILITIES),
    row!(
        "capset",
        Process,
        NoDescriptor,
        [
            RES,
            of_process("cap_inheritable", Hex),
            of_process("cap_permitted", Hex),
            of_process("cap_effective", Hex),
        ]
    )
    .changing(Changes::CREDENTIALS),
    row!(
        "getrlimit",
        Process,
        NoDescriptor,
        [
            RES,
            nowhere("cur", Int),
            nowhere("max", Int),
            arg("resource", Enum(&flags::RLIMIT), 0),
        ]
    ),
    row!(
        "setrlimit",
        Process,
        NoDescriptor,
        [
            RES,
            field("cur", Int, 1, 0, 8),
            field("max", Int, 1, 8, 8),
            arg("resource", Enum(&flags::RLIMIT), 0),
        ]
    ),
    row!(
        "prlimit",
        Process,
        NoDescriptor,
        [
            RES,
            field("newcur", Int, 2, 0, 8),
            field("newmax", Int, 2, 8, 8),
            nowhere("oldcur", Int),
            nowhere("oldmax", Int),
            arg("pid", Int, 0),
            arg("resource", Enum(&flags::RLIMIT), 1),
        ]
    ),
    // Users and groups.
    row!("setuid", User, NoDescriptor, [RES, arg("uid", Uid, 0)]).changing(Changes::CREDENTIALS),
    row!("setgid", User, NoDescriptor, [RES, arg("gid", Gid, 0)]).changing(Changes::CREDENTIALS),
    row!(
        "setreuid",
        User,
        NoDescriptor,
        [RES, arg("ruid", Uid, 0), arg("euid", Uid, 1)]
    )
    .changing(Changes::CREDENTIALS),
    row!(
        "setregid",
        User,
        NoDescriptor,
        [RES, arg("rgid", Gid, 0), arg("egid", Gid, 1)]
    )
    .changing(Changes::CREDENTIALS),
    row!(
        "setresuid",
        User,
        NoDescriptor,
        [
            RES,
            arg("ruid", Uid, 0),
            arg("euid", Uid, 1),
            arg("suid", Uid, 2),
        ]
    )
    .changing(Changes::CREDENTIALS),
    row!(
        "setresgid",
        User,
        NoDescriptor,
        [
            RES,
            arg("rgid", Gid, 0),
            arg("egid", Gid, 1),
            arg("sgid", Gid, 2),
        ]
    )
    .changing(Changes::CREDENTIALS),
    row!("getuid", User, NoDescriptor, [result("uid", Uid)]),
    row!("geteuid", User, NoDescriptor, [result("euid", Uid)]),
    row!("getgid", User, NoDescriptor, [result("gid", Gid)]),
    row!("getegid", User, NoDescriptor, [result("egid", Gid)]),
    row!(
        "getresuid",
        User,
        NoDescriptor,
        [
            RES,
            nowhere("ruid", Uid),
            nowhere("euid", Uid),
            nowhere("suid", Uid),
        ]
    ),
    row!(
        "getresgid",
        User,
        NoDescriptor,
        [
            RES,
            nowhere("rgid", Gid),
            nowhere("egid", Gid),
            nowhere("sgid", Gid),
        ]
    ),
    // Signals and other processes.
    row!(
        "kill",
        Signal,
        NoDescriptor,
        [RES, arg("pid", Pid, 0), arg("sig", Signal, 1)]
    ),
    row!(
        "tkill",
        Signal,
        NoDescriptor,
        [RES, arg("tid", Pid, 0), arg("sig", Signal, 1)]
    ),
    row!(
        "tgkill",
        Signal,
        NoDescriptor,
        [
            RES,
            arg("pid", Pid, 0),
            arg("tid", Pid, 1),
            arg("sig", Signal, 2),
        ]
    ),
    row!(
        "ptrace",
        Process,
        NoDescriptor,
        [
            RES,
            arg("addr", Hex, 2),
            arg("data", Hex, 3),
            arg("request", Enum(&flags::PTRACE), 0),
            arg("pid", Pid, 1),
        ]
    ),
    row!(
        "process_vm_readv",
        Ipc,
        NoDescriptor,
        [
            result("res", Int),
            arg("pid", Pid, 0),
            nowhere("data", Bytes),
        ]
    ),
    row!(
        "process_vm_writev",
        Ipc,
        NoDescriptor,
        [
            result("res", Int),
            arg("pid", Pid, 0),
            nowhere("data", Bytes),
        ]
    ),
    row!(
        "pidfd_open",
        Process,
        Created(Pidfd),
        [
            NEW_FD,
            arg("pid", Pid, 0),
            arg("flags", Flags(&flags::PIDFD), 1),
        ]
    ),
    row!(
        "pidfd_getfd",
        Process,
        NoDescriptor,
        [
            NEW_FD,
            arg("pid_fd", Fd, 0),
            arg("target_fd", Int, 1),
            arg("flags", Hex, 2),
        ]
    ),
    row!(
        "nanosleep",
        Sleep,
        NoDescriptor,
        [RES, nowhere("interval", Uint)]
    ),
    row!(
        "keyctl",
        Other,
        NoDescriptor,
        [
            RES,
            arg("operation", Enum(&flags::KEYCTL), 0),
            arg("arg2", Hex, 1),
            arg("arg3", Hex, 2),
            arg("arg4", Hex, 3),
            arg("arg5", Hex, 4),
        ]
    ),
    // Falco has no row for it; the parameter name is the one that rule authors would expect.
    row!(
        "add_key",
        Other,
        NoDescriptor,
        [
            RES,
            text("type", 0),
            text("description", 1),
            arg("size", Uint, 3),
            arg("keyring", Int, 4),
        ]
    ),
];
