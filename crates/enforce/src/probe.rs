//! What works here, found out by using it.

use abi::Capabilities;
use capture::probe::{Finding, Support, in_child, landlock, seccomp_filter};
use policy::EnforcerKind;
use policy::compile::caps::Profile;
use sys::credential;

use crate::{apparmor, bpf, caps};

/// Whether an enforcer works here. The calling process must have one thread, because this forks.
#[must_use]
pub fn probe(enforcer: EnforcerKind) -> Support {
    match enforcer {
        EnforcerKind::Seccomp => seccomp_filter(),
        EnforcerKind::Landlock => landlock(),
        EnforcerKind::Caps => capabilities(),
        EnforcerKind::AppArmor => apparmor::probe(),
        EnforcerKind::Bpf => bpf::probe(),
    }
}

/// A row for each enforcer.
#[must_use]
pub fn all() -> Vec<Finding> {
    let finding = |(enforcer, name, purpose)| Finding {
        name,
        purpose,
        notify_needs_it: false,
        support: probe(enforcer),
    };
    [
        (
            EnforcerKind::Seccomp,
            "enforce-seccomp",
            "policies: denies system calls by number and arguments",
        ),
        (
            EnforcerKind::Landlock,
            "enforce-landlock",
            "policies: denies files, mounts and processes outside",
        ),
        (
            EnforcerKind::Caps,
            "enforce-caps",
            "policies: drops capabilities",
        ),
        (
            EnforcerKind::AppArmor,
            "enforce-apparmor",
            "policies: denies by a profile of AppArmor",
        ),
        (
            EnforcerKind::Bpf,
            "enforce-bpf",
            "policies: denies at the hooks of the security modules",
        ),
    ]
    .map(finding)
    .into()
}

/// A child drops everything and looks whether it has anything left.
fn capabilities() -> Support {
    in_child(|| {
        let before = credential::capabilities(0).map(|sets| sets.permitted);
        let dropped = caps::drop(Profile {
            dropped: Capabilities::ALL,
            no_new_privs: true,
        });
        let after = credential::capabilities(0).map(|sets| sets.permitted);
        match (before, dropped, after) {
            (Ok(before), Ok(()), Ok(after)) if after.0 == 0 => match before.0.count_ones() {
                0 => Support::yes("there are none, and no program can get one"),
                count => Support::yes(format!("a child dropped all {count} that it had")),
            },
            (_, Err(error), _) | (Err(error), ..) | (.., Err(error)) => Support::no(
                error.to_string(),
                "allow capset(2), capget(2) and prctl(2) to this program",
            ),
            (.., Ok(after)) => Support::no(
                format!("a child dropped all and has {after} still"),
                "report this as a defect",
            ),
        }
    })
}
