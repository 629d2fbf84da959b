//! `tollgate watch`: watches running processes, containers or the whole host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::journal;
use capture::ptrace::{StartError, TraceObstacle};
use capture::{ebpf, gvisor};
use config::Places;
use container::ContainerOptions;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use event::{EngineKind, Pid};
use supervisor::Source;
use supervisor::attached::{self, End};

use crate::args::{Watch, WatchEngine};

/// Runs the verb.
pub(crate) fn execute(mut args: Watch) -> Outcome {
    args.detection.places = Places::of_user()?;
    watch(args)
}

/// Watches with the configuration of the machine and the user that the arguments name, if any.
pub(super) fn watch(args: Watch) -> Outcome {
    if let Some(socket) = args.gvisor.clone() {
        return watch_sandboxes(args, &socket);
    }
    let pids: Vec<Pid> = args.pids.iter().copied().map(Pid).collect();
    let quiet = args.detection.quiet;
    let limit = args.seconds.map(Duration::from_secs);
    let places = places(args.containers, &args.cgroups)?;
    let engine = choose(args.engine, &pids, places.is_some())?;
    let source = match places {
        Some(places) => Source::Places(places),
        None if pids.is_empty() => Source::Host,
        None => Source::Running(pids),
    };
    let options = ContainerOptions {
        own_id: args.detection.container_id.clone(),
        ..ContainerOptions::default()
    };
    let start = agent::services(args.detection.checked()?, engine)?;
    if let (Source::Places(places), false) = (&source, quiet) {
        tell_of_absent(places, options);
    }
    match attached::watch(source, limit, start) {
        Ok(end) => {
            if end == End::NoneLeft && !quiet {
                terminal::complain("tollgate: all watched processes have ended\n");
            }
            Ok(match end {
                // The user asked for this end, and the reason has been printed.
                End::TooManyLost => Exit::Failed,
                End::Asked | End::NoneLeft => Exit::Ok,
            })
        }
        Err(error) => Err(failure(&error)),
    }
}

/// Warns about named containers that do not run yet. The monitor waits for them, so a mistyped name looks like
/// a quiet container.
fn tell_of_absent(places: &ebpf::WatchScope, options: ContainerOptions) {
    match places.absent(options) {
        Ok(absent) => {
            for name in absent {
                journal::warn(&format!(
                    "warning: no container has the name or ID `{name}` yet; waiting for one"
                ));
            }
        }
        Err(error) => journal::warn(&format!(
            "warning: cannot list the running containers: {error}"
        )),
    }
}

/// Watches sandboxes of gVisor.
fn watch_sandboxes(args: Watch, socket: &Path) -> Outcome {
    let limit = args.seconds.map(Duration::from_secs);
    let bad_path = |cause: std::io::Error| {
        let message = format!("cannot use {} as a socket: {cause}", socket.display());
        Failure::new(Exit::BadInput, message).help("name a file in a folder that exists")
    };
    let socket = std::path::absolute(socket).map_err(bad_path)?;
    let (start, session) = agent::sandbox_services(args.detection.checked()?, &socket)?;
    if let Some(given) = &args.gvisor_given {
        warn_of_unreported(&gvisor::unreported(&session, given));
    }
    let endpoint = gvisor::Endpoint::listen(&socket).map_err(|error| {
        Failure::from_error(Exit::BadInput, &error)
            .help("name a socket in an existing folder that no other process listens on")
    })?;
    // Written after the socket exists: a reader of the file may start at once.
    if let Some(file) = &args.gvisor_session {
        let text = format!("{session:#}\n");
        std::fs::write(file, text).map_err(|cause| {
            let message = format!("cannot write {}: {cause}", file.display());
            Failure::new(Exit::BadInput, message)
                .help("name a writable file after --gvisor-session")
        })?;
    }
    match attached::watch(Source::Sandboxes(endpoint), limit, start) {
        Ok(_) => Ok(Exit::Ok),
        Err(error) => Err(failure(&error)),
    }
}

/// Warns about events that rules need and that sandboxes do not send, because the given session leaves them
/// out.
fn warn_of_unreported(points: &[String]) {
    if !points.is_empty() {
        journal::warn(&format!(
            "warning: the trace session lacks points that the rules need: {}; `falco \
            --gvisor-generate-config` prints a complete session",
            points.join(", ")
        ));
    }
}

/// Returns the containers and control groups to watch, if any are named.
pub(super) fn places(
    containers: Vec<String>,
    cgroups: &[PathBuf],
) -> Result<Option<ebpf::WatchScope>, Failure> {
    if containers.is_empty() && cgroups.is_empty() {
        return Ok(None);
    }
    let find = |path: &PathBuf| {
        ebpf::Cgroup::find(path).map_err(|error| {
            Failure::from_error(Exit::BadInput, &error).help(match error {
                ebpf::CgroupError::Namespace => "watch from the host",
                _ => {
                    "name a folder of a control group, as in /sys/fs/cgroup/system.slice; \
                     `cat /proc/PID/cgroup` shows those of a process"
                }
            })
        })
    };
    Ok(Some(ebpf::WatchScope {
        choice: None,
        containers,
        cgroups: cgroups.iter().map(find).collect::<Result<_, _>>()?,
    }))
}

/// Runs outputs and servers without watching anything.
pub(super) fn idle(args: Watch) -> Outcome {
    let limit = args.seconds.map(Duration::from_secs);
    let start = agent::services(args.detection.checked()?, EngineKind::Nodriver)?;
    match attached::watch(Source::Nothing, limit, start) {
        Ok(_) => Ok(Exit::Ok),
        Err(error) => Err(failure(&error)),
    }
}

/// Chooses an engine that works.
fn choose(engine: WatchEngine, pids: &[Pid], is_placed: bool) -> Result<EngineKind, Failure> {
    match engine {
        WatchEngine::Ebpf => Ok(EngineKind::Ebpf),
        WatchEngine::Ptrace if pids.is_empty() => {
            let what = if is_placed {
                "containers or control groups"
            } else {
                "the whole host"
            };
            let message = format!("cannot watch {what} with the engine ptrace");
            Err(Failure::new(Exit::BadInput, message)
                .help("name processes with -p, or run as root with --engine ebpf"))
        }
        WatchEngine::Ptrace => Ok(EngineKind::Ptrace),
        WatchEngine::Auto if pids.is_empty() => Ok(EngineKind::Ebpf),
        WatchEngine::Auto => Ok(match ebpf::probe().is_usable() {
            true => EngineKind::Ebpf,
            false => EngineKind::Ptrace,
        }),
    }
}

fn failure(error: &anyhow::Error) -> Failure {
    // The cause of an error that only wraps another one is not in the chain itself.
    let refused = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<StartError>());
    if let Some(StartError::Attach(refused)) = refused {
        let exit = match refused.hindrance {
            TraceObstacle::Gone | TraceObstacle::Untraceable => Exit::BadInput,
            _ => Exit::Unsupported,
        };
        return Failure::new(exit, refused.to_string()).help(help(&refused.hindrance));
    }
    match error
        .chain()
        .find_map(|cause| cause.downcast_ref::<ebpf::Error>())
    {
        Some(refused @ ebpf::Error::Gone { .. }) => {
            Failure::from_error(Exit::BadInput, refused).help(help(&TraceObstacle::Gone))
        }
        Some(refused @ ebpf::Error::Unprivileged) => {
            Failure::from_error(Exit::Unsupported, refused).help(
                "`sudo tollgate watch`; without root, `tollgate run -- CMD` watches a command and \
                `tollgate watch -p PID` a process",
            )
        }
        Some(refused @ (ebpf::Error::Load { .. } | ebpf::Error::Attach { .. })) => {
            Failure::from_error(Exit::Unsupported, refused).help(
                "run as root on a kernel with BTF that allows BPF programs; `tollgate doctor` shows what \
                works here",
            )
        }
        _ => Failure::new(Exit::Internal, format!("cannot start watching: {error:#}"))
            .help("`tollgate doctor` shows what works here"),
    }
}

fn help(hindrance: &TraceObstacle) -> &'static str {
    match hindrance {
        TraceObstacle::Gone => "find its PID in this PID namespace, for example with `ps -e`",
        TraceObstacle::TracedBy { .. } => {
            "a thread can have only one tracer: stop the debugger, strace or other tollgate that traces it"
        }
        TraceObstacle::Untraceable => "name another process",
        TraceObstacle::Yama(1) => {
            "run as root or with CAP_SYS_PTRACE, start the program with `tollgate run` instead, or set \
            sysctl kernel.yama.ptrace_scope=0"
        }
        TraceObstacle::Yama(2) => "run as root, or set sysctl kernel.yama.ptrace_scope to 1 or 0",
        TraceObstacle::Yama(_) => {
            "set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and reboot; until then no process can attach"
        }
        TraceObstacle::Privileges => {
            "run as the user of that process or as root; in a container, add the capability SYS_PTRACE"
        }
        TraceObstacle::Other => "`tollgate doctor` shows whether ptrace works here",
    }
}
