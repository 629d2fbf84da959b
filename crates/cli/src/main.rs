//! The `tollgate` program.

mod args;
mod choice;
mod command;
mod engine;
mod help;
mod options;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, FromArgMatches};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;

use crate::args::{Cli, Verb};
use crate::command::falco::args::Falco;

fn main() -> ExitCode {
    // The processes of described tests have command lines of their own.
    #[cfg(feature = "bench")]
    if let Some(code) = generator::scenario::follow_order() {
        return ExitCode::from(code);
    }
    if is_called_falco() {
        return as_falco();
    }
    if let Some(outcome) = started_by_ourselves() {
        return conclude(outcome);
    }
    // Checked before the command line of all verbs is built, because the callers of a runtime wait for it.
    if let Some(words) = command::runtime::called_as_runtime() {
        return conclude(command::runtime::execute(&words));
    }
    let parsed = help::command_line()
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let outcome = match parsed {
        Ok(cli) => {
            if let Some(version) = cli.pretend_kernel {
                sys::features::pretend(version);
            }
            execute(cli.verb)
        }
        Err(error) if names_falco() && error.exit_code() != 0 => return refuse_as_falco(&error),
        Err(error) if error.kind() == ErrorKind::UnknownArgument && is_ordered_by_flags() => {
            Err(refuse_older_build())
        }
        Err(error) => return refuse(&error),
    };
    conclude(outcome)
}

/// Runs an agent that another process of this program starts, with its specification.
fn started_by_ourselves() -> Option<Outcome> {
    let mut words = std::env::args_os().skip(1);
    let is_agent = words.next()? == supervisor::AGENT_VERB;
    let source = words.next().filter(|_| is_agent)?;
    // The arguments after this are only shown in lists of processes.
    Some(agent::execute_given(&source))
}

/// Returns true if a keeper of an older build, which passes an agent's orders on the command line, started this
/// program.
fn is_ordered_by_flags() -> bool {
    let mut words = std::env::args_os().skip(1).take_while(|word| word != "--");
    words.any(|word| word.as_encoded_bytes().starts_with(b"--resume="))
}

/// Returns true if the verb is `falco`, whose usage errors look like those of the falco binary.
fn names_falco() -> bool {
    std::env::args_os()
        .nth(1)
        .is_some_and(|verb| verb == "falco")
}

/// Refuses the orders of an older build. The old agent continues, because the keeper sees that this one ends.
fn refuse_older_build() -> Failure {
    let message = "cannot take over from an agent of an older build: it gives no specification of the agent, but \
                   options that this build does not know";
    Failure::new(Exit::BadInput, message)
        .help("the agent that began goes on; start the command again to have this build watch it")
}

fn conclude(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            terminal::complain(&failure.render());
            failure.exit.into()
        }
    }
}

/// Returns true if this program was started as `falco`, through a hard or symbolic link.
fn is_called_falco() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new("falco")))
}

/// Runs the falco personality, whose command line has no verb.
fn as_falco() -> ExitCode {
    let command = Falco::augment_args(clap::Command::new("falco"));
    let parsed = command
        .try_get_matches()
        .and_then(|matches| Falco::from_arg_matches(&matches));
    match parsed {
        Ok(args) => match command::falco::execute(args) {
            Ok(exit) => exit.into(),
            Err(failure) => failure.exit.into(),
        },
        Err(error) if error.exit_code() == 0 => refuse(&error),
        Err(error) => refuse_as_falco(&error),
    }
}

fn refuse_as_falco(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    let message = text.strip_prefix("error: ").unwrap_or(&text);
    terminal::complain(&format!("Error: {message}"));
    Exit::Failed.into()
}

fn execute(verb: Verb) -> Outcome {
    match verb {
        Verb::Run(args) => command::run::execute(args),
        Verb::Enforce(args) => command::enforce::execute(args),
        Verb::Guard(args) => command::guard::execute(*args),
        Verb::Learn(args) => command::learn::execute(args),
        Verb::Watch(args) => command::watch::execute(args),
        Verb::Top(args) => command::top::execute(&args),
        Verb::Replay(args) => command::replay::execute(args),
        Verb::Falco(args) => command::falco::execute(*args),
        Verb::Rules(verb) => command::rules::execute(verb),
        Verb::Artifact(verb) => command::artifact::execute(&verb),
        Verb::Config(verb) => command::config::execute(&verb),
        Verb::Policy(verb) => command::policy::execute(&verb),
        Verb::Runtime(args) => command::runtime::execute(&args.words),
        Verb::Serve(args) => command::serve::execute(*args),
        Verb::Alerts(verb) => command::alerts::execute(&verb),
        Verb::Fleet(verb) => command::alerts::execute_fleet(&verb),
        Verb::Node(args) => command::node::execute(*args),
        Verb::Doctor(args) => command::doctor::execute(&args),
        Verb::Demo(args) => command::demo::execute(&args),
        Verb::Generate(verb) => command::generate::execute(verb),
        Verb::Bench(args) => command::bench::execute(args),
        Verb::Workload(args) => command::workload::execute(args),
        Verb::Completions(args) => command::completions::execute(&args),
        Verb::Copy(args) => command::copy::execute(&args),
        Verb::Man(args) => command::man::execute(&args),
        Verb::Help(args) => command::help::execute(&args),
        Verb::Version(args) => command::version::execute(&args),
    }
}

/// Prints help, the version, or the error of the command line.
fn refuse(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        // A closed pipe is no failure.
        let _ = error.print();
        return Exit::Ok.into();
    }
    if let Some(failure) = unknown(error) {
        return conclude(Err(failure));
    }
    let text = error.render().to_string();
    terminal::complain(&match text.strip_prefix("error: ") {
        Some(message) => format!("tollgate: {message}"),
        None => text,
    });
    Exit::BadInput.into()
}

/// Returns the error for an unknown verb, with the closest one: clap suggests none for transposed letters.
fn unknown(error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let above = words.iter().take_while(|word| word.to_str() != Some(verb));
    let mut command = help::command_line();
    command.build();
    for word in above {
        let found = command.find_subcommand(word).cloned();
        command = found.unwrap_or(command);
    }
    Some(command::help::unknown(&command, verb))
}
