//! Executable files that a test makes.
//!
//! The kernel does not execute a file that a process has open for writing (`ETXTBSY`). A test that writes one
//! itself has it open for a moment, and a child that another thread of the test program forks in that moment
//! keeps a copy of the descriptor until its own exec. So another process writes: its descriptors are no
//! thread's here.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// Copies a program, with its mode, so that it can be executed at once. An existing file of that name is
/// replaced, not written.
///
/// # Errors
/// If cp(1) cannot be started or fails; what it says goes to standard error.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let mut command = Command::new("cp");
    command.args(["--dereference", "--preserve=mode", "--remove-destination"]);
    command.args(["--no-target-directory", "--"]);
    let status = command.arg(from.as_ref()).arg(to.as_ref()).status()?;
    succeeded("cp", status)
}

/// Writes a script or program with the given mode, so that it can be executed at once.
///
/// # Errors
/// If tee(1) cannot be started or fails, or the mode cannot be set.
pub fn write_program(path: impl AsRef<Path>, mode: u32, text: impl AsRef<[u8]>) -> io::Result<()> {
    let mut command = Command::new("tee");
    command.arg("--").arg(path.as_ref());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let mut input = child.stdin.take().expect("it is a pipe");
    // A tee that ends early breaks the pipe; its status says why.
    let written = input.write_all(text.as_ref());
    drop(input);
    succeeded("tee", child.wait()?)?;
    written?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn succeeded(program: &str, status: ExitStatus) -> io::Result<()> {
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{program}: {status}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads start programs all the time, as other tests do, while one makes programs and executes them.
    #[test]
    fn a_program_can_be_executed_while_other_threads_start_programs() {
        let folder = tempfile::tempdir().unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                        assert!(Command::new("true").status().unwrap().success());
                    }
                });
            }
            for index in 0..50 {
                let copy = folder.path().join(format!("copy-{index}"));
                copy_program("/bin/true", &copy).unwrap();
                let script = folder.path().join(format!("script-{index}"));
                write_program(&script, 0o755, "#!/bin/sh\nexit 3\n").unwrap();
                let copied = Command::new(&copy).status().map(|status| status.code());
                let scripted = Command::new(&script).status().map(|status| status.code());
                assert_eq!((copied.unwrap(), scripted.unwrap()), (Some(0), Some(3)));
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("no/such");
        assert!(copy_program("/bin/true", &nowhere).is_err());
        assert!(write_program(&nowhere, 0o755, "x").is_err());
        assert!(copy_program(&nowhere, folder.path().join("x")).is_err());
    }
}
