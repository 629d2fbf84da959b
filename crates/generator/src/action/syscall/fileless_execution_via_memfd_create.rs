//! Executes a program that has no file.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop};

/// MFD_CLOEXEC: programs that start meanwhile must not inherit it.
const CLOSE_ON_EXEC: u32 = 1;

pub(super) const ACTION: Action = Action::new(
    "syscall.FilelessExecutionViaMemfdCreate",
    "run a program from memory",
    play,
)
.rule("Fileless execution via memfd_create")
.needs(&[Requirement::Readable("/bin/true")]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    let image = fs::read("/bin/true").map_err(Error::file("read", "/bin/true"))?;
    let memory = sys::fd::memory_file(c"program", CLOSE_ON_EXEC)
        .map_err(Error::call("make a file in memory"))?;
    let number = memory.as_raw_fd();
    File::from(
        memory
            .try_clone()
            .map_err(Error::call("duplicate a descriptor"))?,
    )
    .write_all(&image)
    .map_err(Error::call("write a file in memory"))?;
    // busybox, which `true` may be, looks at its name.
    let mut command = Command::new(format!("/proc/self/fd/{number}"));
    command.arg0("true");
    scene.run(command)
}
