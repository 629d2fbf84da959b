//! Bad input gives one clear message: what cannot be done and why, where, and the next step.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Finished, Limited, Scratch};

fn tollgate(arguments: &[&str]) -> Finished {
    let mut command = Command::new(e2e::program());
    command.args(arguments).stdin(Stdio::null());
    Limited::start(&mut command, Duration::from_secs(20)).finish(b"")
}

/// Asserts the exit code, and that the message says all of `parts`, once, and nothing panicked.
fn refused(arguments: &[&str], code: i32, parts: &[&str]) {
    let finished = tollgate(arguments);
    let text = &finished.stderr;
    assert_eq!(finished.code(), code, "{arguments:?}: {text}");
    for part in parts {
        assert!(
            text.contains(part),
            "{arguments:?}: no {part:?} in:\n{text}"
        );
    }
    assert_eq!(
        text.matches("tollgate: ").count(),
        1,
        "{arguments:?}: not one message:\n{text}"
    );
    assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    assert!(
        finished.stdout.is_empty(),
        "{arguments:?}: {}",
        finished.stdout
    );
}

fn rule(condition: &str) -> String {
    format!(
        "- rule: One\n  desc: a rule\n  condition: {condition}\n  output: seen %proc.name\n  \
         priority: WARNING\n"
    )
}

fn name(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// Runs a command with a rule file, which must be refused before the command runs.
fn refused_rules(text: impl AsRef<[u8]>, parts: &[&str]) {
    let scratch = Scratch::new();
    let file = scratch.file("my.yaml", 0o644, text);
    let ran = scratch.path().join("ran");
    let mut parts = parts.to_vec();
    parts.extend(["tollgate: cannot ", "my.yaml", "help: "]);
    refused(
        &["run", "-r", name(&file), "--", "touch", name(&ran)],
        2,
        &parts,
    );
    assert!(!ran.exists(), "the command ran");
}

#[test]
fn an_unknown_field_is_named_with_its_place_and_a_suggestion() {
    refused_rules(
        rule("evt.type = open and proc.nme = cat"),
        &["my.yaml:3:", "proc.nme", "proc.name"],
    );
}

#[test]
fn an_unknown_field_in_an_output_is_named() {
    refused_rules(
        rule("evt.type = open").replace("%proc.name", "%proc.nmae"),
        &["my.yaml:4:", "proc.nmae"],
    );
}

#[test]
fn an_unknown_macro_or_list_is_named() {
    refused_rules(
        rule("evt.type = open and no_such_macro"),
        &["my.yaml:3:", "no_such_macro"],
    );
}

#[test]
fn an_unknown_event_type_is_named() {
    refused_rules(rule("evt.type = opne"), &["my.yaml:3:", "opne"]);
}

#[test]
fn an_unknown_rule_that_is_changed_is_named() {
    let text = "- rule: No such rule\n  enabled: false\n  override:\n    enabled: replace\n";
    refused_rules(text, &["my.yaml:1:", "No such rule"]);
}

#[test]
fn a_condition_that_does_not_parse_is_shown() {
    refused_rules(
        rule("evt.type = open and (proc.name = cat"),
        &["my.yaml:3:"],
    );
    refused_rules(rule("evt.type in (open"), &["my.yaml:3:"]);
}

#[test]
fn values_that_do_not_fit_their_field_are_errors() {
    refused_rules(
        rule("evt.type = open and proc.pid = many"),
        &["my.yaml:3:", "many"],
    );
    refused_rules(
        rule("evt.type = connect and fd.snet = 1.2.3.4/99"),
        &["my.yaml:3:", "1.2.3.4/99"],
    );
}

#[test]
fn yaml_errors_have_a_line() {
    refused_rules("- rule: One\n  desc: [\n", &["my.yaml:"]);
    refused_rules("rule: not a list\n", &["my.yaml:1:"]);
    refused_rules("- rule: One\n\tdesc: tab\n", &["my.yaml:", "tab"]);
    refused_rules(
        "- rule: One\n  desc: x\n  priority: HUGE\n  condition: evt.type=open\n  output: x\n",
        &["HUGE"],
    );
    refused_rules(b"- rule: \xff\xfe\n", &["UTF-8"]);
}

#[test]
fn a_rule_without_its_parts_is_an_error() {
    refused_rules("- rule: One\n  desc: x\n", &["my.yaml:1:", "condition"]);
}

#[test]
fn all_problems_are_told_at_once() {
    let text =
        rule("evt.type = open and proc.nme = x") + &rule("evt.type = opne").replace("One", "Two");
    refused_rules(text, &["my.yaml:3:", "my.yaml:8:", "2 errors"]);
}

#[test]
fn rules_of_a_newer_language_are_refused() {
    refused_rules("- required_engine_version: 99.0.0\n", &["99.0.0"]);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let missing = ["cannot ", "/no/such/rules.yaml", "No such file", "help: "];
    refused(
        &["run", "-r", "/no/such/rules.yaml", "--", "true"],
        2,
        &missing,
    );
    let scratch = Scratch::new();
    refused(
        &["run", "-r", name(scratch.path()), "--", "true"],
        2,
        &["cannot ", ".yaml", "help: "],
    );
    refused(
        &["run", "-c", "/no/such.yaml", "--", "true"],
        2,
        &["cannot ", "/no/such.yaml", "help: "],
    );
    let stats = scratch.path().join("none/stats");
    refused(
        &["run", "-s", name(&stats), "--", "true"],
        2,
        &["cannot ", "none/stats", "No such file"],
    );
}

#[test]
fn a_file_without_permission_is_named() {
    e2e::need_root!();
    let scratch = Scratch::new();
    let program = scratch.program(&e2e::program(), "tollgate");
    let rules = scratch.file("secret.yaml", 0o600, rule("evt.type = open"));
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=1000", "--regid=1000", "--clear-groups", "--"])
        .arg(program);
    command
        .args(["run", "-r", name(&rules), "--", "true"])
        // The home of who runs the tests may be closed to others.
        .env("HOME", scratch.path())
        .stdin(Stdio::null());
    let finished = Limited::start(&mut command, Duration::from_secs(20)).finish(b"");
    assert_eq!(finished.code(), 2, "{}", finished.stderr);
    for part in [
        "tollgate: cannot ",
        "secret.yaml",
        "Permission denied",
        "help: ",
    ] {
        assert!(
            finished.stderr.contains(part),
            "no {part:?} in {}",
            finished.stderr
        );
    }
}

#[test]
fn unknown_options_and_verbs_are_usage_errors() {
    for (arguments, parts) in [
        (vec!["run", "--jsn", "--", "true"], ["--jsn", "--json"]),
        (vec!["rnu"], ["rnu", "did you mean `tollgate run`?"]),
        (
            vec!["run", "--engine", "magic", "--", "true"],
            ["magic", "notify"],
        ),
        (
            vec!["run", "-s", "x", "--stats-interval", "soon", "--", "true"],
            ["soon", "stats-interval"],
        ),
        (vec!["run"], ["CMD", "Usage"]),
    ] {
        let finished = tollgate(&arguments);
        assert_eq!(finished.code(), 2, "{arguments:?}: {}", finished.stderr);
        for part in parts {
            assert!(
                finished.stderr.contains(part),
                "{arguments:?}: no {part:?} in {}",
                finished.stderr
            );
        }
    }
}

#[test]
fn unknown_settings_are_named() {
    refused(
        &["run", "-o", "outputs.rat=5", "--", "true"],
        2,
        &["outputs.rat", "outputs.rate"],
    );
    refused(
        &["run", "-o", "outputs.rate=often", "--", "true"],
        2,
        &["outputs.rate", "often"],
    );
    refused(
        &["run", "-o", "json_output", "--", "true"],
        2,
        &["json_output"],
    );
    refused(
        &["run", "-o", "priority=huge", "--", "true"],
        2,
        &["huge", "critical"],
    );
}

#[test]
fn an_engine_that_is_not_there_is_missing_support() {
    // Nobody without capabilities has this one.
    let scratch = e2e::Scratch::new();
    let program = scratch.program(&e2e::program(), "tollgate");
    let mut command = Command::new("setpriv");
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    command.args(if e2e::is_root() { &nobody[..] } else { &[] });
    command
        .arg(program)
        .args(["run", "--engine", "ebpf", "--", "true"])
        .env("HOME", scratch.path());
    let finished =
        Limited::start(command.stdin(Stdio::null()), Duration::from_secs(20)).finish(b"");
    assert_eq!(finished.code(), 3, "{}", finished.stderr);
    assert!(
        finished.stderr.contains("tollgate: cannot "),
        "{}",
        finished.stderr
    );
}

#[test]
fn an_engine_is_not_asked_for_what_it_cannot_give() {
    for (engine, option) in [
        ("ebpf", &["--io-uring", "deny"]),
        ("ebpf", &["--refuse", "non-dumpable"]),
        ("ebpf", &["--verify", "always"]),
        ("ebpf", &["--on-agent-death", "deny"]),
        ("ptrace", &["--on-agent-death", "deny"]),
    ] {
        refused(
            &[
                "run", "--engine", engine, option[0], option[1], "--", "true",
            ],
            2,
            &[
                &format!("tollgate: {} ", option[0]),
                &format!("is not supported by the engine {engine}"),
                "help: leave the option out",
            ],
        );
    }
}

#[test]
fn a_command_that_is_not_found_is_127() {
    refused(
        &["run", "--", "no-such-program-at-all"],
        127,
        &["cannot run no-such-program-at-all", "help: "],
    );
    refused(
        &["run", "--", "/no/such/program"],
        127,
        &["cannot run /no/such/program", "help: "],
    );
    refused(
        &["run", "--", "slep"],
        127,
        &["cannot run slep", "did you mean `sleep`?"],
    );
    refused(&["run", "--", ""], 127, &["cannot run", "help: "]);
}

#[test]
fn a_command_that_cannot_be_executed_is_126() {
    let scratch = Scratch::new();
    let text = scratch.file("text", 0o644, "hello\n");
    let orphan = scratch.file("orphan", 0o755, "#!/no/such/interpreter\n");
    let broken = scratch.file("broken", 0o755, b"\x7fELF but no more");
    refused(
        &["run", "--", name(&text)],
        126,
        &["cannot run", "chmod +x"],
    );
    refused(
        &["run", "--", name(scratch.path())],
        126,
        &["cannot run", "directory", "help: "],
    );
    refused(
        &["run", "--", name(&orphan)],
        126,
        &["cannot run", "/no/such/interpreter", "help: "],
    );
    refused(&["run", "--", name(&broken)], 126, &["cannot ", "broken"]);
    let script = scratch.file("script", 0o755, "echo hello\n");
    let advice = format!("help: it has no #! line: run it as `sh {}`", name(&script));
    refused(&["run", "--", name(&script)], 126, &["script", &advice]);
    let closed = scratch.file("closed/program", 0o755, "#!/bin/sh\n");
    let folder = closed.parent().expect("it has one");
    std::fs::set_permissions(folder, Permissions::from_mode(0o000)).expect("it is ours");
    if !e2e::is_root() {
        refused(
            &["run", "--", name(&closed)],
            126,
            &["cannot run", "ermission denied"],
        );
    }
    std::fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("it is ours");
}

#[test]
fn a_stats_file_that_is_none_is_refused_or_told_of() {
    refused(
        &["run", "-s", "-", "--", "true"],
        2,
        &["cannot write stats to `-`", "help: ", "/dev/stdout"],
    );
    let finished = tollgate(&["run", "-q", "-s", "/dev/full", "--", "true"]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let expected = "tollgate: cannot write stats file /dev/full: ";
    assert!(finished.stderr.starts_with(expected), "{}", finished.stderr);
}

#[test]
fn no_rules_at_all_are_warned_of() {
    let finished = tollgate(&["run", "-r", "/dev/null", "--", "true"]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert!(
        finished.stderr.contains("no rule is enabled"),
        "{}",
        finished.stderr
    );
    let quiet = tollgate(&["run", "-q", "-r", "/dev/null", "--", "true"]);
    assert_eq!((quiet.code(), quiet.stderr.as_str()), (0, ""));
}

#[test]
fn events_that_no_engine_tells_of_are_warned_of() {
    let scratch = Scratch::new();
    for (event, warning) in [
        ("signaldeliver", "no engine reports `signaldeliver`"),
        ("container", "no engine reports `container`"),
        ("procexit", "only the engine ebpf reports `procexit`"),
    ] {
        let text = rule(&format!("evt.type in (open, {event})"));
        let file = scratch.file("my.yaml", 0o644, text);
        let finished = tollgate(&["rules", "check", name(&file)]);
        let text = format!("{}{}", finished.stdout, finished.stderr);
        assert_eq!(finished.code(), 0, "{text}");
        assert!(text.contains(warning), "{text}");
    }
}

#[test]
fn rules_check_says_the_same_and_where() {
    let scratch = Scratch::new();
    let file = scratch.file("my.yaml", 0o644, rule("evt.type = open and proc.nme = x"));
    let finished = tollgate(&["rules", "check", name(&file)]);
    assert_eq!(finished.code(), 2, "{}{}", finished.stdout, finished.stderr);
    let text = finished.stdout + &finished.stderr;
    for part in ["my.yaml:3:", "proc.nme", "proc.name", "LOAD_"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let good = scratch.file("good.yaml", 0o644, rule("evt.type = open"));
    let finished = tollgate(&["rules", "check", name(&good)]);
    assert_eq!(finished.code(), 0, "{}{}", finished.stdout, finished.stderr);
}

#[test]
fn rule_files_that_are_none_are_named() {
    let scratch = Scratch::new();
    let rules = scratch.path().join("rules");
    std::fs::create_dir_all(rules.join("folder.yml")).expect("a new folder");
    std::os::unix::fs::symlink("/no/such", rules.join("site.yaml")).expect("a new link");
    let parts = ["site.yaml", "folder.yml", "it is not a file", "help: "];
    for option in ["-r", "--add-rules"] {
        refused(&["run", option, name(&rules), "--", "true"], 2, &parts);
    }
    let empty = scratch.path().join("empty");
    std::fs::create_dir(&empty).expect("a new folder");
    for option in ["-r", "--add-rules"] {
        let words = ["run", option, name(&empty), "--", "true"];
        refused(&words, 2, &["the folder has no .yaml or .yml file"]);
    }
}

#[test]
fn options_that_do_nothing_without_others_are_refused() {
    for (options, needed) in [
        (&["run", "--bundle-key", "web.pub"][..], "--collector URL"),
        (&["run", "--allow-captures"], "--collector URL"),
        (&["run", "--collector-label", "a=b"], "--collector URL"),
        (
            &["enforce", "--policy", "p", "--bundle-key", "k"],
            "--collector URL",
        ),
        (&["run", "--responses-dry-run"], "--responses FILE"),
        (
            &["run", "-w", "/dev/null", "--write-keep", "2"],
            "--write-size",
        ),
    ] {
        let words = [options, &["--", "true"]].concat();
        refused(&words, 2, &[needed]);
    }
}

#[test]
fn a_new_file_is_not_written_over_another_one() {
    let scratch = Scratch::new();
    let there = scratch.file("there", 0o644, "mine");
    let help = "help: name a file that does not exist";
    refused(&["serve", "bundle", "key", name(&there)], 2, &[help]);
    refused(&["policy", "init", name(&there)], 2, &["--force"]);
    let nowhere = scratch.path().join("no/key");
    let help = "help: create its folder first";
    refused(&["serve", "bundle", "key", name(&nowhere)], 2, &[help]);
    assert_eq!(std::fs::read_to_string(there).expect("it is there"), "mine");
    let left = std::fs::read_dir(scratch.path()).expect("a folder").count();
    assert_eq!(left, 1, "something is left");
}

#[test]
fn policies_of_tollgate_are_not_converted_to_themselves() {
    let scratch = Scratch::new();
    let file = scratch.file("web.yaml", 0o644, "policy:\n  enforcer: Seccomp\n");
    let parts = ["web.yaml:1", "already", "tollgate policy check"];
    refused(&["policy", "convert", name(&file)], 2, &parts);
}
