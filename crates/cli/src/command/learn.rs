//! `tollgate learn`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{policy, run};
use crate::args::{Detection, Engine, Interception, Learn, OnAgentDeath, Run};
use crate::confine::Optional;
use crate::failure::Outcome;
use crate::learn::{self, Learner, Seen};

/// Runs the verb.
pub(crate) fn execute(args: Learn) -> Outcome {
    let known = match &args.model {
        Some(path) => learn::read(path)?,
        None => None,
    };
    let model = known.unwrap_or_default();
    let own = sys::credential::capabilities(0);
    // Not to be asked is as good as to have some.
    let is_privileged = own.map_or(true, |sets| sets.permitted.0 != 0);
    let learner = Learner {
        output: args.output,
        model: args.model,
        duration: args.duration.map(Duration::from_secs),
        machine: policy::machine(),
        enforcers: args.enforcer,
        is_privileged,
        quiet: args.quiet,
        seen: Mutex::new(Some(Seen::new(model))),
    };
    run::execute(Run {
        detection: Detection {
            quiet: args.quiet,
            without_rules: true,
            learner: Some(Arc::new(learner)),
            stats_interval: 5000,
            ..Detection::default()
        },
        confine: Optional::default(),
        interception: Interception {
            engine: Engine::Notify,
            ..Interception::default()
        },
        // Another agent would not know what this one had seen.
        on_agent_death: OnAgentDeath::Kill,
        agent_timeout: 60_000,
        resume: None,
        told_container: None,
        told_bundle: None,
        told_plans: None,
        told_agent: None,
        host_agent: None,
        told_host_mounts: false,
        command: args.command,
    })
}
