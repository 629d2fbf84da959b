//! A trapped call: which one it is and what its registers hold.

use abi::{Arch, Syscall};
use event::{EventKind, Tid};

use crate::memory::Memory;

/// One trapped call in the terms of the native call table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// The listener's id for it.
    pub(crate) id: u64,
    /// The calling thread, in the agent's pid namespace.
    pub(crate) tid: Tid,
    /// Which table the number is from.
    pub(crate) arch: Arch,
    /// The call.
    pub(crate) syscall: Syscall,
    /// What kind of event it makes.
    pub(crate) kind: EventKind,
    /// Where it was made.
    pub(crate) ip: u64,
    /// Its arguments; those of a `socketcall` are unpacked.
    pub(crate) args: [u64; 6],
}

impl Call {
    /// Names the call; `None` for a number that its architecture does not have.
    pub(crate) fn decode(
        notification: &sys::notify::Notification,
        memory: &Memory,
    ) -> Option<Self> {
        let (arch, syscall) = abi::arch::decode(notification.arch, notification.nr)?;
        let syscall = syscall?;
        let tid = Tid(notification.tid);
        let (syscall, args) = if syscall == Syscall::SOCKETCALL {
            unpack_socketcall(notification.args, tid, memory)
                .unwrap_or((syscall, notification.args))
        } else {
            (syscall, notification.args)
        };
        let kind = EventKind::of_syscall(syscall);
        Some(Self {
            id: notification.id,
            tid,
            arch,
            syscall,
            kind,
            ip: notification.ip,
            args,
        })
    }

    /// Whether pointers and longs of the caller are 32 bits wide.
    pub(crate) fn is_32_bit(&self) -> bool {
        matches!(self.arch, Arch::I386 | Arch::X32)
    }

    /// A register argument as the kernel will see it: sign-extended from 32 bits where the kernel
    /// takes an `int`.
    pub(crate) fn int(&self, position: u8) -> i32 {
        abi::argument::low_signed(self.args[usize::from(position)])
    }

    /// A register argument as the kernel will see it, unsigned.
    pub(crate) fn raw(&self, position: u8) -> u64 {
        let value = self.args[usize::from(position)];
        if self.arch == Arch::I386 {
            return value & 0xffff_ffff;
        }
        let argument = self.syscall.args().get(usize::from(position));
        argument.map_or(value, |argument| argument.effective(value))
    }
}

/// The i386 `socketcall` multiplexer: the real call's arguments are an array in memory.
fn unpack_socketcall(
    registers: [u64; 6],
    tid: Tid,
    memory: &Memory,
) -> Option<(Syscall, [u64; 6])> {
    let operation = u32::try_from(registers[0] & 0xffff_ffff).ok()?;
    let syscall = Syscall::from_socketcall(operation)?;
    let count = syscall.args().len().min(6);
    let mut bytes = [0_u8; 24];
    let wanted = &mut bytes[..count * 4];
    memory.read_exact(tid, registers[1] & 0xffff_ffff, wanted)?;
    let mut args = [0; 6];
    for (argument, chunk) in args.iter_mut().zip(wanted.chunks_exact(4)) {
        *argument = u64::from(u32::from_ne_bytes(chunk.try_into().ok()?));
    }
    Some((syscall, args))
}
