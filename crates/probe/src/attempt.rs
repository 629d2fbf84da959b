//! Runs a probe in a child process.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use abi::Signal;
use sys::clone::{CloneFlags, clone_child};
use sys::poll::{IN, PollFd, poll};
use sys::wait::{ALL, Target, wait};
use sys::{fd, pidfd};

use super::Support;

/// A probe that takes longer is stuck.
const DEADLINE: Duration = Duration::from_secs(5);

/// `O_CLOEXEC`, which is the same on every supported architecture.
const CLOEXEC: i32 = 0o2_000_000;

/// Runs `probe` in a child and returns its result. A child that dies or gets stuck yields `No`. The calling
/// process must have one thread.
pub fn in_child(probe: impl FnOnce() -> Support) -> Support {
    match try_in_child(probe) {
        Ok(support) => support,
        Err(error) => Support::no(
            format!("cannot start a child process: {error}"),
            "raise the limit on processes, or allow clone and pipe2",
        ),
    }
}

fn try_in_child(probe: impl FnOnce() -> Support) -> sys::Result<Support> {
    let (reader, writer) = fd::pipe(CLOEXEC)?;
    let result = writer.as_fd().try_clone_to_owned();
    let child = clone_child(CloneFlags::default(), move || {
        let Ok(writer) = result else { return 1 };
        let support = catch_unwind(AssertUnwindSafe(probe))
            .unwrap_or_else(|_| Support::no("the probe failed", "report this as a defect"));
        match File::from(writer).write_all(encode(&support).as_bytes()) {
            Ok(()) => 0,
            Err(_) => 1,
        }
    })?;
    drop(writer);
    let answer = read_answer(reader);
    let stuck = answer.is_none();
    if stuck {
        pidfd::send_signal(pidfd::open(child)?.as_fd(), Signal::SIGKILL.0)?;
    }
    wait(Target::Pid(child), ALL)?;
    Ok(answer.as_deref().and_then(decode).unwrap_or_else(|| {
        let why = if stuck {
            "the probe hung"
        } else {
            "the kernel killed the child process of the probe"
        };
        Support::no(
            why,
            "check the system log for a security module that forbids it",
        )
    }))
}

/// Reads everything that the child writes; `None` after a time-out. The pipe is closed when the child and all
/// of its descendants have ended.
fn read_answer(reader: OwnedFd) -> Option<String> {
    let deadline = Instant::now() + DEADLINE;
    let mut file = File::from(reader);
    let mut answer = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut [PollFd::new(file.as_fd(), IN)], Some(left)) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(_) => continue,
        }
        let mut bytes = [0; 4096];
        match file.read(&mut bytes) {
            Ok(0) => return Some(String::from_utf8_lossy(&answer).into_owned()),
            Ok(count) => answer.extend_from_slice(&bytes[..count]),
            Err(_) => return Some(String::new()),
        }
    }
}

/// Separator of fields: a character that no message contains.
const SEPARATOR: char = '\u{1f}';

fn encode(support: &Support) -> String {
    let (kind, text, fix) = match support {
        Support::Yes { seen } => ("yes", seen, ""),
        Support::Partial { why, fix } => ("partial", why, fix.as_deref().unwrap_or("")),
        Support::No { why, fix } => ("no", why, fix.as_deref().unwrap_or("")),
    };
    [kind, text, fix].join(&SEPARATOR.to_string())
}

fn decode(text: &str) -> Option<Support> {
    let mut parts = text.split(SEPARATOR).map(str::to_owned);
    let (kind, text, fix) = (parts.next()?, parts.next()?, parts.next()?);
    let fix = (!fix.is_empty()).then_some(fix);
    match kind.as_str() {
        "yes" => Some(Support::Yes { seen: text }),
        "partial" => Some(Support::Partial { why: text, fix }),
        "no" => Some(Support::No { why: text, fix }),
        _ => None,
    }
}

/// A child that sleeps until it is dropped.
pub(super) struct SleepingChild(i32);

impl SleepingChild {
    pub(super) fn start() -> sys::Result<Self> {
        clone_child(CloneFlags::default(), || {
            std::thread::sleep(2 * DEADLINE);
            0
        })
        .map(Self)
    }

    pub(super) fn pid(&self) -> i32 {
        self.0
    }
}

impl Drop for SleepingChild {
    fn drop(&mut self) {
        // A failure is harmless: the child ends by itself, and nobody needs its status.
        let _ =
            pidfd::open(self.0).and_then(|fd| pidfd::send_signal(fd.as_fd(), Signal::SIGKILL.0));
        let _ = wait(Target::Pid(self.0), ALL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_survive_the_pipe() {
        for support in [
            Support::yes("a"),
            Support::partial("b"),
            Support::partial_with_fix("c", "d"),
            Support::no("e", "f"),
            Support::no_unless_fixed("g", None),
        ] {
            assert_eq!(decode(&encode(&support)), Some(support));
        }
        assert_eq!(decode(""), None);
    }
}
