//! Marks that children inherit, from which the parent of an orphan is found.
//!
//! The engine first sees a process at its first trapped call. If its parent has ended by then, `/proc` names
//! the process that adopted it; and forks cannot be trapped, because a signal would make them fail
//! (`abi::FLOOR` says how). So each process that has been seen is given a mark, which its children and their
//! children inherit until they are seen themselves: the mark of a new process is that of its nearest ancestor
//! that made a trapped call, even if the processes between have ended.
//!
//! The mark is the soft limit on file locks. No kernel since Linux 2.4.25 enforces it (setrlimit(2)), hardly
//! any program reads it, and another process of the same user can set it. A process that could set it could
//! claim another parent, so for the workload setting it succeeds without effect.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use abi::{Errno, Syscall};
use event::{Pid, Process, StartTime};
use sys::resource::{self, Limit};

use super::call::Call;
use process_info::procfs::{Proc, start_time_now};

/// `RLIMIT_LOCKS`, the same on every architecture.
const LIMIT_ON_LOCKS: u32 = 10;
/// Prefix of marks; the rest cannot be guessed. A mark is far above any limit a program sets, and below
/// `RLIM_INFINITY`.
const SHAPE: u64 = 0x746f_0000_0000_0000;
const SHAPE_MASK: u64 = 0xffff_0000_0000_0000;
/// Number of marks beyond which those of ended processes are forgotten. Marks of living processes never are. Unless nearly all
/// are of living ones, about so many other processes have been seen between the first call of a process and the moment at
/// which its mark is forgotten: only a child that it made, and that has made no call in all that time, is an orphan of nobody.
const KNOWN: usize = 8192;
/// Marks that are looked at when one is added. Each one is looked at twice before it is forgotten, so that this many keep up with
/// twice as many living processes as [`KNOWN`]; with more, the number of marks grows with that of the processes.
const LOOKS: usize = 8;

/// The marks that have been given, with their processes.
#[derive(Debug)]
pub struct Lineage {
    owners: HashMap<u64, Arc<Process>>,
    /// Marks in the order in which they are looked at.
    order: VecDeque<Known>,
    secret: RandomState,
    given: u64,
    /// Only a process that had started by then can have been marked by an earlier agent.
    began: StartTime,
}

/// A mark that is remembered.
#[derive(Clone, Copy, Debug)]
struct Known {
    mark: u64,
    /// Its process had ended when this was looked at.
    has_ended: bool,
}

impl Default for Lineage {
    fn default() -> Self {
        Self {
            owners: HashMap::new(),
            order: VecDeque::new(),
            secret: RandomState::new(),
            given: 0,
            began: start_time_now(),
        }
    }
}

/// Limit on file locks that a process had when it was first seen.
#[derive(Clone, Copy, Debug)]
pub struct InheritedState(Limit);

impl InheritedState {
    /// Reads the limit of a process that is held. Returns `None` without the right to read it.
    pub fn of(pid: Pid, proc: &Proc) -> Option<Self> {
        let limit = resource::limit(pid.0, LIMIT_ON_LOCKS).ok();
        limit.or_else(|| proc.lock_limit(pid.0)).map(Self)
    }

    fn is_mark(self) -> bool {
        self.0.soft & SHAPE_MASK == SHAPE
    }

    /// Gives the process a mark in the place of this limit. Returns false without the right to.
    fn replace(self, pid: Pid, mark: u64) -> bool {
        let limit = Limit {
            soft: mark,
            hard: self.0.hard,
        };
        mark <= limit.hard && resource::set_limit(pid.0, LIMIT_ON_LOCKS, limit).is_ok()
    }
}

impl Lineage {
    /// Returns the nearest ancestor that has been seen.
    pub fn nearest(&self, inherited: InheritedState) -> Option<&Arc<Process>> {
        self.owners.get(&inherited.0.soft)
    }

    /// Marks a process for its children. Returns false without the right to: its children then keep its
    /// ancestor's mark.
    pub fn mark(&mut self, process: &Arc<Process>, inherited: InheritedState) -> bool {
        // An earlier agent has marked it. A process that started later has inherited the mark, from one that is forgotten.
        let is_own = process.start <= self.began;
        if is_own && inherited.is_mark() && !self.owners.contains_key(&inherited.0.soft) {
            self.remember(inherited.0.soft, process);
            return true;
        }
        self.given += 1;
        let mark = new_mark(&self.secret, self.given);
        let is_marked = inherited.replace(process.pid, mark);
        if is_marked {
            self.remember(mark, process);
        }
        is_marked
    }

    /// Notes that the processes of an earlier agent have been entered: those that start from now on are marked by this one.
    pub fn begin(&mut self) {
        self.began = start_time_now();
    }

    /// Remembers a mark that a process has been given by [`give_mark`].
    pub fn remember(&mut self, mark: u64, process: &Arc<Process>) {
        if self.owners.insert(mark, Arc::clone(process)).is_some() {
            return;
        }
        let has_ended = false;
        self.order.push_back(Known { mark, has_ended });
        self.forget();
    }

    /// Forgets marks of processes that have ended some time ago, if there are too many.
    fn forget(&mut self) {
        for _ in 0..LOOKS {
            if self.order.len() <= KNOWN {
                return;
            }
            let Some(known) = self.order.pop_front() else {
                return;
            };
            let owner = self.owners.get(&known.mark);
            let has_ended = owner.is_none_or(|owner| owner.has_exited());
            if has_ended && known.has_ended {
                self.owners.remove(&known.mark);
                continue;
            }
            // Children of one that has ended just now may not have been seen yet.
            let mark = known.mark;
            self.order.push_back(Known { mark, has_ended });
        }
    }
}

/// Marks a process for its children before there is a [`Lineage`], and returns the mark. A process that has inherited
/// one keeps that. Returns `None` without the right to.
pub fn give_mark(pid: Pid, proc: &Proc) -> Option<u64> {
    let inherited = InheritedState::of(pid, proc)?;
    if inherited.is_mark() {
        return Some(inherited.0.soft);
    }
    let mark = new_mark(&RandomState::new(), 0);
    inherited.replace(pid, mark).then_some(mark)
}

fn new_mark(secret: &RandomState, number: u64) -> u64 {
    SHAPE | (secret.hash_one(number) & !SHAPE_MASK)
}

/// Returns the answer to a process that would change its mark: success, as the kernel always answers for this
/// limit; or EPERM if the process also asks for the old value in the same call, which only the kernel can
/// give.
pub fn answer_to(call: &Call) -> Option<Result<i64, i32>> {
    let resource = match call.syscall {
        Syscall::SETRLIMIT => call.raw(0),
        Syscall::PRLIMIT64 if call.raw(2) != 0 => call.raw(1),
        _ => return None,
    };
    let wants_old = call.syscall == Syscall::PRLIMIT64 && call.raw(3) != 0;
    let low = resource & u64::from(u32::MAX);
    let answer = if wants_old {
        Err(Errno::EPERM.0)
    } else {
        Ok(0)
    };
    (low == u64::from(LIMIT_ON_LOCKS)).then_some(answer)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use event::{Comm, Image, StartTime};

    use super::*;

    fn process(pid: u32) -> Arc<Process> {
        let pid = Pid(pid.cast_signed());
        let image = Arc::new(Image::default());
        Arc::new(Process::new(
            pid,
            StartTime(0),
            0,
            None,
            image,
            Comm::new(b""),
        ))
    }

    #[test]
    fn grandchildren_of_the_dead_have_the_mark_of_who_was_seen() {
        let proc = Proc::open().unwrap();
        let mut lineage = Lineage::default();
        // The shell ends at once, so the grandchild, whose pid it prints, is an orphan.
        let script = "read go; (sleep 5 & echo $!); read end";
        let spawned = Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn();
        let mut shell = spawned.unwrap();
        let seen = process(shell.id());
        let inherited = InheritedState::of(seen.pid, &proc).unwrap();
        assert!(lineage.nearest(inherited).is_none());
        lineage.mark(&seen, inherited);

        use std::io::{BufRead, Write};
        let mut input = shell.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        let mut line = String::new();
        let output = shell.stdout.take().unwrap();
        std::io::BufReader::new(output)
            .read_line(&mut line)
            .unwrap();
        let orphan = process(line.trim().parse().unwrap());
        let inherited = InheritedState::of(orphan.pid, &proc).unwrap();
        let nearest = lineage.nearest(inherited).map(|found| found.pid);
        assert_eq!(nearest, Some(seen.pid));
        // /proc shows the same value, for callers without the right to ask the kernel.
        assert_eq!(proc.lock_limit(orphan.pid.0), Some(inherited.0));

        lineage.mark(&orphan, inherited);
        let own = InheritedState::of(orphan.pid, &proc).unwrap();
        assert_eq!(
            lineage.nearest(own).map(|found| found.pid),
            Some(orphan.pid)
        );
        assert_eq!(own.0.hard, inherited.0.hard);
        // Another agent finds the marks and keeps them.
        let mut next = Lineage::default();
        next.mark(&orphan, own);
        assert_eq!(next.nearest(own).map(|found| found.pid), Some(orphan.pid));
        let orphan = rustix::process::Pid::from_raw(orphan.pid.0).unwrap();
        rustix::process::kill_process(orphan, rustix::process::Signal::KILL).unwrap();
        drop(input);
        shell.wait().unwrap();
    }

    #[test]
    fn the_ended_are_forgotten_and_the_living_never() {
        let mut lineage = Lineage::default();
        let inherited = |mark: u64| {
            InheritedState(Limit {
                soft: mark,
                hard: u64::MAX,
            })
        };
        let living = process(std::process::id());
        lineage.remember(1, &living);
        let known = KNOWN as u64;
        for mark in 2..20 * known {
            let ended = process(2);
            lineage.remember(mark, &ended);
            ended.set_exited();
            // Its children have as long to be seen as it takes for so many others.
            let earlier = mark.saturating_sub(known * 9 / 10).max(1);
            assert!(lineage.nearest(inherited(earlier)).is_some(), "{mark}");
        }
        assert!(
            lineage.order.len() <= KNOWN * 5 / 4,
            "{}",
            lineage.order.len()
        );
        assert_eq!(lineage.owners.len(), lineage.order.len());
        let nearest = lineage.nearest(inherited(1)).expect("it lives");
        assert!(Arc::ptr_eq(nearest, &living));
    }

    #[test]
    fn more_living_processes_than_marks_are_all_known() {
        let mut lineage = Lineage::default();
        let living = process(std::process::id());
        let count = 3 * KNOWN;
        for mark in 0..count as u64 {
            lineage.remember(mark, &living);
        }
        assert_eq!((lineage.owners.len(), lineage.order.len()), (count, count));
        living.set_exited();
        for mark in 0..count as u64 {
            let ended = process(2);
            ended.set_exited();
            lineage.remember(count as u64 + mark, &ended);
        }
        assert!(lineage.order.len() <= 2 * count, "{}", lineage.order.len());
    }

    #[test]
    fn a_mark_that_is_forgotten_is_nobodys() {
        let mut child = Command::new("sleep").arg("9").spawn().expect("it starts");
        let pid = Pid(child.id().cast_signed());
        let proc = Proc::open().expect("procfs");
        let mark = give_mark(pid, &proc).expect("a child of this process");
        let inherited = InheritedState::of(pid, &proc).expect("a child of this process");
        assert_eq!(inherited.0.soft, mark);
        let start = |start| {
            let image = Arc::new(Image::default());
            Arc::new(Process::new(pid, start, 0, None, image, Comm::new(b"")))
        };
        // It started before this agent: an earlier one has given it the mark.
        let mut lineage = Lineage::default();
        let old = start(StartTime(0));
        assert!(lineage.mark(&old, inherited));
        assert!(
            lineage
                .nearest(inherited)
                .is_some_and(|owner| Arc::ptr_eq(owner, &old))
        );
        // It started later: it has inherited the mark, and its siblings are not its children.
        let mut lineage = Lineage::default();
        let new = start(StartTime(u64::MAX));
        assert!(lineage.mark(&new, inherited));
        assert!(lineage.nearest(inherited).is_none());
        let own = InheritedState::of(pid, &proc).expect("a child of this process");
        assert!(own.0.soft != mark && own.is_mark());
        assert!(
            lineage
                .nearest(own)
                .is_some_and(|owner| Arc::ptr_eq(owner, &new))
        );
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }
}
