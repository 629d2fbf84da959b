//! What an action is, and what can become of it.

use serde::{Deserialize, Serialize};
use workload::Error;

use super::ActionEnvironment;

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
    pub(super) play: fn(&ActionEnvironment) -> Result<(), Stop>,
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
    pub(super) const fn new(
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
    pub(super) const fn rule(self, rule: &'static str) -> Self {
        Self {
            rule: Some(rule),
            ..self
        }
    }

    /// Sets a rule that Falco does not load by default.
    pub(super) const fn optional_rule(self, rule: &'static str) -> Self {
        Self {
            rule: Some(rule),
            enabled: false,
            ..self
        }
    }

    pub(super) const fn also(self, rules: &'static [&'static str]) -> Self {
        Self {
            also: rules,
            ..self
        }
    }

    pub(super) const fn inside(self) -> Self {
        Self {
            place: ActionContext::Container,
            ..self
        }
    }

    pub(super) const fn outside(self) -> Self {
        Self {
            place: ActionContext::Host,
            ..self
        }
    }

    pub(super) const fn needs(self, needs: &'static [Requirement]) -> Self {
        Self { needs, ..self }
    }

    pub(super) const fn touches(self, touches: SideEffects) -> Self {
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

fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).collect()
}
