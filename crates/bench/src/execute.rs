//! Starting, timing and reaping of one command.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, Signal};
use wait4::Wait4;

use crate::record::Exit;
use crate::{Error, Stop, command_line};

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Bytes to add to the environment. The size of the environment moves the stack, which alone can change the
    /// time of a program by some percent (Mytkowicz and others, "Producing wrong data without doing anything
    /// obviously wrong", 2009). A new size for each sample turns that bias into noise.
    pub padding: usize,
    /// Time limit; the command is killed after that.
    pub timeout: Duration,
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// Wall time from before the start to after the end.
    pub wall: Duration,
    /// CPU time in user mode, including descendants that were waited for.
    pub user: Duration,
    /// CPU time in the kernel, including descendants that were waited for.
    pub sys: Duration,
    /// Largest resident set of one process, in KiB.
    pub max_rss_kib: u64,
    /// Exit of the command.
    pub exit: Exit,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs commands. Tests implement this without starting processes.
pub trait Executor {
    /// Runs one command to its end.
    ///
    /// # Errors
    ///
    /// If the command could not be started or supervised. A command that fails is not an error.
    fn execute(&mut self, invocation: &Invocation) -> Result<Execution, Error>;
}

/// Runs commands as child processes, each in a process group of its own.
///
/// Output goes to memory files, so that no reader of a pipe competes with the command for the CPU.
#[derive(Debug)]
pub struct Processes<'a> {
    stop: &'a Stop,
    output: Output,
}

/// What becomes of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Both streams are kept.
    Kept,
    /// Standard output is discarded, standard error is kept.
    Discarded,
    /// Both go where this program's go.
    Shown,
}

impl<'a> Processes<'a> {
    /// Creates an executor that kills its command when `stop` is requested.
    pub fn new(stop: &'a Stop) -> Self {
        Self::with_output(stop, Output::Kept)
    }

    /// Creates an executor that treats the output of its commands as `output` says.
    pub fn with_output(stop: &'a Stop, output: Output) -> Self {
        Self { stop, output }
    }
}

impl Executor for Processes<'_> {
    fn execute(&mut self, invocation: &Invocation) -> Result<Execution, Error> {
        let program = invocation.argv[0].clone();
        let fail = |action| {
            let program = program.clone();
            move |source| Error::Supervise {
                action,
                program,
                source,
            }
        };
        let mut stdout = memory_file().map_err(fail("hold the output of"))?;
        let mut stderr = memory_file().map_err(fail("hold the output of"))?;
        let kept = |file: &File| file.try_clone().map(Stdio::from);
        let [out, err] = match self.output {
            Output::Kept => [kept(&stdout), kept(&stderr)],
            Output::Discarded => [Ok(Stdio::null()), kept(&stderr)],
            Output::Shown => [Ok(Stdio::inherit()), Ok(Stdio::inherit())],
        };
        let mut command = Command::new(&program);
        command
            .args(&invocation.argv[1..])
            .env("TOLLGATE_BENCH_PADDING", "x".repeat(invocation.padding))
            .stdin(Stdio::null())
            .stdout(out.map_err(fail("hold the output of"))?)
            .stderr(err.map_err(fail("hold the output of"))?)
            .process_group(0);
        let start = Instant::now();
        let mut child = command.spawn().map_err(|source| Error::Start {
            program: program.clone(),
            line: command_line::join(&invocation.argv),
            source,
        })?;
        let ended = self.wait_for_end(&child, start + invocation.timeout);
        let wall = start.elapsed();
        // The group still exists, because its leader has not been reaped. This kills what the command left
        // running, which would disturb the next sample.
        let _ = signal_group(&child, Signal::KILL);
        let used = child.wait4().map_err(fail("wait for"))?;
        let exit = match ended.map_err(fail("wait for"))? {
            Some(exit) => exit,
            None => match used.status.code() {
                Some(code) => Exit::Code(code),
                None => Exit::Signal(used.status.signal().unwrap_or_default()),
            },
        };
        Ok(Execution {
            wall,
            user: used.rusage.utime,
            sys: used.rusage.stime,
            max_rss_kib: used.rusage.maxrss / 1024,
            exit,
            stdout: contents(&mut stdout).map_err(fail("read the output of"))?,
            stderr: contents(&mut stderr).map_err(fail("read the output of"))?,
        })
    }
}

impl Processes<'_> {
    /// Waits until the child has ended. Returns the reason if the child was killed.
    fn wait_for_end(&self, child: &Child, deadline: Instant) -> io::Result<Option<Exit>> {
        let pidfd = rustix::process::pidfd_open(pid_of(child)?, PidfdFlags::empty())?;
        let forced = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut watched = [
                PollFd::new(&pidfd, PollFlags::IN),
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            ];
            if !poll(&mut watched, left)? {
                break Exit::TimedOut;
            }
            if !watched[0].revents().is_empty() {
                return Ok(None);
            }
            if !watched[1].revents().is_empty() {
                break Exit::Interrupted;
            }
        };
        // A supervisor may have to detach from what it traces; SIGTERM gives it a moment before the kill.
        signal_group(child, Signal::TERM)?;
        let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
        if !poll(&mut watched, Duration::from_secs(2))? {
            signal_group(child, Signal::KILL)?;
        }
        Ok(Some(forced))
    }
}

/// Waits for an event. Returns whether one occurred within `limit`.
pub(crate) fn poll(watched: &mut [PollFd<'_>], limit: Duration) -> io::Result<bool> {
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    match rustix::event::poll(watched, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        // The signal made the stop descriptor readable, or was not for this program.
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

pub(crate) fn signal_group(child: &Child, signal: Signal) -> io::Result<()> {
    match rustix::process::kill_process_group(pid_of(child)?, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

pub(crate) fn pid_of(child: &Child) -> io::Result<Pid> {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the child has no process id"))
}

fn memory_file() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("tollgate-bench", MemfdFlags::CLOEXEC)?.into())
}

fn contents(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execute(argv: &[&str], timeout: Duration) -> Result<Execution, Error> {
        let argv = argv.iter().map(|&word| word.to_owned()).collect();
        let stop = Stop::new().unwrap();
        Processes::new(&stop).execute(&Invocation {
            argv,
            padding: 0,
            timeout,
        })
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn output_and_status_are_kept() {
        let done = execute(&["sh", "-c", "echo out; echo err >&2; exit 3"], LONG).unwrap();
        assert_eq!(
            (done.stdout.as_str(), done.stderr.as_str()),
            ("out\n", "err\n")
        );
        assert_eq!(done.exit, Exit::Code(3));
    }

    #[test]
    fn memory_and_time_are_those_of_this_child_alone() {
        // `RUSAGE_CHILDREN` would report the first command's peak for the second.
        let large = [
            "sh",
            "-c",
            "head -c 60000000 /dev/zero | tail -c 60000000 >/dev/null",
        ];
        let large = execute(&large, LONG).unwrap();
        let small = execute(&["true"], LONG).unwrap();
        assert!(large.max_rss_kib > 50_000, "{}", large.max_rss_kib);
        assert!(
            small.max_rss_kib < large.max_rss_kib / 2,
            "{}",
            small.max_rss_kib
        );
        assert!(large.user + large.sys > small.user + small.sys);
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed() {
        let done = execute(&["sleep", "600"], Duration::from_millis(50)).unwrap();
        assert_eq!(done.exit, Exit::TimedOut);
        assert!(done.wall < Duration::from_secs(20));
    }

    #[test]
    fn a_stop_kills_the_command() {
        let stop = Stop::new().unwrap();
        stop.request();
        let argv = ["sleep", "600"].map(str::to_owned).to_vec();
        let invocation = Invocation {
            argv,
            padding: 0,
            timeout: LONG,
        };
        let done = Processes::new(&stop).execute(&invocation).unwrap();
        assert_eq!(done.exit, Exit::Interrupted);
    }

    #[test]
    fn what_the_command_leaves_behind_is_killed() {
        let done = execute(&["sh", "-c", "sleep 600 & echo $!"], LONG).unwrap();
        let left = format!("/proc/{}/stat", done.stdout.trim());
        let alive = || {
            // A killed process that init has not reaped yet is a zombie.
            std::fs::read_to_string(&left).is_ok_and(|stat| !stat.contains(") Z "))
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while alive() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!alive());
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = execute(&["no-such-program-here", "x"], LONG).unwrap_err();
        assert!(
            error.to_string().contains("`no-such-program-here`"),
            "{error}"
        );
    }
}
