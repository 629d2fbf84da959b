//! `tollgate policy`.

mod advise;
pub(crate) mod args;
mod check;
mod explain;
mod list;
mod loaded;
mod profiles;
mod replace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use ::policy::compile::{Machine, NameKind, OtherName};

use self::args::Policy;
pub(crate) use self::check::exit;
use crate::failure::Outcome;
use crate::text_file;

/// Runs the verb.
pub(crate) fn execute(verb: &Policy) -> Outcome {
    match verb {
        Policy::List(args) => list::execute(args),
        Policy::Check(args) => check::execute(args),
        Policy::Explain(args) => explain::execute(args),
        Policy::Advise(args) => advise::execute(args),
        Policy::Loaded(args) => loaded::execute(args),
        Policy::Replace(args) => replace::execute(args),
    }
}

/// The disks of this machine. Without `/proc` there is none to be found, and the rules about disks
/// say so.
pub(crate) fn machine() -> Machine {
    let table = fs::read_to_string("/proc/partitions").unwrap_or_default();
    Machine {
        disks: partitions(&table),
        // What cannot be watched here is an error where a policy is put in force.
        watches: true,
        // Where nobody knows them their denials are not told, and rules about them graded so.
        held: sys::credential::capabilities(0)
            .ok()
            .map(|sets| sets.permitted),
        is_root: rustix::process::geteuid().is_root(),
        // Known where they have been tried.
        unavailable: Vec::new(),
        // Known for each policy: `with_other_names`.
        other_names: BTreeMap::new(),
    }
}

/// A machine with the other names that the files of a policy have on it. If they cannot be found out, that
/// is said of every rule.
pub(crate) fn with_other_names(machine: &Machine, policy: &::policy::Policy) -> Machine {
    let other_names = enforce::other_names(policy, machine).unwrap_or_else(|error| {
        let unknown = OtherName {
            kind: NameKind::Unknown,
            text: format!("other names of its files cannot be looked for: {error}"),
        };
        let rules = policy.rules.iter();
        rules
            .map(|rule| (rule.id.clone(), BTreeSet::from([unknown.clone()])))
            .collect()
    });
    Machine {
        other_names,
        ..machine.clone()
    }
}

/// The last of four columns; the first two lines are a heading.
fn partitions(table: &str) -> Vec<String> {
    let lines = table.lines().skip(2);
    lines
        .filter_map(|line| line.split_whitespace().nth(3))
        .map(str::to_owned)
        .collect()
}

/// A policy file and everything that is wrong with it.
#[derive(Debug)]
pub(crate) struct Loaded {
    name: String,
    text: String,
    pub(crate) policies: Vec<::policy::Policy>,
    pub(crate) diagnostics: Vec<::policy::Diagnostic>,
}

/// Reads a file, and checks what its enforcers carry.
fn load(path: &Path, accepted: &[String], machine: &Machine) -> Loaded {
    let mut loaded = read(path);
    for policy in &loaded.policies {
        let machine = with_other_names(machine, policy);
        let problems = ::policy::compile::check(policy, accepted, &machine);
        loaded.diagnostics.extend(problems);
    }
    loaded
        .diagnostics
        .sort_by_key(|problem| (problem.location.line, problem.location.column));
    loaded
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Loaded {
    let name = path.display().to_string();
    let text = match text_file::read(path) {
        Ok(text) => text,
        Err(cause) => {
            let problem = ::policy::load::unreadable(&name, &cause.to_string());
            let help = "name a file that exists and that this user may read";
            return Loaded {
                diagnostics: vec![problem.with_help(help)],
                name,
                text: String::new(),
                policies: Vec::new(),
            };
        }
    };
    let (policies, diagnostics) = ::policy::load(&name, &text);
    Loaded {
        name,
        text,
        policies,
        diagnostics,
    }
}

impl Loaded {
    pub(crate) fn render(&self) -> String {
        self.render_if(|_| true)
    }

    /// Those of the problems that are asked for.
    pub(crate) fn render_if(&self, is_meant: impl Fn(&::policy::Diagnostic) -> bool) -> String {
        let text = (!self.text.is_empty()).then_some(self.text.as_str());
        let meant = self.diagnostics.iter().filter(|problem| is_meant(problem));
        meant.map(|problem| problem.render(text) + "\n").collect()
    }
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
