//! Policy files with their diagnostics, and the features of the machine that policies are compiled
//! for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use abi::Capabilities;
use diagnostics::exit::Exit;
use diagnostics::text_file;
use policy::compile::{MachineFeatures, NameKind, NarrowedPolicy, OtherName};
use policy::{Code, Diagnostic};

use crate::digest;

/// Returns this host's features with its disks. Without `/proc` no disk is found, and rules about
/// disks report so.
pub fn machine() -> MachineFeatures {
    let table = fs::read_to_string("/proc/partitions").unwrap_or_default();
    MachineFeatures {
        disks: partitions(&table),
        // If a path cannot be watched here, applying the policy is an error.
        watches: true,
        // If the capabilities are unknown, their denials are not reported, and rules about them are
        // graded accordingly.
        held: sys::credential::capabilities(0)
            .ok()
            .map(|sets| sets.permitted),
        is_root: rustix::process::geteuid().is_root(),
        is_elsewhere: false,
        // Known after enforcers have been tried.
        unavailable: Vec::new(),
        // Set for each policy by `with_hooks`.
        missing_hooks: BTreeSet::new(),
        landlock_version: sys::landlock::version().ok(),
        // Set for each policy by `with_other_names`.
        other_names: BTreeMap::new(),
    }
}

/// Returns a policy with the choice of enforcers on this host, whether or not they work here.
pub fn narrowed(policy: &policy::Policy, machine: &MachineFeatures) -> NarrowedPolicy {
    NarrowedPolicy::new(policy, &for_policy(machine, policy))
}

/// Adds what this host's features are for one policy.
pub fn for_policy(machine: &MachineFeatures, policy: &policy::Policy) -> MachineFeatures {
    with_other_names(with_hooks(machine.clone(), policy), policy)
}

/// Adds the hooks that a policy needs and this kernel lacks.
pub(crate) fn with_hooks(machine: MachineFeatures, policy: &policy::Policy) -> MachineFeatures {
    MachineFeatures {
        missing_hooks: enforce::missing_hooks(policy),
        ..machine
    }
}

/// Adds the other names that a policy's files have on this host. If they cannot be determined,
/// every rule reports so.
pub(crate) fn with_other_names(
    machine: MachineFeatures,
    policy: &policy::Policy,
) -> MachineFeatures {
    let other_names = enforce::other_names(policy, &machine).unwrap_or_else(|error| {
        let unknown = OtherName {
            kind: NameKind::Unknown,
            text: format!("other names of its files cannot be looked for: {error}"),
        };
        let rules = policy.rules.iter();
        rules
            .map(|rule| (rule.id.clone(), BTreeSet::from([unknown.clone()])))
            .collect()
    });
    MachineFeatures {
        other_names,
        ..machine
    }
}

/// Returns the rules in the text of a policy that are enforced only partially on this host, for this user or
/// for one without capabilities.
pub fn partial_rules(name: &str, text: &str) -> BTreeSet<String> {
    let (policies, _) = policy::load(name, text);
    let here = machine();
    let mut partial = BTreeSet::new();
    for policy in &policies {
        let here = for_policy(&here, policy);
        let unprivileged = MachineFeatures {
            held: Some(Capabilities::default()),
            is_root: false,
            ..here.clone()
        };
        for machine in [here, unprivileged] {
            partial.extend(NarrowedPolicy::new(policy, &machine).partial_rules());
        }
    }
    partial
}

/// Returns the last of four columns, after two heading lines.
fn partitions(table: &str) -> Vec<String> {
    let lines = table.lines().skip(2);
    lines
        .filter_map(|line| line.split_whitespace().nth(3))
        .map(str::to_owned)
        .collect()
}

/// A policy file with its diagnostics.
#[derive(Debug)]
pub struct Loaded {
    /// Path of the file.
    pub name: String,
    text: String,
    /// Policies of the file; empty if it cannot be read.
    pub policies: Vec<policy::Policy>,
    /// Errors and warnings about the file.
    pub diagnostics: Vec<policy::Diagnostic>,
}

/// Reads a file.
pub fn read(path: &Path) -> Loaded {
    let name = path.display().to_string();
    let text = match text_file::read(path) {
        Ok(text) => text,
        Err(cause) => {
            let problem = policy::load::unreadable(&name, &cause.to_string());
            let help = "name an existing file that this user can read";
            return Loaded {
                diagnostics: vec![problem.with_help(help)],
                name,
                text: String::new(),
                policies: Vec::new(),
            };
        }
    };
    parse(&name, &text)
}

/// Reads a policy from memory.
pub fn parse(name: &str, text: &str) -> Loaded {
    let (policies, diagnostics) = policy::load(name, text);
    Loaded {
        name: name.to_owned(),
        text: text.to_owned(),
        policies,
        diagnostics,
    }
}

/// Adds to a file's diagnostics what its enforcers do not support on a machine. Rules of `accepted` may be enforced only partially.
#[must_use]
pub fn checked(mut loaded: Loaded, accepted: &[String], machine: &MachineFeatures) -> Loaded {
    for policy in &loaded.policies {
        let policy = narrowed(policy, machine);
        loaded.diagnostics.extend(policy.check(accepted));
    }
    loaded
        .diagnostics
        .sort_by_key(|problem| (problem.location.line, problem.location.column));
    loaded
}

impl Loaded {
    /// Returns the text of the file.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the SHA-256 of the file's text in hexadecimal.
    pub(crate) fn digest(&self) -> String {
        digest::sha256(self.text.as_bytes())
    }

    /// Formats the diagnostics, each with the lines of the file that it concerns.
    pub fn render(&self) -> String {
        self.render_if(|_| true)
    }

    /// Formats the selected diagnostics.
    pub fn render_if(&self, is_meant: impl Fn(&policy::Diagnostic) -> bool) -> String {
        let text = (!self.text.is_empty()).then_some(self.text.as_str());
        let meant = self.diagnostics.iter().filter(|problem| is_meant(problem));
        meant.map(|problem| problem.render(text) + "\n").collect()
    }
}

/// Returns the exit code for a policy: an error if it is invalid or cannot be enforced.
pub fn exit<'d>(diagnostics: impl Iterator<Item = &'d Diagnostic>) -> Exit {
    let mut exit = Exit::Ok;
    for problem in diagnostics.filter(|problem| problem.is_error()) {
        match problem.code {
            Code::NoEnforcer | Code::TargetsIgnored => exit = Exit::Unsupported,
            _ => return Exit::BadInput,
        }
    }
    exit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_read_from_the_kernels_table() {
        let table = "major minor  #blocks  name\n\n 254  0  10485760 vda\n 254 1 1048576 vda1\n";
        assert_eq!(partitions(table), ["vda", "vda1"]);
        assert!(partitions("").is_empty());
    }
}
