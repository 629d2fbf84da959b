//! Trapped calls: number, architecture and registers.

use abi::{Arch, Syscall};
use event::{EventKind, Tid};

use process_info::memory::{Memory, Unreadable};

/// One trapped call in the terms of the native call table.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The listener's notification id.
    pub id: u64,
    /// The calling thread, in the agent's pid namespace.
    pub tid: Tid,
    /// The architecture whose table the number belongs to.
    pub arch: Arch,
    /// The system call.
    pub syscall: Syscall,
    /// The kind of event that the call produces.
    pub kind: EventKind,
    /// Instruction pointer at the call.
    pub ip: u64,
    /// The arguments; those of a `socketcall` are unpacked.
    pub args: [u64; 6],
    /// True if the arguments are unknown because those of a `socketcall` could not be read.
    pub is_unread: bool,
}

impl Call {
    /// Decodes a notification. Returns `None` for a number that its architecture does not have.
    pub fn decode(notification: &sys::notify::Notification, memory: &Memory) -> Option<Self> {
        let mut call = Self::from_registers(notification)?;
        if call.syscall != Syscall::SOCKETCALL {
            return Some(call);
        }
        let operation = call.int(0).cast_unsigned();
        // The kernel refuses a number that no socketcall has.
        if let Some(real) = Syscall::from_socketcall(operation) {
            let args = unpack_socketcall(operation, call.args[1], call.tid, memory);
            call.syscall = real;
            call.kind = EventKind::of_syscall(real);
            // Whoever reads them looks at `is_unread` first.
            call.args = args.unwrap_or_default();
            call.is_unread = args.is_err();
        }
        Some(call)
    }

    /// Decodes a notification without reading memory: a `socketcall` is not unpacked. Returns `None` for a number
    /// that its architecture does not have.
    pub fn from_registers(notification: &sys::notify::Notification) -> Option<Self> {
        let (arch, syscall) = abi::arch::decode(notification.arch, notification.nr)?;
        let syscall = syscall?;
        Some(Self {
            id: notification.id,
            tid: Tid(notification.tid),
            arch,
            syscall,
            kind: EventKind::of_syscall(syscall),
            ip: notification.ip,
            args: notification.args,
            is_unread: false,
        })
    }

    /// Returns whether pointers and longs of the caller are 32 bits wide.
    pub fn is_32_bit(&self) -> bool {
        matches!(self.arch, Arch::I386 | Arch::X32 | Arch::Arm)
    }

    /// Returns whether the call replaces the caller's program if it succeeds.
    pub fn replaces_program(&self) -> bool {
        replaces_program(self.syscall, &self.args)
    }

    /// Returns a register argument as the kernel reads it: sign-extended from 32 bits where the kernel takes
    /// an `int`.
    pub fn int(&self, position: u8) -> i32 {
        abi::argument::low_signed(self.args[usize::from(position)])
    }

    /// Returns a register argument as the kernel reads it, unsigned.
    pub fn raw(&self, position: u8) -> u64 {
        let value = self.args[usize::from(position)];
        if matches!(self.arch, Arch::I386 | Arch::Arm) {
            return value & 0xffff_ffff;
        }
        let argument = self.syscall.args().get(usize::from(position));
        argument.map_or(value, |argument| argument.effective(value))
    }
}

/// `AT_EXECVE_CHECK` (Linux 6.14): checks whether a file may be executed, and executes nothing. Older kernels
/// refuse the flag.
const CHECK_ONLY: u64 = 0x10000;

/// Returns whether a call with these arguments replaces the caller's program if it succeeds.
pub fn replaces_program(syscall: Syscall, args: &[u64; 6]) -> bool {
    match syscall.base() {
        Syscall::EXECVE => true,
        Syscall::EXECVEAT => args[4] & CHECK_ONLY == 0,
        _ => false,
    }
}

/// Reads the arguments of an i386 `socketcall`, which are an array in memory.
fn unpack_socketcall(
    operation: u32,
    array: u64,
    tid: Tid,
    memory: &Memory,
) -> Result<[u64; 6], Unreadable> {
    let count = Syscall::socketcall_words(operation).min(6);
    let mut bytes = [0_u8; 24];
    let wanted = &mut bytes[..count * 4];
    memory.read_exact(tid, array & 0xffff_ffff, wanted)?;
    let mut args = [0; 6];
    let (words, _) = wanted.as_chunks::<4>();
    for (argument, word) in args.iter_mut().zip(words) {
        *argument = u64::from(u32::from_ne_bytes(*word));
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_of_a_program_replaces_none() {
        let with = |flags| [0, 0, 0, 0, flags, 0];
        for flags in [0, 0x1000, 0x1_0000_0000] {
            assert!(replaces_program(Syscall::EXECVEAT, &with(flags)));
        }
        for flags in [CHECK_ONLY, CHECK_ONLY | 0x1000] {
            assert!(!replaces_program(Syscall::EXECVEAT, &with(flags)));
        }
        // `execve` takes no flags.
        assert!(replaces_program(Syscall::EXECVE, &with(CHECK_ONLY)));
        assert!(!replaces_program(Syscall::OPENAT, &with(0)));
    }
}
