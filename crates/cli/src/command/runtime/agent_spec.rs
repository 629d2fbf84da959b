//! The specification of a container's agent.

use std::ffi::OsString;
use std::path::Path;

use agent::spec::{AgentSpec, ContainerSpec, StartMode};
use config::WatchedBy;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use runtime::settings::Settings;
use runtime::{Note, Store, Verb};

/// Returns the specification of the agent that watches a container. `command` is the OCI runtime that makes the
/// container or starts a program in it.
pub(super) fn agent_spec(
    settings: &Settings,
    note: &Note,
    verb: Verb,
    store: &Store,
    command: Vec<OsString>,
) -> Result<AgentSpec, Failure> {
    // Next to the folder of container notes, not in it.
    let above = settings.state.parent().unwrap_or(Path::new("/"));
    let container = ContainerSpec {
        id: note.id.clone(),
        bundle: note.bundle.clone(),
        has_mounts: note.has_mounts,
        plans: note.has_mounts.then(|| above.join("plans")),
    };
    let mode = if settings.config.runtime.agent == WatchedBy::Host {
        can_be_watched_by_host(settings)?;
        StartMode::ContainerOfHost {
            container,
            agents: above.join("agents"),
        }
    } else if verb == Verb::Exec && shares_agents(settings) {
        StartMode::Session {
            container,
            agent: store.folder().to_owned(),
        }
    } else {
        let shares = shares_agents(settings);
        StartMode::Container {
            container,
            sessions: shares.then(|| store.folder().to_owned()),
        }
    };
    let mut spec = settings.agent_spec(note, mode)?;
    spec.command = command;
    Ok(spec)
}

/// Returns true if the agent of a container also watches its exec sessions. It does not if sessions are
/// recorded, because each has a recording of its own, or if processes may read only their descendants, because
/// a session is not a descendant of that agent.
fn shares_agents(settings: &Settings) -> bool {
    !settings.config.capture.enabled && !supervisor::sees_descendants_only()
}

fn can_be_watched_by_host(settings: &Settings) -> Result<(), Failure> {
    let refused = |why: &str, help: &str| {
        let message = format!("cannot watch containers with one agent (--agent host): {why}");
        Err(Failure::new(Exit::Unsupported, message).help(help.to_owned()))
    };
    if supervisor::sees_descendants_only() {
        return refused(
            "Yama allows processes to read only their descendants, and containers are not",
            "run as root or with CAP_SYS_PTRACE, or use --agent container",
        );
    }
    if settings.config.capture.enabled {
        return refused(
            "`capture` is enabled, and a recording belongs to one container",
            "use --agent container, or remove `capture` from the configuration",
        );
    }
    Ok(())
}
