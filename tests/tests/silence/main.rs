//! `tollgate rules silence`: from an alert to an exception that silences it, and not the rule.

mod own_action;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Finished, Limited, installed, need_root, program, skip};
use serde_json::{Value, json};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const RULE: &str = "Read sensitive file untrusted";

/// A folder in place of /etc/tollgate, with other files.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("the temporary folder is writable"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(place.0.path(), mode).expect("it is our folder");
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).expect("it is our folder");
    }

    fn read(&self, name: &str) -> String {
        let read = fs::read_to_string(self.at(name));
        read.unwrap_or_else(|error| panic!("{name}: {error}: {:?}", self.files()))
    }

    /// Returns the files below the folder of rules.
    fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        for folder in ["rules.d", "rules.d/tests"] {
            let entries = fs::read_dir(self.at(folder)).into_iter().flatten();
            let paths = entries.flatten().map(|entry| entry.path());
            files.extend(paths.filter(|path| path.is_file()));
        }
        let name = |path: &PathBuf| {
            let path = path
                .strip_prefix(self.0.path())
                .expect("it is in the folder");
            path.display().to_string()
        };
        let mut names: Vec<_> = files.iter().map(name).collect();
        names.sort();
        names
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(words)
            .current_dir(self.0.path())
            .env("TOLLGATE_CONFIG_DIR", self.0.path())
            .stdin(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str], input: &str) -> Finished {
        Limited::start(&mut self.command(words), LIMIT).finish(input.as_bytes())
    }

    /// Runs `rules silence` on an alert.
    fn silence(&self, words: &[&str], alert: &Value) -> Finished {
        let words = [&["rules", "silence"], words].concat();
        self.run(&words, &alert.to_string())
    }

    /// Returns whether an alert's event would raise its rule again.
    fn matches(&self, alert: &Value) -> bool {
        self.write("again.json", &alert.to_string());
        let rule = alert["rule"].as_str().expect("a name");
        let words = [
            "rules",
            "explain",
            "--event",
            "again.json",
            "--rule",
            rule,
            "--json",
        ];
        let explained = self.run(&words, "");
        assert_eq!(explained.code(), 0, "{explained:?}");
        let object: Value = serde_json::from_str(&explained.stdout).expect("it is JSON");
        object["rules"][0]["matches"] != false
    }
}

fn alert(exe: &str, file: &str) -> Value {
    let name = Path::new(exe)
        .file_name()
        .expect("it has a name")
        .to_string_lossy();
    json!({
        "hostname": "h", "priority": "Warning", "source": "syscall", "tags": [], "time": "2026-01-01T00:00:00Z",
        "rule": RULE,
        "output": format!("A file with secrets was read (file={file} process={name})"),
        "output_fields": {
            "fd.name": file, "proc.name": name, "proc.exepath": exe, "proc.cmdline": format!("{name} -a"),
            "proc.pname": "cron", "user.name": "root", "user.uid": 0, "container.id": "host",
            "evt.time": 1767225600000000000_u64,
        },
    })
}

#[test]
fn the_narrowest_exception_silences_the_alert_and_nothing_else() {
    let place = Place::new();
    let own = alert("/usr/bin/backup", "/etc/shadow");
    assert!(place.matches(&own));
    let finished = place.silence(&[], &own);
    assert_eq!(finished.code(), 0, "{finished:?}");
    for part in [
        "proc.exepath = /usr/bin/backup and fd.name = /etc/shadow",
        "checked  the alert is gone",
        "detected: the same, by another program",
    ] {
        assert!(finished.stdout.contains(part), "no {part:?}: {finished:?}");
    }
    let name = "silence-read-sensitive-file-untrusted-1.yaml";
    let rules = format!("rules.d/{name}");
    assert_eq!(
        place.files(),
        [rules.clone(), format!("rules.d/tests/{name}")]
    );
    assert!(!place.matches(&own));
    assert!(place.matches(&alert("/usr/bin/other", "/etc/shadow")));
    assert!(place.matches(&alert("/usr/bin/backup", "/etc/gshadow")));
    let test = format!("rules.d/tests/{name}");
    let tested = place.run(&["rules", "test", &test], "");
    assert_eq!(tested.code(), 0, "{tested:?}");
    assert!(
        tested.stdout.ends_with("2 passed, 0 failed\n"),
        "{tested:?}"
    );
    // The test fails without the exception.
    fs::write(place.at(&rules), "").expect("it is our file");
    assert_eq!(place.run(&["rules", "test", &test], "").code(), 1);
    // Nothing is overwritten, and an alert that is not raised needs no exception.
    let second = place.silence(&["--json"], &own);
    assert_eq!(second.code(), 0, "{second:?}");
    let object: Value = serde_json::from_str(&second.stdout).expect("it is JSON");
    let written = object["written"][0].as_str().expect("a path");
    assert!(written.ends_with("untrusted-2.yaml"), "{written}");
    assert_eq!(object["chosen"], 1);
    assert_eq!(place.read(&rules), "");
    let third = place.silence(&[], &own);
    assert_eq!(third.code(), 2, "{third:?}");
    assert!(
        third.stderr.contains("do not raise this alert"),
        "{third:?}"
    );
}

#[test]
fn an_exception_that_silences_the_rule_needs_force() {
    let place = Place::new();
    let own = alert("/usr/bin/backup", "/etc/shadow");
    let listed = place.silence(&["--dry-run", "--json"], &own);
    let object: Value = serde_json::from_str(&listed.stdout).expect("it is JSON");
    let candidates = object["candidates"].as_array().expect("a list");
    let last = candidates.last().expect("there are some");
    assert_eq!(
        (&last["condition"], &last["silences_rule"]),
        (&json!("fd.name = /etc/shadow"), &json!(true))
    );
    assert_eq!(candidates[0]["silences_rule"], false);
    assert!(place.files().is_empty(), "a dry run writes nothing");
    let number = candidates.len().to_string();
    let refused = place.silence(&["--choose", &number], &own);
    assert_eq!(refused.code(), 2, "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("it would silence the rule altogether"),
        "{refused:?}"
    );
    assert!(place.files().is_empty());
    let forced = place.silence(&["--choose", &number, "--force"], &own);
    assert_eq!(forced.code(), 0, "{forced:?}");
    assert!(
        forced
            .stdout
            .contains("not detected: the same, by another program"),
        "{forced:?}"
    );
    assert!(!place.matches(&alert("/usr/bin/other", "/etc/shadow")));
    let wrong = place.silence(&["--choose", "99"], &own);
    assert!(
        wrong.stderr.contains("there is no such candidate")
            || wrong.stderr.contains("do not raise")
    );
}

#[test]
fn names_from_the_workload_cannot_change_the_rules() {
    for name in [
        "/etc/shadow\n- rule: Read sensitive file untrusted\n  enabled: false\n",
        "/etc/\"shadow\" # ]",
        "/etc/sha\\dow'",
        "/etc/a b\u{202e}\u{1b}[2J: {x}",
    ] {
        let place = Place::new();
        let rule = "- rule: Any\n  desc: d\n  condition: evt.type = openat and fd.name startswith /etc/\n  \
                    output: o\n  priority: INFO\n";
        place.write("own.yaml", rule);
        let mut own = alert("/usr/bin/backup", name);
        own["rule"] = json!("Any");
        let finished = place.silence(&["-r", "own.yaml", "--output", "x.yaml"], &own);
        assert_eq!(finished.code(), 0, "{finished:?}");
        let checked = place.run(&["rules", "check", "own.yaml", "x.yaml"], "");
        assert_eq!(checked.code(), 0, "{checked:?}");
        let listed = place.run(&["rules", "list", "--json", "own.yaml", "x.yaml"], "");
        let object: Value = serde_json::from_str(&listed.stdout).expect("it is JSON");
        let rules = object["rules"].as_array().expect("a list");
        assert!(
            rules.len() == 1 && rules[0]["enabled"] == true,
            "{listed:?}"
        );
        // As for every alert: the test beside it uses the named rules.
        assert_eq!(place.run(&["rules", "test", "tests/x.yaml"], "").code(), 0);
        assert!(!finished.stdout.contains('\u{1b}'), "{finished:?}");
        let again = place.silence(&["-r", "own.yaml", "--output", "x.yaml"], &own);
        assert_eq!(again.code(), 2, "{again:?}");
        assert!(again.stderr.contains("x.yaml: it exists"), "{again:?}");
    }
}

#[test]
fn other_silenced_alerts_are_counted_in_logs() {
    let place = Place::new();
    let own = alert("/usr/bin/backup", "/etc/shadow");
    let log = [
        own.clone(),
        alert("/usr/bin/backup", "/etc/gshadow"),
        alert("/usr/bin/x", "/etc/shadow"),
    ];
    let log: Vec<_> = log.iter().map(Value::to_string).collect();
    place.write("log.jsonl", &format!("{}\nno alert\n", log.join("\n")));
    let finished = place.silence(&["--dry-run", "--json", "--against", "log.jsonl"], &own);
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(
        finished.stderr.contains("1 lines are no alerts"),
        "{finished:?}"
    );
    let object: Value = serde_json::from_str(&finished.stdout).expect("it is JSON");
    let of = |condition: &str| {
        let candidates = object["candidates"].as_array().expect("a list");
        let found = candidates
            .iter()
            .find(|candidate| candidate["condition"] == condition);
        found.expect(condition)["against"][0].clone()
    };
    let narrow = of("proc.exepath = /usr/bin/backup and fd.name = /etc/shadow");
    assert_eq!(
        (&narrow["alerts"], &narrow["silenced"]),
        (&json!(3), &json!(1))
    );
    let program = of("proc.exepath = /usr/bin/backup");
    assert_eq!(program["silenced"], 2);
    assert_eq!(
        program["examples"],
        json!(["/usr/bin/backup backup -a /etc/gshadow"])
    );
}

#[test]
fn what_happens_in_a_capture_is_evaluated_and_counted() {
    let place = Place::new();
    place.write("marked", "");
    let file = place.at("marked").display().to_string();
    let rule = format!(
        "- rule: Marked\n  desc: d\n  condition: evt.type in (open, openat) and fd.name = {file}\n  \
         output: o %fd.name %proc.exepath %proc.name\n  priority: INFO\n"
    );
    place.write("own.yaml", &rule);
    let script = "cat marked; cat marked; : < marked";
    let words = [
        "run", "-q", "--json", "-r", "own.yaml", "-w", "c.scap", "--", "sh", "-c", script,
    ];
    let ran = place.run(&words, "");
    assert_eq!(ran.code(), 0, "{ran:?}");
    let printed = format!("{}\n{}", ran.stdout, ran.stderr);
    let first = printed
        .lines()
        .find(|line| line.contains("\"rule\":\"Marked\""));
    place.write(
        "own.json",
        first.unwrap_or_else(|| panic!("no alert: {ran:?}")),
    );
    let words = [
        "rules",
        "silence",
        "-r",
        "own.yaml",
        "--dry-run",
        "--against",
        "c.scap",
        "own.json",
    ];
    let finished = place.run(&words, "");
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(
        finished.stdout.contains("silences 2 of 3 alerts in c.scap"),
        "{finished:?}"
    );
    assert!(
        finished.stdout.contains("silences 3 of 3 alerts in c.scap"),
        "{finished:?}"
    );
}

#[test]
fn an_alert_of_a_run_is_silenced_in_the_next_run() {
    need_root!();
    let place = Place::new();
    let alerts = |script: &str| {
        let ran = place.run(&["run", "-q", "--json", "--", "sh", "-c", script], "");
        assert_eq!(ran.code(), 0, "{ran:?}");
        let printed = format!("{}\n{}", ran.stdout, ran.stderr);
        let lines = printed
            .lines()
            .filter(|line| line.contains(RULE))
            .map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    let first = alerts("cat /etc/shadow > /dev/null");
    let [first] = &first[..] else {
        panic!("one alert: {first:?}");
    };
    place.write("alert.json", first);
    let finished = place.run(&["rules", "silence", "alert.json"], "");
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(alerts("cat /etc/shadow > /dev/null"), [""; 0]);
    assert_eq!(alerts("head -n 1 /etc/shadow > /dev/null").len(), 1);
}

#[test]
fn what_is_no_alert_of_a_rule_is_refused() {
    let place = Place::new();
    let refused = |words: &[&str], input: &str, part: &str| {
        let words = [&["rules", "silence"], words].concat();
        let finished = place.run(&words, input);
        assert_eq!(finished.code(), 2, "{finished:?}");
        assert!(finished.stderr.contains(part), "no {part:?}: {finished:?}");
        assert!(finished.stderr.contains("\nhelp: "), "{finished:?}");
    };
    let own = alert("/usr/bin/backup", "/etc/shadow");
    refused(&[], "", "cannot read alert -: it is empty");
    refused(&[], "Warning: text", "cannot read alert -: ");
    refused(&[], "{}", "the object has no `rule`");
    refused(
        &["none.json"],
        "",
        "cannot read alert none.json: No such file",
    );
    refused(&[], &format!("{own}\n{own}\n"), "it has 2 alerts");
    refused(
        &["--number", "3"],
        &format!("{own}\n{own}\n"),
        "there is no alert 3, only 2",
    );
    let named = |name: &str| {
        let mut alert = own.clone();
        alert["rule"] = json!(name);
        alert.to_string()
    };
    refused(
        &[],
        &named("Read sensitive file untrustet"),
        "no loaded rule has this name",
    );
    refused(
        &[],
        &named("Policy violation"),
        "no loaded rule has this name",
    );
    let harmless = alert("/usr/bin/backup", "/etc/motd");
    refused(
        &[],
        &harmless.to_string(),
        "the loaded rules do not raise this alert",
    );
    let mut bare = own.clone();
    bare["output_fields"] = json!({ "user.name": "root" });
    refused(&[], &bare.to_string(), "names no program, file or server");
    assert!(place.files().is_empty());
    let second = place.run(
        &["rules", "silence", "--number", "2"],
        &format!("{own}\n{own}\n"),
    );
    assert_eq!(second.code(), 0, "{second:?}");
}

#[test]
fn an_exception_is_written_only_where_its_rule_is_loaded_before() {
    let place = Place::new();
    let rule = "- rule: Any\n  desc: d\n  condition: evt.type = openat and fd.name startswith /etc/\n  \
                output: o\n  priority: INFO\n";
    let mut own = alert("/usr/bin/backup", "/etc/motd");
    own["rule"] = json!("Any");
    place.write("own.yaml", rule);
    for (option, cause) in [
        ("-r", "replace"),
        ("--add-rules", "it is loaded before own.yaml"),
    ] {
        let finished = place.silence(&[option, "own.yaml"], &own);
        assert_eq!(finished.code(), 2, "{finished:?}");
        assert!(finished.stderr.contains(cause), "{finished:?}");
        assert!(finished.stderr.contains("--output"), "{finished:?}");
    }
    // The name of the file of the rule is after that of the exception.
    fs::create_dir(place.at("rules.d")).expect("it is our folder");
    place.write("rules.d/zz.yaml", rule);
    let finished = place.silence(&[], &own);
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(
        place
            .files()
            .contains(&"rules.d/zz_silence-any-1.yaml".to_owned()),
        "{:?}",
        place.files()
    );
    assert!(!place.matches(&own));
}

#[test]
fn an_ordinary_user_is_told_to_become_root_or_to_name_a_file() {
    need_root!();
    let place = Place::new();
    place.write(
        "alert.json",
        &alert("/usr/bin/backup", "/etc/shadow").to_string(),
    );
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(program())
        .args(["rules", "silence"])
        .arg(place.at("alert.json"))
        .env("TOLLGATE_CONFIG_DIR", place.0.path())
        .stdin(Stdio::null());
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    assert_eq!(finished.code(), 3, "{finished:?}");
    for part in [
        "rules.d/silence-",
        "Permission denied",
        "run this as root (sudo)",
        "--output FILE",
    ] {
        assert!(finished.stderr.contains(part), "no {part:?}: {finished:?}");
    }
}

#[test]
fn on_a_terminal_the_user_chooses() {
    if !installed("script") {
        skip!("needs script(1)", || Ok(
            "it is in no folder of PATH".to_owned()
        ));
    }
    let place = Place::new();
    place.write(
        "alert.json",
        &alert("/usr/bin/backup", "/etc/shadow").to_string(),
    );
    let answer = |text: &str| {
        let line = format!("{} rules silence alert.json", program().display());
        let mut command = Command::new("script");
        command
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .current_dir(place.0.path())
            .env("TOLLGATE_CONFIG_DIR", place.0.path())
            .stdin(Stdio::piped());
        Limited::start(&mut command, LIMIT).finish(text.as_bytes())
    };
    let none = answer("q\n");
    assert!(none.stdout.contains("Write which one?"), "{none:?}");
    assert!(none.stdout.contains("nothing written"), "{none:?}");
    assert!(place.files().is_empty());
    let second = answer("2\n");
    assert_eq!(second.code(), 0, "{second:?}");
    let written = place.read(&place.files()[0]);
    assert!(
        written.contains("comps: [\"=\", \"startswith\"]"),
        "{written}"
    );
}
