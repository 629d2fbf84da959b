//! Agents that `tollgate serve` knows by their client certificates.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use e2e::collector::{Collector, output, token, tollgate};
use e2e::{Scratch, program};
use testing::Authority;

const RULE: &str = "\
- rule: Read it
  desc: d
  condition: evt.type = openat and fd.name = /etc/hostname
  output: opened %fd.name by %proc.name
  priority: ERROR
";

/// An authority of agents, and a folder with what it issued, a collector's store and spools.
struct Fixture {
    scratch: Scratch,
    authority: Authority,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self {
            scratch: Scratch::new(),
            authority: Authority::new(),
        };
        fs::write(fixture.path("ca.pem"), &fixture.authority.pem).expect("writable");
        fs::write(fixture.path("rules.yaml"), RULE).expect("writable");
        fixture.revoke(7, 2999);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Issues `NAME.crt` and `NAME.key`.
    fn issue(&self, name: &str, serial: u64) {
        let uri = format!("tollgate://web/{name}");
        let issued = self.authority.issue(serial, &[&uri], |_| {});
        fs::write(self.path(&format!("{name}.crt")), issued.certificate.pem()).expect("writable");
        let path = self.path(&format!("{name}.key"));
        fs::write(&path, issued.key.serialize_pem()).expect("writable");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("own");
    }

    /// Writes a list that revokes a serial number, and ends with the beginning of a year.
    fn revoke(&self, serial: u64, until: i32) {
        let list = self.authority.revoke(serial, until);
        fs::write(self.path("list.pem"), list).expect("writable");
    }

    fn serve(&self, words: &[&str]) -> Collector {
        Collector::start(&self.path("s.db"), "127.0.0.1:0", words)
    }

    fn serve_with_list(&self) -> Collector {
        let [authorities, list] = ["ca.pem", "list.pem"].map(|name| self.text(name));
        self.serve(&["--agent-ca", &authorities, "--agent-crl", &list])
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Runs a command that alerts, as the agent `name`, with a spool of its own.
    fn run(&self, collector: &Collector, name: &str) -> Output {
        let spool = format!(
            "collector_output.spool={}",
            self.text(&format!("{name}.spool"))
        );
        let mut run = Command::new(program());
        run.args(["run", "-r", &self.text("rules.yaml"), "-o", &spool])
            .args(["--collector", &collector.url])
            .args(["--collector-ca", &self.text("collector.crt")])
            .args(["--collector-cert", &self.text(&format!("{name}.crt"))])
            .args(["--collector-key", &self.text(&format!("{name}.key"))])
            // The certificate goes before it.
            .env("TOLLGATE_TOKEN_FILE", self.path("none"))
            .args(["--", "cat", "/etc/hostname"]);
        run.output().expect("it starts")
    }

    /// Asks the collector as someone who reads.
    fn ask(&self, collector: &Collector, words: &[&str]) -> String {
        let viewer = self.path("viewer");
        if !viewer.exists() {
            let token = token(&self.path("s.db"), &["--role", "viewer"]);
            fs::write(&viewer, token).expect("writable");
        }
        let mut command = Command::new(program());
        command
            .args(words)
            .args(["--collector", &collector.url])
            .args(["--collector-ca", &self.text("collector.crt")])
            .args(["--token-file", &self.text("viewer")]);
        output(&mut command)
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Reads what a collector says until it has said `wanted`.
fn said(collector: &mut Collector, wanted: &str) {
    let mut all = String::new();
    while !all.contains(wanted) {
        let read = std::io::BufRead::read_line(&mut collector.stderr, &mut all);
        assert!(read.expect("text") > 0, "{all}");
    }
}

fn alerts_of(fixture: &Fixture, collector: &Collector) -> Vec<String> {
    let lines = fixture.ask(collector, &["alerts", "list", "--each", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&lines).expect("JSON");
    let alerts = value["alerts"].as_array().expect("a list").iter();
    alerts
        .map(|alert| alert["host"].as_str().expect("a host").to_owned())
        .collect()
}

#[test]
fn an_alert_of_an_agent_with_a_certificate_arrives_under_the_name_in_it() {
    let fixture = Fixture::new();
    fixture.issue("box-1", 1);
    let collector = fixture.serve_with_list();
    let run = fixture.run(&collector, "box-1");
    assert!(run.status.success(), "{}", stderr(&run));
    assert_eq!(alerts_of(&fixture, &collector), ["box-1"]);
    let fleet = fixture.ask(&collector, &["fleet", "status"]);
    assert!(fleet.contains("web") && fleet.contains("box-1"), "{fleet}");
    // The next run is the same agent, also with a renewed certificate.
    fixture.issue("box-1", 2);
    assert!(fixture.run(&collector, "box-1").status.success());
    assert_eq!(alerts_of(&fixture, &collector), ["box-1", "box-1"]);
    let listed = output(&mut tollgate(
        &["serve", "token", "list"],
        &fixture.path("s.db"),
    ));
    let row = listed
        .lines()
        .find(|line| line.contains("certificate web/box-1"));
    assert!(
        row.is_some_and(|row| row.trim_end().ends_with(" 1")),
        "{listed}"
    );
}

#[test]
fn an_agent_whose_certificate_is_refused_says_why_and_keeps_its_alerts() {
    let fixture = Fixture::new();
    fixture.issue("box-7", 7);
    fixture.issue("box-8", 8);
    let mut collector = fixture.serve_with_list();
    let refused = stderr(&fixture.run(&collector, "box-7"));
    assert!(refused.contains("the certificate is revoked"), "{refused}");
    // A list that has ended lets nobody in, and both sides say so.
    fixture.revoke(9, 2021);
    let refused = stderr(&fixture.run(&collector, "box-8"));
    assert!(
        refused.contains("list of revoked certificates has ended"),
        "{refused}"
    );
    said(&mut collector, "list of revoked certificates has ended");
    fs::write(fixture.path("list.pem"), "nonsense").expect("writable");
    let refused = stderr(&fixture.run(&collector, "box-8"));
    assert!(refused.contains("what they revoked"), "{refused}");
    said(
        &mut collector,
        "the file has no PEM list of revoked certificates",
    );
    // Another authority with the same name.
    let other = Fixture::new();
    other.issue("box-9", 9);
    for name in ["box-9.crt", "box-9.key"] {
        fs::copy(other.path(name), fixture.path(name)).expect("writable");
    }
    fixture.revoke(7, 2999);
    let refused = stderr(&fixture.run(&collector, "box-9"));
    assert!(refused.contains("403 Forbidden"), "{refused}");
    assert!(alerts_of(&fixture, &collector).is_empty());
    // What waits arrives when the reason has gone.
    assert!(fixture.run(&collector, "box-8").status.success());
    assert_eq!(alerts_of(&fixture, &collector), ["box-8"; 3]);
    // A collector that takes none says so.
    drop(collector);
    fixture.issue("box-2", 2);
    let without = fixture.serve(&[]);
    let refused = stderr(&fixture.run(&without, "box-2"));
    assert!(refused.contains("start it with --agent-ca"), "{refused}");
}

fn refused(command: &mut Command, why: &str) {
    let output = command.output().expect("it starts");
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(why), "{stderr}");
}

fn run_with(settings: &[String]) -> Command {
    let mut command = Command::new(program());
    command.arg("run").env_remove("TOLLGATE_TOKEN_FILE");
    for setting in settings {
        command.args(["-o", &format!("collector_output.{setting}")]);
    }
    command.args(["--", "true"]);
    command
}

#[test]
fn options_that_name_no_single_identity_are_errors_with_the_next_step() {
    let fixture = Fixture::new();
    fixture.issue("box-1", 1);
    let key = fixture.path("box-1.key");
    let set = |name: &str, value: &Path| format!("{name}={}", value.display());
    let collector = ["enabled=true", "url=https://127.0.0.1:1"].map(str::to_owned);
    let with = |settings: &[String]| run_with(&[&collector, settings].concat());
    let certificate = set("cert_file", &fixture.path("box-1.crt"));
    refused(
        &mut with(std::slice::from_ref(&certificate)),
        "collector_output.key_file",
    );
    refused(
        &mut with(&[set("key_file", &key)]),
        "collector_output.cert_file",
    );
    refused(&mut with(&[]), "collector_output.token_file");
    let both = [certificate.clone(), set("key_file", &key)];
    fs::write(fixture.path("token"), "tgt_x").expect("writable");
    let token = set("token_file", &fixture.path("token"));
    let three = [&both[..], &[token]].concat();
    refused(&mut with(&three), "exclude one another");
    let plain = [
        &both[..],
        &["enabled=true", "url=http://127.0.0.1:1"].map(str::to_owned),
    ]
    .concat();
    refused(
        &mut run_with(&plain),
        "cert_file needs a collector at https://",
    );
    fs::set_permissions(&key, Permissions::from_mode(0o644)).expect("own");
    refused(
        &mut with(&both),
        "a private key must not be open to others, and its mode is 644; run `chmod o=",
    );
    let mut alone = Command::new(program());
    alone.args(["run", "--collector-cert", "x", "--", "true"]);
    refused(&mut alone, "--collector-key");
    // The collector's own.
    let serve = |words: &[&str]| tollgate(&[&["serve"], words].concat(), &fixture.path("s.db"));
    let authorities = fixture.text("ca.pem");
    refused(&mut serve(&["--agent-crl", "x"]), "--agent-ca");
    refused(
        &mut serve(&["--insecure", "--agent-ca", &authorities]),
        "--insecure",
    );
    refused(&mut serve(&["--agent-ca", "/none"]), "cannot read /none");
    refused(
        &mut serve(&["--agent-ca", &authorities, "--agent-crl", &authorities]),
        "the file has no PEM list of revoked certificates",
    );
}
