//! Access control for gRPC clients on this host.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use event::{EngineKind, Pid};
use outputs::{Dispatcher, Internal};
use process_info::procfs::{Proc, ThreadStatus};
use rules::{AlertValue, Priority};
use serve::grpc::PeerCheck;
use sys::poll::{PollFd, poll};

use capture::Scope;

/// Checks a connecting process: only unwatched processes of this user or root may receive alerts.
///
/// A process counts as watched if it has more seccomp filters than this one, because a workload
/// inherits ours and cannot remove it; if this process traces it; or if the BPF programs in the
/// kernel know it. A process with filters of its own cannot be distinguished without privileges and
/// is refused, too.
struct Subscribers {
    proc: Proc,
    own: ThreadStatus,
    own_user: u32,
    /// Watched processes have our filter.
    has_filter: bool,
    /// Scope in which the kernel marks watched processes.
    scope: Option<Scope>,
}

/// Reason why a process receives no alerts.
struct Refusal {
    pid: i32,
    user: u32,
    why: &'static str,
}

/// Returns the check for a server. Refusals are reported through `dispatcher`.
pub(super) fn check(
    engine: EngineKind,
    scope: Option<Scope>,
    dispatcher: Dispatcher,
) -> anyhow::Result<PeerCheck> {
    let has_filter = matches!(engine, EngineKind::Notify | EngineKind::Ptrace);
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
            dispatcher.emit_internal(refusal.alert());
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
        // The process is not in a pid namespace below ours, as every watched process is.
        if pid == 0 {
            return Ok(());
        }
        // The pid stays valid until the process has ended.
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

    /// Returns the reason why a process counts as watched, if it does.
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

/// Returns true if a process has more filters than another, or if that is unknown.
fn has_more_filters(status: &ThreadStatus, own: &ThreadStatus) -> bool {
    if status.seccomp == 0 {
        return false;
    }
    match (status.seccomp_filters, own.seccomp_filters) {
        (Some(theirs), Some(ours)) => theirs > ours,
        _ => true,
    }
}

/// Returns true if a process has ended, or if that is unknown.
fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(process, READABLE)];
    poll(&mut fds, Some(Duration::ZERO)).is_err() || fds[0].found() != 0
}

/// `POLLIN`.
const READABLE: i16 = 1;

impl Refusal {
    fn alert(&self) -> Internal {
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
        // Unknown is not none.
        assert!(has_more_filters(&with(2, None), &one) && has_more_filters(&one, &with(2, None)));
    }
}
