//! Distinguishes an operator's order from a signal that the workload caused.
//!
//! SIGHUP, SIGUSR1 and SIGUSR2 are orders: reload, reopen, upgrade. The workload can make the
//! kernel send them to the processes that watch: by kill(2) while its calls are not held, and by
//! every notification for which a process can choose target and signal (`F_SETOWN`, timers, message
//! queues). An order is therefore a signal sent by kill(2) (`SI_USER`, which no process can forge
//! for another: kernel/signal.c, `do_rt_sigqueueinfo`) from a process outside the workload.

use process_info::procfs::Proc;
use sys::signal::Signal;

use super::shared_state::{SharedPid, SharedState};

/// `si_code` of kill(2) and of pidfd_send_signal(2) without information of the caller's.
const SI_USER: i32 = 0;
/// Maximum number of parents that are looked up; more than any real chain has.
const ANCESTOR_LIMIT: usize = 64;

/// Sender of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// A process that does not belong to the workload.
    Outside,
    /// A process of the workload, or the kernel at its request.
    Workload,
    /// A process that has ended, or of which `/proc` shows too little.
    Unproven,
}

/// Decides which signals are orders.
#[derive(Clone, Debug)]
pub struct SenderCheck {
    /// Number of seccomp filters of this process; each process of the workload has more if the engine has a filter.
    /// `None` before Linux 5.9.
    own_filters: Option<u32>,
    /// Number of unwatched intervals at the last check.
    gaps: u64,
}

impl SenderCheck {
    /// Creates a check that trusts the senders that the keeper of `shared_state` trusts.
    pub fn new(shared_state: &SharedState) -> Self {
        let own = std::process::id().cast_signed();
        Self {
            own_filters: status(own).and_then(|text| filters(&text)),
            gaps: shared_state.gap.begun.get(),
        }
    }

    /// Returns true if the signal is an operator's order.
    ///
    /// A sender that has ended (`/bin/kill`) cannot be inspected. It was not the workload if calls
    /// were held all the time: the agent lets no call pass that sends an order to a process that
    /// watches.
    pub fn accepts(&mut self, shared_state: &SharedState, signal: &Signal) -> bool {
        let begun = shared_state.gap.begun.get();
        let is_held = begun == std::mem::replace(&mut self.gaps, begun)
            && begun == shared_state.gap.ended.get();
        match self.sender(shared_state, signal) {
            Sender::Outside => true,
            Sender::Workload => false,
            Sender::Unproven => is_held,
        }
    }

    fn sender(&self, shared_state: &SharedState, signal: &Signal) -> Sender {
        if signal.code != SI_USER {
            return Sender::Workload;
        }
        // The sender is outside this pid namespace; processes of the workload have numbers in it.
        if signal.pid == 0 {
            return Sender::Outside;
        }
        let Some(text) = status(signal.pid) else {
            return Sender::Unproven;
        };
        // Checked first: under an engine without a filter the workload has no more filters than
        // this process.
        if descends_from_workload(shared_state, &text) {
            return Sender::Workload;
        }
        match (self.own_filters, filters(&text)) {
            (Some(own), Some(its)) if its <= own => Sender::Outside,
            _ => Sender::Unproven,
        }
    }
}

/// Returns true if the process with this status descends from the command. The ancestors of an
/// orphan do not show it.
fn descends_from_workload(shared_state: &SharedState, text: &str) -> bool {
    let roots = [&shared_state.waiter_pid, &shared_state.command_pid].map(SharedPid::get);
    let is_root = |pid: i32| pid > 0 && roots.contains(&pid);
    if line(text, "Pid:").is_some_and(is_root) {
        return true;
    }
    let mut parent = line(text, "PPid:");
    for _ in 0..ANCESTOR_LIMIT {
        match parent {
            Some(pid) if is_root(pid) => return true,
            Some(pid) if pid > 1 => {
                parent = status(pid).and_then(|text| line(&text, "PPid:"));
            }
            _ => return false,
        }
    }
    false
}

/// Reads a status from a `/proc` over which the workload cannot have mounted anything.
fn status(pid: i32) -> Option<String> {
    let proc = Proc::open().ok()?;
    proc.contents(&format!("{pid}/status")).ok()
}

fn filters(text: &str) -> Option<u32> {
    line(text, "Seccomp_filters:")
}

fn line<T: std::str::FromStr>(text: &str, name: &str) -> Option<T> {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared_state() -> SharedState {
        SharedState::create().expect("shared memory can be had").0
    }

    fn signal(code: i32, pid: i32) -> Signal {
        Signal {
            signal: 12,
            code,
            pid,
            uid: 0,
            status: 0,
        }
    }

    #[test]
    fn only_kill_gives_orders_whatever_the_kernel_or_a_process_claims() {
        let shared_state = shared_state();
        let own = std::process::id().cast_signed();
        for code in -128..=0x80 {
            let accepted =
                SenderCheck::new(&shared_state).accepts(&shared_state, &signal(code, own));
            assert_eq!(accepted, code == SI_USER, "si_code {code}");
        }
    }

    #[test]
    fn a_sender_outside_the_pid_namespace_is_no_process_of_the_workload() {
        let shared_state = shared_state();
        assert!(SenderCheck::new(&shared_state).accepts(&shared_state, &signal(SI_USER, 0)));
    }

    #[test]
    fn the_command_and_its_descendants_give_no_orders() {
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("60").spawn().expect("sleep is there");
        let sent = signal(SI_USER, child.id().cast_signed());
        let found = [true, false].map(|tells_filters| {
            let shared_state = shared_state();
            let mut check = SenderCheck::new(&shared_state);
            if !tells_filters {
                // As on a kernel that does not tell their number.
                check.own_filters = None;
            }
            let before = check.accepts(&shared_state, &sent);
            shared_state
                .command_pid
                .set(std::process::id().cast_signed());
            (before, check.accepts(&shared_state, &sent))
        });
        let ended = child.kill().and_then(|()| child.wait());
        assert!(ended.is_ok());
        // The child has as many filters as this process, as everybody has under an engine without one.
        assert_eq!(found, [(true, false); 2]);
    }

    #[test]
    fn a_sender_that_has_ended_is_believed_only_while_calls_are_held() {
        let shared_state = shared_state();
        let mut check = SenderCheck::new(&shared_state);
        let gone = signal(SI_USER, i32::MAX);
        assert!(check.accepts(&shared_state, &gone));
        shared_state.gap.begun.add(1);
        assert!(
            !check.accepts(&shared_state, &gone),
            "an unwatched interval has begun"
        );
        assert!(!check.accepts(&shared_state, &gone), "it lasts");
        shared_state.gap.ended.add(1);
        assert!(check.accepts(&shared_state, &gone), "calls are held again");
    }
}
