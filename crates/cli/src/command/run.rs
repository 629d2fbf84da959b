//! `tollgate run`.

use agent::spec::AgentSpec;
use diagnostics::failure::Outcome;
use supervisor::Detach;

use crate::args::Run;

/// Runs the verb.
pub(crate) fn execute(args: Run) -> Outcome {
    start(args.into())
}

/// Runs the verb as another one asks for it.
pub(super) fn start(spec: AgentSpec) -> Outcome {
    agent::execute(spec, Detach::WithCommand, Box::new(|_why| ()))
}
