//! BPF calls for which libbpf has no function: small programs that differ only in the kernel function to
//! which they are attached.

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

const PROGRAM_LOAD: u32 = 5;
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
    }

    #[test]
    fn a_function_that_is_none_is_refused() {
        let file = std::fs::File::open("/dev/null").expect("every machine has one");
        let refused = load_return_hook(u32::MAX, Some(std::os::fd::AsFd::as_fd(&file)));
        assert!(refused.is_err());
    }
}
