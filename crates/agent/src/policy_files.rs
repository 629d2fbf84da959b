//! Policy files, what is wrong with them, and the machine that policies are compiled for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use diagnostics::exit::Exit;
use diagnostics::text_file;
use policy::compile::{MachineFeatures, NameKind, OtherName};
use policy::{Code, Diagnostic};

/// The disks of this machine. Without `/proc` there is none to be found, and the rules about disks
/// say so.
pub fn machine() -> MachineFeatures {
    let table = fs::read_to_string("/proc/partitions").unwrap_or_default();
    MachineFeatures {
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
pub fn with_other_names(machine: &MachineFeatures, policy: &policy::Policy) -> MachineFeatures {
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
    MachineFeatures {
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
pub struct Loaded {
    /// Its path.
    pub name: String,
    text: String,
    /// Policies of the file; none if it cannot be read.
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
            let help = "name a file that exists and that this user may read";
            return Loaded {
                diagnostics: vec![problem.with_help(help)],
                name,
                text: String::new(),
                policies: Vec::new(),
            };
        }
    };
    let (policies, diagnostics) = policy::load(&name, &text);
    Loaded {
        name,
        text,
        policies,
        diagnostics,
    }
}

impl Loaded {
    /// Problems as text, each with the lines of the file that it is about.
    pub fn render(&self) -> String {
        self.render_if(|_| true)
    }

    /// Those of the problems that are asked for.
    pub fn render_if(&self, is_meant: impl Fn(&policy::Diagnostic) -> bool) -> String {
        let text = (!self.text.is_empty()).then_some(self.text.as_str());
        let meant = self.diagnostics.iter().filter(|problem| is_meant(problem));
        meant.map(|problem| problem.render(text) + "\n").collect()
    }
}

/// Whether a policy can be used: not if it is wrong, and not if nobody can carry it.
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
