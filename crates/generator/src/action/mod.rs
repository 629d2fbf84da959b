//! Attacks to play: what a rule is about, done for real and undone.
//!
//! Each action is one file below `syscall/` or `helper/` and one row of [`ACTIONS`]. Names are those
//! of Falco's event generator where it has the action, so that its users find theirs.
//!
//! An action is played by a process of its own (`PROGRAM generate perform NAME ...`, see
//! [`perform`]), which first leaves what it must not change: folders of the system are layers that
//! vanish with the process, addresses belong to a network without a way out. It tells what came of
//! it in one line of JSON, [`Outcome`]; an action that failed has not been played.

mod address;
mod helper;
mod home;
mod isolate;
mod netlink;
mod passwd;
mod perform;
mod player;
mod scene;
mod scratch;
mod surroundings;
mod syscall;
mod work;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use regex::Regex;
use serde::{Deserialize, Serialize};
use workload::Error;

pub(crate) use isolate::mount;
pub use perform::{PerformOptions, perform};
pub use player::{Player, PlayerOptions};
pub use scene::ActionEnvironment;
use scene::ClaimedPath;
pub use scratch::{MARK, Scratch, SweepOptions, sweep};
pub use surroundings::in_container;
pub use work::{ActionCounts, RoundOrder, RoundResult, WorkOptions, work};

/// The table.
pub use registry::ACTIONS;

mod registry {
    use super::{Action, helper, syscall};

    const COUNT: usize = helper::ACTIONS.len() + syscall::ACTIONS.len();

    /// All actions, helpers first, each group in the order of names.
    pub static ACTIONS: [&Action; COUNT] = {
        let mut all = [helper::ACTIONS[0]; COUNT];
        let mut at = 0;
        while at < COUNT {
            all[at] = if at < helper::ACTIONS.len() {
                helper::ACTIONS[at]
            } else {
                syscall::ACTIONS[at - helper::ACTIONS.len()]
            };
            at += 1;
        }
        all
    };
}

/// Something that a watcher should notice.
#[derive(Debug)]
pub struct Action {
    /// `syscall.Name` or `helper.Name`.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// The rule it is for, as Falco's rule files call it. Helpers have none.
    pub rule: Option<&'static str>,
    /// Other names under which rule files know the deed.
    pub also: &'static [&'static str],
    /// Whether it is played without `--all`: its rule is among those that Falco loads by default.
    pub enabled: bool,
    /// Where it makes sense.
    pub place: ActionContext,
    /// What it cannot do without.
    pub needs: &'static [Requirement],
    /// What it changes outside its own folder.
    pub touches: SideEffects,
    play: fn(&ActionEnvironment) -> Result<(), Stop>,
}

/// Where an action makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionContext {
    /// Everywhere.
    Anywhere,
    /// Inside a container: its rule asks for one.
    Container,
    /// Outside: its rule asks for that.
    Host,
}

/// What an action cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// User id 0.
    Root,
    /// A file that can be read.
    Readable(&'static str),
    /// A program, found in `PATH`.
    Program(&'static str),
    /// A capability, by its kernel name.
    Capability(&'static str),
    /// The absence of a capability.
    NoCapability(&'static str),
    /// An address that answers to nobody else.
    Address(&'static str),
}

/// What an action changes outside its own folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideEffects {
    /// Nothing.
    Nothing,
    /// Files in folders for everybody, which it removes again. Layers where possible.
    Shared(&'static [&'static str]),
    /// Files in folders of the system: layers, or nothing without `--unsafe`.
    System(&'static [&'static str]),
    /// The table of mounts, its own or nothing.
    Mounts,
}

/// Why an action was not played to its end.
#[derive(Debug)]
pub enum Stop {
    /// It cannot be played here.
    Skipped(String),
    /// It went wrong.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "outcome")]
pub enum Outcome {
    /// It was played.
    Done,
    /// It was not, and why.
    Skipped {
        /// Why.
        reason: String,
    },
    /// It was tried and went wrong.
    Failed {
        /// How.
        error: String,
    },
}

impl Outcome {
    pub(crate) fn of(result: Result<(), Stop>) -> Self {
        match result {
            Ok(()) => Outcome::Done,
            Err(Stop::Skipped(reason)) => Outcome::Skipped { reason },
            Err(Stop::Failed(error)) => Outcome::Failed {
                error: error.chain(),
            },
        }
    }
}

impl Action {
    const fn new(
        name: &'static str,
        summary: &'static str,
        play: fn(&ActionEnvironment) -> Result<(), Stop>,
    ) -> Self {
        Self {
            name,
            summary,
            rule: None,
            also: &[],
            enabled: true,
            place: ActionContext::Anywhere,
            needs: &[],
            touches: SideEffects::Nothing,
            play,
        }
    }

    /// For a rule that Falco loads by default.
    const fn rule(self, rule: &'static str) -> Self {
        Self {
            rule: Some(rule),
            ..self
        }
    }

    /// For a rule that users have to ask Falco for.
    const fn optional_rule(self, rule: &'static str) -> Self {
        Self {
            rule: Some(rule),
            enabled: false,
            ..self
        }
    }

    const fn also(self, rules: &'static [&'static str]) -> Self {
        Self {
            also: rules,
            ..self
        }
    }

    const fn inside(self) -> Self {
        Self {
            place: ActionContext::Container,
            ..self
        }
    }

    const fn outside(self) -> Self {
        Self {
            place: ActionContext::Host,
            ..self
        }
    }

    const fn needs(self, needs: &'static [Requirement]) -> Self {
        Self { needs, ..self }
    }

    const fn touches(self, touches: SideEffects) -> Self {
        Self { touches, ..self }
    }

    /// Whether an alert of this rule is about this action. Rule names that differ in case, spaces and
    /// marks only are the same, as the event generator of Falco has it.
    #[must_use]
    pub fn is_for(&self, rule: &str) -> bool {
        let last = self.name.rsplit('.').next().unwrap_or(self.name);
        self.rule == Some(rule)
            || self.also.contains(&rule)
            || letters(rule).eq_ignore_ascii_case(last)
    }

    /// What it leaves behind and for how long, in a line.
    #[must_use]
    pub fn changes(&self) -> String {
        match self.touches {
            SideEffects::Nothing => "its own folder below the temporary folder, removed".to_owned(),
            SideEffects::Shared(folders) => format!(
                "a layer over {}, or files there that it removes",
                folders.join(" ")
            ),
            SideEffects::System(folders) => format!(
                "a layer over {}; the folder itself only with --unsafe, and then what it adds is removed",
                folders.join(" ")
            ),
            SideEffects::Mounts => "its own table of mounts".to_owned(),
        }
    }

    /// The addresses that it needs.
    pub fn addresses(&self) -> impl Iterator<Item = &'static str> {
        self.needs.iter().filter_map(|need| match need {
            Requirement::Address(address) => Some(*address),
            _ => None,
        })
    }
}

/// Moves this process to where it cannot change the machine: a network of its own with these addresses
/// but for those that are allowed, and layers over these folders. Ordinary users go without layers.
pub(crate) fn surround(
    addresses: &BTreeSet<IpAddr>,
    allowed: &[IpAddr],
    folders: &BTreeSet<&str>,
    scratch: &Path,
    touch_system: bool,
) -> Result<(), Stop> {
    let wanted = addresses
        .iter()
        .filter(|address| !allowed.contains(address));
    address::own(&wanted.copied().collect())?;
    let may_write = rustix::process::geteuid().is_root();
    isolate::cover(folders.clone(), scratch, touch_system || !may_write)?;
    Ok(())
}

/// Number and group of a user of this machine, by name or number.
pub(crate) fn lookup_user(name: &str) -> Option<(u32, u32)> {
    let user = passwd::user(name).ok()?;
    Some((user.uid, user.gid))
}

/// Whether a folder is a layer.
pub(crate) fn is_layer(folder: &str) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| {
        let mut parts = line.split(' ');
        parts.nth(4) == Some(folder) && line.contains(" - overlay ")
    })
}

fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).collect()
}

/// The action of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Action> {
    ACTIONS.iter().find(|action| action.name == name).copied()
}

/// The actions whose names fit, without those that are off by default unless `all`.
#[must_use]
pub fn select(pattern: Option<&Regex>, all: bool) -> Vec<&'static Action> {
    let fits = |action: &&Action| pattern.is_none_or(|pattern| pattern.is_match(action.name));
    ACTIONS
        .iter()
        .copied()
        .filter(|action| all || action.enabled)
        .filter(fits)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_sorted_within_their_group() {
        let names: Vec<_> = ACTIONS.iter().map(|action| action.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names.is_sorted(), "{names:#?}");
        assert!(names.len() > 70);
    }

    #[test]
    fn every_attack_has_a_rule_and_no_helper_has_one() {
        for action in ACTIONS {
            let attack = action.name.starts_with("syscall.");
            assert_eq!(attack, action.rule.is_some(), "{}", action.name);
            assert!(attack || action.name.starts_with("helper."));
        }
    }

    #[test]
    fn rules_are_recognized_by_their_letters() {
        let action = find("syscall.ReadSensitiveFileUntrusted").unwrap();
        assert!(action.is_for("Read sensitive file untrusted"));
        assert!(action.is_for("Read Sensitive-File Untrusted"));
        assert!(!action.is_for("Read sensitive file trusted after startup"));
        let setuid = find("syscall.NonSudoSetuid").unwrap();
        assert!(setuid.is_for("Become root without a login program"));
    }

    #[test]
    fn patterns_and_defaults_select() {
        let pattern = Regex::new("^helper[.]").unwrap();
        assert!(
            select(Some(&pattern), false)
                .iter()
                .all(|a| a.rule.is_none())
        );
        assert!(select(None, true).len() > select(None, false).len());
        assert!(select(Some(&Regex::new("nothing").unwrap()), true).is_empty());
    }
}
