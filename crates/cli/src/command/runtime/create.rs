//! `create` and `run`: who watches a new container, and what is recorded about it.

use std::ffi::OsString;

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use runtime::caller::{report, warn};
use runtime::containers::{
    begin, bundle, exists, forget, groups, is_to_be_watched, new_note, state_failure, store,
};
use runtime::{Call, CommandLine, Groups, Note, Runtime, Settings, Spec, Store, Verb, annotations};
use supervisor::Ends;

use crate::command::enforcers;

use super::{carried_out, pass_on, watched};

/// Creates a container: under a monitor, in a sandbox of gVisor, or as the underlying runtime would alone.
pub(super) fn create(
    line: &CommandLine,
    settings: &Settings,
    runtime: &Runtime,
    call: &Call,
    id: &str,
) -> Outcome {
    for warning in &settings.warnings {
        warn(line, warning);
    }
    let bundle = bundle(call)?;
    let spec = annotations::read(&bundle)?;
    let policy = settings.policy(&spec)?;
    let is_watched = policy.is_some() || is_to_be_watched(settings, &spec);
    // gVisor's kernel watches its sandboxes, and no agent of ours.
    let has_agent = is_watched && !runtime.is_gvisor();
    let note = Note {
        bundle,
        policy,
        groups: match has_agent {
            true => groups(&spec, id),
            false => Groups::default(),
        },
        is_watched: has_agent,
        ..new_note(line, runtime.identity(), &spec, id)
    };
    let store = store(settings, line, id)?;
    if !is_watched {
        return create_unwatched(line, runtime, call, (&note, &store));
    }
    if note.policy.is_some() {
        can_be_confined(runtime, &spec, id)?;
        // Before there are threads: the probes fork.
        enforcers::note(&settings.state);
    }
    if runtime.is_gvisor() {
        return create_sandbox(line, settings, runtime, call, (&note, &store));
    }
    has_no_listener(&spec, id)?;
    if !begin(&store, &note, runtime, line)? {
        // The container exists: the underlying runtime reports that.
        return pass_on(runtime, line, &call.words);
    }
    let stays = call.verb == Verb::Create || call.detaches;
    let outcome = watched_above(line, settings, runtime, call, (&note, &store), stays);
    if outcome.is_err() {
        // Messages of the agent after it closed the caller's descriptors. A missing log has none.
        let said = std::fs::read_to_string(store.log()).unwrap_or_default();
        terminal::complain(&said);
    }
    let is_there = stays && matches!(outcome, Ok(Exit::Command(0)));
    // A runtime that cannot be executed has made no container.
    if !is_there && !exists(runtime, line, id).unwrap_or(false) {
        forget(&store, runtime, line, id)?;
    }
    outcome
}

/// Lets the underlying runtime create a container that this program does not watch. If options chose the runtime,
/// they are recorded: later calls may come without them.
fn create_unwatched(
    line: &CommandLine,
    runtime: &Runtime,
    call: &Call,
    (note, store): (&Note, &Store),
) -> Outcome {
    let is_chosen = line.config.is_some() || line.runtime.is_some();
    // `run` removes the container itself.
    if !is_chosen || call.verb != Verb::Create || !begin(store, note, runtime, line)? {
        return pass_on(runtime, line, &call.words);
    }
    let outcome = carried_out(runtime, line, &call.words);
    if !matches!(outcome, Ok(Exit::Ok | Exit::Command(0))) {
        store.end().map_err(|error| state_failure(&error))?;
    }
    outcome
}

/// Like [`watched`]. If the container outlives this process, its monitor runs above this process, which ends.
fn watched_above(
    line: &CommandLine,
    settings: &Settings,
    runtime: &Runtime,
    call: &Call,
    place: (&Note, &Store),
    stays: bool,
) -> Outcome {
    if !stays {
        return watched(line, settings, runtime, call, place, Ends::AfterAlerts);
    }
    agent::execute_below(|| {
        let outcome = watched(line, settings, runtime, call, place, Ends::AtOnce);
        outcome.unwrap_or_else(|failure| {
            report(line, &failure);
            terminal::complain(&failure.render());
            failure.exit
        })
    })
}

fn has_no_listener(spec: &Spec, id: &str) -> Result<(), Failure> {
    let Some(listener) = spec.listener() else {
        return Ok(());
    };
    let listener = listener.display();
    let message = format!(
        "cannot watch container {id}: its seccomp profile has a listener, {listener}, and the \
         kernel allows only one"
    );
    Err(Failure::new(Exit::Unsupported, message)
        .help("remove linux.seccomp.listenerPath, or set `runtime.watch: annotated`"))
}

fn can_be_confined(runtime: &Runtime, spec: &Spec, id: &str) -> Result<(), Failure> {
    let program = runtime.program.display();
    let why = if runtime.is_gvisor() {
        format!("calls of containers of {program} are gVisor's to refuse")
    } else if !spec.has_own_mounts() {
        "without a mount namespace, its processes cannot be distinguished from the runtime's"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::new(
        Exit::Unsupported,
        format!("cannot confine container {id}: {why}"),
    )
    .help("remove the policy, or give the container a mount namespace under runc or crun"))
}

/// Creates a sandbox of gVisor, whose kernel sends events to the socket of the trace session (`watch
/// --gvisor`).
fn create_sandbox(
    line: &CommandLine,
    settings: &Settings,
    runtime: &Runtime,
    call: &Call,
    place: (&Note, &Store),
) -> Outcome {
    settings.suits_sandboxes()?;
    let session = &settings.config.runtime.gvisor_session;
    let program = runtime.program.display();
    if session.as_os_str().is_empty() {
        let message =
            format!("cannot watch containers of {program}: no trace session is configured");
        return Err(Failure::new(Exit::Unsupported, message).help(
            "run `tollgate watch --gvisor SOCKET --gvisor-session FILE` and name that file as \
             `runtime.gvisor_session`, or use `runtime.watch: none`",
        ));
    }
    if !session.is_file() {
        let message = format!(
            "cannot watch containers of {program}: no such file: {}",
            session.display()
        );
        return Err(Failure::new(Exit::Unsupported, message)
            .help("`tollgate watch --gvisor SOCKET --gvisor-session FILE` writes it"));
    }
    let mut option = OsString::from("--pod-init-config=");
    option.push(session);
    let mut line = line.clone();
    line.global.push(option);
    create_unwatched(&line, runtime, call, place)
}
