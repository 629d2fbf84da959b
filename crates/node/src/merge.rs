//! A container's own seccomp policy and the denials of a policy as one, which denies what either denies.

use nri::message::{LinuxSeccomp, LinuxSeccompArg, LinuxSyscall};

use crate::filter::{Filter, as_masked, bits, masked, with};

/// Actions that make a call.
const LETS_PASS: [&str; 4] = [
    "SCMP_ACT_ALLOW",
    "SCMP_ACT_LOG",
    "SCMP_ACT_NOTIFY",
    "SCMP_ACT_TRACE",
];
/// Maximum number of rules of one call.
const MAX_RULES: usize = 256;

/// Name of the native architecture.
const NATIVE: &str = match () {
    #[cfg(target_arch = "x86_64")]
    () => "SCMP_ARCH_X86_64",
    #[cfg(target_arch = "aarch64")]
    () => "SCMP_ARCH_AARCH64",
};

/// Joins a filter with a container's own policy.
///
/// A policy that allows by default gets the denials. In one that denies by default, what it allows is narrowed; such a
/// call then fails with the error of that policy.
///
/// # Errors
///
/// If what the container's policy allows cannot be narrowed in the form that runtimes take.
pub(crate) fn merge(filter: &Filter, own: Option<&LinuxSeccomp>) -> Result<LinuxSeccomp, String> {
    let mut merged = own.cloned().unwrap_or_else(|| LinuxSeccomp {
        default_action: "SCMP_ACT_ALLOW".to_owned(),
        ..LinuxSeccomp::default()
    });
    if filter.refuses_foreign {
        merged.architectures = vec![NATIVE.to_owned()];
    }
    let (logged, denials): (Vec<_>, Vec<_>) = strictest(&filter.rules)
        .into_iter()
        .partition(|rule| rule.action == "SCMP_ACT_LOG");
    let mut left = Vec::new();
    for rule in std::mem::take(&mut merged.syscalls) {
        left.extend(narrowed(&rule, &denials)?);
    }
    if LETS_PASS.contains(&merged.default_action.as_str()) {
        merged.syscalls = [denials, logged, left].concat();
        return Ok(merged);
    }
    merged.syscalls = left;
    // Denials with tests are the default action of this policy: what it allows excludes them.
    let whole = denials.into_iter().filter(|rule| rule.args.is_empty());
    merged.syscalls.extend(whole);
    Ok(merged)
}

/// Leaves out rules with tests on calls that a rule without tests denies: libseccomp takes one or the other.
fn strictest(rules: &[LinuxSyscall]) -> Vec<LinuxSyscall> {
    let denies = |rule: &&LinuxSyscall| rule.args.is_empty() && rule.action != "SCMP_ACT_LOG";
    let whole: Vec<Vec<String>> = rules
        .iter()
        .filter(denies)
        .map(|rule| rule.names.clone())
        .collect();
    let mut kept: Vec<LinuxSyscall> = Vec::new();
    for rule in rules {
        let is_covered = whole.contains(&rule.names);
        let is_first = !kept.iter().any(|other| other.names == rule.names);
        if !is_covered && !kept.contains(rule) || is_covered && is_first && denies(&rule) {
            kept.push(rule.clone());
        }
    }
    kept
}

/// What is left of a container's rule beside denials: one rule for its calls without any, and for each other call as
/// many as its tests need.
fn narrowed(rule: &LinuxSyscall, denials: &[LinuxSyscall]) -> Result<Vec<LinuxSyscall>, String> {
    if !LETS_PASS.contains(&rule.action.as_str()) {
        return Ok(vec![rule.clone()]);
    }
    let on = |name: &str| {
        let about: Vec<_> = denials
            .iter()
            .filter(|one| one.names.iter().any(|n| n == name))
            .collect();
        about
    };
    let (free, touched): (Vec<_>, Vec<_>) = rule
        .names
        .iter()
        .cloned()
        .partition(|name| on(name).is_empty());
    let mut all = Vec::new();
    if !free.is_empty() {
        all.push(LinuxSyscall {
            names: free,
            ..rule.clone()
        });
    }
    for name in touched {
        if on(&name).iter().any(|denial| denial.args.is_empty()) {
            continue;
        }
        let denied: Vec<&[LinuxSeccompArg]> =
            on(&name).iter().map(|denial| &denial.args[..]).collect();
        let left = without(&rule.args, &denied).ok_or_else(|| {
            format!("what the container's own filter lets {name}(2) do cannot be narrowed")
        })?;
        all.extend(left.into_iter().map(|args| LinuxSyscall {
            names: vec![name.clone()],
            args,
            ..rule.clone()
        }));
    }
    Ok(all)
}

/// The tests `args`, and not any of `denied`, as a list of which one must hold.
fn without(
    args: &[LinuxSeccompArg],
    denied: &[&[LinuxSeccompArg]],
) -> Option<Vec<Vec<LinuxSeccompArg>>> {
    // A runtime takes tests of one argument for alternatives, of which one cannot be narrowed alone.
    let mut indexes: Vec<u32> = args.iter().map(|arg| arg.index).collect();
    indexes.sort_unstable();
    if indexes.windows(2).any(|two| two[0] == two[1]) {
        return None;
    }
    let mut all = vec![Vec::new()];
    for arg in args {
        let is_denied = |tests: &&[LinuxSeccompArg]| tests.iter().any(|t| t.index == arg.index);
        let parts = match denied.iter().any(is_denied) {
            true => blocks(arg)?,
            false => vec![arg.clone()],
        };
        let with_each = |before: &Vec<_>| {
            let before = before.clone();
            let parts = parts.clone().into_iter();
            parts.map(move |part| [before.clone(), vec![part]].concat())
        };
        all = all.iter().flat_map(with_each).collect();
        if all.len() > MAX_RULES {
            return None;
        }
    }
    if all
        .iter()
        .all(|one| denied.iter().all(|tests| excludes(one, tests)))
    {
        return Some(vec![args.to_vec()]);
    }
    for tests in denied {
        all = without_one(&all, tests)?;
    }
    Some(all)
}

/// The alternatives `all`, and not all of `tests`.
fn without_one(
    all: &[Vec<LinuxSeccompArg>],
    tests: &[LinuxSeccompArg],
) -> Option<Vec<Vec<LinuxSeccompArg>>> {
    let mut choices = Vec::new();
    for test in tests {
        choices.extend(negated(test)?);
    }
    let (mut next, touched): (Vec<_>, Vec<_>) =
        all.iter().cloned().partition(|one| excludes(one, tests));
    for before in &touched {
        for choice in &choices {
            if let Some(joined) = with(before, choice)?
                && !next.iter().any(|other| implies(&joined, other))
            {
                next.push(joined);
            }
        }
        if next.len() > MAX_RULES {
            return None;
        }
    }
    Some(next)
}

/// True if no call passes both, as far as bits tell.
fn excludes(args: &[LinuxSeccompArg], tests: &[LinuxSeccompArg]) -> bool {
    let mut tests = tests.iter();
    tests.any(|test| matches!(with(args, test), Some(None)))
}

/// True if every call that passes `args` passes `others`, as far as bits tell.
fn implies(args: &[LinuxSeccompArg], others: &[LinuxSeccompArg]) -> bool {
    let holds = |other: &LinuxSeccompArg| {
        let same = args.iter().find(|arg| arg.index == other.index);
        same.is_some_and(|arg| match (as_masked(arg), as_masked(other)) {
            (Some((mask, value)), Some((other_mask, other_value))) => {
                mask & other_mask == other_mask && (value ^ other_value) & other_mask == 0
            }
            _ => arg == other,
        })
    };
    others.iter().all(holds)
}

/// A test as tests of bits, of which one must hold: a range of numbers is one for each bit at which it can be left.
fn blocks(arg: &LinuxSeccompArg) -> Option<Vec<LinuxSeccompArg>> {
    if as_masked(arg).is_some() {
        return Some(vec![arg.clone()]);
    }
    let value = arg.value;
    let whole = masked(arg.index, u64::MAX, value);
    // The first bit that differs, from the highest one on, decides which number is larger.
    let above_bit = |bit: u64| !(bit | (bit - 1));
    let first_differs = |bit: u64| {
        masked(
            arg.index,
            above_bit(bit) | bit,
            (value & above_bit(bit)) | (!value & bit),
        )
    };
    let below = || bits(value).map(first_differs).collect::<Vec<_>>();
    let above = || bits(!value).map(first_differs).collect::<Vec<_>>();
    match arg.op.as_str() {
        "SCMP_CMP_LT" => Some(below()),
        "SCMP_CMP_GT" => Some(above()),
        "SCMP_CMP_LE" => Some([below(), vec![whole]].concat()),
        "SCMP_CMP_GE" => Some([above(), vec![whole]].concat()),
        "SCMP_CMP_NE" => negated(&whole),
        _ => None,
    }
}

/// The opposite of a test, as a list of which one must hold.
fn negated(test: &LinuxSeccompArg) -> Option<Vec<LinuxSeccompArg>> {
    if let Some((mask, value)) = as_masked(test) {
        let differs = |bit| masked(test.index, bit, !value & bit);
        return Some(bits(mask).map(differs).collect());
    }
    let op = match test.op.as_str() {
        "SCMP_CMP_GE" => "SCMP_CMP_LT",
        "SCMP_CMP_LE" => "SCMP_CMP_GT",
        _ => return None,
    };
    Some(vec![LinuxSeccompArg {
        op: op.to_owned(),
        ..test.clone()
    }])
}

/// Compares what a runtime keeps of a policy. It may leave out the number of the default error, which weakens nothing.
pub(crate) fn is_same(one: &LinuxSeccomp, other: &LinuxSeccomp) -> bool {
    one.default_action == other.default_action
        && one.architectures == other.architectures
        && one.syscalls == other.syscalls
}

#[cfg(test)]
mod tests {
    use nri::message::OptionalUInt32;
    use proptest::prelude::*;

    use super::*;

    fn rule(name: &str, action: &str, args: Vec<LinuxSeccompArg>) -> LinuxSyscall {
        LinuxSyscall {
            names: vec![name.to_owned()],
            action: action.to_owned(),
            errno_ret: (action == "SCMP_ACT_ERRNO").then_some(OptionalUInt32 { value: 1 }),
            args,
        }
    }

    fn filter(rules: Vec<LinuxSyscall>) -> Filter {
        Filter {
            rules,
            ..Filter::default()
        }
    }

    fn holds(args: &[LinuxSeccompArg], values: [u64; 2]) -> bool {
        args.iter().all(|arg| {
            let value = values[usize::try_from(arg.index).unwrap()];
            match (arg.op.as_str(), as_masked(arg)) {
                (_, Some((mask, expected))) => value & mask == expected,
                ("SCMP_CMP_LT", _) => value < arg.value,
                ("SCMP_CMP_LE", _) => value <= arg.value,
                ("SCMP_CMP_GT", _) => value > arg.value,
                ("SCMP_CMP_GE", _) => value >= arg.value,
                ("SCMP_CMP_NE", _) => value != arg.value,
                (other, None) => panic!("{other} is no test"),
            }
        })
    }

    /// The call passes: a rule with tests goes before one without, and denials before what lets pass.
    fn passes(policy: &LinuxSeccomp, values: [u64; 2]) -> bool {
        let hit = |rule: &&LinuxSyscall| rule.names[0] == "clone" && holds(&rule.args, values);
        let mut hits = policy.syscalls.iter().filter(hit).peekable();
        match hits.peek() {
            None => LETS_PASS.contains(&policy.default_action.as_str()),
            Some(_) => hits.all(|rule| LETS_PASS.contains(&rule.action.as_str())),
        }
    }

    fn arg() -> impl Strategy<Value = LinuxSeccompArg> {
        (0_u32..2, 0_u64..8, 0_u64..8)
            .prop_map(|(index, mask, value)| masked(index, mask, value & mask))
    }

    /// A test of a runtime's own policy: of bits, or a comparison.
    fn own_arg() -> impl Strategy<Value = LinuxSeccompArg> {
        let ops = ["LT", "LE", "GT", "GE", "NE", "MASKED_EQ"];
        (arg(), prop::sample::select(ops.to_vec())).prop_map(|(arg, op)| LinuxSeccompArg {
            op: format!("SCMP_CMP_{op}"),
            ..arg
        })
    }

    proptest! {
        #[test]
        fn a_call_passes_if_both_let_it_pass(
            denials in prop::collection::vec(prop::collection::vec(arg(), 1..3), 0..4),
            allowed in prop::collection::vec(prop::collection::vec(own_arg(), 0..2), 0..3),
            values in [0_u64..8, 0_u64..8],
        ) {
            let has_one_each = |args: &Vec<LinuxSeccompArg>| args.len() < 2 || args[0].index != args[1].index;
            prop_assume!(denials.iter().all(has_one_each));
            let made = |args: &Vec<_>, action| rule("clone", action, args.clone());
            let own = LinuxSeccomp {
                default_action: "SCMP_ACT_ERRNO".to_owned(),
                syscalls: allowed.iter().map(|args| made(args, "SCMP_ACT_ALLOW")).collect(),
                ..LinuxSeccomp::default()
            };
            let filter = filter(denials.iter().map(|args| made(args, "SCMP_ACT_ERRNO")).collect());
            let is_denied = denials.iter().any(|args| holds(args, values));
            let merged = merge(&filter, Some(&own));
            // Comparisons beside several denials may need more rules than a runtime gets: such a container is refused.
            prop_assert!(merged.is_ok() || allowed.iter().flatten().any(|arg| as_masked(arg).is_none()));
            if let Ok(merged) = merged {
                prop_assert_eq!(passes(&merged, values), passes(&own, values) && !is_denied);
                // libseccomp takes one test of an argument.
                prop_assert!(merged.syscalls.iter().all(|rule| has_one_each(&rule.args)));
            }
            let merged = merge(&filter, None).unwrap();
            prop_assert_eq!(passes(&merged, values), !is_denied);
        }
    }

    #[test]
    fn what_the_container_may_not_do_stays_denied() {
        let own = LinuxSeccomp {
            default_action: "SCMP_ACT_ERRNO".to_owned(),
            architectures: vec!["SCMP_ARCH_X86".to_owned()],
            syscalls: vec![LinuxSyscall {
                names: vec!["read".to_owned(), "mount".to_owned()],
                ..rule("", "SCMP_ACT_ALLOW", Vec::new())
            }],
            ..LinuxSeccomp::default()
        };
        let mut denies = filter(vec![rule("mount", "SCMP_ACT_ERRNO", Vec::new())]);
        denies.refuses_foreign = true;
        let merged = merge(&denies, Some(&own)).unwrap();
        assert_eq!(merged.default_action, "SCMP_ACT_ERRNO");
        assert_eq!(merged.architectures, [NATIVE]);
        let expected = [
            rule("read", "SCMP_ACT_ALLOW", Vec::new()),
            rule("mount", "SCMP_ACT_ERRNO", Vec::new()),
        ];
        assert_eq!(merged.syscalls, expected);
    }

    /// What containerd's default policy lets socket(2) do, before 2.4 and since, beside the denial of AF_VSOCK.
    #[test]
    fn the_default_policies_of_runtimes_are_narrowed_by_a_denied_kind_of_socket() {
        let low = masked(0, u64::from(u32::MAX), 40);
        let denies = filter(vec![rule("socket", "SCMP_ACT_ERRNO", vec![low])]);
        let merged = |op: &str, value: u64| {
            let arg = LinuxSeccompArg {
                index: 0,
                value,
                value_two: 0,
                op: op.to_owned(),
            };
            let own = LinuxSeccomp {
                default_action: "SCMP_ACT_ERRNO".to_owned(),
                syscalls: vec![rule("socket", "SCMP_ACT_ALLOW", vec![arg])],
                ..LinuxSeccomp::default()
            };
            (merge(&denies, Some(&own)).unwrap().syscalls, own.syscalls)
        };
        for (op, value) in [("SCMP_CMP_LT", 38), ("SCMP_CMP_EQ", 39)] {
            let (merged, own) = merged(op, value);
            assert_eq!(merged, own, "{op}");
        }
        let (any_other, _) = merged("SCMP_CMP_NE", 40);
        assert_eq!(any_other.len(), 32);
        let passes = |value| any_other.iter().any(|rule| holds(&rule.args, [value, 0]));
        for value in [1, 2, 39, 41, 1 << 40] {
            assert!(passes(value), "{value}");
        }
        for value in [40, (1 << 40) | 40] {
            assert!(!passes(value), "{value}");
        }
    }

    #[test]
    fn a_test_that_cannot_be_narrowed_is_an_error() {
        let own = LinuxSeccomp {
            default_action: "SCMP_ACT_ERRNO".to_owned(),
            syscalls: vec![rule("clone", "SCMP_ACT_ALLOW", vec![masked(0, 1, 1)])],
            ..LinuxSeccomp::default()
        };
        let from = LinuxSeccompArg {
            index: 0,
            value: 5,
            value_two: 0,
            op: "SCMP_CMP_GE".to_owned(),
        };
        let denies = filter(vec![rule("clone", "SCMP_ACT_ERRNO", vec![from])]);
        let error = merge(&denies, Some(&own)).unwrap_err();
        assert!(error.contains("clone(2)"), "{error}");
    }

    #[test]
    fn two_tests_of_one_argument_are_an_error_because_a_runtime_takes_either() {
        let own = LinuxSeccomp {
            default_action: "SCMP_ACT_ERRNO".to_owned(),
            syscalls: vec![rule(
                "clone",
                "SCMP_ACT_ALLOW",
                vec![masked(0, 1, 0), masked(0, 2, 0)],
            )],
            ..LinuxSeccomp::default()
        };
        let denies = filter(vec![rule("clone", "SCMP_ACT_ERRNO", vec![masked(0, 1, 1)])]);
        let error = merge(&denies, Some(&own)).unwrap_err();
        assert!(error.contains("clone(2)"), "{error}");
    }
}
