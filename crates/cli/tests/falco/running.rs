//! Runs: captures, the log, and reloads.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{CONFIG, Installation, stderr, stdout};

#[test]
fn a_capture_is_replayed() {
    let falco = Installation::new();
    if recorded(&falco).is_none() {
        testing::skip!("needs an engine", || Ok("none works here".to_owned()));
    }
    let output = falco.run(&["-e", "a.scap"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains(": Warning file=/etc/shadow\n"), "{text}");
    let totals = "Events detected: 1\nRule counts by severity:\n   WARNING: 1\n\
        Triggered rules by rule name:\n   Read shadow: 1\n";
    assert!(text.ends_with(totals), "{text}");
    let losses = "Syscall event drop monitoring:\n   - event drop detected: 0 occurrences\n";
    assert!(stderr(&output).contains(losses), "{}", stderr(&output));
    let output = falco.run(&[
        "-o",
        "engine.kind=replay",
        "-o",
        "engine.replay.capture_file=a.scap",
        "-pk",
        "-o",
        "json_output=true",
        "-o",
        "static_fields.site=north",
    ]);
    let text = stdout(&output);
    let alert = text.lines().next().expect("an alert comes first");
    let alert: Value = serde_json::from_str(alert).expect("it is JSON");
    assert_eq!(alert["rule"], "Read shadow");
    assert_eq!(alert["output_fields"]["site"], "north");
    assert_eq!(alert["output_fields"]["container.id"], "host");
    let mut named = Command::new(falco.path("falco"));
    named
        .env("FALCO_HOSTNAME", "node-1")
        .current_dir(falco.path(""));
    named.args(["-c", "falco.yaml", "-e", "a.scap", "-o", "json_output=true"]);
    named.args(["-o", "append_output[]={extra_output: at %evt.hostname}"]);
    let named = stdout(&named.output().expect("the link can be run"));
    let alert = named.lines().next().expect("an alert comes first");
    let alert: Value = serde_json::from_str(alert).expect("it is JSON");
    assert_eq!(alert["hostname"], "node-1");
    assert_eq!(alert["output_fields"]["evt.hostname"], "node-1");
    let none = falco.run(&["-e", "a.scap", "-D", "shadow", "-P", "pid"]);
    assert_eq!(none.status.code(), Some(0), "{}", stderr(&none));
    assert!(stdout(&none).starts_with("Events detected: 0\n"));
    assert!(!falco.path("pid").exists(), "it is removed at the end");
}

/// Records a read of the shadow file; `None` without an engine.
fn recorded(falco: &Installation) -> Option<String> {
    let capture = falco.path("a.scap").display().to_string();
    let recorded = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["run", "-q", "-o", "stdout_output.enabled=false"])
        .args(["-w", &capture, "-r"])
        .arg(falco.path("rules.yaml"))
        .args(["--", "cat", "/etc/shadow"])
        .output()
        .expect("the program was built for this test");
    (recorded.status.code() != Some(3)).then_some(capture)
}

/// The file that Falco installs has these outputs and logs, whether there is a log daemon or not.
#[test]
fn a_missing_log_daemon_is_one_line_of_the_log_and_no_failure() {
    if fs::exists("/dev/log").expect("a folder") {
        testing::skip!("needs no log daemon", || Ok("/dev/log exists".to_owned()));
    }
    let falco = Installation::with(
        "rules_files: [%D/rules.yaml]\nstdout_output: {enabled: true}\nsyslog_output: {enabled: true}\n\
         log_stderr: true\nlog_syslog: true\nlog_level: info\njson_output: false\n\
         append_output:\n- suggested_output: true\n",
    );
    let Some(capture) = recorded(&falco) else {
        testing::skip!("needs an engine", || Ok("none works here".to_owned()));
    };
    let output = falco.run(&["-e", &capture]);
    let (out, log) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert_eq!(out.matches("file=/etc/shadow").count(), 1, "{out}");
    assert!(!out.contains("internal"), "{out}");
    let about_syslog = log.lines().filter(|line| line.contains("/dev/log"));
    assert_eq!(about_syslog.count(), 1, "{log}");
}

/// As others' test programs start Falco: the key of a list without a list in the file.
#[test]
fn an_option_names_a_key_of_a_list_that_the_file_lacks() {
    for more in [
        "",
        "append_output:\n",
        "append_output: [{suggested_output: true}]\n",
    ] {
        let falco = Installation::with(&format!("{CONFIG}{more}"));
        let option = "append_output.suggested_output=false";
        let output = falco.run(&["-o", "engine.kind=nodriver", "-M", "1", "-o", option]);
        assert_eq!(output.status.code(), Some(0), "{more}: {}", stderr(&output));
        assert!(stdout(&output).contains("Events detected: 0"), "{more}");
    }
}

/// Runs without events, and with these options, through a reload and one that fails. Returns the alerts and the log.
fn reloaded(options: &[&str]) -> (String, String) {
    let falco = Installation::new();
    let [alerts, log] = ["alerts", "log"].map(|name| falco.path(name));
    let open = |path: &PathBuf| fs::File::create(path).expect("it can be written");
    let mut running = Command::new(falco.path("falco"))
        .args(["-c", "falco.yaml", "-M", "60", "-o", "engine.kind=nodriver"])
        .args(["-o", "json_output=true", "-P", "pid"])
        .args(options)
        .current_dir(falco.path(""))
        .stdin(Stdio::null())
        .stdout(open(&alerts))
        .stderr(open(&log))
        .spawn()
        .expect("the link can be run");
    let until = |path: &PathBuf, text: &str| {
        let end = Instant::now() + Duration::from_secs(30);
        while !fs::read_to_string(path).is_ok_and(|found| found.contains(text)) {
            assert!(
                Instant::now() < end,
                "no {text}: {}",
                fs::read_to_string(&log).expect("a log")
            );
            thread::sleep(Duration::from_millis(20));
        }
    };
    // The file is written when orders are taken.
    until(&falco.path("pid"), "\n");
    let send = |signal: &str| {
        let pid = running.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill can be run").success());
    };
    let rules = fs::read_to_string(falco.path("rules.yaml")).expect("rules");
    fs::write(falco.path("rules.yaml"), rules.replace("host", "other")).expect("writable");
    send("-HUP");
    let shows_log = !options.contains(&"log_stderr=false");
    if shows_log {
        until(&log, "1 rule in force");
    } else {
        thread::sleep(Duration::from_secs(1));
    }
    fs::write(falco.path("rules.yaml"), "- rule: [").expect("writable");
    send("-HUP");
    until(&alerts, "hot restart failure");
    send("-TERM");
    running.wait().expect("it ends");
    [alerts, log]
        .map(|path| fs::read_to_string(path).expect("text"))
        .into()
}

#[test]
fn reloads_are_in_the_log_and_a_failed_one_is_falcos_alert() {
    let (alerts, log) = reloaded(&[]);
    let alerts: Vec<Value> = alerts
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let [alert] = &alerts[..] else {
        panic!("{alerts:?}\n{log}");
    };
    assert_eq!(alert["rule"], "Falco internal: hot restart failure");
    assert_eq!(alert["priority"], "Critical");
    for part in [
        ": SIGHUP received, restarting",
        ": Loading rules from:",
        ": Tollgate internal: rules loaded: 1 rule in force, 0 refused",
        ": Falco internal: hot restart failure: ",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    // Each line has a time, but for those that continue one, and the totals at the end.
    assert!(!log.contains("tollgate: "), "{log}");
}

#[test]
fn the_log_of_reloads_obeys_the_configuration() {
    let (alerts, log) = reloaded(&["-o", "log_stderr=false", "-o", "tollgate_internal=true"]);
    assert!(
        alerts.contains("\"rule\":\"Tollgate internal: rules loaded\""),
        "{alerts}"
    );
    assert!(
        alerts.contains("Falco internal: hot restart failure"),
        "{alerts}"
    );
    for part in ["SIGHUP", "restart failure", "rules loaded", "Loading rules"] {
        assert!(!log.contains(part), "{part}: {log}");
    }
}
