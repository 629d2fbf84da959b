//! An engine that does not start, starts late or goes on.

use super::*;

#[test]
fn an_engine_that_goes_on_has_a_look_more_for_the_last_events_of_a_run() {
    let recorder = Recorder::default();
    let run = run(2);
    let runs = BTreeMap::from([(key(), run)]);
    recorder.tick(now(), EngineState::Running, &runs);
    recorder.add("c1", &key(), run, false).unwrap();
    recorder.start("c1");
    recorder.tick(run.end(), EngineState::Running, &runs);
    recorder.observe("c1", true, &[read("/a")]);
    let report = recorder.reports().remove(0);
    assert!(report.until < run.end());
    assert_eq!(files(&report), ["/a"]);
    recorder.tick(run.end() + 1, EngineState::Running, &runs);
    recorder.observe("c1", false, &[read("/later")]);
    let report = recorder.reports().remove(0);
    assert_eq!((report.until, files(&report)), (run.end(), vec!["/a"]));
}

#[test]
fn an_engine_that_does_not_work_is_a_failure_of_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path(), run(10));
    node.engine.fails.store(true, Ordering::Relaxed);
    node.connect(&["old"]);
    let mut observer = Observer::new(&node.behavior);
    observer.tick(&node.agent);
    let failure = |agent: &Agent| agent.state().profiles()[0].failure.clone();
    assert_eq!(failure(&node.agent).as_deref(), Some("no eBPF here"));
    node.create("c1");
    assert_eq!(node.report().from_start, 0);
    // It is tried again later, and not each second.
    node.engine.fails.store(false, Ordering::Relaxed);
    observer.tick(&node.agent);
    assert!(!node.engine.is_running());

    let folder = tempfile::tempdir().unwrap();
    let agent = crate::tests::agent(folder.path());
    let mut object = web();
    object["metadata"]["annotations"][MODELING] = json!(run(10).to_string());
    take(&agent, Change::Applied(object));
    take(&agent, Change::Listed);
    let both = || Box::new((sandbox(), container("c1")));
    assert_eq!(
        agent.handle(&Event::CreateContainer(both())),
        Answer::Accept
    );
    assert_eq!(agent.handle(&Event::StartContainer(both())), Answer::Accept);
    assert_eq!(failure(&agent).as_deref(), Some(NOT_ENABLED));
}

#[test]
fn a_container_that_starts_before_the_engine_is_observed_from_the_engines_start_on() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path(), run(10));
    node.connect(&[]);
    node.engine.fails.store(true, Ordering::Relaxed);
    let mut observer = Observer::new(&node.behavior);
    observer.tick(&node.agent);
    node.create("c1");
    node.engine.fails.store(false, Ordering::Relaxed);
    observer.retry = None;
    observer.tick(&node.agent);
    // It starts no further program.
    node.behavior.recorder.observe("c1", false, &[read("/a")]);
    let report = node.report();
    assert_eq!(files(&report), ["/a"]);
    assert_eq!((report.containers, report.from_start), (1, 0));
}

#[test]
fn a_node_whose_first_container_begins_after_the_end_says_that_it_saw_none() {
    let folder = tempfile::tempdir().unwrap();
    let over = ModelingRun {
        start: now() - 120,
        ..run(1)
    };
    let node = Node::new(folder.path(), over);
    node.connect(&[]);
    node.create("late");
    let report = node.report();
    assert_eq!((report.containers, report.until), (0, over.end()));
    assert_eq!((report.run, report.incomplete), (over.start, Vec::new()));
    // One that ran before the agent came may have run before the end.
    let other = tempfile::tempdir().unwrap();
    let node = Node::new(other.path(), over);
    node.connect(&["c1"]);
    Observer::new(&node.behavior).tick(&node.agent);
    assert_eq!(
        report::status(&node.agent.state(), None, Vec::new(), "b").behaviors,
        []
    );
}

#[test]
fn an_engine_that_fails_for_new_containers_leaves_other_profiles_as_they_are() {
    let recorder = Recorder::default();
    let run = run(10);
    let other = ObjectKey {
        name: "other".to_owned(),
        ..key()
    };
    recorder.add("c1", &key(), run, false).unwrap();
    recorder.add("c2", &other, run, true).unwrap();
    recorder.lack_of(&BTreeSet::from([other.clone()]), "no engine");
    let incomplete = recorder
        .reports()
        .into_iter()
        .map(|report| (report.key(), report.incomplete));
    let incomplete: BTreeMap<_, _> = incomplete.collect();
    assert_eq!(incomplete[&key()], Vec::<String>::new());
    assert_eq!(incomplete[&other], ["no engine"]);
}

#[test]
fn a_container_that_no_engine_has_seen_is_not_observed_from_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path(), run(10));
    node.connect(&[]);
    let mut observer = Observer::new(&node.behavior);
    observer.tick(&node.agent);
    node.create("c1");
    assert_eq!(node.report().from_start, 0);
    node.behavior.recorder.observe("c1", true, &[read("/a")]);
    assert_eq!(node.report().from_start, 1);
}

#[test]
fn an_engine_that_cannot_be_replaced_is_tried_again_and_the_report_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path(), run(10));
    node.connect(&[]);
    let mut observer = Observer::new(&node.behavior);
    observer.tick(&node.agent);
    node.engine.fails.store(true, Ordering::Relaxed);
    node.connect(&["c1"]);
    observer.tick(&node.agent);
    assert_eq!(
        node.report().incomplete,
        ["the engine could not be started: no eBPF here"]
    );
    node.engine.fails.store(false, Ordering::Relaxed);
    observer.retry = None;
    let before = node.engine.starts.lock().unwrap().len();
    observer.tick(&node.agent);
    observer.tick(&node.agent);
    assert_eq!(node.engine.starts.lock().unwrap().len(), before + 1);
}
