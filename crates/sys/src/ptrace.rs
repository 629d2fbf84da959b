//! Tracing of threads. Only operations on threads attached by `PTRACE_SEIZE` are here: no thread stops
//! unexpectedly.

use crate::error::{Result, SyscallError};

/// Options of [`seize`]: sums of the `OPTION_*` constants.
pub const OPTION_TRACESYSGOOD: u32 = 1;
/// Stop at fork.
pub const OPTION_TRACEFORK: u32 = 1 << EVENT_FORK;
/// Stop at vfork.
pub const OPTION_TRACEVFORK: u32 = 1 << EVENT_VFORK;
/// Stop at clone.
pub const OPTION_TRACECLONE: u32 = 1 << EVENT_CLONE;
/// Stop at exec.
pub const OPTION_TRACEEXEC: u32 = 1 << EVENT_EXEC;
/// Stop when a vfork child releases its parent.
pub const OPTION_TRACEVFORKDONE: u32 = 1 << EVENT_VFORK_DONE;
/// Stop before a thread ends.
pub const OPTION_TRACEEXIT: u32 = 1 << EVENT_EXIT;
/// Stop where a filter returns `SECCOMP_RET_TRACE`.
pub const OPTION_TRACESECCOMP: u32 = 1 << EVENT_SECCOMP;
/// Kill the tracees when the tracer ends.
pub const OPTION_EXITKILL: u32 = 1 << 20;

/// Event: fork; the message is the new pid.
pub const EVENT_FORK: u32 = 1;
/// Event: vfork; the message is the new pid.
pub const EVENT_VFORK: u32 = 2;
/// Event: clone; the message is the new tid.
pub const EVENT_CLONE: u32 = 3;
/// Event: exec; the message is the former tid.
pub const EVENT_EXEC: u32 = 4;
/// Event: a vfork child releases its parent.
pub const EVENT_VFORK_DONE: u32 = 5;
/// Event: a thread ends; the message is its wait status.
pub const EVENT_EXIT: u32 = 6;
/// Event: `SECCOMP_RET_TRACE`; the message is the action's data.
pub const EVENT_SECCOMP: u32 = 7;
/// Event: group-stop, or the stop after [`interrupt`].
pub const EVENT_STOP: u32 = 128;

const SEIZE: u32 = 0x4206;
const INTERRUPT: u32 = 0x4207;
const LISTEN: u32 = 0x4208;
const GETEVENTMSG: u32 = 0x4201;
const GETSIGINFO: u32 = 0x4202;
const GET_SYSCALL_INFO: u32 = 0x420e;
const CONT: u32 = 7;
const DETACH: u32 = 17;
const SYSCALL: u32 = 24;

/// Attaches to a thread without stopping it.
///
/// # Errors
/// EPERM (other user, not dumpable, Yama, already traced), ESRCH.
pub fn seize(tid: i32, options: u32) -> Result<()> {
    request("ptrace(SEIZE)", SEIZE, tid, 0, options as usize)
}

/// Stops a seized thread, which reports [`EVENT_STOP`] with SIGTRAP.
///
/// # Errors
/// ESRCH if the thread has ended or is not a tracee, EIO if it was not seized.
pub fn interrupt(tid: i32) -> Result<()> {
    request("ptrace(INTERRUPT)", INTERRUPT, tid, 0, 0)
}

/// Resumes a stopped thread, delivering `signal` unless 0.
///
/// # Errors
/// ESRCH if the thread is not stopped or was killed.
pub fn resume(tid: i32, signal: i32) -> Result<()> {
    request("ptrace(CONT)", CONT, tid, 0, signal as usize)
}

/// Resumes a thread as [`resume`] does, up to the next entry to or return from a call.
///
/// # Errors
/// ESRCH if the thread is not stopped or was killed.
pub fn resume_to_syscall(tid: i32, signal: i32) -> Result<()> {
    request("ptrace(SYSCALL)", SYSCALL, tid, 0, signal as usize)
}

/// Leaves a thread in group-stop and reports its end to the tracer.
///
/// # Errors
/// ESRCH if the thread is not stopped, EIO if it is not in a stop of [`EVENT_STOP`].
pub fn listen(tid: i32) -> Result<()> {
    request("ptrace(LISTEN)", LISTEN, tid, 0, 0)
}

/// Detaches from a stopped thread, delivering `signal` unless 0.
///
/// # Errors
/// ESRCH if the thread is not stopped or was killed.
pub fn detach(tid: i32, signal: i32) -> Result<()> {
    request("ptrace(DETACH)", DETACH, tid, 0, signal as usize)
}

/// Message of the event for which the thread stopped.
///
/// # Errors
/// ESRCH if the thread is not stopped.
pub fn event_message(tid: i32) -> Result<u64> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long to `message`.
    unsafe {
        syscall!(
            "ptrace(GETEVENTMSG)",
            libc::SYS_ptrace,
            GETEVENTMSG,
            tid,
            0_usize,
            &raw mut message
        )
    }?;
    Ok(message)
}

/// Information on the signal for which a thread stopped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SignalStop {
    /// Signal number.
    pub signal: i32,
    /// `si_code`.
    pub code: i32,
    /// Error number, usually 0.
    pub errno: i32,
}

/// Information on the signal for which a thread stopped; EINVAL distinguishes a group-stop from a
/// signal-delivery-stop.
///
/// # Errors
/// EINVAL in a group-stop, ESRCH if the thread is not stopped.
pub fn signal_info(tid: i32) -> Result<SignalStop> {
    // SAFETY: `siginfo_t` is plain data, for which zero bytes are a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one siginfo_t to `info`.
    unsafe {
        syscall!(
            "ptrace(GETSIGINFO)",
            libc::SYS_ptrace,
            GETSIGINFO,
            tid,
            0_usize,
            &raw mut info
        )
    }?;
    Ok(SignalStop {
        signal: info.si_signo,
        code: info.si_code,
        errno: info.si_errno,
    })
}

/// Information on the system call in which a thread stopped, as the kernel reports it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SyscallInfo {
    /// Audit architecture of the call, or of the thread outside a call.
    pub arch: u32,
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Kind of the stop.
    pub op: SyscallOp,
}

/// Kind of a system call stop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SyscallOp {
    /// Before a call.
    Entry {
        /// Raw call number.
        nr: u64,
        /// Register arguments.
        args: [u64; 6],
    },
    /// After a call.
    Exit {
        /// Result; a negative error number if `is_error`.
        rval: i64,
        /// Set if the call failed.
        is_error: bool,
    },
    /// Outside of a call, e.g. the stop after [`interrupt`].
    None,
    /// Before a call, at a filter's `SECCOMP_RET_TRACE`.
    Seccomp {
        /// Raw call number.
        nr: u64,
        /// Register arguments.
        args: [u64; 6],
        /// The low 16 bits of the filter's return value.
        data: u32,
    },
}

/// `struct ptrace_syscall_info` with the union as words.
#[repr(C)]
#[derive(Default)]
struct RawSyscallInfo {
    op: u8,
    pad: [u8; 3],
    arch: u32,
    ip: u64,
    sp: u64,
    words: [u64; 8],
}

/// Returns information on the system call in which a thread stopped.
///
/// Entry and exit are distinguished only with [`OPTION_TRACESYSGOOD`].
///
/// # Kernel
/// 5.3.
///
/// # Errors
/// EIO on an older kernel, ESRCH if the thread is not stopped.
pub fn syscall_info(tid: i32) -> Result<SyscallInfo> {
    let mut raw = RawSyscallInfo::default();
    // SAFETY: the kernel writes at most the size given, that of `raw`.
    unsafe {
        syscall!(
            "ptrace(GET_SYSCALL_INFO)",
            libc::SYS_ptrace,
            GET_SYSCALL_INFO,
            tid,
            size_of::<RawSyscallInfo>(),
            &raw mut raw
        )
    }?;
    let [nr, a, b, c, d, e, f, data] = raw.words;
    let args = [a, b, c, d, e, f];
    let op = match raw.op {
        0 => SyscallOp::None,
        1 => SyscallOp::Entry { nr, args },
        // `rval` is the first word, `is_error` the first byte of the second.
        2 => SyscallOp::Exit {
            rval: nr.cast_signed(),
            is_error: a.to_ne_bytes()[0] != 0,
        },
        3 => SyscallOp::Seccomp {
            nr,
            args,
            data: data as u32,
        },
        _ => return Err(SyscallError::new("ptrace(GET_SYSCALL_INFO)", libc::EPROTO)),
    };
    Ok(SyscallInfo {
        arch: raw.arch,
        ip: raw.ip,
        sp: raw.sp,
        op,
    })
}

/// Length in bytes of the instruction that makes a call: `syscall`, or `svc`.
pub const CALL_LENGTH: u64 = if cfg!(target_arch = "x86_64") { 2 } else { 4 };

/// General registers of a stopped thread.
///
/// On x86-64 they are the 64-bit set for 32-bit threads too.
#[derive(Clone, Copy, Debug)]
pub struct Registers(libc::user_regs_struct);

#[cfg(target_arch = "x86_64")]
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

    /// The call number that the kernel keeps for restarts; all ones outside of a call.
    #[must_use]
    pub fn syscall_number(&self) -> u64 {
        self.0.orig_rax
    }

    /// Changes the number of the call that is about to start; -1 skips it.
    pub fn set_syscall_number(&mut self, nr: i64) {
        self.0.orig_rax = nr.cast_unsigned();
    }

    /// The instruction pointer.
    #[must_use]
    pub fn instruction_pointer(&self) -> u64 {
        self.0.rip
    }

    /// Changes the instruction pointer.
    pub fn set_instruction_pointer(&mut self, address: u64) {
        self.0.rip = address;
    }

    /// The stack pointer.
    #[must_use]
    pub fn stack_pointer(&self) -> u64 {
        self.0.rsp
    }

    /// Sets the number register and the arguments as a `syscall` instruction expects them, and marks the
    /// thread as outside of any call that could be restarted.
    pub fn prepare_call(&mut self, nr: u64, args: [u64; 6]) {
        self.0.rax = nr;
        self.0.orig_rax = u64::MAX;
        [
            self.0.rdi, self.0.rsi, self.0.rdx, self.0.r10, self.0.r8, self.0.r9,
        ] = args;
    }
}

#[cfg(target_arch = "aarch64")]
impl Registers {
    /// The result register.
    #[must_use]
    pub fn result(&self) -> i64 {
        self.0.regs[0].cast_signed()
    }

    /// Changes the result register.
    pub fn set_result(&mut self, value: i64) {
        self.0.regs[0] = value.cast_unsigned();
    }

    /// The call number register.
    #[must_use]
    pub fn syscall_number(&self) -> u64 {
        self.0.regs[8]
    }

    /// The instruction pointer.
    #[must_use]
    pub fn instruction_pointer(&self) -> u64 {
        self.0.pc
    }

    /// Changes the instruction pointer.
    pub fn set_instruction_pointer(&mut self, address: u64) {
        self.0.pc = address;
    }

    /// The stack pointer.
    #[must_use]
    pub fn stack_pointer(&self) -> u64 {
        self.0.sp
    }

    /// Sets number register and arguments as an `svc` instruction expects them.
    pub fn prepare_call(&mut self, nr: u64, args: [u64; 6]) {
        self.0.regs[8] = nr;
        self.0.regs[..6].copy_from_slice(&args);
    }
}

#[cfg(not(target_arch = "x86_64"))]
const GETREGSET: u32 = 0x4204;
const SETREGSET: u32 = 0x4205;
const NT_PRSTATUS: usize = 1;

/// Reads the general registers of a stopped thread.
///
/// # Errors
/// ESRCH if the thread is not stopped. On architectures other than x86-64, ENOTSUP for a 32-bit thread of a
/// 64-bit tracer, whose register set has another form.
#[cfg(target_arch = "x86_64")]
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

/// Reads the general registers of a stopped thread.
///
/// # Errors
/// ESRCH if the thread is not stopped; ENOTSUP for a 32-bit thread of a 64-bit tracer.
#[cfg(not(target_arch = "x86_64"))]
pub fn registers(tid: i32) -> Result<Registers> {
    // SAFETY: `user_regs_struct` is plain data, for which zero bytes are a value.
    let mut registers = Registers(unsafe { std::mem::zeroed() });
    let full = size_of::<libc::user_regs_struct>();
    let mut area = libc::iovec {
        iov_base: (&raw mut registers.0).cast(),
        iov_len: full,
    };
    // SAFETY: `area` describes all of `registers`, which the kernel fills up to that length.
    unsafe {
        syscall!(
            "ptrace(GETREGSET)",
            libc::SYS_ptrace,
            GETREGSET,
            tid,
            NT_PRSTATUS,
            &raw mut area
        )
    }?;
    if area.iov_len == full {
        Ok(registers)
    } else {
        Err(SyscallError::new("ptrace(GETREGSET)", libc::ENOTSUP))
    }
}

/// Writes the general registers of a stopped thread.
///
/// # Errors
/// ESRCH if the thread is not stopped, EIO for a register set that the kernel refuses.
pub fn set_registers(tid: i32, registers: &Registers) -> Result<()> {
    let mut area = libc::iovec {
        iov_base: (&raw const registers.0).cast_mut().cast(),
        iov_len: size_of::<libc::user_regs_struct>(),
    };
    // SAFETY: `area` describes all of `registers`, which this request only reads.
    unsafe {
        syscall!(
            "ptrace(SETREGSET)",
            libc::SYS_ptrace,
            SETREGSET,
            tid,
            NT_PRSTATUS,
            &raw mut area
        )
    }?;
    Ok(())
}

/// Skips the call that a thread is about to make, with `result` as its result. For a thread in the stop of a
/// filter ([`EVENT_SECCOMP`]).
///
/// # Errors
/// ESRCH if the thread is not stopped.
#[cfg(target_arch = "x86_64")]
pub fn skip_call(tid: i32, result: i64) -> Result<()> {
    let mut registers = registers(tid)?;
    registers.set_syscall_number(-1);
    registers.set_result(result);
    set_registers(tid, &registers)
}

/// Skips the call that a thread is about to make, with `result` as its result. For a thread in the stop of a
/// filter ([`EVENT_SECCOMP`]).
///
/// # Errors
/// ESRCH if the thread is not stopped.
#[cfg(target_arch = "aarch64")]
pub fn skip_call(tid: i32, result: i64) -> Result<()> {
    const NT_ARM_SYSTEM_CALL: usize = 0x404;
    let mut number: i32 = -1;
    let mut area = libc::iovec {
        iov_base: (&raw mut number).cast(),
        iov_len: size_of::<i32>(),
    };
    // SAFETY: `area` describes all of `number`, which this request only reads.
    unsafe {
        syscall!(
            "ptrace(SETREGSET)",
            libc::SYS_ptrace,
            SETREGSET,
            tid,
            NT_ARM_SYSTEM_CALL,
            &raw mut area
        )
    }?;
    let mut registers = registers(tid)?;
    registers.set_result(result);
    set_registers(tid, &registers)
}

/// Makes a request whose arguments are numbers; requests with pointers have functions of their own.
fn request(name: &'static str, op: u32, tid: i32, addr: usize, data: usize) -> Result<()> {
    // SAFETY: the requests passed here take `addr` and `data` as numbers and act on a thread that
    // is not one of ours (a process cannot trace itself).
    unsafe {
        crate::kernel::call(
            name,
            libc::SYS_ptrace,
            [
                op as usize,
                crate::kernel::RegisterValue::word(tid),
                addr,
                data,
                0,
                0,
            ],
        )
    }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::shared::SharedPage;
    use crate::wait::{self, Status, Target};
    use crate::{signal, syscall, testing};

    fn next(pid: i32) -> Status {
        let flags = wait::ALL | wait::NO_THREAD;
        wait::wait(Target::Pid(pid), flags)
            .expect("our tracee")
            .expect("waits")
            .1
    }

    #[test]
    fn entry_and_exit_of_a_call_are_seen_and_the_result_changed() {
        let page = SharedPage::new().expect("one page");
        let child = testing::spawn(|| {
            while syscall::getppid_raw() != -4242 {
                page.word(0).fetch_add(1, Ordering::AcqRel);
            }
            Ok(())
        });
        seize(child, OPTION_TRACESYSGOOD).expect("our child");
        while page.word(0).load(Ordering::Acquire) == 0 {
            std::hint::spin_loop();
        }
        interrupt(child).expect("seized");
        let stop = Status::PtraceEvent {
            signal: libc::SIGTRAP,
            event: EVENT_STOP,
        };
        assert_eq!(next(child), stop);
        let entered = loop {
            resume_to_syscall(child, 0).expect("stopped");
            assert_eq!(next(child), Status::SyscallStop);
            let info = syscall_info(child).expect("5.3");
            if let SyscallOp::Entry { nr, .. } = info.op {
                assert_eq!(info.arch, abi::Arch::native().expect("known").audit());
                break nr;
            }
        };
        assert_eq!(entered.cast_signed(), libc::SYS_getppid);
        resume_to_syscall(child, 0).expect("stopped");
        assert_eq!(next(child), Status::SyscallStop);
        let own = i64::from(syscall::getpid());
        let exit = syscall_info(child).expect("5.3").op;
        assert_eq!(
            exit,
            SyscallOp::Exit {
                rval: own,
                is_error: false
            }
        );
        let mut registers = registers(child).expect("stopped");
        assert_eq!(registers.result(), own);
        assert_ne!(registers.instruction_pointer(), 0);
        assert_ne!(registers.stack_pointer(), 0);
        registers.set_result(-4242);
        set_registers(child, &registers).expect("stopped");
        detach(child, 0).expect("stopped");
        assert_eq!(testing::reap(child), Ok(()));
    }

    #[test]
    fn events_messages_and_signals_are_reported() {
        let page = SharedPage::new().expect("one page");
        let child = testing::spawn(|| {
            while page.futex(0).load(Ordering::Acquire) == 0 {
                page.wait(0, 0, None).map_err(|e| e.errno())?;
            }
            signal::set_disposition(libc::SIGUSR1, signal::Disposition::Interrupt)
                .map_err(|e| e.errno())?;
            let own = syscall::getpid();
            signal::send_to_thread(own, own, libc::SIGUSR1).map_err(|e| e.errno())?;
            Err(9)
        });
        seize(child, OPTION_TRACEEXIT).expect("our child");
        page.futex(0).store(1, Ordering::Release);
        page.wake(0).expect("live");
        assert_eq!(next(child), Status::Stopped(libc::SIGUSR1));
        let info = signal_info(child).expect("a signal-delivery-stop");
        assert_eq!((info.signal, info.code), (libc::SIGUSR1, libc::SI_TKILL));
        resume(child, libc::SIGUSR1).expect("stopped");
        let exit = Status::PtraceEvent {
            signal: libc::SIGTRAP,
            event: EVENT_EXIT,
        };
        assert_eq!(next(child), exit);
        assert_eq!(event_message(child), Ok(9 << 8));
        resume(child, 0).expect("stopped");
        assert_eq!(testing::reap(child), Err(9));
    }

    #[test]
    fn group_stops_are_kept_by_listen() {
        let child = testing::spawn(|| {
            testing::sleep_for_ever();
            Ok(())
        });
        seize(child, 0).expect("our child");
        signal::send(child, libc::SIGSTOP).expect("our child");
        assert_eq!(next(child), Status::Stopped(libc::SIGSTOP));
        resume(child, libc::SIGSTOP).expect("stopped");
        let stop = Status::PtraceEvent {
            signal: libc::SIGSTOP,
            event: EVENT_STOP,
        };
        assert_eq!(next(child), stop);
        listen(child).expect("a group-stop");
        testing::kill_and_reap(child);
    }

    #[test]
    fn running_and_missing_threads_are_errors() {
        assert!(resume(i32::MAX, 0).is_err_and(|e| e.is(libc::ESRCH)));
        assert!(seize(i32::MAX, 0).is_err_and(|e| e.is(libc::ESRCH)));
        assert!(
            seize(syscall::getpid(), 0).is_err(),
            "nobody traces himself"
        );
    }
}
