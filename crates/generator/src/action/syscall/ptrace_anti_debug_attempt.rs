//! Only one can trace, so this keeps debuggers away.

use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

const EPERM: i32 = 1;

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
        // A tracer is there already, such as a detector that works by ptrace.
        Err(error) if !error.is(EPERM) => Err(Error::call("have itself traced")(error).into()),
        _ => Ok(()),
    }
}
