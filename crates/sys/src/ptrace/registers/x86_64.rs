//! Registers of x86-64.

use super::{NT_PRSTATUS, RESTART_ALWAYS, RESTART_CODES, write_set};
use crate::error::Result;

/// General registers of a stopped thread: the 64-bit set, also of a 32-bit thread.
#[derive(Clone, Copy, Debug)]
pub struct Registers(libc::user_regs_struct);

/// Number that the kernel keeps for a thread outside of a call.
const OUTSIDE_CALL: u64 = u64::MAX;

impl Registers {
    /// The result register.
    #[must_use]
    pub fn result(&self) -> i64 {
        self.0.rax.cast_signed()
    }

    /// Changes the result register.
    pub fn set_result(&mut self, value: i64) {
        self.0.rax = value.cast_unsigned();
    }

    /// The stack pointer.
    #[must_use]
    pub fn stack_pointer(&self) -> u64 {
        self.0.rsp
    }

    /// Returns true if the thread has just returned from the call whose instruction ends at `ip`, or was taken
    /// out of it to make it again, and has run no code of its own since.
    #[must_use]
    pub fn is_after_call(&self, ip: u64) -> bool {
        self.0.rip == ip && self.0.orig_rax != OUTSIDE_CALL
    }

    /// Returns true if the thread will make the call whose instruction ends at `ip` again.
    #[must_use]
    pub fn restarts_call(&self, _ip: u64) -> bool {
        RESTART_CODES.contains(&self.result())
    }

    /// Has a thread in the stop of [`EVENT_STOP`](crate::ptrace::EVENT_STOP) make the call again that it has just
    /// returned from. `_ip`: the end of its instruction; `_args`: its arguments.
    pub fn restart_call(&mut self, _ip: u64, _args: [u64; 6]) {
        self.set_result(RESTART_ALWAYS);
    }

    /// As [`Registers::restart_call`], for an unknown call. Returns false if the thread has returned from none.
    pub fn restart_current_call(&mut self) -> bool {
        let is_in_call = self.0.orig_rax != OUTSIDE_CALL;
        if is_in_call {
            self.set_result(RESTART_ALWAYS);
        }
        is_in_call
    }

    /// Has the thread make call `nr` by the `syscall` instruction that ends at `ip`, and marks it as outside of any
    /// call that could be restarted. `None`: the call that it was in, by the same instruction.
    pub fn prepare_call(&mut self, ip: u64, nr: Option<u64>, args: [u64; 6]) {
        const INSTRUCTION: u64 = 2;
        self.0.rax = nr.unwrap_or(self.0.orig_rax);
        self.0.orig_rax = OUTSIDE_CALL;
        [
            self.0.rdi, self.0.rsi, self.0.rdx, self.0.r10, self.0.r8, self.0.r9,
        ] = args;
        self.0.rip = ip - INSTRUCTION;
    }

    /// Has the thread return from the call whose instruction ends at `ip`, with `result`, and not make it again.
    pub fn end_call(&mut self, ip: u64, result: i64) {
        self.0.orig_rax = OUTSIDE_CALL;
        self.0.rip = ip;
        self.set_result(result);
    }
}

/// Reads the general registers of a stopped thread.
///
/// # Errors
/// ESRCH if the thread is not stopped.
pub fn registers(tid: i32) -> Result<Registers> {
    // SAFETY: `user_regs_struct` is plain data, for which zero bytes are a value.
    let mut registers = Registers(unsafe { std::mem::zeroed() });
    // Unlike GETREGSET this request has the caller's form of the registers for 32-bit threads too.
    // SAFETY: the kernel fills one `user_regs_struct`, which is what `registers` is.
    unsafe {
        syscall!(
            "ptrace(GETREGS)",
            libc::SYS_ptrace,
            libc::PTRACE_GETREGS,
            tid,
            0_usize,
            &raw mut registers.0
        )
    }?;
    Ok(registers)
}

/// Writes the general registers of a stopped thread.
///
/// # Errors
/// ESRCH if the thread is not stopped, EIO for a register set that the kernel refuses.
pub fn set_registers(tid: i32, registers: &Registers) -> Result<()> {
    write_set(tid, NT_PRSTATUS, &registers.0)
}

/// Skips the call that a thread is about to make, with `result` as its result. For a thread in the stop of a
/// filter ([`EVENT_SECCOMP`](crate::ptrace::EVENT_SECCOMP)).
///
/// # Errors
/// ESRCH if the thread is not stopped.
pub fn skip_call(tid: i32, result: i64) -> Result<()> {
    let mut registers = registers(tid)?;
    registers.0.orig_rax = OUTSIDE_CALL;
    registers.set_result(result);
    set_registers(tid, &registers)
}
