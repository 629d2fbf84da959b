//! Starting another agent.

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

/// Which program the agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// The one that runs now, even if its file has been replaced.
    This,
    /// The one that lies where this one lay.
    Installed,
}

/// Exit status of a child that could not be executed.
const NOT_EXECUTED: i32 = 127;

/// An agent that is not yet at work.
pub(super) struct Successor {
    pid: i32,
    status: Option<Status>,
    /// One that is no child, whose end is told in no other way.
    process: Option<OwnedFd>,
}

impl Successor {
    /// Starts it: this program with a specification by which it takes over.
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
        Ok(Self {
            pid,
            status: None,
            process: None,
        })
    }

    /// A process that is about to become it, or to end.
    pub(super) fn of(pid: i32) -> Self {
        Self {
            pid,
            status: None,
            process: sys::pidfd::open(pid).ok(),
        }
    }

    /// This process becomes it. Answers with an exit status if that fails.
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
            // Whatever is mounted over /proc by now.
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

    /// A child was reaped.
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
            // Fails only if it has just ended.
            let _ = sys::pidfd::send_signal(process.as_fd(), SIGKILL);
        } else if self.status.is_none() {
            // It has not been reaped, so the pid is its own.
            let _ = sys::signal::send(self.pid, SIGKILL);
        }
    }
}

/// Readies what exec hands on to a program that takes over: open descriptors, among them that of its specification, and
/// its arguments.
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
    // A file of its own: one for another agent may be read just now.
    let spec = in_memory(&(inherited.respawn.spec)(take_over))?;
    sys::fd::set_close_on_exec(spec.as_fd(), false)?;
    let words = inherited.respawn.words(spec.as_raw_fd());
    Ok((spec, StringArray::from_words(words)?))
}

/// The program that runs now.
fn own_program() -> Result<OwnedFd, ProcError> {
    Proc::open()?.open_path(std::process::id().cast_signed(), "exe")
}

/// Where this program was when it was started. Where that cannot be told the path is empty, which
/// exec refuses: the upgrade fails aloud and the agent goes on.
fn installed() -> CString {
    let path = std::env::current_exe().unwrap_or_default();
    let bytes = path.as_os_str().as_bytes();
    // The kernel's mark on a file that was replaced.
    let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    CString::new(bytes).unwrap_or_default()
}
