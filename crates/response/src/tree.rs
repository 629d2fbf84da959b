//! A process and its descendants, stopped or ended without leaving one out.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use event::Pid;
use process_info::procfs::{Proc, ProcessStat};

use crate::bound::{Bound, SIGCONT, SIGKILL, SIGSTOP, has_ended};
use crate::guard::Guard;

/// A process with its descendants.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    members: Vec<Member>,
    /// Descendants that the guard protects, with the reason. They and their children are left alone.
    pub(crate) spared: Vec<(Pid, String)>,
    /// Members that could not be signalled, with the kernel's error.
    pub(crate) failed: Vec<(Pid, i32)>,
    /// Why members may be missing.
    pub(crate) incomplete: Option<&'static str>,
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
            if !tree.extend(select) {
                tree.forget_ended(select.proc);
                return tree;
            }
        }
        tree.incomplete = Some("it forks faster than its processes can be stopped");
        tree
    }

    /// Finds a process and what it has started, as far as one look shows, and changes nothing.
    pub(crate) fn look(select: &Selection<'_>, root: Arc<Bound>) -> Self {
        let mut tree = Self::default();
        tree.add(root, false);
        while tree.extend(select) {}
        tree.forget_ended(select.proc);
        tree
    }

    /// Creates the tree of a process that has no descendants.
    pub(crate) fn of_one(root: Arc<Bound>) -> Self {
        let mut tree = Self::default();
        tree.add(root, false);
        tree
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

    /// Waits until every member has ended. Returns those that have not.
    pub(crate) fn wait_for_end(&self) -> Vec<Pid> {
        let deadline = Instant::now() + END_LIMIT;
        let has_ended = |member: &&Member| member.process.ends_before(deadline);
        let alive = self.members.iter().filter(|member| !has_ended(member));
        alive.map(|member| member.process.pid).collect()
    }

    /// Removes members that run no more, also if nobody has reaped them yet.
    fn forget_ended(&mut self, proc: &Proc) {
        let runs = |stat: ProcessStat| !has_ended(&stat);
        self.members
            .retain(|member| member.process.now(proc).is_some_and(runs));
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
    /// Returns true if there were new ones.
    fn extend(&mut self, select: &Selection<'_>) -> bool {
        let Ok(pids) = select.proc.numbers(".") else {
            self.incomplete = Some("/proc cannot be listed");
            return false;
        };
        let known: HashSet<Pid> = self
            .members
            .iter()
            .map(|member| member.process.pid)
            .collect();
        let spared: HashSet<Pid> = self.spared.iter().map(|(pid, _)| *pid).collect();
        let before = self.members.len();
        for pid in pids.map(Pid) {
            if known.contains(&pid) || spared.contains(&pid) {
                continue;
            }
            let Ok(stat) = select.proc.stat(pid.0) else {
                continue;
            };
            // Most processes are not related: a descriptor is opened for those that seem to be.
            if !known.contains(&stat.stat.ppid) && !known.contains(&Pid(stat.stat.sid)) {
                continue;
            }
            let Ok(found) = Bound::open(select.proc, pid) else {
                continue;
            };
            if !self.is_descendant(&found.stat) {
                continue;
            }
            match select.guard.check(select.proc, &found, select.allowed) {
                Ok(()) => self.add(Arc::new(found), false),
                Err(refusal) => self.spared.push((pid, refusal.to_string())),
            }
        }
        self.members.len() > before
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A shell whose script prints a line when everything runs.
    fn shell(script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        (child, output)
    }

    fn bound(proc: &Proc, child: &Child) -> Arc<Bound> {
        let pid = Pid(i32::try_from(child.id()).unwrap());
        Arc::new(Bound::open(proc, pid).unwrap())
    }

    fn select<'a>(proc: &'a Proc, guard: &'a Guard) -> Selection<'a> {
        Selection {
            proc,
            guard,
            allowed: &[],
        }
    }

    #[test]
    fn a_tree_is_stopped_resumed_and_killed() {
        let proc = Proc::open().unwrap();
        let guard = Guard::new(&proc);
        let select = select(&proc, &guard);
        let (mut child, _output) = shell("(sleep 60 & sleep 60 & echo; wait) & wait");
        let root = bound(&proc, &child);
        assert_eq!(Tree::look(&select, Arc::clone(&root)).pids().len(), 4);
        let mut tree = Tree::stop(&select, Arc::clone(&root), false);
        let pids = tree.pids();
        assert_eq!((pids.len(), pids[0]), (4, root.pid));
        assert!(
            pids.iter()
                .all(|pid| proc.stat(pid.0).unwrap().state == b'T')
        );
        assert_eq!(tree.resume(), 4);
        let is_running = |pid: &Pid| proc.stat(pid.0).unwrap().state != b'T';
        while !pids.iter().all(is_running) {
            thread::sleep(LOOK_AGAIN);
        }
        let mut tree = Tree::stop(&select, root, false);
        assert_eq!(tree.kill(), 4);
        assert_eq!(tree.wait_for_end(), []);
        child.wait().unwrap();
    }

    #[test]
    fn a_tree_that_forks_all_the_time_is_caught() {
        let proc = Proc::open().unwrap();
        let guard = Guard::new(&proc);
        let select = select(&proc, &guard);
        for _ in 0..20 {
            let script = "echo; while :; do (sleep 0.001; sleep 60) & sleep 0.0005; done";
            let (mut child, output) = shell(script);
            thread::sleep(Duration::from_millis(20));
            let mut tree = Tree::stop(&select, bound(&proc, &child), false);
            tree.kill();
            assert_eq!(tree.wait_for_end(), []);
            child.wait().unwrap();
            // A survivor would hold the pipe open.
            assert!(output.lines().next().is_none());
        }
    }

    #[test]
    fn a_session_that_a_member_leads_belongs_to_the_tree() {
        let proc = Proc::open().unwrap();
        let guard = Guard::new(&proc);
        // The leader stays, the process between ends, and its child is an orphan.
        let script = "exec setsid sh -c '(sleep 60 & echo); exec sleep 61'";
        let (mut child, output) = shell(script);
        let mut tree = Tree::stop(&select(&proc, &guard), bound(&proc, &child), false);
        let count = tree.pids().len();
        tree.kill();
        assert_eq!(count, 2);
        assert_eq!(tree.wait_for_end(), []);
        child.wait().unwrap();
        assert!(output.lines().next().is_none());
    }
}
