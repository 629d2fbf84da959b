//! Tools for those who write rules: tests of rules, why a rule does or does not match, what is doubtful
//! about rules, and what they cost.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use e2e::{Engine, Scratch, Watch, default_rules, program, stock_rules_file};
use serde_json::Value;

fn tollgate(args: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).args(args);
    command.output().expect("the program was built")
}

fn text(output: &Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(error)
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(output)))
}

/// The published rules if they are there, else ours, which have these rules, too.
fn rules() -> String {
    let file = stock_rules_file().or_else(default_rules);
    file.expect("rules are part of the repository")
        .display()
        .to_string()
}

const TESTS: &str = "\
tests:
  - name: cat reads a sensitive file
    event:
      evt.type: openat
      evt.arg.flags: O_RDONLY|O_CLOEXEC
      fd.name: /etc/shadow
      proc.name: cat
      proc.cmdline: cat /etc/shadow
      proc.exepath: /usr/bin/cat
      proc.aname: [bash, sshd]
      user.name: root
    alerts:
      - rule: Read sensitive file untrusted
        priority: WARNING
        fields: {fd.name: /etc/shadow, proc.name: cat}
  - name: sshd may
    event:
      evt.type: openat
      evt.arg.flags: O_RDONLY
      fd.name: /etc/shadow
      proc.name: sshd
    alerts: []
";

#[test]
fn stock_rules_pass_tests_and_failures_name_line_and_clause() {
    let scratch = Scratch::new();
    fs::write(scratch.path().join("t.yaml"), TESTS).expect("the scratch folder is writable");
    let output = tollgate(&["rules", "test", "-r", &rules(), "t.yaml"], scratch.path());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(
        text(&output).ends_with("2 passed, 0 failed\n"),
        "{}",
        text(&output)
    );
    let broken = TESTS
        .replace("proc.name: cat\n", "proc.name: sshd\n")
        .replace("proc.name: cat}", "proc.name: sshd}");
    fs::write(scratch.path().join("t.yaml"), &broken).expect("the scratch folder is writable");
    let output = tollgate(&["rules", "test", "-r", &rules(), "t.yaml"], scratch.path());
    let story = text(&output);
    assert_eq!(output.status.code(), Some(1), "{story}");
    let line = broken
        .lines()
        .position(|line| line.contains("- rule: Read sensitive"));
    let line = line.expect("it is there") + 1;
    let place = format!("t.yaml:{line}:9: no alert of `Read sensitive file untrusted`, because");
    assert!(story.contains(&place), "{story}");
    assert!(story.contains("proc.name: \"sshd\""), "{story}");
    assert!(story.ends_with("1 passed, 1 failed\n"), "{story}");
    // What cannot be a test is bad input.
    for (from, to, message) in [
        (
            "fd.name:",
            "fd.nam:",
            "t.yaml:6:15: cannot find a field named `fd.nam`",
        ),
        ("openat", "opnat", "t.yaml:4:17: unknown event type `opnat`"),
        (
            "file untrusted",
            "file intrusted",
            "the rule `Read sensitive file intrusted` does not exist",
        ),
    ] {
        let text_of = TESTS.replacen(from, to, 1);
        fs::write(scratch.path().join("t.yaml"), text_of).expect("the scratch folder is writable");
        let output = tollgate(&["rules", "test", "-r", &rules(), "t.yaml"], scratch.path());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(message), "{}", text(&output));
    }
}

/// Returns the number of the first event in a capture that the filter matches.
fn number_of(capture: &str, filter: &str, folder: &Path) -> String {
    let shown = tollgate(
        &[
            "replay", capture, "--filter", filter, "--fields", "%evt.num",
        ],
        folder,
    );
    text(&shown)
        .lines()
        .next()
        .expect("it was recorded")
        .to_owned()
}

#[test]
fn an_alert_and_a_recorded_event_are_explained_clause_by_clause() {
    let rules = rules();
    let watch = Watch::script("cat /etc/shadow > /dev/null; exec 3< /etc/passwd")
        .engine(Engine::Notify)
        .option("-r")
        .option(rules.clone());
    let scratch = Scratch::new();
    let capture = scratch.path().join("c.scap");
    let capture = capture.display().to_string();
    let watched = watch.option("-w").option(capture.clone()).run();
    let alerts = watched.of("Read sensitive file untrusted");
    assert_eq!(alerts.len(), 1, "{}", watched.story());
    // The event by its number in the recording.
    let number = number_of(
        &capture,
        "fd.name=/etc/shadow and proc.name=cat",
        scratch.path(),
    );
    let rule = "Read sensitive file untrusted";
    let args = [
        "rules", "explain", &rules, "--event", &capture, "--number", &number, "--rule", rule,
    ];
    let explained = tollgate(&args, scratch.path());
    let story = text(&explained);
    assert!(
        story.starts_with("matches    Read sensitive file untrusted\n"),
        "{story}"
    );
    assert!(story.contains("fd.name: \"/etc/shadow\""), "{story}");
    // An alert, as it was written, tells less: nothing is guessed.
    let alert = r#"{"rule": "R", "output_fields": {"evt.type": "openat", "fd.name": "/etc/hosts", "proc.name": "x"}}"#;
    fs::write(scratch.path().join("alert.json"), alert).expect("the scratch folder is writable");
    let args = [
        "rules",
        "explain",
        &rules,
        "--event",
        "alert.json",
        "--rule",
        rule,
        "--json",
    ];
    let explained = json(&tollgate(&args, scratch.path()));
    let verdict = &explained["rules"][0];
    assert_eq!(
        (&verdict["rule"], &verdict["matches"]),
        (&rule.into(), &false.into())
    );
    let output = tollgate(
        &["rules", "explain", &rules, "--event", &capture],
        scratch.path(),
    );
    assert!(text(&output).contains("--number"), "{}", text(&output));
}

#[test]
fn the_type_of_an_alert_that_does_not_say_it_is_taken_from_its_rule() {
    let scratch = Scratch::new();
    let write = |name: &str, text: &str| {
        fs::write(scratch.path().join(name), text).expect("the scratch folder is writable");
    };
    let rule = "Read sensitive file untrusted";
    write(
        "alert.json",
        r#"{"rule": "Read sensitive file untrusted", "output_fields": {"container.id": "host",
            "fd.name": "/etc/shadow", "proc.name": "cat", "proc.pname": "sh", "user.uid": 0}}"#,
    );
    write(
        "other.yaml",
        "- {rule: Other, desc: d, condition: evt.type = openat, output: o, priority: INFO}\n",
    );
    let explain = |more: &[&str]| {
        let args = ["rules", "explain", "--event", "alert.json"];
        tollgate(&[&args, more].concat(), scratch.path())
    };
    let output = explain(&["--rule", rule]);
    let story = text(&output);
    assert_eq!(output.status.code(), Some(0), "{story}");
    let taken = "evt.type: open, inferred from the alert's rule; openat, openat2";
    assert!(story.starts_with(taken), "{story}");
    assert!(story.contains("\nundecided  Read sensitive"), "{story}");
    assert!(story.contains("fd.name: \"/etc/shadow\""), "{story}");
    let verdict = json(&explain(&["--rule", rule, "--json"]));
    assert_eq!(verdict["type_taken"]["evt.type"], "open", "{verdict}");
    let refused = explain(&["other.yaml"]);
    let story = text(&refused);
    assert_eq!(refused.status.code(), Some(2), "{story}");
    assert!(
        story.contains(&format!("the rule `{rule}` of the alert")),
        "{story}"
    );
}

#[test]
fn doubtful_rules_are_found_and_stock_rules_have_few() {
    let scratch = Scratch::new();
    let doubtful = "\
- rule: Wide
  desc: d
  condition: evt.type in (open, openat) and fd.name startswith /etc
  output: o
  priority: INFO
- rule: Hidden
  desc: d
  condition: evt.type = openat and fd.name = /etc/shadow
  output: o
  priority: INFO
- rule: Nowhere
  desc: d
  condition: evt.type = openat and fd.name = /x and proc.tty = 1
  output: o
  priority: INFO
- rule: Dear
  desc: d
  condition: evt.type = write and fd.name = /x
  output: o
  priority: INFO
";
    fs::write(scratch.path().join("r.yaml"), doubtful).expect("the scratch folder is writable");
    let args = [
        "rules", "lint", "r.yaml", "--engine", "notify", "--engine", "gvisor", "--json",
    ];
    let output = tollgate(&args, scratch.path());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let found = json(&output);
    let found: Vec<(&str, &str)> = found["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|finding| {
            let word = |key: &str| finding[key].as_str().expect("a text");
            (word("rule"), word("check"))
        })
        .collect();
    let expected = [
        ("Hidden", "shadowed"),
        ("Nowhere", "never"),
        ("Dear", "expensive"),
    ];
    assert_eq!(found, expected);
    let output = tollgate(
        &["rules", "lint", "r.yaml", "--engine", "ebpf"],
        scratch.path(),
    );
    assert!(!text(&output).contains("Nowhere"), "{}", text(&output));
    let output = tollgate(
        &["rules", "lint", &rules(), "--engine", "ebpf", "--json"],
        scratch.path(),
    );
    let found = json(&output);
    for finding in found["findings"].as_array().expect("a list") {
        assert_eq!(finding["check"], "expensive", "{finding}");
    }
}

#[test]
fn each_rule_has_a_price_by_measured_figures() {
    let scratch = Scratch::new();
    let capture = scratch.path().join("c.scap").display().to_string();
    let script = "i=0; while [ $i -lt 400 ]; do : < /etc/passwd; i=$((i+1)); done; /bin/true";
    let watch = Watch::script(script)
        .engine(Engine::Notify)
        .option("-r")
        .option(rules());
    watch.option("-w").option(capture.clone()).run();
    let output = tollgate(
        &["rules", "cost", &rules(), "--capture", &capture, "--json"],
        scratch.path(),
    );
    let bill = json(&output);
    let price = |name: &str| bill["figures"][name]["ns"].as_f64().expect("a number");
    assert!(price("untouched") < price("looked_at"), "{bill}");
    assert!(price("looked_at") < price("started"), "{bill}");
    let rules = bill["rules"].as_array().expect("a list");
    let reads = rules
        .iter()
        .find(|rule| rule["rule"] == "Read sensitive file untrusted");
    let reads = &reads.expect("it is among them")["measured"];
    assert!(reads["events"].as_u64() >= Some(400), "{reads}");
    assert!(reads["share_ns"].as_f64() > Some(0.0), "{reads}");
    // What the file is called rules it out before it is evaluated.
    assert!(reads["evaluations"].is_u64(), "{reads}");
    let timed = rules
        .iter()
        .filter(|rule| rule["measured"]["evaluation_ns"].as_f64() > Some(0.0));
    assert!(timed.count() > 0, "{bill}");
    let output = tollgate(&["rules", "cost", "--figures", "."], scratch.path());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn an_alert_of_a_run_is_explained_to_the_person_who_gets_it() {
    let scratch = Scratch::new();
    let run = [
        "run",
        "--json",
        "--log",
        "alerts.jsonl",
        "--",
        "ln",
        "-s",
        "/etc/shadow",
        "link",
    ];
    let watched = tollgate(&run, scratch.path());
    assert_eq!(watched.status.code(), Some(0), "{}", text(&watched));
    let explain = |more: &[&str]| {
        let args = ["rules", "explain", "--alert", "alerts.jsonl"];
        tollgate(&[&args, more].concat(), scratch.path())
    };
    let story = text(&explain(&[]));
    for part in [
        "Warning: Create Symlink Over Sensitive Files\n",
        "A symbolic link to secrets was made, by `ln -s /etc/shadow link` (",
        "why it matters\n  A symbolic link to a file with secrets",
        "evt.arg.target: \"/etc/shadow\"",
        "    ln -s /etc/shadow link\n",
        "  1. Which program with more rights",
        "T1555  Credentials from Password Stores (credential-access)",
    ] {
        assert!(story.contains(part), "no {part:?}: {story}");
    }
    let object = json(&explain(&["--json"]));
    assert_eq!(object["matches"], true, "{object}");
    assert_eq!(object["tree"][1]["name"], "ln", "{object}");
    let output = explain(&["--number", "2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output).contains("there is no alert 2, only 1"),
        "{}",
        text(&output)
    );
}

#[test]
fn coverage_counts_what_an_engine_reports_and_says_why_not_of_the_rest() {
    let scratch = Scratch::new();
    let rules = "
- {rule: By the CPU, desc: d, condition: evt.type = execve and evt.cpu = 1, output: o, priority: INFO, tags: [T1059]}
- {rule: Off, desc: d, condition: evt.type = execve, output: o, priority: INFO, tags: [T1110], enabled: false}
- {rule: Wrong, desc: d, condition: evt.type = execve, output: o, priority: INFO, tags: [T1059.099]}
";
    fs::write(scratch.path().join("r.yaml"), rules).expect("the scratch folder is writable");
    let coverage = |more: &[&str]| {
        let args = ["rules", "coverage", "r.yaml", "--engine"];
        json(&tollgate(&[&args, more].concat(), scratch.path()))
    };
    let by = |engine: &str| coverage(&[engine, "--json"]);
    assert_eq!(
        (&by("ebpf")["covered"], &by("notify")["covered"]),
        (&1.into(), &0.into())
    );
    let layer = coverage(&["notify", "--navigator"]);
    assert_eq!(layer["versions"]["layer"], "4.5");
    assert_eq!(layer["domain"], "enterprise-attack");
    let comments: Vec<_> = layer["techniques"]
        .as_array()
        .expect("a list")
        .iter()
        .collect();
    let said = comments
        .iter()
        .map(|one| (one["enabled"].as_bool(), one["comment"].as_str()));
    let why =
        "not seen: By the CPU (notify: `evt.cpu` has no value (the CPU of a call is not reported))";
    let expected = [
        (Some(false), Some(why)),
        (Some(false), Some("not seen: Off (disabled)")),
    ];
    assert_eq!(said.collect::<Vec<_>>(), expected);
    let checked = tollgate(&["rules", "check", "r.yaml"], scratch.path());
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
    assert!(
        text(&checked).contains("LOAD_UNKNOWN_TECHNIQUE"),
        "{}",
        text(&checked)
    );
}

const LEVELS: &str = "
- {rule: Written down, desc: d, condition: evt.type = execve and proc.name = id, output: forensic, \
    priority: NOTICE, tags: [level_forensic]}
- {rule: Sent, desc: d, condition: evt.type = execve and proc.name = uname, output: stable, \
    priority: NOTICE}
";

#[test]
fn levels_turn_rules_on_and_forensic_alerts_reach_the_log_alone() {
    let scratch = Scratch::new();
    fs::write(scratch.path().join("own.yaml"), LEVELS).expect("the scratch folder is writable");
    fs::write(scratch.path().join(".bashrc"), "").expect("the scratch folder is writable");
    let alerts = |level: &[&str], number: u32| {
        let (log, sent) = (format!("log{number}"), format!("sent{number}"));
        let program = format!("program_output.program=cat >> {sent}");
        let run = ["run", "-q", "--add-rules", "own.yaml", "--log", &log];
        let keys = [
            "-o",
            "program_output.enabled=true",
            "-o",
            "program_output.keep_alive=true",
            "-o",
            &program,
        ];
        let command = ["--", "sh", "-c", "id; uname; cat .bashrc"];
        let output = tollgate(&[&run, level, &keys, &command].concat(), scratch.path());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        [log, sent].map(|name| {
            let text = fs::read_to_string(scratch.path().join(&name));
            let text = text.unwrap_or_else(|error| panic!("{name}: {error}"));
            let has = |part: &str| text.contains(part);
            [
                has("Notice stable"),
                has("A start-up file of a shell was read"),
                has("Notice forensic"),
            ]
        })
    };
    assert_eq!(alerts(&[], 1), [[true, false, false]; 2]);
    assert_eq!(alerts(&["--level", "hunting"], 2), [[true, true, false]; 2]);
    assert_eq!(
        alerts(&["--level", "forensic"], 3),
        [[true, true, true], [true, true, false]]
    );
    assert_eq!(
        alerts(&["-o", "rules_level=hunting"], 4),
        [[true, true, false]; 2]
    );
    let wrong = tollgate(&["run", "--level", "huntin", "--", "true"], scratch.path());
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        text(&wrong).contains("did you mean `hunting`?"),
        "{}",
        text(&wrong)
    );
}
