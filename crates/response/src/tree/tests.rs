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
fn a_look_at_a_tree_that_forks_all_the_time_ends() {
    let proc = Proc::open().unwrap();
    let guard = Guard::new(&proc);
    let select = select(&proc, &guard);
    // Only a child forks: the root may wait for the answer to its alert.
    let script = "while :; do sleep 0.05 & done & echo; wait";
    let (mut child, output) = shell(script);
    let root = bound(&proc, &child);
    let begun = Instant::now();
    let limit = Duration::from_millis(5);
    // What is found in time depends on the machine. That no time is too little does not.
    let in_no_time = Tree::look_until(&select, Arc::clone(&root), begun);
    let _ = Tree::look_until(&select, Arc::clone(&root), begun + limit);
    let looked = begun.elapsed();
    // Returns, however long it takes.
    let found = Tree::look(&select, Arc::clone(&root)).pids();
    let mut tree = Tree::stop(&select, Arc::clone(&root), false);
    tree.kill();
    assert_eq!(tree.wait_for_end(), []);
    child.wait().unwrap();
    assert!(output.lines().next().is_none());
    assert!(in_no_time.is_none());
    assert!(looked < Duration::from_secs(2), "{looked:?}");
    assert!(found.len() > 1 && found[0] == root.pid, "{found:?}");
}

/// A leader that has ended and is not reaped is no member; its session is.
#[test]
fn a_root_that_has_ended_can_be_kept() {
    let proc = Proc::open().unwrap();
    let guard = Guard::new(&proc);
    let select = select(&proc, &guard);
    let (mut child, _output) = shell("exec setsid sh -c 'sleep 60 & echo; wait'");
    let root = bound(&proc, &child);
    root.signal(SIGKILL).unwrap();
    assert!(root.ends_before(Instant::now() + Duration::from_secs(20)));
    let mut tree = Tree::look(&select, Arc::clone(&root));
    let found = tree.pids();
    for _ in 0..2 {
        tree.keep_root(Arc::clone(&root));
    }
    assert_eq!(end_session(&proc, root.pid.0), 2);
    child.wait().unwrap();
    assert!(found.len() == 1 && found[0] != root.pid, "{found:?}");
    assert_eq!(tree.pids(), [root.pid, found[0]]);
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

/// Kills what is in the session of a process.
fn end_session(proc: &Proc, session: i32) -> usize {
    let all = proc.numbers(".").unwrap();
    let is_in = |pid: &i32| proc.stat(*pid).is_ok_and(|stat| stat.stat.sid == session);
    let all: Vec<_> = all.filter(is_in).collect();
    for pid in &all {
        let _ = Bound::open(proc, Pid(*pid)).map(|process| process.signal(SIGKILL));
    }
    all.len()
}

#[test]
fn children_of_a_spared_process_are_left_alone_in_the_session_of_a_member_too() {
    let proc = Proc::open().unwrap();
    let guard = Guard::new(&proc);
    let folder = tempfile::tempdir().unwrap();
    // Protected by its name if root runs this test; otherwise nothing is spared.
    let protected = folder.path().join("sshd");
    std::fs::copy("/bin/sh", &protected).unwrap();
    let spared = usize::from(rustix::process::getuid().is_root());
    let script = format!(
        "exec setsid sh -c '{} -c \"sleep 60 & echo; wait\" & sleep 61 & wait'",
        protected.display()
    );
    let (mut child, _output) = shell(&script);
    let session = child.id().cast_signed();
    let look = || Tree::look(&select(&proc, &guard), bound(&proc, &child));
    let expected = (4 - 2 * spared, spared);
    let found = |tree: &Tree| (tree.pids().len(), tree.spared.len());
    let deadline = Instant::now() + Duration::from_secs(5);
    // The last process may not have been started yet.
    let mut tree = look();
    while found(&tree).0 < expected.0 && Instant::now() < deadline {
        tree = look();
    }
    assert_eq!(end_session(&proc, session), 4);
    child.wait().unwrap();
    assert_eq!(found(&tree), expected, "{tree:?}");
}

/// Set in the process that has few descriptors.
const FEW: &str = "TOLLGATE_TEST_HAS_FEW_DESCRIPTORS";

#[test]
fn what_cannot_be_read_is_not_taken_for_ended() {
    if std::env::var_os(FEW).is_some() {
        return look_with_few_descriptors();
    }
    // The limit holds for a whole process, in which other tests run.
    let mut again = Command::new("sh");
    again.args(["-c", "ulimit -n 24; exec \"$0\" --exact \"$1\""]);
    again.arg(std::env::current_exe().unwrap());
    again.arg("tree::tests::what_cannot_be_read_is_not_taken_for_ended");
    let output = again.env(FEW, "1").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("1 passed"), "{printed}");
}

fn look_with_few_descriptors() {
    let proc = Proc::open().unwrap();
    let guard = Guard::new(&proc);
    let script = "exec setsid sh -c 'for n in 1 2 3 4 5 6 7 8 9; do sleep 60 & sleep 60 & sleep 60 & done; \
                  echo; wait'";
    let (mut child, _output) = shell(script);
    let tree = Tree::stop(&select(&proc, &guard), bound(&proc, &child), false);
    let (found, why) = (tree.pids().len(), tree.incomplete);
    drop(tree);
    let all = end_session(&proc, child.id().cast_signed());
    child.wait().unwrap();
    assert_eq!(all, 28);
    assert!((1..all).contains(&found), "{found} processes were found");
    assert!(why.is_some());
}
