//! From a policy to the seccomp filter that a container runtime installs.

use abi::{RegisterTest, TestOp, TestWidth};
use nri::message::{LinuxSeccompArg, LinuxSyscall, OptionalUInt32};
use policy::compile::seccomp::{Action, CallRule, Profile};
use policy::compile::{Grade, MachineFeatures, NarrowedPolicy};
use policy::{EnforcerKind, Enforcers, Policy, RuleAction, RuleOrigin};

use crate::kernel::Kernel;

/// Maximum number of rules that one call rule may become.
const MAX_RULES: usize = 256;

/// The filter of a policy: denials in the form that runtimes take, and what it cannot enforce.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Filter {
    /// Rules that deny or log calls.
    pub(crate) rules: Vec<LinuxSyscall>,
    /// Calls of other architectures are denied.
    pub(crate) refuses_foreign: bool,
    /// Why a rule of the policy is not enforced, or only in part.
    pub(crate) gaps: Vec<String>,
    /// What a reader of the report has to know besides.
    pub(crate) notes: Vec<String>,
    /// What the kernel is to enforce besides.
    pub(crate) kernel: Option<Policy>,
}

impl Filter {
    /// Compiles a policy: the text of an ArmorProfile.
    ///
    /// # Errors
    ///
    /// If crate `policy` reports an error, which a profile of this operator's does not have.
    pub(crate) fn compile(name: &str, text: &str, kernel: &Kernel) -> Result<Self, String> {
        let policy = &read(name, text)?;
        let mut alone = policy.clone();
        alone.enforcers = kernel.enforcers_of(policy);
        let machine = MachineFeatures::default();
        let (whole, narrowed) = (
            NarrowedPolicy::new(policy, &machine),
            NarrowedPolicy::new(&alone, &machine),
        );
        let mut filter = Self::default();
        for problem in narrowed.check(&[]) {
            match problem.is_error() {
                true => filter.gap(problem.message),
                false => filter.notes.push(problem.message),
            }
        }
        filter.compare(policy, &narrowed, &whole);
        if alone.enforcers.without(EnforcerKind::Seccomp) != Enforcers::default() {
            let lacks = kernel.lacks(&alone);
            // The kernel takes a policy as a whole: what it would refuse is not asked of it.
            filter.kernel = lacks.is_empty().then(|| alone.clone());
            lacks.into_iter().for_each(|lack| filter.gap(lack));
        }
        if !alone.enforcers.contains(EnforcerKind::Seccomp) {
            return Ok(filter);
        }
        let profile = Profile::compile(&narrowed);
        filter.refuses_foreign = profile.refuse_foreign;
        if profile.peers.is_some() {
            filter.gap("a list of peers needs the runtime of tollgate".to_owned());
        }
        for rule in &profile.rules {
            filter.add(rule);
        }
        let audits = |rule: &&policy::Rule| rule.verdict == RuleAction::DenyAudit;
        if let Some(rule) = policy.rules.iter().find(audits) {
            let note = "denies, and a filter without tollgate's runtime reports nothing";
            filter.notes.push(format!("`{}` {note}", rule.id));
        }
        Ok(filter)
    }

    /// Notes what the enforcers of the policy do and a filter alone does not.
    fn compare(&mut self, policy: &Policy, narrowed: &NarrowedPolicy, whole: &NarrowedPolicy) {
        // What is partial by nature is a note; what another enforcer of the policy does better is a gap.
        for (rule, other) in narrowed.rules.iter().zip(&whole.rules) {
            let (grade, wanted) = (narrowed.grade(rule), whole.grade(other));
            if grade < wanted {
                let used = narrowed.enforcers.iter();
                let wanted = used.fold(policy.enforcers, Enforcers::without).joined();
                self.gap(format!(
                    "`{}` needs {wanted}, which the node does not use",
                    rule.id
                ));
            } else if matches!(rule.origin, RuleOrigin::Base(_)) && grade < Grade::Full {
                // The check above says nothing about the defaults of runtimes.
                let note = "is enforced only partially, or not at all, by a filter";
                self.notes.push(format!("`{}` {note}", rule.id));
            }
        }
        let others = policy
            .profiles
            .iter()
            .filter(|profile| !narrowed.enforcers.contains(profile.enforcer));
        for profile in others {
            self.gap(format!(
                "a profile for {} is in the policy, which the node does not use",
                profile.enforcer.name()
            ));
        }
        let has_content = !policy.rules.is_empty() || !policy.profiles.is_empty();
        let is_ours = narrowed.enforcers != Enforcers::default();
        if !is_ours && has_content && self.gaps.is_empty() {
            let named = policy.enforcers.joined();
            self.gap(format!(
                "nothing of the policy is enforced: the node does not use {named}"
            ));
        }
    }

    /// Returns true if the runtime has nothing to install.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && !self.refuses_foreign
    }

    fn gap(&mut self, gap: String) {
        if !self.gaps.contains(&gap) {
            self.gaps.push(gap);
        }
    }

    fn add(&mut self, rule: &CallRule) {
        let (action, errno) = match rule.action {
            // Another enforcer denies it; without one, the rule is a gap already.
            Action::Watch => return,
            Action::Report => ("SCMP_ACT_LOG", None),
            Action::Refuse(errno) | Action::RefuseAndReport(errno) => {
                ("SCMP_ACT_ERRNO", u32::try_from(errno.0).ok())
            }
            Action::Trap => ("SCMP_ACT_TRAP", None),
            Action::KillThread => ("SCMP_ACT_KILL_THREAD", None),
            Action::KillProcess => ("SCMP_ACT_KILL_PROCESS", None),
        };
        let Some(alternatives) = conditions(&rule.when) else {
            let text = "a runtime cannot take the tests on its arguments";
            return self.gap(format!("`{}` on {}(2): {text}", rule.rule, rule.call));
        };
        let made = alternatives.into_iter().map(|args| LinuxSyscall {
            names: vec![rule.call.name().to_owned()],
            action: action.to_owned(),
            errno_ret: errno.map(|value| OptionalUInt32 { value }),
            args,
        });
        self.rules.extend(made);
    }
}

/// Reads a policy: the text of an ArmorProfile.
///
/// # Errors
///
/// If crate `policy` reports an error, which a profile of this operator's does not have.
pub(crate) fn read(name: &str, text: &str) -> Result<Policy, String> {
    let (policies, diagnostics) = policy::load(name, text);
    if let Some(error) = diagnostics.iter().find(|problem| problem.is_error()) {
        return Err(error.message.clone());
    }
    let count = policies.len();
    <[Policy; 1]>::try_from(policies)
        .map(|[policy]| policy)
        .map_err(|_others| format!("the profile has {count} policies"))
}

/// Tests, all of which must hold, as a list of which one must hold. `None` if libseccomp cannot express them.
fn conditions(tests: &[RegisterTest]) -> Option<Vec<Vec<LinuxSeccompArg>>> {
    let mut all: Vec<Vec<LinuxSeccompArg>> = vec![Vec::new()];
    for test in tests {
        let choices = alternatives(test)?;
        let mut next = Vec::new();
        for before in &all {
            for choice in &choices {
                // A contradiction never holds, and is left out.
                if let Some(joined) = with(before, choice)? {
                    next.push(joined);
                }
            }
        }
        if next.len() > MAX_RULES {
            return None;
        }
        all = next;
    }
    Some(all)
}

/// A condition: `register & mask == value`.
pub(crate) fn masked(index: u32, mask: u64, value: u64) -> LinuxSeccompArg {
    LinuxSeccompArg {
        index,
        value: mask,
        value_two: value,
        op: "SCMP_CMP_MASKED_EQ".to_owned(),
    }
}

fn alternatives(test: &RegisterTest) -> Option<Vec<LinuxSeccompArg>> {
    let index = u32::from(test.arg);
    let all = match test.width {
        TestWidth::Full64 => u64::MAX,
        TestWidth::Low32 => u64::from(u32::MAX),
    };
    let value = test.value & all;
    let plain = |op: &str| {
        let arg = LinuxSeccompArg {
            index,
            value,
            value_two: 0,
            op: op.to_owned(),
        };
        (test.width == TestWidth::Full64).then(|| vec![arg])
    };
    match test.op {
        TestOp::AllBits => Some(vec![masked(index, value, value)]),
        TestOp::NoBit => Some(vec![masked(index, value, 0)]),
        TestOp::Eq => Some(vec![masked(index, all, value)]),
        TestOp::MaskedEq { mask } => Some(vec![masked(index, mask & all, value)]),
        TestOp::AnyBit => Some(bits(value).map(|bit| masked(index, bit, bit)).collect()),
        TestOp::Ne => Some(
            bits(all)
                .map(|bit| masked(index, bit, !value & bit))
                .collect(),
        ),
        TestOp::Ge => plain("SCMP_CMP_GE"),
        TestOp::Le => plain("SCMP_CMP_LE"),
    }
}

/// The bits that are set.
pub(crate) fn bits(value: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS)
        .map(|bit| 1 << bit)
        .filter(move |bit| value & bit != 0)
}

/// Mask and value of a condition that tests bits; `None` for another comparison, and for a value with bits beside the
/// mask, which one library takes as never equal and another ignores.
pub(crate) fn as_masked(arg: &LinuxSeccompArg) -> Option<(u64, u64)> {
    match arg.op.as_str() {
        "SCMP_CMP_MASKED_EQ" => {
            let is_whole = arg.value_two & !arg.value == 0;
            is_whole.then_some((arg.value, arg.value_two))
        }
        "SCMP_CMP_EQ" => Some((u64::MAX, arg.value)),
        _ => None,
    }
}

/// Adds a condition to others. libseccomp takes one condition on an argument: two on the same are joined.
///
/// The outer `None` says that they cannot be joined, the inner one that they contradict each other.
pub(crate) fn with(
    before: &[LinuxSeccompArg],
    more: &LinuxSeccompArg,
) -> Option<Option<Vec<LinuxSeccompArg>>> {
    let mut all = before.to_vec();
    let Some(same) = all.iter_mut().find(|arg| arg.index == more.index) else {
        all.push(more.clone());
        return Some(Some(all));
    };
    if same == more {
        return Some(Some(all));
    }
    let ((mask, value), (more_mask, more_value)) = (as_masked(same)?, as_masked(more)?);
    if (value ^ more_value) & mask & more_mask != 0 {
        return Some(None);
    }
    *same = masked(more.index, mask | more_mask, value | more_value);
    Some(Some(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(enforcer: &str, rules: &str) -> Filter {
        let text = format!(
            "policy:\n  enforcer: {enforcer}\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    \
             hardeningRules: [{rules}]\n"
        );
        Filter::compile("p.yaml", &text, &Kernel::default()).unwrap()
    }

    #[test]
    fn calls_are_denied_with_their_error_and_rings_with_them() {
        let filter = compiled("Seccomp", "disallow-mount");
        let rule = filter.rules.iter().find(|rule| rule.names == ["mount"]);
        let rule = rule.expect("mount is denied");
        assert_eq!(rule.action, "SCMP_ACT_ERRNO");
        assert_eq!(rule.errno_ret, Some(OptionalUInt32 { value: 1 }));
        assert!(rule.args.is_empty());
        assert!(filter.refuses_foreign);
    }

    #[test]
    fn what_a_filter_does_not_enforce_is_a_gap() {
        let gaps = |enforcer, rules| compiled(enforcer, rules).gaps;
        let partial = compiled("Seccomp", "disallow-insmod");
        assert_eq!(partial.gaps, Vec::<String>::new());
        assert!(partial.notes[0].contains("only partially"), "{partial:?}");
        let unnamed = gaps("BPF", "disallow-insmod");
        assert!(unnamed[0].contains("disallow-insmod"), "{unnamed:?}");
        assert_eq!(compiled("BPF", "disallow-insmod").rules, []);
        let files = gaps("BPFSeccomp", "disallow-write-core-pattern");
        assert!(!files.is_empty());
    }

    #[test]
    fn a_policy_of_which_a_filter_enforces_nothing_has_a_gap() {
        for enforcer in ["BPF", "AppArmor"] {
            let text = format!("policy:\n  enforcer: {enforcer}\n  mode: RuntimeDefault\n");
            let filter = Filter::compile("p.yaml", &text, &Kernel::default()).unwrap();
            assert!(!filter.gaps.is_empty(), "{enforcer} {filter:?}");
        }
        let of_seccomp = "policy:\n  enforcer: Seccomp\n  mode: RuntimeDefault\n";
        let filter = Filter::compile("p.yaml", of_seccomp, &Kernel::default()).unwrap();
        assert_eq!(filter.gaps, Vec::<String>::new());
        let says = |rule: &str| filter.notes.iter().any(|note| note.contains(rule));
        assert!(says("runtime-default-files"), "{filter:?}");
    }

    #[test]
    fn a_profile_for_another_enforcer_is_a_gap() {
        let text = "policy:\n  enforcer: AppArmorSeccomp\n  mode: DefenseInDepth\n  defenseInDepth:\n    appArmor:\n      \
                    profileType: Custom\n      customProfile: 'profile x { file, }'\n    seccomp:\n      profileType: Custom\n      \
                    customProfile: '{\"defaultAction\": \"SCMP_ACT_ALLOW\"}'\n";
        let filter = Filter::compile("p.yaml", text, &Kernel::default()).unwrap();
        let named = |gap: &String| gap.contains("AppArmor");
        assert!(filter.gaps.iter().any(named), "{filter:?}");
    }

    #[test]
    fn conditions_on_one_argument_are_joined_or_refused() {
        let one = masked(0, 0b11, 0b01);
        assert_eq!(
            with(std::slice::from_ref(&one), &masked(0, 0b110, 0b100)),
            Some(Some(vec![masked(0, 0b111, 0b101)]))
        );
        assert_eq!(
            with(std::slice::from_ref(&one), &masked(0, 0b10, 0b10)),
            Some(None)
        );
        let ge = LinuxSeccompArg {
            op: "SCMP_CMP_GE".to_owned(),
            ..one.clone()
        };
        assert_eq!(with(&[one], &ge), None);
        let any = RegisterTest::full(2, TestOp::AnyBit, 0b101);
        assert_eq!(
            conditions(&[any]),
            Some(vec![vec![masked(2, 1, 1)], vec![masked(2, 4, 4)]])
        );
    }
}
