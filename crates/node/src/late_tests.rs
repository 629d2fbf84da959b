//! Answers that missed their deadline.

use kinds::annotations::FAIL_MODE;
use nri::message::{Container, LinuxSeccomp, PodSandbox};
use nri::{Answer, Event, Plugin};
use serde_json::json;

use crate::agent::Agent;
use crate::index::tests::pod;
use crate::late::CHECKED;
use crate::tests::{agent, container, filter_of, put_body, refusal, web};

/// An agent that has the policy `p`, with this fail mode, for the pod `web`.
fn agent_with(folder: &std::path::Path, mode: &str) -> Agent {
    let agent = agent(folder);
    let mut object = web();
    object["metadata"]["annotations"][FAIL_MODE] = json!(mode);
    agent.state().index.apply(&object).unwrap();
    put_body(&agent);
    agent
}

fn event(of: fn(Box<(PodSandbox, Container)>) -> Event, filter: Option<LinuxSeccomp>) -> Event {
    of(Box::new((pod("web", &[]), container(filter))))
}

fn counts(agent: &Agent) -> ([u64; 4], Vec<String>) {
    let state = agent.state().profiles().remove(0);
    let counts = [
        state.containers,
        state.enforced,
        state.late,
        state.unprotected,
    ];
    (counts, state.reasons)
}

#[test]
fn a_late_answer_refuses_unless_the_fail_mode_is_open_or_no_policy_is_for_the_container() {
    for (mode, is_open) in [("open", true), ("closed", false), ("Open", false)] {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent_with(folder.path(), mode);
        for of in [Event::CreateContainer, Event::StartContainer] {
            let answer = agent.too_late(&event(of, None));
            assert_eq!(answer == Answer::Accept, is_open, "{mode} {answer:?}");
            let other = Box::new((pod("other", &[]), container(None)));
            assert_eq!(agent.too_late(&of(other)), Answer::Accept);
        }
        // A mark whose policy is not known is decided by nobody.
        let mut marked = pod("other", &[]);
        let mark = format!("{}varmor-demo-x", kinds::annotations::OF_POLICY);
        marked.annotations.insert(mark, "target".to_owned());
        let marked = Event::CreateContainer(Box::new((marked, container(None))));
        assert!(refusal(agent.too_late(&marked)).contains("overloaded"));
    }
}

#[test]
fn a_late_answer_waits_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_with(folder.path(), "open");
    let held = agent.state();
    let begin = std::time::Instant::now();
    let text = refusal(agent.too_late(&event(Event::CreateContainer, None)));
    assert!(text.contains("overloaded"), "{text}");
    assert!(begin.elapsed() < std::time::Duration::from_millis(500));
    drop(held);
}

#[test]
fn a_container_that_was_created_without_an_answer_is_unprotected() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent_with(folder.path(), "open");
    let created = event(Event::CreateContainer, None);
    assert_eq!(agent.too_late(&created), Answer::Accept);
    // The handler ends later, and its filter is in nobody's hands.
    let answer = agent.handle(&created);
    agent.late(&created, answer);
    assert_eq!(
        agent.handle(&event(Event::StartContainer, None)),
        Answer::Accept
    );
    let (all, reasons) = counts(&agent);
    assert_eq!(all, [1, 0, 0, 1]);
    assert!(
        reasons[0].contains("was created without its policy"),
        "{reasons:?}"
    );
    let state = agent.state();
    assert_eq!((state.counters.opened, state.counters.too_late), (1, 1));
}

#[test]
fn a_container_whose_check_comes_after_its_start_is_late_if_it_is_confined_and_else_unprotected() {
    for is_confined in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent_with(folder.path(), "open");
        let filter = filter_of(agent.handle(&event(Event::CreateContainer, None)));
        let started = event(Event::StartContainer, is_confined.then_some(filter));
        assert_eq!(agent.too_late(&started), Answer::Accept);
        let (all, reasons) = counts(&agent);
        assert_eq!(all, [1, 0, 0, 1]);
        assert!(reasons[0].contains("too late to check"), "{reasons:?}");
        let answer = agent.handle(&started);
        agent.late(&started, answer);
        let (all, reasons) = counts(&agent);
        match is_confined {
            true => {
                assert_eq!((all, &*reasons), ([1, 0, 1, 0], &[CHECKED.to_owned()][..]));
                let records = agent.store.records().unwrap();
                assert!(records[0].1.is_late, "the next agent reports it, too");
            }
            false => assert_eq!(all, [1, 0, 0, 1]),
        }
        assert!(agent.state().is_changed);
        agent.handle(&event(Event::StopContainer, None));
        assert!(agent.state().opened_late.is_empty());
    }
}
