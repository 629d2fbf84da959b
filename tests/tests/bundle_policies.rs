//! Policies that a collector hands down: they confine a command when it starts again, and only ever tighten.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use e2e::collector::{Collector, get, output, token, tollgate};
use e2e::{Scratch, program, until};
use serde_json::Value;

/// A policy under which these calls fail.
fn policy(calls: &str) -> String {
    format!(
        "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    \
         syscallRawRules:\n{}",
        calls
            .split(' ')
            .map(|call| format!("    - {{names: [{call}, {call}at], action: SCMP_ACT_ERRNO}}\n"))
            .collect::<String>()
    )
}

/// The command's own policy, and a tighter one.
const OWN: &str = "mkdir";
const TIGHTER: &str = "mkdir symlink";

struct Fleet {
    scratch: Scratch,
    collector: Option<Collector>,
    url: String,
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
            url: collector.url.clone(),
            collector: Some(collector),
            reader,
        };
        std::fs::write(fleet.path("web.yaml"), policy(OWN)).expect("writable");
        let key = fleet.path("key").display().to_string();
        let public = output(&mut bundle(&["key", &key]));
        std::fs::write(fleet.path("key.pub"), public).expect("writable");
        fleet
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Makes a signed bundle of one policy of the name `web`, and assigns it.
    fn hand_down(&self, version: u32, calls: &str) {
        let folder = self.path(&version.to_string());
        std::fs::create_dir(&folder).expect("writable");
        let (document, file) = (folder.join("web.yaml"), folder.join("bundle"));
        std::fs::write(&document, policy(calls)).expect("writable");
        let mut create = bundle(&["create", "--version", &version.to_string(), "--policy"]);
        output(create.arg(&document).arg("--output").arg(&file));
        output(bundle(&["sign", "--key"]).arg(self.path("key")).arg(&file));
        let words = ["serve", "bundle", "assign", "--agent-class", "web"];
        output(tollgate(&words, &self.path("c.db")).arg(file));
    }

    /// A command that runs a script under its own policy, and takes bundles.
    fn command(&self, verb: &str, further: &[&str], script: &str) -> Command {
        let spool = self.path("spool").display().to_string();
        let mut command = Command::new(program());
        command.args([verb, "-o", &format!("collector_output.spool={spool}")]);
        command.args(["--collector", &self.url, "--bundle-key"]);
        command.arg(self.path("key.pub")).arg("--policy");
        command.arg(self.path("web.yaml")).args(further);
        command.args(["--", "sh", "-c", script]);
        command
            .env("TOLLGATE_TOKEN_FILE", self.path("token"))
            .current_dir(self.scratch.path())
            .stdin(Stdio::null());
        command
    }

    /// Starts a command that makes a link, says whether it could, and stays.
    fn start(&self, further: &[&str]) -> Agent {
        let _ = std::fs::remove_file(self.path("said"));
        let script = format!("{TRY}; exec sleep 600");
        let mut command = self.command("run", further, &script);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Agent(command.spawn().expect("it starts"))
    }

    /// Runs a command that makes a link, and ends.
    fn run(&self, verb: &str) -> (String, Output) {
        let _ = std::fs::remove_file(self.path("said"));
        let done = self.command(verb, &[], TRY).output().expect("it starts");
        (self.said(), done)
    }

    /// What the command said about its calls.
    fn said(&self) -> String {
        std::fs::read_to_string(self.path("said")).unwrap_or_default()
    }

    fn inventory(&self) -> Value {
        let collector = self.collector.as_ref().expect("it runs");
        let agents = get(collector.address(), "/api/v1/agents", &self.reader);
        agents["agents"][0]["inventory"].clone()
    }

    /// State of the policies of bundles, as the agent reports it.
    fn states(&self) -> Vec<String> {
        let policies = self.inventory()["bundle"]["policies"].clone();
        let policies = policies.as_array().cloned().unwrap_or_default();
        let state = |policy: &Value| format!("{} {}", text(policy, "name"), text(policy, "state"));
        policies.iter().map(state).collect()
    }
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// Makes a folder and a link, and writes which of them worked.
const TRY: &str = "rm -rf d l; A=no; B=no; mkdir d 2>/dev/null && A=yes; ln -s x l 2>/dev/null && B=yes; \
                   echo mkdir=$A link=$B > said";

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

fn bundle(words: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(["serve", "bundle"]).args(words);
    command
}

/// Changes the policy in the bundle that an agent keeps.
fn tamper(spool: &Path) {
    let folders = std::fs::read_dir(spool.join("bundles")).expect("there is one");
    let mut changed = 0;
    for folder in folders {
        let file = folder.expect("readable").path().join("last.json");
        let kept = std::fs::read_to_string(&file).expect("readable");
        let other = kept.replace("symlink", "unlinkx");
        assert_ne!(kept, other, "the policy is in it");
        std::fs::write(&file, other).expect("writable");
        changed += 1;
    }
    assert_eq!(changed, 1);
}

#[test]
fn a_policy_of_a_bundle_is_in_force_from_the_next_start_also_without_a_collector() {
    let mut fleet = Fleet::new();
    fleet.hand_down(5, TIGHTER);
    let before = fleet.start(&[]);
    until("the policy waits for the next start", || {
        fleet.states() == ["web next start"]
    });
    assert_eq!(fleet.said(), "mkdir=no link=yes\n", "its own policy");
    let own = fleet.inventory()["policy"]["digest"].clone();
    drop(before);
    let after = fleet.start(&[]);
    until("the policy is in force", || {
        fleet.states() == ["web in force"]
    });
    assert_eq!(fleet.said(), "mkdir=no link=no\n");
    let policies = fleet.inventory()["bundle"]["policies"].clone();
    assert_eq!(fleet.inventory()["policy"]["digest"], policies[0]["digest"]);
    assert_ne!(policies[0]["digest"], own);
    let page = output(&mut tollgate(
        &["serve", "bundle", "list"],
        &fleet.path("c.db"),
    ));
    assert!(page.contains("class web: in the 100 %"), "{page}");

    fleet.hand_down(6, OWN);
    until("the looser one is refused", || {
        fleet.states() == ["web in force", "web refused"]
    });
    let reported = fleet.inventory()["bundle"].clone();
    let why = text(&reported["refused"], "reason");
    for part in ["policy web: it allows more", "--allow-loosening"] {
        assert!(why.contains(part), "{part} in {why}");
    }
    assert_eq!(reported["version"], 5);
    drop(after);

    fleet.collector = None;
    for verb in ["run", "enforce"] {
        let (said, done) = fleet.run(verb);
        assert_eq!(said, "mkdir=no link=no\n", "{verb}: {done:?}");
    }
    tamper(&fleet.path("spool"));
    for verb in ["run", "enforce"] {
        let (said, done) = fleet.run(verb);
        assert_eq!(said, "mkdir=no link=yes\n", "{verb}: {done:?}");
        let stderr = String::from_utf8_lossy(&done.stderr);
        let expected = "the last bundle is not used: the signature of the bundle is wrong";
        assert!(stderr.contains(expected), "{verb}: {stderr}");
    }
}

#[test]
fn an_agent_that_allows_it_takes_a_looser_policy() {
    let fleet = Fleet::new();
    fleet.hand_down(1, TIGHTER);
    drop({
        let agent = fleet.start(&[]);
        until("the first is kept", || fleet.states() == ["web next start"]);
        agent
    });
    fleet.hand_down(2, OWN);
    let words = ["--allow-loosening"];
    let agent = fleet.start(&words);
    until("the second is kept", || {
        fleet.inventory()["bundle"]["version"] == 2
    });
    assert_eq!(fleet.states(), ["web next start"]);
    drop(agent);
    let _agent = fleet.start(&words);
    until("the second is in force", || {
        fleet.states() == ["web in force"]
    });
    assert_eq!(fleet.said(), "mkdir=no link=yes\n");
}

#[test]
fn a_bundle_with_a_wrong_policy_is_not_made_and_a_command_that_takes_none_refuses_one() {
    let fleet = Fleet::new();
    let wrong = fleet.path("wrong.yaml");
    std::fs::write(&wrong, policy(OWN).replace("Seccomp", "Seccmp")).expect("writable");
    let mut create = bundle(&["create", "--version", "1", "--output"]);
    let created = create
        .arg(fleet.path("b"))
        .arg("--policy")
        .arg(&wrong)
        .output();
    let created = created.expect("it starts");
    let stderr = String::from_utf8_lossy(&created.stderr);
    assert_eq!(created.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("wrong.yaml:2"), "{stderr}");
    assert!(!fleet.path("b").exists());

    fleet.hand_down(1, OWN);
    let spool = format!("collector_output.spool={}", fleet.path("spool").display());
    let mut watch = Command::new(program());
    watch.args([
        "watch",
        "-q",
        "-o",
        &spool,
        "--collector",
        &fleet.url,
        "--bundle-key",
    ]);
    watch
        .arg(fleet.path("key.pub"))
        .args(["--engine", "ptrace", "-p"]);
    let mut watched = Command::new("sleep").arg("600").spawn().expect("it starts");
    watch.arg(watched.id().to_string());
    watch.env("TOLLGATE_TOKEN_FILE", fleet.path("token"));
    watch.stdout(Stdio::null()).stderr(Stdio::null());
    let agent = Agent(watch.spawn().expect("it starts"));
    until("watch refuses it by name", || {
        let why = text(&fleet.inventory()["bundle"]["refused"], "reason");
        why.contains("`tollgate watch` takes no policies from bundles")
    });
    drop(agent);
    watched.kill().expect("it runs");
    watched.wait().expect("it ends");
}
