//! Containers: their notes, their state in the underlying runtime, and the removal of their
//! leftovers.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use abi::Signal;
use config::WatchContainers;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use crate::{
    Call, CommandLine, Groups, Note, Runtime, Settings, Spec, Store, StoreError, annotations,
    leftovers,
};

/// Time for control groups to become empty after all their processes were killed; the same as in
/// runc's `delete --force`.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10);
const REMOVAL_PAUSE: Duration = Duration::from_millis(5);

/// Creates the note of a container. Returns false if a container of this id exists. Leftovers of a
/// killed runtime are replaced.
///
/// # Errors
///
/// The note cannot be written, or leftovers of an earlier container cannot be removed.
pub fn begin(
    store: &Store,
    note: &Note,
    runtime: &Runtime,
    line: &CommandLine,
) -> Result<bool, Failure> {
    if store.begin(note).map_err(|error| state_failure(&error))? {
        return Ok(true);
    }
    is_of(
        store
            .note()
            .map_err(|error| state_failure(&error))?
            .as_ref(),
        runtime,
    )?;
    if exists(runtime, line, &note.id)? {
        return Ok(false);
    }
    forget(store, runtime, line, &note.id)?;
    store.begin(note).map_err(|error| state_failure(&error))
}

/// Returns what is recorded about a container that `runtime` is about to create; without its bundle, control groups
/// and policy. A later command may be called from another working directory.
#[must_use]
pub fn new_note(line: &CommandLine, runtime: PathBuf, spec: &Spec, id: &str) -> Note {
    let absolute = |path: Option<&PathBuf>| path.and_then(|path| std::path::absolute(path).ok());
    Note {
        id: id.to_owned(),
        bundle: PathBuf::new(),
        has_mounts: spec.has_own_mounts(),
        groups: Groups::default(),
        policy: None,
        runtime: Some(runtime),
        config: absolute(line.config.as_ref()),
        root: absolute(line.root.as_ref()),
        is_watched: false,
    }
}

/// Checks that this runtime created the container. A container of another runtime is unknown to
/// this one, but may still exist.
///
/// # Errors
///
/// [`Exit::BadInput`] if another runtime created it.
pub fn is_of(note: Option<&Note>, runtime: &Runtime) -> Result<(), Failure> {
    let Some((note, maker)) = note.and_then(|note| Some((note, note.runtime.as_ref()?))) else {
        return Ok(());
    };
    if *maker == runtime.identity() {
        return Ok(());
    }
    let (maker, other) = (maker.display(), runtime.program.display());
    let message = format!("container {} is one of {maker}, not of {other}", note.id);
    Err(Failure::new(Exit::BadInput, message).help(format!("name its runtime: --runtime {maker}")))
}

/// Returns true if the underlying runtime knows the container.
///
/// # Errors
///
/// The runtime cannot be queried.
pub fn exists(runtime: &Runtime, line: &CommandLine, id: &str) -> Result<bool, Failure> {
    let mut command = Command::new(&runtime.program);
    command.args(&runtime.before);
    if let Some(root) = &line.root {
        command.arg("--root").arg(root);
    }
    // Not the caller's log, in which a missing container would be reported as an error.
    command.arg0(runtime.name()).args(["state", id]);
    let output = command.stdin(std::process::Stdio::null()).output();
    let status = output
        .map_err(|cause| cannot_execute(runtime, &cause))?
        .status;
    // A killed runtime has given no answer.
    status.code().map(|code| code == 0).ok_or_else(|| {
        let message = format!(
            "cannot ask {} for {id}: {status}",
            runtime.program.display()
        );
        Failure::new(Exit::Unsupported, message).help("try again")
    })
}

/// Removes the leftovers of a container that the underlying runtime does not know: the note, and,
/// if the runtime was killed while it created the container, control groups with their processes,
/// and mounts in the state directory.
///
/// # Errors
///
/// Something cannot be removed.
pub fn forget(
    store: &Store,
    runtime: &Runtime,
    line: &CommandLine,
    id: &str,
) -> Result<(), Failure> {
    if let Some(note) = store.note().map_err(|error| state_failure(&error))? {
        let deadline = Instant::now() + REMOVAL_LIMIT;
        while let Err(cause) = note.groups.remove() {
            if Instant::now() > deadline {
                let message = format!("cannot remove the control groups of {}: {cause}", note.id);
                return Err(Failure::new(Exit::Unsupported, message)
                    .help("their processes do not exit; try again"));
            }
            for pid in note.groups.members() {
                // Fails only if the process has just ended.
                let _ = sys::signal::send(pid, Signal::SIGKILL.0);
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
    }
    let states = match &line.root {
        Some(root) => vec![root.clone()],
        None => leftovers::usual_roots(runtime),
    };
    for state in states {
        leftovers::remove(&state.join(id)).map_err(|cause| {
            let state = state.display();
            let message = format!("cannot remove what is left of {id} below {state}: {cause}");
            Failure::new(Exit::Unsupported, message).help("try again as root")
        })?;
    }
    store.end().map_err(|error| state_failure(&error))
}

/// Returns the control groups that the underlying runtime is about to create.
#[must_use]
pub fn groups(spec: &Spec, id: &str) -> Groups {
    // Without /proc the groups cannot be found, and nothing can be watched either.
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let (mounts, own) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
    Groups::planned(&mounts, &own, spec.cgroups_path(), id)
}

/// Builds the command that runs the underlying runtime.
#[must_use]
pub fn underlying(runtime: &Runtime, line: &CommandLine, words: &[OsString]) -> Command {
    let mut command = Command::new(&runtime.program);
    command.arg0(runtime.name()).args(&runtime.before);
    command.args(&line.global).args(words);
    command
}

/// The error for an underlying runtime that cannot be executed.
#[must_use]
pub fn cannot_execute(runtime: &Runtime, cause: &std::io::Error) -> Failure {
    let program = runtime.program.display();
    Failure::new(
        Exit::NotExecutable,
        format!("cannot execute {program}: {cause}"),
    )
    .help("name a runtime that is a program for this architecture")
}

/// Returns the exit code for a process status, as in a shell.
#[must_use]
pub fn code(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

/// Returns true if the container must be watched.
#[must_use]
pub fn is_to_be_watched(settings: &Settings, spec: &Spec) -> bool {
    let annotated = spec.annotations.get(annotations::WATCH).map(String::as_str);
    match settings.config.runtime.watch {
        WatchContainers::All => true,
        WatchContainers::Annotated => annotated == Some("true"),
        WatchContainers::UnlessAnnotated => annotated != Some("false"),
        WatchContainers::None => false,
    }
}

/// Returns the bundle directory of a call.
///
/// # Errors
///
/// The working directory does not exist.
pub fn bundle(call: &Call) -> Result<PathBuf, Failure> {
    let given = call.bundle.as_deref().unwrap_or(Path::new("."));
    std::path::absolute(given).map_err(|cause| {
        let message = format!("cannot find the bundle {}: {cause}", given.display());
        Failure::new(Exit::BadInput, message).help("name the bundle's folder with --bundle")
    })
}

/// Returns the store of a container.
///
/// # Errors
///
/// The id is invalid.
pub fn store(settings: &Settings, line: &CommandLine, id: &str) -> Result<Store, Failure> {
    Store::new(&settings.state, line.root.as_deref(), id).map_err(|error| state_failure(&error))
}

/// The error for a note that cannot be read or written.
#[must_use]
pub fn state_failure(error: &StoreError) -> Failure {
    let exit = match error {
        StoreError::BadId { .. } => Exit::BadInput,
        StoreError::Io { .. } => Exit::Unsupported,
        StoreError::Newer { .. } => {
            return Failure::from_error(Exit::Unsupported, error)
                .help("use the build that created the container, or a newer one");
        }
    };
    Failure::from_error(exit, error).help(
        "IDs are folder names; container state is in /run/tollgate/runtime, or in $TOLLGATE_RUNTIME_STATE",
    )
}
