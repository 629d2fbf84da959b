//! Actions to play: what a rule detects, done for real and undone.
//!
//! Each action is one file below `syscall/` or `helper/` and one row of [`ACTIONS`]. An action has the name
//! that Falco's event generator gives it, if it has one, so that its users find it.
//!
//! An action is played by a process of its own (`PROGRAM generate perform NAME ...`, see [`perform`]), which
//! first isolates itself from what it must not change: system folders are covered by overlays that vanish with
//! the process, addresses belong to a network without a route out. It prints its [`Outcome`] as one line of
//! JSON. An action that failed has not been played.

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

/// The table of actions.
pub use registry::ACTIONS;

mod registry {
    use super::{Action, helper, syscall};

    const COUNT: usize = helper::ACTIONS.len() + syscall::ACTIONS.len();

    /// All actions, helpers first, each group sorted by name.
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

/// An action that a detector should alert on.
#[derive(Debug)]
pub struct Action {
    /// `syscall.Name` or `helper.Name`.
    pub name: &'static str,
    /// Description, on one line.
    pub summary: &'static str,
    /// The rule that the action triggers, as Falco's rule files name it. Helpers have none.
    pub rule: Option<&'static str>,
    /// Other names of the rule in rule files.
    pub also: &'static [&'static str],
    /// True if the action is played without `--all`: its rule is among those that Falco loads by default.
    pub enabled: bool,
    /// Context in which the action makes sense.
    pub place: ActionContext,
    /// Requirements of the action.
    pub needs: &'static [Requirement],
    /// Changes outside the action's own folder.
    pub touches: SideEffects,
    play: fn(&ActionEnvironment) -> Result<(), Stop>,
}

/// Context in which an action makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionContext {
    /// Inside and outside containers.
    Anywhere,
    /// Inside a container: its rule requires one.
    Container,
    /// Outside containers: its rule requires that.
    Host,
}

/// A requirement of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Effective user id 0.
    Root,
    /// A readable file.
    Readable(&'static str),
    /// A program in `PATH`.
    Program(&'static str),
    /// A capability, by its kernel name.
    Capability(&'static str),
    /// The absence of a capability.
    NoCapability(&'static str),
    /// An address that belongs to no other host.
    Address(&'static str),
}

/// Changes that an action makes outside its own folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideEffects {
    /// No changes.
    Nothing,
    /// Files in folders that everybody may write, removed afterwards. In overlays where possible.
    Shared(&'static [&'static str]),
    /// Files in system folders: in overlays only, unless `--unsafe` is given.
    System(&'static [&'static str]),
    /// The mount table, in a mount namespace of its own only.
    Mounts,
}

/// The reason why an action was not played to its end.
#[derive(Debug)]
pub enum Stop {
    /// The action cannot be played here.
    Skipped(String),
    /// The action failed.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

/// Outcome of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "outcome")]
pub enum Outcome {
    /// The action was played.
    Done,
    /// The action was not played.
    Skipped {
        /// The reason.
        reason: String,
    },
    /// The action was tried and failed.
    Failed {
        /// The error.
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

    /// Sets a rule that Falco loads by default.
    const fn rule(self, rule: &'static str) -> Self {
        Self {
            rule: Some(rule),
            ..self
        }
    }

    /// Sets a rule that Falco does not load by default.
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

    /// Returns true if an alert of this rule is about this action. Rule names that differ only in case, spaces
    /// and punctuation are equal, as in the event generator of Falco.
    #[must_use]
    pub fn is_for(&self, rule: &str) -> bool {
        let last = self.name.rsplit('.').next().unwrap_or(self.name);
        self.rule == Some(rule)
            || self.also.contains(&rule)
            || letters(rule).eq_ignore_ascii_case(last)
    }

    /// Describes on one line what the action changes, and for how long.
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

    /// Returns the addresses that the action requires.
    pub fn addresses(&self) -> impl Iterator<Item = &'static str> {
        self.needs.iter().filter_map(|need| match need {
            Requirement::Address(address) => Some(*address),
            _ => None,
        })
    }
}

/// Isolates this process from the host: moves it to a network namespace that has these addresses except the
/// allowed ones, and mounts overlays over these folders. Ordinary users get no overlays.
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

/// Returns the user and group id of a user of the host, by name or number.
pub(crate) fn lookup_user(name: &str) -> Option<(u32, u32)> {
    let user = passwd::user(name).ok()?;
    Some((user.uid, user.gid))
}

/// Returns true if a folder is an overlay.
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

/// Returns the action with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Action> {
    ACTIONS.iter().find(|action| action.name == name).copied()
}

/// Returns the actions whose names match. Leaves out those that are off by default unless `all`.
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
