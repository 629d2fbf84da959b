//! Makes itself traced: a process has only one tracer, so this keeps debuggers away.

use abi::Errno;
use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.PtraceAntiDebugAttempt",
    "have itself traced by its parent",
    play,
)
.rule("PTRACE anti-debug attempt");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    if !scene.is_spawned() {
        return scene.spawn_as("untraceable", ACTION.name);
    }
    match sys::attempt::trace_me() {
        // The process is already traced, for example by a detector that uses ptrace.
        Err(error) if !error.is(Errno::EPERM) => {
            Err(Error::call("have itself traced")(error).into())
        }
        _ => Ok(()),
    }
}
