//! Rules that a collector hands down: signed bundles, and their way to agents.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use e2e::collector::{Collector, get, output, token, tollgate};
use e2e::{Scratch, program, until};
use serde_json::Value;

/// A rule that fires when a file of this name is opened.
fn rule(name: &str) -> String {
    format!(
        "- rule: Open {name}\n  desc: d\n  condition: evt.type in (open, openat) and fd.name endswith /{name}\n  \
         output: opened %fd.name\n  priority: WARNING\n"
    )
}

/// A collector of the class `web`, and agents that pin a key.
struct Fleet {
    scratch: Scratch,
    collector: Collector,
    reader: String,
}

impl Fleet {
    fn new() -> Self {
        let scratch = Scratch::new();
        let store = scratch.path().join("c.db");
        let secret = token(&store, &["--agent-class", "web"]);
        std::fs::write(scratch.path().join("token"), secret).expect("writable");
        let reader = token(&store, &["--role", "viewer"]);
        let collector = Collector::without_tls(&store, "127.0.0.1:0");
        let fleet = Self {
            scratch,
            collector,
            reader,
        };
        for name in ["own", "one", "two"] {
            std::fs::write(fleet.path(name), "").expect("writable");
        }
        std::fs::write(fleet.path("own.yaml"), rule("own")).expect("writable");
        for key in ["key", "other"] {
            let private = fleet.path(key).display().to_string();
            let public = output(&mut bundle(&["key", &private]));
            assert!(public.starts_with("tgk_"), "{public}");
            std::fs::write(fleet.path(&format!("{key}.pub")), public).expect("writable");
        }
        fleet
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Makes a signed bundle with one rule and returns its file.
    fn bundle(&self, version: u32, rule_of: &str, key: &str) -> PathBuf {
        let file = self.path(&format!("{version}-{rule_of}-{key}.bundle"));
        let rules = self.path(&format!("{rule_of}.yaml"));
        std::fs::write(&rules, rule(rule_of)).expect("writable");
        let mut create = bundle(&["create", "--version", &version.to_string(), "--output"]);
        output(create.arg(&file).arg(&rules));
        output(bundle(&["sign", "--key"]).arg(self.path(key)).arg(&file));
        file
    }

    fn assign(&self, file: &Path, words: &[&str]) {
        let words = [
            &["serve", "bundle", "assign", "--agent-class", "web"],
            words,
        ]
        .concat();
        output(tollgate(&words, &self.path("c.db")).arg(file));
    }

    /// Starts an agent with a spool of its own, whose command opens files until it is killed.
    fn agent(&self, number: u32, further: &[&str]) -> Agent {
        let spool = format!(
            "collector_output.spool={}",
            self.path(&format!("spool{number}")).display()
        );
        let folder = self.scratch.path().display();
        let script = format!(
            "while :; do : < {folder}/own; : < {folder}/one; : < {folder}/two; sleep 0.2; done"
        );
        let mut command = Command::new(program());
        command
            .args([
                "run",
                "--engine",
                "notify",
                "-o",
                &spool,
                "--collector",
                &self.collector.url,
                "-r",
            ])
            .arg(self.path("own.yaml"))
            .arg("--bundle-key")
            .arg(self.path("key.pub"))
            .args(further)
            .args(["--", "sh", "-c", &script])
            .env("TOLLGATE_TOKEN_FILE", self.path("token"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Agent(command.spawn().expect("it starts"))
    }

    fn get(&self, path: &str) -> Value {
        get(self.collector.address(), path, &self.reader)
    }

    /// Returns what the only agent reports about its bundle.
    fn reported(&self) -> Value {
        self.get("/api/v1/agents")["agents"][0]["inventory"]["bundle"].clone()
    }

    fn rollout(&self) -> Value {
        self.get("/api/v1/rollouts")["rollouts"][0].clone()
    }

    /// Number of alerts of the rule about a file.
    fn alerts(&self, name: &str) -> u64 {
        let groups = self.get(&format!("/api/v1/groups?rule=Open+{name}"));
        groups["groups"][0]["count"].as_u64().unwrap_or(0)
    }
}

/// A running agent. It ends with its command when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

fn bundle(words: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(["serve", "bundle"]).args(words);
    command
}

#[test]
fn an_agent_takes_signed_rules_and_starts_with_them_without_a_collector() {
    let fleet = Fleet::new();
    // Each agent is a new one, which asks at its start; a running one asks every 15 seconds.
    fleet.assign(&fleet.bundle(5, "one", "key"), &[]);
    let agent = fleet.agent(1, &[]);
    until("its own rules are in force", || fleet.alerts("own") > 0);
    until("the bundle is in force", || {
        fleet.reported()["version"] == 5
    });
    until("its rule fires", || fleet.alerts("one") > 0);
    assert_eq!(fleet.rollout()["in_force"], 1);
    drop(agent);
    without_a_collector(fleet);
}

/// The last good bundle is in force without the collector, not the agent's own rules.
fn without_a_collector(fleet: Fleet) {
    let (own, one) = (fleet.alerts("own"), fleet.alerts("one"));
    let address = fleet.collector.address().to_string();
    let Fleet {
        scratch,
        collector,
        reader,
    } = fleet;
    drop(collector);
    let log = scratch.path().join("log");
    let url = format!("http://{address}");
    let spool = format!(
        "collector_output.spool={}",
        scratch.path().join("spool1").display()
    );
    let script = format!(": < {0}/own; : < {0}/one", scratch.path().display());
    let run = Command::new(program())
        .args([
            "run",
            "--engine",
            "notify",
            "-o",
            &spool,
            "--collector",
            &url,
            "--log",
        ])
        .arg(&log)
        .arg("-r")
        .arg(scratch.path().join("own.yaml"))
        .arg("--bundle-key")
        .arg(scratch.path().join("key.pub"))
        .args(["--", "sh", "-c", &script])
        .env("TOLLGATE_TOKEN_FILE", scratch.path().join("token"))
        .output()
        .expect("it starts");
    assert!(run.status.success(), "{run:?}");
    let log = std::fs::read_to_string(&log).expect("readable");
    assert!(
        log.contains("opened") && log.contains("/one") && !log.contains("/own"),
        "{log}"
    );
    let store = scratch.path().join("c.db");
    let collector = Collector::without_tls(&store, &address);
    let fleet = Fleet {
        scratch,
        collector,
        reader,
    };
    let agent = fleet.agent(1, &[]);
    until("an alert of a run without a collector arrives", || {
        fleet.alerts("one") > one
    });
    assert_eq!(fleet.alerts("own"), own);
    drop(agent);
}

#[test]
fn an_agent_refuses_older_rules_and_those_of_another_key() {
    let fleet = Fleet::new();
    fleet.assign(&fleet.bundle(5, "one", "key"), &[]);
    let agent = fleet.agent(1, &[]);
    until("the bundle is in force", || {
        fleet.reported()["version"] == 5
    });
    drop(agent);
    // What is in force stays.
    let refused = |file: &Path, expected: &str| {
        fleet.assign(file, &[]);
        let _agent = fleet.agent(1, &[]);
        until(expected, || {
            let reason = fleet.reported()["refused"]["reason"].clone();
            reason
                .as_str()
                .is_some_and(|reason| reason.contains(expected))
        });
        assert_eq!(fleet.reported()["version"], 5);
        until("the roll-out is halted", || {
            fleet.rollout()["halted"].is_string()
        });
    };
    refused(
        &fleet.bundle(4, "two", "key"),
        "version 4 is not newer than 5",
    );
    refused(&fleet.bundle(6, "two", "other"), "which is pinned");
    assert_eq!(fleet.alerts("two"), 0);
    let tampered = fleet.path("tampered.bundle");
    let text = std::fs::read_to_string(fleet.bundle(7, "two", "key")).expect("readable");
    std::fs::write(&tampered, text.replace("Open two", "Open own")).expect("writable");
    let words = ["serve", "bundle", "assign", "--agent-class", "web"];
    let assigned = tollgate(&words, &fleet.path("c.db"))
        .arg(&tampered)
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&assigned.stderr);
    assert!(
        stderr.contains("it was changed after it was signed"),
        "{stderr}"
    );
}

#[test]
fn a_bundle_is_rolled_back_where_agents_allow_it() {
    let fleet = Fleet::new();
    let started = |expected: u32| {
        let agent = fleet.agent(1, &["--allow-rollback"]);
        until("the bundle is in force", || {
            fleet.reported()["version"] == expected
        });
        assert_eq!(fleet.reported()["refused"], Value::Null);
        drop(agent);
    };
    fleet.assign(&fleet.bundle(1, "one", "key"), &[]);
    started(1);
    fleet.assign(&fleet.bundle(2, "two", "key"), &[]);
    started(2);
    let back = ["serve", "bundle", "rollback", "--agent-class", "web"];
    output(&mut tollgate(&back, &fleet.path("c.db")));
    started(1);
    let listed = output(&mut tollgate(
        &["serve", "bundle", "list"],
        &fleet.path("c.db"),
    ));
    // An agent that starts while the one before it still ends is another agent of this host, which keeps what it had.
    let agents = fleet.get("/api/v1/agents")["agents"].clone();
    let agents = agents.as_array().expect("a list");
    let has_it = |agent: &&Value| agent["inventory"]["bundle"]["version"] == 1;
    let in_force = agents.iter().filter(has_it).count();
    assert!(in_force > 0, "{agents:#?}");
    let rollout = listed.lines().find(|line| line.starts_with("web "));
    let words: Vec<_> = rollout.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words[..4], ["web", "1", "100", "%"], "{listed}");
    assert_eq!(words[4], format!("{in_force}/{}", agents.len()), "{listed}");
    assert_eq!(words[5..], ["0", "0", "-", "open"], "{listed}");
}

#[test]
fn a_bundle_whose_rules_are_wrong_is_not_made() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name);
    std::fs::write(path("bad.yaml"), "- rule: r\n  condition: nonsense =\n").expect("writable");
    let mut create = bundle(&["create", "--version", "1", "--output"]);
    let created = create
        .arg(path("b"))
        .arg(path("bad.yaml"))
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&created.stderr);
    assert_eq!(created.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("bad.yaml") && !path("b").exists(),
        "{stderr}"
    );
}

#[test]
fn an_agent_has_the_bundle_of_the_most_specific_selector_that_matches_its_labels() {
    let fleet = Fleet::new();
    fleet.assign(&fleet.bundle(5, "one", "key"), &[]);
    let of_db = fleet.bundle(6, "two", "key");
    fleet.assign(&of_db, &["--selector", "tier in (db), !canary"]);
    let agent = fleet.agent(
        1,
        &[
            "--collector-label",
            "tier=db",
            "--collector-label",
            "zone=b",
        ],
    );
    until("the bundle of its labels is in force", || {
        fleet.reported()["version"] == 6
    });
    until("its rule fires", || fleet.alerts("two") > 0);
    assert_eq!(fleet.alerts("one"), 0);
    drop(agent);
    let row = fleet.get("/api/v1/agents")["agents"][0].clone();
    assert_eq!(
        row["labels"],
        serde_json::json!({"tier": "db", "zone": "b"})
    );
    let why = "class web, selector !canary,tier=db: in the 100 %";
    assert_eq!(
        (&row["bundle"], row["bundle_why"].as_str()),
        (&6.into(), Some(why))
    );
    // The configuration's labels, of an agent that the selector does not match.
    let label = "collector_output.labels={tier: db, canary: 'yes'}";
    let agent = fleet.agent(2, &["-o", label]);
    until("the bundle of the class is in force", || {
        let agents = fleet.get("/api/v1/agents")["agents"].clone();
        agents
            .as_array()
            .expect("a list")
            .iter()
            .any(|it| it["labels"]["canary"] == "yes" && it["inventory"]["bundle"]["version"] == 5)
    });
    drop(agent);
    labels_and_reasons_are_listed(&fleet, why);
    conflicts_and_the_end_of_a_roll_out(&fleet, &of_db);
}

/// Both commands show labels, and why an agent is to have its bundle.
fn labels_and_reasons_are_listed(fleet: &Fleet, why: &str) {
    let listed = output(&mut tollgate(
        &["serve", "bundle", "list"],
        &fleet.path("c.db"),
    ));
    for part in ["canary=yes,tier=db", "class web: in the 100 %", why] {
        assert!(listed.contains(part), "{part} in {listed}");
    }
    std::fs::write(fleet.path("reader"), &fleet.reader).expect("writable");
    let status = output(
        Command::new(program())
            .args([
                "fleet",
                "status",
                "--collector",
                &fleet.collector.url,
                "--token-file",
            ])
            .arg(fleet.path("reader")),
    );
    assert!(
        status.contains("tier=db,zone=b") && status.contains(why),
        "{status}"
    );
}

/// A selector of the same rank is refused with the name of the other; a roll-out that ends leaves its agents to the class.
fn conflicts_and_the_end_of_a_roll_out(fleet: &Fleet, bundle: &Path) {
    let run = |words: &[&str], file: Option<&Path>| {
        let words = [&["serve", "bundle"], words, &["--agent-class", "web"]].concat();
        let mut command = tollgate(&words, &fleet.path("c.db"));
        let done = command.args(file).output().expect("it starts");
        (
            done.status.code(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    };
    let (code, stderr) = run(&["assign", "--selector", "zone=b,tier"], Some(bundle));
    assert_eq!(code, Some(2), "{stderr}");
    for part in [
        "selector tier,zone=b",
        "selector !canary,tier=db",
        "help: say by --priority",
    ] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
    let (code, stderr) = run(
        &["assign", "--selector", "zone=b,tier", "--priority", "1"],
        Some(bundle),
    );
    assert_eq!(code, Some(0), "{stderr}");
    let (code, stderr) = run(&["assign", "--selector", "zone > 1"], Some(bundle));
    assert!(
        code == Some(2) && stderr.contains("the selector cannot be read"),
        "{stderr}"
    );
    for (expected, part) in [(0, ""), (2, "there is none")] {
        let (code, stderr) = run(&["unassign", "--selector", "tier,zone=b"], None);
        assert!(code == Some(expected) && stderr.contains(part), "{stderr}");
    }
    let audit = fleet.get("/api/v1/rollouts");
    let selectors: Vec<_> = audit["rollouts"]
        .as_array()
        .expect("roll-outs")
        .iter()
        .map(|it| &it["selector"])
        .collect();
    assert_eq!(selectors, ["", "!canary,tier=db"]);
}

#[test]
fn a_label_that_is_not_valid_is_an_error_before_the_command_starts() {
    let scratch = Scratch::new();
    let started = |words: &[&str]| {
        let run = Command::new(program())
            .args(["run", "--collector", "http://127.0.0.1:1"])
            .args(words)
            .args(["--", "touch"])
            .arg(scratch.path().join("started"))
            .output()
            .expect("it starts");
        assert!(!scratch.path().join("started").exists());
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        String::from_utf8_lossy(&run.stderr).into_owned()
    };
    let stderr = started(&["--collector-label", "tier"]);
    assert!(stderr.contains("expected KEY=VALUE"), "{stderr}");
    let stderr = started(&["-o", "collector_output.labels={tier: <db>}"]);
    assert!(
        stderr.contains("collector_output.labels")
            && stderr.contains("not the value of the label tier"),
        "{stderr}"
    );
    let stderr = started(&["--collector-label", "tier=a", "--collector-label", "tier=b"]);
    assert!(stderr.contains("tier"), "{stderr}");
}
