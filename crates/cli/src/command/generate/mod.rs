//! `tollgate generate`: plays what rules are about, and checks that a detector notices.

mod alerts;
pub(crate) mod args;
mod bench;
mod list;
mod run;
mod suite;
mod test;
mod watched;

use std::io;
use std::path::PathBuf;

use workload::action::{self, Action, Player, PlayerOptions};

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use args::{Generate, Play, Selection};

/// Runs the verb.
pub(crate) fn execute(verb: Generate) -> Outcome {
    match verb {
        Generate::List(args) => list::execute(&args),
        Generate::Run(args) => run::execute(&args),
        Generate::Test(args) => test::execute(&args),
        Generate::Perform(args) => Ok(Exit::Command(action::perform(
            &args,
            &own_program()?,
            &mut io::stdout().lock(),
        ))),
        Generate::Suite(verb) => suite::execute(verb),
        Generate::Scene(args) => Ok(Exit::Command(workload::suite::scene(
            &args,
            &own_program()?,
            &mut io::stdout().lock(),
        ))),
        Generate::Bench(args) => bench::execute(&args),
        Generate::Work(args) => Ok(Exit::Command(action::work(
            &args,
            &own_program()?,
            &mut io::stdin().lock(),
            &mut io::stdout().lock(),
        ))),
        Generate::Sweep(args) => Ok(Exit::Command(action::sweep(&args))),
    }
}

fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| {
        Failure::new(
            Exit::Internal,
            format!("cannot find the running program: {error}"),
        )
        .help("mount /proc")
    })
}

/// The actions that are asked for, at least one.
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

/// Who plays as the options say.
fn player(play: &Play, prefix: Vec<String>) -> Result<Player, Failure> {
    if play.user.is_some() && !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            Exit::Unsupported,
            "cannot play as another user: only root may",
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
