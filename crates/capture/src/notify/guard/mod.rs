//! Protects the monitor's processes from the workload.
//!
//! Signals, limits, priorities and reads of memory that are aimed at the agent, the keeper, the waiter or the
//! front fail with EPERM and are reported. A signal to many (`kill(-1)`, a process group) that would also
//! end, stop or command one of them is sent to the others from here. Every other call goes on unchanged:
//! arguments in registers cannot change any more, so letting such a call go on after an inspection is safe.
//!
//! Pids are those of the caller's pid namespace. The agent has none below its own, so a caller in such a
//! namespace cannot name it; only a process group reaches across.

mod answer;
mod caller;
mod descriptor;
mod group;
mod stand_in;

use std::sync::{Mutex, PoisonError};

use abi::constant::{F_SETSIG, PR_SET_DUMPABLE, PTRACE_ATTACH, PTRACE_SEIZE};
use abi::{Errno, Signal, Syscall};
use event::{Pid, Tid};
use rustix::fs::{Access, AtFlags};

use caller::Caller;
use decoder::call::Call;
use group::Members;
use process_info::procfs::{Proc, ProcError};
pub use stand_in::{StandInAnswer, StandInGuard};

/// Options for the protection of the monitor's processes.
#[derive(Clone, Debug, Default)]
pub struct GuardOptions {
    /// Transparent processes that pass on or ignore every signal that can be caught: the workload may send
    /// them signals.
    pub lenient: Vec<Pid>,
    /// True if a process may not make itself unreadable (`PR_SET_DUMPABLE` 0).
    pub refuse_non_dumpable: bool,
}

/// An attempt of a process against the monitor's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intrusion {
    /// Name of the call.
    pub call: &'static str,
    /// Target of the call.
    pub aim: IntrusionTarget,
    /// Response to the call.
    pub response: Response,
}

/// Target of an intrusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntrusionTarget {
    /// A process of the monitor.
    Process(Pid),
    /// Several processes, among them this one of the monitor.
    Among(Pid),
    /// The caller's own process group, to which the monitor's processes belong too: not its fault.
    OwnGroup,
    /// The owner of a file: the kernel would send it a deadly signal.
    FileOwner,
    /// A descriptor whose process is unknown.
    Unknown,
    /// The caller itself, which makes itself unreadable.
    Dumpable,
    /// No process of the monitor: the call is carried out from here, because another thread could exchange its
    /// descriptor before the kernel reads it.
    Other,
}

impl IntrusionTarget {
    /// Returns true if the caller meant one of the monitor's processes.
    pub(crate) fn is_hostile(self) -> bool {
        !matches!(self, Self::OwnGroup | Self::Other)
    }

    /// Returns true if the call hits one of the monitor's processes.
    pub(crate) fn is_counted(self) -> bool {
        self != Self::Other
    }
}

/// Response to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// The call was made.
    Made,
    /// The call failed with EPERM.
    Refused,
    /// The call was carried out for the other processes, and returned this.
    Spared(i64),
}

/// The processes to protect.
#[derive(Debug)]
pub(crate) struct Guard {
    proc: Proc,
    ours: Mutex<Vec<Pid>>,
    options: GuardOptions,
}

/// Action on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Make,
    Refuse,
    /// Send the signal to all members but the monitor's.
    Relay(Members, i32),
    /// Fail as the kernel does for such a descriptor.
    Fail(Errno),
}

/// Processes that a signal reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalTargets {
    Nobody,
    Ours(Pid),
    Unknown,
}

impl Guard {
    /// Creates a guard for this process and `ours`.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be opened.
    pub(crate) fn new(ours: &[Pid], options: GuardOptions) -> Result<Self, ProcError> {
        Ok(Self {
            proc: Proc::open()?,
            ours: Mutex::new(with_own(ours)),
            options,
        })
    }

    /// Protects another process, too.
    pub(crate) fn protect(&self, pid: Pid) {
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        if !ours.contains(&pid) {
            ours.push(pid);
        }
    }

    /// Protects these processes, and no others any more.
    fn set_ours(&self, ours: Vec<Pid>) {
        *self.ours.lock().unwrap_or_else(PoisonError::into_inner) = ours;
    }

    /// Returns whether a call has to be passed to [`Guard::rule`].
    pub(crate) fn concerns(syscall: Syscall) -> bool {
        use Syscall as S;
        matches!(
            syscall,
            S::KILL
                | S::TKILL
                | S::TGKILL
                | S::RT_SIGQUEUEINFO
                | S::RT_TGSIGQUEUEINFO
                | S::PIDFD_SEND_SIGNAL
                | S::FCNTL
                | S::FCNTL64
                | S::PIDFD_OPEN
                | S::PIDFD_GETFD
                | S::PROCESS_MADVISE
                | S::PROCESS_VM_READV
                | S::PROCESS_VM_WRITEV
                | S::PTRACE
                | S::PRCTL
                | S::PERF_EVENT_OPEN
                | S::PRLIMIT64
                | S::SCHED_SETSCHEDULER
                | S::SCHED_SETPARAM
                | S::SCHED_SETATTR
                | S::SCHED_SETAFFINITY
                | S::SETPRIORITY
                | S::IOPRIO_SET
        )
    }

    /// Decides on a call; `None` means that it goes on. Signals that have to be relayed have been when this returns.
    pub(crate) fn rule(&self, call: &Call) -> Option<Intrusion> {
        let (aim, action) = self.intrusion_of(call)?;
        let response = match action {
            Action::Make => Response::Made,
            Action::Refuse => Response::Refused,
            Action::Relay(members, signal) => self.relay(call.tid, members, signal)?,
            Action::Fail(errno) => Response::Spared(-i64::from(errno.0)),
        };
        Some(Intrusion {
            call: call.syscall.name(),
            aim,
            response,
        })
    }

    /// Sends the signal to all members but the monitor's. Returns `None` for a caller that may not signal the
    /// monitor: the kernel leaves it out by itself.
    fn relay(&self, tid: Tid, members: Members, signal: i32) -> Option<Response> {
        let ours = self.ours();
        let Some(caller) = Caller::read(&self.proc, tid) else {
            return Some(Response::Refused);
        };
        let may_signal = |pid: &Pid| caller.may_signal(&self.proc, pid.0);
        ours.iter().any(may_signal).then(|| {
            let result = group::signal(&self.proc, &caller, members, signal, &ours);
            Response::Spared(result)
        })
    }

    /// Returns the action on a call, without performing it.
    fn intrusion_of(&self, call: &Call) -> Option<(IntrusionTarget, Action)> {
        use Syscall as S;
        let tid = call.tid;
        match call.syscall {
            S::KILL => self.kill(tid, call.int(0), call.int(1)),
            S::RT_SIGQUEUEINFO | S::TKILL => self.signal_one(tid, call.int(0), call.int(1)),
            S::TGKILL | S::RT_TGSIGQUEUEINFO => self.signal_one(tid, call.int(1), call.int(2)),
            S::PIDFD_SEND_SIGNAL => self.signal_descriptor(call),
            S::FCNTL | S::FCNTL64 => {
                let sets_signal = call.int(1) == F_SETSIG.i32() && is_deadly(call.int(2));
                sets_signal.then_some((IntrusionTarget::FileOwner, Action::Refuse))
            }
            S::PRCTL => self.prctl(call),
            S::PTRACE if ![PTRACE_ATTACH.u64(), PTRACE_SEIZE.u64()].contains(&call.raw(0)) => None,
            S::PTRACE | S::PERF_EVENT_OPEN => refused(self.named(tid, call.int(1))),
            S::PIDFD_OPEN => match self.named(tid, call.int(0)) {
                SignalTargets::Ours(pid) if self.options.lenient.contains(&pid) => None,
                hit => refused(hit),
            },
            S::PIDFD_GETFD | S::PROCESS_MADVISE => refused(self.behind(tid, call.int(0))),
            S::SETPRIORITY => self.priority(tid, call.int(0), call.int(1)),
            // Counted from 1.
            S::IOPRIO_SET => self.priority(tid, call.int(0).wrapping_sub(1), call.int(1)),
            _ => refused(self.named(tid, call.int(0))),
        }
    }

    fn kill(&self, tid: Tid, pid: i32, signal: i32) -> Option<(IntrusionTarget, Action)> {
        match pid {
            1.. => self.signal_one(tid, pid, signal),
            _ if !is_harmful(signal) => None,
            0 => self.signal_group(tid, None, signal),
            -1 => self.signal_members(tid, Members::All, signal),
            // The kernel finds no such group.
            i32::MIN => None,
            _ => self.signal_group(tid, Some(-pid), signal),
        }
    }

    fn signal_one(&self, tid: Tid, pid: i32, signal: i32) -> Option<(IntrusionTarget, Action)> {
        let hit = self.named(tid, pid);
        refused(self.unless_lenient(hit, signal))
    }

    fn unless_lenient(&self, hit: SignalTargets, signal: i32) -> SignalTargets {
        match hit {
            SignalTargets::Ours(pid)
                if self.options.lenient.contains(&pid) && !is_deadly(signal) =>
            {
                SignalTargets::Nobody
            }
            hit => hit,
        }
    }

    /// Decides on a signal to a process group as the caller numbers it; `None` is its own.
    fn signal_group(
        &self,
        tid: Tid,
        group: Option<i32>,
        signal: i32,
    ) -> Option<(IntrusionTarget, Action)> {
        let group = match group {
            None => self.proc.stat(tid.0).ok()?.stat.pgid,
            // A group that has a number below our namespace has no process of the monitor in it.
            Some(_) if self.is_below(tid) => return None,
            Some(group) => group,
        };
        self.signal_members(tid, Members::Group(group), signal)
    }

    fn signal_members(
        &self,
        tid: Tid,
        members: Members,
        signal: i32,
    ) -> Option<(IntrusionTarget, Action)> {
        if members == Members::All && self.is_below(tid) {
            return None;
        }
        let hit = self.among(members)?;
        let is_own = members != Members::All && members.has(&self.proc, Pid(tid.0));
        let aim = if is_own {
            IntrusionTarget::OwnGroup
        } else {
            IntrusionTarget::Among(hit)
        };
        Some((aim, Action::Relay(members, signal)))
    }

    /// Returns the first process of the monitor among the members.
    fn among(&self, members: Members) -> Option<Pid> {
        let is_member = |pid: &Pid| members.has(&self.proc, *pid);
        self.ours().into_iter().find(is_member)
    }

    /// Decides on a change of priority. `which` as in setpriority(2).
    fn priority(&self, tid: Tid, which: i32, who: i32) -> Option<(IntrusionTarget, Action)> {
        const ONE: i32 = 0;
        const GROUP: i32 = 1;
        const USER: i32 = 2;
        let members = match (which, who) {
            (ONE, _) => return refused(self.named(tid, who)),
            (GROUP, 0) => Members::Group(self.proc.stat(tid.0).ok()?.stat.pgid),
            (GROUP | USER, _) if self.is_below(tid) => return None,
            (GROUP, group) => Members::Group(group),
            (USER, 0) => Members::User(self.proc.status(tid.0).ok()?.status.real_uid),
            (USER, user) => Members::User(user.cast_unsigned()),
            _ => return None,
        };
        let hit = self.among(members)?;
        Some((IntrusionTarget::Among(hit), Action::Refuse))
    }

    fn prctl(&self, call: &Call) -> Option<(IntrusionTarget, Action)> {
        if call.int(0) != PR_SET_DUMPABLE.i32() || call.args[1] & u64::from(u32::MAX) != 0 {
            return None;
        }
        let action = if self.options.refuse_non_dumpable {
            Action::Refuse
        } else {
            Action::Make
        };
        Some((IntrusionTarget::Dumpable, action))
    }

    /// Returns the processes that a pid or thread id of the caller means.
    fn named(&self, tid: Tid, number: i32) -> SignalTargets {
        if number <= 0 {
            return SignalTargets::Nobody;
        }
        match self.owner(Pid(number)) {
            Some(pid) if !self.is_below(tid) => SignalTargets::Ours(pid),
            _ => SignalTargets::Nobody,
        }
    }

    /// Returns the process of the monitor that a pid or thread id belongs to.
    fn owner(&self, number: Pid) -> Option<Pid> {
        let ours = self.ours();
        let has_thread = |pid: &Pid| {
            let path = format!("{}/task/{}", pid.0, number.0);
            rustix::fs::accessat(&self.proc, path, Access::EXISTS, AtFlags::empty()).is_ok()
        };
        if ours.contains(&number) {
            return Some(number);
        }
        ours.into_iter().find(has_thread)
    }

    /// Returns whether the caller's pid namespace is below the agent's, where the agent has no numbers. A
    /// caller that hides its namespace counts as being in the agent's.
    fn is_below(&self, tid: Tid) -> bool {
        let text = self.proc.read_all(tid.0, "status", 64 * 1024);
        let text = text.map(|(text, _)| text).unwrap_or_default();
        let numbers =
            caller::line(&text, "NSpid").map_or(0, |line| line.split_whitespace().count());
        numbers > 1
    }

    /// Returns the processes that are protected.
    pub(crate) fn ours(&self) -> Vec<Pid> {
        self.ours
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Returns these processes and this one.
fn with_own(ours: &[Pid]) -> Vec<Pid> {
    let own = Pid(std::process::id().cast_signed());
    let others = ours.iter().copied().filter(|pid| *pid != own);
    others.chain([own]).collect()
}

fn refused(hit: SignalTargets) -> Option<(IntrusionTarget, Action)> {
    match hit {
        SignalTargets::Nobody => None,
        SignalTargets::Ours(pid) => Some((IntrusionTarget::Process(pid), Action::Refuse)),
        SignalTargets::Unknown => Some((IntrusionTarget::Unknown, Action::Refuse)),
    }
}

/// Returns whether the signal affects a process of the monitor: it is deadly, or a command (reload, reopen, upgrade).
fn is_harmful(signal: i32) -> bool {
    is_deadly(signal) || matches!(signal, SIGHUP | SIGUSR1 | SIGUSR2)
}

/// Returns whether the signal ends or stops a process that ignores or blocks every signal it can: faults and
/// the C library's own signals keep their effect there.
fn is_deadly(signal: i32) -> bool {
    matches!(signal, 4 | 5 | 7 | 8 | 9 | 11 | 19 | 31 | 32 | 33)
}

const SIGHUP: i32 = Signal::SIGHUP.0;
const SIGUSR1: i32 = Signal::SIGUSR1.0;
const SIGUSR2: i32 = Signal::SIGUSR2.0;

#[cfg(test)]
mod tests;
