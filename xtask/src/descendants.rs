//! Running a command under a limit, and ending all that it started.
//!
//! A test starts processes in other process groups, sessions, control groups and pid namespaces, and daemons whose
//! parents have ended. All of them stay descendants of this process, because orphans become its children
//! (`PR_SET_CHILD_SUBREAPER`, prctl(2)). So it ends what it started, and nothing else, without a look at any name.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, wait,
};

/// How often limits are looked at.
const TICK: Duration = Duration::from_millis(20);

/// How long killed processes may take to end: those that dump memory, or unmount.
const ENDING: Duration = Duration::from_secs(20);

/// What watches a command.
pub(crate) trait Observer {
    /// Takes what the command prints.
    fn print(&mut self, bytes: &[u8]);

    /// Takes each whole line of it, without its end.
    fn line(&mut self, line: &str);

    /// Returns true if the command has to be killed now.
    fn is_late(&mut self) -> bool;
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its status. `None` if it was killed because it was late.
    pub(crate) status: Option<WaitStatus>,
    /// Processes that it left, or that were killed with it, as `PID NAME`.
    pub(crate) killed: Vec<String>,
}

impl Ended {
    /// Returns true if the command succeeded.
    pub(crate) fn is_success(&self) -> bool {
        self.status
            .is_some_and(|status| status.exit_status() == Some(0))
    }

    /// Returns the exit code that a shell would have: 124 for a command that was late, as timeout(1).
    pub(crate) fn code(&self) -> ExitCode {
        let Some(status) = self.status else {
            return ExitCode::from(124);
        };
        let signal = status.terminating_signal().map(|signal| signal + 128);
        let code = status.exit_status().or(signal);
        // A status that is none of both is no success.
        ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }
}

/// Prepares this process: it adopts orphans, and an interruption ends what it started.
pub(crate) fn prepare() -> Result<Arc<AtomicBool>> {
    set_child_subreaper(Some(getpid())).context("cannot adopt orphans")?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .context("cannot handle interruptions")?;
    }
    Ok(interrupted)
}

/// Runs a command, and kills whatever it has left when it ends or is late. With `both`, standard error is watched
/// as standard output is.
///
/// # Errors
/// The command does not start, or this process was interrupted.
pub(crate) fn supervise(
    command: &mut Command,
    both: bool,
    interrupted: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Ended> {
    let (reader, writer) = io::pipe().context("cannot make a pipe")?;
    if both {
        let writer = writer.try_clone().context("cannot make a pipe")?;
        command.stderr(writer);
    }
    let child = command.stdout(writer).spawn();
    // The command has the ends to write to; one that stays here would keep the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::inherit());
    let child = child.with_context(|| format!("cannot start {command:?}"))?;
    let pid = Pid::from_child(&child);
    let mut output = Output {
        chunks: read_all(reader),
        rest: Vec::new(),
    };
    let mut status = None;
    while status.is_none() && !observer.is_late() && !interrupted.load(Ordering::Relaxed) {
        output.pass_on(TICK, observer);
        status = reap(pid)?;
    }
    let killed = kill_all(pid);
    output.pass_on_rest(observer);
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted; {} processes were killed", killed.len());
    }
    Ok(Ended { status, killed })
}

/// What a command prints.
struct Output {
    chunks: Receiver<Vec<u8>>,
    rest: Vec<u8>,
}

impl Output {
    /// Passes on what is printed within this time. Returns false if nothing more can come.
    fn pass_on(&mut self, time: Duration, observer: &mut dyn Observer) -> bool {
        match self.chunks.recv_timeout(time) {
            Ok(chunk) => {
                observer.print(&chunk);
                self.rest.extend(chunk);
                while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.rest.drain(..=end).collect();
                    observer.line(&String::from_utf8_lossy(&line[..end]));
                }
                true
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => {
                // Else who waits for the command does not sleep.
                thread::sleep(time);
                false
            }
        }
    }

    fn pass_on_rest(&mut self, observer: &mut dyn Observer) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.pass_on(TICK, observer) && Instant::now() < deadline {}
    }
}

fn read_all(mut pipe: io::PipeReader) -> Receiver<Vec<u8>> {
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

/// Reaps all children that have ended. Returns the status of this one if it is among them.
fn reap(of: Pid) -> Result<Option<WaitStatus>> {
    let mut found = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == of => found = Some(status),
            Ok(Some(_)) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(found),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for a command"),
        }
    }
}

/// A process of `/proc`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    name: String,
    parent: i32,
    is_zombie: bool,
    /// Clock ticks since the machine started: with the pid, it names a process for ever.
    start: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(pid: i32, text: &str) -> Option<Self> {
        // A name may contain parentheses, so the last one ends it.
        let (head, tail) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = tail.split(' ').collect();
        Some(Self {
            pid,
            name: head.split_once('(')?.1.to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            is_zombie: matches!(*fields.first()?, "Z" | "X"),
            start: fields.get(19)?.parse().ok()?,
        })
    }

    /// Kills the process. One that has ended meanwhile is not mistaken for another with its pid.
    fn kill(&self) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return false;
        };
        let Ok(file) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        let is_same = Self::read(self.pid).is_some_and(|now| now.start == self.start);
        is_same && pidfd_send_signal(file, Signal::KILL).is_ok()
    }
}

/// Returns living processes below this one.
fn descendants(of: i32) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    below(of, pids.filter_map(Process::read).collect())
}

fn below(of: i32, all: Vec<Process>) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut open, mut found) = (vec![of], Vec::new());
    while let Some(pid) = open.pop() {
        for process in children.remove(&pid).into_iter().flatten() {
            open.push(process.pid);
            found.push(process);
        }
    }
    found.retain(|process| !process.is_zombie);
    found
}

/// Kills all processes below this one until none is left, also those that are made meanwhile. Returns those that
/// were killed, or that did not end.
fn kill_all(child: Pid) -> Vec<String> {
    let own = getpid().as_raw_nonzero().get();
    let deadline = Instant::now() + ENDING;
    let mut killed = BTreeMap::new();
    loop {
        let living = descendants(own);
        for process in &living {
            if process.kill() {
                killed.insert((process.pid, process.start), process.name.clone());
            }
        }
        // The status of a command that is late says nothing.
        if let Err(error) = reap(child) {
            eprintln!("xtask: {error:#}");
        }
        if living.is_empty() {
            break;
        }
        if Instant::now() > deadline {
            let names: Vec<_> = living
                .iter()
                .map(|p| format!("{} {}", p.pid, p.name))
                .collect();
            eprintln!(
                "xtask: killed processes have not ended: {}",
                names.join(", ")
            );
            break;
        }
        thread::sleep(TICK);
    }
    let names = killed.into_iter();
    names
        .map(|((pid, _), name)| format!("{pid} {name}"))
        .collect()
}

/// Writes to standard output. A reader that has gone stops nothing.
pub(crate) fn forward(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    // Nobody is left to be told.
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, state: &str) -> Process {
        let zeros = ["0"; 17].join(" ");
        let text = format!("{pid} (a) (b)) {state} {parent} {zeros} 77 0\n");
        Process::parse(pid, &text).unwrap()
    }

    #[test]
    fn a_name_with_parentheses_is_read_to_its_end() {
        let found = process(5, 1, "S");
        assert_eq!(
            (found.name.as_str(), found.parent, found.start),
            ("a) (b)", 1, 77)
        );
    }

    #[test]
    fn processes_below_are_found_at_any_depth_and_no_others() {
        let all = vec![
            process(2, 1, "S"),
            process(3, 2, "S"),
            process(4, 3, "Z"),
            process(5, 4, "R"),
            process(6, 1, "S"),
        ];
        let mut pids: Vec<i32> = below(2, all).iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [3, 5]);
    }
}
