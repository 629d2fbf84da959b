//! Running a command to its end, within a time limit.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Result of a command.
#[derive(Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Time until the command and all processes that held its output open had ended.
    pub elapsed: Duration,
}

impl Finished {
    /// Returns the exit status as a shell gives it.
    pub fn code(&self) -> i32 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        self.status
            .code()
            .or(signal)
            .expect("a command ends in one of two ways")
    }
}

/// A command in a process group of its own, which is killed when this is dropped.
#[derive(Debug)]
pub struct Limited {
    child: Child,
    group: Pid,
    started: Instant,
    limit: Duration,
}

impl Limited {
    /// Starts the command.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command, limit: Duration) -> Self {
        let started = Instant::now();
        command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = loop {
            match command.spawn() {
                Ok(child) => break child,
                // The program was copied a moment ago, and a child that another test has just forked still has the
                // copy open for writing.
                Err(error)
                    if error.kind() == ErrorKind::ExecutableFileBusy
                        && started.elapsed() < limit =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => panic!("cannot start {command:?}: {error}"),
            }
        };
        let group = Pid::from_child(&child);
        Self {
            child,
            group,
            started,
            limit,
        }
    }

    /// Returns the pid.
    pub fn pid(&self) -> Pid {
        self.group
    }

    /// Writes `input` to the command's standard input, and waits until it has ended and no process holds its
    /// output open.
    ///
    /// # Panics
    /// If that takes longer than the limit.
    pub fn finish(mut self, input: &[u8]) -> Finished {
        let writer = self.child.stdin.take().map(|mut pipe| {
            let input = input.to_owned();
            // A command that does not read its input causes EPIPE here, which is no failure.
            thread::spawn(move || drop(pipe.write_all(&input)))
        });
        let stdout = drain(self.child.stdout.take());
        let stderr = drain(self.child.stderr.take());
        let out = self.text(&stdout, "standard output");
        let err = self.text(&stderr, "standard error");
        let out = out.unwrap_or_else(|error| panic!("{error}; standard error: {err:?}"));
        let err = err.unwrap_or_else(|error| panic!("{error}; standard output: {out}"));
        let status = self.wait();
        if let Some(writer) = writer {
            writer.join().expect("the writer does not panic");
        }
        Finished {
            status,
            stdout: out,
            stderr: err,
            elapsed: self.started.elapsed(),
        }
    }

    fn text(&self, bytes: &Receiver<Vec<u8>>, what: &str) -> Result<String, String> {
        let mut all = Vec::new();
        loop {
            let left = self.limit.saturating_sub(self.started.elapsed());
            match bytes.recv_timeout(left) {
                Ok(more) => all.extend(more),
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok(String::from_utf8_lossy(&all).into_owned());
                }
                Err(RecvTimeoutError::Timeout) => {
                    let text = String::from_utf8_lossy(&all);
                    return Err(format!(
                        "{what} still open after {:?}; it has: {text}",
                        self.limit
                    ));
                }
            }
        }
    }

    fn wait(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status;
            }
            let late = self.started.elapsed() > self.limit;
            assert!(!late, "the command still runs after {:?}", self.limit);
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Fails if all have ended, as they should.
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.child.wait();
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let mut pipe = pipe.expect("output is piped");
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = pipe.read(&mut buffer) {
            if send.send(buffer[..read].to_owned()).is_err() {
                break;
            }
        }
    });
    receive
}
