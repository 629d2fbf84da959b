//! Internal alerts about the state of our own processes.

use outputs::Internal;
use rules::{AlertValue, Priority};
use supervisor::{Cause, Gaps, Report};

/// Maximum number of calls that an alert names; the rest are summed up.
const NAMED: usize = 16;

/// Returns the internal alert for a report.
pub(super) fn internal(report: &Report) -> Internal {
    let plain = |rule, priority, message: &str| Internal {
        rule,
        priority,
        message: message.to_owned(),
        fields: Vec::new(),
    };
    match report {
        Report::Gaps(gaps) => gap(gaps),
        Report::Upgraded => plain(
            "Tollgate internal: agent upgraded",
            Priority::Notice,
            "a new monitor process took over; no call was unwatched",
        ),
        Report::UpgradeFailed => plain(
            "Tollgate internal: upgrade failed",
            Priority::Error,
            "a new monitor process failed to take over; the old one continues",
        ),
        Report::OrderRefused => plain(
            "Tollgate internal: order refused",
            Priority::Critical,
            "ignored a signal to upgrade, reload or reopen: it came from the workload, or its sender \
            could not be verified",
        ),
        Report::KeeperGone => plain(
            "Tollgate internal: keeper gone",
            Priority::Critical,
            "the keeper process, which answers calls if this agent dies, is gone",
        ),
        Report::KeeperReplaced { .. } => plain(
            "Tollgate internal: keeper replaced",
            Priority::Critical,
            "the keeper process, which answers calls if this agent dies, was killed and replaced",
        ),
    }
}

/// Alert: an agent of several containers was killed, and it is unknown whose alerts were lost.
pub(super) fn alerts_lost(alerts: u64) -> Internal {
    Internal {
        rule: "Tollgate internal: alerts lost",
        priority: Priority::Critical,
        message: format!("the host agent was killed with alerts in its queues (lost={alerts})"),
        fields: vec![("tollgate.lost", AlertValue::Uint(alerts))],
    }
}

fn gap(gaps: &Gaps) -> Internal {
    let total: u64 = gaps.calls.iter().map(|(_, count)| count).sum();
    let calls = calls(gaps);
    let lasted_ms = gaps.lasted_ns / 1_000_000;
    let cause = cause(gaps);
    let lost = match gaps.lost_alerts {
        0 => String::new(),
        alerts => format!(" lost_alerts={alerts}"),
    };
    Internal {
        rule: "Tollgate internal: unwatched gap",
        priority: Priority::Critical,
        message: format!(
            "calls were unwatched for {lasted_ms} ms: {cause} \
             (gaps={} calls={total} by_call={calls}{lost})",
            gaps.count
        ),
        fields: vec![
            ("tollgate.gap.cause", AlertValue::Text(cause)),
            ("tollgate.gap.count", AlertValue::Uint(gaps.count)),
            ("tollgate.gap.duration_ns", AlertValue::Uint(gaps.lasted_ns)),
            ("tollgate.gap.calls", AlertValue::Uint(total)),
            ("tollgate.gap.by_call", AlertValue::Text(calls)),
            (
                "tollgate.gap.lost_alerts",
                AlertValue::Uint(gaps.lost_alerts),
            ),
        ],
    }
}

fn cause(gaps: &Gaps) -> String {
    match gaps.cause {
        Cause::Killed => format!("killed by signal {}", gaps.detail),
        Cause::Exited => format!("exit code {}", gaps.detail),
        Cause::Stopped => "stopped".to_owned(),
        Cause::Starved => "starved".to_owned(),
        Cause::Gone => "exited with unknown status".to_owned(),
    }
}

/// Formats `openat:12,execve:1`, the most frequent first.
fn calls(gaps: &Gaps) -> String {
    let mut calls: Vec<(String, u64)> = gaps
        .calls
        .iter()
        .map(|(call, count)| (gaps.name(*call), *count))
        .collect();
    calls.sort_by(|(name, count), (other, others)| others.cmp(count).then(name.cmp(other)));
    let rest: u64 = calls.iter().skip(NAMED).map(|(_, count)| count).sum();
    calls.truncate(NAMED);
    if rest > 0 {
        calls.push(("others".to_owned(), rest));
    }
    let parts: Vec<String> = calls
        .iter()
        .map(|(name, count)| format!("{name}:{count}"))
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use supervisor::GapTotals;

    use super::*;

    #[test]
    fn a_gap_is_told_with_its_cause_and_calls() {
        let gaps = Gaps {
            totals: GapTotals::default(),
            count: 1,
            cause: Cause::Killed,
            detail: 9,
            lasted_ns: 21_000_000,
            lost_alerts: 4,
            calls: vec![(59, 1), (257, 12), (513, 2)],
        };
        let message = internal(&Report::Gaps(gaps)).message;
        if cfg!(target_arch = "x86_64") {
            assert_eq!(
                message,
                "calls were unwatched for 21 ms: killed by signal 9 \
                 (gaps=1 calls=15 by_call=openat:12,unknown:2,execve:1 lost_alerts=4)"
            );
        }
    }
}
