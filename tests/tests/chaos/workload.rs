//! A watched workload that opens a file, and what became of each open.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use e2e::{Alert, Fixture, FoundProcess, Scratch};
use serde_json::Value;

use crate::small_disk::SmallDisk;

/// Longer than anything takes here on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const RULES: &str = "\
- rule: Secret
  desc: a sensitive file
  condition: evt.type = openat and fd.name endswith /secret
  output: secret
  priority: WARNING
";

/// A call of each of so many threads may be both passed and seen when who watches dies.
const BOTH: u64 = 24;

/// What came of an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Opens that succeeded.
    pub(crate) ok: u64,
    /// Opens that were refused.
    pub(crate) refused: u64,
}

/// `tollgate run` with the workload.
pub(crate) struct Watched {
    front: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    disk: SmallDisk,
    sums: Sums,
    scratch: Scratch,
}

impl Watched {
    /// Starts it. `alerts` is the file of alerts; without it, it is on the small disk.
    pub(crate) fn start(fixture: &Fixture, options: &[&str], alerts: Option<&str>) -> Self {
        let scratch = Scratch::new();
        let program = scratch.program(&e2e::program(), "tollgate");
        let workload = scratch.program(fixture.program(), "orders");
        let rules = scratch.file("rules.yaml", 0o644, RULES);
        scratch.file("secret", 0o644, "x");
        let disk = SmallDisk::new(&scratch, 512);
        let own = disk.inside().join("alerts").display().to_string();
        let alerts = format!("file_output.filename={}", alerts.unwrap_or(&own));
        let mut command = disk.command(&program);
        command.args(["run", "-q", "--json", "-r"]).arg(&rules);
        for (option, name) in [("-s", "stats"), ("-P", "pid")] {
            command.arg(option).arg(scratch.path().join(name));
        }
        command.args(["--stats-interval", "100"]);
        for setting in [
            "stdout_output.enabled=false",
            "file_output.enabled=true",
            "file_output.keep_alive=true",
            &alerts,
        ] {
            command.args(["-o", setting]);
        }
        command.args(options).arg("--").arg(workload);
        command.arg(scratch.path().join("opened"));
        let stderr = fs::File::create(scratch.path().join("stderr")).expect("writable");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut front = command.stderr(stderr).spawn().expect("nsenter starts");
        let mut watched = Self {
            orders: front.stdin.take(),
            answers: BufReader::new(front.stdout.take().expect("it was asked for")),
            front,
            disk,
            sums: Sums::default(),
            scratch,
        };
        assert_eq!(watched.line(), "ready\n", "{}", watched.story());
        watched
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it prints UTF-8");
        line
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// The small disk with the alerts.
    pub(crate) fn disk(&self) -> &SmallDisk {
        &self.disk
    }

    /// Has the workload open the secret so often in each of so many processes.
    pub(crate) fn order(&mut self, times: u64, processes: u64) {
        let order = format!(
            "open {times} {processes} {}\n",
            self.path("secret").display()
        );
        let orders = self.orders.as_mut().expect("it runs");
        orders.write_all(order.as_bytes()).expect("it reads");
    }

    /// The same of a workload that may have ended.
    pub(crate) fn try_order(&mut self) {
        let order = format!("open 10 1 {}\n", self.path("secret").display());
        let orders = self.orders.as_mut().expect("it was started");
        // Fails if it has.
        let _ = orders.write_all(order.as_bytes());
    }

    /// Waits for the answer to an order; `None` if the workload has ended. Its opens succeed or are refused.
    pub(crate) fn answer(&mut self) -> Option<Sums> {
        let line = self.line();
        if line.is_empty() {
            return None;
        }
        let number = |name: &str| {
            let mut words = line.split_ascii_whitespace();
            let found = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            let number = found.and_then(|text| text.parse::<u64>().ok());
            number.unwrap_or_else(|| panic!("{line:?}: {}", self.story()))
        };
        assert_eq!(number("other"), 0, "an open failed: {}", self.story());
        let sums = Sums {
            ok: number("ok"),
            refused: number("refused"),
        };
        self.sums.ok += sums.ok;
        self.sums.refused += sums.refused;
        Some(sums)
    }

    /// Returns how many opens have succeeded since the start. The workload counts each itself in a file that outlives
    /// it; what it did between an open and its count, when it was killed, is one open of each process at most.
    fn opened(&self) -> u64 {
        let bytes = fs::read(self.path("opened")).expect("it makes the file before it is ready");
        u64::from_ne_bytes(bytes.try_into().expect("one number"))
    }

    /// Waits for the answer to an order of a workload that is being killed, its processes one after the other. Returns
    /// false if it has ended.
    pub(crate) fn goes_on(&mut self) -> bool {
        !self.line().is_empty()
    }

    /// Opens the secret until that is an alert again.
    pub(crate) fn sees_again(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let before = self.seen();
        while self.seen() == before {
            assert!(
                Instant::now() < deadline,
                "nothing is seen: {}",
                self.story()
            );
            self.order(1, 1);
            assert!(self.answer().is_some(), "{}", self.story());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn alerts(&self) -> String {
        // The first alert makes the file.
        fs::read_to_string(self.disk.outside().join("alerts")).unwrap_or_default()
    }

    /// Returns how many opens were alerts.
    pub(crate) fn seen(&self) -> u64 {
        let text = self.alerts();
        let alerts = text.lines().filter_map(Alert::parse);
        alerts.filter(|alert| alert.rule == "Secret").count() as u64
    }

    /// The pid of the front.
    pub(crate) fn front(&self) -> i32 {
        self.front.id().cast_signed()
    }

    /// The agent, whose pid is in its file; `None` while there is none.
    pub(crate) fn agent(&self) -> Option<FoundProcess> {
        // An agent that begins or ends has none.
        let text = fs::read_to_string(self.path("pid")).ok()?;
        self.found(text.trim().parse().ok()?)
    }

    /// A process of the program under test.
    fn found(&self, pid: i32) -> Option<FoundProcess> {
        FoundProcess::of_program_below(&self.path("tollgate"), pid)
    }

    /// The keeper; `None` while there is none.
    pub(crate) fn keeper(&self) -> Option<FoundProcess> {
        let front = self.front();
        let children = fs::read_to_string(format!("/proc/{front}/task/{front}/children")).ok()?;
        let mut pids = children.split_ascii_whitespace();
        let pid = pids.find(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name == "tollgate-keeper\n")
        });
        self.found(pid?.parse().ok()?)
    }

    /// Ends the workload. Returns the exit status and the last line of the statistics.
    pub(crate) fn end(&mut self) -> (Option<i32>, Value) {
        drop(self.orders.take());
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.front.try_wait().expect("it is our child") {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "it does not end: {}",
                self.story()
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = fs::read_to_string(self.path("stats")).expect("it writes statistics");
        let lines = text.lines().rev();
        let mut values = lines.filter_map(|line| serde_json::from_str(line).ok());
        (status.code(), values.next().unwrap_or(Value::Null))
    }

    /// Asserts that each open is an alert or counted as unwatched, refused or lost, and hardly any of them twice. Returns
    /// how many were no alerts.
    pub(crate) fn assert_accounted(&self, stats: &Value) -> u64 {
        let counter = |name: &str| stats["counters"][name].as_u64().unwrap_or(0);
        let channel = &stats["alerts"]["channels"]["file"];
        let lost = [
            "lost_queue_full",
            "lost_write_failed",
            "lost_rejected",
            "pending",
        ];
        let lost: u64 = lost.iter().filter_map(|name| channel[*name].as_u64()).sum();
        let with_agents = counter("alerts_lost_with_agent");
        let unseen = counter("passed_unwatched") + counter("denied_unwatched") + with_agents + lost;
        let (sums, seen) = (self.sums, self.seen());
        assert_eq!(self.opened(), sums.ok, "the file and the answers differ");
        let all = sums.ok + sums.refused;
        let told = format!("{sums:?}, {seen} seen, {unseen} counted, {lost} lost: {stats}");
        assert!(
            seen + unseen >= all,
            "{} unsaid: {told} {}",
            all - seen - unseen,
            self.story()
        );
        // Internal alerts that a full disk has lost are among the lost ones, and so is one whose end alone is missing.
        let both = if lost > 0 { unseen } else { BOTH };
        assert!(
            seen + unseen <= all + both,
            "counted twice: {told} {}",
            self.story()
        );
        unseen
    }

    /// Asserts the same of a workload that was killed with its agent, whose keeper says on standard error what nobody
    /// writes into the statistics any more. Returns how many opens were no alerts.
    pub(crate) fn assert_said(&self) -> u64 {
        let said = fs::read_to_string(self.path("stderr")).expect("it has a file for it");
        let number = |what: &str| -> Option<u64> {
            let (before, _) = said.lines().find_map(|line| line.split_once(what))?;
            before.rsplit(' ').next()?.parse().ok()
        };
        let passed = number(" calls passed unwatched, ");
        let passed = passed.unwrap_or_else(|| panic!("no totals: {}", self.story()));
        // Only said if there are any.
        let lost = number(" queued alerts were lost").unwrap_or(0);
        let (opened, seen) = (self.opened(), self.seen());
        let told = format!("{opened} opened, {seen} seen, {passed} passed, {lost} lost");
        assert!(opened > 0, "nothing was opened: {told} {}", self.story());
        assert!(
            seen + passed + lost >= opened,
            "{} unsaid: {told} {}",
            opened - seen - passed - lost,
            self.story()
        );
        assert!(
            seen + passed + lost <= opened + BOTH,
            "counted twice: {told} {}",
            self.story()
        );
        passed + lost
    }

    /// Asserts that no process of this run is left.
    pub(crate) fn assert_nothing_left(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = below(self.scratch.path());
            if left.is_empty() {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "left: {left:?}: {}",
                self.story()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns what the program has said, for messages.
    pub(crate) fn story(&self) -> String {
        let said = fs::read_to_string(self.path("stderr")).unwrap_or_default();
        let alerts = self.alerts();
        let others = alerts
            .lines()
            .filter(|line| !line.contains("\"rule\":\"Secret\""));
        format!("{said}\n{}", others.collect::<Vec<_>>().join("\n"))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.orders.take());
        // Both fail if it has ended, as it should.
        let _ = self.front.kill();
        let _ = self.front.wait();
    }
}

/// Processes whose program is below a folder.
fn below(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir("/proc").expect("procfs").flatten();
    let programs = entries.filter_map(|entry| {
        let program = fs::read_link(entry.path().join("exe")).ok()?;
        let pid = entry.file_name().to_string_lossy().into_owned();
        program
            .starts_with(folder)
            .then(|| format!("{pid} {}", program.display()))
    });
    programs.collect()
}
