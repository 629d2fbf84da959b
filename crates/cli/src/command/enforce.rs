//! `tollgate enforce`: runs a command under a policy.

use agent::confine::{self, Optional};
use agent::in_place;
use agent::options::{Detection, Interception};
use agent::spec::{AgentSpec, StartMode};
use config::{OnAgentDeath, Places};
use diagnostics::failure::Outcome;

use crate::args::{Enforce, Idle};

/// Runs the verb.
pub(crate) fn execute(args: Enforce) -> Outcome {
    let (policy, how, quiet) = (args.policy.clone(), args.how.clone(), args.quiet);
    let idle = Idle::of(&args.collector, None);
    let spec = watched(args, Places::of_user()?);
    idle.check(&spec.detection)?;
    if agent::takes_bundles(&spec.detection)? {
        // The last bundle may have the policy, and the next one comes to an agent alone.
        return agent::run(spec);
    }
    let prepared = confine::prepare(&policy, &how.into())?;
    if prepared.confinement.reports() {
        // The agent prepares the confinement again, and prints its messages.
        prepared.confinement.discard();
        return agent::run(spec);
    }
    prepared.tell(quiet);
    in_place::become_command(&spec.command, &prepared.confinement)
}

/// Returns the specification of a run without rules, which reports violations.
fn watched(args: Enforce, places: Places) -> AgentSpec {
    AgentSpec {
        detection: Detection {
            layers: places.files,
            config: args.config,
            options: [args.collector.options(), args.options].concat(),
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
