//! `tollgate run`: runs a command and alerts when it breaks a rule.

use agent::spec::AgentSpec;
use config::Places;
use diagnostics::failure::Outcome;
use supervisor::Detach;

use crate::args::Run;

/// Runs the verb.
pub(crate) fn execute(mut args: Run) -> Outcome {
    args.detection.places = Places::of_user()?;
    start(args.into())
}

/// Starts a run for another verb.
pub(super) fn start(spec: AgentSpec) -> Outcome {
    agent::execute(spec, Detach::WithCommand, Box::new(|_why| ()))
}
