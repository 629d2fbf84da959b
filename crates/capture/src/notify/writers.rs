//! Calls after which another process, or the kernel, may write a process's memory.
//!
//! Each way to such memory begins with a call: a thread or a process with the same address space, memory that
//! is mapped to be shared, `process_vm_writev`, `ptrace`, an open of a memory file (`/proc/PID/mem`), and
//! calls that make the kernel write later (asynchronous I/O, userfaultfd). A memory file has as many names as
//! there are links, mounts and descriptors, so the file that the open has really returned is inspected.

use abi::constant::{MAP_ANONYMOUS, O_CREAT, O_PATH, PROT_WRITE, PTRACE_TRACEME, SOL_XDP};
use abi::{RegisterTest, Syscall, TestOp};
use event::{Absence, CallPlan, DescriptorSource, Name, Need, Param, ParamSource, Plan, Reason};

use super::verify::Verify;
use decoder::call::Call;
use decoder::decode::Decoded;
use decoder::open_fields;
use process_info::memory::Memory;

/// Set in MAP_SHARED_VALIDATE, too.
const MAP_SHARED: u64 = abi::constant::MAP_SHARED.u64();
pub(super) const CLONE_VM: u64 = abi::constant::CLONE_VM.u64();
pub(super) const CLONE_VFORK: u64 = abi::constant::CLONE_VFORK.u64();
pub(super) const CLONE_PARENT: u64 = abi::constant::CLONE_PARENT.u64();
pub(super) const CLONE_THREAD: u64 = abi::constant::CLONE_THREAD.u64();

/// `O_WRONLY` and `O_RDWR`.
const WRITES: u64 = 3;
const O_EXCL: u64 = abi::constant::O_EXCL.u64();
/// `O_TMPFILE` without `O_DIRECTORY`, which it includes.
const TEMPORARY: u64 = 0o20_000_000;

/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
const NEW_USERFAULTFD: u64 = 0xaa00;
/// `VHOST_SET_OWNER`: a kernel thread works in the caller's memory.
const VHOST_SET_OWNER: u64 = 0xaf01;

type Row = (Syscall, &'static [&'static [RegisterTest]], &'static str);

const SHARES: &str = "memory that other processes may write";
const FILLS: &str = "has the kernel write the caller's memory later";
const FAULTS: &str = "has another process answer for missing pages";

/// Calls after which another thread or process can write a process's memory.
const STATE: &[Row] = &[
    (
        Syscall::CLONE,
        // The parent of a vfork child sleeps, unless the child got another parent.
        &[
            &[
                RegisterTest::low(0, TestOp::AllBits, CLONE_VM),
                RegisterTest::low(0, TestOp::NoBit, CLONE_VFORK),
            ],
            &[RegisterTest::low(
                0,
                TestOp::AllBits,
                CLONE_VM | CLONE_PARENT,
            )],
        ],
        "a thread, or a process with the same memory",
    ),
    (
        Syscall::MMAP,
        // Other processes may write memory that is mapped for reading only, but their calls trap here;
        // without a file they are descendants.
        &[
            &[
                RegisterTest::low(3, TestOp::AllBits, MAP_SHARED),
                RegisterTest::low(2, TestOp::AllBits, PROT_WRITE.u64()),
            ],
            &[RegisterTest::low(
                3,
                TestOp::AllBits,
                MAP_SHARED | MAP_ANONYMOUS.u64(),
            )],
        ],
        SHARES,
    ),
    (Syscall::SHMAT, &[], SHARES),
    (Syscall::PTRACE, &[], "may write another process's memory"),
    (
        Syscall::PROCESS_VM_WRITEV,
        &[],
        "writes another process's memory",
    ),
    (
        Syscall::PROCESS_MADVISE,
        &[],
        "drops pages of another process",
    ),
    (Syscall::USERFAULTFD, &[], FAULTS),
    (
        Syscall::IOCTL,
        &[
            &[RegisterTest::low(1, TestOp::Eq, NEW_USERFAULTFD)],
            &[RegisterTest::low(1, TestOp::Eq, VHOST_SET_OWNER)],
        ],
        "has somebody else, or the kernel, fill memory",
    ),
    (
        Syscall::SETSOCKOPT,
        &[&[RegisterTest::low(1, TestOp::Eq, SOL_XDP.u64())]],
        FILLS,
    ),
    (Syscall::IO_SETUP, &[], FILLS),
];

macro_rules! writes {
    ($flags:literal) => {
        &[
            &[
                RegisterTest::low($flags, TestOp::AnyBit, WRITES),
                RegisterTest::low(
                    $flags,
                    TestOp::NoBit,
                    O_PATH.u64() | TEMPORARY | O_CREAT.u64(),
                ),
            ],
            &[
                RegisterTest::low($flags, TestOp::AnyBit, WRITES),
                RegisterTest::low($flags, TestOp::NoBit, O_PATH.u64() | TEMPORARY | O_EXCL),
            ],
        ]
    };
}

/// Calls that may open the memory of a process, or of the host, for writing. Opens of a new file (`O_CREAT`
/// with `O_EXCL`, `O_TMPFILE`) do not.
const OPENS: &[Row] = &[
    (Syscall::OPEN, writes!(1), OPENS_MEMORY),
    (Syscall::OPENAT, writes!(2), OPENS_MEMORY),
    (Syscall::OPEN_BY_HANDLE_AT, writes!(2), OPENS_MEMORY),
    (Syscall::CREAT, &[], OPENS_MEMORY),
    // Its flags are in memory.
    (Syscall::OPENAT2, &[], OPENS_MEMORY),
];

const OPENS_MEMORY: &str = "may open the memory of a process for writing";

/// Adds to a plan the calls by which racy callers are recognised.
pub(super) fn extend(verify: Verify, plan: &mut Plan) {
    let rows: &[&[Row]] = match verify {
        Verify::Off => &[],
        Verify::Sampled => &[STATE],
        Verify::Always => &[STATE, OPENS],
    };
    for (call, any_of, reason) in rows.iter().copied().flatten() {
        let planned = plan.calls.entry(*call).or_insert_with(|| CallPlan {
            any_of: Vec::new(),
            strings: false,
            result: Need::Never,
            reasons: Vec::new(),
        });
        let is_always = planned.any_of.iter().any(Vec::is_empty);
        match any_of {
            [] => planned.any_of = vec![Vec::new()],
            _ if is_always => {}
            _ => planned
                .any_of
                .extend(any_of.iter().map(|group| group.to_vec())),
        }
        planned.reasons.push(Reason::State((*reason).into()));
    }
}

/// Effect of a call on the memory of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// No effect that counts.
    None,
    /// Makes a thread.
    Thread,
    /// Makes a process that shares the caller's memory.
    Process,
    /// Maps memory that others may write.
    Maps,
    /// The kernel writes the caller's memory later.
    Fills,
    /// Another process may write the caller's memory.
    Exposes,
    /// The caller may write the memory of this process or thread.
    Writes(i32),
    /// The caller may write, or change, memory of an unknown process.
    WritesAny,
}

/// Returns the effect of a call that [`extend`] plans. `deny_rings`: an io_uring is refused.
pub(super) fn effect(call: &Call, deny_rings: bool) -> Effect {
    match call.syscall.base() {
        Syscall::CLONE if call.raw(0) & CLONE_VM == 0 => Effect::None,
        Syscall::CLONE if call.raw(0) & (CLONE_VFORK | CLONE_PARENT) == CLONE_VFORK => Effect::None,
        Syscall::CLONE if call.raw(0) & CLONE_THREAD != 0 => Effect::Thread,
        // The flags of clone3 are in memory, which may change.
        Syscall::CLONE | Syscall::CLONE3 => Effect::Process,
        Syscall::MMAP if is_private(call) => Effect::None,
        Syscall::MMAP | Syscall::SHMAT => Effect::Maps,
        Syscall::PTRACE if call.raw(0) == PTRACE_TRACEME.u64() => Effect::Exposes,
        Syscall::PTRACE => Effect::Writes(call.int(1)),
        Syscall::PROCESS_VM_WRITEV => Effect::Writes(call.int(0)),
        Syscall::PROCESS_MADVISE | Syscall::USERFAULTFD => Effect::WritesAny,
        Syscall::IOCTL => match call.raw(1) & u64::from(u32::MAX) {
            NEW_USERFAULTFD => Effect::WritesAny,
            VHOST_SET_OWNER => Effect::Fills,
            _ => Effect::None,
        },
        Syscall::SETSOCKOPT if u64::from(call.int(1).unsigned_abs()) == SOL_XDP.u64() => {
            Effect::Fills
        }
        Syscall::IO_SETUP => Effect::Fills,
        // Any holder of the descriptor can make its requests.
        Syscall::IO_URING_SETUP if !deny_rings => Effect::WritesAny,
        _ => Effect::None,
    }
}

/// Returns whether [`effect`] covers a call.
pub(super) fn is_concerned(call: &Call) -> bool {
    match call.syscall.base() {
        Syscall::CLONE3 => true,
        // Rules ask for them for other reasons.
        Syscall::IOCTL | Syscall::SETSOCKOPT => effect(call, true) != Effect::None,
        syscall => STATE.iter().any(|(row, ..)| *row == syscall),
    }
}

/// Returns whether no other process can write a mapping. The flags of the old i386 call are in memory.
fn is_private(call: &Call) -> bool {
    let (prot, flags) = (call.raw(2), call.raw(3));
    call.syscall != Syscall::OLD_MMAP
        && (flags & MAP_SHARED == 0
            || prot & PROT_WRITE.u64() == 0 && flags & MAP_ANONYMOUS.u64() == 0)
}

/// Returns whether a call opens files by their names, or by a stand-in for a name.
pub(crate) fn opens_file(call: &Call) -> bool {
    matches!(call.kind.spec().descriptor, DescriptorSource::Opened { .. })
}

/// Returns whether the registers allow an open for writing.
pub(crate) fn may_write(call: &Call) -> bool {
    let flags = match call.syscall {
        Syscall::OPEN => 1,
        Syscall::OPENAT | Syscall::OPEN_BY_HANDLE_AT => 2,
        _ => return true,
    };
    is_for_writing(call.raw(flags))
}

/// Returns whether the flags open an existing file for writing: a new file is not a process's memory.
fn is_for_writing(flags: u64) -> bool {
    let is_new =
        flags & (O_CREAT.u64() | O_EXCL) == O_CREAT.u64() | O_EXCL || flags & TEMPORARY != 0;
    flags & WRITES != 0 && flags & O_PATH.u64() == 0 && !is_new
}

/// Returns whether a call may open the memory of a process for writing, whatever its name.
pub(crate) fn may_open_memory(call: &Call, decoded: &Decoded<'_>) -> bool {
    let DescriptorSource::Opened { flags, .. } = call.kind.spec().descriptor else {
        return false;
    };
    match decoded.params.get(usize::from(flags)) {
        // The flags of openat2 are in memory.
        Some(Param::Uint(_)) if call.syscall == Syscall::OPENAT2 && decoded.is_shared => true,
        Some(Param::Uint(flags)) if call.syscall != Syscall::CREAT => is_for_writing(*flags),
        _ => true,
    }
}

/// Returns whether a call may open for writing a file that is named like a memory file, or one behind a descriptor.
pub(crate) fn is_named_like_memory(call: &Call, decoded: &Decoded<'_>) -> bool {
    let is_memory = |name: &[u8]| {
        let mut parts = name.rsplit(|byte| *byte == b'/');
        parts.next() == Some(b"mem") || parts.next() == Some(b"fd")
    };
    let name = decoded.descriptor.map(|known| known.name);
    let is_named = match name {
        Some(Name::Opened { raw, path }) => is_memory(raw) || is_memory(path),
        Some(Name::Passed { raw, .. } | Name::Unresolved { raw } | Name::Resolved(raw)) => {
            is_memory(raw)
        }
        _ => false,
    };
    // Flags in memory may be others by the time of the call.
    is_named && (open_fields::are_in_memory(call.kind) || may_open_memory(call, decoded))
}

/// Returns whether all data of a verifiable call is in pages that no other process can write.
pub(crate) fn is_in_private_pages(call: &Call, decoded: &Decoded<'_>, memory: &Memory) -> bool {
    // A socketcall has its arguments in memory, at an address that is no longer known.
    let is_unpacked = call.arch == abi::Arch::I386 && call.syscall.base() == Syscall::CONNECT;
    if decoded.unreadable || decoded.forced || call.is_unread || is_unpacked {
        return false;
    }
    let sources = call.kind.spec().params.iter().map(|spec| spec.source);
    let params = sources.zip(decoded.params);
    let is_private = |address, len| memory.is_private(call.tid, address, len);
    let params_are = params.into_iter().all(|(source, param)| match source {
        ParamSource::Path { path: at, .. } | ParamSource::Text(at) => match param {
            Param::Text(text) => is_private(call.raw(at), text.len() as u64 + 1),
            Param::Absent(_) => true,
            _ => false,
        },
        ParamSource::Field { arg, offset, size } => {
            is_private(call.raw(arg).wrapping_add(offset.into()), u64::from(size))
        }
        _ => true,
    });
    params_are
        && match call.kind.spec().descriptor {
            DescriptorSource::Addressed { address, len, .. } => {
                let len = u64::from(call.int(len).unsigned_abs());
                Absence::of_length(len).is_some() || is_private(call.raw(address), len.min(128))
            }
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use event::EventKind;

    use super::*;

    fn call(syscall: Syscall, args: [u64; 6]) -> Call {
        Call {
            id: 0,
            tid: event::Tid(0),
            arch: abi::Arch::native().expect("tests run where the program does"),
            syscall,
            kind: EventKind::of_syscall(syscall),
            ip: 0,
            args,
            is_unread: false,
        }
    }

    /// Walks all calls: the plan covers every one that opens files by name or by a stand-in for a name.
    #[test]
    fn each_call_that_opens_a_file_is_looked_at_when_it_writes() {
        let mut opens: Vec<Syscall> = Vec::new();
        for syscall in Syscall::all() {
            let kind = EventKind::of_syscall(syscall);
            if matches!(kind.spec().descriptor, DescriptorSource::Opened { .. }) {
                opens.push(syscall);
            }
        }
        let mut listed: Vec<Syscall> = OPENS.iter().map(|(syscall, ..)| *syscall).collect();
        opens.sort_unstable_by_key(|syscall| syscall.index());
        listed.sort_unstable_by_key(|syscall| syscall.index());
        assert_eq!(opens, listed);
        let mut plan = Plan::default();
        extend(Verify::Always, &mut plan);
        for syscall in opens {
            for flags in
                (0..1 << 12).chain([O_PATH.u64() | 2, TEMPORARY | 2, TEMPORARY, O_PATH.u64()])
            {
                // The flags are in one of these; the other is no pointer that is followed.
                let call = call(syscall, [0, flags, flags, 0, 0, 0]);
                let is_trapped = plan.calls[&syscall]
                    .any_of
                    .iter()
                    .any(|group| group.iter().all(|test| test.holds(&call.args)));
                assert_eq!(is_trapped, may_write(&call), "{syscall} {flags:o}");
                let is_always = matches!(syscall, Syscall::OPENAT2 | Syscall::CREAT);
                assert!(!is_always || is_trapped);
            }
        }
    }

    #[test]
    fn what_makes_the_kernel_or_somebody_else_write_memory_is_known() {
        let effects = [
            (Syscall::IO_SETUP, [8, 0, 0, 0, 0, 0], Effect::Fills),
            (
                Syscall::SETSOCKOPT,
                [3, SOL_XDP.u64(), 4, 0, 0, 0],
                Effect::Fills,
            ),
            (Syscall::SETSOCKOPT, [3, 1, 4, 0, 0, 0], Effect::None),
            (
                Syscall::IOCTL,
                [3, NEW_USERFAULTFD, 0, 0, 0, 0],
                Effect::WritesAny,
            ),
            // The kernel takes the low half.
            (
                Syscall::IOCTL,
                [3, 1 << 32 | VHOST_SET_OWNER, 0, 0, 0, 0],
                Effect::Fills,
            ),
            (Syscall::IOCTL, [3, 0x5401, 0, 0, 0, 0], Effect::None),
            (Syscall::USERFAULTFD, [0; 6], Effect::WritesAny),
            (Syscall::PROCESS_MADVISE, [0; 6], Effect::WritesAny),
            (
                Syscall::PROCESS_VM_WRITEV,
                [7, 0, 0, 0, 0, 0],
                Effect::Writes(7),
            ),
            (Syscall::PTRACE, [0; 6], Effect::Exposes),
            (Syscall::PTRACE, [16, 9, 0, 0, 0, 0], Effect::Writes(9)),
            (Syscall::CLONE3, [0; 6], Effect::Process),
        ];
        for (syscall, args, expected) in effects {
            let call = call(syscall, args);
            assert_eq!(effect(&call, true), expected, "{syscall} {args:x?}");
            let is_shown = expected != Effect::None;
            assert!(!is_shown || is_concerned(&call), "{syscall}");
        }
        let ring = call(Syscall::IO_URING_SETUP, [8, 0, 0, 0, 0, 0]);
        assert_eq!(effect(&ring, true), Effect::None);
        assert_eq!(effect(&ring, false), Effect::WritesAny);
    }
}
