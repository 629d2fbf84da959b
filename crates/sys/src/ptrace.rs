//! Tracing of threads. Only operations on threads attached by `PTRACE_SEIZE` are here: no thread stops
//! unexpectedly.

mod registers;

pub use registers::{RESTART_CODES, Registers, registers, set_registers, skip_call};

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
        let ip = syscall_info(child).expect("5.3").ip;
        assert!(registers.is_after_call(ip) && !registers.is_after_call(ip + 64));
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
