//! Capture engine `ptrace`: for hosts without `notify`, and for processes that run already.
//!
//! One thread of this program traces every thread of the workload. A command gets the filter that the engine
//! `notify` would give it, except that planned calls stop for the tracer (`SECCOMP_RET_TRACE`); calls that no
//! rule asks for run at full speed. A process without such a filter stops at every call, and the tracer runs
//! the same filter: the same events, at twenty to fifty times the cost of a call.
//!
//! The tracer inspects a planned call in the stop before it ([`event::Stage`]), by the same steps as under
//! `notify`. Only if a rule is still undecided does the thread stop again after it.
//!
//! Differences from `notify`:
//!
//! - A thread has one tracer: debuggers do not work in the workload, and a process that is being
//!   debugged cannot be watched.
//! - A workload could install a filter of its own whose answer goes before ours (USER_NOTIF before
//!   TRACE) and answer itself. So while the filter is in use, a listener is refused, with the error that the
//!   kernel gives where there is one already.
//! - Nobody can take over from a tracer. If it dies, a command that it started is killed
//!   (`PTRACE_O_EXITKILL`), because its planned calls would fail with ENOSYS from then on.
//! - The tracer reads the caller's memory itself and cannot be replaced while a page does not come, so
//!   it reads only pages that are in memory, and has others fetched. A process that takes a page away between
//!   the check and the read, and holds the tracer up for a second, is killed, and that is reported.

mod attach;
mod engine;
mod entry_monitor;
mod guard;
mod inspection;
mod newborns;
mod pages;
mod request_queue;
mod stdio;

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use event::{Evaluator, Pid};
use sys::notify::Listener;

use crate::notify::{NotifyEngine, Parts, ReceiverStatus, Shared, tripwire, watchdog};
use seccomp::{FilterOptions, FilterProgram};

pub use attach::{AttachError, TraceObstacle};
use engine::Engine;
pub use entry_monitor::watch_entries;
use request_queue::RequestQueue;

/// Distinguishes stops of this program's filter from those of another one.
const MARK: u16 = 0x7467;

/// Processes to trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A child that is about to install the filter, if it can, and to execute a program. It must not go on
    /// before [`start`] has returned.
    Command(Pid),
    /// Running processes, with their threads and children.
    Running(Vec<Pid>),
}

/// Reason why the engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A process may not be traced.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A thread or descriptor could not be created.
    #[error("cannot start the tracer")]
    Resources(#[source] std::io::Error),
}

/// Returns the options with which the filter of a traced command is compiled.
#[must_use]
pub fn filter_options(native: abi::Arch) -> FilterOptions {
    FilterOptions::trace(native, MARK)
}

/// Creates a stand-in for the listener in [`Parts`]: this engine has none.
///
/// # Errors
///
/// If no descriptor is available.
pub fn no_listener() -> std::io::Result<Listener> {
    Ok(Listener::new(sys::fd::eventfd(0)?))
}

/// Starts the tracer. `filter`: compiled from the plan with [`filter_options`].
///
/// # Errors
///
/// If a process may not be traced, or threads cannot be started.
pub fn start<J: Evaluator + 'static>(
    mut parts: Parts<J>,
    pulse: Arc<ReceiverStatus>,
    filter: FilterProgram,
    target: Target,
) -> Result<NotifyEngine<J>, StartError> {
    watchdog::prepare_signals().map_err(StartError::Resources)?;
    let (paths, verify) = (std::mem::take(&mut parts.paths), parts.verify.verify);
    let mut shared = Arc::new(Shared::new(parts, pulse).map_err(StartError::Resources)?);
    shared.names.follow(&paths, &shared.tree.inspector);
    tripwire::prepare(&mut shared, &paths, verify);
    let inbox = Arc::new(RequestQueue::default());
    let post = Arc::new(guard::TracerView::default());
    let (began, has_begun) = sync_channel(1);
    let engine = {
        let (shared, inbox, post) = (Arc::clone(&shared), Arc::clone(&inbox), Arc::clone(&post));
        move || {
            inbox.enter();
            let mut engine = Engine::new(Arc::clone(&shared), Arc::clone(&inbox), post, filter);
            let attached = engine.begin(&target);
            let goes_on = attached.is_ok();
            // The other end waits for exactly this message.
            let _ = began.send(attached);
            if goes_on {
                engine.run();
            }
            inbox.leave();
            shared.end();
        }
    };
    let tracer = std::thread::Builder::new()
        .name("tracer".to_owned())
        .spawn(engine)
        .map_err(StartError::Resources)?;
    match has_begun.recv() {
        Ok(attached) => attached?,
        // The tracer panicked, and the panic hook has printed the reason.
        Err(_) => return Err(StartError::Resources(std::io::Error::other("it panicked"))),
    }
    let guard =
        guard::start(Arc::clone(&shared), inbox, post, tracer).map_err(StartError::Resources)?;
    Ok(NotifyEngine::assemble(shared, guard))
}
