//! Calls that name their target by a descriptor, which another thread can exchange after it was looked at.

use abi::Errno;
use event::{Pid, Tid};
use rustix::fs::AtFlags;

use super::group::Members;
use super::{Action, Guard, IntrusionTarget, SignalTargets, is_deadly, is_harmful, refused};
use decoder::call::Call;
use process_info::procfs::{LINK_LIMIT, ProcError};

/// Process that a descriptor refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Behind {
    /// Its number; 0 or less for one that has ended or has no number in the agent's namespace.
    pid: Pid,
    /// True for a pidfd, false for a folder with that name.
    is_pidfd: bool,
}

impl Guard {
    pub(super) fn signal_descriptor(&self, call: &Call) -> Option<(IntrusionTarget, Action)> {
        const TO_GROUP: u64 = 4;
        let (tid, descriptor, signal) = (call.tid, call.int(0), call.int(1));
        let to_group = call.raw(3) & TO_GROUP != 0;
        if to_group && !is_harmful(signal) {
            return None;
        }
        let Ok(found) = self.process_behind(tid, descriptor) else {
            return refused(SignalTargets::Unknown);
        };
        let aimed = match found {
            Some(Behind { pid, .. }) if to_group => {
                self.signal_members(tid, Members::Group(pid.0), signal)
            }
            Some(Behind { pid, .. }) => refused(self.unless_lenient(self.hit(pid), signal)),
            None => None,
        };
        // A process of the monitor looks itself at who sent it a command.
        if aimed.is_some() || !is_deadly(signal) || !self.may_exchange_descriptors(tid) {
            return aimed;
        }
        let action = match found {
            None => Action::Fail(Errno::EBADF),
            Some(Behind { pid: Pid(..=0), .. }) => Action::Fail(Errno::ESRCH),
            Some(found) if !self.is_numbered_here(tid, descriptor, found) => {
                return refused(SignalTargets::Unknown);
            }
            Some(Behind { pid, .. }) if to_group => Action::Relay(Members::Group(pid.0), signal),
            Some(Behind { pid, .. }) => Action::Relay(Members::One(pid.0), signal),
        };
        Some((IntrusionTarget::Other, action))
    }

    /// Returns true if a thread or a process beside the caller, which is held, may use its table of descriptors.
    fn may_exchange_descriptors(&self, tid: Tid) -> bool {
        let Ok(caller) = self.proc.status(tid.0) else {
            return true;
        };
        let Ok(mut others) = self.proc.numbers(".") else {
            return true;
        };
        let shares = |other| {
            let shares = sys::process_memory::are_descriptors_shared_by(tid.0, other);
            shares.unwrap_or_else(|error| !error.is(Errno::ESRCH))
        };
        caller.threads > 1 || others.any(|other| other != caller.tgid && shares(other))
    }

    /// Returns true if the number of the process is one of the agent's namespace. A folder may be of another
    /// `/proc`, or any that has a number as its name.
    fn is_numbered_here(&self, tid: Tid, descriptor: i32, found: Behind) -> bool {
        let identity = |path: String| {
            let status = rustix::fs::statat(&self.proc, path, AtFlags::empty());
            status.map(|status| (status.st_dev, status.st_ino)).ok()
        };
        found.is_pidfd
            || identity(format!("{}/fd/{descriptor}", tid.0))
                .is_some_and(|folder| identity(found.pid.0.to_string()) == Some(folder))
    }

    /// Returns the processes that a descriptor refers to.
    pub(super) fn behind(&self, tid: Tid, descriptor: i32) -> SignalTargets {
        match self.process_behind(tid, descriptor) {
            Ok(Some(found)) => self.hit(found.pid),
            Ok(None) => SignalTargets::Nobody,
            Err(()) => SignalTargets::Unknown,
        }
    }

    /// Returns which of the monitor's processes this one is, as the agent numbers it.
    fn hit(&self, pid: Pid) -> SignalTargets {
        self.owner(pid)
            .map_or(SignalTargets::Nobody, SignalTargets::Ours)
    }

    /// Returns the process of a pidfd or of a folder of `/proc`, as the agent numbers it; `None` for
    /// descriptors of other kinds. Fails if that cannot be read.
    fn process_behind(&self, tid: Tid, descriptor: i32) -> Result<Option<Behind>, ()> {
        let mut buffer = [0; LINK_LIMIT];
        let link = match self.proc.descriptor_link(tid.0, descriptor, &mut buffer) {
            Ok(link) => link,
            Err(ProcError::Denied { .. }) => return Err(()),
            Err(_) => return Ok(None),
        };
        let is_pidfd = link.starts_with(b"anon_inode:[pidfd]") || link.starts_with(b"pidfd:");
        let behind = |pid| Behind { pid, is_pidfd };
        if is_pidfd {
            let path = format!("{}/fdinfo/{descriptor}", tid.0);
            let text = self.proc.contents(&path).map_err(drop)?;
            let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"));
            let pid = pid.and_then(|pid| pid.trim().parse().ok()).map(Pid);
            return Ok(pid.map(behind));
        }
        let name = link.rsplit(|byte| *byte == b'/').next().unwrap_or(link);
        let number = std::str::from_utf8(name)
            .ok()
            .and_then(|name| name.parse().ok());
        Ok(number.map(Pid).map(behind))
    }
}
