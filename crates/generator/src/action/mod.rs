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
mod definition;
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

pub use definition::{Action, ActionContext, Outcome, Requirement, SideEffects, Stop};
pub(crate) use isolate::{make_private, mount};
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
