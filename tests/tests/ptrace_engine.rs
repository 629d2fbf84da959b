//! What only the engine `ptrace` has: it attaches to what runs already, cannot be hidden from by a
//! filter of the workload's own, and leaves signals and privileges as they are.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use e2e::{
    Alert, Engine, Environment, Finished, Fixture, Identity, Limited, Scratch, Watch, WatchResult,
    need_root, slow,
};
use rustix::process::{Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(30);

const MARK: &str = "\
- rule: Mark
  desc: a file that marks a moment
  condition: evt.type in (open, openat) and fd.name endswith /mark
  output: marked file=%fd.name process=%proc.name pid=%proc.pid parent=%proc.ppid result=%evt.rawres
  priority: DEBUG
";

const TRACING: [Engine; 2] = [Engine::Ptrace, Engine::EveryCall];

#[test]
fn a_listener_of_the_workloads_own_hides_nothing() {
    let fixture = Fixture::compile("listener");
    for engine in [Engine::Notify, Engine::Ptrace, Engine::EveryCall] {
        let watch = Watch::new(["true"]).engine(engine).rules(MARK);
        let program = watch.scratch().program(fixture.program(), "listener");
        let mark = watch.scratch().file("mark", 0o644, "");
        let words = [program, mark].map(|path| path.display().to_string());
        let watched = watch
            .command(words.into_iter().chain(["1000".to_owned()]))
            .run();
        assert!(
            watched.printed.contains("opened 1000"),
            "{}",
            watched.story()
        );
        let listener = if engine == Engine::EveryCall {
            "yes"
        } else {
            "EBUSY"
        };
        let expected = format!("listener {listener}");
        assert!(watched.printed.contains(&expected), "{}", watched.story());
        assert_eq!(watched.of("Mark").len(), 1000, "{engine:?}");
    }
}

#[test]
fn signals_come_once_and_in_order() {
    let fixture = Fixture::compile("signals");
    for engine in TRACING {
        let watch = Watch::new(["true"]).engine(engine).rules(MARK);
        let program = watch.scratch().program(fixture.program(), "signals");
        let mark = watch.scratch().file("mark", 0o644, "");
        let words = [program, mark].map(|path| path.display().to_string());
        let watched = watch.command(words).run();
        assert_eq!(watched.code(), 0, "{engine:?} {}", watched.story());
        assert!(
            watched.of("Mark").len() > 25,
            "{engine:?} {}",
            watched.story()
        );
    }
}

#[test]
fn programs_keep_the_privileges_of_their_file_for_root() {
    need_root!();
    for engine in TRACING {
        let watch = Watch::new(["true"]).engine(engine).rules(MARK);
        let id = watch.scratch().program("/usr/bin/id".as_ref(), "id");
        fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).expect("it is ours");
        let words = ["setpriv", "--reuid=1000", "--clear-groups"].map(str::to_owned);
        let command = words
            .into_iter()
            .chain([id.display().to_string(), "-u".to_owned()]);
        let watched = watch.command(command).run();
        assert_eq!(
            watched.printed.trim(),
            "0",
            "{engine:?} {}",
            watched.story()
        );
    }
}

/// A program that runs without being watched, ended when it is dropped.
struct Running(Child);

impl Running {
    /// Runs a program that prints a line when it is ready.
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it is installed");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("it is piped");
        BufReader::new(output)
            .read_line(&mut line)
            .expect("it says that it is ready");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn status(&self, name: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.expect("every process has it").trim().to_owned()
    }
}

impl Running {
    /// How often its threads have gone to sleep.
    fn switches(&self) -> u64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        let of = |path: std::path::PathBuf| {
            // A thread may have ended.
            let text = fs::read_to_string(path.join("status")).unwrap_or_default();
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.map_or(0, |count| count.trim().parse::<u64>().expect("a number"))
        };
        threads
            .map(|entry| of(entry.expect("it runs").path()))
            .sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `tollgate watch` with rules that fire on the file `mark`.
fn watch(scratch: &Scratch, pid: u32, options: &[&str]) -> Limited {
    let rules = scratch.file("rules.yaml", 0o644, MARK);
    let mut command = Command::new(e2e::program());
    command.args(["watch", "--engine", "ptrace", "--json"]);
    command.args(["-o", "rule_matching=all", "-r"]);
    command
        .arg(rules)
        .args(["-p", &pid.to_string()])
        .args(options);
    Limited::start(&mut command, LIMIT)
}

fn alerts(finished: &Finished) -> Vec<Alert> {
    let alerts = finished.stdout.lines().filter_map(Alert::parse);
    alerts.filter(|alert| alert.rule == "Mark").collect()
}

/// Threads and a child that open the file again and again; each thread makes threads, too.
const BUSY: &str = r#"
import os, sys, threading, time
mark = sys.argv[1]
def work():
    while os.path.exists(mark):
        os.close(os.open(mark, os.O_RDONLY))
        time.sleep(0.01)
    os._exit(0)
def restart():
    while True:
        thread = threading.Thread(target=lambda: time.sleep(0.005))
        thread.start(); thread.join()
for n in range(3): threading.Thread(target=work, daemon=True).start()
threading.Thread(target=restart, daemon=True).start()
if os.fork() == 0: work()
print("ready", flush=True)
sys.stdin.read()
"#;

#[test]
fn all_threads_and_children_of_a_running_process_are_watched_and_let_go() {
    let scratch = Scratch::new();
    let mark = scratch.file("mark", 0o644, "");
    let mut command = Command::new("python3");
    let mut running = Running::start(command.args(["-c", BUSY]).arg(&mark));
    let finished = watch(&scratch, running.pid(), &["-M", "2"]).finish(b"");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let alerts = alerts(&finished);
    let own = i64::from(running.pid());
    let by_parent = alerts
        .iter()
        .filter(|alert| alert.number("proc.pid") == own)
        .count();
    let by_child = alerts
        .iter()
        .filter(|alert| alert.number("proc.ppid") == own)
        .count();
    assert!(
        by_parent > 150,
        "{by_parent} of three threads: {}",
        finished.stderr
    );
    assert!(by_child > 50, "{by_child} {}", finished.stderr);
    assert_eq!(running.status("TracerPid:"), "0");
    assert_eq!(running.status("Seccomp:"), "0");
    // All of it goes on.
    let before = running.switches();
    std::thread::sleep(Duration::from_millis(100));
    let after = running.switches();
    assert!(after > before + 20, "{before} {after}");
    assert!(running.0.try_wait().expect("it is ours").is_none());
}

/// A child may be born after its parent was seized and before its birth is reported: it is traced by then.
#[test]
fn children_born_while_a_process_is_attached_to_are_watched() {
    need_root!();
    let crowd = Fixture::compile("crowd");
    let births =
        "echo; for i in 1 2 3 4; do setpriv --pdeathsig KILL \"$0\" births 100000000 & done; wait";
    let rounds = if slow() { 8 } else { 4 };
    for round in 0..rounds {
        let scratch = Scratch::new();
        let mut command = Command::new("sh");
        let running = Running::start(command.args(["-c", births]).arg(crowd.program()));
        let finished = watch(&scratch, running.pid(), &["-M", "1"]).finish(b"");
        assert_eq!(finished.code(), 0, "{round}: {}", finished.stderr);
        let alerts = finished.stdout.lines().filter_map(Alert::parse);
        let unwatched: Vec<_> = alerts.filter(|alert| alert.rule == UNWATCHED).collect();
        assert!(
            unwatched.is_empty(),
            "{round}: {unwatched:?} {}",
            finished.stderr
        );
    }
}

/// Runs `tollgate watch` for a second with rules about the file `mark`.
fn watch_a_second(scratch: &Scratch, options: &[&str]) -> Finished {
    let rules = scratch.file("rules.yaml", 0o644, MARK);
    let mut command = Command::new(e2e::program());
    command.args(["watch", "-M", "1", "-r"]).arg(rules);
    Limited::start(command.args(options), LIMIT).finish(b"")
}

#[test]
fn a_watch_says_when_it_has_begun_unless_it_is_quiet() {
    let scratch = Scratch::new();
    let running = Running::start(Command::new("sh").args(["-c", "echo; exec sleep 100"]));
    let pid = running.pid().to_string();
    let socket = scratch.path().join("gvisor.sock");
    let socket = socket.to_str().expect("a plain name");
    let traced =
        "tollgate: watching the named processes and their descendants (ptrace); Ctrl-C stops\n";
    let sandboxes = "tollgate: watching the sandboxes that connect (gVisor); Ctrl-C stops\n";
    let cases: [(&[&str], &str); 2] = [
        (&["--engine", "ptrace", "-p", &pid], traced),
        (&["--gvisor", socket], sandboxes),
    ];
    for (options, expected) in cases {
        let finished = watch_a_second(&scratch, options);
        assert_eq!(finished.code(), 0, "{options:?}: {}", finished.stderr);
        let lines = finished.stderr.matches(expected).count();
        assert_eq!(lines, 1, "{options:?}: {}", finished.stderr);
        let finished = watch_a_second(&scratch, &[options, &["-q"]].concat());
        assert_eq!(finished.code(), 0, "{options:?}: {}", finished.stderr);
        assert_eq!(finished.stderr, "", "{options:?}");
    }
}

#[test]
fn watching_ends_with_the_process_and_on_a_signal() {
    let scratch = Scratch::new();
    let sleeper = || Running::start(Command::new("sh").args(["-c", "echo; exec sleep 1"]));
    let running = sleeper();
    let finished = watch(&scratch, running.pid(), &[]).finish(b"");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let running = Running::start(Command::new("sh").args(["-c", "echo; exec sleep 100"]));
    let watching = watch(&scratch, running.pid(), &[]);
    wait_until_traced(&running);
    kill_process(watching.pid(), Signal::TERM).expect("it runs");
    let finished = watching.finish(b"");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert_eq!(running.status("TracerPid:"), "0");
    assert!(
        running.status("State:").starts_with('S'),
        "{}",
        running.status("State:")
    );
}

#[test]
fn a_killed_agent_leaves_the_process_as_it_was() {
    let scratch = Scratch::new();
    let running = Running::start(Command::new("sh").args(["-c", "echo; exec sleep 100"]));
    let watching = watch(&scratch, running.pid(), &[]);
    wait_until_traced(&running);
    kill_process(watching.pid(), Signal::KILL).expect("it runs");
    assert_eq!(watching.finish(b"").code(), 137);
    assert_eq!(running.status("TracerPid:"), "0");
    // On a busy machine it may have been let go before it slept. A stop would last.
    e2e::until("it sleeps", || running.status("State:").starts_with('S'));
}

fn wait_until_traced(running: &Running) {
    let started = Instant::now();
    while running.status("TracerPid:") == "0" {
        assert!(started.elapsed() < LIMIT, "it is not traced");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_sleeping_call_survives_being_attached_to_and_let_go() {
    // After a stop the kernel does not make this call again but lets it fail with EINTR.
    let script = r#"
import ctypes, os, select, time
poll = select.epoll(); poll.register(0, select.EPOLLIN)
libc = ctypes.CDLL(None, use_errno=True)
print("ready", flush=True)
began = time.monotonic()
result = libc.epoll_wait(poll.fileno(), ctypes.create_string_buffer(16), 1, 3000)
assert result == 0, os.strerror(ctypes.get_errno())
assert time.monotonic() - began > 2.9
"#;
    let scratch = Scratch::new();
    let mut running = Running::start(Command::new("python3").args(["-c", script]));
    let finished = watch(&scratch, running.pid(), &["-M", "1"]).finish(b"");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    // Waiting for it would close its input.
    let input = running.0.stdin.take();
    assert!(running.0.wait().expect("it is ours").success());
    drop(input);
}

#[test]
fn what_cannot_be_attached_to_is_refused_by_name() {
    let scratch = Scratch::new();
    let running = Running::start(Command::new("sh").args(["-c", "echo; exec sleep 100"]));
    let first = watch(&scratch, running.pid(), &[]);
    wait_until_traced(&running);
    let finished = watch(&scratch, running.pid(), &[]).finish(b"");
    assert_eq!(finished.code(), 3);
    let tracer = first.pid().as_raw_nonzero();
    let expected = format!("it is traced already, by process {tracer} (");
    assert!(finished.stderr.contains(&expected), "{}", finished.stderr);
    assert!(finished.stderr.contains("\nhelp: "), "{}", finished.stderr);
    kill_process(first.pid(), Signal::INT).expect("it runs");
    assert_eq!(first.finish(b"").code(), 0);

    let mut child = Command::new("true").spawn().expect("it is installed");
    let gone = child.id();
    child.wait().expect("it is ours");
    let finished = watch(&scratch, gone, &[]).finish(b"");
    assert_eq!((finished.code(), finished.stdout.as_str()), (2, ""));
    assert!(
        finished.stderr.contains("no such process\nhelp: "),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_process_of_another_user_is_refused() {
    need_root!();
    let running = Running::start(Command::new("sh").args(["-c", "echo; exec sleep 100"]));
    let watch = Watch::new(["true"]);
    let program = watch.program().display().to_string();
    let pid = running.pid().to_string();
    let mut command = Command::new("setpriv");
    // The home of root may be closed to the user.
    command.env("HOME", "/nonexistent").args([
        "--reuid=1000",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
    ]);
    let finished = Limited::start(
        command.args([&program, "watch", "--engine", "ptrace", "-p", &pid]),
        LIMIT,
    )
    .finish(b"");
    assert_eq!(finished.code(), 3, "{}", finished.stderr);
    assert!(
        finished.stderr.contains("another user"),
        "{}",
        finished.stderr
    );
}

const SHADOW: &str = "\
- rule: Shadow
  desc: a file with secrets
  condition: evt.type in (open, openat) and fd.name = /etc/shadow
  output: read process=%proc.name parent=%proc.pname user=%user.name
  priority: DEBUG
";
const UNWATCHED: &str = "Tollgate internal: unwatched process";

/// A watched container that lives until the file `end` appears in its work folder.
struct Container {
    watch: Option<Watch>,
    limited: Option<Limited>,
    /// Its first process, as this test sees it.
    first: i32,
}

impl Container {
    fn start(engine: Engine, identity: Identity) -> Self {
        let script = "touch %W/begun; while [ ! -e %W/end ]; do sleep 0.02; done";
        let watch = Watch::script(script)
            .place(Environment::Inside)
            .identity(identity)
            .engine(engine)
            .rules(SHADOW);
        let limited = watch.start();
        let outer = limited.pid().as_raw_nonzero();
        let started = Instant::now();
        let first = loop {
            let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"));
            let child = children.unwrap_or_default();
            let mut words = child.split_whitespace();
            if let Some(first) = words.next().and_then(|pid| pid.parse().ok())
                && Path::new(&format!("/proc/{first}/root/var/tmp/e2e/begun")).exists()
            {
                break first;
            }
            assert!(started.elapsed() < LIMIT, "it does not begin");
            std::thread::sleep(Duration::from_millis(10));
        };
        Self {
            watch: Some(watch),
            limited: Some(limited),
            first,
        }
    }

    /// Runs a command inside that no process of the container has started.
    fn enter(&self, words: &[&str]) -> Child {
        let first = self.first.to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &first, "--pid", "--mount", "--root", "--wd", "--"]);
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.spawn().expect("nsenter is installed")
    }

    fn finish(mut self) -> WatchResult {
        let end = format!("/proc/{}/root/var/tmp/e2e/end", self.first);
        fs::write(end, "").expect("the container runs");
        let limited = self.limited.take().expect("it has not been finished");
        let finished = limited.finish(b"");
        self.watch.take().expect("as above").watched(finished)
    }
}

#[test]
fn who_enters_the_container_is_watched() {
    need_root!();
    for engine in [Engine::Notify, Engine::Ptrace] {
        let container = Container::start(engine, Identity::Root);
        let script = "sleep 0.1; cat /etc/shadow; (cat /etc/shadow) & wait";
        let mut entered = container.enter(&["sh", "-c", script]);
        assert!(entered.wait().expect("it is ours").success());
        let watched = container.finish();
        assert_eq!(watched.code(), 0, "{}", watched.story());
        let alerts = watched.of("Shadow");
        let by_cat = |alert: &&&Alert| {
            (alert.field("proc.name"), alert.field("proc.pname")) == ("cat".into(), "sh".into())
        };
        let count = alerts.iter().filter(by_cat).count();
        assert_eq!(count, 2, "{engine:?} {}", watched.story());
        assert!(watched.of(UNWATCHED).is_empty(), "{}", watched.story());
    }
}

#[test]
fn who_enters_is_attached_to_at_once() {
    need_root!();
    let container = Container::start(Engine::Notify, Identity::Root);
    let (mut fastest, mut shortest) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        // How long it takes to enter, and to end at once.
        let began = Instant::now();
        let mut entered = container.enter(&["true"]);
        assert!(entered.wait().expect("it is ours").success());
        shortest = shortest.min(began.elapsed());
        let began = Instant::now();
        let mut entered = container.enter(&["sleep", "2"]);
        let outer = entered.id();
        let tracer = || {
            let child = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).ok()?;
            let status = fs::read_to_string(format!("/proc/{}/status", child.trim())).ok()?;
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("TracerPid:"))?;
            line.trim()
                .parse::<i32>()
                .ok()
                .filter(|tracer| *tracer != 0)
        };
        while tracer().is_none() {
            let ended = entered.try_wait().expect("it is ours");
            assert!(ended.is_none(), "it ended before it was traced");
            std::thread::sleep(Duration::from_millis(1));
        }
        fastest = fastest.min(began.elapsed());
        assert!(entered.wait().expect("it is ours").success());
    }
    println!("attached to after {fastest:?}; {shortest:?} to enter and end");
    assert!(fastest < shortest * 25, "{fastest:?}, {shortest:?}");
    assert_eq!(container.finish().code(), 0);
}

#[test]
fn who_enters_and_may_not_be_traced_is_announced() {
    need_root!();
    for engine in [Engine::Notify, Engine::Ptrace] {
        // It has capabilities that the agent lacks.
        let container = Container::start(engine, Identity::Docker);
        let mut entered = container.enter(&["sleep", "0.3"]);
        assert!(entered.wait().expect("it is ours").success());
        let watched = container.finish();
        let alerts = watched.of(UNWATCHED);
        // On a busy machine it is still on its way to its program.
        let name = |alert: &&Alert| alert.field("proc.name").replace("nsenter", "sleep");
        let names: Vec<_> = alerts.iter().map(name).collect();
        assert_eq!(names, ["sleep"], "{engine:?} {}", watched.story());
    }
}

/// A shell is the first process of a pid namespace and starts programs beside a command whose daemon lives on: they
/// are its own. Who enters is watched all the same.
#[test]
fn what_the_first_process_starts_beside_a_command_has_not_entered() {
    need_root!();
    const BESIDE: &str = "\
        \"$0\" run --json --log - -r \"$1\" -- sh -c '(while [ ! -e \"$0\" ]; do sleep 0.1; done) &' \"$2\"
        for i in $(seq 75); do /bin/true; sh -c '/bin/true; (/bin/true)'; done
        echo ready; read line; touch \"$2\"; sleep 1; exit 0";
    let rounds = if slow() { 4 } else { 2 };
    for _ in 0..rounds {
        let files = Scratch::new();
        let rules = files.file("rules.yaml", 0o644, SHADOW);
        let out = files.path().join("out");
        let mut first = Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "sh", "-c", BESIDE])
            .args([e2e::program(), rules, files.path().join("end")])
            .stdin(Stdio::piped())
            .stdout(fs::File::create(&out).expect("it is ours"))
            .spawn()
            .expect("unshare(1) is there");
        let text = || fs::read_to_string(&out).expect("it is there");
        let started = Instant::now();
        while !text().contains("ready") {
            assert!(started.elapsed() < LIMIT, "{}", text());
            std::thread::sleep(Duration::from_millis(10));
        }
        let outer = first.id();
        let child = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"));
        let child = child.expect("it runs");
        let entered = Command::new("nsenter")
            .args(["-t", child.trim(), "--pid", "--mount", "--"])
            .args(["sh", "-c", "sleep 0.2; cat /etc/shadow > /dev/null"])
            .status();
        assert!(entered.expect("nsenter(1) is there").success());
        drop(first.stdin.take());
        assert!(first.wait().expect("it is ours").success());
        let alerts: Vec<_> = text().lines().filter_map(Alert::parse).collect();
        let of = |rule: &str| alerts.iter().filter(|alert| alert.rule == rule).count();
        assert_eq!((of(UNWATCHED), of("Shadow")), (0, 1), "{}", text());
    }
}

/// A program that connects to a listener whose backlog is full, while a timer interrupts it again and again.
const INTERRUPTED: &str = r#"
import os, signal, socket, sys, threading, time
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(0)
held = [socket.socket() for _ in range(2)]
for client in held:
    client.setblocking(False)
    client.connect_ex(listener.getsockname())
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, sys.argv[1] == "fails")
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
def accept():
    time.sleep(1)
    for _ in range(3): listener.accept()
threading.Thread(target=accept, daemon=True).start()
libc = __import__("ctypes").CDLL(None, use_errno=True)
client = socket.socket()
port = listener.getsockname()[1]
address = b"\2\0" + port.to_bytes(2, "big") + b"\x7f\0\0\1" + bytes(8)
result = libc.connect(client.fileno(), address, 16)
signal.setitimer(signal.ITIMER_REAL, 0)
os.write(1, b"connected\n" if result == 0 else b"failed\n")
"#;

const ENGINES: [Engine; 4] = [
    Engine::Notify,
    Engine::Ptrace,
    Engine::EveryCall,
    Engine::Ebpf,
];

/// Does the same under all engines at once: most of it is waiting.
fn under_each_engine(watch: impl Fn(Engine) + Sync) {
    std::thread::scope(|scope| {
        for engine in ENGINES {
            let watch = &watch;
            scope.spawn(move || watch(engine));
        }
    });
}

/// A handler that does not return, a signal that ends the caller, and stops, after which the kernel makes the call
/// again: each is told once.
#[test]
fn a_call_that_is_interrupted_and_not_made_again_is_told() {
    need_root!();
    let rule = "- rule: Connected\n  desc: d\n  condition: evt.type = connect and proc.name = interrupted\n  \
                output: result=%evt.rawres\n  priority: INFO\n";
    let fixture = Fixture::compile("interrupted");
    under_each_engine(|engine| {
        for (what, result) in [("jumps", "-4"), ("killed", "-4"), ("stopped", "0")] {
            let watch = Watch::new(["true"]).engine(engine).rules(rule);
            let program = watch.scratch().program(fixture.program(), "interrupted");
            let command = [program.display().to_string(), what.to_owned()];
            let watched = watch.command(command).run();
            assert_eq!(watched.code(), 0, "{engine:?} {what}: {}", watched.story());
            let alerts = watched.of("Connected");
            let results: Vec<_> = alerts
                .iter()
                .map(|alert| alert.field("evt.rawres"))
                .collect();
            // Two that do not wait, and this one, whose result may never be known.
            let is_it = |found: &str| found == result || (result == "-4" && found == "<NA>");
            assert!(
                results.len() == 3 && results[..2] == ["-115", "-115"] && is_it(&results[2]),
                "{engine:?} {what}: {results:?} {}",
                watched.story()
            );
        }
    });
}

/// The kernel makes the call again after each signal, and lets it fail where the handler was set so.
#[test]
fn a_call_that_signals_interrupt_is_one_call() {
    let rule = "- rule: Connected\n  desc: d\n  condition: evt.type = connect\n  output: result=%evt.rawres\n  \
                priority: INFO\n";
    under_each_engine(|engine| {
        for (handler, said, result) in [("goes on", "connected\n", 0), ("fails", "failed\n", -4)] {
            let watch = Watch::new(["python3", "-c", INTERRUPTED, handler]);
            let watched = watch.engine(engine).rules(rule).run();
            let results: Vec<_> = watched
                .of("Connected")
                .iter()
                .map(|alert| alert.field("evt.rawres").to_owned())
                .collect();
            assert!(
                watched.printed.contains(said),
                "{engine:?}: {}",
                watched.story()
            );
            // Two that do not wait, and this one.
            let expected = ["-115", "-115", &result.to_string()].map(str::to_owned);
            assert_eq!(
                results,
                expected,
                "{engine:?} {handler}: {}",
                watched.story()
            );
        }
    });
}
