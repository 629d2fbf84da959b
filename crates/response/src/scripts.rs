//! The scripts of this program that run, or ran a short time ago.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use event::{Pid, StartTime};
use process_info::procfs::Proc;
use rules::AlertProcess;

/// Scripts that were started. What they and their descendants do must not start further scripts, and no action hits them.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    /// Held while a script is started: its first alert may come before its pid is known.
    starting: Mutex<()>,
    known: Mutex<VecDeque<Script>>,
}

#[derive(Debug)]
struct Script {
    pid: Pid,
    /// `None` if it cannot be read.
    start: Option<StartTime>,
    /// It was not reaped yet, so that its pid is its own.
    runs: bool,
}

/// Scripts that are remembered after their end: alerts about them may still be on their way.
const REMEMBERED: usize = 256;
/// Ancestors of a process that are looked at.
const MOST_ANCESTORS: usize = 32;

impl Scripts {
    /// Starts a script. `start` returns its pid with what else it has made.
    pub(crate) fn start<T, E>(
        &self,
        proc: &Proc,
        start: impl FnOnce() -> Result<(Pid, T), E>,
    ) -> Result<T, E> {
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let (pid, made) = start()?;
        let start = proc.stat(pid.0).ok().map(|stat| stat.start);
        let runs = true;
        self.known().push_back(Script { pid, start, runs });
        Ok(made)
    }

    /// Notes that a script is about to be reaped.
    pub(crate) fn ended(&self, pid: Pid) {
        let mut known = self.known();
        for script in known.iter_mut().filter(|script| script.pid == pid) {
            script.runs = false;
        }
        let ended = known.iter().filter(|script| !script.runs).count();
        if ended > REMEMBERED
            && let Some(oldest) = known.iter().position(|script| !script.runs)
        {
            known.remove(oldest);
        }
    }

    /// Returns true if an alert is about a script or a descendant of one. Waits for a script that is being started, and is
    /// therefore not for the thread that makes alerts: a start may wait for that thread.
    pub(crate) fn have_raised(&self, process: &AlertProcess) -> bool {
        drop(self.starting.lock().unwrap_or_else(PoisonError::into_inner));
        self.have_surely_raised(process)
    }

    /// The same without waiting: a script that is being started is not known yet.
    pub(crate) fn have_surely_raised(&self, process: &AlertProcess) -> bool {
        let known = self.known();
        let is_script = |(pid, start): (Pid, StartTime)| {
            known.iter().any(|script| {
                let is_same = script.start.map_or(script.runs, |known| known == start);
                script.pid == pid && is_same
            })
        };
        let ancestors = process.ancestors.iter().copied();
        std::iter::once((process.pid, process.start))
            .chain(ancestors)
            .any(is_script)
    }

    /// Returns true if a process is a script that runs, or a descendant of one.
    pub(crate) fn include(&self, proc: &Proc, pid: Pid, parent: Pid) -> bool {
        let running: Vec<_> = {
            let known = self.known();
            let running = known.iter().filter(|script| script.runs);
            running.map(|script| script.pid).collect()
        };
        if running.is_empty() {
            return false;
        }
        let above = |pid: &Pid| match pid.0 {
            ..=1 => None,
            _ => proc.stat(pid.0).ok().map(|stat| stat.stat.ppid),
        };
        let ancestors = std::iter::successors(Some(parent), above).take(MOST_ANCESTORS);
        std::iter::once(pid)
            .chain(ancestors)
            .any(|pid| running.contains(&pid))
    }

    fn known(&self) -> MutexGuard<'_, VecDeque<Script>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_script_and_its_descendants_are_known_by_pid_and_start() {
        let proc = Proc::open().unwrap();
        let scripts = Scripts::default();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid(child.id().cast_signed());
        let start = proc.stat(pid.0).unwrap().start;
        let own = Pid(std::process::id().cast_signed());
        let process = |pid, start, ancestors: &[_]| AlertProcess {
            pid,
            start,
            ancestors: ancestors.to_vec(),
        };
        let (itself, later) = ((pid, start), (pid, StartTime(start.0 + 1)));
        let other = (Pid(i32::MAX), start);
        assert!(!scripts.have_raised(&process(pid, start, &[])));
        assert!(!scripts.include(&proc, pid, own));
        scripts.start(&proc, || Ok::<_, ()>((pid, ()))).unwrap();
        for (first, ancestors, expected) in [
            (itself, &[][..], true),
            (later, &[], false),
            (other, &[other, itself], true),
            (other, &[other, later], false),
        ] {
            let process = process(first.0, first.1, ancestors);
            assert_eq!(scripts.have_raised(&process), expected, "{process:?}");
        }
        assert!(scripts.include(&proc, pid, own));
        assert!(scripts.include(&proc, other.0, pid));
        assert!(!scripts.include(&proc, own, Pid(1)));
        child.kill().unwrap();
        scripts.ended(pid);
        child.wait().unwrap();
        // Its alert was on its way; the pid may be another process's.
        assert!(scripts.have_raised(&process(pid, start, &[])));
        assert!(!scripts.include(&proc, pid, own));
    }

    #[test]
    fn few_scripts_that_have_ended_are_remembered() {
        let proc = Proc::open().unwrap();
        let scripts = Scripts::default();
        for number in 0..REMEMBERED + 10 {
            let pid = Pid(i32::MAX - i32::try_from(number).unwrap());
            scripts.start(&proc, || Ok::<_, ()>((pid, ()))).unwrap();
            scripts.ended(pid);
        }
        assert_eq!(scripts.known().len(), REMEMBERED);
    }
}
