//! `tollgate completions`: prints a completion script for a shell.

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;

use crate::args::Completions;
use crate::help::visible;

/// Runs the verb.
pub(crate) fn execute(args: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(), "tollgate", &mut script);
    let script = String::from_utf8(script).map_err(|error| {
        Failure::new(
            Exit::Internal,
            format!("cannot make the completion script: {error}"),
        )
    })?;
    terminal::print(&script)
}
