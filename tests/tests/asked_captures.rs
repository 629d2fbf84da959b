//! Captures that an operator asks a running agent for.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use e2e::collector::{Collector, get, output, token};
use e2e::{Scratch, program, until};
use serde_json::Value;

/// A running agent. It ends with its command when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok();
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// A collector, and a folder with tokens.
struct Fleet {
    scratch: Scratch,
    collector: Collector,
    operator: String,
}

impl Fleet {
    fn new() -> Self {
        let scratch = Scratch::new();
        let store = scratch.path().join("c.db");
        let secret = token(&store, &["--agent-class", "web"]);
        std::fs::write(scratch.path().join("token"), secret).expect("writable");
        let operator = token(&store, &["--role", "operator"]);
        std::fs::write(scratch.path().join("operator"), &operator).expect("writable");
        let viewer = token(&store, &["--role", "viewer"]);
        std::fs::write(scratch.path().join("viewer"), viewer).expect("writable");
        std::fs::write(scratch.path().join("rules.yaml"), RULE).expect("writable");
        Self {
            collector: Collector::without_tls(&store, "127.0.0.1:0"),
            scratch,
            operator,
        }
    }

    /// Starts an agent whose command opens a file again and again.
    fn agent(&self, further: &[&str]) -> Agent {
        let folder = self.scratch.path();
        let spool = format!("collector_output.spool={}", folder.join("spool").display());
        let script = format!(
            "while :; do : < {}/token; sleep 0.05; done",
            folder.display()
        );
        let mut command = Command::new(program());
        command.args(["run", "-q", "--engine", "notify", "-o", &spool]);
        command.args(["--collector", &self.collector.url, "-r"]);
        command.arg(folder.join("rules.yaml")).args(further);
        command.args(["--", "sh", "-c", &script]);
        command.env("TOLLGATE_TOKEN_FILE", folder.join("token"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Agent(command.stderr(Stdio::null()).spawn().expect("it starts"))
    }

    fn get(&self, path: &str) -> Value {
        get(self.collector.address(), path, &self.operator)
    }

    fn fleet(&self, words: &[&str], role: &str) -> Command {
        let mut command = Command::new(program());
        command.arg("fleet").args(words);
        command.args(["--collector", &self.collector.url, "--token-file"]);
        command.arg(self.scratch.path().join(role));
        command
    }

    fn waits_for_agent(&self, captures: bool) {
        until("the agent says whether it allows captures", || {
            let agents = self.get("/api/v1/agents");
            agents["agents"][0]["inventory"]["captures"] == captures
        });
    }
}

const RULE: &str = "- rule: R\n  desc: d\n  condition: evt.type in (open, openat)\n  output: o\n  priority: DEBUG\n";

/// The first four bytes of a section of a capture, as scap and pcapng write them.
fn is_capture(file: &Path) -> bool {
    let bytes = std::fs::read(file).expect("readable");
    bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a])
}

#[test]
fn an_operator_gets_some_seconds_of_events_of_a_running_agent() {
    let fleet = Fleet::new();
    let _agent = fleet.agent(&["--allow-captures"]);
    fleet.waits_for_agent(true);
    let refused = fleet.fleet(&["capture", "1"], "viewer").output();
    let refused = refused.expect("it starts");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let asked = output(&mut fleet.fleet(&["capture", "1", "--seconds", "1"], "operator"));
    assert!(asked.contains("capture 1;"), "{asked}");
    let again = fleet.fleet(&["capture", "1"], "operator").output();
    let again = again.expect("it starts");
    let stderr = String::from_utf8_lossy(&again.stderr);
    assert!(
        stderr.contains("has capture 1 to record or to send first"),
        "{stderr}"
    );
    until("the capture is complete", || {
        fleet.get("/api/v1/captures")["captures"][0]["state"] == "complete"
    });
    let capture = fleet.get("/api/v1/captures")["captures"][0].clone();
    assert!(capture["events"].as_u64() > Some(3), "{capture}");
    assert_eq!(capture["lost"], 0);
    let listed = output(&mut fleet.fleet(&["captures"], "viewer"));
    assert!(listed.contains("complete"), "{listed}");

    let file = fleet.scratch.path().join("c.scap");
    let mut download = fleet.fleet(&["download", "1"], "operator");
    output(download.arg(&file));
    assert!(is_capture(&file));
    let format = "%evt.type %fd.name %proc.name";
    let replayed = output(
        Command::new(program())
            .args(["replay", "-p", format, "--filter", "evt.type = openat"])
            .arg(&file),
    );
    let opened = format!("openat {}/token sh", fleet.scratch.path().display());
    assert!(
        replayed.lines().any(|line| line == opened),
        "{opened} in {replayed}"
    );
    if e2e::installed("sysdig") {
        let theirs = output(
            Command::new("sysdig")
                .arg("-r")
                .arg(&file)
                .args(["-p", "*%fd.name"]),
        );
        assert!(theirs.contains("/token"), "{theirs}");
    }
}

#[test]
fn an_agent_that_allows_no_captures_is_not_asked() {
    let fleet = Fleet::new();
    let _agent = fleet.agent(&[]);
    fleet.waits_for_agent(false);
    let asked = fleet.fleet(&["capture", "1"], "operator").output();
    let asked = asked.expect("it starts");
    let stderr = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("allows no captures; start it with --allow-captures"),
        "{stderr}"
    );
    assert_eq!(
        fleet.get("/api/v1/captures")["captures"],
        Value::Array(Vec::new())
    );
}
