//! The process that plays one action.

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use abi::Signal;
use workload::Error;

use super::{
    Action, ActionEnvironment, Outcome, Scratch, Stop, address, find, isolate, passwd, surroundings,
};

/// Options for the process that plays one action.
#[derive(Clone, Debug)]
pub struct PerformOptions {
    /// Name of the action.
    pub name: String,
    /// The folder of the run.
    pub scratch: PathBuf,
    /// Set if this process is a part that the action started under another name: the folder for that part.
    pub spawned: Option<PathBuf>,
    /// True to take this for a container, false for none. `None`: detect it.
    pub container: Option<bool>,
    /// Allow changes to system folders where overlays cannot cover them.
    pub touch_system: bool,
    /// Addresses that actions contact in the real network.
    pub allow_network: Vec<IpAddr>,
    /// User to play as.
    pub user: Option<String>,
    /// Milliseconds to wait first.
    pub after: u64,
}

impl PerformOptions {
    /// Returns the arguments after the action's name of a process that plays with these options.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut all = vec!["--scratch".to_owned(), self.scratch.display().to_string()];
        all.extend(self.container.map(|answer| format!("--container={answer}")));
        all.extend(self.touch_system.then(|| "--unsafe".to_owned()));
        for address in &self.allow_network {
            all.push(format!("--allow-network={address}"));
        }
        all
    }
}

/// Plays the action and prints the outcome to `out` as a line of JSON. Returns the exit code: 0 if done.
pub fn perform(args: &PerformOptions, program: &Path, out: &mut dyn Write) -> u8 {
    let outcome = Outcome::of(try_perform(args, program));
    let line = serde_json::to_string(&outcome).expect("an outcome is plain data");
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => u8::from(outcome != Outcome::Done),
        Err(_nobody_listens) => 1,
    }
}

fn try_perform(args: &PerformOptions, program: &Path) -> Result<(), Stop> {
    let action = find(&args.name).ok_or_else(|| Error::UnknownName {
        hint: "`tollgate generate list --all` shows all actions".to_owned(),
    })?;
    // Without the generator no process reads the outcome.
    sys::prctl::set_parent_death_signal(Signal::SIGKILL.0)
        .map_err(Error::call("follow the generator"))?;
    let scene = prepare(action, args, program)?;
    if args.after > 0 {
        scene.sleep(Duration::from_millis(args.after));
    }
    (action.play)(&scene)
}

/// Isolates the process from what must not be changed. A part of an action is already isolated.
fn prepare(
    action: &Action,
    args: &PerformOptions,
    program: &Path,
) -> Result<ActionEnvironment, Stop> {
    let scratch = Scratch::of_another(args.scratch.clone());
    let scene =
        ActionEnvironment::new(&scratch, program, args.arguments(), args.spawned.as_deref())?;
    if args.spawned.is_some() {
        return Ok(scene);
    }
    let user = args.user.as_deref().map(passwd::user).transpose()?;
    let in_container = args.container.unwrap_or_else(surroundings::in_container);
    if user.is_none() {
        surroundings::check(action, in_container)?;
    }
    address::separate(&[action], &args.allow_network)?;
    let has_layers = isolate::separate(&[action], &args.scratch, args.touch_system)?;
    if let Some(user) = user {
        scene.give_to(user)?;
        passwd::become_user(user)?;
        surroundings::check(action, in_container)?;
    }
    Ok(scene.with_layers(has_layers))
}
