//! Which processes of this machine may have alerts over gRPC.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use event::Pid;
use outputs::{Dispatcher, Internal};
use process_info::procfs::{Proc, ThreadStatus};
use rules::{AlertValue, Priority};
use serve::grpc::PeerCheck;
use sys::poll::{PollFd, poll};

use capture::Scope;

/// Looks at who connects: only processes of this user or root that are not watched themselves may have alerts.
///
/// A watched process has more seccomp filters than this one, because it and its ancestors got ours and none can be
/// taken off; or this process traces it; or the programs in the kernel know it. Others may have filters of their
/// own, which cannot be told from ours without privileges, and are refused, too.
struct Subscribers {
    proc: Proc,
    own: ThreadStatus,
    own_user: u32,
    /// Whether watched processes have a filter of ours.
    has_filter: bool,
    /// Whether the kernel knows a process as a watched one.
    scope: Option<Scope>,
}

/// Why a process gets no alerts.
struct Refusal {
    pid: i32,
    user: u32,
    why: &'static str,
}

/// The check for a server. It tells of what it refuses by `dispatcher`.
pub(super) fn check(
    has_filter: bool,
    scope: Option<Scope>,
    dispatcher: Dispatcher,
) -> anyhow::Result<PeerCheck> {
    let proc = Proc::open()?;
    let own = proc.status(sys::syscall::getpid())?;
    let subscribers = Subscribers {
        proc,
        own,
        own_user: rustix::process::geteuid().as_raw(),
        has_filter,
        scope,
    };
    Ok(Arc::new(move |socket| match subscribers.look(socket) {
        Ok(()) => true,
        Err(refusal) => {
            dispatcher.emit_internal(refusal.told());
            false
        }
    }))
}

impl Subscribers {
    fn look(&self, socket: BorrowedFd<'_>) -> Result<(), Refusal> {
        let unknown = Refusal {
            pid: 0,
            user: u32::MAX,
            why: "the kernel does not identify the sender",
        };
        let (pid, user, _group) =
            sys::socket::peer_credentials(socket).map_err(|_error| unknown)?;
        let refuse = |why| Err(Refusal { pid, user, why });
        if user != 0 && user != self.own_user {
            return refuse("it is another user's");
        }
        // It is in no pid namespace below ours, as whatever is watched is.
        if pid == 0 {
            return Ok(());
        }
        // Until its end the pid means this process.
        let process = sys::socket::peer_pidfd(socket);
        let Ok(process) = process.or_else(|_older_kernel| sys::pidfd::open(pid)) else {
            return refuse("it has ended");
        };
        let watched = self.watched(pid);
        if has_ended(process.as_fd()) {
            return refuse("it has ended");
        }
        watched.map_or(Ok(()), refuse)
    }

    /// Why a process counts as a watched one, if it does.
    fn watched(&self, pid: i32) -> Option<&'static str> {
        let Ok(status) = self.proc.status(pid) else {
            return Some("its process cannot be read");
        };
        let is_ours = |tid: i32| Path::new(&format!("/proc/self/task/{tid}")).exists();
        if status.tracer != 0 && is_ours(status.tracer) {
            return Some("it is watched");
        }
        if self.has_filter && has_more_filters(&status, &self.own) {
            return Some("it has a seccomp filter, as what is watched has");
        }
        let is_in_scope = self.scope.as_ref().is_some_and(|scope| scope(Pid(pid)));
        is_in_scope.then_some("it is watched")
    }
}

/// Whether a process has more filters than another; also if that is not known.
fn has_more_filters(status: &ThreadStatus, own: &ThreadStatus) -> bool {
    if status.seccomp == 0 {
        return false;
    }
    match (status.seccomp_filters, own.seccomp_filters) {
        (Some(theirs), Some(ours)) => theirs > ours,
        _ => true,
    }
}

/// Whether a process has ended; also if that is not known.
fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(process, READABLE)];
    poll(&mut fds, Some(Duration::ZERO)).is_err() || fds[0].found() != 0
}

/// `POLLIN`.
const READABLE: i16 = 1;

impl Refusal {
    fn told(&self) -> Internal {
        let Self { pid, user, why } = self;
        Internal {
            rule: "Tollgate internal: subscriber refused",
            priority: Priority::Warning,
            message: format!(
                "a process was refused alerts over gRPC: {why} (pid={pid} uid={user})"
            ),
            fields: vec![
                ("tollgate.pid", AlertValue::Int(i64::from(*pid))),
                ("tollgate.uid", AlertValue::Uint(u64::from(*user))),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_more_filters_than_this_process_counts_as_watched() {
        let own = Proc::open()
            .and_then(|proc| proc.status(sys::syscall::getpid()))
            .expect("procfs is there");
        let with = |seccomp, seccomp_filters| ThreadStatus {
            seccomp,
            seccomp_filters,
            ..own
        };
        let (none, one, two) = (with(0, Some(0)), with(2, Some(1)), with(2, Some(2)));
        assert!(!has_more_filters(&none, &none) && !has_more_filters(&none, &one));
        assert!(has_more_filters(&one, &none) && has_more_filters(&two, &one));
        assert!(!has_more_filters(&one, &one));
        // Not told is not none.
        assert!(has_more_filters(&with(2, None), &one) && has_more_filters(&one, &with(2, None)));
    }
}
