//! Registers of arm64, and of its 32-bit threads.
//!
//! Unlike on x86 the kernel prepares the repetition of an interrupted call before it stops for a signal or a request:
//! the program counter is at the instruction again, and the result is gone, as the first argument shares its register
//! (`do_signal` in arch/arm64/kernel/signal.c).

use super::{NT_PRSTATUS, RESTART_CODES, read_set, write_set};
use crate::error::{Result, SyscallError};

/// Words of the register set of a 32-bit thread: r0 to r15, the status and the first argument of a call.
const NARROW: usize = 18;
const NARROW_NUMBER: usize = 7;
const NARROW_STACK: usize = 13;
const NARROW_PC: usize = 15;
const NARROW_STATUS: usize = 16;

/// General registers of a stopped thread.
#[derive(Clone, Copy, Debug)]
pub struct Registers(Set);

#[derive(Clone, Copy, Debug)]
enum Set {
    Wide(libc::user_regs_struct),
    Narrow([u32; NARROW]),
}

impl Registers {
    /// The result register.
    #[must_use]
    pub fn result(&self) -> i64 {
        match self.0 {
            Set::Wide(set) => set.regs[0].cast_signed(),
            Set::Narrow(set) => i64::from(set[0].cast_signed()),
        }
    }

    /// Changes the result register.
    pub fn set_result(&mut self, value: i64) {
        self.set_argument(0, value.cast_unsigned());
    }

    /// The stack pointer.
    #[must_use]
    pub fn stack_pointer(&self) -> u64 {
        match self.0 {
            Set::Wide(set) => set.sp,
            Set::Narrow(set) => set[NARROW_STACK].into(),
        }
    }

    /// Returns true if the thread has just returned from the call whose instruction ends at `ip`, or was taken
    /// out of it to make it again, and has run no code of its own since. Registers do not say whether a thread that
    /// stops for another reason is at the instruction by chance: this returns true then, too.
    #[must_use]
    pub fn is_after_call(&self, ip: u64) -> bool {
        self.pc() == ip || self.is_rewound(ip)
    }

    /// Returns true if the thread will make the call whose instruction ends at `ip` again.
    #[must_use]
    pub fn restarts_call(&self, ip: u64) -> bool {
        self.is_rewound(ip) || RESTART_CODES.contains(&self.result())
    }

    fn is_rewound(&self, ip: u64) -> bool {
        self.pc() == ip.wrapping_sub(self.instruction())
    }

    /// Has a thread in the stop of [`EVENT_STOP`](crate::ptrace::EVENT_STOP) make the call again that it has just
    /// returned from. `ip`: the end of its instruction; `args`: its arguments.
    pub fn restart_call(&mut self, ip: u64, args: [u64; 6]) {
        self.prepare_call(ip, None, args);
    }

    /// As [`Registers::restart_call`], for an unknown call. Returns false: the first argument is unknown, as it shares
    /// its register with the result.
    pub fn restart_current_call(&mut self) -> bool {
        false
    }

    /// Has the thread make call `nr` by the `svc` instruction that ends at `ip`. `None`: the call that it was in, by
    /// the same instruction.
    pub fn prepare_call(&mut self, ip: u64, nr: Option<u64>, args: [u64; 6]) {
        for (index, argument) in args.into_iter().enumerate() {
            self.set_argument(index, argument);
        }
        if let Some(nr) = nr {
            match &mut self.0 {
                Set::Wide(set) => set.regs[8] = nr,
                Set::Narrow(set) => set[NARROW_NUMBER] = low(nr),
            }
        }
        self.set_pc(ip - self.instruction());
    }

    /// Has the thread return from the call whose instruction ends at `ip`, with `result`, and not make it again.
    pub fn end_call(&mut self, ip: u64, result: i64) {
        self.set_pc(ip);
        self.set_result(result);
    }

    fn pc(&self) -> u64 {
        match self.0 {
            Set::Wide(set) => set.pc,
            Set::Narrow(set) => set[NARROW_PC].into(),
        }
    }

    fn set_pc(&mut self, address: u64) {
        match &mut self.0 {
            Set::Wide(set) => set.pc = address,
            Set::Narrow(set) => set[NARROW_PC] = low(address),
        }
    }

    fn set_argument(&mut self, index: usize, value: u64) {
        match &mut self.0 {
            Set::Wide(set) => set.regs[index] = value,
            Set::Narrow(set) => set[index] = low(value),
        }
    }

    /// Length of the instruction that makes a call, in bytes.
    fn instruction(&self) -> u64 {
        const THUMB: u32 = 1 << 5;
        match self.0 {
            Set::Narrow(set) if set[NARROW_STATUS] & THUMB != 0 => 2,
            _ => 4,
        }
    }
}

/// The low half of a register.
fn low(value: u64) -> u32 {
    abi::argument::low_unsigned(value)
}

/// Reads the general registers of a stopped thread.
///
/// # Errors
/// ESRCH if the thread is not stopped; ENOTSUP if its register set is neither that of a 64-bit nor that of a 32-bit
/// thread.
pub fn registers(tid: i32) -> Result<Registers> {
    // SAFETY: `user_regs_struct` is plain data, for which zero bytes are a value.
    let mut wide: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let size = read_set(tid, NT_PRSTATUS, &mut wide)?;
    if size == size_of_val(&wide) {
        return Ok(Registers(Set::Wide(wide)));
    }
    let mut narrow = [0; NARROW];
    match read_set(tid, NT_PRSTATUS, &mut narrow)? == size && size == size_of_val(&narrow) {
        true => Ok(Registers(Set::Narrow(narrow))),
        false => Err(SyscallError::new("ptrace(GETREGSET)", libc::ENOTSUP)),
    }
}

/// Writes the general registers of a stopped thread.
///
/// # Errors
/// ESRCH if the thread is not stopped, EINVAL for a register set that the kernel refuses.
pub fn set_registers(tid: i32, registers: &Registers) -> Result<()> {
    match &registers.0 {
        Set::Wide(set) => write_set(tid, NT_PRSTATUS, set),
        Set::Narrow(set) => write_set(tid, NT_PRSTATUS, set),
    }
}

/// Skips the call that a thread is about to make, with `result` as its result. For a thread in the stop of a
/// filter ([`EVENT_SECCOMP`](crate::ptrace::EVENT_SECCOMP)).
///
/// # Errors
/// ESRCH if the thread is not stopped.
pub fn skip_call(tid: i32, result: i64) -> Result<()> {
    const NT_ARM_SYSTEM_CALL: usize = 0x404;
    const NO_CALL: i32 = -1;
    write_set(tid, NT_ARM_SYSTEM_CALL, &NO_CALL)?;
    let mut registers = registers(tid)?;
    registers.set_result(result);
    set_registers(tid, &registers)
}
