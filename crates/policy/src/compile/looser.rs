//! Comparison of two policies on one machine: whether one allows what the other denies.

use super::{NarrowedPolicy, other_profile};
use crate::policy::{Mode, Rule};
use crate::restriction::{Restriction, SyscallAction};

impl NarrowedPolicy {
    /// Returns why this policy allows more, or may allow more, than another one on the same machine; `None` if everything
    /// that the other one denies or reports is denied or reported as well by this one.
    ///
    /// The grade of each rule is compared as the enforcers of the machine compile it. What cannot be compared, such as
    /// two different allow lists, counts as looser.
    #[must_use]
    pub fn looser_than(&self, other: &Self) -> Option<String> {
        if let Some(why) = looser_mode(self, other) {
            return Some(why);
        }
        for enforcer in other.enforcers.iter() {
            if !self.enforcers.contains(enforcer) {
                return Some(format!("it does without the enforcer {enforcer}"));
            }
        }
        for profile in &other.profiles {
            if other_profile(&self.profiles, profile) {
                let enforcer = profile.enforcer;
                return Some(format!(
                    "it has another allow profile of {enforcer}, and two of them cannot be compared"
                ));
            }
        }
        for rule in &other.rules {
            let covers = |candidate: &&Rule| covers(candidate, rule);
            let mut found = self.rules.iter().filter(covers).peekable();
            if found.peek().is_none() {
                return Some(format!("it has no rule that is as strict as `{}`", rule.id));
            }
            let before = other.grade(rule);
            if !found.any(|candidate| self.grade(candidate) >= before) {
                return Some(format!("it enforces `{}` less completely", rule.id));
            }
        }
        let is_new = |rule: &&Rule| !other.rules.iter().any(|old| covers(rule, old));
        let mut added = self.rules.iter().filter(is_new);
        let rule = added.find(|rule| !only_denies(rule))?;
        Some(format!(
            "its rule `{}` may allow what another one denies, and cannot be compared",
            rule.id
        ))
    }
}

fn looser_mode(new: &NarrowedPolicy, old: &NarrowedPolicy) -> Option<String> {
    let is_known = match (old.mode, new.mode) {
        (old, new) if old == new => true,
        // It denies nothing.
        (Mode::AlwaysAllow, _) => true,
        // The rules of both are compared.
        (Mode::RuntimeDefault, Mode::EnhanceProtect) => true,
        _ => false,
    };
    if !is_known {
        let (new, old) = (new.mode, old.mode);
        return Some(format!("the modes {new} and {old} cannot be compared"));
    }
    (new.privileged && !old.privileged).then(|| "it is `privileged`".to_owned())
}

/// Returns true if a rule denies and reports what another one does, for the same programs at least.
fn covers(new: &Rule, old: &Rule) -> bool {
    let is_as_strict = (new.verdict.denies() || !old.verdict.denies())
        && (new.verdict.audits() || !old.verdict.audits());
    let is_target = |target: &String| new.targets.contains(target);
    let has_targets = match (new.targets.is_empty(), old.targets.is_empty()) {
        (true, _) => true,
        (false, true) => false,
        (false, false) => old.targets.iter().all(is_target),
    };
    is_as_strict && has_targets && new.restrictions == old.restrictions
}

/// Returns true if a rule can do nothing but deny more.
fn only_denies(rule: &Rule) -> bool {
    let is_denial = |restriction: &Restriction| match restriction {
        Restriction::Syscall(call) => {
            !matches!(call.action, SyscallAction::Log | SyscallAction::Allow)
        }
        // Two lists of what stays allowed may add up.
        Restriction::OnlyFiles(_) | Restriction::OnlyPeers(_) => false,
        // A text may allow, and what is inside of connections is the proxy's.
        Restriction::AppArmorText(_) | Restriction::InsideConnections => false,
        Restriction::File { .. }
        | Restriction::Exec { .. }
        | Restriction::Connect { .. }
        | Restriction::Disk { .. }
        | Restriction::Socket(_)
        | Restriction::Egress { .. }
        | Restriction::Mount(_)
        | Restriction::Ptrace { .. }
        | Restriction::Capabilities(_)
        | Restriction::Mode { .. }
        | Restriction::Operation(_) => true,
    };
    rule.verdict.denies() && rule.restrictions.iter().all(is_denial)
}

#[cfg(test)]
mod tests {
    use super::super::MachineFeatures;
    use super::*;

    fn policy(body: &str) -> NarrowedPolicy {
        let text = format!("policy:\n{body}");
        let (policies, diagnostics) = crate::load("p.yaml", &text);
        let errors: Vec<_> = diagnostics.iter().filter(|it| it.is_error()).collect();
        assert!(errors.is_empty(), "{errors:?}");
        NarrowedPolicy::new(&policies[0], &MachineFeatures::default())
    }

    fn enhance(rules: &str) -> NarrowedPolicy {
        policy(&format!(
            "    enforcer: Seccomp\n    mode: EnhanceProtect\n    enhanceProtect:\n      privileged: true\n{rules}"
        ))
    }

    fn hardening(rules: &str) -> NarrowedPolicy {
        enhance(&format!("      hardeningRules: [{rules}]\n"))
    }

    #[test]
    fn a_policy_with_fewer_or_weaker_rules_is_looser() {
        let two = || hardening("disallow-mount, disallow-umount");
        assert_eq!(two().looser_than(&two()), None);
        let more = hardening("disallow-umount, disallow-mount, disallow-insmod");
        assert_eq!(more.looser_than(&two()), None);
        let why = two().looser_than(&more).expect("a rule is missing");
        assert!(why.contains("`disallow-insmod`"), "{why}");
        for switch in ["auditViolations", "allowViolations"] {
            let other = enhance(&format!(
                "      hardeningRules: [disallow-mount, disallow-umount]\n      {switch}: true\n"
            ));
            let (is_stricter, back) = (other.looser_than(&two()), two().looser_than(&other));
            match switch {
                "auditViolations" => assert!(is_stricter.is_none() && back.is_some(), "{back:?}"),
                _ => assert!(is_stricter.is_some() && back.is_none(), "{is_stricter:?}"),
            }
        }
    }

    #[test]
    fn enforcers_modes_and_privileges_that_a_policy_does_without_make_it_looser() {
        let of = |enforcer: &str, mode: &str, rest: &str| {
            policy(&format!(
                "    enforcer: {enforcer}\n    mode: {mode}\n{rest}"
            ))
        };
        let default = || of("Seccomp", "RuntimeDefault", "");
        let nothing = of("Seccomp", "AlwaysAllow", "");
        assert_eq!(default().looser_than(&nothing), None);
        assert!(nothing.looser_than(&default()).is_some());
        let both = of("SeccompLandlock", "RuntimeDefault", "");
        assert_eq!(both.looser_than(&default()), None);
        let why = default().looser_than(&both).expect("one is missing");
        assert!(why.contains("Landlock"), "{why}");
        let enhanced = |privileged: &str| {
            let rest = format!(
                "    enhanceProtect:\n      privileged: {privileged}\n      hardeningRules: [disallow-mount]\n"
            );
            of("Seccomp", "EnhanceProtect", &rest)
        };
        assert_eq!(enhanced("false").looser_than(&default()), None);
        let why = enhanced("true").looser_than(&enhanced("false"));
        assert!(why.is_some_and(|why| why.contains("privileged")));
    }

    #[test]
    fn a_rule_that_can_allow_is_not_taken_for_a_further_denial() {
        let own = hardening("disallow-mount");
        let raw = |action: &str| {
            enhance(&format!(
                "      hardeningRules: [disallow-mount]\n      syscallRawRules:\n      - names: [reboot]\n        action: {action}\n"
            ))
        };
        assert_eq!(raw("SCMP_ACT_ERRNO").looser_than(&own), None);
        let why = raw("SCMP_ACT_LOG").looser_than(&own).expect("it reports");
        assert!(why.contains("cannot be compared"), "{why}");
    }
}
