//! The agent may be killed, stopped, starved or replaced: the workload goes on as was asked for, and
//! what nobody watched is counted and told.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use e2e::{Alert, Fixture, Scratch, need_root, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sys::ptrace::{self, SyscallOp};
use sys::wait::{self, Target};

/// How long an agent may take with calls that wait, in milliseconds, where one that does not move is what
/// is looked at: longer than a loaded machine lets one wait that does.
const IMPATIENT: &str = "1500";
/// The same where it is not.
const PATIENT: &str = "20000";
/// Instead of a number: until there is a file of that name with `.stop` at its end.
const UNTIL_STOPPED: u64 = 0;
/// Long enough for a loaded machine; nothing here waits for it unless something is broken.
const PATIENCE: Duration = Duration::from_secs(40);
const GAP: &str = "Tollgate internal: unwatched gap";
const RULES: &str = "\
- rule: Counted
  desc: a file that the workload opens
  condition: evt.type = openat and fd.name endswith /counted
  output: counted pid=%proc.pid
  priority: DEBUG
- rule: Secret
  desc: a sensitive file
  condition: evt.type = openat and fd.name endswith /secret
  output: secret process=%proc.name parent=%proc.pname
  priority: WARNING
- rule: Ring
  desc: the filter hands the call over, though it is to be refused
  condition: evt.type = io_uring_setup
  output: ring %evt.res
  priority: DEBUG
";

/// A watched workload that does as it is told.
struct Run {
    front: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    scratch: Scratch,
    fixture: Fixture,
}

/// What came of an order.
#[derive(Debug, PartialEq, Eq)]
struct Sums {
    ok: u64,
    refused: u64,
    other: u64,
}

impl Run {
    fn start(options: &[&str]) -> Self {
        let fixture = Fixture::compile("orders");
        let program = fixture.program().to_owned();
        Self::start_as(options, RULES, fixture, Command::new(program))
    }

    /// A command that says that it is ready.
    fn start_as(options: &[&str], rules: &str, fixture: Fixture, command: Command) -> Self {
        Self::start_under(
            Command::new(e2e::program()),
            options,
            rules,
            fixture,
            command,
        )
    }

    /// The same with something before the program.
    fn start_under(
        mut program: Command,
        options: &[&str],
        rules: &str,
        fixture: Fixture,
        command: Command,
    ) -> Self {
        let scratch = Scratch::new();
        let rules = scratch.file("rules.yaml", 0o644, rules);
        for name in ["counted", "secret"] {
            scratch.file(name, 0o644, "x");
        }
        let path = |name: &str| scratch.path().join(name).display().to_string();
        let alerts = format!("file_output.filename={}", path("alerts"));
        let is_impatient = options.contains(&"--agent-timeout");
        let patience = (!is_impatient).then_some(["--agent-timeout", PATIENT]);
        let mut front = program
            .args(["run", "-q", "--json", "-r"])
            .arg(&rules)
            .args(["-s", &path("stats"), "--stats-interval", "100"])
            .args(["-P", &path("pid"), "-o", "file_output.enabled=true"])
            .args(["-o", &alerts, "-o", "stdout_output.enabled=false"])
            .args(patience.iter().flatten())
            .args(options)
            .arg("--")
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(scratch.path().join("stderr")).expect("writable"))
            .spawn()
            .expect("it was built");
        let answers = BufReader::new(front.stdout.take().expect("it was asked for"));
        let mut run = Self {
            orders: front.stdin.take(),
            front,
            answers,
            scratch,
            fixture,
        };
        assert_eq!(run.line(), "ready\n", "{}", run.stderr());
        run
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it prints UTF-8");
        line
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Tells the workload to open a file so often in each of so many processes, [`UNTIL_STOPPED`] or a
    /// number of times.
    fn order(&mut self, times: u64, processes: u64, name: &str) {
        let path = self.path(name);
        self.tell(&format!("open {times} {processes} {}\n", path.display()));
    }

    fn tell(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("it runs");
        orders.write_all(order.as_bytes()).expect("it reads");
    }

    fn answer(&mut self) -> Sums {
        let line = self.line();
        let number = |name: &str| {
            let words = line.split_ascii_whitespace();
            let found = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            let numbers: Vec<u64> = found.filter_map(|text| text.parse().ok()).collect();
            assert_eq!(numbers.len(), 1, "{name} in {line:?}; {}", self.stderr());
            numbers[0]
        };
        Sums {
            ok: number("ok"),
            refused: number("refused"),
            other: number("other"),
        }
    }

    fn open(&mut self, times: u64, processes: u64, name: &str) -> Sums {
        self.order(times, processes, name);
        self.answer()
    }

    /// One that is watched: its alert comes.
    fn sees_again(&mut self) {
        let before = self.of("Secret").len();
        assert_eq!(self.open(1, 1, "secret"), all(1));
        until("an alert", || self.of("Secret").len() > before);
        let last = self.of("Secret").pop().expect("one came");
        assert_eq!(last.field("proc.name"), "orders");
    }

    fn front(&self) -> i32 {
        self.front.id().cast_signed()
    }

    /// Kills the agent while the rules of the next one are held. Answers with its pid.
    fn kill_idle_agent(&self) -> i32 {
        let agent = self.idle_agent();
        kill(agent);
        agent
    }

    fn keeper(&self) -> i32 {
        child(self.front(), "tollgate-keeper")
    }

    /// The agent's pid, from its file.
    fn agent(&self) -> i32 {
        let mut pid = None;
        until("a pid file", || {
            let text = fs::read_to_string(self.path("pid")).unwrap_or_default();
            pid = text.trim().parse().ok().filter(|pid| state(*pid).is_some());
            pid.is_some()
        });
        pid.expect("it was waited for")
    }

    /// The agent when it is done with all calls so far. One that it had let go and was not done with
    /// when it was killed would be counted.
    fn idle_agent(&self) -> i32 {
        let agent = self.agent();
        let sleeps = |thread: fs::DirEntry| {
            let tid = thread.file_name().to_str().and_then(|tid| tid.parse().ok());
            tid.and_then(state).is_none_or(|(_, state, _)| state == 'S')
        };
        let mut times = 0;
        until("it sleeps", || {
            let mut threads = fs::read_dir(format!("/proc/{agent}/task")).expect("it lives");
            let all_sleep = threads.all(|thread| thread.is_ok_and(sleeps));
            times = if all_sleep { times + 1 } else { 0 };
            times == 10
        });
        agent
    }

    /// Agents that have taken over, or are about to.
    fn agents(&self) -> Vec<i32> {
        // The verb, the number of a descriptor, and what is shown of the command.
        let program = self.fixture.program().display().to_string();
        let entries = fs::read_dir("/proc").expect("procfs").flatten();
        let is_agent = |entry: &fs::DirEntry| {
            // What is no process, or has just ended, has none.
            let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            line.starts_with("tollgate\0agent\0") && line.contains(&program)
        };
        let agents = entries.filter(is_agent);
        agents
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    fn next_agent(&self, former: i32) -> i32 {
        until("another agent", || self.agent_is_not(former));
        self.agent()
    }

    fn agent_is_not(&self, former: i32) -> bool {
        let text = fs::read_to_string(self.path("pid")).unwrap_or_default();
        text.trim().parse().is_ok_and(|pid: i32| pid != former)
    }

    fn workload_lives(&self) -> bool {
        let entries = fs::read_dir("/proc").expect("procfs").flatten();
        let mut programs = entries.filter_map(|entry| fs::read_link(entry.path().join("exe")).ok());
        programs.any(|program| program == self.fixture.program())
    }

    fn alerts(&self) -> Vec<Alert> {
        let text = fs::read_to_string(self.path("alerts")).unwrap_or_default();
        text.lines().filter_map(Alert::parse).collect()
    }

    fn of(&self, rule: &str) -> Vec<Alert> {
        let alerts = self.alerts().into_iter();
        alerts.filter(|alert| alert.rule == rule).collect()
    }

    fn gaps(&self, count: usize) -> Vec<Alert> {
        until("gaps are told", || self.of(GAP).len() >= count);
        self.of(GAP)
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.path("stderr")).unwrap_or_default()
    }

    /// Ends it; answers with the last line of the stats file.
    fn ends_well(&mut self) -> Value {
        let (status, stats) = self.end();
        assert_eq!(status, Some(0), "{}", self.stderr());
        stats
    }

    /// Ends it; answers with the exit status and the last line of the stats file.
    fn end(&mut self) -> (Option<i32>, Value) {
        drop(self.orders.take());
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.front.try_wait().expect("it is our child") {
                break status;
            }
            assert!(Instant::now() < deadline, "it runs on: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = fs::read_to_string(self.path("stats")).unwrap_or_default();
        let last = text.lines().last().unwrap_or("null");
        (status.code(), serde_json::from_str(last).expect("JSON"))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The workload ends when its input does; the front, if that failed, by force.
        drop(self.orders.take());
        if std::thread::panicking() {
            eprintln!("{}\n{:?}", self.stderr(), self.alerts());
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if self.front.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.front.kill();
        let _ = self.front.wait();
    }
}

fn all(ok: u64) -> Sums {
    Sums {
        ok,
        refused: 0,
        other: 0,
    }
}

/// Name, state and parent of a process that lives.
fn state(pid: i32) -> Option<(String, char, i32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, tail) = text.rsplit_once(") ")?;
    let mut fields = tail.split(' ');
    let state = fields.next()?.chars().next()?;
    let name = head.split_once('(')?.1.to_owned();
    (state != 'Z').then_some((name, state, fields.next()?.parse().ok()?))
}

fn child(parent: i32, name: &str) -> i32 {
    let found = children(parent, name);
    assert_eq!(found.len(), 1, "{name} below {parent}");
    found[0]
}

fn children(parent: i32, name: &str) -> Vec<i32> {
    let pids = fs::read_dir("/proc")
        .expect("procfs")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let fits =
        |pid: &i32| state(*pid).is_some_and(|(found, _, ppid)| ppid == parent && found == name);
    pids.filter(fits).collect()
}

/// Only processes that a test started, by their pids.
fn signal(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("not zero");
    kill_process(pid, signal).expect("it lives");
}

/// Kills a process and waits until it is reaped: one of its threads may take a call while it is ending.
fn kill(pid: i32) {
    signal(pid, Signal::KILL);
    let process = format!("/proc/{pid}");
    until("its end", || !Path::new(&process).exists());
}

/// Stops a process and waits until each of its threads is: one that is not may take a call.
fn stop(pid: i32) {
    signal(pid, Signal::STOP);
    let is_stopped = |thread: fs::DirEntry| {
        let tid = thread.file_name().to_str().and_then(|tid| tid.parse().ok());
        tid.and_then(state).is_none_or(|(_, state, _)| state == 'T')
    };
    until("it is stopped", || {
        let mut threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
        threads.all(|thread| thread.is_ok_and(is_stopped))
    });
}

/// Has the next agent wait for its rules: a fifo stands in their place. Answers with the way to give
/// them to it.
fn hold_rules(run: &Run) -> impl FnOnce() + use<> {
    let (rules, fifo) = (run.path("rules.yaml"), run.path("fifo"));
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success());
    fs::rename(&fifo, &rules).expect("same folder");
    move || {
        // Opening waits for the reader.
        fs::write(&rules, RULES).expect("the agent reads");
        replace(&rules, RULES);
    }
}

fn threads(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let number = |thread: std::io::Result<fs::DirEntry>| {
        let name = thread.expect("procfs").file_name();
        name.to_str().expect("a number").parse().expect("a number")
    };
    threads.map(number).collect()
}

/// Those of them that wait for a call of the workload's.
fn receiving(pid: i32) -> Vec<i32> {
    let request = format!(" {RECEIVE:#x} ");
    let waits = |tid: &i32| {
        let call = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
        call.is_ok_and(|call| call.contains(&request))
    };
    threads(pid).into_iter().filter(waits).collect()
}

/// The request of ioctl by which a call of the workload's is received.
const RECEIVE: u64 = 0xc050_2100;
/// The one by which it is answered.
const ANSWER: u64 = 0xc018_2101;

/// The threads of a process, followed from call to call until one has been given a call of the workload's.
struct Traced {
    pid: i32,
    threads: Vec<i32>,
}

impl Traced {
    /// From here on no call begins or ends unseen.
    fn seize(pid: i32) -> Self {
        let threads = threads(pid);
        for tid in &threads {
            ptrace::seize(*tid, ptrace::OPTION_TRACESYSGOOD).expect("root may");
            ptrace::interrupt(*tid).expect("seized");
            let stopped = wait::wait(Target::Pid(*tid), wait::ALL).expect("a tracee");
            assert!(stopped.is_some_and(|(_, status)| !status.is_end()));
            ptrace::resume_to_syscall(*tid, 0).expect("it is stopped");
        }
        Self { pid, threads }
    }

    /// Kills the process at the end of the very call in which it is given one: nothing of it has seen that.
    fn kill_when_it_has_received(self) {
        self.kill_when_it_has_made(RECEIVE);
    }

    /// The same with the call in which it answers one.
    fn kill_when_it_has_answered(self) {
        self.kill_when_it_has_made(ANSWER);
    }

    fn kill_when_it_has_made(self, request: u64) {
        let mut making = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "no call was received");
            let stopped = self.threads.iter().find_map(|tid| {
                let flags = wait::ALL | wait::NO_HANG;
                wait::wait(Target::Pid(*tid), flags).expect("a tracee")
            });
            let Some((tid, status)) = stopped else {
                std::thread::yield_now();
                continue;
            };
            assert!(!status.is_end(), "{tid} has ended: {status:?}");
            let signal = match status {
                wait::Status::Stopped(signal) => signal,
                _ => 0,
            };
            match ptrace::syscall_info(tid).expect("it is stopped").op {
                SyscallOp::Entry { nr, args } if nr == Self::ioctl() && args[1] == request => {
                    making.push(tid);
                }
                SyscallOp::Exit { rval: 0, .. } if making.contains(&tid) => break,
                SyscallOp::Exit { .. } => making.retain(|other| *other != tid),
                _ => {}
            }
            ptrace::resume_to_syscall(tid, signal).expect("it is stopped");
        }
        signal(self.pid, Signal::KILL);
        // The first of them ends for us when the others have.
        for tid in self.threads.iter().rev() {
            while let Ok(Some((_, status))) = wait::wait(Target::Pid(*tid), wait::ALL)
                && !status.is_end()
            {}
        }
    }

    fn ioctl() -> u64 {
        let arch = abi::Arch::native().expect("a known architecture");
        let number = abi::Syscall::IOCTL.number(arch).expect("it has one");
        arch.raw_number(number).into()
    }
}

fn replace(path: &Path, text: &str) {
    let other = path.with_extension("new");
    fs::write(&other, text).expect("writable");
    fs::rename(other, path).expect("same folder");
}

fn counters<'a>(stats: &'a Value, name: &str) -> &'a Value {
    &stats["counters"][name]
}

fn calls(gaps: &[Alert]) -> u64 {
    let each = gaps
        .iter()
        .map(|gap| gap.fields["tollgate.gap.calls"].as_u64());
    each.map(|calls| calls.expect("a number")).sum()
}

#[test]
fn killing_the_agent_under_load_fails_no_call_and_is_told() {
    let mut run = Run::start(&[]);
    let first = run.agent();
    run.order(UNTIL_STOPPED, 8, "counted");
    until("alerts", || run.of("Counted").len() > 200);
    signal(first, Signal::KILL);
    let second = run.next_agent(first);
    let seen = run.of("Counted").len();
    until("more alerts", || run.of("Counted").len() > seen + 100);
    // What it has not told yet would be lost with it, as any alert in its queues.
    run.gaps(1);
    signal(second, Signal::KILL);
    run.next_agent(second);
    fs::write(run.path("counted.stop"), "").expect("a scratch folder");
    let opened = run.answer();
    assert_eq!(opened, all(opened.ok));
    run.sees_again();
    let gaps = run.gaps(2);
    for gap in &gaps {
        assert_eq!(gap.field("tollgate.gap.cause"), "killed by signal 9");
        assert_eq!(gap.priority, "Critical");
    }
    let stats = run.ends_well();
    assert_eq!(*counters(&stats, "gaps"), 2);
    let passed = counters(&stats, "passed_unwatched").as_u64();
    // One whose agent was killed between telling it and noting that is told again with the next.
    let last = &gaps[gaps.len() - 1..];
    let is_again = last[0].number("tollgate.gap.count") == 2;
    let told = if is_again { last } else { &gaps };
    assert_eq!(passed, Some(calls(told)), "{stats}");
    assert_eq!(stats["cur"]["drops"].as_u64(), passed);
    assert_eq!(
        counters(&stats, "passed_agent_killed"),
        counters(&stats, "passed_unwatched")
    );
    let seen = run.of("Counted").len() as u64;
    let passed = passed.expect("a number");
    // An alert may be lost in the queue of an agent that is killed, which is counted: no call is both
    // unseen and uncounted. One that was being answered, or whose alert was being delivered, may be
    // both.
    let lost = counters(&stats, "alerts_lost_with_agent").as_u64();
    let sum = seen + passed + lost.expect("a number");
    assert!(
        (opened.ok..=opened.ok + 16 + 2 + 4).contains(&sum),
        "{opened:?}: {seen} seen, {passed} passed, {lost:?} lost"
    );
    assert!(seen > 200, "{seen} seen");
}

/// The next agent is started, and reads of processes, from another `/proc` than the workload's.
#[test]
fn an_agent_starts_and_sees_although_something_lies_over_proc() {
    need_root!();
    let fixture = Fixture::compile("orders");
    let mut command = Command::new("sh");
    let cover = "mount -t tmpfs none /proc && exec \"$0\"";
    command.args(["-c", cover]).arg(fixture.program());
    let mut program = Command::new("unshare");
    program.arg("--mount").arg(e2e::program());
    let mut run = Run::start_under(program, &[], RULES, fixture, command);
    run.sees_again();
    run.kill_idle_agent();
    until("the gap to be told", || !run.of(GAP).is_empty());
    run.sees_again();
}

#[test]
fn what_passes_in_a_gap_is_counted_exactly() {
    let mut run = Run::start(&[]);
    run.sees_again();
    let release = hold_rules(&run);
    let agent = run.kill_idle_agent();
    assert_eq!(run.open(100, 5, "counted"), all(500));
    assert_eq!(run.open(7, 1, "secret"), all(7));
    release();
    run.next_agent(agent);
    run.sees_again();
    let gaps = run.gaps(1);
    assert_eq!(gaps.len(), 1);
    assert_eq!(gaps[0].field("tollgate.gap.by_call"), "openat:507");
    assert_eq!((calls(&gaps), run.of("Counted").len()), (507, 0));
    let stats = run.ends_well();
    assert_eq!(*counters(&stats, "passed_agent_killed"), 507);
    assert_eq!(*counters(&stats, "denied_unwatched"), 0);
}

/// What a process may not do while it is in it: make another.
struct NoChildren(PathBuf);

impl NoChildren {
    fn of(pid: i32) -> Self {
        let folder = PathBuf::from(format!("/sys/fs/cgroup/pids/tollgate-test-{pid}"));
        fs::create_dir(&folder).expect("root makes control groups");
        fs::write(folder.join("pids.max"), "1").expect("it is ours");
        fs::write(folder.join("cgroup.procs"), pid.to_string()).expect("it runs");
        Self(folder)
    }
}

impl Drop for NoChildren {
    fn drop(&mut self) {
        let procs = self.0.join("cgroup.procs");
        let members = fs::read_to_string(&procs).unwrap_or_default();
        for member in members.lines() {
            // One that has ended meanwhile is not there any more.
            let _ = fs::write("/sys/fs/cgroup/pids/cgroup.procs", member);
        }
        fs::remove_dir(&self.0).expect("it is empty");
    }
}

/// A workload can use up all processes that may be had: until there is one for an agent, calls pass and
/// are counted.
#[test]
fn an_agent_that_cannot_be_started_is_started_as_soon_as_it_can() {
    e2e::need_root!();
    if !Path::new("/sys/fs/cgroup/pids/cgroup.procs").exists() {
        e2e::skip!("needs control groups of processes", || Ok(String::from(
            "/sys/fs/cgroup/pids is not there"
        )));
    }
    let mut run = Run::start(&[]);
    run.sees_again();
    let limit = NoChildren::of(run.keeper());
    let agent = run.kill_idle_agent();
    assert_eq!(run.open(100, 5, "counted"), all(500));
    until("it is said", || {
        run.stderr().contains("cannot start a new agent")
    });
    assert_eq!(run.open(7, 1, "secret"), all(7));
    drop(limit);
    run.next_agent(agent);
    run.sees_again();
    let gaps = run.gaps(1);
    assert_eq!(gaps.len(), 1);
    assert_eq!(gaps[0].field("tollgate.gap.by_call"), "openat:507");
    assert_eq!(*counters(&run.ends_well(), "passed_agent_killed"), 507);
}

#[test]
fn calls_are_refused_while_nobody_watches_if_that_was_asked_for() {
    let mut run = Run::start(&["--on-agent-death", "deny"]);
    run.sees_again();
    let release = hold_rules(&run);
    let agent = run.kill_idle_agent();
    let refused = Sums {
        ok: 0,
        refused: 40,
        other: 0,
    };
    assert_eq!(run.open(10, 4, "counted"), refused);
    release();
    run.next_agent(agent);
    run.sees_again();
    let gaps = run.gaps(1);
    assert_eq!(gaps[0].field("tollgate.gap.by_call"), "openat:40");
    let stats = run.ends_well();
    assert_eq!(*counters(&stats, "denied_unwatched"), 40);
    assert_eq!(*counters(&stats, "passed_unwatched"), 0);
    assert_eq!(stats["cur"]["drops"], 0);
}

#[test]
fn what_is_refused_anyway_is_refused_while_nobody_watches_too() {
    let mut run = Run::start(&[]);
    let refused = Sums {
        ok: 0,
        refused: 1,
        other: 0,
    };
    run.tell("ring\n");
    assert_eq!(run.answer(), refused);
    until("its alert", || run.of("Ring").len() == 1);
    let release = hold_rules(&run);
    let agent = run.kill_idle_agent();
    run.tell("ring\n");
    assert_eq!(run.answer(), refused);
    assert_eq!(run.open(3, 1, "counted"), all(3));
    release();
    run.next_agent(agent);
    run.sees_again();
    let gaps = run.gaps(1);
    assert_eq!(
        gaps[0].field("tollgate.gap.by_call"),
        "openat:3,io_uring_setup:1"
    );
    let stats = run.ends_well();
    assert_eq!(*counters(&stats, "denied_unwatched"), 1);
    assert_eq!(*counters(&stats, "passed_unwatched"), 3);
}

#[test]
fn alerts_that_a_killed_agent_had_queued_are_counted_as_lost() {
    // Takes connections and never answers.
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("loopback");
    let port = silent.local_addr().expect("it is bound").port();
    let url = format!("http_output.url=http://127.0.0.1:{port}");
    let mut run = Run::start(&["-o", "http_output.enabled=true", "-o", &url]);
    let first = run.agent();
    assert_eq!(run.open(30, 1, "counted"), all(30));
    until("alerts in the file", || run.of("Counted").len() == 30);
    signal(first, Signal::KILL);
    run.next_agent(first);
    let gaps = run.gaps(1);
    // And nothing of the output that had delivered them, but for one that was not told yet.
    let lost = gaps[0].number("tollgate.gap.lost_alerts");
    assert!((30..=31).contains(&lost), "{}", gaps[0]);
    let stats = run.ends_well();
    assert_eq!(*counters(&stats, "alerts_lost_with_agent"), lost);
}

/// A pipe that is full cuts a line off in the middle, and its agent dies there.
#[test]
fn a_line_that_a_killed_agent_left_without_its_end_swallows_no_alert() {
    let scratch = Scratch::new();
    let fifo = scratch.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("it is installed").success());
    let mut reader = fs::File::options();
    let mut reader = reader.read(true).write(true).open(&fifo).expect("a FIFO");
    rustix::pipe::fcntl_setpipe_size(&reader, 4096).expect("it is a pipe");
    let name = format!("file_output.filename={}", fifo.display());
    let rules = RULES.replace("output: counted", &format!("output: {}", "x".repeat(6000)));
    let fixture = Fixture::compile("orders");
    let command = Command::new(fixture.program());
    let mut run = Run::start_as(&["-o", &name], &rules, fixture, command);
    let agent = run.agent();
    assert_eq!(run.open(1, 1, "counted"), all(1));
    until("a line is cut off", || {
        let ready = rustix::io::ioctl_fionread(&reader);
        ready.expect("it is a pipe") == 4096
    });
    kill(agent);
    run.next_agent(agent);
    let mut text = Vec::new();
    until("the gap is told", || {
        let ready = rustix::io::ioctl_fionread(&reader).expect("it is a pipe");
        let mut piece = vec![0; usize::try_from(ready).expect("a page")];
        reader.read_exact(&mut piece).expect("that much is there");
        text.extend(piece);
        String::from_utf8_lossy(&text).contains(GAP) && text.ends_with(b"\n")
    });
    let text = String::from_utf8(text).expect("JSON");
    let whole: Vec<Alert> = text.lines().filter_map(Alert::parse).collect();
    assert!(whole.iter().any(|alert| alert.rule == GAP), "{text}");
    assert!(text.lines().all(|line| !line.is_empty()), "{text}");
    run.ends_well();
}

/// Takes alerts by HTTP; answers none before it is let. Hands out the bodies it has answered.
fn postponing_server() -> (u16, Arc<AtomicBool>, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback");
    let port = listener.local_addr().expect("it is bound").port();
    let (answers, taken) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let (lets, bodies) = (Arc::clone(&answers), Arc::clone(&taken));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("it connects");
            let (lets, bodies) = (Arc::clone(&lets), Arc::clone(&bodies));
            // A connection that is not answered has a thread of its own, which ends with it.
            std::thread::spawn(move || {
                let mut request = Vec::new();
                let mut piece = [0; 4096];
                // The client hangs up, or is killed.
                while let Ok(read) = stream.read(&mut piece)
                    && read > 0
                {
                    request.extend_from_slice(&piece[..read]);
                    let text = String::from_utf8_lossy(&request).into_owned();
                    if !lets.load(Ordering::Acquire) || !text.trim_end().ends_with('}') {
                        continue;
                    }
                    let body = text.split("\r\n\r\n").nth(1).expect("a body");
                    bodies.lock().expect("nobody panics").push(body.to_owned());
                    let answer =
                        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                    return stream.write_all(answer).expect("it reads");
                }
            });
        }
    });
    (port, answers, taken)
}

/// The alert about a gap waits in an agent's queue when that agent is killed, too.
#[test]
fn a_gap_whose_alert_dies_with_an_agent_is_told_by_the_next_one() {
    let (port, answers, bodies) = postponing_server();
    let url = format!("http_output.url=http://127.0.0.1:{port}");
    let mut options = Vec::new();
    for key in [
        "http_output.enabled=true",
        &url,
        "file_output.enabled=false",
        "output_timeout=30000",
    ] {
        options.extend(["-o", key]);
    }
    let mut run = Run::start(&options);
    let gap = |run: &mut Run, opens, is_answered| {
        let release = hold_rules(run);
        let agent = run.kill_idle_agent();
        assert_eq!(run.open(opens, 1, "counted"), all(opens));
        // Before there is an agent: a request that is there is not looked at again.
        answers.store(is_answered, Ordering::Release);
        release();
        run.next_agent(agent);
    };
    gap(&mut run, 7, false);
    until("the gap is to be told", || {
        let text = fs::read_to_string(run.path("stats")).unwrap_or_default();
        let last = text.lines().last().unwrap_or("null");
        serde_json::from_str::<Value>(last).is_ok_and(|last| {
            let http = &last["alerts"]["channels"]["http"];
            *counters(&last, "gaps") == 1 && http["pending"].as_u64() > Some(0)
        })
    });
    gap(&mut run, 5, true);
    let gaps = || {
        let bodies = bodies.lock().expect("nobody panics");
        let alerts = bodies.iter().filter_map(|body| Alert::parse(body));
        alerts.filter(|alert| alert.rule == GAP).collect::<Vec<_>>()
    };
    until("a gap is told", || !gaps().is_empty());
    let told = gaps();
    assert_eq!(told[0].number("tollgate.gap.count"), 2, "{}", told[0]);
    assert_eq!(told[0].number("tollgate.gap.calls"), 12, "{}", told[0]);
    let stats = run.ends_well();
    assert_eq!(*counters(&stats, "passed_unwatched"), 12, "{stats}");
    assert_eq!(gaps().len(), 1, "told once: {:?}", gaps());
}

/// A shell moves its output away and back by `fcntl`, `dup2` and `close`.
#[test]
fn what_gives_back_or_rearranges_goes_on_while_calls_are_refused() {
    let rules = format!(
        "{RULES}- rule: Moved\n  desc: d\n  condition: evt.type in (close, dup2, dup3, fcntl)\n  \
         output: o\n  priority: DEBUG\n"
    );
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "echo ready; read go; echo away 1>&2; echo kept; cat $go",
    ]);
    let fixture = Fixture::compile("orders");
    let mut run = Run::start_as(&["--on-agent-death", "deny"], &rules, fixture, shell);
    let release = hold_rules(&run);
    kill(run.idle_agent());
    let orders = run.orders.as_mut().expect("it runs");
    orders.write_all(b"/dev/null\n").expect("it reads");
    assert_eq!(run.line(), "kept\n", "{}", run.stderr());
    release();
    let (status, stats) = run.end();
    assert_eq!(status, Some(126), "cat was executed: {}", run.stderr());
    assert!(
        counters(&stats, "passed_unwatched").as_u64() > Some(3),
        "{stats}"
    );
    assert!(
        counters(&stats, "denied_unwatched").as_u64() > Some(0),
        "{stats}"
    );
}

#[test]
fn a_gap_is_told_even_if_the_command_ends_before_there_is_another_agent() {
    // All at once: most of it is waiting.
    std::thread::scope(|scope| {
        for (put_down, cause) in [(kill as fn(i32), "killed by signal 9"), (stop, "stopped")] {
            for (mode, counted) in [
                ("continue", "passed_unwatched"),
                ("deny", "denied_unwatched"),
            ] {
                scope.spawn(move || is_told_at_its_end(put_down, cause, mode, counted));
            }
        }
    });
}

/// A command ends while no agent can start; the gap is told when one can.
fn is_told_at_its_end(put_down: fn(i32), cause: &str, mode: &str, counted: &str) {
    let mut run = Run::start(&["--on-agent-death", mode, "--agent-timeout", IMPATIENT]);
    let agent = run.idle_agent();
    let release = hold_rules(&run);
    put_down(agent);
    let sums = run.open(1, 1, "secret");
    assert_eq!(sums.ok + sums.refused, 1, "{sums:?}");
    drop(run.orders.take());
    until("its end", || !run.workload_lives());
    release();
    let (status, stats) = run.end();
    let story = format!("{cause} {mode}: {} {stats}", run.stderr());
    assert_eq!(status, Some(0), "{story}");
    let gaps = run.of(GAP);
    assert_eq!(gaps.len(), 1, "{story}");
    assert_eq!(gaps[0].field("tollgate.gap.cause"), cause, "{story}");
    assert_eq!(*counters(&stats, counted), 1, "{story}");
    assert_eq!(*counters(&stats, "gaps"), 1, "{story}");
}

/// The rules are broken, so that no other agent starts.
#[test]
fn a_gap_that_no_agent_can_tell_of_is_told_by_the_keeper() {
    let mut run = Run::start(&[]);
    let agent = run.idle_agent();
    let release = hold_rules(&run);
    kill(agent);
    run.order(5, 1, "secret");
    assert_eq!(run.answer(), all(5));
    drop(run.orders.take());
    std::thread::sleep(Duration::from_millis(200));
    fs::write(run.path("rules.yaml"), "- rule: broken\n").expect("the agent reads");
    drop(release);
    let (status, _) = run.end();
    assert_eq!(status, Some(0), "{}", run.stderr());
    let stderr = run.stderr();
    assert!(stderr.contains("5 calls passed unwatched"), "{stderr}");
}

#[test]
fn the_workload_is_killed_with_the_agent_if_that_was_asked_for() {
    let mut run = Run::start(&["--on-agent-death", "kill"]);
    run.order(1_000_000, 4, "counted");
    until("alerts", || run.of("Counted").len() > 10);
    signal(run.agent(), Signal::KILL);
    let (status, _) = run.end();
    assert_eq!(status, Some(4), "{}", run.stderr());
    let stderr = run.stderr();
    assert!(
        stderr.contains("the agent process is gone\nhelp: CMD was killed"),
        "{stderr}"
    );
    assert!(stderr.contains(" calls passed unwatched"), "{stderr}");
    assert!(!run.workload_lives(), "a process of the workload lives");
}

#[test]
fn a_stopped_agent_is_replaced_when_calls_wait() {
    let mut run = Run::start(&["--agent-timeout", IMPATIENT]);
    let agent = run.agent();
    stop(agent);
    let began = Instant::now();
    assert_eq!(run.open(3, 2, "counted"), all(6));
    assert!(began.elapsed() > Duration::from_secs(1), "nobody waited");
    run.next_agent(agent);
    assert!(state(agent).is_none(), "it lives");
    run.sees_again();
    let gaps = run.gaps(1);
    assert_eq!(gaps[0].field("tollgate.gap.cause"), "stopped");
    let stats = run.ends_well();
    assert_eq!(
        counters(&stats, "passed_agent_stopped").as_u64(),
        Some(calls(&gaps))
    );
}

#[test]
fn an_agent_that_is_stopped_and_goes_on_in_time_stays() {
    let mut run = Run::start(&["--agent-timeout", "5000"]);
    let agent = run.agent();
    stop(agent);
    run.order(10, 1, "counted");
    std::thread::sleep(Duration::from_millis(300));
    signal(agent, Signal::CONT);
    assert_eq!(run.answer(), all(10));
    run.sees_again();
    assert_eq!((run.agent(), run.of("Counted").len()), (agent, 10));
    let (status, stats) = run.end();
    assert_eq!(
        (status, counters(&stats, "gaps")),
        (Some(0), &Value::from(0))
    );
}

/// A control group of the unified hierarchy that can be frozen.
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts
            .lines()
            .find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
        let group = format!("tollgate-test-{}", std::process::id());
        let path = Path::new(mount.split(' ').nth(1)?).join(group);
        fs::create_dir(&path).ok()?;
        let freezer = Self(path);
        freezer.0.join("cgroup.freeze").exists().then_some(freezer)
    }

    fn write(&self, file: &str, text: &str) -> bool {
        fs::write(self.0.join(file), text).is_ok()
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.write("cgroup.freeze", "0");
        let parent = self.0.parent().expect("it is a mount point");
        let members = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for member in members.lines() {
            let _ = fs::write(parent.join("cgroup.procs"), member);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn an_agent_without_a_processor_is_stood_in_for_until_it_has_one() {
    let freezer = match Freezer::new() {
        Some(freezer) => freezer,
        None => e2e::skip!("needs a control group that can be frozen", || {
            Freezer::new().map_or(Ok("none can be made".to_owned()), |_| {
                Err("there is one".to_owned())
            })
        }),
    };
    let mut run = Run::start(&["--agent-timeout", IMPATIENT]);
    let agent = run.agent();
    assert!(freezer.write("cgroup.procs", &agent.to_string()));
    assert!(freezer.write("cgroup.freeze", "1"));
    let frozen = || {
        let events = fs::read_to_string(freezer.0.join("cgroup.events"));
        events.is_ok_and(|text| text.contains("frozen 1"))
    };
    until("frozen", frozen);
    assert_eq!(run.open(200, 3, "counted"), all(600));
    assert!(freezer.write("cgroup.freeze", "0"));
    // The keeper answers until it sees that the agent is scheduled, which is what the gap tells.
    run.gaps(1);
    run.sees_again();
    assert_eq!(run.agent(), agent, "it was replaced");
    let gaps = run.gaps(1);
    assert_eq!(gaps[0].field("tollgate.gap.cause"), "starved");
    let seen = run.of("Counted").len() as u64;
    assert_eq!(calls(&gaps) + seen, 600, "{seen} seen");
    let stats = run.ends_well();
    assert_eq!(
        counters(&stats, "passed_agent_starved").as_u64(),
        Some(calls(&gaps))
    );
}

#[test]
fn another_keeper_takes_the_place_of_one_that_was_killed() {
    let mut run = Run::start(&[]);
    let (agent, keeper) = (run.agent(), run.keeper());
    run.order(500, 4, "counted");
    signal(keeper, Signal::KILL);
    assert_eq!(run.answer(), all(2000));
    until("it is told", || {
        !run.of("Tollgate internal: keeper replaced").is_empty()
    });
    assert_ne!(run.keeper(), keeper);
    // What is in the queue of an agent that is killed is lost.
    until("all alerts", || run.of("Counted").len() == 2000);
    // It does all that the first did.
    signal(agent, Signal::KILL);
    run.next_agent(agent);
    run.sees_again();
    let gaps = run.gaps(1);
    assert_eq!(gaps.len(), 1);
    let (status, stats) = run.end();
    assert_eq!(
        (status, counters(&stats, "gaps")),
        (Some(0), &Value::from(1))
    );
    let counted = run.of("Counted").len();
    assert_eq!(counted, 2000);
}

/// Each agent is given its first call and killed with it; the same with a keeper that stands in.
#[test]
fn a_call_that_was_just_received_by_who_is_killed_is_answered() {
    need_root!();
    let mut run = Run::start(&[]);
    for _ in 0..2 {
        let former = run.kill_idle_agent();
        let agent = run.next_agent(former);
        until("it receives", || !receiving(agent).is_empty());
        let traced = Traced::seize(agent);
        run.order(1, 1, "counted");
        traced.kill_when_it_has_received();
        assert_eq!(run.answer(), all(1));
        assert_eq!(run.next_agent(agent), run.idle_agent());
    }
    let go_on = hold_rules(&run);
    let agent = run.kill_idle_agent();
    until("another agent is started", || run.agents().len() == 1);
    let started = run.agents();
    let traced = Traced::seize(run.keeper());
    run.order(1, 1, "counted");
    traced.kill_when_it_has_received();
    assert_eq!(run.answer(), all(1));
    // It ends with its keeper, and another keeper starts another.
    until("it has ended", || {
        let agents = run.agents();
        agents.len() == 1 && agents != started
    });
    go_on();
    run.next_agent(agent);
    run.sees_again();
    until("all are told", || calls(&run.of(GAP)) == 3);
    assert_eq!(run.of("Counted").len(), 0);
    run.ends_well();
}

/// All calls that passed unwatched or were refused, as the last figures say.
fn unwatched(stats: &Value) -> u64 {
    let stats = stats.as_object().expect("an object");
    let counters = stats["counters"].as_object().expect("an object");
    let counts = counters
        .iter()
        .filter(|(name, _)| name.starts_with("passed_agent") || *name == "denied_unwatched");
    counts.filter_map(|(_, count)| count.as_u64()).sum()
}

/// It answers a call and is killed before it can count it, and so is the next one, that stands in for the same agent.
#[test]
fn what_a_keeper_had_answered_when_it_was_killed_is_counted() {
    need_root!();
    let mut run = Run::start(&[]);
    run.sees_again();
    let release = hold_rules(&run);
    let agent = run.kill_idle_agent();
    for _ in 0..2 {
        until("another agent is started", || run.agents().len() == 1);
        let started = run.agents();
        let traced = Traced::seize(run.keeper());
        run.order(1, 1, "counted");
        traced.kill_when_it_has_answered();
        assert_eq!(run.answer(), all(1));
        until("another keeper has started another", || {
            let agents = run.agents();
            agents.len() == 1 && agents != started
        });
    }
    assert_eq!(run.open(100, 2, "counted"), all(200));
    release();
    run.next_agent(agent);
    run.sees_again();
    until("all are told", || calls(&run.of(GAP)) >= 202);
    assert_eq!((calls(&run.of(GAP)), run.of("Counted").len()), (202, 0));
    assert_eq!(unwatched(&run.ends_well()), 202);
}

/// One keeper after the other is killed while it stands in for an agent that is dead, before it or at once with it.
#[test]
fn what_passes_is_counted_exactly_whichever_keeper_is_killed() {
    for first in ["agent", "keeper"] {
        let mut run = Run::start(&[]);
        run.sees_again();
        let release = hold_rules(&run);
        let (agent, keeper) = (run.idle_agent(), run.keeper());
        let victims = match first {
            "agent" => [agent, keeper],
            _ => [keeper, agent],
        };
        victims
            .into_iter()
            .for_each(|pid| signal(pid, Signal::KILL));
        run.order(3000, 4, "counted");
        let mut former = keeper;
        for _ in 0..5 {
            until("another keeper is there", || {
                let keepers = children(run.front(), "tollgate-keeper");
                matches!(keepers[..], [keeper] if keeper != former)
            });
            former = run.keeper();
            std::thread::sleep(Duration::from_millis(15));
            signal(former, Signal::KILL);
        }
        assert_eq!(run.answer(), all(12_000));
        release();
        run.next_agent(agent);
        run.sees_again();
        until("all are told", || calls(&run.of(GAP)) >= 12_000);
        let counted = (calls(&run.of(GAP)), run.of("Counted").len());
        assert_eq!(counted, (12_000, 0), "{first} first");
        assert_eq!(unwatched(&run.ends_well()), 12_000, "{first} first");
    }
}

#[test]
fn keeper_and_agent_may_die_at_once() {
    let mut run = Run::start(&[]);
    let (agent, keeper) = (run.agent(), run.keeper());
    run.order(2000, 4, "counted");
    until("alerts", || run.of("Counted").len() > 100);
    signal(keeper, Signal::KILL);
    signal(agent, Signal::KILL);
    assert_eq!(run.answer(), all(8000));
    run.next_agent(agent);
    run.sees_again();
    assert_eq!(run.gaps(1).len(), 1);
    let (status, _) = run.end();
    assert_eq!(status, Some(0));
}

#[test]
fn agents_that_die_again_and_again_are_given_up_and_the_workload_is_not() {
    let mut run = Run::start(&[]);
    let mut agent = run.idle_agent();
    for _ in 0..5 {
        signal(agent, Signal::KILL);
        agent = run.next_agent(agent);
    }
    signal(agent, Signal::KILL);
    until("it is told", || run.stderr().contains("is not restarted"));
    assert_eq!(run.open(50, 4, "counted"), all(200));
    let (status, _) = run.end();
    assert_eq!(status, Some(0), "{}", run.stderr());
    assert!(
        run.stderr().contains("calls pass unwatched"),
        "{}",
        run.stderr()
    );
    assert!(
        run.stderr().contains("200 calls passed unwatched"),
        "{}",
        run.stderr()
    );
}

#[test]
fn an_upgrade_loses_and_doubles_no_call() {
    let mut run = Run::start(&[]);
    run.order(1500, 8, "counted");
    let mut agent = run.agent();
    for round in 1..=3 {
        until("alerts", || run.of("Counted").len() > 1000 * round);
        signal(run.keeper(), Signal::USR2);
        agent = run.next_agent(agent);
    }
    assert_eq!(run.answer(), all(12_000));
    run.sees_again();
    let upgrades = || run.of("Tollgate internal: agent upgraded").len();
    until("upgrades are told", || upgrades() == 3);
    assert_eq!(run.of(GAP), []);
    assert_eq!(run.of("Counted").len(), 12_000);
    let stats = run.ends_well();
    assert_eq!(stats["cur"]["drops"], 0);
    assert_eq!(*counters(&stats, "escalation_refused"), 0);
}

#[test]
fn rules_that_the_filter_does_not_serve_are_refused_by_a_later_agent() {
    let mut run = Run::start(&[]);
    let agent = run.agent();
    let more =
        "- rule: More\n  desc: d\n  condition: evt.type = chmod\n  output: o\n  priority: DEBUG\n";
    replace(&run.path("rules.yaml"), &format!("{RULES}{more}"));
    signal(run.keeper(), Signal::USR2);
    run.next_agent(agent);
    until("it is told", || {
        !run.of("Tollgate internal: rule refused").is_empty()
    });
    run.sees_again();
    assert_eq!(run.end().0, Some(0));
}

#[test]
fn an_upgrade_that_fails_leaves_the_agent_at_work() {
    let mut run = Run::start(&[]);
    let agent = run.agent();
    replace(&run.path("rules.yaml"), "- rule: broken\n");
    signal(run.keeper(), Signal::USR2);
    until("it is told", || {
        !run.of("Tollgate internal: upgrade failed").is_empty()
    });
    run.sees_again();
    assert!(state(agent).is_some());
    let (status, stats) = run.end();
    assert_eq!(
        (status, counters(&stats, "gaps")),
        (Some(0), &Value::from(0))
    );
}

/// Puts a script where the program of a run lies, whose keeper has an agent upgraded to it.
fn upgrade_to_script(run: &Run, program: &Path, script: &str) {
    let made = run
        .scratch
        .file("script", 0o755, format!("#!/bin/bash\n{script}\n"));
    fs::rename(made, program).expect("both are in folders of this test");
    signal(run.keeper(), Signal::USR2);
}

#[test]
fn an_upgrade_to_another_build_is_refused_by_name_and_leaves_the_agent_at_work() {
    let built = e2e::program();
    let built = built.display();
    // What this build does with the specification of another one, and with the options that older ones gave.
    let other_spec = format!(
        "{{ printf 'tgagent\\n\\377\\0\\0\\0'; tail -c +13 /proc/self/fd/$2; }} > $0.spec\n\
         exec {built} agent $0.spec"
    );
    let older = format!("exec {built} run --resume=1,3,4,5 -q -- true");
    let scratch = Scratch::new();
    let scripts = [
        ("its specification has version 255", other_spec),
        ("an agent of an older build", older),
    ];
    for (index, (said, script)) in scripts.into_iter().enumerate() {
        let program = scratch.program(&e2e::program(), &format!("tollgate{index}"));
        let fixture = Fixture::compile("orders");
        let command = Command::new(fixture.program());
        let mut run = Run::start_under(Command::new(&program), &[], RULES, fixture, command);
        let agent = run.agent();
        upgrade_to_script(&run, &program, &script);
        until("it is told", || !run.of(UPGRADE_FAILED).is_empty());
        until("it is said", || run.stderr().contains(said));
        assert!(run.stderr().contains("goes on"), "{}", run.stderr());
        run.sees_again();
        assert_eq!(run.agent(), agent);
        let (status, stats) = run.end();
        assert_eq!(
            (status, counters(&stats, "gaps")),
            (Some(0), &Value::from(0))
        );
    }
}

/// Descendants of a process with this name. One that ends while it is looked at has no name and no children;
/// who looks for one in vain looks again until its limit.
fn descendants(of: u32, name: &str) -> Vec<Pid> {
    let has_name = |pid: &i32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.trim() == name
    };
    let named = below(of).into_iter().filter(has_name);
    named.filter_map(Pid::from_raw).collect()
}

/// Returns a process and all below it.
fn below(of: u32) -> Vec<i32> {
    let list = |pid: i32| fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let mut found = vec![of.cast_signed()];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        let children = list(*pid).unwrap_or_default();
        let children = children.split_ascii_whitespace();
        found.extend(children.map(|pid| pid.parse::<i32>().expect("the kernel lists numbers")));
        at += 1;
    }
    found
}

/// The command has its filter, the agent is about to hand the listener on, and the keeper is killed: nobody
/// can go on, and the command waits for ever in its exec unless it is ended.
#[test]
fn a_keeper_that_is_killed_before_it_has_the_listener_leaves_nobody() {
    // Where a process waits is root's to know.
    need_root!();
    if !e2e::installed("strace") {
        e2e::skip!("needs strace", || Ok("it is not installed".to_owned()));
    }
    // Who traces ends when everybody has ended that is traced.
    let mut tracer = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=sendmsg"])
        .args(["-e", "inject=sendmsg:delay_enter=3000000"])
        .arg(e2e::program())
        .args(["run", "-q", "--", "sleep", "1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("strace is installed");
    let deadline = Instant::now() + PATIENCE;
    let keeper = loop {
        // The agent waits where it is held.
        if let [keeper] = descendants(tracer.id(), "tollgate-keeper")[..]
            && calls_wait(tracer.id())
        {
            break keeper;
        }
        assert!(Instant::now() < deadline, "the command does not begin");
        std::thread::sleep(Duration::from_millis(5));
    };
    let all = descendants(tracer.id(), "tollgate");
    kill_process(keeper, Signal::KILL).expect("it was there");
    while tracer.try_wait().expect("it is a child").is_none() {
        if Instant::now() > deadline {
            // Those that have ended are their tracer's to reap, so that no pid is another's.
            all.iter().for_each(|pid| {
                let _ = kill_process(*pid, Signal::KILL);
            });
            panic!("some of {all:?} were left");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process below waits at its filter. One that has ended does not; who waits for it fails at a limit.
fn calls_wait(of: u32) -> bool {
    descendants(of, "tollgate").iter().any(|pid| {
        let pid = pid.as_raw_nonzero();
        let place = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        place.starts_with("seccomp_do_user_notification")
    })
}

#[test]
fn without_a_keeper_the_command_ends_with_the_agent() {
    need_root!();
    for engine in ["ptrace", "ebpf"] {
        let mut run = Run::start(&["--engine", engine]);
        assert_eq!(run.open(3, 1, "counted"), all(3), "{engine}");
        kill(run.agent());
        assert_eq!(run.line(), "", "{engine}: nobody is left to answer");
        let status = run.front.wait().expect("it is our child");
        assert_eq!(status.code(), Some(4), "{engine}: {}", run.stderr());
        assert!(
            run.stderr().contains("CMD was killed with it"),
            "{}",
            run.stderr()
        );
        assert!(!run.path("pid").exists(), "{engine}: it names nobody");
    }
}

/// Tollgate runs in the container that it watches.
#[test]
fn a_gap_in_a_container_is_told_with_the_containers_id() {
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    for (options, id) in [(&["--container-id", ID][..], Some(&ID[..12])), (&[], None)] {
        let mut run = Run::start(options);
        let first = run.agent();
        kill(first);
        run.next_agent(first);
        let gap = run.gaps(1).remove(0);
        let text = gap.to_string();
        assert!(!text.contains("\"container.id\":\"host\""), "{text}");
        assert!(
            id.is_none_or(|id| gap.field("container.id") == id),
            "{text}"
        );
        run.ends_well();
    }
}

/// Whether the lock of a file is free.
fn is_unlocked(path: &Path) -> bool {
    let mut lock = Command::new("flock");
    let status = lock.arg("-n").arg(path).arg("true").status();
    status.expect("it is installed").success()
}

#[test]
fn a_pid_file_is_locked_by_the_agent_that_it_names_whoever_that_is() {
    let mut run = Run::start(&[]);
    let first = run.agent();
    assert!(!is_unlocked(&run.path("pid")));
    kill(first);
    let second = run.next_agent(first);
    assert!(!is_unlocked(&run.path("pid")));
    signal(run.keeper(), Signal::USR2);
    run.next_agent(second);
    assert!(!is_unlocked(&run.path("pid")));
    run.ends_well();
    assert!(!run.path("pid").exists());
}

/// Nobody is left that could remove it.
#[test]
fn a_pid_file_that_a_killed_watcher_left_is_taken_over_and_that_is_said() {
    let scratch = Scratch::new();
    let pidfile = scratch.path().join("pid");
    let mut watched = Command::new("sleep").arg("60").spawn().expect("a process");
    let start = || {
        let mut watch = Command::new(e2e::program());
        watch
            .args(["watch", "--engine", "ptrace", "-P"])
            .arg(&pidfile);
        watch.args(["-p", &watched.id().to_string()]);
        watch.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = watch.spawn().expect("it was built");
        let own = format!("{}\n", child.id());
        until("a pid file", || {
            fs::read_to_string(&pidfile).is_ok_and(|text| text == own)
                || child.try_wait().expect("our child").is_some()
        });
        child
    };
    let mut first = start();
    first.kill().expect("our child");
    first.wait().expect("our child");
    let text = fs::read_to_string(&pidfile).expect("it is left");
    assert_eq!(text, format!("{}\n", first.id()));
    let second = start();
    signal(second.id().cast_signed(), Signal::TERM);
    let output = second.wait_with_output().expect("our child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let stale = format!("process {} did not remove it", first.id());
    assert!(said.contains("stale PID file"), "{said}");
    assert!(said.contains(&stale), "{said}");
    assert!(!pidfile.exists());
    watched.kill().expect("our child");
    watched.wait().expect("our child");
}

const UPGRADED: &str = "Tollgate internal: agent upgraded";
const UPGRADE_FAILED: &str = "Tollgate internal: upgrade failed";

/// Runs a command as the first process of a pid namespace and of a session: process groups reach across namespaces.
fn first_process() -> Command {
    let mut command = Command::new("unshare");
    command.args("--pid --fork --mount-proc --kill-child -- setsid".split(' '));
    command.arg(e2e::program());
    command
}

/// Runs a command in a session of its own: signals to its group are for nobody else.
fn own_session() -> Command {
    let mut command = Command::new("setsid");
    command.arg(e2e::program());
    command
}

/// A workload of `orders` with something before the program.
fn start_under(program: Command) -> Run {
    let fixture = Fixture::compile("orders");
    let command = Command::new(fixture.program());
    Run::start_under(program, &[], RULES, fixture, command)
}

fn keeper_below(run: &Run) -> i32 {
    let keepers = descendants(run.front.id(), "tollgate-keeper");
    assert_eq!(keepers.len(), 1, "{keepers:?}");
    keepers[0].as_raw_nonzero().get()
}

#[test]
fn no_signal_of_the_workloads_gives_an_order() {
    need_root!();
    for (place, program) in [("pid 1", first_process()), ("host", own_session())] {
        let mut run = start_under(program);
        let keeper = keeper_below(&run);
        let agents = descendants(run.front.id(), "tollgate-agent");
        run.tell(match e2e::slow() {
            true => "harass all\n",
            false => "harass\n",
        });
        let sums = run.answer();
        assert_eq!(sums.ok, 1, "{place}: {}", run.stderr());
        assert!(
            sums.other >= 4,
            "{place}: {} processes of ours in sight",
            sums.other
        );
        run.sees_again();
        let said = run.stderr();
        assert_eq!(keeper_below(&run), keeper, "{place}: {said}");
        let now = descendants(run.front.id(), "tollgate-agent");
        assert_eq!(now, agents, "{place}: {said}");
        for rule in [
            UPGRADED,
            UPGRADE_FAILED,
            GAP,
            "Tollgate internal: rules loaded",
            "Tollgate internal: keeper replaced",
            "Tollgate internal: unwatched process",
        ] {
            assert_eq!(run.of(rule), [], "{place}");
        }
        assert!(
            !run.of("Tollgate internal: call aimed at the watcher")
                .is_empty(),
            "{place}"
        );
        run.ends_well();
    }
}

/// Returns the processes of the monitor below a process: those that run its program.
fn monitors(of: u32) -> BTreeSet<i32> {
    let program = fs::metadata(e2e::program()).expect("it was built");
    let is_own = |pid: &i32| {
        let exe = fs::metadata(format!("/proc/{pid}/exe"));
        exe.is_ok_and(|exe| (exe.dev(), exe.ino()) == (program.dev(), program.ino()))
    };
    below(of).into_iter().filter(is_own).collect()
}

/// The keeper answers, and a new agent waits for its rules.
#[test]
fn while_a_keeper_stands_in_the_workload_ends_no_process_of_ours() {
    need_root!();
    for (place, program) in [("pid 1", first_process()), ("host", own_session())] {
        let mut run = start_under(program);
        let (front, before) = (run.front.id(), monitors(run.front.id()));
        let give_rules = hold_rules(&run);
        // Started by the keeper.
        let agent = below(keeper_below(&run).cast_unsigned())[1];
        kill(agent);
        until("another agent", || {
            let now = monitors(front);
            now.len() == before.len() && !now.contains(&agent)
        });
        let before = monitors(front);
        run.tell("harass\n");
        let sums = run.answer();
        assert_eq!(sums.ok, 1, "{place}: {}", run.stderr());
        let aimed = u64::try_from(before.len()).expect("a few");
        assert!(sums.other >= aimed, "{place}: {} in sight", sums.other);
        assert_eq!(monitors(front), before, "{place}: {}", run.stderr());
        give_rules();
        let gaps = run.gaps(1);
        assert_eq!(gaps.len(), 1, "{place}: {}", run.stderr());
        run.sees_again();
        let stats = run.ends_well();
        let denied = counters(&stats, "denied_unwatched").as_u64();
        assert!(denied > Some(0), "{place}");
    }
}

#[test]
fn an_operator_upgrades_the_agent_of_a_first_process_every_time() {
    need_root!();
    let rounds = if e2e::slow() { 100 } else { 3 };
    let mut run = start_under(first_process());
    let keeper = keeper_below(&run);
    for round in 1..=rounds {
        signal(keeper, Signal::USR2);
        until("the upgrade is reported", || {
            run.of(UPGRADED).len() == round
        });
        run.sees_again();
    }
    for rule in [UPGRADE_FAILED, GAP, "Tollgate internal: unwatched process"] {
        assert_eq!(run.of(rule), []);
    }
    run.ends_well();
}

#[test]
fn upgrades_that_are_ordered_without_pause_are_made_one_a_second_and_never_given_up() {
    need_root!();
    let mut run = start_under(own_session());
    let keeper = keeper_below(&run);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(7) {
        signal(keeper, Signal::USR2);
        std::thread::sleep(Duration::from_millis(20));
    }
    run.sees_again();
    let upgrades = run.of(UPGRADED).len();
    assert!((3..=9).contains(&upgrades), "{upgrades} upgrades");
    assert_eq!((run.of(GAP), run.of(UPGRADE_FAILED)), (vec![], vec![]));
    assert!(!run.stderr().contains("not restarted"), "{}", run.stderr());
    run.ends_well();
}
