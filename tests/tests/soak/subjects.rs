//! The programs that are looked at: `watch`, `run`, `runtime --agent host` and `serve`, side by side.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use e2e::collector::{Collector, get, token};
use e2e::{Fixture, FoundProcess, Scratch, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::log::Log;
use crate::sample::{Processes, is_ours, lost_by_all_agents, stats, usage};
use crate::small_disk::SmallDisk;
use crate::verdict::Usage;

/// Rule of `watch`, beside the default ones.
pub(crate) const MARK: &str = "Soak mark";
/// Rule of `run`.
pub(crate) const SECRET: &str = "Soak secret";
/// Rule of `runtime`.
pub(crate) const OPENED: &str = "Soak opened";

fn rule(name: &str, condition: &str, version: usize) -> String {
    format!(
        "- rule: {name}\n  desc: version {version}\n  condition: evt.type in (open, openat, openat2) and {condition}\n  \
         output: opened %fd.name version={version}\n  priority: WARNING\n"
    )
}

/// A program that runs until it is told to end.
pub(crate) struct Detector {
    child: Child,
    stats: PathBuf,
    /// Its alerts.
    pub(crate) log: Log,
}

impl Detector {
    /// Returns the last line of its statistics.
    pub(crate) fn stats(&self) -> Value {
        stats(&self.stats)
    }
}

impl Drop for Detector {
    fn drop(&mut self) {
        // Fails if it has ended, as it should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `run` with a workload that opens files when it is told to.
pub(crate) struct Run {
    /// The front.
    pub(crate) detector: Detector,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    disk: SmallDisk,
    secret: PathBuf,
    _fixture: Fixture,
}

impl Drop for Run {
    fn drop(&mut self) {
        // The workload ends when its input does.
        drop(self.orders.take());
    }
}

/// A control group of the load.
struct Group(PathBuf);

impl Group {
    fn new() -> Self {
        let hierarchies = [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup/pids",
        ];
        let mut hierarchies = hierarchies.iter().map(Path::new);
        let found = hierarchies.find(|folder| folder.join("cgroup.procs").exists());
        let found = found.expect("the machine has control groups");
        let folder = found.join(format!("tollgate-soak-{}", std::process::id()));
        fs::create_dir(&folder).expect("root makes control groups");
        Self(folder)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may not be gone yet. A group that remains does no harm: its name is unique.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// All of them.
pub(crate) struct Subjects {
    /// Folders whose processes belong to them.
    pub(crate) folders: Vec<PathBuf>,
    /// The program under test.
    pub(crate) program: PathBuf,
    /// `watch`; `None` when it has ended.
    pub(crate) watch: Option<Detector>,
    /// `run`; `None` when it has ended.
    pub(crate) run: Option<Run>,
    /// What `watch` watches, unless `TOLLGATE_SOAK_HOST` says that it is the whole host.
    group: Option<Group>,
    /// `serve`.
    collector: Option<Collector>,
    reader: String,
    address: String,
    /// Alerts of containers.
    pub(crate) containers: Log,
    version: usize,
    /// Where everything is. The last, because it goes when the others have.
    pub(crate) scratch: Scratch,
}

impl Subjects {
    /// Starts all but the containers, which others start.
    pub(crate) fn start(receiver: u16) -> Self {
        let group = std::env::var_os("TOLLGATE_SOAK_HOST")
            .is_none()
            .then(Group::new);
        let scratch = Scratch::new();
        let program = scratch.program(&e2e::program(), "tollgate");
        let store = scratch.path().join("store.db");
        let agent = token(&store, &["--agent-class", "web"]);
        scratch.file("token", 0o600, agent);
        let reader = token(&store, &["--role", "viewer"]);
        let collector = Collector::without_tls(&store, "127.0.0.1:0");
        let address = collector.address().to_string();
        scratch.file("mark", 0o644, "");
        let containers = Log::new(scratch.path().join("containers"));
        let mut subjects = Self {
            folders: vec![scratch.path().to_owned()],
            program,
            watch: None,
            run: None,
            group,
            collector: Some(collector),
            reader,
            address,
            containers,
            version: 0,
            scratch,
        };
        subjects.write_rules();
        subjects.watch = Some(subjects.start_watch(receiver));
        subjects.run = Some(subjects.start_run());
        subjects
    }

    /// Returns a path in the folder of all.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Writes rules that differ from those before.
    fn write_rules(&mut self) {
        self.version += 1;
        let mark = format!("fd.name = {}", self.path("mark").display());
        for (file, name, condition) in [
            ("watch.yaml", MARK, &*mark),
            (
                "run.yaml",
                SECRET,
                "fd.name endswith /soak-secret and proc.name = orders",
            ),
            ("containers.yaml", OPENED, "fd.name = /etc/secret"),
        ] {
            let new = self
                .scratch
                .file("new.yaml", 0o644, rule(name, condition, self.version));
            fs::rename(new, self.path(file)).expect("same folder");
        }
    }

    fn start_watch(&self, receiver: u16) -> Detector {
        let mut command = Command::new(&self.program);
        command.args(["watch", "-q", "--json", "--add-rules"]);
        command.arg(self.path("watch.yaml"));
        self.configure(&mut command, "watch", &self.path("alerts"));
        if let Some(group) = &self.group {
            command.arg("--cgroup").arg(&group.0);
        }
        command
            .args(["--collector", &format!("http://{}", self.address)])
            .env("TOLLGATE_TOKEN_FILE", self.path("token"));
        for setting in [
            "http_output.enabled=true",
            &format!("http_output.url=http://127.0.0.1:{receiver}/"),
            &format!("collector_output.spool={}", self.path("spool").display()),
        ] {
            command.args(["-o", setting]);
        }
        let child = command.stdin(Stdio::null()).spawn();
        let detector = Detector {
            child: child.expect("it was built"),
            stats: self.path("watch.stats"),
            log: Log::new(self.path("alerts")),
        };
        e2e::wait_for(&self.path("watch.pid"));
        detector
    }

    fn start_run(&self) -> Run {
        let disk = SmallDisk::new(&self.scratch, 1024);
        let fixture = Fixture::compile("orders");
        let secret = self.scratch.file("soak-secret", 0o644, "");
        let mut command = disk.command(&self.program);
        let alerts = disk.inside().join("alerts");
        command.args(["run", "-q", "--json", "--agent-timeout", "20000", "-r"]);
        command.arg(self.path("run.yaml"));
        self.configure(&mut command, "run", &alerts);
        command
            .arg("--")
            .arg(fixture.program())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("nsenter starts");
        let mut answers = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut line = String::new();
        answers.read_line(&mut line).expect("it prints UTF-8");
        assert_eq!(line, "ready\n", "{}", self.said("run"));
        Run {
            orders: child.stdin.take(),
            detector: Detector {
                log: Log::new(disk.outside().join("alerts")),
                stats: self.path("run.stats"),
                child,
            },
            answers,
            disk,
            secret,
            _fixture: fixture,
        }
    }

    /// Sets what detectors have in common: files of statistics and of alerts, and where they are told.
    fn configure(&self, command: &mut Command, name: &str, alerts: &Path) {
        let stderr = fs::File::create(self.path(&format!("{name}.stderr"))).expect("writable");
        command
            .args(["--stats-interval", "1000", "-s"])
            .arg(self.path(&format!("{name}.stats")))
            .arg("-P")
            .arg(self.path(&format!("{name}.pid")))
            .stderr(stderr);
        for setting in [
            "stdout_output.enabled=false",
            "file_output.enabled=true",
            "file_output.keep_alive=true",
            &format!("file_output.filename={}", alerts.display()),
        ] {
            command.args(["-o", setting]);
        }
    }

    /// Returns what a program has written to standard error.
    pub(crate) fn said(&self, name: &str) -> String {
        // One that has not started has written nothing.
        fs::read_to_string(self.path(&format!("{name}.stderr"))).unwrap_or_default()
    }

    /// Returns what shells do first whose calls `watch` has to see.
    pub(crate) fn enter(&self) -> String {
        let group = self.group.as_ref();
        group.map_or(String::new(), |group| {
            format!("echo $$ > {}/cgroup.procs; ", group.0.display())
        })
    }

    fn pid_of(&self, name: &str) -> Option<i32> {
        let text = fs::read_to_string(self.path(&format!("{name}.pid")));
        // An agent that takes over writes it anew.
        text.ok()?.trim().parse().ok()
    }

    /// Returns processes by their roles.
    pub(crate) fn roles(&self) -> BTreeMap<String, Vec<i32>> {
        let all = Processes::read();
        let mut roles: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        let mut known = Vec::new();
        let mut add = |role: String, pid: i32| {
            known.push(pid);
            roles.entry(role).or_default().push(pid);
        };
        if let Some(collector) = &self.collector {
            add("serve".to_owned(), collector.child.id().cast_signed());
        }
        if let Some(watch) = &self.watch {
            add("watch".to_owned(), watch.child.id().cast_signed());
        }
        let front = self
            .run
            .as_ref()
            .map(|run| run.detector.child.id().cast_signed());
        let agent = self.pid_of("run");
        for process in front.into_iter().flat_map(|front| all.tree(front)) {
            if process.name.starts_with("tollgate") {
                // The first agent has the name of the program.
                let is_agent = Some(process.pid) == agent;
                let name = if is_agent {
                    "tollgate-agent"
                } else {
                    &process.name
                };
                add(format!("run: {name}"), process.pid);
            }
        }
        for process in all.ours(&self.folders) {
            if !known.contains(&process.pid) {
                roles
                    .entry(format!("runtime: {}", process.name))
                    .or_default()
                    .push(process.pid);
            }
        }
        roles
    }

    /// Returns what the processes of each role use.
    pub(crate) fn usage(&self) -> BTreeMap<String, Usage> {
        let roles = self.roles().into_iter();
        roles.map(|(role, pids)| (role, usage(&pids))).collect()
    }

    fn role(&self, role: &str) -> Vec<i32> {
        self.roles().remove(role).unwrap_or_default()
    }

    fn all_agents(&self) -> Vec<i32> {
        let mut pids = self.role("runtime: tollgate-host");
        pids.extend(["watch", "run"].iter().filter_map(|name| self.pid_of(name)));
        pids
    }

    /// Writes other rules and has all detectors load them.
    pub(crate) fn reload(&mut self) {
        self.write_rules();
        self.all_agents()
            .into_iter()
            .for_each(|pid| self.signal(pid, Signal::HUP));
    }

    /// Renames all files of alerts, and has their writers open new ones.
    pub(crate) fn rotate(&mut self) {
        let mut logs = vec![&mut self.containers];
        logs.extend(self.watch.as_mut().map(|watch| &mut watch.log));
        logs.extend(self.run.as_mut().map(|run| &mut run.detector.log));
        logs.into_iter().for_each(Log::rotate);
        self.all_agents()
            .into_iter()
            .for_each(|pid| self.signal(pid, Signal::USR1));
    }

    /// Has the keeper of `run` start another agent in the place of the one that works.
    pub(crate) fn upgrade(&self) {
        let keepers = self.role("run: tollgate-keeper");
        keepers
            .into_iter()
            .for_each(|pid| self.signal(pid, Signal::USR2));
    }

    /// Signals a process that was found a moment ago. One of an agent that was replaced meanwhile does not exist, and
    /// its pid may be another's.
    fn signal(&self, pid: i32, signal: Signal) {
        let found = FoundProcess::open(pid, |pid| is_ours(pid, &self.folders));
        if let Some(process) = found {
            process.send(signal);
        }
    }

    /// Stops the collector, or lets it go on.
    pub(crate) fn stop_collector(&self, stop: bool) {
        let order = if stop { Signal::STOP } else { Signal::CONT };
        let collector = self.collector.iter();
        collector.for_each(|collector| signal_child(&collector.child, order));
    }

    /// Kills the collector, and starts it again at the same address.
    pub(crate) fn restart_collector(&mut self) {
        drop(self.collector.take());
        let collector = Collector::without_tls(&self.path("store.db"), &self.address);
        self.collector = Some(collector);
    }

    /// Returns the pid of the collector.
    pub(crate) fn collector_pid(&self) -> Option<i32> {
        let collector = self.collector.as_ref();
        collector.map(|collector| collector.child.id().cast_signed())
    }

    /// Returns how many alerts of a rule the collector has.
    pub(crate) fn collected(&self, rule: &str) -> u64 {
        let collector = self.collector.as_ref().expect("it runs");
        let path = format!("/api/v1/groups?rule={}", rule.replace(' ', "%20"));
        let groups = get(collector.address(), &path, &self.reader);
        let groups = groups["groups"].as_array().into_iter().flatten();
        groups.filter_map(|group| group["count"].as_u64()).sum()
    }

    /// Ends `watch`. Returns its log and the last line of its statistics.
    pub(crate) fn end_watch(&mut self) -> (Log, Value) {
        let mut watch = self.watch.take().expect("it runs");
        signal_child(&watch.child, Signal::TERM);
        e2e::until("watch ends", || {
            watch.child.try_wait().expect("our child").is_some()
        });
        let mut log = std::mem::replace(&mut watch.log, Log::new(PathBuf::new()));
        log.finish();
        (log, watch.stats())
    }

    /// Ends `run`. Returns its log, the last line of its statistics, and how many alerts its output lost.
    pub(crate) fn end_run(&mut self) -> (Log, Value, u64) {
        let mut run = self.run.take().expect("it runs");
        drop(run.orders.take());
        until("run ends", || {
            run.detector.child.try_wait().expect("our child").is_some()
        });
        let mut log = std::mem::replace(&mut run.detector.log, Log::new(PathBuf::new()));
        log.finish();
        let lost = lost_by_all_agents(&run.detector.stats);
        (log, run.detector.stats(), lost)
    }
}

impl Run {
    /// Has the workload open the secret. Returns how often it did.
    pub(crate) fn open(&mut self, times: u64, processes: u64) -> u64 {
        let order = format!("open {times} {processes} {}\n", self.secret.display());
        let orders = self.orders.as_mut().expect("it runs");
        orders.write_all(order.as_bytes()).expect("it reads");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it prints UTF-8");
        let ok = line
            .strip_prefix("ok=")
            .and_then(|rest| rest.strip_suffix(" refused=0 other=0\n"));
        ok.and_then(|ok| ok.parse().ok())
            .unwrap_or_else(|| panic!("an open failed: {line:?}"))
    }

    /// Fills the disk of its alerts, or frees it.
    pub(crate) fn fill_disk(&self, fill: bool) {
        self.disk.fill(fill);
    }
}

/// Signals a child that nobody has waited for yet, so that its pid is still its own.
fn signal_child(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it is our child");
}
