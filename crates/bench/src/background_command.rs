//! Commands that run with something in the background.
//!
//! Three hidden verbs that plans put around command lines: `beside` runs a host-wide monitor while a command
//! runs, `neighbour` measures a load while a command runs, and `inside` runs a command in a given environment.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{PidfdFlags, Signal};

use crate::execute::{pid_of, poll, signal_group};
use crate::{Error, Stop};

/// Placeholder in a monitor's arguments: a file that the monitor writes when it is ready.
const READY: &str = "%READY";

/// Placeholder in the arguments of a neighbour's command: a file that the command makes when its work starts.
const STARTED: &str = "%STARTED";

/// Time limit for a monitor to become ready. A debug build that loads many rules is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time limit for a monitor to write its counters and end.
pub(crate) const FAREWELL: Duration = Duration::from_secs(10);

/// Exit status when the environment could not be set up; the runner then discards the sample.
const NOT_SET: u8 = 70;

/// Runs the words after the first `--` while those before it run. Returns the command's exit status.
///
/// # Errors
///
/// If either does not start, or the monitor ends before the command does.
pub(crate) fn beside(words: &[String]) -> Result<u8, Error> {
    let (watcher, command) = apart(words, "bench beside")?;
    let stop = signals()?;
    let folder = crate::scratch()?;
    watched(&stop, folder.path(), watcher, command)
}

fn watched(
    stop: &Stop,
    folder: &Path,
    watcher: &[String],
    command: &[String],
) -> Result<u8, Error> {
    let said = folder.join("output");
    let ready = folder.join("ready");
    let has_file = watcher.iter().any(|word| word.contains(READY));
    let words: Vec<String> = watcher
        .iter()
        .map(|word| word.replace(READY, &ready.to_string_lossy()))
        .collect();
    let output = File::create(&said).map_err(Error::file("create", &said))?;
    let again = output.try_clone().map_err(Error::file("create", &said))?;
    // setpriv(1) ends the monitor with this process, even if this process is killed.
    let mut watcher = start(
        Command::new("setpriv")
            .args(["--pdeathsig", "INT", "--"])
            .args(&words)
            .stdout(output)
            .stderr(again),
        "setpriv",
    )?;
    let outcome = wait_until_ready(&mut watcher, if has_file { &ready } else { &said }, &said)
        .and_then(|()| {
            let mut child = start(Command::new(&command[0]).args(&command[1..]), &command[0])?;
            let status = wait(stop, &mut child, Duration::MAX)?;
            if watcher
                .try_wait()
                .map_err(Error::supervise("wait for", &words[0]))?
                .is_some()
            {
                return Err(ended_early(&said));
            }
            Ok(status)
        });
    signal(&watcher, Signal::INT);
    wait(&Stop::new()?, &mut watcher, FAREWELL)?;
    outcome.map(code)
}

fn wait_until_ready(watcher: &mut Child, sign: &Path, said: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    while fs::metadata(sign).map_or(0, |file| file.len()) == 0 {
        let ended = watcher
            .try_wait()
            .map_err(Error::supervise("wait for", "the watcher"))?;
        if ended.is_some() || Instant::now() > deadline {
            return Err(ended_early(said));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Programs are attached one after the other; the last may follow the ready file.
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}

fn ended_early(said: &Path) -> Error {
    // If the file is missing, there are no warnings to forward.
    let said = fs::read_to_string(said).unwrap_or_default();
    Error::Stage {
        reason: format!("the watcher did not run all the time: {}", said.trim()),
    }
}

/// Runs `load` for `seconds` while the command runs, then ends the command. Prints the load's result line. The command's
/// arguments name the file `%STARTED`, which it makes when its work starts: before that there would be no neighbour.
///
/// # Errors
///
/// If either does not start, or the command ends before the load does.
pub(crate) fn neighbour(
    program: &Path,
    load: &str,
    seconds: f64,
    command: &[String],
) -> Result<u8, Error> {
    let stop = signals()?;
    let folder = crate::scratch()?;
    let started = folder.path().join("started");
    let words = (command.iter()).map(|word| word.replace(STARTED, &started.to_string_lossy()));
    let mut busy = start(
        Command::new(&command[0])
            .args(words.skip(1))
            .stdout(Stdio::null())
            .process_group(0),
        &command[0],
    )?;
    let measured = wait_for_work(&stop, &mut busy, &started).and_then(|()| {
        let seconds = seconds.to_string();
        let mut measured = Command::new(program);
        measured.args(["workload", load, "--seconds", &seconds]);
        let mut child = start(&mut measured, &program.to_string_lossy())?;
        wait(&stop, &mut child, Duration::MAX)
    });
    let ended = busy
        .try_wait()
        .map_err(Error::supervise("wait for", &command[0]))?;
    // The command may have ended already, which the check above reports.
    let _ = signal_group(&busy, Signal::TERM);
    wait(&Stop::new()?, &mut busy, FAREWELL)?;
    match ended {
        Some(status) => Err(Error::Stage {
            reason: format!("the neighbour exited too early: {status}"),
        }),
        None => measured.map(code),
    }
}

/// Waits until the command's work has started, or the command has ended.
fn wait_for_work(stop: &Stop, busy: &mut Child, started: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    while !started.exists() && !stop.is_requested() {
        let ended = (busy.try_wait()).map_err(Error::supervise("wait for", "the neighbour"))?;
        if ended.is_some() {
            break;
        }
        if Instant::now() > deadline {
            let seconds = PATIENCE.as_secs();
            return Err(Error::Stage {
                reason: format!("the neighbour did not start its work within {seconds} s"),
            });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Runs the command in a control group that is limited to a quarter of a processor.
///
/// # Errors
///
/// If the group cannot be made (it needs root and the cpu controller), or the command does not start.
pub(crate) fn quarter_cpu(command: &[String]) -> Result<u8, Error> {
    let stop = signals()?;
    let group = Quarter::make()?;
    // The shell moves itself into the group before it execs the command, so that nothing runs outside.
    let script = "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"";
    let mut child = start(
        Command::new("/bin/sh")
            .args(["-c", script])
            .arg(&group.folder)
            .args(command),
        "/bin/sh",
    )?;
    wait(&stop, &mut child, Duration::MAX).map(code)
}

struct Quarter {
    folder: PathBuf,
}

impl Quarter {
    fn make() -> Result<Self, Error> {
        let name = format!("tollgate-bench-{}", std::process::id());
        let unified = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(unified.join("cgroup.controllers"));
        let (folder, limits): (PathBuf, &[(&str, &str)]) = match controllers {
            Ok(names) if names.split_whitespace().any(|name| name == "cpu") => {
                (unified.join(name), &[("cpu.max", "25000 100000")])
            }
            _ => (
                unified.join("cpu").join(name),
                &[
                    ("cpu.cfs_period_us", "100000"),
                    ("cpu.cfs_quota_us", "25000"),
                ],
            ),
        };
        fs::create_dir(&folder).map_err(Error::file("make the control group", &folder))?;
        let group = Self { folder };
        for (file, limit) in limits {
            let path = group.folder.join(file);
            fs::write(&path, limit).map_err(Error::file("limit the control group by", &path))?;
        }
        Ok(group)
    }
}

impl Drop for Quarter {
    fn drop(&mut self) {
        // Processes that are ending still count as members for a moment.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Runs the command in a session that enters a container from outside, as `docker exec` does.
///
/// # Errors
///
/// If the container does not start (it needs root), or the command does not start.
pub(crate) fn session(command: &[String]) -> Result<u8, Error> {
    const CONTAINER: [&str; 8] = [
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "--cgroup",
        "--uts",
        "--ipc",
        "--kill-child",
    ];
    let stop = signals()?;
    let mut container = start(
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "unshare"])
            .args(CONTAINER)
            .args(["sh", "-c", "echo ready; exec sleep infinity"])
            .stdout(Stdio::piped()),
        "setpriv",
    )?;
    let outcome = first_process(&mut container).and_then(|pid| {
        let pid = pid.to_string();
        // Entering another mount namespace leaves the caller at that namespace's root.
        let folder =
            std::env::current_dir().map_err(Error::file("find the folder", Path::new(".")))?;
        // One word, because the option's value is optional.
        let mut wdns = OsString::from("--wdns=");
        wdns.push(folder);
        let mut child = start(
            Command::new("nsenter")
                .args([
                    "--target", &pid, "--mount", "--uts", "--ipc", "--pid", "--cgroup",
                ])
                .arg(wdns)
                .arg("--")
                .args(command),
            "nsenter",
        )?;
        wait(&stop, &mut child, Duration::MAX)
    });
    // With --kill-child the container's first process ends, too.
    signal(&container, Signal::KILL);
    let ended = container.wait();
    ended.map_err(Error::supervise("wait for", "unshare"))?;
    outcome.map(code)
}

/// Returns the pid of the only child of `unshare`, after that child has printed that it runs.
fn first_process(container: &mut Child) -> Result<u32, Error> {
    let mut said = [0; 6];
    let pipe = container.stdout.as_mut().expect("it is a pipe");
    let stage = |reason: &str| Error::Stage {
        reason: reason.to_owned(),
    };
    std::io::Read::read_exact(pipe, &mut said)
        .map_err(|_closed| stage("unshare could not make the container; are you root?"))?;
    let id = container.id();
    let path = PathBuf::from(format!("/proc/{id}/task/{id}/children"));
    let children = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
    children
        .split_whitespace()
        .next()
        .and_then(|pid| pid.parse().ok())
        .ok_or_else(|| stage("the container has no process"))
}

/// Returns the words before and after the first `--`.
fn apart<'a>(words: &'a [String], verb: &str) -> Result<(&'a [String], &'a [String]), Error> {
    let at = words.iter().position(|word| word == "--");
    match at.map(|at| (&words[..at], &words[at + 1..])) {
        Some((one, other)) if !one.is_empty() && !other.is_empty() => Ok((one, other)),
        _ => Err(Error::Option {
            option: verb.to_owned(),
            reason: "expected WATCHER -- COMMAND".to_owned(),
        }),
    }
}

fn signals() -> Result<Stop, Error> {
    Stop::on_signals()
}

pub(crate) fn start(command: &mut Command, program: &str) -> Result<Child, Error> {
    command
        .stdin(Stdio::null())
        .spawn()
        .map_err(|source| Error::Start {
            program: program.to_owned(),
            line: format!("{command:?}"),
            source,
        })
}

/// Waits for the end of `child`. Ends `child` when a stop is requested or `limit` has passed.
pub(crate) fn wait(stop: &Stop, child: &mut Child, limit: Duration) -> Result<ExitStatus, Error> {
    let fail = |source| Error::supervise("wait for", "a process")(source);
    // A process that has been waited for has a status, and its pid may be reused.
    if let Some(status) = child.try_wait().map_err(fail)? {
        return Ok(status);
    }
    let pidfd = pid_of(child)
        .and_then(|pid| Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
        .map_err(fail)?;
    let mut watched = [
        PollFd::new(&pidfd, PollFlags::IN),
        PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
    ];
    let deadline = Instant::now().checked_add(limit);
    loop {
        let left = deadline.map_or(Duration::from_secs(3600), |at| {
            at.saturating_duration_since(Instant::now())
        });
        let happened = poll(&mut watched, left).map_err(fail)?;
        if !watched[0].revents().is_empty() {
            return child.wait().map_err(fail);
        }
        if !watched[1].revents().is_empty() || (!happened && deadline.is_some()) {
            signal(child, Signal::TERM);
            if !poll(&mut watched[..1], Duration::from_secs(2)).map_err(fail)? {
                signal(child, Signal::KILL);
            }
            return child.wait().map_err(fail);
        }
    }
}

/// Sends a signal to a process that has not been waited for, so that its pid cannot have been reused.
fn signal(child: &Child, signal: Signal) {
    if let Ok(pid) = pid_of(child) {
        // The process may have ended already.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Returns the exit status as a shell gives it.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let number = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    number
        .and_then(|number| u8::try_from(number).ok())
        .unwrap_or(NOT_SET)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        crate::command_line::split(line).unwrap()
    }

    #[test]
    fn a_watcher_lives_as_long_as_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("note");
        let note = note.to_string_lossy();
        let line = format!(
            "sh -c 'trap \"echo ended >> {note}; exit\" INT; echo up > {note}; echo ready; while :; do sleep 0.05; done' -- \
             sh -c 'cat {note} >> {note}.seen; exit 5'"
        );
        assert_eq!(beside(&words(&line)).unwrap(), 5);
        assert_eq!(fs::read_to_string(format!("{note}.seen")).unwrap(), "up\n");
        assert_eq!(fs::read_to_string(&*note).unwrap(), "up\nended\n");
    }

    #[test]
    fn a_watcher_that_fails_is_named_with_what_it_said() {
        let error = beside(&words("sh -c 'echo no such probe >&2; exit 1' -- true")).unwrap_err();
        assert!(error.to_string().contains("no such probe"), "{error}");
        assert!(
            beside(&words("true"))
                .unwrap_err()
                .to_string()
                .contains("WATCHER -- COMMAND")
        );
    }

    #[test]
    fn a_neighbour_that_ends_early_counts_nowhere() {
        let busy = ["false".to_owned()];
        let error = neighbour(Path::new("/bin/true"), "getppid", 0.1, &busy).unwrap_err();
        assert!(error.to_string().contains("too early"), "{error}");
        let script = "sleep 1; echo started > %STARTED; exec sleep 60";
        let busy = ["sh", "-c", script].map(str::to_owned);
        let begin = Instant::now();
        let status = neighbour(Path::new("/bin/true"), "getppid", 0.1, &busy);
        assert_eq!(status.unwrap(), 0);
        assert!(
            begin.elapsed() > Duration::from_secs(1),
            "its work starts late"
        );
    }
}
