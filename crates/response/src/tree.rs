//! A process and its descendants, stopped or ended without leaving one out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use event::{Pid, StartTime, Stat};
use process_info::procfs::{Proc, ProcError, ProcessStat};

use crate::bound::{Bound, NotBound, SIGCONT, SIGKILL, SIGSTOP};
use crate::guard::Guard;

/// A process with its descendants.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    members: Vec<Member>,
    /// Descendants that the guard protects, with the reason. They and their children are left alone.
    pub(crate) spared: Vec<Spared>,
    /// The same and their descendants as far as they were seen.
    left_alone: HashSet<Pid>,
    /// Why the last search may have left some out.
    missed: Option<&'static str>,
    /// Members that could not be signalled, with the kernel's error.
    pub(crate) failed: Vec<(Pid, i32)>,
    /// Why members may be missing.
    pub(crate) incomplete: Option<&'static str>,
}

/// A descendant that is left alone.
#[derive(Debug)]
pub(crate) struct Spared {
    pub(crate) process: (Pid, StartTime),
    pub(crate) why: String,
}

#[derive(Debug)]
struct Member {
    process: Arc<Bound>,
    /// Somebody else had stopped it, so that it does not go on with the others.
    was_stopped: bool,
}

/// What selects the members of a tree.
pub(crate) struct Selection<'a> {
    pub(crate) proc: &'a Proc,
    pub(crate) guard: &'a Guard,
    /// Protected programs that may be hit.
    pub(crate) allowed: &'a [String],
}

/// Time in which all members have to stop.
const STOP_LIMIT: Duration = Duration::from_millis(500);
/// Time in which all members have to end after they were killed.
const END_LIMIT: Duration = Duration::from_secs(2);
/// Interval between looks at processes that are to stop.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// Searches for new descendants: each finds those that were made before all known ones were stopped, so that few are
/// needed even against a workload that forks all the time.
const MOST_ROUNDS: usize = 64;

impl Tree {
    /// Stops a process, then everything that it has started, until there is nothing new. A stopped process starts
    /// nothing, does not end, and reaps no child, so that the search comes to an end and pids stay what they are.
    pub(crate) fn stop(select: &Selection<'_>, root: Arc<Bound>, is_stopped: bool) -> Self {
        let mut tree = Self::default();
        tree.add(root, is_stopped);
        let deadline = Instant::now() + STOP_LIMIT;
        let mut seen = 0;
        for _ in 0..MOST_ROUNDS {
            tree.signal_from(seen, SIGSTOP);
            tree.wait_for_stop(select.proc, seen, deadline);
            seen = tree.members.len();
            if !tree.extend(select, None) {
                return tree.searched(select.proc);
            }
        }
        tree = tree.searched(select.proc);
        tree.incomplete = Some("it forks faster than its processes can be stopped");
        tree
    }

    /// Finds a process and what it has started, and changes nothing. It takes as many looks as there are generations;
    /// of a tree that grows all the time it finds a part.
    pub(crate) fn look(select: &Selection<'_>, root: Arc<Bound>) -> Self {
        let mut tree = Self::of_one(root);
        let is_whole = tree.search(select, None);
        tree = tree.searched(select.proc);
        if !is_whole {
            tree.incomplete = Some("it forks faster than its processes are found");
        }
        tree
    }

    /// Finds the same before a deadline. Returns `None` if that does not suffice.
    pub(crate) fn look_until(
        select: &Selection<'_>,
        root: Arc<Bound>,
        deadline: Instant,
    ) -> Option<Self> {
        let mut tree = Self::of_one(root);
        let is_whole = tree.search(select, Some(deadline));
        is_whole.then(|| tree.searched(select.proc))
    }

    /// Creates the tree of a process that has no descendants.
    pub(crate) fn of_one(root: Arc<Bound>) -> Self {
        let mut tree = Self::default();
        tree.add(root, false);
        tree
    }

    /// Adds the root if it is no member because it has ended since.
    pub(crate) fn keep_root(&mut self, root: Arc<Bound>) {
        if !self.pids().contains(&root.pid) {
            let root = Member {
                process: root,
                was_stopped: false,
            };
            self.members.insert(0, root);
        }
    }

    /// Adds descendants that an engine knows, parents before their children, until the guard protects one. Returns that one,
    /// whose descendants do not belong to the tree.
    pub(crate) fn add_known(
        &mut self,
        select: &Selection<'_>,
        descendants: &[(Pid, StartTime)],
    ) -> Option<(Pid, StartTime)> {
        for process in descendants {
            let is_spared = |spared: &Spared| spared.process == *process;
            if self.pids().contains(&process.0) || self.spared.iter().any(is_spared) {
                continue;
            }
            let found = match Bound::open(select.proc, process.0) {
                Ok(found) if found.stat.start == process.1 => found,
                Ok(_) | Err(NotBound::Gone | NotBound::Reused) => continue,
                Err(NotBound::Unknown(_)) => {
                    self.incomplete = self.incomplete.or(Some(UNREAD));
                    continue;
                }
            };
            match select.guard.check(select.proc, &found, select.allowed) {
                Ok(()) => self.add(Arc::new(found), false),
                // It ended meanwhile: nothing is to be spared.
                Err(_) if found.now(select.proc).has_ended() => {}
                Err(refusal) => {
                    self.spared.push(Spared {
                        process: *process,
                        why: refusal.to_string(),
                    });
                    return Some(*process);
                }
            }
        }
        None
    }

    /// Returns the pids of the members, the root first.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        self.members
            .iter()
            .map(|member| member.process.pid)
            .collect()
    }

    /// Kills every member. Returns the number of those that were alive.
    pub(crate) fn kill(&mut self) -> usize {
        self.signal_from(0, SIGKILL)
    }

    /// Lets the members go on, the youngest first. Returns the number of those that are alive.
    pub(crate) fn resume(&mut self) -> usize {
        self.members.reverse();
        self.members.retain(|member| !member.was_stopped);
        self.signal_from(0, SIGCONT)
    }

    /// Returns true if no member is left.
    pub(crate) fn has_ended(&self) -> bool {
        !self
            .members
            .iter()
            .any(|member| member.process.is_unreaped())
    }

    /// Returns the number of members that have not ended. Nobody may have reaped those that have.
    pub(crate) fn alive(&self) -> usize {
        let now = Instant::now();
        let lives = |member: &&Member| !member.process.ends_before(now);
        self.members.iter().filter(lives).count()
    }

    /// Waits until every member has ended. Returns those that have not.
    pub(crate) fn wait_for_end(&self) -> Vec<Pid> {
        let deadline = Instant::now() + END_LIMIT;
        let has_ended = |member: &&Member| member.process.ends_before(deadline);
        let alive = self.members.iter().filter(|member| !has_ended(member));
        alive.map(|member| member.process.pid).collect()
    }

    /// Adds descendants until a look finds none that is new. Returns false if [`MOST_ROUNDS`] or the deadline was reached
    /// before. The members go on meanwhile, so that there may be new ones for ever.
    fn search(&mut self, select: &Selection<'_>, deadline: Option<Instant>) -> bool {
        for _ in 0..MOST_ROUNDS {
            let has_new = self.extend(select, deadline);
            if is_past(deadline) {
                return false;
            }
            if !has_new {
                return true;
            }
        }
        false
    }

    /// Ends the search: removes members of which it is certain that they run no more.
    fn searched(mut self, proc: &Proc) -> Self {
        self.incomplete = self.incomplete.or(self.missed);
        self.members
            .retain(|member| !member.process.now(proc).has_ended());
        self
    }

    fn add(&mut self, process: Arc<Bound>, is_stopped_by_us: bool) {
        let was_stopped = process.stat.state == b'T' && !is_stopped_by_us;
        self.members.push(Member {
            process,
            was_stopped,
        });
    }

    /// Signals the members from a position on. Returns the number of those that were alive.
    fn signal_from(&mut self, first: usize, signal: i32) -> usize {
        let mut alive = 0;
        for member in self.members.iter().skip(first) {
            match member.process.signal(signal) {
                Ok(true) => alive += 1,
                Ok(false) => {}
                Err(errno) => self.failed.push((member.process.pid, errno)),
            }
        }
        alive
    }

    fn wait_for_stop(&mut self, proc: &Proc, first: usize, deadline: Instant) {
        for member in self.members.iter().skip(first) {
            // A process that the kernel makes wait stops before it returns, and starts nothing until then.
            while !member.process.is_at_rest(proc) {
                if Instant::now() >= deadline {
                    self.incomplete = Some("a process did not stop in time");
                    break;
                }
                thread::sleep(LOOK_AGAIN);
            }
        }
    }

    /// Adds the children of the members, and the processes of sessions that members lead, which have no other origin.
    /// Returns true if there were new ones. Gives up at the deadline.
    fn extend(&mut self, select: &Selection<'_>, deadline: Option<Instant>) -> bool {
        self.missed = None;
        let before = self.members.len();
        for pid in self.candidates(select.proc, deadline) {
            if is_past(deadline) {
                break;
            }
            let found = match Bound::open(select.proc, pid) {
                Ok(found) => found,
                Err(NotBound::Gone | NotBound::Reused) => continue,
                Err(NotBound::Unknown(_)) => {
                    self.missed = Some(UNREAD);
                    continue;
                }
            };
            if self.left_alone.contains(&found.stat.stat.ppid) {
                // Its session may be that of a member; its origin is not.
                self.left_alone.insert(pid);
                continue;
            }
            if !self.is_descendant(&found.stat) {
                continue;
            }
            match select.guard.check(select.proc, &found, select.allowed) {
                Ok(()) => self.add(Arc::new(found), false),
                Err(refusal) => {
                    self.left_alone.insert(pid);
                    self.spared.push(Spared {
                        process: (pid, found.stat.start),
                        why: refusal.to_string(),
                    });
                }
            }
        }
        self.members.len() > before
    }

    /// Returns the processes that seem to belong to the tree and are not known yet, parents before their children: most
    /// processes are not related, and no descriptor is opened for them. After the deadline they are not listed further.
    fn candidates(&mut self, proc: &Proc, deadline: Option<Instant>) -> Vec<Pid> {
        let Ok(pids) = proc.numbers(".") else {
            self.missed = Some("/proc cannot be listed");
            return Vec::new();
        };
        let mut all = HashMap::new();
        for pid in pids.take_while(|_| !is_past(deadline)) {
            match proc.stat(pid) {
                Ok(stat) => {
                    all.insert(Pid(pid), stat.stat);
                }
                Err(ProcError::Gone { .. }) => {}
                Err(_) => self.missed = Some(UNREAD),
            }
        }
        let members: HashSet<Pid> = self.pids().into_iter().collect();
        let is_new = |pid: &Pid| !members.contains(pid) && !self.left_alone.contains(pid);
        let is_related =
            |stat: &Stat| members.contains(&stat.ppid) || members.contains(&Pid(stat.sid));
        let related = all
            .iter()
            .filter(|(pid, stat)| is_new(pid) && is_related(stat));
        let mut related: Vec<_> = related.map(|(pid, _)| (depth(&all, *pid), *pid)).collect();
        related.sort_unstable();
        related.into_iter().map(|(_, pid)| pid).collect()
    }

    /// Returns true if a member is the parent of a process, or leads its session. The member was not reaped since the
    /// process named it, so that no other process is meant.
    fn is_descendant(&self, stat: &ProcessStat) -> bool {
        let is_parent = |member: &&Member| member.process.pid == stat.stat.ppid;
        let leads = |member: &&Member| {
            let (pid, own) = (member.process.pid, &member.process.stat.stat);
            own.sid == pid.0 && stat.stat.sid == pid.0
        };
        let mut related = self
            .members
            .iter()
            .filter(|member| is_parent(member) || leads(member));
        related.any(|member| member.process.is_unreaped())
    }
}

const UNREAD: &str = "a process cannot be read";

/// Returns true if there is a deadline and it was reached.
fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Returns the number of ancestors of a process. Processes that changed while they were listed may seem to be their own
/// ancestors.
fn depth(all: &HashMap<Pid, Stat>, pid: Pid) -> usize {
    let parent = |pid: &Pid| all.get(pid).map(|stat| stat.ppid);
    std::iter::successors(Some(pid), parent)
        .take(all.len())
        .count()
}

#[cfg(test)]
mod tests;
