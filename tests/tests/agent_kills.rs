//! Agents that are killed while they send to a collector: what is on their disks arrives, once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::collector::{Collector, get, token};

use e2e::{FoundProcess, Scratch, need_slow, program, until};
use rustix::process::Signal;
use serde_json::Value;

/// Fires for each file of the folder `marks`, whose names are numbers.
const MARK: &str = "\
- rule: Mark
  desc: a file whose name is a number
  condition: evt.type in (open, openat) and fd.directory endswith /marks
  output: marked file=%fd.filename
  priority: WARNING
";

/// Creates files with these numbers, and stays for so many seconds.
const WORKLOAD: &str =
    r#"n=$1; while [ $n -lt $2 ]; do : > "$3/$n"; n=$((n + 1)); done; exec sleep "$4""#;

/// Numbers of one round.
const OF_ROUND: u64 = 400;

/// A collector, and agents that use one spool one after the other.
struct Setup {
    scratch: Scratch,
    collector: Collector,
    reader: String,
}

/// What a round does to its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// The agent dies, and another one of the same run takes over.
    Agent,
    /// The run dies as a whole.
    Run,
}

impl Setup {
    fn new() -> Self {
        let scratch = Scratch::new();
        let store = scratch.path().join("c.db");
        let secret = token(&store, &["--agent-class", "web"]);
        let reader = token(&store, &["--role", "viewer"]);
        fs::write(scratch.path().join("token"), secret).expect("writable");
        fs::write(scratch.path().join("rules.yaml"), MARK).expect("writable");
        fs::create_dir(scratch.path().join("marks")).expect("writable");
        let collector = Collector::without_tls(&store, "127.0.0.1:0");
        Self {
            scratch,
            collector,
            reader,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Starts a run whose workload makes the numbers from `from` on.
    fn run(&self, from: u64, seconds: u32) -> Child {
        let spool = format!("collector_output.spool={}", self.path("spool").display());
        let mut command = Command::new(program());
        command
            .args(["run", "-o", &spool, "-P"])
            .arg(self.pid_file(from))
            .args(["--collector", &self.collector.url, "-r"])
            .arg(self.path("rules.yaml"))
            .args(["--", "sh", "-c", WORKLOAD, "sh"])
            .args([from.to_string(), (from + OF_ROUND).to_string()])
            .arg(self.path("marks"))
            .arg(seconds.to_string())
            .env("TOLLGATE_TOKEN_FILE", self.path("token"))
            .stdout(Stdio::null())
            .stderr(self.said());
        command.spawn().expect("it starts")
    }

    /// What the runs say.
    fn said(&self) -> fs::File {
        let file = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("said"));
        file.expect("writable")
    }

    /// Each run has its own: the last agent of the one before may still have one.
    fn pid_file(&self, from: u64) -> PathBuf {
        self.path(&format!("pid.{from}"))
    }

    /// The agent of the run that begins with this number; `None` while there is none.
    fn agent(&self, from: u64) -> Option<FoundProcess> {
        let text = fs::read_to_string(self.pid_file(from)).ok()?;
        let program = program().canonicalize().expect("a program");
        FoundProcess::of_program_below(&program, text.trim().parse().ok()?)
    }

    /// Starts a run, attacks it after the pause, and adds to `spooled` what was on its disk then. Returns false if there was no
    /// agent to kill.
    fn round(&self, from: u64, attack: Attack, pause: Duration, spooled: &mut Vec<u64>) -> bool {
        let mut run = self.run(from, 60);
        until("the workload begins", || {
            let is_there = self.path("marks").join(from.to_string()).exists();
            let ended = run.try_wait().expect("it is our child");
            let said = || fs::read_to_string(self.path("said"));
            assert!(is_there || ended.is_none(), "{ended:?}: {:?}", said());
            is_there
        });
        std::thread::sleep(pause);
        let agent = self.agent(from);
        if attack == Attack::Run {
            run.kill().expect("it runs");
        }
        let is_killed = agent.is_some_and(|agent| agent.send(Signal::KILL));
        if attack == Attack::Agent {
            // The next agent of the run, which ends with the workload.
            std::thread::sleep(Duration::from_millis(300));
            let pid = i32::try_from(run.id()).expect("a pid");
            let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
            // It may have ended with its agent.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        run.wait().expect("it is our child");
        self.wait_for_spool();
        spooled.extend(numbers_in(&self.path("spool")));
        is_killed
    }

    /// Waits until no process has the spool: the next run is to use it.
    fn wait_for_spool(&self) {
        let path = self.path("spool/0/lock");
        until("nobody has the spool", || {
            let Ok(file) = fs::File::open(&path) else {
                return true;
            };
            rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
        });
    }

    /// How often each number is stored.
    fn stored(&self) -> BTreeMap<u64, u32> {
        let mut times = BTreeMap::new();
        let mut path = "/api/v1/alerts?rule=Mark&limit=1000".to_owned();
        loop {
            let page = get(self.collector.address(), &path, &self.reader);
            for row in page["alerts"].as_array().expect("a list") {
                let number = number(&row["alert"]).expect("a number");
                *times.entry(number).or_default() += 1;
            }
            match page["next"].as_str() {
                Some(next) => path = format!("/api/v1/alerts?rule=Mark&limit=1000&after={next}"),
                None => return times,
            }
        }
    }
}

/// The number of an alert of the rule; `None` if it is another's.
fn number(alert: &Value) -> Option<u64> {
    alert["output_fields"]["fd.filename"].as_str()?.parse().ok()
}

/// Numbers of alerts in a spool, whole lines alone.
fn numbers_in(spool: &Path) -> Vec<u64> {
    let mut numbers = Vec::new();
    for folder in fs::read_dir(spool).into_iter().flatten().flatten() {
        for file in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            let text = match fs::read_to_string(file.path()) {
                // An agent has sent all of it since the folder was read.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                text => text.expect("readable"),
            };
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let values = whole
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            numbers.extend(values.filter_map(|value: Value| number(&value)));
        }
    }
    numbers
}

/// Kills agents at random while they send, and counts: what was on their disks is stored, and nothing is stored twice.
fn kill_rounds(rounds: u64) {
    let setup = Setup::new();
    let (mut spooled, mut killed, mut random) = (Vec::new(), 0, 0x9e37_79b9_u64);
    for round in 0..rounds {
        // A xorshift generator: the same moments in each run.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let attack = if round % 2 == 0 {
            Attack::Run
        } else {
            Attack::Agent
        };
        let pause = Duration::from_micros(random % 250_000);
        let is_killed = setup.round(round * OF_ROUND, attack, pause, &mut spooled);
        killed += u64::from(is_killed);
    }
    assert!(
        killed * 2 > rounds,
        "only {killed} agents of {rounds} were killed"
    );
    // Those that nobody kills send what the others left: each has one spool, and there may be two if agents of two runs overlapped.
    let mut last = rounds;
    until("the spools are empty", || {
        let mut run = setup.run(last * OF_ROUND, 0);
        last += 1;
        assert!(run.wait().expect("it is our child").success());
        numbers_in(&setup.path("spool")).is_empty()
    });
    let stored = setup.stored();
    let twice: Vec<_> = stored.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "stored more than once: {twice:?}");
    let lost: Vec<_> = spooled
        .iter()
        .filter(|number| !stored.contains_key(number))
        .collect();
    assert!(lost.is_empty(), "on a disk and not stored: {lost:?}");
    assert!(
        stored.len() as u64 > rounds,
        "{} alerts show nothing",
        stored.len()
    );
    println!(
        "{rounds} rounds: {killed} agents killed, {} alerts left on disk by them, {} stored, lost 0, stored twice 0",
        spooled.len(),
        stored.len()
    );
}

#[test]
fn what_a_killed_agent_left_on_disk_is_stored_once() {
    kill_rounds(6);
}

#[test]
fn the_same_a_hundred_times() {
    need_slow!();
    kill_rounds(100);
}
