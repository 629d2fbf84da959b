//! `host:script`: runs a program that gets the alert as JSON on its standard input.

use std::fs::File;
use std::io::{self, PipeReader, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use outputs::alert_json;
use process_info::procfs::Proc;
use rules::Alert;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::outcome::{Outcome, Status};
use crate::parameters::{ScriptCommand, ScriptOptions};
use crate::scripts::Scripts;

/// Number of bytes of a script's output that are reported.
const OUTPUT: usize = 4096;
/// Time in which a killed script has to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// Runs the script and waits for its end. Meanwhile it is one of `scripts`.
pub(crate) fn run(
    options: &ScriptOptions,
    rule: &str,
    alert: &Alert,
    (scripts, proc): (&Scripts, &Proc),
) -> Outcome {
    let started = scripts.start(proc, || {
        let running = start(options, rule, alert)?;
        let pid = event::Pid(running.group.as_raw_nonzero().get());
        Ok::<_, io::Error>((pid, running))
    });
    match started {
        Ok(running) => running.finish(options.timeout, scripts),
        Err(error) => {
            let name = name(options);
            Outcome::new(Status::Failed, format!("cannot start {name}: {error}"))
        }
    }
}

/// Describes the script in messages.
pub(crate) fn name(options: &ScriptOptions) -> String {
    match &options.command {
        ScriptCommand::File(file) => format!("`{}`", file.display()),
        ScriptCommand::Text { shell, .. } => format!("the script by `{}`", shell.display()),
    }
}

struct Running {
    child: Child,
    process: OwnedFd,
    group: Pid,
    output: PipeReader,
}

fn start(options: &ScriptOptions, rule: &str, alert: &Alert) -> io::Result<Running> {
    let mut command = match &options.command {
        ScriptCommand::File(file) => Command::new(file),
        ScriptCommand::Text { shell, script } => {
            let mut command = Command::new(shell);
            command.arg("-c").arg(script);
            command
        }
    };
    // A file instead of a pipe: a script that does not read keeps nobody waiting.
    let mut input = File::from(memfd_create("alert", MemfdFlags::CLOEXEC)?);
    input.write_all(alert_json(alert).as_bytes())?;
    input.write_all(b"\n")?;
    input.rewind()?;
    let (output, writer) = io::pipe()?;
    fcntl_setfl(&output, OFlags::NONBLOCK)?;
    command
        .env("TOLLGATE_RESPONSE_RULE", rule)
        .env("TOLLGATE_ALERT_RULE", &*alert.rule)
        .stdin(input)
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0);
    if let Some(process) = &alert.details.process {
        command.env("TOLLGATE_ALERT_PID", process.pid.0.to_string());
    }
    sys::signal::unblock_all_in(&mut command);
    let child = command.spawn()?;
    // The copies of the pipe's other end in `command` end with it.
    drop(command);
    let group = Pid::from_child(&child);
    match pidfd_open(group, PidfdFlags::empty()) {
        Ok(process) => Ok(Running {
            child,
            process,
            group,
            output,
        }),
        Err(error) => {
            let _ = kill_process_group(group, Signal::KILL);
            reap(child);
            Err(error.into())
        }
    }
}

/// Waits for a killed child. Its status does not matter.
fn reap(mut child: Child) {
    let _ = child.wait();
}

impl Running {
    fn finish(mut self, timeout: Duration, scripts: &Scripts) -> Outcome {
        let mut printed = Vec::new();
        let has_ended = self.follow(&mut printed, Instant::now() + timeout);
        if !has_ended {
            // Fails only if the whole group has just ended.
            let _ = kill_process_group(self.group, Signal::KILL);
            self.follow(&mut printed, Instant::now() + KILL_LIMIT);
        }
        // The pid may mean another process as soon as this one was reaped.
        scripts.ended(event::Pid(self.group.as_raw_nonzero().get()));
        let mut outcome = match (has_ended, self.child.wait()) {
            (false, _) => {
                let text = format!("killed after {} s", timeout.as_secs());
                Outcome::new(Status::Failed, text)
            }
            (true, Ok(status)) if status.success() => {
                Outcome::new(Status::Done, "exited with status 0")
            }
            (true, Ok(status)) => {
                let text = match (status.code(), status.signal()) {
                    (Some(code), _) => format!("exited with status {code}"),
                    (None, signal) => format!("killed by signal {}", signal.unwrap_or(0)),
                };
                Outcome::new(Status::Failed, text)
            }
            (true, Err(error)) => Outcome::new(Status::Failed, error.to_string()),
        };
        if !printed.is_empty() {
            outcome.output = Some(String::from_utf8_lossy(&printed).into_owned());
        }
        outcome
    }

    /// Reads output until the script has ended. Returns false after the deadline.
    fn follow(&mut self, printed: &mut Vec<u8>, deadline: Instant) -> bool {
        let mut is_open = true;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A time that is too long for the kernel is none.
            let limit = Timespec::try_from(left).ok();
            let process = PollFd::from_borrowed_fd(self.process.as_fd(), PollFlags::IN);
            let output = PollFd::from_borrowed_fd(self.output.as_fd(), PollFlags::IN);
            let mut fds = [process, output];
            let fds = if is_open { &mut fds[..] } else { &mut fds[..1] };
            match poll(fds, limit.as_ref()) {
                Ok(0) => return false,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
            let has_ended = !fds[0].revents().is_empty();
            if is_open {
                is_open = self.read(printed);
            }
            if has_ended {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// Reads what is there; what is too much is dropped. Returns false at the end.
    fn read(&mut self, printed: &mut Vec<u8>) -> bool {
        let mut chunk = [0; 4096];
        // A script that prints all the time must not keep the deadline from being looked at.
        for _ in 0..64 {
            match self.output.read(&mut chunk) {
                Ok(0) => return false,
                Ok(count) => {
                    let room = OUTPUT.saturating_sub(printed.len());
                    printed.extend_from_slice(&chunk[..count.min(room)]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }
}
