//! A running detector or enforcer: engine, rules, outputs, servers, metrics and recordings.
//!
//! Everything that can fail and needs no thread happens in the agent before the command is forked:
//! rules, configuration, files, the filter. Threads are created after that, by the closure that
//! [`supervisor`] then calls. An agent that takes over from another does the same, except for the
//! command.

mod announcer;
mod answering;
pub mod behavior;
mod blueprint;
mod bundle_policies;
mod bundles;
mod cache_files;
mod channels;
mod choice;
pub mod confine;
pub mod digest;
mod drops;
pub mod embedded;
mod engines;
mod failure;
mod filter_cache;
mod first;
pub mod given;
mod given_settings;
pub mod guard;
mod host;
mod identity;
pub mod in_place;
pub mod journal;
mod kernel_reports;
pub mod learn;
pub mod learn_command;
mod metrics;
pub mod observer;
pub mod options;
mod orders;
pub mod pidfile;
pub mod plugins;
pub mod policy_files;
pub mod program;
pub mod recorded_plugins;
mod recording;
mod reload;
mod reports;
mod responses;
mod rules_cache;
mod self_report;
mod servers;
mod service_manager;
mod services;
mod settings;
pub mod sink;
pub mod spec;
mod start;
mod status_line;
mod subscribers;
mod summary;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
pub mod totals;
pub mod version;
mod violations;
mod watched_files;

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

pub use decoder::host::given as given_host_name;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use event::EngineKind;
use supervisor::{Detach, ErrorReporter, LaunchContext, OnAgentDeath, Policy, Respawn, TakeOver};

use self::blueprint::{InForce, Origin, blueprint};
pub use self::bundle_policies::pack as pack_policies;
use self::choice::{can_be_promised, choose};
use self::failure::failure;
pub use self::failure::not_executed;
pub use self::first::RULESET;
use self::pidfile::Pidfile;
use self::services::RuntimeContainer;
pub use self::settings::{engine_options, outputs, unknown_machine, warn};
use crate::options::{Detection, Interception};
use crate::spec::{AgentSpec, StartMode};

/// Runs a command and watches it. If `spec` says so, takes over from another agent or becomes the
/// host agent. `complain` also receives the reason if a running command cannot be watched.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// Options contradict each other, what the agent needs cannot be read or opened, or the command
/// does not run.
pub fn execute(spec: AgentSpec, tenure: Detach, complain: ErrorReporter) -> Outcome {
    if let StartMode::Host { base } = &spec.mode {
        let base = base.clone();
        return host::execute(spec, &base);
    }
    let engine = choose(&spec)?;
    can_be_promised(&spec, engine.kind)?;
    let respawn = respawn(&spec);
    if let Some(take_over) = spec.takes_over.clone() {
        return resume(spec, &take_over, respawn, engine.kind);
    }
    let policy = policy(&spec);
    let stay = LaunchContext {
        respawn,
        tenure,
        complain,
    };
    let is_in_place = engine.kind == EngineKind::Notify && stay.tenure.ends_at_once();
    if is_in_place && !supervisor::sees_descendants_only() {
        let prepared = start::prepare(spec, engine.kind, None)?;
        let Err(error) = supervisor::run_in_place(policy, stay, prepared);
        return Err(failure(error));
    }
    let name = program::name(&spec.command).to_owned();
    let pidfile = spec.detection.pidfile.clone();
    let prepare: supervisor::AgentPreparer =
        Box::new(move |handover| start::prepare(spec, engine.kind, handover));
    let status = supervisor::run(&name, engine, policy, stay, prepare);
    // A killed agent has not removed the file.
    pidfile
        .as_deref()
        .inspect(|path| Pidfile::remove_stale(path));
    concluded(status)
}

/// Returns true if a run with these options takes bundles of a collector, and therefore needs an agent that stays.
///
/// # Errors
///
/// The configuration or the pinned key cannot be read.
pub fn takes_bundles(detection: &Detection) -> Result<bool, Failure> {
    let (config, _) = settings::configuration_with(detection, &Interception::default(), None)?;
    Ok(bundles::BundleFolder::of(&config.outputs.collector)?.is_some())
}

/// Runs a command and watches it until the command ends.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// As [`execute`].
pub fn run(spec: AgentSpec) -> Outcome {
    execute(spec, Detach::WithCommand, Box::new(|_why| ()))
}

/// Runs the agent with the specification given to this process; see [`AgentSpec::receive`].
///
/// # Errors
///
/// As [`execute`]; also if there is no specification of this version.
pub fn execute_given(source: &OsStr) -> Outcome {
    // Before anything of the specification is there: another process of the user could open this one's memory and
    // descriptors, and keep them.
    sys::prctl::set_dumpable(false).map_err(|error| {
        Failure::from_error(Exit::Unsupported, &error).help("allow prctl(PR_SET_DUMPABLE)")
    })?;
    run(AgentSpec::receive(source)?)
}

/// Takes over from another agent.
fn resume(spec: AgentSpec, take_over: &TakeOver, respawn: Respawn, engine: EngineKind) -> Outcome {
    if spec.mode == StartMode::Learn {
        let message =
            "cannot take over from an agent that learns a policy: it alone knows what it has seen";
        return Err(Failure::new(Exit::BadInput, message)
            .help("it goes on; run `tollgate learn` of this build for the next run"));
    }
    let prepare = Box::new(move |handover: Option<&[u8]>| start::prepare(spec, engine, handover));
    concluded(supervisor::resume(take_over, respawn, prepare))
}

fn concluded(status: Result<i32, supervisor::Failure>) -> Outcome {
    match status {
        // The agent has reported the reason.
        Err(supervisor::Failure::Refused(status)) => Ok(exit(status)),
        status => status.map(exit).map_err(failure),
    }
}

/// Returns the parameters for starting agents that take over from this one.
fn respawn(spec: &AgentSpec) -> Respawn {
    // A recording for learning belongs to this process alone.
    let detection = Detection {
        learner: None,
        ..spec.detection.clone()
    };
    let first = AgentSpec {
        detection,
        ..spec.clone()
    };
    Respawn {
        label: spec.command.clone(),
        spec: Box::new(move |take_over| first.taking_over(take_over).encode()),
    }
}

/// Runs `act` in a child that may become a command. Returns the exit status.
pub fn execute_below(act: impl FnOnce() -> Exit) -> Outcome {
    let status = supervisor::run_below(|| i32::from(act().code()));
    status.map(exit).map_err(failure)
}

fn policy(spec: &AgentSpec) -> Policy {
    Policy {
        on_agent_death: match spec.on_agent_death {
            config::OnAgentDeath::Continue => OnAgentDeath::Continue,
            config::OnAgentDeath::Deny => OnAgentDeath::Deny,
            config::OnAgentDeath::Kill => OnAgentDeath::Kill,
        },
        limit: Duration::from_millis(spec.agent_timeout),
        refuse_non_dumpable: spec
            .interception
            .refuse
            .contains(&options::Refusal::NonDumpable),
    }
}

/// Returns the services that watch running processes.
pub fn services(detection: Detection, engine: EngineKind) -> Result<supervisor::Start, Failure> {
    let interception = Interception::default();
    let (in_force, origin) = (InForce::nothing("watch"), Origin::Files);
    let made = blueprint(detection, interception, engine, in_force, origin, None)?;
    Ok(made.into_start())
}

/// Returns the services that watch the gVisor sandboxes connecting to `endpoint`, and the trace
/// session that these must be started with.
pub fn sandbox_services(
    detection: Detection,
    endpoint: &Path,
) -> Result<(supervisor::Start, serde_json::Value), Failure> {
    let interception = Interception::default();
    let (in_force, origin) = (InForce::nothing("watch"), Origin::Files);
    let engine = EngineKind::Gvisor;
    let blueprint = blueprint(detection, interception, engine, in_force, origin, None)?;
    let session = capture::gvisor::configuration(&blueprint.rules.installed, endpoint);
    Ok((blueprint.into_start(), session))
}

fn exit(status: i32) -> Exit {
    Exit::Command(u8::try_from(status & 0xff).expect("eight bits fit"))
}
