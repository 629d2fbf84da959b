//! What the agent of a node would do with a container, for people who ask.

use kinds::annotations::FailMode;
use kinds::{ObjectKey, Target};
use nri::message::PodSandbox;
use policy::compile::{Grade, MachineFeatures, NarrowedPolicy};
use policy::{EnforcerKind, Enforcers, Policy, Rule};
use serde_json::Value;

use crate::filter::Filter;
use crate::index::Index;
use crate::kernel::Kernel;
use crate::workload::{Match, compare};

/// All ArmorProfiles that may be about a pod, as an agent knows them.
#[derive(Debug)]
pub struct Profiles(Index);

/// The profile of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Namespace and name of the ArmorProfile.
    pub profile: ObjectKey,
    /// What becomes of the container if the policy cannot be enforced as a whole.
    pub fail_mode: FailMode,
    /// Why no container can have the policy.
    pub problem: Option<String>,
}

/// How containers are confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// By a seccomp filter that the container runtime installs.
    Filter,
    /// By tollgate's runtime, with every enforcer that works on the node.
    Runtime,
}

/// One rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCoverage {
    /// Name of the rule.
    pub rule: String,
    /// What happens to a violation.
    pub action: &'static str,
    /// How much of the rule is enforced.
    pub grade: Grade,
    /// The enforcers that have a part in it.
    pub enforcers: Vec<EnforcerKind>,
    /// What is not enforced, and why.
    pub gaps: Vec<String>,
}

/// What becomes of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyCoverage {
    /// Its rules.
    pub rules: Vec<RuleCoverage>,
    /// Why the policy as a whole cannot be enforced. With the fail mode `closed`, containers are refused for it.
    pub gaps: Vec<String>,
}

impl Profiles {
    /// Takes ArmorProfiles as the API server gives them; `installation` is the namespace of the agents. The second value
    /// has the objects that cannot be used.
    #[must_use]
    pub fn new(installation: &str, objects: &[Value]) -> (Self, Vec<String>) {
        let mut index = Index::new(installation.to_owned());
        let wrong = objects
            .iter()
            .filter_map(|object| index.apply(object).err())
            .map(|error| error.to_string())
            .collect();
        (Self(index), wrong)
    }

    /// The profile of a container; `None` if no policy is about it.
    ///
    /// # Errors
    ///
    /// If it cannot be told which one it is. An agent refuses the container then.
    pub fn choose(&self, pod: &PodSandbox, container: &str) -> Result<Option<Choice>, String> {
        let found = self.0.find(pod, container);
        let found = found.map_err(|undecided| undecided.to_string())?;
        Ok(found.map(|entry| Choice {
            profile: entry.key.clone(),
            fail_mode: entry.fail_mode,
            problem: entry.problem.clone(),
        }))
    }
}

/// Returns true if a policy with this target is about a pod of its namespace, or may be.
#[must_use]
pub fn is_about(target: &Target, pod: &PodSandbox) -> bool {
    compare(target, pod) != Match::No
}

/// What becomes of each rule of a policy, the text of an ArmorProfile.
///
/// # Errors
///
/// If the text is no policy.
pub fn coverage(name: &str, text: &str, mechanism: Mechanism) -> Result<PolicyCoverage, String> {
    let filter = Filter::compile(name, text, &Kernel::default())?;
    let (policies, _) = policy::load(name, text);
    let policy = policies.into_iter().next();
    let policy = policy.ok_or("the profile has no policy")?;
    let seen = match mechanism {
        Mechanism::Runtime => policy,
        Mechanism::Filter => with_filter_alone(&policy),
    };
    let machine = MachineFeatures::default();
    let narrowed = NarrowedPolicy::new(&seen, &machine);
    let rules = narrowed.rules.iter().map(|rule| of_rule(&narrowed, rule));
    Ok(PolicyCoverage {
        rules: rules.collect(),
        gaps: match mechanism {
            Mechanism::Filter => filter.gaps,
            Mechanism::Runtime => Vec::new(),
        },
    })
}

/// The policy as an agent enforces it by a filter.
fn with_filter_alone(policy: &Policy) -> Policy {
    let none = Enforcers::default();
    let enforcers = match policy.enforcers.contains(EnforcerKind::Seccomp) {
        true => none.with(EnforcerKind::Seccomp),
        false => none,
    };
    Policy {
        enforcers,
        ..policy.clone()
    }
}

fn of_rule(policy: &NarrowedPolicy, rule: &Rule) -> RuleCoverage {
    let mut enforcers = Vec::new();
    let mut gaps = Vec::new();
    let grade = policy.grade(rule);
    for enforcer in policy.enforcers.iter() {
        let assessment = policy.assess(rule, enforcer);
        if assessment.grade != Grade::None {
            enforcers.push(enforcer);
        }
        // What the best enforcer leaves open is open.
        if grade != Grade::Full && assessment.grade == grade {
            gaps.extend(assessment.notes);
        }
    }
    if policy.enforcers.iter().next().is_none() {
        gaps.push("no enforcer of the policy is used".to_owned());
    }
    RuleCoverage {
        rule: rule.id.clone(),
        action: rule.verdict.name(),
        grade,
        enforcers,
        gaps,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(mechanism: Mechanism, enforcer: &str, rule: &str) -> (RuleCoverage, usize) {
        let text = json!({ "policy": { "enforcer": enforcer, "mode": "EnhanceProtect",
            "enhanceProtect": { "hardeningRules": [rule] } } });
        let all = coverage("p", &text.to_string(), mechanism).unwrap();
        let found = all.rules.iter().find(|one| one.rule == rule);
        (found.unwrap().clone(), all.gaps.len())
    }

    #[test]
    fn a_filter_enforces_what_seccomp_can_and_the_rest_is_a_gap() {
        // By nature: a kernel loads modules on demand.
        let (module, gaps) = rule(Mechanism::Filter, "Seccomp", "disallow-insmod");
        assert_eq!((module.grade, gaps), (Grade::Partial, 0), "{module:?}");
        assert_eq!(module.enforcers, [EnforcerKind::Seccomp]);
        assert!(module.gaps[0].contains("on demand"), "{module:?}");
        let (core, gaps) = rule(Mechanism::Filter, "BPF", "disallow-write-core-pattern");
        assert_eq!((core.grade, core.enforcers.len()), (Grade::None, 0));
        assert!(gaps > 0 && !core.gaps.is_empty(), "{core:?}");
        let (core, gaps) = rule(Mechanism::Runtime, "BPF", "disallow-write-core-pattern");
        assert_eq!(core.enforcers, [EnforcerKind::Bpf]);
        assert_eq!((core.grade, gaps), (Grade::Full, 0), "{core:?}");
    }
}
