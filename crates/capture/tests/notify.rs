//! Runs the engine on real programs, with evaluators that ask for everything or nothing.
//!
//! No test harness: a child that installs a filter must be made by a process with one thread.

use std::ffi::CString;
use std::os::fd::IntoRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use abi::{Arch, RegisterTest, Syscall, TestOp};
use capture::notify::{
    EngineObserver, GuardOptions, NotifyEngine, Parts, Processes, VerifyOptions,
};
use decoder::counters::CounterSnapshot;
use event::{
    CallPlan, Evaluator, Event, Need, NoSystemInfo, Outcome, Param, Pid, Plan, Reason, Relevance,
    Stage, StdioWatch,
};
use seccomp::{FilterOptions, compile};
use sys::clone::CloneFlags;
use sys::seccomp::FilterFlags;
use sys::shared::SharedPage;

/// One call as the evaluator saw it.
#[derive(Clone, Debug)]
struct Seen {
    kind: &'static str,
    path: Option<Vec<u8>>,
    outcome: Outcome,
    stage: Stage,
    pid: i32,
    parent: Option<i32>,
}

/// Asks for the result of every call.
#[derive(Default)]
struct Everything(Mutex<Vec<Seen>>);

impl Evaluator for Everything {
    type Scratch = ();

    fn scratch(&self) {}

    fn prefilter(&self, (): &mut (), _: &Event<'_>) -> Relevance {
        Relevance::Undecided
    }

    fn evaluate(&self, (): &mut (), event: &Event<'_>) -> Vec<Arc<str>> {
        let path = event.params.iter().find_map(|param| match param {
            Param::Text(text) => Some(text.to_vec()),
            _ => None,
        });
        self.0
            .lock()
            .expect("no test panics holding it")
            .push(Seen {
                kind: event.kind.name(),
                path,
                outcome: event.outcome,
                stage: event.stage,
                pid: event.process.pid.0,
                parent: event.process.parent().map(|parent| parent.pid.0),
            });
        Vec::new()
    }
}

struct Silent;

impl EngineObserver for Silent {
    fn undecided(&self, _: &Event<'_>, _: &[Arc<str>]) {}
    fn read_timed_out(&self, _: Pid) {}
}

/// Returns a plan of calls that a rule asks for.
fn plan(calls: &[(Syscall, Vec<Vec<RegisterTest>>)], stdio: StdioWatch) -> Plan {
    let calls = calls.iter().map(|(syscall, any_of)| {
        let call = CallPlan {
            any_of: any_of.clone(),
            strings: true,
            result: Need::IfUndecided,
            reasons: vec![Reason::Rule("test".to_owned())],
        };
        (*syscall, call)
    });
    Plan {
        calls: calls.collect(),
        stdio,
        ..Plan::default()
    }
}

fn always(calls: &[Syscall]) -> Vec<(Syscall, Vec<Vec<RegisterTest>>)> {
    calls.iter().map(|call| (*call, vec![vec![]])).collect()
}

/// Runs a shell command under the plan.
fn watch(plan: &Plan, script: &str) -> (Vec<Seen>, CounterSnapshot) {
    let native = Arch::native().expect("this machine is supported");
    let program = compile(plan, &FilterOptions::notify(native)).expect("the plan fits");
    let page = SharedPage::new().expect("a page");
    let argv = ["sh", "-c", script].map(|text| CString::new(text).expect("no NUL"));
    let argv = sys::exec::StringArray::new(argv.to_vec());
    let environment = vec![CString::new("PATH=/usr/bin:/bin").expect("no NUL")];
    let environment = sys::exec::StringArray::new(environment);
    let path = CString::new("/bin/sh").expect("no NUL");
    let child = sys::clone::clone_child(CloneFlags::FILES, || {
        let flags = FilterFlags::NEW_LISTENER.union(FilterFlags::WAIT_KILLABLE_RECV);
        let listener = sys::seccomp::install_filter(program.instructions(), flags);
        let Ok(Some(listener)) = listener else {
            return 99;
        };
        page.int(0)
            .store(listener.into_raw_fd() + 1, Ordering::Release);
        let _failed = sys::exec::execve(&path, &argv, &environment);
        98
    })
    .expect("one thread");
    let deadline = Instant::now() + Duration::from_secs(5);
    while page.int(0).load(Ordering::Acquire) == 0 {
        assert!(
            Instant::now() < deadline,
            "the child did not install its filter"
        );
        std::thread::sleep(Duration::from_micros(50));
    }
    let listener = sys::fd::duplicate_number(page.int(0).load(Ordering::Acquire) - 1);
    let evaluator = Arc::new(Everything::default());
    // A thread that any program may have: it does not block SIGCHLD.
    std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)));
    let supervisor = NotifyEngine::start(Parts {
        listener: sys::notify::Listener::new(listener.expect("the child's table is ours")),
        installed: plan.clone(),
        plan: plan.clone(),
        profile: Default::default(),
        classifier: policy::compile::denial_classifier::DenialClassifier::default(),
        lacked: Arc::new(Default::default),
        first: None,
        pending: Box::new(|| Ok(Vec::new())),
        evaluator: Arc::clone(&evaluator),
        world: Arc::new(NoSystemInfo),
        processes: Processes::with_marks(vec![]).expect("/proc"),
        notices: Arc::new(Silent),
        guard: GuardOptions::default(),
        verify: VerifyOptions::default(),
        paths: Vec::new(),
    })
    .expect("threads");
    let counters = supervisor.join();
    let _ = child;
    let seen = evaluator.0.lock().expect("all threads are gone").clone();
    (seen, counters)
}

/// Runs each case in its own process: a supervisor starts threads.
fn isolated(name: &str, case: fn()) {
    let child = sys::clone::clone_child(CloneFlags::default(), || {
        case();
        0
    });
    let pid = child.expect("the test runner has one thread");
    let (_, status) = sys::wait::wait(sys::wait::Target::Pid(pid), 0)
        .expect("own child")
        .expect("a blocking wait answers");
    assert_eq!(status, sys::wait::Status::Exited(0), "{name}");
    println!("test {name} ... ok");
}

fn opens_come_with_path_and_result() {
    let plan = plan(
        &always(&[Syscall::OPENAT, Syscall::EXECVE]),
        StdioWatch::Off,
    );
    let (seen, counters) = watch(
        &plan,
        "cat /etc/hostname /nonexistent >/dev/null 2>&1; true",
    );
    let find = |path: &[u8]| {
        seen.iter()
            .find(|seen| seen.kind == "openat" && seen.path.as_deref() == Some(path))
    };
    assert_eq!(
        find(b"/nonexistent").expect("seen").outcome,
        Outcome::Returned(-2)
    );
    let Outcome::Returned(fd) = find(b"/etc/hostname").expect("seen").outcome else {
        panic!("no result")
    };
    assert!(fd >= 0);
    assert!(seen.iter().all(|seen| seen.stage == Stage::Exit));
    assert_eq!(
        counters.escalation_refused + counters.unknown_calls + counters.gone,
        0,
        "{counters:?}"
    );
}

fn execs_fail_and_succeed_in_order() {
    let plan = plan(&always(&[Syscall::EXECVE]), StdioWatch::Off);
    let (seen, _) = watch(&plan, "/nonexistent/program; /bin/true; exec /bin/true");
    let results: Vec<_> = seen
        .iter()
        .map(|seen| (seen.path.clone().unwrap_or_default(), seen.outcome))
        .collect();
    assert_eq!(
        results,
        [
            (b"/bin/sh".to_vec(), Outcome::Returned(0)),
            (b"/nonexistent/program".to_vec(), Outcome::Returned(-2)),
            (b"/bin/true".to_vec(), Outcome::Returned(0)),
            (b"/bin/true".to_vec(), Outcome::Returned(0)),
        ]
    );
    assert_ne!(seen[0].pid, seen[2].pid);
    assert_eq!(seen[0].pid, seen[3].pid);
}

fn a_sleeping_call_is_followed_to_its_result() {
    let plan = plan(&always(&[Syscall::OPENAT]), StdioWatch::Off);
    let script = "d=$(mktemp -d); mkfifo $d/f; (sleep 0.3; echo x >$d/f) & cat $d/f; rm -r $d";
    let (seen, counters) = watch(&plan, script);
    let opens: Vec<_> = seen
        .iter()
        .filter(|seen| seen.path.as_ref().is_some_and(|path| path.ends_with(b"/f")))
        .collect();
    assert_eq!(opens.len(), 2, "{opens:?}");
    assert!(
        opens
            .iter()
            .all(|seen| matches!(seen.outcome, Outcome::Returned(fd) if fd >= 0))
    );
    assert!(counters.followed >= 1, "{counters:?}");
}

/// Returns a plan that follows descriptors 0..2.
fn stdio_plan() -> Plan {
    let low = vec![vec![RegisterTest::low(0, TestOp::Le, 2)]];
    let second = vec![vec![RegisterTest::low(1, TestOp::Le, 2)]];
    let mut calls = vec![
        (Syscall::CLOSE, low.clone()),
        (Syscall::CLOSE_RANGE, low.clone()),
        (Syscall::FCNTL, low),
        (Syscall::DUP2, second.clone()),
        (Syscall::DUP3, second),
    ];
    calls.extend(always(&[
        Syscall::EXECVE,
        Syscall::SOCKET,
        Syscall::SOCKETPAIR,
    ]));
    plan(&calls, StdioWatch::Sockets)
}

/// Returns the results of the plain dups that a program makes after it has closed descriptor 0.
fn dups(order: &str) -> Vec<Outcome> {
    // Python's own os.dup calls fcntl.
    let script = format!(
        r#"python3 -c '
import ctypes, socket
libc = ctypes.CDLL(None)
def pair():
    global fd, kept
    kept = socket.socketpair()
    fd = max(kept[0].fileno(), kept[1].fileno())
{order}
libc.dup(fd)
libc.dup(fd)
libc.close(1)
libc.dup(fd)
'"#
    );
    let (seen, counters) = watch(&stdio_plan(), &script);
    assert!(counters.stdio_watches >= 1, "{counters:?}");
    // The call that starts the watch is evaluated like any other.
    assert_eq!(
        seen.iter().filter(|seen| seen.kind == "socketpair").count(),
        1,
        "{counters:?}"
    );
    seen.iter()
        .filter(|seen| seen.kind == "dup")
        .map(|seen| seen.outcome)
        .collect()
}

fn a_plain_dup_into_a_closed_standard_descriptor_is_seen() {
    assert_eq!(
        dups("pair(); libc.close(0)"),
        [Outcome::Returned(0), Outcome::Returned(1)]
    );
}

fn a_socket_made_after_a_standard_descriptor_was_closed_starts_the_watch() {
    // One end of the pair itself becomes descriptor 0.
    assert_eq!(dups("libc.close(0); pair()"), [Outcome::Returned(1)]);
}

fn programs_that_close_their_output_without_sockets_are_left_alone() {
    let (seen, counters) = watch(
        &stdio_plan(),
        "cat /dev/null; ls / >/dev/null; exec 0<&-; /bin/true",
    );
    assert_eq!(counters.stdio_watches, 0, "{counters:?}");
    assert_eq!(seen.iter().filter(|seen| seen.kind == "execve").count(), 4);
}

fn every_exec_of_a_watched_process_is_seen() {
    let script = r#"exec python3 -c '
import os, socket
s = socket.socketpair()
os.set_inheritable(0, False)
for n in range(10):
    if os.fork() == 0:
        try: os.execv("/nonexistent/echo", ["echo"])
        except OSError: os.execv("/bin/true", ["true"])
    os.wait()
os.execv("/bin/true", ["true"])
'"#;
    let (seen, counters) = watch(&stdio_plan(), script);
    let execs = |path: &[u8], result: i64| {
        let fits = |seen: &&Seen| {
            seen.kind == "execve"
                && seen.path.as_deref() == Some(path)
                && seen.outcome == Outcome::Returned(result)
        };
        seen.iter().filter(fits).count()
    };
    assert_eq!(execs(b"/nonexistent/echo", -2), 10, "{counters:?}");
    assert_eq!(execs(b"/bin/true", 0), 11, "{counters:?}");
}

fn an_exec_by_another_thread_than_the_leader_is_seen() {
    let script = r#"python3 -c '
import os, threading, time
for n in range(5):
    if os.fork() == 0:
        threading.Thread(target=lambda: os.execv("/bin/true", ["true"])).start()
        time.sleep(10)
    os.wait()
'"#;
    let plan = plan(&always(&[Syscall::EXECVE]), StdioWatch::Off);
    let (seen, counters) = watch(&plan, script);
    let execs = seen.iter().filter(|seen| {
        seen.path.as_deref() == Some(b"/bin/true") && seen.outcome == Outcome::Returned(0)
    });
    assert_eq!(execs.count(), 5, "{counters:?}");
    assert_eq!(counters.escalation_refused, 0, "{counters:?}");
}

fn a_signal_handler_in_a_sleeping_call_hides_nothing() {
    let script = r#"python3 -c '
import os, signal, tempfile, threading, time
d = tempfile.mkdtemp(); f = d + "/f"; os.mkfifo(f)
def handler(*_): os.close(os.open("/etc/hostname", os.O_RDONLY))
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
if os.fork() == 0:
    time.sleep(0.5)
    os.open(f, os.O_WRONLY); os._exit(0)
os.open(f, os.O_RDONLY)
os.wait(); os.unlink(f); os.rmdir(d)
'"#;
    let (seen, counters) = watch(&plan(&always(&[Syscall::OPENAT]), StdioWatch::Off), script);
    let hostname = seen
        .iter()
        .filter(|seen| seen.path.as_deref() == Some(b"/etc/hostname"));
    assert_eq!(hostname.count(), 1, "{counters:?}");
    let fifo = seen.iter().filter(|seen| {
        seen.path.as_ref().is_some_and(|path| path.ends_with(b"/f"))
            && matches!(seen.outcome, Outcome::Returned(fd) if fd >= 0)
    });
    assert_eq!(fifo.count(), 2, "{counters:?}");
}

fn ptrace_traceme_still_works() {
    let script = r#"python3 -c '
import ctypes, os
pid = os.fork()
if pid == 0:
    os._exit(0 if ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0 else 1)
assert os.wait()[1] == 0
print("traced")
' >/dev/null && exec /bin/true"#;
    let (seen, _) = watch(
        &plan(
            &always(&[Syscall::PTRACE, Syscall::EXECVE]),
            StdioWatch::Off,
        ),
        script,
    );
    assert!(seen.iter().any(|seen| seen.kind == "ptrace"));
    assert!(
        seen.last().expect("seen").path.as_deref() == Some(b"/bin/true"),
        "{seen:?}"
    );
}

fn an_orphan_keeps_its_killed_parent() {
    let script = r#"python3 -c '
import os, signal, time
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(0.3)
        os.execv("/bin/true", ["true"])
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
time.sleep(0.6)
'"#;
    let calls = [
        Syscall::EXECVE,
        Syscall::CLONE,
        Syscall::FORK,
        Syscall::VFORK,
    ];
    let (seen, counters) = watch(&plan(&always(&calls), StdioWatch::Off), script);
    let exec = seen
        .iter()
        .find(|seen| seen.path.as_deref() == Some(b"/bin/true"));
    let parent = exec.expect("seen").parent;
    assert!(
        parent.is_some_and(|pid| pid != 1),
        "{parent:?} {counters:?}"
    );
    assert_eq!(counters.guessed_parents, 0, "{counters:?}");
}

fn parallel_callers_are_all_seen() {
    let plan = plan(&always(&[Syscall::OPENAT]), StdioWatch::Off);
    let script = "for i in 1 2 3 4 5 6 7 8; do \
                  (for j in 1 2 3 4 5 6 7 8 9; do : < /etc/passwd; done) & done; wait";
    let (seen, counters) = watch(&plan, script);
    let opens = seen
        .iter()
        .filter(|seen| seen.path.as_deref() == Some(b"/etc/passwd"))
        .count();
    assert_eq!(opens, 72, "{counters:?}");
}

/// Lists each case's name and function once.
macro_rules! cases {
    ($($case:ident,)+) => { [$((stringify!($case), $case as fn())),+] };
}

fn main() {
    let cases = cases![
        opens_come_with_path_and_result,
        execs_fail_and_succeed_in_order,
        a_sleeping_call_is_followed_to_its_result,
        a_plain_dup_into_a_closed_standard_descriptor_is_seen,
        a_socket_made_after_a_standard_descriptor_was_closed_starts_the_watch,
        programs_that_close_their_output_without_sockets_are_left_alone,
        every_exec_of_a_watched_process_is_seen,
        an_exec_by_another_thread_than_the_leader_is_seen,
        a_signal_handler_in_a_sleeping_call_hides_nothing,
        ptrace_traceme_still_works,
        an_orphan_keeps_its_killed_parent,
        parallel_callers_are_all_seen,
    ];
    for (name, case) in cases {
        isolated(name, case);
    }
    println!(
        "\ntest result: ok. {} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        cases.len()
    );
}
