//! The event generator: performs the actions that rules detect, and checks that a detector alerts on them.
//!
//! Actions and described tests run in processes of their own, which the generator starts as `PROGRAM generate
//! perform|work|scene|sweep ...` with [`own_program`]: the command line that uses this crate must parse those
//! into [`action::PerformOptions`] and the like. It must also call [`scenario::follow_order`] first in `main`.

pub mod action;
mod alerts;
pub mod bench;
pub mod demo;
pub mod detector;
pub mod expectation;
pub mod list;
pub mod options;
pub mod run;
pub mod scenario;
pub mod suite;
pub mod test;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
pub use diagnostics::lookup::own_program;

use crate::action::{Action, Player, PlayerOptions};
use crate::options::{PlayOptions, Selection};

/// Returns the selected actions. Fails if there are none.
fn select(selection: &Selection) -> Result<Vec<&'static Action>, Failure> {
    let actions = action::select(selection.pattern.as_ref(), selection.all);
    if !actions.is_empty() {
        return Ok(actions);
    }
    let pattern = selection.pattern.as_ref().map_or("", regex::Regex::as_str);
    let disabled = action::select(selection.pattern.as_ref(), true).len();
    let failure = Failure::new(
        Exit::BadInput,
        format!("cannot find an action whose name fits `{pattern}`"),
    );
    Err(if disabled > 0 {
        failure.help(format!(
            "{disabled} that fit are off by default: add `--all`"
        ))
    } else {
        failure.help("`tollgate generate list --all` shows all")
    })
}

/// Creates a player from the options.
fn player(play: &PlayOptions, prefix: Vec<String>) -> Result<Player, Failure> {
    if play.user.is_some() && !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            Exit::Unsupported,
            "cannot perform actions as another user: this needs root",
        )
        .help("run the generator as root, or without `--as`"));
    }
    let options = PlayerOptions {
        container: play.container,
        touch_system: play.touch_system,
        allow_network: play.allow_network.clone(),
        user: play.user.clone(),
        prefix,
    };
    Player::new(own_program()?, options)
        .map_err(|error| Failure::from_error(Exit::Unsupported, &error))
}
