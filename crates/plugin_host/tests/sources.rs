//! The program with a plugin made for tests, without the rest of `tollgate`: what it sends becomes alerts of rules.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plugin::protocol::PluginSpec;
use plugin::{
    Catalogue, Incident, IncidentKind, Limits, Observer, PluginConfig, Source, SourceEvaluator,
};
use rules::{Alert, AlertSink, Engine, EngineOptions, Loader};

const RULES: &str = "\
- rule: Odd
  desc: an odd number
  condition: toy.odd = true and toy.list intersects (second, third) and toy.address = 10.0.0.3
  output: odd %toy.number of %evt.source by %evt.pluginname %evt.plugininfo %evt.type %evt.num %toy.part[a/b] %toy.list
  priority: WARNING
  source: toy
- rule: Wordless
  desc: a number without a word
  condition: not toy.word exists
  output: wordless %toy.number %toy.word
  priority: INFO
  source: toy
";

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Alert>>>);

impl AlertSink for Kept {
    fn emit(&self, alert: Alert) {
        self.0.lock().expect("nobody panics").push(alert);
    }
}

#[derive(Default)]
struct Incidents(Mutex<Vec<Incident>>);

impl Observer for Incidents {
    fn happened(&self, incident: Incident) {
        self.0.lock().expect("nobody panics").push(incident);
    }
}

fn library(folder: &Path, name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let library = folder.join(format!("lib{name}.so"));
    let compiled = Command::new("gcc")
        .args(["-O1", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o"])
        .args([&library, &fixtures.join(format!("{name}.c"))])
        .output()
        .expect("gcc is installed");
    let messages = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{messages}");
    library
}

/// A running source with what came of it.
struct Ran {
    source: Source,
    catalogue: Catalogue,
    alerts: Kept,
    incidents: Arc<Incidents>,
    _folder: tempfile::TempDir,
}

fn start(mode: &str) -> Ran {
    start_with(mode, 4)
}

fn start_with(mode: &str, events: u32) -> Ran {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let toy = toy(folder.path(), mode, events);
    started(folder, &[toy], RULES)
}

fn toy(folder: &Path, mode: &str, events: u32) -> PluginConfig {
    let spec = PluginSpec {
        name: "toy".to_owned(),
        library: library(folder, "toy_plugin").display().to_string(),
        init_config: format!("{{\"mode\":\"{mode}\"}}"),
        open_params: events.to_string(),
    };
    PluginConfig { spec }
}

fn started(folder: tempfile::TempDir, plugins: &[PluginConfig], rules: &str) -> Ran {
    let limits = Limits {
        program: env!("CARGO_BIN_EXE_tollgate-plugin-host").into(),
        deadline: Duration::from_secs(2),
        memory: None,
    };
    let catalogue = Catalogue::load(plugins, &limits).expect("they can be loaded");
    let alerts = Kept::default();
    let evaluator = evaluator(&catalogue, rules, &alerts);
    let plan = catalogue.plan("toy", &limits).expect("it is a source");
    let incidents = Arc::new(Incidents::default());
    let observer: Arc<dyn Observer> = Arc::clone(&incidents) as _;
    let source = Source::start(plan, evaluator, observer).expect("a thread can be started");
    Ran {
        source,
        catalogue,
        alerts,
        incidents,
        _folder: folder,
    }
}

fn evaluator(catalogue: &Catalogue, rules: &str, alerts: &Kept) -> SourceEvaluator {
    let (ruleset, problems) = Loader::new().with_source("toy").add("r", rules).finish();
    assert!(problems.is_empty(), "{problems:?}");
    let options = EngineOptions {
        source: catalogue.fields("toy").cloned(),
        ..EngineOptions::default()
    };
    let (engine, problems) = Engine::new(&ruleset, &options, Box::new(alerts.clone()));
    assert!(problems.is_empty(), "{problems:?}");
    SourceEvaluator::new(catalogue, "toy", Arc::new(engine), "box").expect("it is a source")
}

impl Ran {
    fn messages(&self) -> Vec<String> {
        let alerts = self.alerts.0.lock().expect("nobody panics");
        alerts.iter().map(|alert| alert.message.clone()).collect()
    }

    /// Waits until so many rules have fired.
    fn wait_for(&self, alerts: usize) {
        let until = Instant::now() + Duration::from_secs(60);
        while self.messages().len() < alerts {
            assert!(Instant::now() < until, "{:?}", self.messages());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the source has failed twice, or ended, and returns the causes of the failures.
    fn failures(&self) -> Vec<String> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let incidents = self.incidents.0.lock().expect("nobody panics").clone();
            let failed = incidents
                .iter()
                .filter(|incident| incident.kind == IncidentKind::Restarting);
            let failed: Vec<_> = failed.map(|incident| incident.message.clone()).collect();
            let has_ended = incidents
                .iter()
                .any(|incident| incident.kind == IncidentKind::Ended);
            if has_ended || failed.len() >= 2 {
                return failed;
            }
            assert!(Instant::now() < until, "nothing happens: {incidents:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn events_of_a_plugin_become_alerts_with_the_values_that_rules_ask_for() {
    let ran = start("plain");
    assert_eq!(ran.failures(), Vec::<String>::new());
    assert_eq!(
        ran.messages(),
        [
            "wordless 2 <NA>",
            "odd 3 of toy by toy event 3 pluginevent 3 a/b (first,second)",
            "wordless 4 <NA>"
        ]
    );
    let alerts = ran.alerts.0.lock().expect("nobody panics").clone();
    assert_eq!(&*alerts[1].source, "toy");
    assert_eq!(alerts[1].time_ns, 1_700_000_000_000_000_003);
    assert_eq!(alerts[1].details.process, None);
    let totals = ran.source.counters().totals();
    assert_eq!(
        (totals.events, totals.restarts, totals.undecided),
        (4, 0, 0)
    );
    assert!(ran.source.has_ended());
}

#[test]
fn a_plugin_that_fails_is_started_again_and_costs_only_its_source() {
    for (mode, cause) in [
        ("crash", "the process of the plugin ended: signal: 11"),
        ("hang", "the plugin did not answer within 2000 ms"),
        ("length", "it returns an event of 4294967295 bytes"),
        (
            "shorter",
            "it returns an event of 54 bytes whose parameters have 4 and 1048576",
        ),
        ("execute", "it returns an event of 0 bytes"),
    ] {
        let ran = start(mode);
        let failures = ran.failures();
        let is_cause = |failure: &String| failure.starts_with(cause);
        assert!(
            failures.len() >= 2 && failures.iter().all(is_cause),
            "{mode}: {failures:?}"
        );
        let messages = ran.messages();
        let is_second = |text: &String| text == "wordless 2 <NA>";
        assert!(
            !messages.is_empty() && messages.iter().all(is_second),
            "{mode}: {messages:?}"
        );
        let totals = ran.source.counters().totals();
        let counted = match mode {
            "crash" => totals.crashes,
            "hang" => totals.hangs,
            _ => totals.failures,
        };
        assert!(
            counted >= 2 && totals.restarts == counted,
            "{mode}: {totals:?}"
        );
    }
}

/// The plugin returns all events at once, and then takes 300 ms for each. The deadline is 2 s.
#[test]
fn a_slow_plugin_is_not_taken_for_one_that_hangs() {
    let ran = start_with("slow", 10);
    assert_eq!(ran.failures(), Vec::<String>::new());
    let totals = ran.source.counters().totals();
    assert_eq!((totals.events, totals.restarts), (10, 0));
}

#[test]
fn more_values_than_a_list_may_have_are_unknown_and_end_no_source() {
    let ran = start("many");
    assert_eq!(ran.failures(), Vec::<String>::new());
    let totals = ran.source.counters().totals();
    assert_eq!((totals.events, totals.restarts), (4, 0));
    assert!(totals.undecided > 0, "{totals:?}");
}

#[test]
fn a_source_that_hangs_can_be_stopped_at_once() {
    let ran = start("hang");
    let until = Instant::now() + Duration::from_secs(30);
    while ran.messages().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let stopped = Instant::now();
    ran.source.stop();
    assert!(
        stopped.elapsed() < Duration::from_millis(1500),
        "{:?}",
        stopped.elapsed()
    );
    assert_eq!(ran.source.counters().totals().hangs, 0);
}

/// The plugin that adds events adds its last one when it stops.
#[test]
fn rules_that_ask_for_other_fields_lose_no_event_that_the_source_has_taken() {
    let added = |name: &str, output: &str| {
        format!(
            "- rule: {name}\n  desc: d\n  condition: evt.type = ping\n  output: {output}\n  priority: INFO\n  source: toy\n"
        )
    };
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let adding = PluginSpec {
        name: "toyasync".to_owned(),
        library: library(folder.path(), "async_plugin").display().to_string(),
        init_config: format!("first {}", folder.path().join("answers").display()),
        open_params: String::new(),
    };
    let plugins = [toy(folder.path(), "stay", 2), PluginConfig { spec: adding }];
    let ran = started(folder, &plugins, &added("Former", "former"));
    ran.wait_for(2);
    let later = added("Later", "later %toy.number");
    ran.source
        .replace(evaluator(&ran.catalogue, &later, &ran.alerts));
    ran.wait_for(5);
    assert_eq!(
        ran.messages(),
        ["former", "former", "former", "later <NA>", "later <NA>"]
    );
    let totals = ran.source.counters().totals();
    assert_eq!((totals.restarts, totals.async_lost), (0, 0), "{totals:?}");
}
