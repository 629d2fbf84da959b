//! `tollgate watch`.

use std::time::Duration;

use capture::ptrace::{Hindrance, StartError};
use event::Pid;

use super::run;
use crate::args::Watch;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::supervise::attached;

/// Runs the verb.
pub(crate) fn execute(args: Watch) -> Outcome {
    let pids = args.pids.iter().copied().map(Pid).collect();
    let limit = args.seconds.map(Duration::from_secs);
    let start = run::services(args.detection)?;
    match attached::watch(pids, limit, start) {
        Ok(()) => Ok(Exit::Ok),
        Err(error) => Err(failure(&error)),
    }
}

fn failure(error: &anyhow::Error) -> Failure {
    // An error that is another one in all but name is not in the chain itself.
    let refused = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<StartError>());
    let Some(StartError::Attach(refused)) = refused else {
        return Failure::new(Exit::Internal, format!("cannot start watching: {error:#}"))
            .help("`tollgate doctor` shows what works here");
    };
    let exit = match refused.hindrance {
        Hindrance::Gone | Hindrance::Untraceable => Exit::BadInput,
        _ => Exit::Unsupported,
    };
    Failure::new(exit, refused.to_string()).help(help(&refused.hindrance))
}

fn help(hindrance: &Hindrance) -> &'static str {
    match hindrance {
        Hindrance::Gone => "look for its pid in this pid namespace, for example with `ps -e`",
        Hindrance::TracedBy { .. } => {
            "a thread has one tracer: end that one first, whether it is a debugger, strace or \
             another tollgate"
        }
        Hindrance::Untraceable => "name another process",
        Hindrance::Yama(1) => {
            "become root or get CAP_SYS_PTRACE, start the program with `tollgate run` instead, or \
             sysctl kernel.yama.ptrace_scope=0"
        }
        Hindrance::Yama(2) => "become root, or sysctl kernel.yama.ptrace_scope=1 or less",
        Hindrance::Yama(_) => {
            "boot with kernel.yama.ptrace_scope=1 in /etc/sysctl.d; until then nobody may attach"
        }
        Hindrance::Privileges => {
            "become its user or root; in a container add the capability SYS_PTRACE"
        }
        Hindrance::Other => "`tollgate doctor` shows whether ptrace works here",
    }
}
