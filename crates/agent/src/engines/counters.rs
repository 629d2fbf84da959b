//! The engines' counters under the names that the stats file and the metrics have for them.

use capture::{ebpf, gvisor};
use decoder::counters::CounterSnapshot;
use outputs::Snapshot;
use supervisor::{Cause, SharedState};

pub(super) fn gvisor_snapshot(counters: &gvisor::GvisorCounters, matched: u64) -> Snapshot {
    Snapshot {
        events: counters.messages + counters.dropped,
        drops: counters.dropped,
        preemptions: 0,
        filtered_in_kernel: None,
        notes: Vec::new(),
        counters: vec![
            ("sandboxes", counters.sandboxes),
            ("connected", counters.connected),
            ("refused", counters.refused),
            ("messages", counters.messages),
            ("evaluated", counters.evaluated),
            ("dropped_by_sandboxes", counters.dropped),
            ("malformed", counters.malformed),
            ("truncated", counters.truncated),
            ("unknown_messages", counters.unknown_messages),
            ("unknown_calls", counters.unknown_calls),
            ("unreadable", counters.unreadable),
            ("undecided", counters.undecided),
            ("matched", matched),
        ],
    }
}

pub(super) fn ebpf_snapshot(counters: &ebpf::EbpfCounters, matched: u64, hooks: &str) -> Snapshot {
    Snapshot {
        events: counters.sent + counters.lost(),
        drops: counters.lost(),
        preemptions: 0,
        filtered_in_kernel: Some(counters.rejected_in_kernel()),
        counters: vec![
            ("seen_in_kernel", counters.seen),
            ("rejected_registers", counters.rejected_registers),
            ("rejected_scope", counters.rejected_scope),
            ("rejected_path", counters.rejected_path),
            ("rejected_name", counters.rejected_name),
            ("rejected_socket", counters.rejected_socket),
            ("rejected_container", counters.rejected_container),
            ("ring_calls_unseen", counters.ring_calls),
            ("sent", counters.sent),
            ("evaluated", counters.evaluated),
            ("crowds", counters.crowds),
            ("lost_critical", counters.lost_critical),
            ("lost_bulk", counters.lost_bulk),
            ("lost_state", counters.lost_state),
            ("lost_share", counters.lost_share),
            ("unreadable", counters.unreadable),
            ("truncated", counters.truncated),
            ("malformed", counters.malformed),
            ("unknown_calls", counters.unknown_calls),
            ("undecided", counters.undecided),
            ("undecided_scope", counters.undecided_scope),
            ("processes", counters.processes),
            ("evicted", counters.evicted),
            ("container_keys", counters.places),
            ("evicted_container_keys", counters.evicted_container_keys),
            ("evicted_roots", counters.evicted_roots),
            ("matched", matched),
        ],
        notes: vec![("hooks", hooks.to_owned())],
    }
}

/// Calls that the keeper answered while there was no agent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    /// Calls that passed unwatched, by cause.
    passed: [u64; Cause::ALL.len()],
    denied: u64,
    gaps: u64,
    alerts: u64,
}

impl Losses {
    pub(crate) fn of(shared_state: &SharedState) -> Self {
        Self {
            passed: Cause::ALL.map(|cause| shared_state.passed(cause)),
            denied: shared_state.denied(),
            gaps: shared_state.gaps(),
            alerts: shared_state.lost_alerts(),
        }
    }

    /// Creates a value with only lost alerts.
    pub(crate) fn of_alerts(alerts: u64) -> Self {
        Self {
            alerts,
            ..Self::default()
        }
    }

    /// Adds the losses of another container.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let mut passed = self.passed;
        for (sum, more) in passed.iter_mut().zip(other.passed) {
            *sum += more;
        }
        Self {
            passed,
            denied: self.denied + other.denied,
            gaps: self.gaps + other.gaps,
            alerts: self.alerts + other.alerts,
        }
    }

    fn passed(&self, cause: Cause) -> u64 {
        let causes = Cause::ALL.into_iter().zip(self.passed);
        causes
            .filter(|(other, _)| *other == cause)
            .map(|(_, count)| count)
            .sum()
    }
}

/// Returns the engine's totals for the stats file, including those of earlier agents. The engine
/// cannot drop events, since a caller waits until its call was evaluated. Calls that the keeper let
/// pass without an agent count as drops; calls that it refused do not, because they had no effect.
pub(crate) fn snapshot(counters: &CounterSnapshot, matched: u64, losses: &Losses) -> Snapshot {
    let passed_unwatched: u64 = losses.passed.iter().sum();
    let mut all = engine_counters(counters);
    all.extend(loss_counters(losses));
    all.push(("matched", matched));
    Snapshot {
        events: counters.trapped + passed_unwatched + losses.denied,
        drops: passed_unwatched,
        preemptions: 0,
        filtered_in_kernel: None,
        counters: all,
        notes: Vec::new(),
    }
}

/// Returns the counters of the engine.
fn engine_counters(counters: &CounterSnapshot) -> Vec<(&'static str, u64)> {
    vec![
        ("trapped", counters.trapped),
        ("unevaluated", counters.unevaluated),
        ("rejected_at_strings", counters.rejected_at_strings),
        ("rejected_at_descriptor", counters.rejected_at_descriptor),
        ("rejected_at_entry", counters.rejected_at_entry),
        ("decided_at_entry", counters.decided_at_entry),
        ("escalated", counters.escalated),
        ("escalation_refused", counters.escalation_refused),
        ("followed", counters.followed),
        ("unreadable", counters.unreadable),
        ("read_timeouts", counters.read_timeouts),
        ("attach_timeouts", counters.attach_timeouts),
        ("undecided", counters.undecided),
        ("gone", counters.gone),
        ("unknown_callers", counters.unknown_callers),
        ("receiver_panics", counters.receiver_panics),
        ("unknown_calls", counters.unknown_calls),
        ("guessed_parents", counters.guessed_parents),
        ("stdio_watches", counters.stdio_watches),
        ("stdio_watches_refused", counters.stdio_watches_refused),
        ("intrusions", counters.intrusions),
        ("answer_errors", counters.answer_errors),
        ("withdrawn", counters.withdrawn),
        ("racy_processes", counters.racy_processes),
        ("verified", counters.verified),
        ("arguments_changed", counters.arguments_changed),
        ("verify_failed", counters.verify_failed),
        ("traced_by_others", counters.traced_by_others),
        ("rings", counters.rings),
        ("tripwire_watches", counters.tripwire_watches),
        ("tripwire_refused", counters.tripwire_refused),
        ("tripwire_opens", counters.tripwire_opens),
        ("tripwire_unseen", counters.tripwire_unseen),
        ("tripwire_foreign", counters.tripwire_foreign),
        ("container_runtime", counters.of_runtime),
        ("violations", counters.violations),
        ("no_progress", counters.no_progress),
    ]
}

/// Returns what nobody watched, and what was lost with agents.
fn loss_counters(losses: &Losses) -> [(&'static str, u64); 9] {
    let passed = |cause| losses.passed(cause);
    [
        ("gaps", losses.gaps),
        ("passed_unwatched", losses.passed.iter().sum()),
        ("passed_agent_killed", passed(Cause::Killed)),
        ("passed_agent_exited", passed(Cause::Exited)),
        ("passed_agent_stopped", passed(Cause::Stopped)),
        ("passed_agent_starved", passed(Cause::Starved)),
        ("passed_agent_gone", passed(Cause::Gone)),
        ("denied_unwatched", losses.denied),
        ("alerts_lost_with_agent", losses.alerts),
    ]
}

#[cfg(test)]
mod tests;
