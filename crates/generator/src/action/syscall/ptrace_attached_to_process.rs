//! Attaches to another process with ptrace.

use abi::Errno;
use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.PtraceAttachedToProcess",
    "attach to a process of its own by ptrace",
    play,
)
.rule("PTRACE attached to process");

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let mut sleep = scene.command("sleep")?;
    let mut target = sleep
        .arg("60")
        .spawn()
        .map_err(Error::call("start `sleep`"))?;
    let attached = sys::attempt::attach(target.id().cast_signed());
    let ended = target.kill().and_then(|()| target.wait());
    match attached {
        // The process is already traced, for example by a detector that uses ptrace.
        Err(error) if !error.is(Errno::EPERM) => {
            return Err(Error::call("attach to a process")(error).into());
        }
        _ => {}
    }
    ended.map_err(Error::call("end `sleep`"))?;
    Ok(())
}
