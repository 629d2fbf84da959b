//! The falco personality from outside.

mod running;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder with the program under Falco's name, a configuration and rules.
pub(crate) struct Installation {
    dir: tempfile::TempDir,
}

const RULES: &str = "- list: shells\n  items: [sh, bash]\n\
    - macro: opened\n  condition: evt.type in (open, openat, openat2)\n\
    - rule: Read shadow\n  desc: The shadow file was read\n  \
    condition: opened and fd.name = /etc/shadow and not proc.name in (shells)\n  \
    output: file=%fd.name\n  priority: WARNING\n  tags: [host]\n";

pub(crate) const CONFIG: &str = "rules_files: [%D/rules.yaml, %D/none.yaml]\nstdout_output: {enabled: true}\n\
    log_stderr: true\nlog_syslog: false\n";

impl Installation {
    pub(crate) fn new() -> Self {
        Self::with(CONFIG)
    }

    pub(crate) fn with(config: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder for temporary files");
        symlink(env!("CARGO_BIN_EXE_tollgate"), dir.path().join("falco")).expect("a link");
        let installation = Self { dir };
        let folder = installation.path("").display().to_string();
        let config = config.replace("%D", folder.trim_end_matches('/'));
        fs::write(installation.path("falco.yaml"), config).expect("it can be written");
        fs::write(installation.path("rules.yaml"), RULES).expect("it can be written");
        installation
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn bare(&self, args: &[&str]) -> Output {
        let mut command = Command::new(self.path("falco"));
        command
            .env("COLUMNS", "100")
            .stdin(Stdio::null())
            .current_dir(self.dir.path());
        command.args(args).output().expect("the link can be run")
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let mut all = vec!["-c", "falco.yaml"];
        all.extend(args);
        self.bare(&all)
    }
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("it prints UTF-8")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("it prints UTF-8")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

#[test]
fn wrong_usage_is_status_1_and_an_error_line() {
    let falco = Installation::new();
    for (args, expected) in [
        (
            &["-c", "none.yaml"][..],
            "cannot read configuration none.yaml",
        ),
        (
            &["--no-such-option"],
            "unexpected argument '--no-such-option'",
        ),
        (
            &["-c", "falco.yaml", "-r", "none.yaml"],
            "LOAD_ERR_FILE_READ",
        ),
        (&["-c", "falco.yaml", "-u"], "the engine in user space"),
        (
            &["-c", "falco.yaml", "--enable-source", "k8s_audit"],
            "event source `k8s_audit`",
        ),
        (
            &["-c", "falco.yaml", "-e", "none.scap"],
            "cannot open none.scap",
        ),
        (&["-c", "falco.yaml", "-l", "Nothing"], "rule `Nothing`"),
    ] {
        let output = falco.bare(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let text = stderr(&output);
        let line = text.lines().find(|line| line.starts_with("Error: "));
        assert!(line.is_some(), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

#[test]
fn the_verb_is_the_same_program() {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["falco", "--version"])
        .output()
        .expect("the program was built for this test");
    assert_eq!(output.status.code(), Some(0));
    let falco = Installation::new();
    assert_eq!(stdout(&output), stdout(&falco.bare(&["--version"])));
    assert!(stdout(&output).starts_with("Falco version: 0."));
    let versions = json(&falco.bare(&["--version", "-o", "json_output=true"]));
    assert!(versions["engine_version_semver"].is_string(), "{versions}");
}

#[test]
fn rules_are_validated_in_text_and_json() {
    let falco = Installation::new();
    let good = falco.run(&["-V", "rules.yaml"]);
    assert_eq!(good.status.code(), Some(0), "{}", stderr(&good));
    assert_eq!(stdout(&good), "rules.yaml: Ok\n");
    fs::write(
        falco.path("bad.yaml"),
        "- rule: R\n  desc: d\n  condition: evt.type = open and nothing\n  output: o\n  priority: INFO\n",
    )
    .expect("it can be written");
    let bad = falco.run(&["-V", "bad.yaml"]);
    assert_eq!(bad.status.code(), Some(1));
    let text = stdout(&bad);
    assert!(text.starts_with("bad.yaml: Invalid\n1 Errors:\n"), "{text}");
    assert!(text.contains("\nLOAD_ERR_VALIDATE ("), "{text}");
    assert!(stderr(&bad).contains("Error: bad.yaml: Invalid"));
    let bad = falco.run(&[
        "-V",
        "rules.yaml",
        "-V",
        "bad.yaml",
        "-o",
        "json_output=true",
    ]);
    assert_eq!(bad.status.code(), Some(1));
    let results = json(&bad);
    let results = results["falco_load_results"].as_array().expect("an array");
    assert_eq!(results[0]["successful"], true);
    let error = &results[1]["errors"][0];
    assert_eq!(error["code"], "LOAD_ERR_VALIDATE");
    let locations = error["context"]["locations"].as_array().expect("an array");
    assert_eq!(locations[0]["position"]["line"], 0);
    assert_eq!(locations[1]["item_type"], "rule");
    assert_eq!(locations[1]["position"]["line"], 0);
    assert_eq!(locations[2]["item_type"], "condition expression");
    assert_eq!(locations[2]["position"]["line"], 2);
    let described = json(&falco.run(&["-V", "rules.yaml", "-L", "-o", "json_output=true"]));
    assert!(described["falco_describe_results"]["rules"].is_array());
}

#[test]
fn rules_are_described_and_listed() {
    let falco = Installation::new();
    let text = stdout(&falco.run(&["-L"]));
    assert!(text.contains("\nRead shadow     "), "{text}");
    let all = json(&falco.run(&["-L", "-o", "json_output=true"]));
    assert_eq!(
        all["rules"][0]["details"]["macros"],
        serde_json::json!(["opened"])
    );
    assert_eq!(all["macros"][0]["info"]["name"], "opened");
    assert_eq!(all["lists"][0]["details"]["used"], true);
    let fields = json(&falco.bare(&["--list=syscall", "--format", "json"]));
    assert_eq!(fields["fieldclasses"][0]["name"], "evt");
    assert_eq!(falco.bare(&["--list=other"]).status.code(), Some(1));
    let names = stdout(&falco.bare(&["--list", "-N"]));
    assert!(names.lines().any(|line| line == "proc.cmdline"), "{names}");
    let events = stdout(&falco.bare(&["--list-events", "--format", "markdown"]));
    assert!(events.contains("\nYes | `<` | `execve` | "), "{events}");
    for option in ["--config-schema", "--rule-schema"] {
        assert!(json(&falco.bare(&[option]))["$schema"].is_string());
    }
}

#[test]
fn a_configuration_is_used_and_what_is_not_done_is_told() {
    let falco = Installation::with(
        "rules_files: [%D/rules.yaml, %D/rules.d]\nlog_stderr: true\nlog_syslog: false\njson_ouput: true\n\
         stdout_output: {enabled: true}\n\
         base_syscalls: {custom_set: [open]}\nrules: [{disable: {tag: host}}]\nconfig_files: [%D/conf.d]\n",
    );
    fs::create_dir(falco.path("conf.d")).expect("it can be made");
    // The folder exists and is empty, as where no rules were added.
    fs::create_dir(falco.path("rules.d")).expect("it can be made");
    fs::write(falco.path("conf.d/1.yaml"), "prioritee: x\n").expect("it can be written");
    let output = falco.run(&["--dry-run"]);
    assert_eq!(output.status.code(), Some(0));
    let text = stderr(&output);
    for expected in [
        "unknown key `json_ouput`, which has no effect: did you mean `json_output`?",
        "`base_syscalls.custom_set` has no effect",
        "conf.d/1.yaml:1:1: unknown key `prioritee`, which has no effect: did you mean `priority`?",
        "Disabling rules with tag: host",
        "falco.yaml | schema validation: failed",
        "conf.d/1.yaml | schema validation: failed",
        "rules.yaml | schema validation: ok",
        "System info: Linux version ",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let support = json(&falco.run(&["--support"]));
    assert_eq!(support["version"], "0.44.1");
    let quiet = falco.run(&["--dry-run", "-o", "log_level=error"]);
    assert_eq!(stderr(&quiet), "");
    for (options, expected) in [
        (
            &["metrics.enabled=true"][..],
            "metrics.enabled is true, but no destination is enabled",
        ),
        (
            &["http_output.enabled=true"],
            "`http_output` is enabled and has no `url`",
        ),
    ] {
        let mut all = vec!["--dry-run"];
        all.extend(options.iter().flat_map(|option| ["-o", option]));
        let output = falco.run(&all);
        assert_eq!(output.status.code(), Some(1), "{options:?}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    // As there, no output is no error.
    let silent = falco.run(&["--dry-run", "-o", "stdout_output.enabled=false"]);
    assert_eq!(silent.status.code(), Some(0), "{}", stderr(&silent));
    assert!(
        stderr(&silent).contains("no output is enabled"),
        "{}",
        stderr(&silent)
    );
}

/// Options, and a part of their output.
const PRINTED: &[(&[&str], &str)] = &[
    (
        &["--list-plugins"],
        "1 Plugins Loaded:\n\nName: container\n",
    ),
    (&["--plugin-info", "container"], "Name: container\n"),
    (&["--plugin-info=libcontainer.so"], "Name: container\n"),
    (&["-i"], "Ignored syscall(s):\n"),
    (&["--list-events"], "## Syscall events\n"),
    (&["--list-events", "--format", "json"], "\"schema_version\""),
    (&["--list", "--markdown"], "\n## Field Class: proc\n"),
    (&["--list=syscall", "-v"], "Field Class:"),
];

/// Options that are refused, and part of the message.
const REFUSED: &[(&[&str], &str)] = &[
    (&["--plugin-info", "json"], "--list-plugins"),
    (&["--list", "--format", "xml"], "text, markdown, json"),
    (
        &["--list", "--format", "json", "--markdown"],
        "cannot be used with",
    ),
    (&["-M", "soon"], "invalid value 'soon'"),
    (
        &["--enable-source", "syscall", "--disable-source", "syscall"],
        "cannot be used with",
    ),
    (
        &["--disable-source", "syscall"],
        "cannot disable all event sources",
    ),
    (&["-o", "priority"], "-o priority"),
    (&["-o", "a..b=1"], "-o a..b=1"),
];

/// Options that print something and end.
#[test]
fn what_is_asked_for_is_printed_and_nothing_else_is_done() {
    let falco = Installation::new();
    for (args, expected) in PRINTED {
        let output = falco.run(args);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stdout(&output).contains(expected),
            "{args:?}: {}",
            stdout(&output)
        );
    }
    let size = falco.run(&["--page-size"]);
    assert!(stderr(&size).contains("Your system page size is: 4096 bytes"));
    for (args, expected) in REFUSED {
        let output = falco.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(
            stderr(&output).contains("Error: "),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(expected),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

/// Returns a rule with this condition and these further lines.
fn rule(condition: &str, more: &str) -> String {
    format!("- rule: R\n  desc: d\n  condition: {condition}\n  output: o\n  priority: INFO\n{more}")
}

/// Returns codes of errors, each with a rules file that has it.
fn erroneous() -> Vec<(&'static str, String)> {
    let fine = rule("evt.type = open", "");
    vec![
        ("LOAD_ERR_YAML_PARSE", "- rule: [".to_owned()),
        ("LOAD_ERR_YAML_VALIDATE", "rule: x\n".to_owned()),
        ("LOAD_ERR_COMPILE_CONDITION", rule("no.field = x", "")),
        (
            "LOAD_ERR_COMPILE_OUTPUT",
            fine.replace("output: o", "output: '%no.field'"),
        ),
        ("LOAD_ERR_VALIDATE", rule("evt.type = open and nothing", "")),
    ]
}

/// Returns codes of warnings, each with a rules file that has it.
fn doubtful() -> Vec<(&'static str, String)> {
    let exceptions =
        "  exceptions:\n  - {name: e, fields: [proc.name], comps: [=], values: [[x]]}\n";
    let twice =
        format!("{exceptions}  - {{name: e, fields: [fd.name], comps: [=], values: [[x]]}}\n");
    let skip = "  skip-if-unknown-filter: true\n";
    let no_values = "- rule: R\n  exceptions: [{name: e}]\n  override: {exceptions: append}\n";
    vec![
        (
            "LOAD_UNKNOWN_SOURCE",
            rule("ka.verb = get", "  source: k8s_audit\n"),
        ),
        ("LOAD_UNSAFE_NA_CHECK", rule("jevt.value[/x] = <NA>", skip)),
        ("LOAD_NO_EVTTYPE", rule("proc.name = x", "")),
        ("LOAD_UNKNOWN_FILTER", rule("no.field = x", skip)),
        (
            "LOAD_UNUSED_MACRO",
            "- macro: m\n  condition: evt.type = open\n".to_owned(),
        ),
        ("LOAD_UNUSED_LIST", "- list: l\n  items: [a]\n".to_owned()),
        ("LOAD_UNKNOWN_ITEM", "- something: else\n".to_owned()),
        (
            "LOAD_DEPRECATED_ITEM",
            rule("evt.type = open and evt.dir = <", ""),
        ),
        (
            "LOAD_APPEND_NO_VALUES",
            rule("evt.type = open", &format!("{exceptions}{no_values}")),
        ),
        (
            "LOAD_EXCEPTION_NAME_NOT_UNIQUE",
            rule("evt.type = open", &twice),
        ),
        (
            "LOAD_INVALID_MACRO_NAME",
            "- macro: a b\n  condition: evt.type = open\n".to_owned(),
        ),
        (
            "LOAD_INVALID_LIST_NAME",
            "- list: a(b\n  items: [a]\n".to_owned(),
        ),
        (
            "LOAD_COMPILE_CONDITION",
            rule("evt.type = open and proc.name = proc.pname", ""),
        ),
        (
            "LOAD_COMPILE_CONDITION",
            rule("evt.type = open and proc.name regex '.*sh'", ""),
        ),
        (
            "LOAD_UNKNOWN_KEY",
            rule("evt.type = open", "  prio: INFO\n"),
        ),
    ]
}

/// Checks that the problem is reported for a file.
fn meet(falco: &Installation, code: &str, text: &str) {
    fs::write(falco.path("one.yaml"), text).expect("it can be written");
    let output = falco.run(&["-V", "one.yaml", "-o", "json_output=true"]);
    let results = json(&output);
    let is_error = code.starts_with("LOAD_ERR_");
    assert_eq!(
        output.status.code(),
        Some(i32::from(is_error)),
        "{code}: {results}"
    );
    let kind = if is_error { "errors" } else { "warnings" };
    let problems = results["falco_load_results"][0][kind]
        .as_array()
        .expect("an array");
    let problem = problems.iter().find(|problem| problem["code"] == code);
    let problem = problem.unwrap_or_else(|| panic!("{code}: {results}"));
    let context = &problem["context"];
    assert!(
        context["locations"][0]["position"]["line"].is_u64(),
        "{problem}"
    );
    let snippet = context["snippet"].as_str().expect("text");
    let line = snippet.lines().next().expect("a line");
    assert!(
        text.contains(line) && snippet.ends_with("^\n"),
        "{code}: {problem}"
    );
}

/// For every code in the table of `docs/reference/falco-compat.md`, some file has it, reported with position
/// and line.
#[test]
fn every_code_of_a_problem_can_be_met() {
    let falco = Installation::new();
    let mut met = vec!["LOAD_ERR_FILE_READ"];
    let missing = json(&falco.run(&["-V", "none.yaml", "-o", "json_output=true"]));
    let of_missing = &missing["falco_load_results"][0]["errors"][0]["code"];
    assert_eq!(*of_missing, met[0], "{missing}");
    for (code, text) in erroneous().iter().chain(&doubtful()) {
        meet(&falco, code, text);
        met.push(code);
    }
    let page = fs::read_to_string("../../docs/reference/falco-compat.md")
        .expect("it is part of the project");
    let codes = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `LOAD_")?.split_once('`'));
    let mut codes: Vec<_> = codes.map(|(code, _)| format!("LOAD_{code}")).collect();
    // `falco` has no extensions and reads no built-in rules; `tollgate rules check` alone looks at tags and plugins, and
    // warns of more than Falco does.
    let others = "_EXTENSION _BUILTIN _TECHNIQUE _LEVEL _UNCHECKED_SOURCE _DOUBTFUL_CONDITION _APPEND_NO_EVTTYPE";
    codes.retain(|code| !others.split(' ').any(|end| code.ends_with(end)));
    codes.sort();
    met.sort_unstable();
    met.dedup();
    assert_eq!(met, codes);
}
