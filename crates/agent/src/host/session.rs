//! An exec session: it uses its container's filter, and its container's agent watches it.

use std::path::Path;

use abi::Arch;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use seccomp::{FilterOptions, FilterProgram};
use supervisor::handover_state;
use supervisor::{AgentPlan, Command};

use super::super::filter_cache::CachedFilter;
use super::super::services::RuntimeContainer;
use super::super::unknown_machine;
use super::Errand;
use super::agent_handoff::Alone;

/// Prepares an agent that hands over the session. `alone` prepares one that watches by itself, with
/// the filter of the given handover if there is one; it is used if the container's agent has left no
/// usable filter.
pub(in super::super) fn prepare(
    command: Command,
    folder: &Path,
    container: RuntimeContainer,
    handover: Option<&[u8]>,
    alone: impl FnOnce(Option<Vec<u8>>) -> Result<AgentPlan, Failure> + 'static,
) -> Result<AgentPlan, Failure> {
    let kept = match handover {
        Some(handover) => Some(CachedFilter {
            // The filter is already installed.
            program: empty()?,
            handover: handover.to_vec(),
        }),
        None => CachedFilter::left_in(folder),
    };
    let Some(CachedFilter { program, handover }) = kept else {
        // The command is looked up again, which costs less than loading rules.
        return alone(None).map(|prepared| told(prepared, container));
    };
    let restricts_first = handover_state::decode_first(&handover)?.is_some();
    let own = handover.clone();
    let alone: Alone = Box::new(move || alone(Some(own)));
    let errand = Errand::of_session(folder, container, alone);
    Ok(AgentPlan {
        command,
        program,
        confinement: None,
        restricts_first,
        handover,
        start: Box::new(move |listening, meanwhile| errand.start(listening, meanwhile)),
    })
}

/// Adds a report that the agent watches by itself, once messages go to the container's log.
fn told(prepared: AgentPlan, container: RuntimeContainer) -> AgentPlan {
    let start = prepared.start;
    AgentPlan {
        start: Box::new(move |listening, meanwhile| {
            Errand::say_alone(
                &container,
                "it has left no filter for this build of the program, or for who sees these mounts and pids",
            );
            start(listening, meanwhile)
        }),
        ..prepared
    }
}

fn empty() -> Result<FilterProgram, Failure> {
    let native = Arch::native().ok_or_else(unknown_machine)?;
    let program = seccomp::compile(&event::Plan::default(), &FilterOptions::notify(native));
    program.map_err(|error| Failure::from_error(Exit::Internal, &error))
}
