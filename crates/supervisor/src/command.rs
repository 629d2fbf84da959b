//! The command's process, from the filter to exec.

use std::ffi::CString;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abi::Errno;
use event::EngineKind;
use seccomp::FilterProgram;
use sys::exec::StringArray;
use sys::seccomp::FilterFlags;
use sys::shared::SharedPage;

use super::{Launch, signals};

/// The program to execute, already looked up.
#[derive(Debug)]
pub struct Command {
    /// Path of the file.
    pub path: CString,
    /// Arguments, the name first.
    pub argv: StringArray,
    /// Environment, `NAME=value`.
    pub environment: StringArray,
}

/// Slots of the page that the command shares with the agent. A child that has installed its filter
/// cannot make a call that the filter might trap before the agent listens, so it writes to memory.
pub(super) mod slot {
    /// Descriptor number of the listener plus one; 0 before it is installed.
    pub(crate) const LISTENER: usize = 0;
    /// Error number of installing the filter.
    pub(crate) const FILTER_ERROR: usize = 1;
    /// Error number of exec.
    pub(crate) const EXEC_ERROR: usize = 2;
    /// The command's pid; set before the listener.
    pub(crate) const PID: usize = 3;
    /// Set when the command is traced, if it must be.
    pub(crate) const TRACED: usize = 4;
    /// Set when the command is ready to be traced.
    pub(crate) const READY: usize = 5;
    /// Error number of the failed step of the policy.
    pub(crate) const CONFINE_ERROR: usize = 6;
    /// Index of the failed step.
    pub(crate) const CONFINE_STEP: usize = 7;
}

/// Exit status of a child that could not execute the command; the page has the reason.
const NOT_EXECUTED: i32 = 127;
/// Interval of checks whether the command is traced.
const TRACED_POLL: Duration = Duration::from_micros(50);

/// Becomes the command.
///
/// Runs in a child that shares its descriptor table. It makes only system calls and allocates
/// nothing. After the filter is installed, its only call is exec.
pub(super) fn become_command(launch: Launch<'_>, page: &SharedPage) -> i32 {
    page.int(slot::PID)
        .store(std::process::id().cast_signed(), Ordering::Release);
    // The agent has to read what this process passes to exec; see `supervise::run`.
    let readable = sys::prctl::set_dumpable(true);
    if let Err(error) = readable.and_then(|()| signals::reset_for_command(launch.callers_mask)) {
        page.int(slot::FILTER_ERROR)
            .store(error.errno(), Ordering::Release);
        return NOT_EXECUTED;
    }
    if let Some(confinement) = launch.confinement
        && let Err(unapplied) = confinement.apply()
    {
        let step = i32::try_from(unapplied.step.index()).unwrap_or(0);
        page.int(slot::CONFINE_STEP).store(step, Ordering::Release);
        page.int(slot::CONFINE_ERROR)
            .store(unapplied.cause.errno(), Ordering::Release);
        return NOT_EXECUTED;
    }
    match launch.engine.kind {
        EngineKind::Notify => {}
        EngineKind::Ptrace => return become_traced(launch, page, launch.engine.filtered),
        // An engine within the kernel needs no filter; a policy does.
        EngineKind::Ebpf | EngineKind::Gvisor | EngineKind::Scap | EngineKind::Nodriver => {
            return become_traced(launch, page, launch.confinement.is_some());
        }
    }
    match install(launch.program) {
        Ok(listener) => page
            .int(slot::LISTENER)
            .store(listener + 1, Ordering::Release),
        Err(errno) => {
            page.int(slot::FILTER_ERROR).store(errno, Ordering::Release);
            return NOT_EXECUTED;
        }
    }
    execute(launch, page)
}

/// Like [`become_command`], with a tracer. Without a filter the tracer sees every call.
fn become_traced(launch: Launch<'_>, page: &SharedPage, filtered: bool) -> i32 {
    page.int(slot::READY).store(1, Ordering::Release);
    while page.int(slot::TRACED).load(Ordering::Acquire) == 0 {
        std::thread::sleep(TRACED_POLL);
    }
    if filtered {
        let installed = install_alone(launch.program);
        // The tracer sees whether this succeeds. A policy that is not applied is a failure.
        if let Err(error) = installed
            && launch.confinement.is_some()
        {
            page.int(slot::FILTER_ERROR)
                .store(error.errno(), Ordering::Release);
            return NOT_EXECUTED;
        }
    }
    execute(launch, page)
}

fn execute(launch: Launch<'_>, page: &SharedPage) -> i32 {
    let command = launch.command;
    let error = sys::exec::execve(&command.path, &command.argv, &command.environment);
    page.int(slot::EXEC_ERROR)
        .store(error.errno(), Ordering::Release);
    NOT_EXECUTED
}

/// Installs a filter without a listener.
pub fn install_alone(program: &FilterProgram) -> sys::Result<()> {
    let install = || {
        let flags = FilterFlags::SPEC_ALLOW;
        sys::seccomp::install_filter(program.instructions(), flags)
    };
    match install() {
        Err(error) if error.is(Errno::EACCES) => {
            sys::seccomp::set_no_new_privs()?;
            install()?;
        }
        outcome => {
            outcome?;
        }
    }
    Ok(())
}

/// Installs the filter. Without CAP_SYS_ADMIN this requires no_new_privs, which is set only then,
/// because it disables set-user-ID programs. An observing filter must not enable the mitigation
/// that kernels before 5.16 tie to seccomp and that slows the whole command.
pub(super) fn install(program: &FilterProgram) -> Result<i32, i32> {
    let listening = FilterFlags::NEW_LISTENER.union(FilterFlags::SPEC_ALLOW);
    let killable = listening.union(FilterFlags::WAIT_KILLABLE_RECV);
    let mut flags = killable;
    loop {
        match sys::seccomp::install_filter(program.instructions(), flags) {
            Ok(Some(listener)) => return Ok(std::os::fd::IntoRawFd::into_raw_fd(listener)),
            Ok(None) => return Err(Errno::EINVAL.0),
            // Below 5.19 the kernel does not know the last flag.
            Err(error) if error.errno() == Errno::EINVAL.0 && flags == killable => {
                flags = listening;
            }
            Err(error)
                if error.errno() == Errno::EACCES.0
                    && !sys::prctl::no_new_privs().unwrap_or(true) =>
            {
                sys::seccomp::set_no_new_privs().map_err(|error| error.errno())?;
            }
            Err(error) => return Err(error.errno()),
        }
    }
}
