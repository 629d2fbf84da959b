//! Event sources of plugins: `tollgate falco` with plugins made for these tests.

mod asynchronous;
mod calls;
mod captures;
mod rule_tests;
mod tables;
mod tools;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Fixture, Limited, Scratch, program};
use serde_json::Value;

const RULES: &str = "\
- required_plugin_versions:
  - name: toy
    version: 1.0.0
- rule: Odd
  desc: an odd number
  condition: toy.odd = true and toy.list intersects (second, third) and toy.address = 10.0.0.3
  output: odd %toy.number of %evt.source by %evt.pluginname %evt.plugininfo %evt.type %toy.part[a/b] %toy.list
  priority: WARNING
  source: toy
- rule: Wordless
  desc: a number without a word
  condition: not toy.word exists
  output: wordless %toy.number %toy.word
  priority: INFO
  source: toy
- rule: Shell
  desc: a rule of system calls beside
  condition: evt.type = execve and proc.name = no_such_program
  output: shell %proc.name
  priority: INFO
";

/// A configuration with the plugin `toy`.
struct Toy {
    folder: Scratch,
    library: Fixture,
    extractor: Option<Fixture>,
    extractor_config: String,
    /// A third plugin, with its configuration.
    third: Option<(Fixture, String)>,
    init_config: String,
    /// `toy` is the last plugin in the configuration.
    is_last: bool,
    events: u32,
    rules: String,
}

impl Toy {
    fn new(mode: &str) -> Self {
        Self {
            folder: Scratch::new(),
            library: compile(&[]),
            extractor: None,
            extractor_config: String::new(),
            third: None,
            init_config: format!("{{mode: {mode}}}"),
            is_last: false,
            events: 4,
            rules: RULES.to_owned(),
        }
    }

    fn config(&self) -> PathBuf {
        let item = |name: &str, library: &Fixture, rest: &str| {
            let path = library.program().display();
            (
                name.to_owned(),
                format!("- {{name: {name}, library_path: {path}, {rest}}}\n"),
            )
        };
        let quoted = |config: &str| format!("init_config: '{config}'");
        let mut items = Vec::new();
        if let Some(extractor) = &self.extractor {
            items.push(item("toyx", extractor, &quoted(&self.extractor_config)));
        }
        if let Some((third, config)) = &self.third {
            items.push(item("toyy", third, &quoted(config)));
        }
        let toy = format!(
            "init_config: {}, open_params: '{}'",
            self.init_config, self.events
        );
        let toy = item("toy", &self.library, &toy);
        items.insert(if self.is_last { items.len() } else { 0 }, toy);
        let (names, items): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let text = format!(
            "json_output: true\nstdout_output: {{enabled: true}}\nlog_level: info\nlog_stderr: true\nload_plugins: [{}]\n\
             tollgate_internal: true\nplugins:\n{}",
            names.join(", "),
            items.concat(),
        );
        self.folder.file("falco.yaml", 0o644, text)
    }

    fn command(&self, words: &[&str]) -> Command {
        let rules = self.folder.file("rules.yaml", 0o644, &self.rules);
        let mut command = Command::new(program());
        command
            .arg("falco")
            .arg("-c")
            .arg(self.config())
            .arg("-r")
            .arg(rules);
        command
            .args(["--disable-source", "syscall"])
            .args(words)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Ran {
        let finished =
            Limited::start(&mut self.command(words), Duration::from_secs(30)).finish(b"");
        let lines = finished.stdout.lines();
        let alerts = lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        Ran {
            alerts,
            code: finished.code(),
            stdout: finished.stdout,
            stderr: finished.stderr,
        }
    }
}

struct Ran {
    alerts: Vec<Value>,
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    /// Returns the outputs of a rule's alerts, without time and priority.
    fn of(&self, rule: &str) -> Vec<String> {
        let alerts = self.alerts.iter().filter(|alert| alert["rule"] == rule);
        let outputs = alerts.map(|alert| alert["output"].as_str().expect("it has an output"));
        let text = |output: &str| output.splitn(3, ' ').nth(2).map(str::to_owned);
        outputs.filter_map(text).collect()
    }

    /// Returns the causes of the failures of the source.
    fn failures(&self) -> Vec<String> {
        let failed = "Tollgate internal: plugin source failed";
        let alerts = self.alerts.iter().filter(|alert| alert["rule"] == failed);
        let cause = |alert: &Value| {
            alert["output_fields"]["tollgate.cause"]
                .as_str()
                .map(str::to_owned)
        };
        alerts.filter_map(cause).collect()
    }
}

/// Compiles the plugin as a shared object.
fn compile(options: &[&str]) -> Fixture {
    compile_as("toy_plugin", options)
}

fn compile_as(name: &str, options: &[&str]) -> Fixture {
    let all: Vec<&str> = ["-shared", "-fPIC"]
        .iter()
        .chain(options)
        .copied()
        .collect();
    Fixture::try_compile(name, &all).unwrap_or_else(|text| panic!("{text}"))
}

#[test]
fn rules_of_a_plugin_raise_alerts_with_its_fields() {
    let ran = Toy::new("plain").run(&[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let odd = "odd 3 of toy by toy event 3 pluginevent a/b (first,second)";
    assert_eq!(ran.of("Odd"), [odd], "{}\n{}", ran.stdout, ran.stderr);
    assert_eq!(ran.of("Wordless"), ["wordless 2 <NA>", "wordless 4 <NA>"]);
    let odd = ran
        .alerts
        .iter()
        .find(|alert| alert["rule"] == "Odd")
        .expect("it was raised");
    assert_eq!(odd["source"], "toy");
    assert_eq!(odd["time"], "2023-11-14T22:13:20.000000003Z");
    let fields = &odd["output_fields"];
    assert_eq!(fields["toy.number"], 3);
    assert_eq!(fields["toy.part[a/b]"], "a/b");
    assert_eq!(fields["evt.pluginname"], "toy");
    assert!(
        ran.stderr
            .contains("plugin source toy: 4 events shown to rules, 0 restarts"),
        "{}",
        ran.stderr
    );
}

#[test]
fn alerts_of_plugin_rules_are_in_the_totals_and_in_metrics() {
    let ran = Toy::new("plain").run(&[]);
    let totals = "Events detected: 3\nRule counts by severity:\n   WARNING: 1\n   INFO: 2\nTriggered rules by rule name:\n   \
                  Odd: 1\n   Wordless: 2\n";
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let found = ran.stdout.find("Events detected:");
    let found = &ran.stdout[found.unwrap_or_else(|| panic!("{}", ran.stdout))..];
    assert_eq!(sorted(found), sorted(totals));

    // One event without a word comes before the plugin hangs.
    let toy = Toy::new("hang");
    let file = toy.folder.path().join("metrics");
    let file_name = format!("metrics.output_file={}", file.display());
    let options = ["-o", "metrics.enabled=true", "-o", "metrics.interval=500ms"];
    toy.run(&[&options[..], &["-o", &file_name, "-M", "4"]].concat());
    let snapshots = std::fs::read_to_string(&file).expect("it was written");
    let last: Value =
        serde_json::from_str(snapshots.lines().last().expect("a snapshot")).expect("it is JSON");
    let fields = &last["output_fields"];
    assert_eq!(fields["falco.rules.Wordless"], 1, "{last}");
    assert_eq!(fields["falco.rules.matches_total"], 1, "{last}");
}

#[test]
fn a_plugin_takes_fields_from_the_events_of_another() {
    let mut toy = Toy::new("plain");
    toy.extractor = Some(compile(&["-DEXTRACTOR", "-DSOURCES=\"[\\\"toy\\\"]\""]));
    toy.rules = "- rule: Loud\n  desc: d\n  condition: toyx.shout startswith 2\n  output: loud %toyx.shout %toy.number\n  \
                 priority: INFO\n  source: toy\n"
        .to_owned();
    let ran = toy.run(&[]);
    assert_eq!(
        ran.of("Loud"),
        ["loud 2! 2"],
        "{}\n{}",
        ran.stdout,
        ran.stderr
    );
    let listed = toy.run(&["--list=toy", "-N"]);
    for name in ["evt.plugininfo\n", "toy.part\n", "toyx.shout\n"] {
        assert!(listed.stdout.contains(name), "{}", listed.stdout);
    }
    assert!(!listed.stdout.contains("proc.name"), "{}", listed.stdout);
    let plugins = toy.run(&["--list-plugins"]).stdout;
    assert!(plugins.starts_with("3 Plugins Loaded:\n"), "{plugins}");
    assert!(
        plugins.contains("Event Sourcing (ID=999, source='toy')"),
        "{plugins}"
    );
    let info = toy.run(&["--plugin-info", "toy"]).stdout;
    assert!(info.contains("Contact: nobody\nVersion: 1.2.3\n"), "{info}");
}

/// How a plugin fails, how the reported cause begins, and what is counted.
const FAILURES: &[(&str, &str, &str)] = &[
    (
        "crash",
        "the process of the plugin ended: signal: 11",
        "crashes",
    ),
    (
        "leak",
        "the process of the plugin ended: signal: 6",
        "crashes",
    ),
    ("hang", "the plugin did not answer within 500 ms", "hangs"),
    (
        "length",
        "it returns an event of 4294967295 bytes",
        "failures",
    ),
    (
        "shorter",
        "it returns an event of 54 bytes whose parameters have 4 and 1048576",
        "failures",
    ),
    // It tries to run a program, which fails, and then lies.
    ("execute", "it returns an event of 0 bytes", "failures"),
];

fn is_started_again_and_counted((mode, cause, counted): (&'static str, &str, &str)) {
    // A leak takes a moment.
    let timeout = if mode == "leak" { 2500 } else { 500 };
    let timeout = format!("plugin_host.timeout={timeout}");
    let memory = "plugin_host.memory=160";
    let ran = Toy::new(mode).run(&["-M", "6", "-o", &timeout, "-o", memory]);
    assert_eq!(ran.code, 0, "{mode}: {}", ran.stderr);
    let failures = ran.failures();
    assert!(failures.len() >= 2, "{mode}: {failures:?}\n{}", ran.stderr);
    assert!(
        failures.iter().all(|found| found.starts_with(cause)),
        "{mode}: {failures:?}"
    );
    let is_told = |found: &String| found.contains("160 MiB of memory: plugin_host.memory");
    assert!(
        mode != "leak" || failures.iter().all(is_told),
        "{failures:?}"
    );
    // The events before a failure are evaluated, and none after it.
    let wordless = ran.of("Wordless");
    assert!(
        wordless.len() >= 2 && wordless.iter().all(|text| text == "wordless 2 <NA>"),
        "{mode}: {wordless:?}"
    );
    let total = ran
        .stderr
        .lines()
        .find(|line| line.contains("plugin source toy:"));
    let total = total.unwrap_or_else(|| panic!("{mode}: {}", ran.stderr));
    let count = total
        .split(['(', ',', ')'])
        .find_map(|part| part.trim().strip_suffix(counted));
    let count = count.and_then(|count| count.trim().parse::<usize>().ok());
    assert!(
        count.is_some_and(|count| count >= failures.len()),
        "{mode}: {total}"
    );
}

#[test]
fn a_plugin_that_crashes_hangs_or_lies_is_started_again_and_counted() {
    std::thread::scope(|scope| {
        for failure in FAILURES {
            scope.spawn(|| is_started_again_and_counted(*failure));
        }
    });
}

#[test]
fn a_value_that_a_plugin_cannot_say_decides_no_rule() {
    let ran = Toy::new("wordless").run(&[]);
    assert_eq!(ran.of("Wordless"), Vec::<String>::new(), "{}", ran.stdout);
    assert!(
        ran.stderr.contains("4 events shown to rules, 0 restarts"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains(", 8 rules undecided"), "{}", ran.stderr);
}

/// Returns a rule of source `toy`.
fn rule(name: &str, condition: &str, output: &str) -> String {
    format!(
        "- rule: {name}\n  desc: d\n  condition: {condition}\n  output: {output:?}\n  priority: INFO\n  source: toy\n"
    )
}

/// Checks that a configuration is refused with this text.
fn is_refused(toy: &Toy, words: &[&str], expected: &str) {
    let ran = toy.run(words);
    assert_eq!(ran.code, 1, "{expected}: {}", ran.stderr);
    assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
}

#[test]
fn plugins_that_cannot_be_used_are_refused_by_name() {
    is_refused(&Toy::new("refuse"), &[], "cannot load plugin `toy`");
    is_refused(&Toy::new("refuse"), &[], "the mode is refuse");
    let mut old = Toy::new("plain");
    old.library = compile(&["-DAPI_VERSION=\"2.0.0\""]);
    is_refused(&old, &[], "it needs version 2.0.0 of the plugin API");
    old.library = compile(&["-DADDS"]);
    is_refused(&old, &[], "it does not say its asynchronous events");
    // Events say by this number alone who made them.
    let mut second = Toy::new("plain");
    second.extractor = Some(compile(&["-DNAME=\"toyb\""]));
    is_refused(
        &second,
        &[],
        "cannot use plugin `toyx`: its events have the plugin ID 999, as those of plugin `toy` have",
    );
    second.extractor = Some(compile(&["-DNAME=\"toyb\"", "-DNUMBER=998"]));
    assert_eq!(second.run(&[]).code, 0);
    let toy = Toy::new("plain");
    is_refused(&toy, &["-o", "load_plugins[]=toyy"], "did you mean `toy`?");
    is_refused(
        &toy,
        &["-o", "plugin_host.program=/nonexistent/host"],
        "cannot start /nonexistent/host",
    );
    is_refused(&toy, &["--list=toyy"], "did you mean `toy`?");
    is_refused(&toy, &["--plugin-info", "toyy"], "did you mean `toy`?");
    is_refused(
        &toy,
        &["--disable-source", "toy"],
        "cannot disable all event sources",
    );
    is_refused(&toy, &["--disable-source", "toyy"], "did you mean `toy`?");
    let mut lonely = Toy::new("plain");
    lonely.extractor = Some(compile(&["-DEXTRACTOR", "-DSOURCES=\"[\\\"other\\\"]\""]));
    is_refused(
        &lonely,
        &[],
        "cannot use plugin `toyx`: it takes fields from events of sources that no loaded plugin has",
    );
    // It takes fields from all sources, but from events of system calls alone.
    let types = ["-DEXTRACTOR", "-DSOURCES=\"[]\"", "-DTYPES=2,3"];
    lonely.extractor = Some(compile(&types));
    is_refused(&lonely, &[], "fields of system calls are built in");
    lonely.extractor = Some(compile(&[&types[..2], &["-DTYPES=2,322"]].concat()));
    assert_eq!(lonely.run(&[]).code, 0);
}

#[test]
fn rules_that_ask_for_what_is_not_there_are_refused() {
    let with = |condition: &str| {
        let mut toy = Toy::new("plain");
        toy.rules = format!(
            "- rule: R\n  desc: d\n  condition: {condition}\n  output: o\n  priority: INFO\n  source: toy\n"
        );
        toy
    };
    is_refused(&with("proc.name = x"), &[], "no such field: `proc.name`");
    is_refused(&with("toy.numbr = 1"), &[], "did you mean `toy.number`?");
    is_refused(
        &with("toy.part = x"),
        &[],
        "cannot use `toy.part` without an argument",
    );
    let mut newer = Toy::new("plain");
    newer.rules = RULES.replace("version: 1.0.0", "version: 9.0.0");
    is_refused(&newer, &[], "toy >= 9.0.0");
}

#[test]
fn verbs_that_open_no_source_refuse_plugins() {
    let toy = Toy::new("plain");
    let mut command = Command::new(program());
    command
        .arg("run")
        .arg("-c")
        .arg(toy.config())
        .args(["--", "true"])
        .stdin(Stdio::null());
    let finished = Limited::start(&mut command, Duration::from_secs(20)).finish(b"");
    assert_eq!(finished.code(), 2, "{}", finished.stderr);
    assert!(
        finished
            .stderr
            .contains("cannot load plugin `toy` (load_plugins, plugins)"),
        "{}",
        finished.stderr
    );
}
