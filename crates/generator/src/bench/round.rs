//! Measurements of one round.

use serde_json::{Value, json};

use super::meter::{Reading, float};
use crate::action::Action;

/// One measurement of the detector, with the changes since the previous one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Seconds since the previous measurement.
    pub(super) seconds: f64,
    /// Number of expected alerts that arrived.
    pub(super) alerts: u64,
    /// Calls per second that the detector inspected.
    pub(super) calls_per_s: Option<f64>,
    /// Number of lost events.
    pub(super) drops: Option<u64>,
}

/// Counts of an action.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PerAction {
    pub(super) name: &'static str,
    /// Number of times that it was played, which is the number of expected alerts.
    pub(super) expected: u64,
    /// Number of alerts that arrived.
    pub(super) actual: u64,
    /// Number of times that it could not be played.
    pub(super) not_done: u64,
    pub(super) reason: Option<String>,
}

/// A round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Round {
    pub(super) number: u32,
    pub(super) sleep_ns: u64,
    pub(super) seconds: f64,
    pub(super) actions: Vec<PerAction>,
    pub(super) samples: Vec<Sample>,
    /// Time from each event to its alert, in nanoseconds.
    pub(super) delays_ns: Vec<u64>,
    pub(super) before: Reading,
    pub(super) after: Reading,
    pub(super) is_dry: bool,
}

impl PerAction {
    pub(super) fn new(action: &Action) -> Self {
        Self {
            name: action.name,
            ..Self::default()
        }
    }

    pub(super) fn ratio(&self) -> f64 {
        if self.expected == 0 {
            return 0.0;
        }
        float(self.actual) / float(self.expected)
    }
}

impl Round {
    pub(super) fn expected(&self) -> u64 {
        self.actions.iter().map(|action| action.expected).sum()
    }

    pub(super) fn actual(&self) -> u64 {
        self.actions.iter().map(|action| action.actual).sum()
    }

    /// Returns the number of actions per second.
    pub(super) fn eps(&self) -> f64 {
        float(self.expected()) / self.seconds
    }

    /// Returns the share of lost alerts, as the event generator of Falco does: the mean over actions. Ignores
    /// actions that were not played.
    pub(super) fn lost(&self) -> f64 {
        let played = self.actions.iter().filter(|action| action.expected > 0);
        1.0 - mean(played.map(PerAction::ratio)).unwrap_or(1.0)
    }

    /// Returns the number of events that the detector reports as lost.
    pub(super) fn drops(&self) -> Option<u64> {
        Some(self.after.drops?.saturating_sub(self.before.drops?))
    }

    /// Returns true if anything was lost, by the detector's counters or because alerts are missing.
    pub(super) fn is_dropping(&self) -> bool {
        let missing = self
            .actions
            .iter()
            .any(|action| action.actual < action.expected);
        self.drops().is_some_and(|drops| drops > 0) || (missing && !self.is_dry)
    }

    /// Returns the calls per second that the detector inspected while actions were played.
    pub(super) fn calls_per_s(&self) -> Option<f64> {
        mean(self.samples.iter().filter_map(|sample| sample.calls_per_s))
    }

    /// Returns the detector's CPU usage, as a share of one processor.
    pub(super) fn cpu(&self) -> Option<f64> {
        Some((self.after.cpu_s? - self.before.cpu_s?) / self.seconds)
    }

    /// Returns the delay that this share of alerts did not exceed, in nanoseconds.
    pub(super) fn percentile(&self, share: f64) -> Option<f64> {
        let delays: Vec<f64> = self.delays_ns.iter().copied().map(float).collect();
        stats::Sample::new(delays)
            .ok()
            .map(|sample| sample.quantile(share))
    }

    /// Returns all measurements as JSON.
    pub(super) fn object(&self) -> Value {
        let actions: Vec<Value> = self
            .actions
            .iter()
            .map(|action| {
                json!({"action": action.name, "expected": action.expected, "actual": action.actual,
                       "ratio": action.ratio(), "not_done": action.not_done, "reason": action.reason})
            })
            .collect();
        let samples: Vec<Value> = self
            .samples
            .iter()
            .map(|sample| {
                json!({"seconds": sample.seconds, "alerts": sample.alerts,
                       "calls_per_s": sample.calls_per_s, "drops": sample.drops})
            })
            .collect();
        json!({
            "round": self.number, "sleep_ns": self.sleep_ns, "seconds": self.seconds,
            "eps": self.eps(), "expected": self.expected(), "actual": self.actual(),
            "lost": self.lost(), "drops": self.drops(), "dropping": self.is_dropping(),
            "calls_per_s": self.calls_per_s(), "cpu": self.cpu(),
            "res_mem": self.after.resident, "virt_mem": self.after.virtual_size,
            "p50_ns": self.percentile(0.5), "p90_ns": self.percentile(0.9),
            "p99_ns": self.percentile(0.99), "p999_ns": self.percentile(0.999),
            "actions": actions, "samples": samples,
        })
    }
}

/// Returns the mean of some numbers, if there are any.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0_u64, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / float(count))
}

/// Returns the calls per second between two readings, by the detector's own clock.
pub(super) fn per_second(before: Reading, after: Reading) -> Option<f64> {
    let ((first, from), (last, to)) = (before.calls?, after.calls?);
    (to > from).then(|| float(last.saturating_sub(first)) / (to - from))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Makes a round with `eps` events per second, of which some are lost.
    pub(in super::super) fn round(number: u32, eps: u64, lost: u64) -> Round {
        let action = PerAction {
            name: "syscall.X",
            expected: eps,
            actual: eps - lost,
            ..PerAction::default()
        };
        let reading = |calls, drops| Reading {
            calls: Some(calls),
            drops: Some(drops),
            ..Reading::default()
        };
        Round {
            number,
            seconds: 1.0,
            actions: vec![action],
            samples: vec![Sample {
                seconds: 1.0,
                alerts: eps - lost,
                calls_per_s: Some(float(eps * 10)),
                drops: Some(lost),
            }],
            before: reading((0, 0.0), 0),
            after: reading((eps * 10, 1.0), lost),
            ..Round::default()
        }
    }

    #[test]
    fn what_is_missing_is_lost() {
        let clean = round(1, 100, 0);
        assert!(!clean.is_dropping() && clean.lost().abs() < 1e-9);
        let lossy = round(2, 100, 25);
        assert!(lossy.is_dropping() && (lossy.lost() - 0.25).abs() < 1e-9);
        assert_eq!(
            (lossy.drops(), lossy.calls_per_s()),
            (Some(25), Some(1000.0))
        );
        assert_eq!(lossy.object()["actions"][0]["actual"], 75);
    }

    #[test]
    fn what_was_not_played_is_not_lost() {
        let mut round = round(1, 100, 0);
        round.actions.push(PerAction::default());
        assert!(!round.is_dropping() && round.lost().abs() < 1e-9);
        round.actions.remove(0);
        assert!(round.lost().abs() < 1e-9);
    }

    #[test]
    fn percentiles_need_alerts() {
        let mut round = round(1, 10, 0);
        assert_eq!(round.percentile(0.5), None);
        round.delays_ns = vec![10, 20, 30];
        assert_eq!(round.percentile(0.5), Some(20.0));
    }
}
