//! System calls that a test makes in another process, as whoever took it over would.

use std::fs;

use abi::{Arch, Errno, Syscall};
use sys::ptrace::{self, OPTION_TRACESYSGOOD, Registers};
use sys::wait::{self, Status, Target};

/// Bytes below the stack pointer that belong to nobody: the red zone of x86-64 has 128.
const DISTANCE: u64 = 1024;

/// A thread that waits in a system call, stopped. It goes on with that call when this is dropped.
#[derive(Debug)]
pub struct Injection {
    tid: i32,
    /// Where the instruction ends that makes a call.
    end: u64,
    registers: Registers,
    /// The call that it waits in, with its arguments.
    waits_in: (u64, [u64; 6]),
}

impl Injection {
    /// Stops a thread of another process.
    ///
    /// # Panics
    /// If it does not come to wait in a call, or cannot be traced.
    #[must_use]
    pub fn into(tid: i32) -> Self {
        ptrace::seize(tid, OPTION_TRACESYSGOOD).expect("this test may trace it");
        ptrace::interrupt(tid).expect("it is seized");
        stopped(tid);
        let path = format!("/proc/{tid}/syscall");
        let line = fs::read_to_string(path).expect("of a tracee");
        let mut numbers = line.split_whitespace().map(|word| {
            let digits = word.trim_start_matches("0x");
            let radix = if digits == word { 10 } else { 16 };
            u64::from_str_radix(digits, radix)
        });
        let mut next = || numbers.next().and_then(Result::ok);
        let call = next().unwrap_or_else(|| panic!("it waits in no call: {line}"));
        let args = [(); 6].map(|()| next().expect("six arguments"));
        let end = next().and_then(|_stack| next()).expect("an address");
        Self {
            tid,
            end,
            registers: ptrace::registers(tid).expect("it is stopped"),
            waits_in: (call, args),
        }
    }

    /// Makes a call in the thread and returns its result.
    ///
    /// # Panics
    /// If the thread ends.
    pub fn call(&self, call: Syscall, args: [u64; 6]) -> Result<u64, Errno> {
        let arch = Arch::native().expect("a known machine");
        let number = call.number(arch).expect("a call of this machine");
        let mut registers = self.registers;
        registers.prepare_call(self.end, Some(number.into()), args);
        ptrace::set_registers(self.tid, &registers).expect("it is stopped");
        for _entry_and_return in 0..2 {
            ptrace::resume_to_syscall(self.tid, 0).expect("it is stopped");
            assert_eq!(stopped(self.tid), Status::SyscallStop);
        }
        let result = ptrace::registers(self.tid).expect("it is stopped").result();
        match u64::try_from(result) {
            Ok(value) => Ok(value),
            Err(_negative) => Err(Errno(i32::try_from(-result).expect("an error"))),
        }
    }

    /// Puts bytes where the thread has none of its own, and returns their address. The next ones replace them.
    ///
    /// # Panics
    /// If they cannot be written.
    #[must_use]
    pub fn bytes(&self, bytes: &[u8]) -> u64 {
        let length = u64::try_from(bytes.len()).expect("a length");
        let address = (self.registers.stack_pointer() - DISTANCE - length) & !15;
        let written = sys::process_memory::write(self.tid, address, bytes);
        assert_eq!(written.expect("its stack"), bytes.len());
        address
    }

    /// Puts a path where the thread has nothing of its own, and returns its address.
    #[must_use]
    pub fn path(&self, path: &std::path::Path) -> u64 {
        self.bytes(&[path.as_os_str().as_encoded_bytes(), b"\0"].concat())
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        let (call, args) = self.waits_in;
        self.registers.prepare_call(self.end, Some(call), args);
        // Fails only if it has ended.
        let _ = ptrace::set_registers(self.tid, &self.registers);
        let _ = ptrace::detach(self.tid, 0);
    }
}

/// Waits until the thread stops.
fn stopped(tid: i32) -> Status {
    let found = wait::wait(Target::Pid(tid), wait::ALL).expect("it is traced");
    let (_, status) = found.expect("without NO_HANG it waits");
    assert!(!status.is_end(), "{status:?}");
    status
}
