//! The page of `tollgate serve` in a real browser, and the verbs that ask a collector in a terminal.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use e2e::collector::{Collector, output};
use e2e::{Scratch, collector, program};
use serde_json::Value;

fn tollgate(words: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(words);
    command
}

fn store(folder: &Path) -> PathBuf {
    folder.join("s.db")
}

/// Certificate that the collector makes beside its store.
fn certificate(folder: &Path) -> PathBuf {
    folder.join("collector.crt")
}

fn serve(folder: &Path) -> Collector {
    Collector::start(&store(folder), "127.0.0.1:0", &[])
}

/// Writes a token to a file.
fn token(folder: &Path, name: &str, scope: &[&str]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, collector::token(&store(folder), scope)).expect("it is written");
    path
}

/// Runs a command that alerts, and sends that to the collector.
fn run(folder: &Path, collector: &Collector, agents: &Path) {
    let rules = folder.join("rules.yaml");
    let rule = "- rule: Read it\n  desc: d\n  condition: evt.type = openat and fd.name = /etc/hostname\n  \
                output: opened %fd.name by %proc.name\n  priority: ERROR\n";
    fs::write(&rules, rule).expect("it is written");
    let mut run = tollgate(&["run", "--quiet", "-r"]);
    run.arg(&rules)
        .args(["--collector", &collector.url, "--collector-ca"])
        .arg(certificate(folder))
        .args([
            "-o".as_ref(),
            {
                let mut option = std::ffi::OsString::from("collector_output.spool=");
                option.push(folder.join("spool"));
                option
            }
            .as_os_str(),
        ])
        .env("TOLLGATE_TOKEN_FILE", agents)
        .args(["--", "cat", "/etc/hostname"]);
    output(&mut run);
}

#[test]
fn an_alert_of_a_run_is_listed_shown_acknowledged_and_exported_over_tls() {
    let scratch = Scratch::new();
    let folder = scratch.path();
    let agents = token(folder, "agents", &["--agent-class", "web"]);
    let operator = token(folder, "operator", &["--role", "operator"]);
    let collector = serve(folder);
    run(folder, &collector, &agents);
    let ask = |words: &[&str]| {
        let mut command = tollgate(words);
        command
            .args(["--collector", &collector.url, "--collector-ca"])
            .arg(certificate(folder))
            .arg("--token-file")
            .arg(&operator);
        command
    };
    let groups: Value =
        serde_json::from_str(&output(&mut ask(&["alerts", "list", "--json"]))).expect("JSON");
    let group = groups["groups"][0]["id"].to_string();
    assert_eq!(groups["groups"][0]["rule"], "Read it", "{groups}");
    let list = output(&mut ask(&[
        "alerts",
        "list",
        "--each",
        "--severity",
        "Error",
    ]));
    assert!(list.contains("opened /etc/hostname by cat"), "{list}");
    let number = list
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().next());
    let shown = output(&mut ask(&["alerts", "show", number.expect("an alert")]));
    assert!(shown.starts_with("Error: Read it"), "{shown}");
    output(&mut ask(&["alerts", "ack", &group, "--note", "known"]));
    let left = ask(&["alerts", "list"]).output().expect("it starts");
    assert!(left.stdout.is_empty(), "{left:?}");
    let csv = output(&mut ask(&["alerts", "export", "--format", "csv"]));
    assert!(
        csv.contains("\"Read it\"") && csv.contains("opened /etc/hostname by cat\""),
        "{csv}"
    );
    let lines = output(&mut ask(&["alerts", "export"]));
    assert!(lines.contains("\"rule\":\"Read it\""), "{lines}");
    let fleet = output(&mut ask(&["fleet", "status"]));
    assert!(
        fleet.lines().count() == 2 && fleet.contains(" web "),
        "{fleet}"
    );
    without_the_certificate_nothing_is_sent(&collector, &operator);
}

fn without_the_certificate_nothing_is_sent(collector: &Collector, token: &Path) {
    let words = [
        "fleet",
        "status",
        "--collector",
        &collector.url,
        "--token-file",
    ];
    let refused = tollgate(&words).arg(token).output().expect("it starts");
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && stderr.contains("--collector-ca"),
        "{stderr}"
    );
}

#[test]
fn users_are_added_listed_and_removed() {
    let scratch = Scratch::new();
    let store = format!("sqlite:{}", scratch.path().join("s.db").display());
    let user =
        |words: &[&str]| tollgate(&[&["serve", "user"], words, &["--store", &store]].concat());
    let made = output(&mut user(&["add", "ann", "--role", "operator"]));
    assert_eq!(made.trim().len(), 24, "{made}");
    let again = user(&["add", "ann", "--role", "viewer"])
        .output()
        .expect("it starts");
    assert_eq!(again.status.code(), Some(2));
    let list = output(&mut user(&["list"]));
    assert!(
        list.contains("ann") && list.contains("operator") && list.contains("never"),
        "{list}"
    );
    assert_ne!(output(&mut user(&["passwd", "ann"])), made);
    output(&mut user(&["remove", "ann"]));
    let missing = user(&["remove", "ann"]).output().expect("it starts");
    assert_eq!(missing.status.code(), Some(2));
}

/// `TOLLGATE_TEST_PLAYWRIGHT` names the folder of the npm package `playwright-core`.
#[test]
fn the_page_works_in_chromium() {
    e2e::need_slow!();
    if std::env::var_os("TOLLGATE_TEST_PLAYWRIGHT").is_none() {
        e2e::skip!("needs playwright-core", || Ok(String::from(
            "TOLLGATE_TEST_PLAYWRIGHT names no folder"
        )));
    }
    let scratch = Scratch::new();
    let folder = scratch.path();
    let agents = token(folder, "agents", &["--agent-class", "web"]);
    let mut collector = serve(folder);
    let secret = fs::read_to_string(&agents).expect("a token");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser/page.mjs");
    let mut node = Command::new("node");
    node.arg(script)
        .args([&*collector.first_link(), secret.trim()]);
    let mut child = node
        .arg(std::env::var_os("TOLLGATE_SCREENSHOTS").unwrap_or_default())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node starts");
    let mut said = String::new();
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut said).expect("text");
    assert!(child.wait().expect("it ends").success(), "{said}");
    assert_eq!(
        said.lines().filter(|line| line.starts_with("ok ")).count(),
        8,
        "{said}"
    );
}
