//! The `tollgate` program.

mod args;
mod command;
mod config;
mod demo;
mod exit;
mod failure;
mod lookup;
mod recording;
mod rule_files;
mod supervise;
mod terminal;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::{Cli, Verb};
use crate::exit::Exit;
use crate::failure::Outcome;

fn main() -> ExitCode {
    // Processes of described tests have command lines of their own.
    if let Some(code) = workload::suite::follow_order() {
        return ExitCode::from(code);
    }
    let outcome = match Cli::try_parse() {
        Ok(cli) => {
            if let Some(version) = cli.pretend_kernel {
                sys::features::pretend(version);
            }
            execute(cli.verb)
        }
        Err(error) => return refuse(&error),
    };
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            terminal::complain(&failure.render());
            failure.exit.into()
        }
    }
}

fn execute(verb: Verb) -> Outcome {
    match verb {
        Verb::Run(args) => command::run::execute(args),
        Verb::Watch(args) => command::watch::execute(args),
        Verb::Replay(args) => command::replay::execute(&args),
        Verb::Rules(verb) => command::rules::execute(verb),
        Verb::Policy(verb) => command::policy::execute(&verb),
        Verb::Doctor(args) => command::doctor::execute(&args),
        Verb::Demo(args) => command::demo::execute(&args),
        Verb::Generate(verb) => command::generate::execute(verb),
        Verb::Bench(args) => command::bench::execute(&args),
        Verb::Workload(args) => command::workload::execute(&args),
        Verb::Completions(args) => command::completions::execute(&args),
        Verb::Man(args) => command::man::execute(&args),
        Verb::Version(args) => command::version::execute(&args),
    }
}

/// Prints help, the version, or what is wrong with the command line.
fn refuse(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        // Whoever asked for help has it or does not want it; a closed pipe is no failure.
        let _ = error.print();
        return Exit::Ok.into();
    }
    let text = error.render().to_string();
    terminal::complain(&match text.strip_prefix("error: ") {
        Some(message) => format!("tollgate: {message}"),
        None => text,
    });
    Exit::BadInput.into()
}
