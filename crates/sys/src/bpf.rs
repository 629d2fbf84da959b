//! BPF calls for which libbpf has no safe function: small programs that differ only in the kernel function to
//! which they are attached, and programs that stay attached to a control group.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::error::Result;
use crate::kernel::own;

/// The fields of `union bpf_attr` that `BPF_PROG_LOAD` reads here.
#[repr(C)]
#[derive(Default)]
struct Load {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
    /// Types, functions and lines of the program, which are absent.
    described: [u64; 4],
    described_lines: u32,
    function: u32,
    program: u32,
    _pad: u32,
}

/// The fields that `BPF_RAW_TRACEPOINT_OPEN` reads.
#[repr(C)]
struct Open {
    name: u64,
    program: u32,
    _pad: u32,
}

/// The fields that `BPF_PROG_ATTACH` reads.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
    replaced: u32,
}

/// The fields that `BPF_PROG_QUERY` reads and writes.
#[repr(C)]
struct Query {
    target: u32,
    kind: u32,
    flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    _pad: u32,
}

/// Programs that a control group may have for one hook.
const MOST_OF_A_GROUP: usize = 64;
const PROGRAM_QUERY: u32 = 16;
const PROGRAM_LOAD: u32 = 5;
const PROGRAM_ATTACH: u32 = 8;
/// `BPF_F_ALLOW_MULTI`: beside other programs; each of them can deny.
const BESIDE_OTHERS: u32 = 1 << 1;
const RAW_TRACEPOINT_OPEN: u32 = 17;
const TRACING: u32 = 26;
const TRACE_FEXIT: u32 = 25;

/// Encodes one instruction: operation, registers, offset, constant.
const fn instruction(code: u8, registers: u8, constant: i32) -> [u8; 8] {
    let [a, b, c, d] = constant.to_ne_bytes();
    [code, registers, 0, 0, a, b, c, d]
}

/// Loads a program for the return of a kernel function. The program only calls entry 0 of `bodies` (a map of
/// type `BPF_MAP_TYPE_PROG_ARRAY`), or does nothing.
///
/// # Kernel
/// 5.5, with BTF and direct calls of ftrace; CAP_BPF and CAP_PERFMON.
///
/// # Errors
/// EPERM and EINVAL where the kernel allows no programs on functions, ENOTSUPP for a function that cannot be
/// traced.
pub fn load_return_hook(function: u32, bodies: Option<BorrowedFd<'_>>) -> Result<OwnedFd> {
    const LOAD_MAP: u8 = 0x18;
    const MOVE: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const TAIL_CALL: i32 = 12;
    let mut program = Vec::new();
    if let Some(bodies) = bodies {
        // The context is in register 1 already; the map goes to 2, and its entry to 3.
        program.extend([
            instruction(LOAD_MAP, 0x12, bodies.as_raw_fd()),
            instruction(0, 0, 0),
            instruction(MOVE, 0x03, 0),
            instruction(CALL, 0, TAIL_CALL),
        ]);
    }
    program.extend([instruction(MOVE, 0x00, 0), instruction(EXIT, 0, 0)]);
    let license = c"Dual BSD/GPL";
    let attributes = Load {
        program_type: TRACING,
        instruction_count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        name: *b"tollgate_return\0",
        attach_type: TRACE_FEXIT,
        function,
        ..Load::default()
    };
    let (at, size) = (&raw const attributes, size_of::<Load>());
    // SAFETY: the kernel copies `size` bytes of `attributes`, and from there the instructions and the
    // NUL-terminated license; all three live during the call.
    let made = unsafe { syscall!("bpf(BPF_PROG_LOAD)", libc::SYS_bpf, PROGRAM_LOAD, at, size) }?;
    // SAFETY: the call has just made this descriptor.
    Ok(unsafe { own(made) })
}

/// Attaches such a program. It stays attached as long as the result is open.
///
/// # Errors
/// EBUSY and others of ftrace.
pub fn attach_hook(program: BorrowedFd<'_>) -> Result<OwnedFd> {
    let attributes = Open {
        name: 0,
        program: program.as_raw_fd().cast_unsigned(),
        _pad: 0,
    };
    let (at, size) = (&raw const attributes, size_of::<Open>());
    // SAFETY: the kernel copies `size` bytes of `attributes`, which names no other memory.
    let made = unsafe {
        syscall!(
            "bpf(BPF_RAW_TRACEPOINT_OPEN)",
            libc::SYS_bpf,
            RAW_TRACEPOINT_OPEN,
            at,
            size
        )
    }?;
    // SAFETY: the call has just made this descriptor.
    Ok(unsafe { own(made) })
}

/// A hook of control groups: `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GroupHook {
    /// Packets of IP that leave.
    Egress = 1,
    /// connect(2) to an address of IPv4.
    Connect4 = 10,
    /// connect(2) to an address of IPv6.
    Connect6 = 11,
    /// Datagrams to an address of IPv4.
    Send4 = 14,
    /// Datagrams to an address of IPv6.
    Send6 = 15,
}

/// Attaches a program to a control group of version 2. It stays attached until the group is removed, whatever becomes of
/// this process.
///
/// # Kernel
/// 4.18; CAP_BPF and CAP_NET_ADMIN.
///
/// # Errors
/// EINVAL for a program that is attached there, EPERM if an ancestor's program does not allow others below it, E2BIG beside
/// 64 others, EBADF for another kind of folder.
pub fn attach_to_group(
    program: BorrowedFd<'_>,
    group: BorrowedFd<'_>,
    hook: GroupHook,
) -> Result<()> {
    let attributes = Attach {
        target: group.as_raw_fd().cast_unsigned(),
        program: program.as_raw_fd().cast_unsigned(),
        kind: hook as u32,
        flags: BESIDE_OTHERS,
        replaced: 0,
    };
    let (at, size) = (&raw const attributes, size_of::<Attach>());
    // SAFETY: the kernel copies `size` bytes of `attributes`, which names no other memory.
    let attached = unsafe {
        syscall!(
            "bpf(BPF_PROG_ATTACH)",
            libc::SYS_bpf,
            PROGRAM_ATTACH,
            at,
            size
        )
    };
    attached.map(drop)
}

/// Ids of the programs that are attached to a control group, at most 64.
///
/// # Kernel
/// 4.15; CAP_NET_ADMIN.
///
/// # Errors
/// EBADF for another kind of folder.
pub fn programs_of_group(group: BorrowedFd<'_>, hook: GroupHook) -> Result<Vec<u32>> {
    let mut ids = [0_u32; MOST_OF_A_GROUP];
    let mut attributes = Query {
        target: group.as_raw_fd().cast_unsigned(),
        kind: hook as u32,
        flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr() as u64,
        count: MOST_OF_A_GROUP as u32,
        _pad: 0,
    };
    let (at, size) = (&raw mut attributes, size_of::<Query>());
    // SAFETY: the kernel copies `size` bytes of `attributes`, writes at most `count` numbers to `ids` and their count to
    // `attributes`; both live during the call.
    unsafe {
        syscall!(
            "bpf(BPF_PROG_QUERY)",
            libc::SYS_bpf,
            PROGRAM_QUERY,
            at,
            size
        )
    }?;
    let count = (attributes.count as usize).min(ids.len());
    Ok(ids[..count].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_where_the_kernel_reads_them() {
        // include/uapi/linux/bpf.h
        assert_eq!(std::mem::offset_of!(Load, name), 48);
        assert_eq!(std::mem::offset_of!(Load, attach_type), 68);
        assert_eq!(std::mem::offset_of!(Load, function), 108);
        assert_eq!(size_of::<Open>(), 16);
        assert_eq!(std::mem::offset_of!(Attach, replaced), 16);
        assert_eq!(std::mem::offset_of!(Query, count), 24);
    }

    #[test]
    fn a_function_that_is_none_is_refused() {
        let file = std::fs::File::open("/dev/null").expect("every machine has one");
        let refused = load_return_hook(u32::MAX, Some(std::os::fd::AsFd::as_fd(&file)));
        assert!(refused.is_err());
    }
}
