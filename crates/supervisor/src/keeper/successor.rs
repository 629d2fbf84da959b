//! Starts another agent.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use process_info::procfs::{Proc, ProcError};
use sys::clone::CloneFlags;
use sys::exec::StringArray;
use sys::notify::Listener;
use sys::signal::{MaskChange, SignalSet};
use sys::wait::Status;

use super::super::inherited::{InheritedDescriptors, in_memory, is_readable};
use super::super::respawn::TakeOver;
use super::super::signals::SIGKILL;

/// Program of the new agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// The running program, even if its file has been replaced.
    This,
    /// The program that is installed at the same path.
    Installed,
}

/// Exit status of a child that could not be executed.
const NOT_EXECUTED: i32 = 127;

/// An agent that does not work yet.
pub(super) struct Successor {
    pid: i32,
    status: Option<Status>,
    /// Set for an agent that is not a child, whose end is not reported otherwise.
    process: Option<OwnedFd>,
}

impl Successor {
    /// Starts the agent: a program with a specification by which it takes over.
    pub(super) fn start(
        inherited: &InheritedDescriptors,
        listener: &Listener,
        generation: u64,
        program: Program,
    ) -> sys::Result<Self> {
        inherited.shared_state.invite(generation);
        let pid = sys::clone::clone_child(CloneFlags::default(), || {
            Self::exec(inherited, listener, generation, program)
        })?;
        // It says so itself later; the workload must not reach it before.
        inherited.shared_state.set_agent_pid(generation, pid);
        Ok(Self {
            pid,
            status: None,
            process: None,
        })
    }

    /// Returns the successor for a process that is about to become it, or to end.
    pub(super) fn of(pid: i32) -> Self {
        Self {
            pid,
            status: None,
            process: sys::pidfd::open(pid).ok(),
        }
    }

    /// Executes the agent in this process. Returns an exit status if that fails.
    pub(super) fn exec(
        inherited: &InheritedDescriptors,
        listener: &Listener,
        generation: u64,
        program: Program,
    ) -> i32 {
        // The file with the specification stays open until exec.
        let (_spec, argv) = match hand_on(inherited, listener, generation) {
            Ok(ready) => ready,
            Err(error) => {
                eprintln!("tollgate: cannot start a new agent: {error}");
                return NOT_EXECUTED;
            }
        };
        let environment = StringArray::own_environment();
        let _ = sys::signal::change_mask(MaskChange::Set, SignalSet::default());
        let error = match program {
            // Works regardless of what is mounted over /proc by now.
            Program::This => match own_program() {
                Ok(file) => sys::exec::execve_fd(file.as_fd(), &argv, &environment).to_string(),
                Err(error) => error.to_string(),
            },
            Program::Installed => sys::exec::execve(&installed(), &argv, &environment).to_string(),
        };
        eprintln!("tollgate: cannot start a new agent: {error}");
        NOT_EXECUTED
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Handles the end of a child.
    pub(super) fn ended(&mut self, pid: i32, status: Status) {
        if pid == self.pid {
            self.status = Some(status);
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        let has_ended = |process: &OwnedFd| is_readable(process.as_fd(), Duration::ZERO);
        self.status.is_some() || self.process.as_ref().is_some_and(has_ended)
    }

    pub(super) fn status(&self) -> Option<Status> {
        self.status
    }

    pub(super) fn kill(&mut self) {
        if let Some(process) = &self.process {
            // Fails only if the process has just ended.
            let _ = sys::pidfd::send_signal(process.as_fd(), SIGKILL);
        } else if self.status.is_none() {
            // The process has not been reaped, so the pid is its own.
            let _ = sys::signal::send(self.pid, SIGKILL);
        }
    }
}

/// Prepares the arguments and the open descriptors, including that of the specification, for a
/// program that takes over.
fn hand_on(
    inherited: &InheritedDescriptors,
    listener: &Listener,
    generation: u64,
) -> std::io::Result<(OwnedFd, StringArray)> {
    let descriptors = inherited.descriptors(listener);
    for descriptor in descriptors {
        sys::fd::set_close_on_exec(descriptor, false)?;
    }
    let take_over = TakeOver {
        generation,
        descriptors: descriptors
            .map(|descriptor| descriptor.as_raw_fd())
            .to_vec(),
    };
    // A separate file, because another agent may be reading its own at this moment.
    let spec = in_memory(&(inherited.respawn.spec)(take_over))?;
    sys::fd::set_close_on_exec(spec.as_fd(), false)?;
    let words = inherited.respawn.words(spec.as_raw_fd());
    Ok((spec, StringArray::from_words(words)?))
}

/// Opens the running program.
fn own_program() -> Result<OwnedFd, ProcError> {
    Proc::open()?.open_path(std::process::id().cast_signed(), "exe")
}

/// Returns the path of this program at its start. If it cannot be determined, the path is empty,
/// which exec refuses: the upgrade fails with a message, and the agent continues.
fn installed() -> CString {
    let path = std::env::current_exe().unwrap_or_default();
    let bytes = path.as_os_str().as_bytes();
    // The kernel's suffix for a file that was replaced.
    let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    CString::new(bytes).unwrap_or_default()
}
