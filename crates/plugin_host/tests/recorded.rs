//! Events of a capture with a process that sends what it should not, as one may that a crafted event has taken over.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use plugin::protocol::{
    self, Capabilities, Description, FieldValue, Missed, PluginSpec, Record, RecordedEvent, Reply,
};
use plugin::{
    Catalogue, Limits, PluginConfig, RecordedCounts, RecordedSources, SourceEvaluator, SourcePlan,
};
use rules::{Alert, AlertSink, Engine, EngineOptions, Loader};

const RULES: &str = "\
- rule: Each
  desc: each event
  condition: evt.num > 0
  output: each
  priority: INFO
  source: toy
";

struct Nowhere;

impl AlertSink for Nowhere {
    fn emit(&self, _alert: Alert) {}
}

fn description() -> Description {
    Description {
        name: "toy".to_owned(),
        description: String::new(),
        contact: String::new(),
        version: "1.0.0".to_owned(),
        required_api: "3.0.0".to_owned(),
        capabilities: Capabilities {
            sourcing: true,
            async_events: true,
            ..Capabilities::default()
        },
        id: 999,
        source: "toy".to_owned(),
        extracts_from: Vec::new(),
        fields: Vec::new(),
        schema: String::new(),
        parses_from: Vec::new(),
        parses_system_calls: false,
        adds_to: Vec::new(),
        async_events: vec!["ping".to_owned()],
    }
}

fn frames(replies: &[Reply]) -> Vec<u8> {
    let mut frames = Vec::new();
    for reply in replies {
        protocol::write(&mut frames, reply).expect("it is short");
    }
    frames
}

/// Returns a program that loads and opens as it should, and then sends the same again and again, whatever it is asked for.
fn host(folder: &Path, again: &Reply) -> PathBuf {
    let opened = frames(&[Reply::Loaded(vec![description()]), Reply::Opened]);
    std::fs::write(folder.join("opened"), opened).expect("it is writable");
    let again = frames(&vec![again.clone(); 64]);
    std::fs::write(folder.join("again"), again).expect("it is writable");
    let host = folder.join("host");
    // Its standard input is the socket to the program that evaluates rules.
    let folder = folder.display();
    let script = format!(
        "#!/bin/sh\nexec >&0\ncat {folder}/opened\nwhile cat {folder}/again 2>/dev/null; do :; done\n"
    );
    std::fs::write(&host, script).expect("it is writable");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&host, mode).expect("it is ours");
    host
}

/// Returns what a process loads that answers with `again`.
fn loaded(folder: &Path, again: &Reply) -> (SourceEvaluator, SourcePlan) {
    let limits = Limits {
        program: host(folder, again),
        deadline: Duration::from_secs(5),
        memory: None,
    };
    let spec = PluginSpec {
        name: "toy".to_owned(),
        library: "/nonexistent".to_owned(),
        init_config: String::new(),
        open_params: String::new(),
    };
    let catalogue = Catalogue::load(&[PluginConfig { spec }], &limits).expect("it says what it is");
    let (ruleset, problems) = Loader::new().with_source("toy").add("r", RULES).finish();
    assert!(problems.is_empty(), "{problems:?}");
    let options = EngineOptions {
        source: catalogue.fields("toy").cloned(),
        ..EngineOptions::default()
    };
    let (engine, problems) = Engine::new(&ruleset, &options, Box::new(Nowhere));
    assert!(problems.is_empty(), "{problems:?}");
    let evaluator =
        SourceEvaluator::new(&catalogue, "toy", Arc::new(engine), "box").expect("it is a source");
    let plan = catalogue.plan("toy", &limits).expect("it is a source");
    (evaluator, plan)
}

#[test]
fn an_asynchronous_event_that_no_plugin_announces_is_a_wrong_message() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let (evaluator, _) = loaded(folder.path(), &Reply::Idle);
    let named = |name: Option<&str>| Record {
        time_ns: 1,
        info: FieldValue::Absent,
        asynchronous: name.map(str::to_owned),
        values: Vec::new(),
        data: None,
    };
    evaluator.check(&named(None)).expect("it is of the source");
    evaluator
        .check(&named(Some("ping")))
        .expect("it is announced");
    let error = evaluator
        .check(&named(Some("pong\n")))
        .expect_err("it is not");
    let error = error.to_string();
    assert!(
        error.contains("`pong\\n`, which no plugin announces"),
        "{error}"
    );
}

/// Shows three events to a process that answers each with `again`, and returns what happened to them.
fn shown(again: &Reply) -> RecordedCounts {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let (evaluator, plan) = loaded(folder.path(), again);
    let (done, counts) = mpsc::channel();
    // In a thread of its own, because a failing test would not end.
    std::thread::spawn(move || {
        let mut sources = RecordedSources::default();
        sources.add(plan, evaluator);
        for number in 1..=3 {
            sources.take(
                999,
                RecordedEvent {
                    number,
                    time_ns: number,
                    asynchronous: None,
                    data: b"x".to_vec(),
                },
            );
        }
        sources.flush();
        let counts = sources.counts().map(|(_, counts)| counts.clone()).next();
        let _ = done.send(counts.expect("there is one source"));
    });
    let counts = counts.recv_timeout(Duration::from_secs(30));
    counts.expect("the process is given up")
}

#[test]
fn a_process_that_sends_more_than_it_can_have_is_given_up() {
    let with_data = Record {
        time_ns: 1,
        info: FieldValue::Absent,
        asynchronous: None,
        values: Vec::new(),
        data: Some(b"x".to_vec()),
    };
    let records = "other records than those of its events";
    for (again, expected) in [
        (Reply::Unparsed(1), records),
        (Reply::Unparsed(0), records),
        (Reply::Unparsed(u64::MAX), records),
        (Reply::Missed(Missed::default()), records),
        (Reply::Idle, records),
        (Reply::Batch(vec![with_data]), "which were not asked for"),
    ] {
        let counts = shown(&again);
        assert_eq!(counts.lost, 3, "{again:?}: {counts:?}");
        // The three together, and then each alone.
        assert_eq!(counts.totals.garbage, 4, "{again:?}: {counts:?}");
        let cause = counts.cause.expect("a loss has a cause");
        assert!(cause.contains(expected), "{again:?}: {cause}");
    }
}
