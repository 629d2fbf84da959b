#[path = "behavior_engine_tests.rs"]
mod engine;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use abi::Syscall;
use apiserver::Change;
use kinds::annotations::MODELING;
use kinds::{MAX_REASON, MAX_TEXT};
use nri::message::{Container, PodSandbox};
use nri::{Answer, Event, Plugin};
use serde_json::json;

use super::recorded::MAX_ITEMS;
use super::*;
use crate::agent::Agent;
use crate::index::tests::pod;
use crate::observe::{NOT_ENABLED, Observer};
use crate::profiles::take;
use crate::report;
use crate::run::Parts;
use crate::tests::{settings, web};

/// An engine that can be made to fail.
#[derive(Default)]
struct FakeEngine {
    fails: AtomicBool,
    is_running: AtomicBool,
    starts: Mutex<Vec<()>>,
}

impl BehaviorEngine for FakeEngine {
    fn start(&self) -> Result<(), String> {
        if self.fails.load(Ordering::Relaxed) {
            return Err("no eBPF here".to_owned());
        }
        self.is_running.store(true, Ordering::Relaxed);
        self.starts.lock().unwrap().push(());
        Ok(())
    }

    fn stop(&self) {
        self.is_running.store(false, Ordering::Relaxed);
    }

    fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }
}

fn key() -> ObjectKey {
    ObjectKey {
        namespace: "demo".to_owned(),
        name: "p".to_owned(),
    }
}

fn run(minutes: u64) -> ModelingRun {
    ModelingRun {
        start: now() - 60,
        minutes,
        is_over: false,
    }
}

/// An agent with an engine, which knows a profile with this run and is connected to a runtime.
struct Node {
    agent: Arc<Agent>,
    engine: Arc<FakeEngine>,
    behavior: Behavior,
}

impl Node {
    fn new(folder: &Path, run: ModelingRun) -> Self {
        let engine = Arc::new(FakeEngine::default());
        let behavior = Behavior {
            engine: Arc::clone(&engine) as _,
            recorder: Arc::default(),
        };
        let parts = Parts {
            behavior: Some(behavior.clone()),
            ..Parts::default()
        };
        let agent = Arc::new(Agent::new(settings(folder), parts, Arc::new(|_| ())).unwrap());
        let node = Self {
            agent,
            engine,
            behavior,
        };
        node.put(run);
        take(&node.agent, Change::Listed);
        node
    }

    /// Gives the profile another run.
    fn put(&self, run: ModelingRun) {
        let mut object = web();
        object["metadata"]["annotations"][MODELING] = json!(run.to_string());
        take(&self.agent, Change::Applied(object));
    }

    fn connect(&self, running: &[&str]) {
        let containers = running.iter().map(|id| Container {
            pod_sandbox_id: "s1".to_owned(),
            ..container(id)
        });
        self.agent.handle(&Event::Synchronize {
            pods: vec![sandbox()],
            containers: containers.collect(),
        });
    }

    fn ask(&self, event: fn(Box<(PodSandbox, Container)>) -> Event, id: &str) -> Answer {
        let both = (sandbox(), container(id));
        self.agent.handle(&event(Box::new(both)))
    }

    fn create(&self, id: &str) {
        assert_eq!(self.ask(Event::CreateContainer, id), Answer::Accept);
        assert_eq!(self.ask(Event::StartContainer, id), Answer::Accept);
    }

    fn report(&self) -> BehaviorReport {
        let status = report::status(&self.agent.state(), None, Vec::new(), "b");
        assert_eq!(status.behaviors.len(), 1);
        status.behaviors[0].clone()
    }
}

fn sandbox() -> PodSandbox {
    PodSandbox {
        id: "s1".to_owned(),
        ..pod("web", &[])
    }
}

fn container(id: &str) -> Container {
    Container {
        id: id.to_owned(),
        name: "app".to_owned(),
        ..Container::default()
    }
}

fn read(path: &str) -> WorkloadAction {
    WorkloadAction::Read(path.to_owned())
}

fn files(report: &BehaviorReport) -> Vec<&str> {
    let bpf = report.recorded.bpf.as_ref().expect("files are observed");
    bpf.files.iter().map(|file| file.path.as_str()).collect()
}

#[test]
fn a_container_runs_unconfined_and_what_it_does_from_its_first_program_on_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path(), run(10));
    node.connect(&["old"]);
    let mut observer = Observer::new(&node.behavior);
    observer.tick(&node.agent);
    assert!(node.engine.is_running());
    let recorder = &node.behavior.recorder;
    assert!(recorder.watches("old") && !recorder.watches("c1"));

    assert_eq!(node.ask(Event::CreateContainer, "c1"), Answer::Accept);
    assert!(recorder.watches("c1"), "before its first program");
    recorder.observe("c1", true, &[read("/of/the/runtime")]);
    assert_eq!(node.ask(Event::StartContainer, "c1"), Answer::Accept);
    recorder.observe("c1", false, &[read("/of/the/runtime")]);
    recorder.observe("c1", true, &[WorkloadAction::Execute("/bin/a".to_owned())]);
    recorder.observe(
        "c1",
        false,
        &[read("/etc/a"), WorkloadAction::Call(Syscall::BIND)],
    );
    recorder.observe("old", false, &[read("/etc/old")]);
    recorder.observe("of another policy", true, &[read("/etc/other")]);
    observer.tick(&node.agent);
    let report = node.report();
    assert_eq!(files(&report), ["/etc/a", "/etc/old"]);
    assert_eq!((report.containers, report.from_start), (2, 1));
    assert_eq!((report.name.as_str(), &*report.incomplete), ("p", &[][..]));
    let calls = report.recorded.seccomp.as_ref().unwrap();
    assert!(calls.syscalls.contains("bind"));
    let bpf = report.recorded.bpf.as_ref().unwrap();
    assert!(bpf.executions.contains("/bin/a"));
    assert!(
        bpf.capabilities.contains("sys_admin"),
        "which are used is not observed"
    );
    let [state] = &node.agent.state().profiles()[..] else {
        panic!("one profile is used");
    };
    assert_eq!(
        (
            state.containers,
            state.enforced,
            state.late,
            state.unprotected
        ),
        (2, 1, 1, 0)
    );
    assert_eq!(state.failure, None);

    node.ask(Event::StopContainer, "c1");
    recorder.observe("c1", false, &[read("/etc/last")]);
    assert!(
        files(&node.report()).contains(&"/etc/last"),
        "its last events come later"
    );
}

#[test]
fn the_end_of_a_run_ends_the_engine_and_the_operator_lets_the_report_go() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path(), run(10));
    node.connect(&[]);
    let mut observer = Observer::new(&node.behavior);
    observer.tick(&node.agent);
    node.create("c1");
    let recorder = &node.behavior.recorder;
    recorder.observe("c1", true, &[read("/a")]);
    observer.tick(&node.agent);
    assert!(node.report().until < run(10).end());
    // It is over: by a shorter duration.
    let over = ModelingRun {
        minutes: 1,
        ..run(10)
    };
    let start = node.report().run;
    node.put(ModelingRun { start, ..over });
    node.agent.state().is_changed = false;
    observer.tick(&node.agent);
    assert!(!node.engine.is_running() && node.agent.state().is_changed);
    let report = node.report();
    assert_eq!(report.until, start + 60, "observed until the end");
    recorder.observe("c1", false, &[read("/later")]);
    recorder.lost(3);
    assert_eq!(
        (files(&node.report()), node.report().incomplete),
        (vec!["/a"], Vec::new())
    );
    // A container that starts now runs, and is not observed.
    node.create("c2");
    assert!(!recorder.watches("c2"));
    node.put(ModelingRun {
        start,
        is_over: true,
        ..over
    });
    observer.tick(&node.agent);
    assert_eq!(
        report::status(&node.agent.state(), None, Vec::new(), "b").behaviors,
        []
    );
    let [state] = &node.agent.state().profiles()[..] else {
        panic!("one profile is used");
    };
    assert_eq!(
        (state.containers, state.enforced, &state.failure),
        (2, 2, &None)
    );
    assert!(
        !folder.path().join("behavior.json").exists()
            || node
                .agent
                .store
                .behavior()
                .is_some_and(|reports| reports.is_empty())
    );
}

#[test]
fn containers_that_run_before_their_policy_get_an_engine_that_asks_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let over = ModelingRun {
        is_over: true,
        ..run(10)
    };
    let node = Node::new(folder.path(), over);
    node.connect(&["old"]);
    let mut observer = Observer::new(&node.behavior);
    observer.tick(&node.agent);
    assert!(!node.engine.is_running(), "nothing is to be observed");
    node.put(run(10));
    observer.tick(&node.agent);
    observer.tick(&node.agent);
    assert_eq!(node.engine.starts.lock().unwrap().len(), 1);
    // One more, of which the agent hears by a list.
    node.connect(&["old", "older"]);
    observer.tick(&node.agent);
    assert_eq!(node.engine.starts.lock().unwrap().len(), 2);
    assert!(node.behavior.recorder.watches("older"));
    assert_eq!(node.report().containers, 2);
}

#[test]
fn the_next_agent_reports_what_the_one_before_has_seen() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(10);
    {
        let node = Node::new(folder.path(), run);
        node.connect(&[]);
        let mut observer = Observer::new(&node.behavior);
        observer.tick(&node.agent);
        node.create("c1");
        node.behavior.recorder.observe("c1", true, &[read("/a")]);
        node.behavior.recorder.lost(1);
        observer.reported = None;
        observer.tick(&node.agent);
    }
    let node = Node::new(folder.path(), run);
    node.connect(&["c1"]);
    let mut observer = Observer::new(&node.behavior);
    observer.tick(&node.agent);
    node.behavior.recorder.observe("c1", false, &[read("/b")]);
    let report = node.report();
    assert_eq!(files(&report), ["/a", "/b"]);
    assert_eq!((report.containers, report.from_start), (1, 1));
    assert_eq!(report.incomplete, ["the engine has lost events"]);
    // What belongs to another run is not taken for this one.
    let other = Node::new(
        folder.path(),
        ModelingRun {
            start: run.start + 1,
            ..run
        },
    );
    other.connect(&["c1"]);
    Observer::new(&other.behavior).tick(&other.agent);
    assert_eq!(other.report().incomplete, [] as [&str; 0]);
}

#[test]
fn a_report_says_that_what_the_agent_before_has_seen_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path(), run(10));
    std::fs::write(folder.path().join("behavior.json"), "[{").unwrap();
    node.connect(&[]);
    Observer::new(&node.behavior).tick(&node.agent);
    assert_eq!(
        node.report().incomplete,
        ["what the agent before this one has observed cannot be read"]
    );
}

#[test]
fn each_limit_is_said_in_the_report() {
    let recorder = Recorder::default();
    recorder.tick(now(), EngineState::Running, &BTreeMap::new());
    recorder.add("c1", &key(), run(10), true).unwrap();
    recorder.observe("c1", false, &[read(&format!("/{}", "a".repeat(MAX_TEXT)))]);
    recorder.unread("c1", "openat");
    recorder.trouble(&"x".repeat(5000));
    // Each in a folder of its own: many files of one folder become one name.
    let many = (0..=MAX_ITEMS).map(|number| read(&format!("/d{number}/f")));
    recorder.observe("c1", false, &Vec::from_iter(many));
    let [report] = &recorder.reports()[..] else {
        panic!("there is one");
    };
    assert_eq!(report.incomplete.len(), 4);
    assert!(
        report
            .incomplete
            .iter()
            .all(|reason| reason.len() <= MAX_REASON)
    );
    assert!(report.recorded.items().len() <= MAX_ITEMS + 64);
    assert_eq!(recorder.counts(), (1, 1));
    let changes = recorder.changes();
    recorder.observe("c1", false, &[read("/another")]);
    assert_eq!(recorder.changes(), changes, "nothing is recorded any more");

    let recorder = Recorder::default();
    for number in 0..MAX_PROFILES {
        let name = format!("p{number}");
        let key = ObjectKey { name, ..key() };
        let id = format!("c{number}");
        recorder.add(&id, &key, run(10), true).unwrap();
        let names = (0..100).map(|file| read(&format!("/{number}/{file}/{}", "a".repeat(1000))));
        recorder.observe(&id, false, &Vec::from_iter(names));
    }
    let error = recorder.add("more", &key(), run(10), true).unwrap_err();
    assert!(error.contains("at most 64 profiles"), "{error}");
    let reports = recorder.reports();
    let bytes = serde_json::to_vec(&reports).unwrap().len();
    assert!(bytes < MAX_REPORT + MAX_PROFILES * 2048, "{bytes}");
    let cut = reports
        .iter()
        .filter(|report| report.recorded == Recording::default());
    assert!(cut.clone().count() > 0);
    cut.for_each(|report| assert_eq!(report.incomplete.len(), 1, "{report:?}"));
}

#[test]
fn new_behaviour_is_reported_at_a_limited_rate() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path(), run(10));
    node.connect(&[]);
    let mut observer = Observer::new(&node.behavior);
    observer.tick(&node.agent);
    node.create("c1");
    observer.tick(&node.agent);
    let (sender, receiver) = mpsc::channel();
    for number in 0..20 {
        let action = read(&format!("/{number}"));
        node.behavior.recorder.observe("c1", true, &[action]);
        node.agent.state().is_changed = false;
        observer.tick(&node.agent);
        sender.send(node.agent.state().is_changed).unwrap();
    }
    drop(sender);
    let reports = receiver.iter().filter(|is_reported| *is_reported).count();
    assert!(reports <= 1, "{reports} reports in a moment");
}
