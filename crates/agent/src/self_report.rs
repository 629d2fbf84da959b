//! What the agent reports about itself to a collector.

use std::sync::{Arc, Mutex, PoisonError};

use event::EngineKind;
use outputs::{AgentReport, Dispatcher, PolicyReport, RulesReport, Snapshot};
use supervisor::handover_state::PolicyRecord;

use crate::bundles::BundleRecord;
use crate::metrics;

/// The rules in force, as they are reported. A reload replaces them.
#[derive(Debug, Default)]
pub(super) struct RulesRecord(Mutex<RulesReport>);

impl RulesRecord {
    pub(super) fn new(digest: String, enabled: usize, refused: usize) -> Self {
        Self(Mutex::new(report(digest, enabled, refused)))
    }

    pub(super) fn replace(&self, digest: String, enabled: usize, refused: usize) {
        // The value is replaced as a whole, so a poisoned lock holds a valid one.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = report(digest, enabled, refused);
    }

    fn report(&self) -> RulesReport {
        let rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rules.clone()
    }
}

fn report(digest: String, enabled: usize, refused: usize) -> RulesReport {
    RulesReport {
        digest,
        enabled: enabled as u64,
        refused: refused as u64,
    }
}

/// Returns the report of a policy. Without a record, `is_confined` says whether there is one.
pub(super) fn policy(record: Option<&PolicyRecord>, is_confined: bool) -> PolicyReport {
    match record {
        Some(record) => PolicyReport::Known {
            name: record.name.clone(),
            digest: record.digest.clone(),
            audits: record.audits,
            enforcers: record.enforcers.clone().into_iter().collect(),
        },
        None if is_confined => PolicyReport::Unknown,
        None => PolicyReport::Absent,
    }
}

/// What is reported about an agent.
pub(super) struct Reported {
    pub(super) engine: EngineKind,
    pub(super) rules: RulesRecord,
    pub(super) policy: PolicyReport,
    pub(super) bundle: BundleRecord,
}

impl Reported {
    /// Lets channels report from now on. Returns the record of the rules, which a reload changes.
    pub(super) fn start(
        self,
        dispatcher: &Dispatcher,
        counters: &metrics::Counters,
    ) -> Arc<RulesRecord> {
        let (engine, policy, bundle) = (self.engine, self.policy, self.bundle);
        let (rules, counters) = (Arc::new(self.rules), Arc::clone(counters));
        let record = Arc::clone(&rules);
        dispatcher.report_from(Box::new(move || AgentReport {
            engine: engine.name().to_owned(),
            rules: rules.report(),
            policy: policy.clone(),
            bundle: bundle.report(),
            counters: reported(&counters()),
        }));
        record
    }
}

/// Counters of an engine that a list of agents needs, by their names in the stats file.
const REPORTED: [&str; 6] = [
    "gaps",
    "passed_unwatched",
    "denied_unwatched",
    "alerts_lost_with_agent",
    "undecided",
    "violations",
];

fn reported(snapshot: &Snapshot) -> Vec<(&'static str, u64)> {
    let totals = [("events", snapshot.events), ("drops", snapshot.drops)];
    // An engine reports what it counts; what it does not count is no zero.
    let counted = snapshot.counters.iter().copied();
    let counted = counted.filter(|(name, _)| REPORTED.contains(name));
    totals.into_iter().chain(counted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_does_not_count_is_not_reported_as_zero() {
        let snapshot = Snapshot {
            events: 9,
            drops: 2,
            counters: vec![("undecided", 1), ("lost_bulk", 2)],
            ..Snapshot::default()
        };
        let expected = [("events", 9), ("drops", 2), ("undecided", 1)];
        assert_eq!(reported(&snapshot), expected);
    }

    #[test]
    fn a_policy_without_a_record_is_unknown() {
        assert_eq!(policy(None, false), PolicyReport::Absent);
        assert_eq!(policy(None, true), PolicyReport::Unknown);
    }
}
