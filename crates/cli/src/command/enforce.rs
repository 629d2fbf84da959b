//! `tollgate enforce`: runs a command under a policy.

use std::ffi::OsString;

use abi::Arch;
use agent::confine::{self, Optional};
use agent::options::{Detection, Interception};
use agent::program;
use agent::spec::{AgentSpec, StartMode};
use config::{OnAgentDeath, Places};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use enforce::Confinement;
use event::Plan;
use seccomp::FilterOptions;

use super::run;
use crate::args::Enforce;

/// Runs the verb.
pub(crate) fn execute(args: Enforce) -> Outcome {
    let prepared = confine::prepare(&args.policy, &args.how.clone().into())?;
    if prepared.confinement.reports() {
        // The agent prepares the confinement again, and prints its messages.
        prepared.confinement.discard();
        return run::start(watched(args, Places::of_user()?));
    }
    prepared.tell(args.quiet);
    become_command(&args.command, &prepared.confinement)
}

/// Returns the specification of a run without rules, which reports violations.
fn watched(args: Enforce, places: Places) -> AgentSpec {
    AgentSpec {
        detection: Detection {
            layers: places.files,
            config: args.config,
            options: args.options,
            json: args.json,
            stream: args.stream.beside_command(),
            quiet: args.quiet,
            without_rules: true,
            stats_interval: 5000,
            ..Detection::default()
        },
        confine: Optional {
            policy: Some(args.policy),
            how: args.how.into(),
            guard: None,
        },
        interception: Interception::default(),
        on_agent_death: OnAgentDeath::Continue,
        agent_timeout: 1000,
        mode: StartMode::Command,
        takes_over: None,
        command: args.command,
    }
}

/// Restricts this process and executes the command in place, if no monitor is needed. Returns only if that
/// fails.
pub(super) fn become_command(command: &[OsString], confinement: &Confinement) -> Outcome {
    let command = program::command(command, None, false)?;
    let program = match confinement.calls.is_empty() {
        true => None,
        false => Some(program(confinement)?),
    };
    let unconfined = |error: &dyn std::error::Error| {
        Failure::from_error(Exit::Unsupported, error)
            .help("`tollgate doctor` shows which enforcers work here")
    };
    confinement.apply().map_err(|error| unconfined(&error))?;
    if let Some(program) = &program {
        supervisor::install_alone(program).map_err(|error| unconfined(&error))?;
    }
    let error = sys::exec::execve(&command.path, &command.argv, &command.environment);
    Err(agent::not_executed(
        &command.path.to_string_lossy(),
        error.into(),
    ))
}

fn program(confinement: &Confinement) -> Result<seccomp::FilterProgram, Failure> {
    let native = Arch::native().ok_or_else(agent::unknown_machine)?;
    let options = FilterOptions::confine(native);
    seccomp::compile_with(&Plan::default(), &confinement.calls, &options)
        .map_err(|error| Failure::from_error(Exit::BadInput, &error).help("simplify the policy"))
}
