//! `tollgate help`: prints the help of a verb.

use clap::Command;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use yaml::closest;

use crate::args::Help;
use crate::help::command_line;

/// Runs the verb: prints what `VERB --help` prints.
pub(crate) fn execute(args: &Help) -> Outcome {
    let mut command = find(command_line(), &args.verb)?;
    let help = command.render_help();
    terminal::print(&if terminal::wants_colour() {
        help.ansi().to_string()
    } else {
        help.to_string()
    })
}

/// Returns the command of a verb, which may be a subverb.
pub(crate) fn find(mut command: Command, path: &[String]) -> Result<Command, Failure> {
    command.build();
    for verb in path {
        command = match command.find_subcommand(verb) {
            Some(found) => found.clone(),
            None => return Err(unknown(&command, verb)),
        };
    }
    Ok(command)
}

/// Returns the error for a verb that `command` does not have.
pub(crate) fn unknown(command: &Command, verb: &str) -> Failure {
    let verbs: Vec<&str> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(Command::get_name)
        .collect();
    let above = command.get_bin_name().unwrap_or(command.get_name());
    let message = format!("cannot find `{above} {verb}`: no such verb");
    let closest = closest(verb, verbs.iter().copied()).map(str::to_owned);
    Failure::new(Exit::BadInput, message).help(match below(command, verb).or(closest) {
        Some(near) => format!("did you mean `{above} {near}`?"),
        None if verbs.is_empty() => format!("`{above}` has no verbs of its own"),
        None => format!("choose one of {}", verbs.join(", ")),
    })
}

/// Returns the words that lead to a subverb with this name, such as `rules silence`.
fn below(command: &Command, verb: &str) -> Option<String> {
    let mut shown = command
        .get_subcommands()
        .filter(|above| !above.is_hide_set());
    shown.find_map(|above| {
        let found = above.find_subcommand(verb)?;
        Some(format!("{} {}", above.get_name(), found.get_name()))
    })
}
