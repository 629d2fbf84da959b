//! `tollgate watch`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::journal;
use capture::ptrace::{StartError, TraceObstacle};
use capture::{ebpf, gvisor};
use container::ContainerOptions;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use event::Pid;
use supervisor::attached::{self, End};
use supervisor::{Mechanism, Source};

use crate::args::{Watch, WatchEngine};

/// Runs the verb.
pub(crate) fn execute(args: Watch) -> Outcome {
    if let Some(socket) = args.gvisor.clone() {
        return watch_sandboxes(args, &socket);
    }
    let pids: Vec<Pid> = args.pids.iter().copied().map(Pid).collect();
    let quiet = args.detection.quiet;
    let limit = args.seconds.map(Duration::from_secs);
    let places = places(args.containers, &args.cgroups)?;
    let mechanism = mechanism(args.engine, &pids, places.is_some())?;
    let source = match places {
        Some(places) => Source::Places(places),
        None if pids.is_empty() => Source::Host,
        None => Source::Running(pids),
    };
    let options = ContainerOptions {
        own_id: args.detection.container_id.clone(),
        ..ContainerOptions::default()
    };
    let start = agent::services(args.detection.into(), mechanism)?;
    if let (Source::Places(places), false) = (&source, quiet) {
        tell_of_absent(places, options);
    }
    match attached::watch(source, limit, start) {
        Ok(end) => {
            if end == End::NoneLeft && !quiet {
                terminal::complain("tollgate: every process that was to be watched has ended\n");
            }
            Ok(match end {
                // It was told, and asked for.
                End::TooManyLost => Exit::Failed,
                End::Asked | End::NoneLeft => Exit::Ok,
            })
        }
        Err(error) => Err(failure(&error)),
    }
}

/// Containers are waited for, which looks like a quiet one where the name is mistyped.
fn tell_of_absent(places: &ebpf::WatchScope, options: ContainerOptions) {
    match places.absent(options) {
        Ok(absent) => {
            for name in absent {
                journal::warn(&format!(
                    "warning: no container is called `{name}` yet, and no id begins so: it is waited for"
                ));
            }
        }
        Err(error) => journal::warn(&format!(
            "warning: cannot tell which of the containers are there: {error}"
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
    let (start, session) = agent::sandbox_services(args.detection.into(), &socket)?;
    if let Some(given) = &args.gvisor_given {
        warn_of_untold(&gvisor::untold(&session, given));
    }
    let endpoint = gvisor::Endpoint::listen(&socket).map_err(|error| {
        Failure::from_error(Exit::BadInput, &error)
            .help("name a file in a folder that exists and where nobody else listens")
    })?;
    // After the socket: whoever finds the file may begin.
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

/// What rules ask for and sandboxes do not tell, because somebody else's session leaves it out.
fn warn_of_untold(points: &[String]) {
    if !points.is_empty() {
        journal::warn(&format!(
            "warning: rules ask for what the trace session does not list, so sandboxes do not tell it: {}; \
             `falco --gvisor-generate-config` prints a session that does",
            points.join(", ")
        ));
    }
}

/// The containers and control groups that are to be watched, if any are named.
fn places(
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
        containers,
        cgroups: cgroups.iter().map(find).collect::<Result<_, _>>()?,
    }))
}

/// Watches nothing: outputs and servers work.
pub(super) fn idle(args: Watch) -> Outcome {
    let limit = args.seconds.map(Duration::from_secs);
    let start = agent::services(args.detection.into(), Mechanism::Nothing)?;
    match attached::watch(Source::Nothing, limit, start) {
        Ok(_) => Ok(Exit::Ok),
        Err(error) => Err(failure(&error)),
    }
}

/// Chooses by what works.
fn mechanism(engine: WatchEngine, pids: &[Pid], is_placed: bool) -> Result<Mechanism, Failure> {
    let tracer = Mechanism::Tracer { filtered: false };
    match engine {
        WatchEngine::Ebpf => Ok(Mechanism::Kernel),
        WatchEngine::Ptrace if pids.is_empty() => {
            let what = if is_placed {
                "containers or control groups"
            } else {
                "the whole machine"
            };
            let message = format!("cannot watch {what} with the engine ptrace");
            Err(Failure::new(Exit::BadInput, message)
                .help("name processes with -p, or become root and use --engine ebpf"))
        }
        WatchEngine::Ptrace => Ok(tracer),
        WatchEngine::Auto if pids.is_empty() => Ok(Mechanism::Kernel),
        WatchEngine::Auto => Ok(match ebpf::probe().is_usable() {
            true => Mechanism::Kernel,
            false => tracer,
        }),
    }
}

fn failure(error: &anyhow::Error) -> Failure {
    // An error that is another one in all but name is not in the chain itself.
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
        Some(refused @ (ebpf::Error::Load { .. } | ebpf::Error::Attach { .. })) => {
            Failure::from_error(Exit::Unsupported, refused).help(
                "become root on a machine whose kernel has BTF and allows BPF programs; \
                 `tollgate doctor` shows what works here",
            )
        }
        _ => Failure::new(Exit::Internal, format!("cannot start watching: {error:#}"))
            .help("`tollgate doctor` shows what works here"),
    }
}

fn help(hindrance: &TraceObstacle) -> &'static str {
    match hindrance {
        TraceObstacle::Gone => "look for its pid in this pid namespace, for example with `ps -e`",
        TraceObstacle::TracedBy { .. } => {
            "a thread has one tracer: end that one first, whether it is a debugger, strace or \
             another tollgate"
        }
        TraceObstacle::Untraceable => "name another process",
        TraceObstacle::Yama(1) => {
            "become root or get CAP_SYS_PTRACE, start the program with `tollgate run` instead, or \
             sysctl kernel.yama.ptrace_scope=0"
        }
        TraceObstacle::Yama(2) => "become root, or sysctl kernel.yama.ptrace_scope=1 or less",
        TraceObstacle::Yama(_) => {
            "boot with kernel.yama.ptrace_scope=1 in /etc/sysctl.d; until then nobody may attach"
        }
        TraceObstacle::Privileges => {
            "become its user or root; in a container add the capability SYS_PTRACE"
        }
        TraceObstacle::Other => "`tollgate doctor` shows whether ptrace works here",
    }
}
