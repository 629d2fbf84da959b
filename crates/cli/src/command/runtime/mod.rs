//! `tollgate runtime`: a wrapper around another OCI runtime that watches its containers.
//!
//! The underlying runtime runs under the filter of `tollgate run`, and so does whatever it starts: the filter
//! is inherited from the runtime's first process to the container's first program. There is no unwatched
//! interval, the container's own seccomp profile remains unchanged, and nothing is added to the container.
//! Calls of the runtime itself are not evaluated ([`capture::notify::Processes::with_setup`]).

mod agent_spec;
mod create;
mod install;
mod ruleset;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use agent::RULESET;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use probe::{Finding, Support, fix};
use runtime::caller::{report, report_to};
use runtime::containers::{
    cannot_execute, code, exists, forget, is_of, state_failure, store, underlying,
};
use runtime::installer::Change;
use runtime::recall::Recalled;
use runtime::{
    Call, CommandLine, Embedded, Note, Runtime, RuntimeError, Settings, Store, Verb, containerd,
    kata, recall,
};
use rustix::fs::FlockOperation;
use supervisor::{Detach, Ends};

use crate::help::command_line;

/// Name under which this program is an OCI runtime.
const NAME: &str = "tollgate-runtime";
/// Time limit for `start` to wait for the agent; after that the container's first program waits.
const START_LIMIT: Duration = Duration::from_secs(10);
const START_PAUSE: Duration = Duration::from_micros(500);

/// Returns the words after the program's name if that is `tollgate-runtime`, or after the verb `runtime` if
/// that comes first.
pub(crate) fn called_as_runtime() -> Option<Vec<OsString>> {
    let mut words = std::env::args_os();
    let name = words.next()?;
    let is_runtime = Path::new(&name).file_name() == Some(OsStr::new(NAME));
    (is_runtime || words.next()? == "runtime").then(|| {
        let before = if is_runtime { 1 } else { 2 };
        std::env::args_os().skip(before).collect()
    })
}

/// Runs the verb.
pub(crate) fn execute(words: &[OsString]) -> Outcome {
    let line = CommandLine::parse(words).map_err(|error| {
        Failure::from_error(Exit::BadInput, &error).help("`tollgate runtime --help` shows more")
    })?;
    let mut line = line;
    let outcome = carry_out(&mut line);
    if let Err(failure) = &outcome {
        report(&line, failure);
    }
    outcome
}

fn carry_out(line: &mut CommandLine) -> Outcome {
    if line.global.is_empty() && line.call.is_none() || asks(line, "--help", "-h") {
        return help();
    }
    if let Some(outcome) = own_verb(line) {
        return outcome;
    }
    let Recalled { note, state } = recall::recall(line, is_known_by_default)?;
    let line = &*line;
    let mut settings = Settings::load(line.config.as_deref())?;
    settings.state = state;
    if let Some(agent) = &line.agent {
        settings.watched_by(agent)?;
    }
    if let Some(asked) = asked(line, &settings, note.as_ref()) {
        if asked == vm::NAME {
            return vm::execute(line, &settings);
        }
        kata::refuse(&asked)?;
    }
    let runtime = runtime(line, &settings, note.as_ref())?;
    let Some(call) = &line.call else {
        if asks(line, "--version", "-v") {
            terminal::print(&format!("{NAME} {}\n", env!("CARGO_PKG_VERSION")))?;
        }
        return pass_on(&runtime, line, &[]);
    };
    match (call.verb, &call.id) {
        _ if call.asks_for_help => pass_on(&runtime, line, &call.words),
        (Verb::Create | Verb::Run, Some(id)) => create::create(line, &settings, &runtime, call, id),
        (Verb::Exec, Some(id)) => exec(line, &settings, &runtime, call, id),
        (Verb::Delete, Some(id)) => delete(line, &settings, &runtime, call, id),
        (Verb::Start, Some(id)) => start(line, &settings, &runtime, call, id),
        (Verb::Restore, _) => Err(Failure::new(
            Exit::Unsupported,
            "cannot restore a container: it would not be watched",
        )
        .help(format!(
            "restore it with {} itself, if it need not be watched",
            runtime.program.display()
        ))),
        // Without an id the underlying runtime reports what is missing.
        _ => pass_on(&runtime, line, &call.words),
    }
}

/// Returns true if the command line has this option and no command.
fn asks(line: &CommandLine, name: &str, short: &str) -> bool {
    let is = |word: &OsString| word == name || word == short;
    line.call.is_none() && line.global.iter().any(is)
}

/// Executes commands that are not part of a runtime's command line: internal ones, and `install` and
/// `uninstall`.
fn own_verb(line: &CommandLine) -> Option<Outcome> {
    let change = line
        .call
        .as_ref()
        .and_then(|call| match call.words.first()?.to_str()? {
            "install" => Some((Change::Install, &call.words[1..])),
            "uninstall" => Some((Change::Uninstall, &call.words[1..])),
            _ => None,
        });
    if let Some((change, words)) = change {
        return Some(install::execute(change, words));
    }
    if let Some(call) = line.call.as_ref().filter(|call| call.words[0] == RULESET) {
        return Some(ruleset::execute(&call.words[1..]));
    }
    #[cfg(feature = "embedded-runtime")]
    if let Some(call) = line
        .call
        .as_ref()
        .filter(|call| call.words[0] == runtime::EMBEDDED)
    {
        return Some(runtime_embedded::execute(&call.words[1..]));
    }
    let of_machine =
        (line.call.as_ref()).and_then(|call| vm::execute_own(&call.words, agent::not_executed));
    of_machine.or_else(|| vm::execute_pool(line))
}

/// Returns whether there is a runtime to wrap, whether containerd uses it, and whether containers can have
/// virtual machines of their own.
pub(crate) fn findings() -> [Finding; 4] {
    let finding = |name, purpose, support| Finding {
        name,
        purpose,
        notify_needs_it: false,
        support,
    };
    [
        finding(
            "oci-runtime",
            "containers: the runtime that `tollgate runtime` wraps",
            wrapped(),
        ),
        finding(
            "containerd",
            "containers: containerd starts them by `tollgate runtime` and passes annotations on",
            containerd::support(),
        ),
        finding(
            "machines",
            "containers in virtual machines: `tollgate runtime --runtime vm`",
            vm::support(),
        ),
        finding(
            "kata",
            "containers in virtual machines (Kata), started by containerd",
            kata::support(),
        ),
    ]
}

/// Returns whether a runtime is installed that this program can wrap.
fn wrapped() -> Support {
    match find(None) {
        Ok(runtime) => Support::yes(format!("found {}", runtime.identity().display())),
        Err(error) => Support::no_unless_fixed(error.to_string(), fix::install("runc")),
    }
}

fn help() -> Outcome {
    match command_line().try_get_matches_from(["tollgate", "runtime", "--help"]) {
        Err(help) => terminal::print(&help.render().to_string()),
        Ok(_) => Ok(Exit::Ok),
    }
}

/// Returns the runtime that the command line, the record of the container or the configuration names, if any.
fn asked(line: &CommandLine, settings: &Settings, note: Option<&Note>) -> Option<OsString> {
    // A runtime whose file is gone: the configuration may name another build of it.
    let is_there = |maker: &&PathBuf| maker.components().count() == 1 || maker.is_file();
    let recorded = note.and_then(|note| note.runtime.as_ref());
    let recorded = recorded.filter(is_there).map(OsString::from);
    let configured = OsString::from(&settings.config.runtime.binary);
    let configured = (!configured.is_empty()).then_some(configured);
    line.runtime.clone().or(recorded).or(configured)
}

fn runtime(
    line: &CommandLine,
    settings: &Settings,
    note: Option<&Note>,
) -> Result<Runtime, Failure> {
    find(asked(line, settings, note).as_deref()).map_err(|error| {
        let help = match &error {
            RuntimeError::Missing { .. } | RuntimeError::None => {
                "install runc, crun or youki, or name one with --runtime or `runtime.binary`"
            }
            RuntimeError::NotBuilt { .. } => "use --runtime runc, crun, youki or a path",
            RuntimeError::Itself { .. } => "name the runtime that is to be stood in for",
        };
        Failure::from_error(Exit::Unsupported, &error).help(help)
    })
}

fn find(asked: Option<&OsStr>) -> Result<Runtime, RuntimeError> {
    let path = std::env::var_os("PATH");
    let embedded = match cfg!(feature = "embedded-runtime") {
        true => Embedded::BuiltIn,
        false => Embedded::LeftOut,
    };
    Runtime::find(asked, path.as_deref(), embedded)
}

/// Returns true if the runtime that a command line without a record leads to knows the container.
fn is_known_by_default(line: &CommandLine, id: &str) -> Result<bool, Failure> {
    let settings = Settings::load(line.config.as_deref())?;
    match asked(line, &settings, None) {
        // It knows its containers by their records alone.
        Some(asked) if asked == vm::NAME => return Ok(false),
        None if find(None) == Err(RuntimeError::None) => return Ok(false),
        _ => {}
    }
    exists(&runtime(line, &settings, None)?, line, id)
}

/// Executes a command of the embedded runtime in this process.
#[cfg(feature = "embedded-runtime")]
fn in_this_process(line: &CommandLine, words: &[OsString]) -> Outcome {
    let words: Vec<OsString> = line.global.iter().chain(words).cloned().collect();
    runtime_embedded::carry_out(&words)
}

/// Replaces this process by the underlying runtime.
fn pass_on(runtime: &Runtime, line: &CommandLine, words: &[OsString]) -> Outcome {
    #[cfg(feature = "embedded-runtime")]
    if runtime.is_embedded() {
        return in_this_process(line, words);
    }
    let cause = Command::new(&runtime.program)
        .arg0(runtime.name())
        .args(&runtime.before)
        .args(&line.global)
        .args(words)
        .exec();
    Err(cannot_execute(runtime, &cause))
}

fn exec(
    line: &CommandLine,
    settings: &Settings,
    runtime: &Runtime,
    call: &Call,
    id: &str,
) -> Outcome {
    let store = store(settings, line, id)?;
    match store.note().map_err(|error| state_failure(&error))? {
        Some(note) if note.is_watched => {
            watched(line, settings, runtime, call, (&note, &store), Ends::AtOnce)
        }
        // A session is not watched if its container is not.
        Some(_) | None => pass_on(runtime, line, &call.words),
    }
}

/// Waits for the agent, then starts the container. The agent may still load rules when `create` has ended. The
/// first program would be held until they are loaded, although the runtime has reported that it runs.
fn start(
    line: &CommandLine,
    settings: &Settings,
    runtime: &Runtime,
    call: &Call,
    id: &str,
) -> Outcome {
    let log = store(settings, line, id)?.log();
    // Without a log there is no agent.
    if let Ok(log) = File::open(log) {
        let deadline = Instant::now() + START_LIMIT;
        while rustix::fs::flock(&log, FlockOperation::NonBlockingLockExclusive).is_err()
            && Instant::now() < deadline
        {
            std::thread::sleep(START_PAUSE);
        }
    }
    pass_on(runtime, line, &call.words)
}

fn delete(
    line: &CommandLine,
    settings: &Settings,
    runtime: &Runtime,
    call: &Call,
    id: &str,
) -> Outcome {
    let store = store(settings, line, id)?;
    let note = store.note().map_err(|error| state_failure(&error))?;
    is_of(note.as_ref(), runtime)?;
    let outcome = carried_out(runtime, line, &call.words);
    if matches!(outcome, Ok(Exit::Ok | Exit::Command(0))) {
        forget(&store, runtime, line, id)?;
    } else if !exists(runtime, line, id)? {
        let left = note.map_or_else(Vec::new, |note| note.groups.members());
        // Processes that the runtime does not know may still run.
        if !left.is_empty() && !call.has(&["f", "force"]) {
            let message = format!(
                "cannot delete {id}: {} does not know it, but it still has processes: {left:?}",
                runtime.program.display()
            );
            return Err(Failure::new(Exit::Unsupported, message)
                .help("`delete --force` kills them and removes the state of the container"));
        }
        forget(&store, runtime, line, id)?;
    }
    outcome
}

/// Runs the underlying runtime to its end.
fn carried_out(runtime: &Runtime, line: &CommandLine, words: &[OsString]) -> Outcome {
    #[cfg(feature = "embedded-runtime")]
    if runtime.is_embedded() {
        return in_this_process(line, words);
    }
    let status = underlying(runtime, line, words).status();
    let status = status.map_err(|cause| cannot_execute(runtime, &cause))?;
    Ok(Exit::Command(code(status)))
}

/// Runs the underlying runtime, and whatever it starts in the container, under a monitor. The note describes
/// the container; the store holds it.
fn watched(
    line: &CommandLine,
    settings: &Settings,
    runtime: &Runtime,
    call: &Call,
    (note, store): (&Note, &Store),
    ends: Ends,
) -> Outcome {
    // Before the tenure starts, so that the monitor does not keep the file open.
    let entering = entering_program(runtime)?;
    let program = match &entering {
        Some(file) => format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
        None => runtime.program.clone().into(),
    };
    let words = runtime.before.iter().chain(&line.global).chain(&call.words);
    let command: Vec<OsString> = std::iter::once(program).chain(words.cloned()).collect();
    let spec = agent_spec::agent_spec(settings, note, call.verb, store, command)?;
    let tenure = Detach::detached(store.log(), ends).map_err(|cause| {
        let message = format!("cannot watch container {}: {cause}", note.id);
        Failure::new(Exit::Unsupported, message).help("mount /proc")
    })?;
    let log = line.log.as_deref().map(std::path::absolute);
    let log_is_json = line.log_is_json;
    let complain = Box::new(move |why: &str| {
        if let Some(Ok(log)) = log {
            report_to(&log, log_is_json, why);
        }
    });
    agent::execute(spec, tenure, complain)
}

/// Returns the file to execute for the embedded runtime, if that is not this program's own file.
fn entering_program(runtime: &Runtime) -> Result<Option<OwnedFd>, Failure> {
    match runtime.is_embedded() {
        #[cfg(feature = "embedded-runtime")]
        true => runtime_embedded::entering_program(),
        _ => Ok(None),
    }
}
