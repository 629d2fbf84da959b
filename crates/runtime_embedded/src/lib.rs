//! `--runtime embedded`: containers made by libcontainer, which is linked in with the feature `embedded-runtime`.
//!
//! Callers start a program with a runtime's command line. For this runtime that program is the same file, in
//! another process.

#![cfg(feature = "libcontainer")]

mod foreground;
mod resources;
mod sealed;
mod session;

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use abi::Errno;
use abi::constant::MFD_CLOEXEC;
use agent::journal;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::error::LibcontainerError;
use libcontainer::oci_spec::runtime as oci_spec;
use libcontainer::signal::Signal;
use libcontainer::syscall::syscall::SyscallType;
use libcontainer::workload::default::DefaultExecutor;
use liboci_cli::{CommonCmd, Create, Exec, GlobalOpts, List, Run, StandardCmd};
use sys::signal::Disposition;
use sys::wait::{self, Target};

use self::foreground::{Console, Foreground};

/// Folder for the state of containers if the caller names none.
const ROOT: &str = "/run/tollgate/containers";
/// libcontainer's exit status for a failure without a more specific one.
const FAILED: u8 = 1;
/// Exit status of a session that could not start.
const NOT_ENTERED: u8 = 255;
const REAL_TIME: std::ops::RangeInclusive<i32> = 32..=64;
/// Time limit for the end of the process of a container or session that could not be made.
const END_OF_FAILED: Duration = Duration::from_secs(1);

#[derive(Debug, Parser)]
#[command(name = "tollgate-runtime (embedded)", version, no_binary_name = true)]
struct Line {
    #[command(flatten)]
    global: GlobalOpts,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    #[command(flatten)]
    Standard(Box<StandardCmd>),
    #[command(flatten)]
    Common(Box<CommonCmd>),
}

/// What to execute for a process of this program that enters a container: started from there, it need not start
/// anew. `None`: any.
///
/// # Errors
/// If the copy of the program cannot be made.
pub fn entering_program() -> Result<Option<OwnedFd>, Failure> {
    sealed::file()
}

/// Carries out a runtime's command line, in a process of its own.
///
/// # Errors
/// What the verb failed with; it is also written to the log that the line names.
pub fn execute(words: &[OsString]) -> Outcome {
    take_pipe_signals(Disposition::Default);
    let line = match parse(words) {
        Ok(line) => line,
        Err(said) => return said,
    };
    let log = line.global.log.clone();
    let is_json = line.global.log_format.as_deref() == Some("json");
    let outcome = line.carry_out();
    if let (Err(failure), Some(log)) = (&outcome, &log) {
        runtime::caller::note_in_log(log, is_json, "error", &failure.render());
    }
    outcome
}

/// Carries out a runtime's command line for a caller that writes failures to the log itself.
///
/// # Errors
/// What the verb failed with.
pub fn carry_out(words: &[OsString]) -> Outcome {
    take_pipe_signals(Disposition::Default);
    let outcome = match parse(words) {
        Ok(line) => line.carry_out(),
        Err(said) => said,
    };
    take_pipe_signals(Disposition::Ignore);
    outcome
}

/// Sets the action on SIGPIPE. Rust ignores that signal, and containers would inherit this.
fn take_pipe_signals(action: Disposition) {
    // No reason is known for which this fails.
    let _ = sys::signal::set_disposition(foreground::SIGPIPE, action);
}

/// Parses the command line. The error is the outcome to return instead, such as the output of --help.
fn parse(words: &[OsString]) -> Result<Line, Outcome> {
    // The signal is optional, as under runc and in the specification.
    let line = Line::command().mut_subcommand("kill", |kill| {
        kill.mut_arg("signal", |signal| {
            signal.required(false).default_value("TERM")
        })
    });
    let parsed = line
        .try_get_matches_from(words)
        .and_then(|matches| Line::from_arg_matches(&matches));
    parsed.map_err(|said| {
        if !said.use_stderr() {
            return terminal::print(&said.to_string());
        }
        let text = said.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        Err(Failure::new(Exit::BadInput, text.trim())
            .help("the runtime embedded takes runc's command line"))
    })
}

impl Line {
    fn carry_out(self) -> Outcome {
        if self.enters() {
            sealed::ensure()?;
        }
        let root = root(&self.global)?;
        match self.verb {
            Verb::Standard(verb) => standard(*verb, &root, &self.global),
            Verb::Common(verb) => common(*verb, &root, &self.global),
        }
    }

    /// Returns true if a process of this program enters a container to execute this command.
    fn enters(&self) -> bool {
        match &self.verb {
            Verb::Standard(verb) => matches!(**verb, StandardCmd::Create(_)),
            Verb::Common(verb) => matches!(**verb, CommonCmd::Run(_) | CommonCmd::Exec(_)),
        }
    }
}

fn root(global: &GlobalOpts) -> Result<PathBuf, Failure> {
    let root = global.root.clone().unwrap_or_else(|| ROOT.into());
    fs::create_dir_all(&root)
        .and_then(|()| fs::set_permissions(&root, fs::Permissions::from_mode(0o700)))
        .and_then(|()| fs::canonicalize(&root))
        .map_err(|cause| {
            let root = root.display();
            Failure::new(Exit::Unsupported, format!("cannot use {root}: {cause}"))
                .help("name a folder with --root")
        })
}

fn standard(verb: StandardCmd, root: &Path, global: &GlobalOpts) -> Outcome {
    match verb {
        StandardCmd::Create(args) => {
            create(&args, process(&args.bundle), root, global).map(|_| Exit::Ok)
        }
        StandardCmd::Start(args) => on(root, &args.container_id, Container::start),
        StandardCmd::State(args) => {
            let mut container = load(root, &args.container_id)?;
            container.refresh_status().map_err(failed)?;
            let text = serde_json::to_string_pretty(&container.state).expect("it is plain data");
            terminal::print(&format!("{text}\n"))
        }
        StandardCmd::Kill(args) => kill(&args, root),
        StandardCmd::Delete(args) => {
            if args.force && !root.join(&args.container_id).exists() {
                return Ok(Exit::Ok);
            }
            on(root, &args.container_id, |container| {
                container.delete(args.force)
            })
        }
    }
}

fn kill(args: &liboci_cli::Kill, root: &Path) -> Outcome {
    let unnamed = args.signal.parse().ok();
    // Signals without a name: 0, which tests if the process exists, and the real-time signals.
    if let Some(signal) = unnamed.filter(|signal| *signal == 0 || REAL_TIME.contains(signal))
        && !args.all
    {
        let mut container = load(root, &args.container_id)?;
        container.refresh_status().map_err(failed)?;
        let pid = container.pid().filter(|_| container.can_kill());
        let Some(pid) = pid else {
            let id = &args.container_id;
            let message = format!("container {id} is not running");
            return Err(Failure::new(Exit::Command(FAILED), message).help("`state` shows it"));
        };
        return match sys::signal::send(pid.as_raw(), signal) {
            Ok(()) => Ok(Exit::Ok),
            Err(cause) => {
                let message = format!("cannot send {signal} to process {pid}: {cause}");
                Err(Failure::new(Exit::Command(FAILED), message).help("`state` shows it"))
            }
        };
    }
    let signal = Signal::try_from(args.signal.as_str()).map_err(|error| {
        Failure::new(
            Exit::BadInput,
            format!("cannot send {}: {error}", args.signal),
        )
        .help("use a number, or a name such as TERM")
    })?;
    on(root, &args.container_id, |container| {
        container.kill(signal, args.all)
    })
}

fn common(verb: CommonCmd, root: &Path, global: &GlobalOpts) -> Outcome {
    match verb {
        CommonCmd::Run(args) => run(args, root, global),
        CommonCmd::Exec(args) => exec(*Box::new(args), root),
        CommonCmd::List(args) => list(&args, root),
        CommonCmd::Pause(args) => on(root, &args.container_id, Container::pause),
        CommonCmd::Resume(args) => on(root, &args.container_id, Container::resume),
        CommonCmd::Events(args) => on(root, &args.container_id, |container| {
            container.events(args.interval, args.stats)
        }),
        CommonCmd::Features(_) => {
            terminal::print("{\"ociVersionMin\":\"1.0.0\",\"ociVersionMax\":\"1.0.2-dev\"}\n")
        }
        CommonCmd::Ps(args) => resources::ps(&load(root, &args.container_id)?, &args),
        CommonCmd::Spec(args) => spec(&args),
        CommonCmd::Update(args) => resources::update(&load(root, &args.container_id)?, &args),
        CommonCmd::Checkpointt(_) => Err(Failure::new(
            Exit::Unsupported,
            "cannot checkpoint: the runtime embedded does not support it",
        )
        .help("use --runtime runc for it")),
    }
}

/// Creates a container. `process` is the process in the bundle's configuration.
fn create(
    args: &Create,
    process: Option<oci_spec::Process>,
    root: &Path,
    global: &GlobalOpts,
) -> Result<Container, Failure> {
    has_a_place(
        asks_for_terminal(process.as_ref()),
        args.console_socket.as_ref(),
    )?;
    if process.is_some_and(|process| process.capabilities().is_none()) {
        give_up_bounding()?;
    }
    ContainerBuilder::new(args.container_id.clone(), SyscallType::default())
        .with_executor(DefaultExecutor {})
        .with_pid_file(args.pid_file.as_ref())
        .map(|builder| builder.with_console_socket(args.console_socket.as_ref()))
        .and_then(|builder| builder.with_root_path(root))
        .map(|builder| builder.with_preserved_fds(args.preserve_fds))
        .and_then(ContainerBuilder::validate_id)
        .map(|builder| {
            builder
                .as_init(&args.bundle)
                .with_systemd(global.systemd_cgroup)
                .with_detach(true)
                .with_no_pivot(args.no_pivot)
        })
        .and_then(|builder| builder.build())
        .map_err(not_made)
}

/// Runs a container. In the foreground, this process stands for the container until that ends.
fn run(args: Run, root: &Path, global: &GlobalOpts) -> Outcome {
    let foreground = (!args.detach).then(Foreground::begin);
    let process = process(&args.bundle);
    let attaches =
        !args.detach && args.console_socket.is_none() && asks_for_terminal(process.as_ref());
    let console = attaches.then(Console::new).transpose()?;
    let create_args = Create {
        bundle: args.bundle.clone(),
        console_socket: args.console_socket.or(console.as_ref().map(Console::path)),
        pid_file: args.pid_file.clone(),
        no_pivot: args.no_pivot,
        no_new_keyring: args.no_new_keyring,
        preserve_fds: args.preserve_fds,
        container_id: args.container_id.clone(),
    };
    let mut container = create(&create_args, process, root, global)?;
    let status = console
        .map(Console::receive)
        .transpose()
        .and_then(|terminal| {
            container.start().map_err(failed)?;
            let pid = container.pid().map_or(0, |pid| pid.as_raw());
            let waits = foreground.map(|foreground| foreground.wait_for(pid, terminal));
            waits.transpose()
        });
    let Ok(Some(status)) = status else {
        if status.is_err() {
            // The reason why the container does not run is reported, not this error.
            let _ = container.delete(true);
        }
        return status.map(|_detached| Exit::Ok);
    };
    if !args.keep
        && let Err(error) = container.delete(true)
    {
        journal::warn(&format!("cannot delete the container: {error}"));
    }
    Ok(Exit::Command(status))
}

/// Refuses a terminal that is neither sent to a console socket nor served in the foreground.
fn has_a_place(has_terminal: bool, console_socket: Option<&PathBuf>) -> Result<(), Failure> {
    if !has_terminal || console_socket.is_some() {
        return Ok(());
    }
    let message = "a terminal needs --console-socket, or a foreground run";
    Err(Failure::new(Exit::Command(FAILED), message)
        .help("use --console-socket, run in the foreground, or set `terminal` to false"))
}

/// Reads a bundle's process. A configuration that cannot be read is refused when the container is made.
fn process(bundle: &Path) -> Option<oci_spec::Process> {
    let spec = oci_spec::Spec::load(bundle.join("config.json")).ok()?;
    spec.process().clone()
}

fn asks_for_terminal(process: Option<&oci_spec::Process>) -> bool {
    process.and_then(oci_spec::Process::terminal) == Some(true)
}

/// Drops the bounding set. A configuration without capabilities grants none, as under runc; libcontainer would
/// leave the container those of this process. This process keeps what it needs to make the container. The
/// container's program starts with none, because an exec grants only capabilities in the bounding set. Hooks
/// have none, too.
fn give_up_bounding() -> Result<(), Failure> {
    let cannot = |cause: sys::SyscallError| {
        let message = format!("cannot keep capabilities from the container: {cause}");
        Failure::new(Exit::Unsupported, message).help("say process.capabilities in config.json")
    };
    for capability in 0..=u8::MAX {
        match sys::prctl::drop_bounding_capability(capability) {
            Ok(()) => {}
            // The kernel has no more capabilities.
            Err(error) if error.is(Errno::EINVAL) => break,
            Err(error) => return Err(cannot(error)),
        }
    }
    Ok(())
}

fn exec(args: Exec, root: &Path) -> Outcome {
    if args.cgroup.as_deref().is_some_and(|group| group != "/") {
        let message = "cannot use --cgroup: the runtime embedded puts sessions into the control group of their container";
        return Err(Failure::new(Exit::Unsupported, message)
            .help("leave --cgroup out, or use --runtime runc for it"));
    }
    let foreground = (!args.detach).then(Foreground::begin);
    let process = session::process(&args, &load(root, &args.container_id)?)?;
    let has_terminal = process.get("terminal") == Some(&serde_json::Value::Bool(true));
    let attaches = !args.detach && args.console_socket.is_none() && has_terminal;
    let console = attaches.then(Console::new).transpose()?;
    let file = written(&process)?;
    let console_socket = args.console_socket.or(console.as_ref().map(Console::path));
    has_a_place(has_terminal, console_socket.as_ref())?;
    let pid = ContainerBuilder::new(args.container_id.clone(), SyscallType::default())
        .with_executor(DefaultExecutor {})
        .with_root_path(root)
        .map(|builder| builder.with_console_socket(console_socket.as_ref()))
        .and_then(|builder| builder.with_pid_file(args.pid_file.as_ref()))
        .map(|builder| builder.with_preserved_fds(args.preserve_fds))
        .and_then(ContainerBuilder::validate_id)
        .map(|builder| {
            builder
                .as_tenant()
                // libcontainer accepts a terminal's socket only with this; it makes no other difference.
                .with_detach(args.detach || console_socket.is_some())
                .with_process(Some(own_file(&file)))
                .with_ignore_paused(args.ignore_paused)
        })
        .and_then(|builder| builder.build())
        .map_err(not_entered)?;
    drop(file);
    let terminal = console.map(Console::receive).transpose().inspect_err(|_| {
        // Fails only if the process has ended.
        let _ = sys::signal::send(pid.as_raw(), foreground::SIGKILL);
        reap();
    })?;
    session::clear(&root.join(&args.container_id));
    match foreground {
        Some(foreground) => foreground
            .wait_for(pid.as_raw(), terminal)
            .map(Exit::Command),
        None => Ok(Exit::Ok),
    }
}

/// Writes the process to a file in memory, because a caller who enters a container need not be able to write
/// anywhere.
fn written(process: &serde_json::Value) -> Result<OwnedFd, Failure> {
    let made = || {
        let mut file = fs::File::from(sys::fd::memory_file(
            c"tollgate-process",
            MFD_CLOEXEC.u32(),
        )?);
        write!(file, "{process}")?;
        std::io::Result::Ok(file.into())
    };
    made().map_err(|cause| {
        let message = format!("cannot write down what the session is to be: {cause}");
        Failure::new(Exit::Command(FAILED), message).help("free memory, or raise the limit of it")
    })
}

/// Returns the path by which this process can reopen an open file.
fn own_file(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn list(args: &List, root: &Path) -> Outcome {
    let mut text = String::new();
    if !args.quiet && args.format != "json" {
        text.push_str("ID PID STATUS BUNDLE\n");
    }
    let mut states = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        // A container that is deleted meanwhile is not listed.
        let Ok(mut container) = Container::load(entry.path()) else {
            continue;
        };
        if container.refresh_status().is_err() {
            continue;
        }
        let pid = container.pid().map_or(0, |pid| pid.as_raw());
        match args.quiet {
            true => text.push_str(&format!("{}\n", container.id())),
            false => text.push_str(&format!(
                "{} {pid} {} {}\n",
                container.id(),
                container.status(),
                container.bundle().display()
            )),
        }
        states.push(container.state);
    }
    if args.format == "json" {
        text = serde_json::to_string(&states).expect("it is plain data");
        text.push('\n');
    }
    terminal::print(&text)
}

/// Writes a template of a configuration.
fn spec(args: &liboci_cli::Spec) -> Outcome {
    let folder = args.bundle.as_deref().unwrap_or(Path::new("."));
    let file = folder.join("config.json");
    let cannot = |cause: &dyn std::fmt::Display| {
        let message = format!("cannot write {}: {cause}", file.display());
        Failure::new(Exit::Command(FAILED), message).help("name a folder with --bundle")
    };
    let spec = match args.rootless {
        true => oci_spec::Spec::rootless(
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
        false => oci_spec::Spec::default(),
    };
    let text = serde_json::to_string_pretty(&spec).expect("it is plain data");
    let created = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&file);
    let mut written = created.map_err(|cause| cannot(&cause))?;
    writeln!(written, "{text}").map_err(|cause| cannot(&cause))?;
    Ok(Exit::Ok)
}

fn load(root: &Path, id: &str) -> Result<Container, Failure> {
    let folder = root.join(id);
    if id.contains('/') || !folder.exists() {
        return Err(Failure::new(
            Exit::Command(FAILED),
            format!("container {id} does not exist"),
        )
        .help("`list` shows those that do"));
    }
    Container::load(folder).map_err(failed)
}

fn on(
    root: &Path,
    id: &str,
    does: impl FnOnce(&mut Container) -> Result<(), LibcontainerError>,
) -> Outcome {
    let mut container = load(root, id)?;
    does(&mut container).map_err(failed)?;
    Ok(Exit::Ok)
}

fn not_made(error: LibcontainerError) -> Failure {
    reap();
    failed(error)
}

/// Returns the failure of a session that could not start, as under runc: by the status engines see that it was
/// not a program of the container that failed, and from these words they derive a shell's status.
fn not_entered(error: LibcontainerError) -> Failure {
    let mut message = not_made(error).message().to_owned();
    if message.contains("not found in $PATH") {
        message.push_str(" (executable file not found in $PATH)");
    }
    Failure::new(Exit::Command(NOT_ENTERED), message)
        .help("--runtime runc shows whether it is the configuration or libcontainer")
}

/// Reaps the processes of a failed start. No other process might reap them, and a container does not end while
/// its pid namespace has a dead process that is not reaped.
fn reap() {
    let begun = Instant::now();
    while begun.elapsed() < END_OF_FAILED {
        match wait::wait(Target::Any, wait::NO_HANG) {
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Ok(Some(_)) => {}
            // There are no children, or none any more.
            Err(_) => return,
        }
    }
}

fn failed(error: LibcontainerError) -> Failure {
    Failure::from_error(Exit::Command(FAILED), &error)
        .help("--runtime runc shows whether it is the configuration or libcontainer")
}
