//! Restricts a container's first program before it begins.
//!
//! Permanent restrictions of a process (Landlock, capabilities, `no_new_privs`) can only be set by its own
//! calls. A runtime does not make them, and must not be restricted itself: it has mounts to make. So when the
//! runtime's process, in the container already, is about to execute the container's first program, it is held
//! in that call, made to restrict itself by calls of its own, and then makes its exec again. Until then no
//! code of the container has run. Any failure on the way refuses the exec.

use std::collections::HashSet;
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use abi::constant::O_CLOEXEC;
use abi::{Arch, Errno, Syscall};
use event::{Evaluator, Pid, Process, StartTime};
use sys::notify::{AddMode, Listener};
use sys::ptrace::{self, Registers};
use sys::wait::{self, Status};

use super::Shared;
use decoder::call::Call;

/// Restrictions of the first program. Called in a separate thread, while the process waits in its exec.
pub trait FirstProgram: Send + Sync {
    /// Returns a descriptor to install in the process; the exec closes it.
    ///
    /// # Errors
    ///
    /// If the process cannot be restricted.
    fn prepare(&self, pid: Pid) -> Result<Option<OwnedFd>, RestrictionError>;
    /// Makes the process restrict itself. `given`: the number of the installed descriptor.
    ///
    /// # Errors
    ///
    /// If the process cannot be restricted.
    fn restrict(&self, caller: &Caller, given: Option<i32>) -> Result<(), RestrictionError>;
    /// Reports the outcome: the process is restricted and may begin, or its exec is refused.
    fn restricted(&self, pid: Pid, outcome: Result<(), &(dyn Error + 'static)>);
}

/// Reason why the process is not restricted.
pub(super) type RestrictionError = Box<dyn Error + Send + Sync>;

/// Processes that have been restricted.
#[derive(Debug, Default)]
pub(super) struct InitRestrictions(Mutex<HashSet<(Pid, StartTime)>>);

/// Number of processes remembered before those that have ended are dropped.
const RESTRICTED: usize = 256;

impl InitRestrictions {
    fn add(&self, process: &Process, is_alive: impl Fn(Pid, StartTime) -> bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= RESTRICTED && all.len().is_multiple_of(RESTRICTED) {
            all.retain(|(pid, start)| is_alive(*pid, *start));
        }
        all.insert((process.pid, process.start));
    }

    fn has(&self, process: &Process) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.contains(&(process.pid, process.start))
    }
}

/// Returns whether a process must be restricted before the exec that it is held in.
pub(super) fn is_due<J: Evaluator>(shared: &Shared<J>, process: &Process) -> bool {
    shared.first.is_some()
        && process.sets_up()
        && !shared.tree.is_in_setup_mounts(process.pid)
        && !shared.restricted.has(process)
}

/// Restricts the process in a separate thread, which answers the call. Operations that the receiver must not
/// wait for run there, and the receiver answers calls that the filter traps on the way.
pub(super) fn hold<J: Evaluator + 'static>(
    shared: Arc<Shared<J>>,
    call: Call,
    process: Arc<Process>,
) {
    let Some(first) = shared.first.clone() else {
        return;
    };
    let work = Arc::clone(&shared);
    let restrict = move || {
        let outcome = restrict(&work, &call, &process, &*first);
        if let Err(error) = &outcome {
            refuse(&work.listener, &call);
            first.restricted(process.pid, Err(&**error));
        }
    };
    let made = std::thread::Builder::new()
        .name("tg-first".to_owned())
        .spawn(restrict);
    if made.is_err() {
        refuse(&shared.listener, &call);
    }
}

/// Fails the exec. If the process was held meanwhile, the exec has its answer already.
fn refuse(listener: &Listener, call: &Call) {
    // A caller that is gone needs no answer.
    let _ = listener.respond_errno(call.id, Errno::EPERM.0);
}

fn restrict<J: Evaluator>(
    shared: &Shared<J>,
    call: &Call,
    process: &Process,
    first: &dyn FirstProgram,
) -> Result<(), RestrictionError> {
    if Some(call.arch) != Arch::native() {
        return Err("its runtime is a program for another architecture".into());
    }
    let ruleset = first.prepare(process.pid)?;
    let given = match &ruleset {
        None => None,
        Some(ruleset) => Some(give(&shared.listener, call, ruleset)?),
    };
    let caller = Caller::hold(&shared.listener, call, process.pid)?;
    let outcome = first.restrict(&caller, given);
    if let Err(error) = outcome {
        caller.fail();
        return Err(error);
    }
    let inspector = &shared.tree.inspector;
    shared.restricted.add(process, |pid, start| {
        inspector
            .identity(pid)
            .is_some_and(|who| who.start == start)
    });
    first.restricted(process.pid, Ok(()));
    caller.make_again();
    Ok(())
}

/// Installs a descriptor in the process; returns its number there.
fn give(listener: &Listener, call: &Call, descriptor: &OwnedFd) -> Result<i32, RestrictionError> {
    let given = listener.add_fd(
        call.id,
        descriptor.as_fd(),
        None,
        O_CLOEXEC.u32(),
        AddMode::Add,
    )?;
    given.ok_or_else(|| GONE.into())
}

/// Thread that is held on its way out of an exec that was not made, and that makes calls on request.
#[derive(Debug)]
pub struct Caller {
    tid: i32,
    pid: Pid,
    /// The held exec.
    call: Call,
    /// Registers on the way out of the exec.
    registers: Registers,
    /// Signals that arrived meanwhile.
    signals: Mutex<Vec<i32>>,
}

impl Caller {
    /// Takes a thread out of its exec. If that fails the call is still unanswered, or the thread is gone.
    fn hold(listener: &Listener, call: &Call, pid: Pid) -> Result<Self, RestrictionError> {
        let tid = call.tid.0;
        // If this thread dies, the partly restricted process dies, too.
        ptrace::seize(tid, ptrace::OPTION_TRACESYSGOOD | ptrace::OPTION_EXITKILL)?;
        ptrace::interrupt(tid)?;
        // The code by which the kernel itself has calls made again; never seen by the program.
        listener.respond_errno(call.id, Errno::ERESTARTNOINTR.0)?;
        let mut signals = Vec::new();
        loop {
            match wait::wait(wait::Target::Pid(tid), wait::ALL | wait::NO_THREAD) {
                Ok(Some((_, Status::PtraceEvent { .. }))) => break,
                Ok(Some((_, status))) if status.is_end() => return Err(GONE.into()),
                // The signal waits until the program runs.
                Ok(Some((_, Status::Stopped(signal)))) => {
                    signals.push(signal);
                    ptrace::resume(tid, 0)?;
                }
                Ok(_) => ptrace::resume(tid, 0)?,
                Err(error) if error.is(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let registers = ptrace::registers(tid)?;
        if !registers.is_after_call(call.ip) {
            return Err("its process has gone on".into());
        }
        Ok(Self {
            tid,
            pid,
            call: *call,
            registers,
            signals: Mutex::new(signals),
        })
    }

    /// Returns the id of the thread, for reading what the kernel says about it.
    #[must_use]
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Returns the process of the thread.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns whether the thread is the first of its process.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.tid == self.pid.0
    }

    /// Makes the thread call.
    ///
    /// # Errors
    ///
    /// The error of the call.
    pub fn call(&self, syscall: Syscall, args: [u64; 6]) -> sys::Result<u64> {
        let failed = |errno| failure(syscall.name(), errno);
        let native = Arch::native().ok_or_else(|| failed(Errno::ENOSYS.0))?;
        let number = syscall
            .number(native)
            .ok_or_else(|| failed(Errno::ENOSYS.0))?;
        let mut result = 0;
        for _ in 0..INTERRUPTIONS {
            result = self.call_once(number, args)?;
            // A signal interrupted the call before a receiver had it, as signals of Go's runtime do.
            if !RESTARTED.contains(&result) {
                break;
            }
        }
        match i32::try_from(result) {
            Ok(errno @ -4095..0) => Err(failed(-errno)),
            _ => Ok(result.cast_unsigned()),
        }
    }

    fn call_once(&self, number: u32, args: [u64; 6]) -> sys::Result<i64> {
        let mut registers = self.registers;
        registers.prepare_call(self.call.ip, Some(u64::from(number)), args);
        ptrace::set_registers(self.tid, &registers)?;
        self.run_to_call_stop()?;
        self.run_to_call_stop()?;
        Ok(ptrace::registers(self.tid)?.result())
    }

    /// As [`Caller::call`] with bytes in the thread's memory; `args` receives their address.
    ///
    /// # Errors
    ///
    /// The error of the call, or a failure to write the memory.
    pub fn call_with(
        &self,
        syscall: Syscall,
        bytes: &[u8],
        args: impl FnOnce(u64) -> [u64; 6],
    ) -> sys::Result<u64> {
        // Below the red zone of the stack pointer, and restored afterwards.
        let len = u64::try_from(bytes.len()).expect("a few bytes");
        let address = (self.registers.stack_pointer() - RED_ZONE - len) & !15;
        let mut before = vec![0; bytes.len()];
        let short = |done: usize| match done == bytes.len() {
            true => Ok(()),
            false => Err(failure("process_vm_writev", Errno::EFAULT.0)),
        };
        sys::process_memory::read(self.pid.0, address, &mut before).and_then(short)?;
        sys::process_memory::write(self.pid.0, address, bytes).and_then(short)?;
        let outcome = self.call(syscall, args(address));
        sys::process_memory::write(self.pid.0, address, &before).and_then(short)?;
        outcome
    }

    fn run_to_call_stop(&self) -> sys::Result<()> {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        ptrace::resume_to_syscall(self.tid, 0)?;
        loop {
            match wait::wait(wait::Target::Pid(self.tid), wait::ALL | wait::NO_THREAD) {
                Ok(Some((_, Status::SyscallStop))) => return Ok(()),
                Ok(Some((_, status))) if status.is_end() => {
                    return Err(failure("wait4", Errno::ESRCH.0));
                }
                Ok(Some((_, status))) => {
                    if let Status::Stopped(signal) = status {
                        signals.push(signal);
                    }
                    ptrace::resume_to_syscall(self.tid, 0)?;
                }
                Ok(None) => {}
                Err(error) if error.is(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes the thread repeat its exec, and releases it.
    fn make_again(self) {
        let mut registers = self.registers;
        registers.prepare_call(self.call.ip, None, self.call.args);
        self.release(&registers);
    }

    /// Makes the exec fail, and releases the thread.
    fn fail(self) {
        let mut registers = self.registers;
        registers.end_call(self.call.ip, -i64::from(Errno::EPERM.0));
        self.release(&registers);
    }

    fn release(self, registers: &Registers) {
        // Fails only if the thread was killed. Otherwise it dies with this thread, by the option.
        if ptrace::set_registers(self.tid, registers).is_err() {
            return;
        }
        for signal in self
            .signals
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
        {
            // As above.
            let _ = sys::signal::send(self.pid.0, signal);
        }
        let _ = ptrace::detach(self.tid, 0);
    }
}

fn failure(call: &'static str, errno: i32) -> sys::SyscallError {
    let errno = Errno(errno);
    sys::SyscallError { call, errno }
}

const GONE: &str = "its process is gone";
/// Results of calls that the kernel has not made, and would have made again.
const RESTARTED: [i64; 3] = [-512, -513, -514];
/// Maximum number of interruptions in a row, so that signals cannot keep a call from being made for ever.
const INTERRUPTIONS: u32 = 1000;
/// Size of the red zone in the x86-64 psABI; other architectures have none.
const RED_ZONE: u64 = 128;
