//! Test that every system call of the table is classified, and that compiled filters deny the calls of their
//! class.

use std::collections::{BTreeMap, BTreeSet};

use abi::Syscall;

use super::tests::{of_builtins, policy};
use super::*;
use crate::operation::Operation;

/// The calls of each class, and the unclassified calls.
struct Classes {
    of: BTreeMap<String, BTreeSet<Syscall>>,
    none: Vec<Syscall>,
}

fn classes() -> Classes {
    let mut found = Classes {
        of: BTreeMap::new(),
        none: Vec::new(),
    };
    let mut class: Option<String> = None;
    for line in include_str!("../../data/classes.txt").lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with("none:") {
            class = None;
            continue;
        }
        if let Some(name) = line.strip_prefix("class ") {
            class = Some(name.to_owned());
            continue;
        }
        for name in line.split(' ') {
            let call =
                Syscall::from_name(name).unwrap_or_else(|| panic!("no such system call: `{name}`"));
            match &class {
                Some(class) => assert!(found.of.entry(class.clone()).or_default().insert(call)),
                None => found.none.push(call),
            }
        }
    }
    found
}

/// The native calls that the filter of a policy refuses, for all arguments or for some.
fn refused(profile: &seccomp::Profile) -> BTreeSet<Syscall> {
    let denied = profile.rules.iter().filter(|rule| rule.action.denies());
    let calls = denied.map(|rule| rule.call);
    calls
        .filter(|call| !abi::RING_CALLS.contains(call))
        .collect()
}

#[test]
fn every_call_of_the_table_is_in_a_class_or_in_none() {
    let Classes { of, none } = classes();
    let classed: BTreeSet<Syscall> = of.values().flatten().copied().collect();
    for call in Syscall::all() {
        let base = call.base();
        let times = none.iter().filter(|other| **other == base).count();
        let is_classed = classed.contains(&base);
        assert_eq!(
            times + usize::from(is_classed),
            1,
            "{call}: say what it does in classes.txt"
        );
    }
}

#[test]
fn an_operation_names_every_call_of_its_class_and_a_filter_refuses_them() {
    let classes = classes().of;
    for operation in Operation::all() {
        let own: BTreeSet<Syscall> = operation.calls.iter().map(|entry| entry.call).collect();
        assert_eq!(own, classes[&operation.name], "{}", operation.name);
    }
    for (rule, class) in [
        ("disallow-mount", "mount"),
        ("disallow-umount", "umount"),
        ("disallow-create-user-ns", "user-namespace"),
        ("disallow-insmod", "kernel-code"),
        ("disallow-load-all-bpf-prog", "bpf-program"),
        ("disallow-load-bpf-via-setsockopt", "socket-filter"),
        ("disallow-userfaultfd-creation", "userfaultfd"),
        ("dirty-pipe-mitigation", "splice"),
        ("mitigate-overlayfs-leak", "list-mounts"),
        ("disable-network", "socket"),
        ("disable-tcp", "socket"),
        ("copy-fail-mitigation", "socket"),
        ("disable-chmod-x-bit", "mode"),
        ("disable-chmod-s-bit", "mode"),
    ] {
        let profile = seccomp::Profile::compile(&of_builtins("Seccomp", &[rule]));
        assert_eq!(refused(&profile), classes[class], "{rule}");
    }
}

#[test]
fn a_rule_on_tracing_refuses_every_call_that_looks_into_processes() {
    let rules =
        "    bpfRawRules: {ptrace: {qualifiers: [deny], strictMode: true, permissions: [all]}}\n";
    let profile = seccomp::Profile::compile(&policy("Seccomp", rules));
    assert_eq!(refused(&profile), classes().of["trace"]);
}

/// The grade of an operation depends on whether an enforcer denies at its hooks: one more call that passes
/// none of the hooks, or one hook less, makes the grade partial.
#[test]
fn grades_of_operations_follow_from_hooks() {
    let mount = Operation::find("mount").unwrap();
    let all = mount.coverage(|_| true);
    assert_eq!((all.calls.len(), all.gaps.len()), (mount.calls.len(), 0));
    let none = mount.coverage(|_| false);
    assert!(none.calls.is_empty());
    let ways = none.gaps.concat();
    for entry in &mount.calls {
        assert!(ways.contains(entry.call.name()), "{ways}");
    }
    let grade = |enforcer, rule: &str| {
        let machine = MachineFeatures::default();
        assess_builtin(builtin::find(rule).unwrap(), enforcer, &machine)
    };
    let landlock = grade(EnforcerKind::Landlock, "disallow-mount");
    assert_eq!(landlock.grade, Grade::Partial);
    assert!(
        landlock.notes[0].contains("mount_setattr(2)"),
        "{:?}",
        landlock.notes
    );
    for enforcer in [EnforcerKind::Seccomp, EnforcerKind::Caps, EnforcerKind::Bpf] {
        assert_eq!(
            grade(enforcer, "disallow-mount").grade,
            Grade::Full,
            "{enforcer}"
        );
    }
    for enforcer in [
        EnforcerKind::Seccomp,
        EnforcerKind::Caps,
        EnforcerKind::AppArmor,
    ] {
        let found = grade(enforcer, "disallow-insmod");
        assert_eq!(found.grade, Grade::Partial, "{enforcer}");
        assert!(
            found.notes.concat().contains("loads modules on demand"),
            "{enforcer}"
        );
    }
    assert_eq!(
        grade(EnforcerKind::Bpf, "disallow-insmod").grade,
        Grade::Full
    );
}
