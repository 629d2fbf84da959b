//! `tollgate run`: runs a command and alerts when it breaks a rule.

use agent::spec::AgentSpec;
use config::Places;
use diagnostics::failure::Outcome;

use crate::args::Run;

/// Runs the verb.
pub(crate) fn execute(mut args: Run) -> Outcome {
    args.detection.places = Places::of_user()?;
    let idle = args.detection.idle();
    let spec = AgentSpec::from(args);
    idle.check(&spec.detection)?;
    agent::run(spec)
}
