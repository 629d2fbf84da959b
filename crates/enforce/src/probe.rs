//! What works here, found out by using it.

use abi::Capabilities;
use policy::Enforcer;
use policy::compile::caps::Profile;
use probe::{Finding, Support, in_child, landlock, seccomp_filter};
use sys::credential;

use crate::{apparmor, bpf, caps};

/// Whether an enforcer works here. The calling process must have one thread, because this forks.
#[must_use]
pub fn probe(enforcer: Enforcer) -> Support {
    match enforcer {
        Enforcer::Seccomp => seccomp_filter(),
        Enforcer::Landlock => landlock(),
        Enforcer::Caps => capabilities(),
        Enforcer::AppArmor => apparmor::probe(),
        Enforcer::Bpf => bpf::probe(),
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
            Enforcer::Seccomp,
            "enforce-seccomp",
            "policies: denies system calls by number and arguments",
        ),
        (
            Enforcer::Landlock,
            "enforce-landlock",
            "policies: denies files, mounts and processes outside",
        ),
        (
            Enforcer::Caps,
            "enforce-caps",
            "policies: drops capabilities",
        ),
        (
            Enforcer::AppArmor,
            "enforce-apparmor",
            "policies: denies by a profile of AppArmor",
        ),
        (
            Enforcer::Bpf,
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
                0 => Support::yes("this process has none, and programs that it executes get none"),
                count => Support::yes(format!(
                    "works: a child process dropped all {count} capabilities"
                )),
            },
            (_, Err(error), _) | (Err(error), ..) | (.., Err(error)) => Support::no(
                error.to_string(),
                "allow capset(2), capget(2) and prctl(2) to this program",
            ),
            (.., Ok(after)) => Support::no(
                format!("a child process dropped all capabilities and still has {after}"),
                "report this as a defect",
            ),
        }
    })
}
