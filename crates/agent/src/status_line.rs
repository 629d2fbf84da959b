//! The status line on the terminal.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use diagnostics::terminal;
use outputs::Snapshot;

use crate::metrics::Counters;

/// Update interval.
const INTERVAL: Duration = Duration::from_secs(1);
/// Returns to the beginning of the line and clears it.
const CLEAR: &str = "\r\u{1b}[K";

/// Shows event rates on the standard error until dropped.
pub(super) struct StatusLine {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StatusLine {
    /// Returns true if the standard error is a terminal and `quiet` is not set.
    pub(super) fn is_wanted(quiet: bool) -> bool {
        !quiet && io::stderr().is_terminal()
    }

    /// Starts the status line.
    ///
    /// # Errors
    ///
    /// The thread cannot be created.
    pub(super) fn start(counters: Counters) -> anyhow::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let follow = move || {
            let (mut before, mut looked) = (counters(), Instant::now());
            // The channel carries no messages; its other end is dropped.
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = counters();
                let line = line(&before, &now, looked.elapsed());
                (before, looked) = (now, Instant::now());
                // The next output on the same terminal overwrites the line.
                terminal::complain(&format!("{CLEAR}{line}\r"));
                outputs::status_line_was_drawn();
            }
            terminal::complain(CLEAR);
        };
        let thread = std::thread::Builder::new().name("status".to_owned());
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.spawn(follow).context("cannot start a thread")?),
        })
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Formats the rates since the last update, and the important totals.
fn line(before: &Snapshot, now: &Snapshot, elapsed: Duration) -> String {
    let rate = |name: &str| {
        let count = piece(now, name).saturating_sub(piece(before, name));
        short(per_second(count, elapsed))
    };
    let forgotten: u64 = EVICTIONS.iter().map(|name| piece(now, name)).sum();
    let forgotten = match forgotten {
        0 => String::new(),
        some => format!(", {} evicted (table full)", short(some)),
    };
    format!(
        "tollgate: {} syscalls/s inspected, {}/s evaluated, {} alerts, {} dropped{forgotten}",
        rate("seen_in_kernel"),
        rate("evaluated"),
        piece(now, "matched"),
        now.drops
    )
}

/// Counters of evicted process data.
const EVICTIONS: [&str; 3] = ["evicted", "evicted_container_keys", "evicted_roots"];

fn piece(snapshot: &Snapshot, name: &str) -> u64 {
    let mut counters = snapshot.counters.iter();
    counters
        .find(|(piece, _)| *piece == name)
        .map_or(0, |(_, count)| *count)
}

fn per_second(count: u64, elapsed: Duration) -> u64 {
    let milliseconds = elapsed.as_millis().max(1);
    u64::try_from(u128::from(count) * 1000 / milliseconds).unwrap_or(u64::MAX)
}

/// Formats a rate in about four characters.
fn short(rate: u64) -> String {
    match rate {
        0..10_000 => rate.to_string(),
        10_000..10_000_000 => format!("{}k", rate / 1000),
        _ => format!("{}M", rate / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(seen: u64, evaluated: u64, drops: u64) -> Snapshot {
        Snapshot {
            events: evaluated,
            drops,
            preemptions: 0,
            filtered_in_kernel: None,
            notes: Vec::new(),
            counters: vec![
                ("seen_in_kernel", seen),
                ("evaluated", evaluated),
                ("matched", 3),
            ],
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks_and_losses_of_all() {
        let (before, now) = (snapshot(1000, 10, 1), snapshot(2_001_000, 110, 4));
        let line = line(&before, &now, Duration::from_secs(2));
        assert_eq!(
            line,
            "tollgate: 1000k syscalls/s inspected, 50/s evaluated, 3 alerts, 4 dropped"
        );
        let now = Snapshot {
            counters: vec![("evicted_container_keys", 5), ("evicted_roots", 2)],
            ..now
        };
        assert_eq!(
            self::line(&before, &now, Duration::from_secs(2)),
            "tollgate: 0 syscalls/s inspected, 0/s evaluated, 0 alerts, 4 dropped, 7 evicted (table full)"
        );
        assert_eq!(short(9_999), "9999");
        assert_eq!(short(12_345_678), "12M");
    }
}
