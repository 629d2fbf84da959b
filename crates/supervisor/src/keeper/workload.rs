//! Kills the workload.

use std::time::Duration;

use abi::Errno;
use process_info::procfs::Proc;
use sys::notify::{Listener, Notification, Received};
use sys::time::{Clock, now_ns};
use sys::wait::{self, Target};

use super::super::inherited::{InheritedDescriptors, has_calls, has_hung_up};
use super::super::signals::SIGKILL;
use super::Agent;

/// Time limit for killed processes to end; only uninterruptible calls take longer.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Maximum number of callers that are killed in one turn.
const CALLERS: usize = 256;
/// Interval of checks.
const PAUSE: Duration = Duration::from_millis(1);

/// Kills every process of the workload, those created meanwhile, and those that make calls then.
pub(super) fn kill_all(
    inherited: &InheritedDescriptors,
    agent: &Agent,
    listener: Option<&Listener>,
) {
    let shared_state = &inherited.shared_state;
    let waiter = shared_state.waiter_pid.get();
    let own = std::process::id().cast_signed();
    let ours = [own, agent.pid, waiter, inherited.front_pid];
    let limit = now_ns(Clock::Monotonic) + PATIENCE_NS;
    loop {
        if let Some(listener) = listener {
            kill_callers(listener);
        }
        let mut found = Vec::new();
        for top in [waiter, agent.pid, own] {
            descendants(top, &ours, &mut found);
        }
        for pid in &found {
            // Fails only if it has just ended.
            let _ = sys::signal::send(*pid, SIGKILL);
        }
        while let Ok(Some(_)) = wait::wait(Target::Any, wait::NO_HANG) {}
        let is_over = match listener {
            Some(listener) => has_hung_up(listener),
            None => found.is_empty(),
        };
        if is_over || now_ns(Clock::Monotonic) > limit {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Kills processes that have left the workload's process tree, when they make a call. Of many calls some are left for later: a
/// parent may make callers faster than they are killed, and is killed itself between two turns.
fn kill_callers(listener: &Listener) {
    for _ in 0..CALLERS {
        if !has_calls(listener) {
            return;
        }
        let mut call = Notification::default();
        if !matches!(listener.receive(&mut call), Ok(Received::Notification)) {
            return;
        }
        // A thread's id identifies its process. 0 is a process of another pid namespace, and as an
        // argument would mean this process group.
        if call.tid > 0 {
            let _ = sys::signal::send(call.tid, SIGKILL);
        }
        let _ = listener.respond_errno(call.id, Errno::EPERM.0);
    }
}

fn descendants(of: i32, ours: &[i32], found: &mut Vec<i32>) {
    let mut tops = vec![of];
    while let Some(parent) = tops.pop() {
        for child in children(parent) {
            if !ours.contains(&child) && !found.contains(&child) {
                found.push(child);
                tops.push(child);
            }
        }
    }
}

fn children(of: i32) -> Vec<i32> {
    let Ok(proc) = Proc::open() else {
        return Vec::new();
    };
    // A process that has just ended has no threads.
    let threads = proc.numbers(&format!("{of}/task")).into_iter().flatten();
    let list = |thread: i32| proc.contents(&format!("{of}/task/{thread}/children"));
    let lists = threads.filter_map(|thread| list(thread).ok());
    lists
        .flat_map(|list| {
            let pids = list.split_ascii_whitespace();
            pids.filter_map(|pid| pid.parse().ok())
                .collect::<Vec<i32>>()
        })
        .collect()
}
