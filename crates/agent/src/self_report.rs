//! What the agent reports about itself to a collector.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError};

use event::EngineKind;
use outputs::{
    AgentReport, Dispatcher, EnforcerReport, PolicyReport, RuleTime, RuleTimes, RulesReport,
    Snapshot,
};
use rules::Engine;
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
            enforcers: record.enforcers.iter().map(enforcer(record)).collect(),
            gaps: record.gaps.clone(),
        },
        None if is_confined => PolicyReport::Unknown,
        None => PolicyReport::Absent,
    }
}

fn enforcer(record: &PolicyRecord) -> impl Fn((&String, &String)) -> EnforcerReport {
    |(enforcer, extent)| EnforcerReport {
        enforcer: enforcer.clone(),
        extent: extent.clone(),
        reason: record.reasons.get(enforcer).cloned(),
    }
}

/// Returns what the rules in force took; `None` without `metrics.enabled`, which lets engines measure it.
fn rule_times(in_force: &[Arc<Engine>]) -> Option<RuleTimes> {
    let costs = in_force.iter().flat_map(|engine| engine.costs());
    let mut rules: Vec<_> = costs
        .map(|cost| RuleTime {
            rule: cost.rule.to_owned(),
            evaluations: cost.evaluations,
            nanoseconds: cost.nanoseconds,
        })
        .collect();
    if rules.is_empty() {
        return None;
    }
    rules.retain(|time| time.evaluations > 0);
    rules.sort_by_key(|time| Reverse(time.nanoseconds));
    let events = in_force.iter().flat_map(|engine| engine.evaluated());
    Some(RuleTimes {
        events: events.map(|(_, count)| count).sum(),
        nanoseconds: rules.iter().map(|time| time.nanoseconds).sum(),
        rules,
    })
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
        in_force: &metrics::RulesInForce,
    ) -> Arc<RulesRecord> {
        let (engine, policy, bundle) = (self.engine, self.policy, self.bundle);
        let (rules, counters) = (Arc::new(self.rules), Arc::clone(counters));
        let (record, in_force) = (Arc::clone(&rules), Arc::clone(in_force));
        dispatcher.report_from(Box::new(move || AgentReport {
            engine: engine.name().to_owned(),
            rules: rules.report(),
            policy: policy.clone(),
            bundle: bundle.report(),
            counters: reported(&counters()),
            rule_times: rule_times(&in_force()),
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
    use config::rule_files::NoSink;

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
    fn times_of_rules_are_reported_only_where_they_are_measured() {
        let rules =
            "- rule: R\n  desc: d\n  condition: evt.type = open\n  output: o\n  priority: INFO\n";
        let (ruleset, problems) = rules::Loader::new().add("r.yaml", rules).finish();
        assert!(problems.is_empty(), "{problems:?}");
        let engine = |profile| {
            let options = rules::EngineOptions {
                profile,
                ..rules::EngineOptions::default()
            };
            let (engine, _) = Engine::new(&ruleset, &options, Box::new(NoSink));
            [Arc::new(engine)]
        };
        assert_eq!(rule_times(&engine(None)), None);
        let measured = rule_times(&engine(Some(rules::profile::SAMPLED)));
        assert_eq!(measured, Some(RuleTimes::default()), "no event yet");
    }

    #[test]
    fn the_reason_why_an_enforcer_does_less_is_reported_with_it() {
        let record = PolicyRecord {
            enforcers: [("BPF", "not enforced"), ("Caps", "fully enforced")]
                .map(|(name, extent)| (name.to_owned(), extent.to_owned()))
                .into(),
            reasons: [("BPF".to_owned(), "no BTF".to_owned())].into(),
            ..PolicyRecord::default()
        };
        let PolicyReport::Known { enforcers, .. } = policy(Some(&record), true) else {
            panic!("a record");
        };
        let reasons: Vec<_> = enforcers.iter().map(|of| of.reason.as_deref()).collect();
        assert_eq!(reasons, [Some("no BTF"), None]);
    }

    #[test]
    fn a_policy_without_a_record_is_unknown() {
        assert_eq!(policy(None, false), PolicyReport::Absent);
        assert_eq!(policy(None, true), PolicyReport::Unknown);
    }
}
