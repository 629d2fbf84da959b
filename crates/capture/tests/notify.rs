//! The engine around real programs, with judges that ask for everything or nothing.
//!
//! No test harness: a child that installs a filter is made by a process with one thread.

use std::ffi::CString;
use std::os::fd::IntoRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use abi::{Arch, RegisterTest, Syscall, TestOp};
use capture::filter::{FilterOptions, compile};
use capture::notify::{CounterSnapshot, Notices, Parts, Processes, Supervisor};
use event::{CallPlan, Event, Judge, Need, NoWorld, Outcome, Param, Pid, Plan, Reason, Stage, Weight};
use sys::clone::CloneFlags;
use sys::seccomp::FilterFlags;
use sys::shared::SharedPage;

/// What a judge saw of one call.
#[derive(Clone, Debug)]
struct Seen {
    kind: &'static str,
    path: Option<Vec<u8>>,
    outcome: Outcome,
    stage: Stage,
    pid: i32,
}

/// Wants the result of every call it is asked about.
#[derive(Default)]
struct Everything(Mutex<Vec<Seen>>);

impl Judge for Everything {
    type Scratch = ();

    fn scratch(&self) {}

    fn weigh(&self, (): &mut (), _: &Event<'_>) -> Weight {
        Weight::Undecided
    }

    fn conclude(&self, (): &mut (), event: &Event<'_>) -> u32 {
        let path = event.params.iter().find_map(|param| match param {
            Param::Text(text) => Some(text.to_vec()),
            _ => None,
        });
        self.0.lock().expect("no test panics holding it").push(Seen {
            kind: event.kind.name(),
            path,
            outcome: event.outcome,
            stage: event.stage,
            pid: event.process.pid.0,
        });
        0
    }
}

struct Silent;

impl Notices for Silent {
    fn undecided(&self, _: &Event<'_>, _: u32) {}
    fn read_timed_out(&self, _: Pid) {}
}

/// A plan that a rule asks for.
fn plan(calls: &[(Syscall, Vec<Vec<RegisterTest>>)], watch_stdio: bool) -> Plan {
    let calls = calls.iter().map(|(syscall, any_of)| {
        let call = CallPlan {
            any_of: any_of.clone(),
            strings: true,
            result: Need::IfUndecided,
            reasons: vec![Reason::Rule("test".to_owned())],
        };
        (*syscall, call)
    });
    Plan { calls: calls.collect(), watch_stdio }
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
        let Ok(Some(listener)) = listener else { return 99 };
        page.int(0).store(listener.into_raw_fd() + 1, Ordering::Release);
        let _failed = sys::exec::execve(&path, &argv, &environment);
        98
    })
    .expect("one thread");
    let deadline = Instant::now() + Duration::from_secs(5);
    while page.int(0).load(Ordering::Acquire) == 0 {
        assert!(Instant::now() < deadline, "the child did not install its filter");
        std::thread::sleep(Duration::from_micros(50));
    }
    let listener = sys::fd::duplicate_number(page.int(0).load(Ordering::Acquire) - 1);
    let judge = Arc::new(Everything::default());
    let supervisor = Supervisor::start(Parts {
        listener: sys::notify::Listener::new(listener.expect("the child's table is ours")),
        plan: plan.clone(),
        judge: Arc::clone(&judge),
        world: Arc::new(NoWorld),
        processes: Processes::new(vec![]).expect("/proc"),
        notices: Arc::new(Silent),
    })
    .expect("threads");
    let counters = supervisor.join();
    let _ = child;
    let seen = judge.0.lock().expect("all threads are gone").clone();
    (seen, counters)
}

/// Each case in a process of its own: a supervisor makes threads.
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
    let plan = plan(&always(&[Syscall::OPENAT, Syscall::EXECVE]), false);
    let (seen, counters) = watch(&plan, "cat /etc/hostname /nonexistent >/dev/null 2>&1; true");
    let find = |path: &[u8]| {
        seen.iter().find(|seen| seen.kind == "openat" && seen.path.as_deref() == Some(path))
    };
    assert_eq!(find(b"/nonexistent").expect("seen").outcome, Outcome::Returned(-2));
    let Outcome::Returned(fd) = find(b"/etc/hostname").expect("seen").outcome else {
        panic!("no result")
    };
    assert!(fd >= 0);
    assert!(seen.iter().all(|seen| seen.stage == Stage::Exit));
    assert_eq!(counters.escalation_refused + counters.unknown_calls + counters.gone, 0, "{counters:?}");
}

fn execs_fail_and_succeed_in_order() {
    let plan = plan(&always(&[Syscall::EXECVE]), false);
    let (seen, _) = watch(&plan, "/nonexistent/program; /bin/true; exec /bin/true");
    let results: Vec<_> =
        seen.iter().map(|seen| (seen.path.clone().unwrap_or_default(), seen.outcome)).collect();
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
    let plan = plan(&always(&[Syscall::OPENAT]), false);
    let script = "d=$(mktemp -d); mkfifo $d/f; (sleep 0.3; echo x >$d/f) & cat $d/f; rm -r $d";
    let (seen, counters) = watch(&plan, script);
    let opens: Vec<_> = seen
        .iter()
        .filter(|seen| seen.path.as_ref().is_some_and(|path| path.ends_with(b"/f")))
        .collect();
    assert_eq!(opens.len(), 2, "{opens:?}");
    assert!(opens.iter().all(|seen| matches!(seen.outcome, Outcome::Returned(fd) if fd >= 0)));
    assert!(counters.followed >= 1, "{counters:?}");
}

fn a_plain_dup_into_a_closed_standard_descriptor_is_seen() {
    let low = vec![vec![RegisterTest::low(0, TestOp::Le, 2)]];
    let second = vec![vec![RegisterTest::low(1, TestOp::Le, 2)]];
    let calls = [
        (Syscall::CLOSE, low.clone()),
        (Syscall::CLOSE_RANGE, low),
        (Syscall::DUP2, second.clone()),
        (Syscall::DUP3, second),
        (Syscall::EXECVE, vec![vec![]]),
    ];
    // Python's own os.dup calls fcntl.
    let script = r#"python3 -c '
import ctypes, os
libc = ctypes.CDLL(None)
fd = os.open("/dev/null", 0)
libc.dup(fd)
libc.close(0)
libc.dup(fd)
libc.dup(fd)
'"#;
    let (seen, counters) = watch(&plan(&calls, true), script);
    let dups: Vec<_> = seen.iter().filter(|seen| seen.kind == "dup").collect();
    assert_eq!(dups.len(), 1, "{dups:?} {counters:?}");
    assert_eq!(dups[0].outcome, Outcome::Returned(0));
    assert!(counters.stdio_watches >= 1);
}

fn parallel_callers_are_all_seen() {
    let plan = plan(&always(&[Syscall::OPENAT]), false);
    let script = "for i in 1 2 3 4 5 6 7 8; do \
                  (for j in 1 2 3 4 5 6 7 8 9; do : < /etc/passwd; done) & done; wait";
    let (seen, counters) = watch(&plan, script);
    let opens = seen.iter().filter(|seen| seen.path.as_deref() == Some(b"/etc/passwd")).count();
    assert_eq!(opens, 72, "{counters:?}");
}

fn main() {
    let cases: [(&str, fn()); 5] = [
        ("opens_come_with_path_and_result", opens_come_with_path_and_result),
        ("execs_fail_and_succeed_in_order", execs_fail_and_succeed_in_order),
        ("a_sleeping_call_is_followed_to_its_result", a_sleeping_call_is_followed_to_its_result),
        (
            "a_plain_dup_into_a_closed_standard_descriptor_is_seen",
            a_plain_dup_into_a_closed_standard_descriptor_is_seen,
        ),
        ("parallel_callers_are_all_seen", parallel_callers_are_all_seen),
    ];
    for (name, case) in cases {
        isolated(name, case);
    }
    println!("\ntest result: ok. {} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out", cases.len());
}
