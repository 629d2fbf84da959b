//! Sends signals to groups of processes, except the monitor's.

use std::os::fd::AsFd;

use abi::Errno;
use event::Pid;

use super::caller::Caller;
use process_info::procfs::Proc;

/// Set of processes that one signal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Members {
    /// All processes of the pid namespace but its first and the sender.
    All,
    /// A process group.
    Group(i32),
    /// The processes of a user.
    User(u32),
    /// A process or a thread.
    One(i32),
}

/// Maximum number of passes over all processes until one finds no new member; more than one only while they
/// fork faster than they can be listed.
const PASSES: usize = 8;

impl Members {
    pub(super) fn has(self, proc: &Proc, pid: Pid) -> bool {
        match self {
            Self::All => pid.0 != 1,
            Self::Group(group) => proc.stat(pid.0).is_ok_and(|found| found.stat.pgid == group),
            Self::User(user) => proc
                .status(pid.0)
                .is_ok_and(|found| found.status.real_uid == user),
            Self::One(one) => pid.0 == one && proc.stat(one).is_ok(),
        }
    }
}

/// Sends the signal to all members that the caller may signal, except `spared`. Returns the same as kill(2):
/// success if it was sent to one, else ESRCH or EPERM.
///
/// The sender that a handler sees is this process; only signals that end or stop a process are sent here.
pub(super) fn signal(
    proc: &Proc,
    caller: &Caller,
    members: Members,
    signal: i32,
    spared: &[Pid],
) -> i64 {
    let mut done: Vec<i32> = Vec::new();
    let (mut sent, mut found_any) = (false, false);
    for _ in 0..PASSES {
        let new: Vec<i32> = processes(proc, members)
            .into_iter()
            .filter(|pid| !done.contains(pid) && !spared.contains(&Pid(*pid)))
            .filter(|pid| *pid != caller.tgid)
            .filter(|pid| members.has(proc, Pid(*pid)))
            .collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            found_any = true;
            done.push(pid);
            sent |= caller.may_signal(proc, pid) && send(proc, members, pid, signal);
        }
    }
    // Last: it may be the end of the caller. `kill(-1)` leaves it out.
    let caller_pid = Pid(caller.tgid);
    if members != Members::All && members.has(proc, caller_pid) {
        found_any = true;
        sent |= send(proc, members, caller.tgid, signal);
    }
    match (sent, found_any) {
        (true, _) => 0,
        (false, true) => -i64::from(Errno::EPERM.0),
        (false, false) => -i64::from(Errno::ESRCH.0),
    }
}

/// Sends the signal through a pidfd, and only if the pid still belongs to a member.
fn send(proc: &Proc, members: Members, pid: i32, signal: i32) -> bool {
    let process = sys::pidfd::open(pid).or_else(|_thread| sys::pidfd::open_thread(pid));
    let Ok(process) = process else {
        return false;
    };
    members.has(proc, Pid(pid)) && sys::pidfd::send_signal(process.as_fd(), signal).is_ok()
}

/// Returns the processes among which members can be.
fn processes(proc: &Proc, members: Members) -> Vec<i32> {
    match members {
        Members::One(one) => vec![one],
        _ => proc.numbers(".").into_iter().flatten().collect(),
    }
}
