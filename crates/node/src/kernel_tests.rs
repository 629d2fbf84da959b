//! Containers that the kernel confines, with a kernel of the test's.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use apiserver::Change;
use kinds::annotations::FAIL_MODE;
use nri::message::{Container, PodSandbox};
use nri::{Answer, Event, Plugin};
use policy::{EnforcerKind, Enforcers, Policy};
use serde_json::json;

use crate::agent::Agent;
use crate::index::tests::pod;
use crate::kernel::{KernelContainer, KernelEnforcer, KernelViolations, TakeViolation};
use crate::profiles::take;
use crate::run::Parts;
use crate::tests::{body, key, of_policy, settings};

/// Takes note of what it is asked to do.
#[derive(Default)]
struct Noting {
    lack: Option<&'static str>,
    failure: Option<&'static str>,
    confined: Mutex<Vec<(Enforcers, i32)>>,
    prepared: Mutex<Vec<String>>,
    has_other_version: bool,
    refuses_changes: Option<&'static str>,
    build: &'static str,
    /// Whose policies were changed, and the numbers of their rules.
    changed: Mutex<Vec<(String, usize)>>,
}

impl KernelEnforcer for Noting {
    fn build(&self) -> &str {
        self.build
    }

    fn enforcers(&self) -> Enforcers {
        Enforcers::default().with(EnforcerKind::Bpf)
    }

    fn lacks(&self, _policy: &Policy) -> Vec<String> {
        self.lack.iter().map(|lack| (*lack).to_owned()).collect()
    }

    fn prepare(&self, policy: &Policy) -> Result<(), String> {
        self.prepared
            .lock()
            .unwrap()
            .push(policy.enforcers.joined());
        Ok(())
    }

    fn confine(&self, _owner: &str, policy: &Policy, pid: i32) -> Result<KernelContainer, String> {
        if let Some(failure) = self.failure {
            return Err(failure.to_owned());
        }
        let confined = (policy.enforcers, pid);
        let mut all = self.confined.lock().unwrap();
        all.push(confined);
        Ok(KernelContainer {
            number: u32::try_from(all.len()).unwrap(),
            is_current: !self.has_other_version,
        })
    }

    fn change(&self, owner: &str, policy: &Policy) -> Result<(), String> {
        if let Some(failure) = self.refuses_changes {
            return Err(failure.to_owned());
        }
        let changed = (owner.to_owned(), policy.rules.len());
        self.changed.lock().unwrap().push(changed);
        Ok(())
    }

    fn remove_ended(&self) -> Result<(), String> {
        Ok(())
    }

    fn violations(
        &self,
        _take: TakeViolation,
    ) -> Result<Option<Box<dyn KernelViolations>>, String> {
        Ok(None)
    }
}

/// A policy for these enforcers with a rule that BPF alone carries as a whole.
fn policy(enforcer: &str) -> String {
    format!(
        r#"{{"policy": {{"enforcer": "{enforcer}", "mode": "EnhanceProtect", "enhanceProtect": {{"privileged": true,
            "bpfRawRules": {{"files": [{{"pattern": "/etc/secret", "permissions": ["read"], "qualifiers": ["deny"]}}]}}
        }}}}}}"#
    )
}

/// Gives an agent the current version of the policy.
fn take_policy(agent: &Agent, policy: &str, fail_mode: &str) {
    let mut object = of_policy(policy);
    object["metadata"]["annotations"][FAIL_MODE] = json!(fail_mode);
    take(agent, Change::Applied(object));
    take(agent, Change::Listed);
    agent.state().take_body(&key("p"), body(policy));
}

fn agent(folder: &Path, kernel: &Arc<Noting>, policy: &str, fail_mode: &str) -> Agent {
    let parts = Parts {
        kernel: Some(Arc::clone(kernel) as Arc<dyn KernelEnforcer>),
        ..Parts::default()
    };
    let agent = Agent::new(settings(folder), parts, Arc::new(|_| ())).unwrap();
    take_policy(&agent, policy, fail_mode);
    agent
}

fn ask(agent: &Agent, event: fn(Box<(PodSandbox, Container)>) -> Event, pid: u32) -> Answer {
    let container = Container {
        id: "c1".to_owned(),
        name: "app".to_owned(),
        pid,
        ..Container::default()
    };
    agent.handle(&event(Box::new((pod("web", &[]), container))))
}

#[test]
fn the_kernel_gets_the_process_before_its_program_begins() {
    let bpf = Enforcers::default().with(EnforcerKind::Bpf);
    let both = bpf.with(EnforcerKind::Seccomp);
    for (enforcer, enforcers) in [("BPF", bpf), ("BPFSeccomp", both)] {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Arc::new(Noting::default());
        let agent = agent(folder.path(), &kernel, &policy(enforcer), "closed");
        let created = ask(&agent, Event::CreateContainer, 0);
        let Answer::Adjust(adjustment) = created else {
            panic!("{enforcer}: {created:?}");
        };
        assert_eq!(adjustment.linux, None, "{enforcer}");
        assert!(kernel.confined.lock().unwrap().is_empty());
        assert_eq!(ask(&agent, Event::StartContainer, 77), Answer::Accept);
        let confined = kernel.confined.lock().unwrap().clone();
        assert_eq!(confined, [(enforcers, 77)]);
        let [state] = &agent.state().profiles()[..] else {
            panic!("one profile is used");
        };
        assert_eq!((state.containers, state.enforced), (1, 1), "{enforcer}");
    }
}

#[test]
fn what_the_kernel_cannot_do_is_decided_by_the_fail_mode() {
    for (lack, failure, pid) in [
        (Some("no hook x"), None, 77),
        (None, Some("no memory"), 77),
        (None, None, 0),
    ] {
        for is_open in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let kernel = Arc::new(Noting {
                lack,
                failure,
                ..Noting::default()
            });
            let mode = if is_open { "open" } else { "closed" };
            let agent = agent(folder.path(), &kernel, &policy("BPF"), mode);
            let created = ask(&agent, Event::CreateContainer, 0);
            let is_refused = matches!(created, Answer::Refuse(_))
                || matches!(ask(&agent, Event::StartContainer, pid), Answer::Refuse(_));
            assert_eq!(is_refused, !is_open, "{lack:?} {failure:?} {pid}");
            let enforced: u64 = agent
                .state()
                .profiles()
                .iter()
                .map(|one| one.enforced)
                .sum();
            assert_eq!(enforced, 0, "{lack:?} {failure:?} {pid}");
            let state = agent.state();
            assert_eq!(
                state.counters.opened,
                u64::from(is_open),
                "{lack:?} {failure:?} {pid}"
            );
            if is_open {
                let reasons = state.profiles()[0].reasons.join("; ");
                // The runtime of the test takes no filter in its place.
                let filter = lack.map(|_lack| "has not taken the seccomp filter");
                let cause = filter
                    .or(failure)
                    .unwrap_or("has not named its first process");
                assert!(reasons.contains(cause), "{reasons}");
            }
            // What it lacks is not asked of it.
            assert!(lack.is_none() || kernel.confined.lock().unwrap().is_empty());
        }
    }
}

#[test]
fn an_agent_without_the_enforcer_says_what_is_not_enforced() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::new(settings(folder.path()), Parts::default(), Arc::new(|_| ())).unwrap();
    take_policy(&agent, &policy("BPF"), "closed");
    let Answer::Refuse(text) = ask(&agent, Event::CreateContainer, 0) else {
        panic!("it is not enforced");
    };
    assert!(text.contains("needs BPF"), "{text}");
}

#[test]
fn the_kernel_is_prepared_before_a_container_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = Arc::new(Noting::default());
    let agent = agent(folder.path(), &kernel, &policy("BPF"), "closed");
    agent.prepare_known();
    assert_eq!(*kernel.prepared.lock().unwrap(), ["BPF"]);
    // A policy of which the kernel has no part.
    take_policy(&agent, &policy("Seccomp"), "closed");
    agent.prepare_known();
    assert_eq!(kernel.prepared.lock().unwrap().len(), 1);
}

#[test]
fn a_container_that_has_begun_before_the_kernel_had_its_policy_is_unprotected() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = Arc::new(Noting::default());
    let agent = agent(folder.path(), &kernel, &policy("BPF"), "open");
    ask(&agent, Event::CreateContainer, 0);
    let container = Container {
        id: "c1".to_owned(),
        name: "app".to_owned(),
        pid: 77,
        ..Container::default()
    };
    let event = Event::StartContainer(Box::new((pod("web", &[]), container)));
    assert_eq!(agent.too_late(&event), Answer::Accept);
    let answer = agent.handle(&event);
    agent.late(&event, answer);
    let state = agent.state().profiles().remove(0);
    assert_eq!(
        (state.enforced, state.late, state.unprotected),
        (0, 0, 1),
        "{:?}",
        state.reasons
    );
}

#[test]
fn a_runtime_whose_programs_may_run_in_a_sandbox_is_none_that_the_kernel_confines() {
    for (handler, is_confined) in [("", true), ("crun", true), ("gvisor", false)] {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Arc::new(Noting::default());
        let agent = agent(folder.path(), &kernel, &policy("BPF"), "closed");
        let mut pod = pod("web", &[]);
        pod.runtime_handler = handler.to_owned();
        let container = Container {
            id: "c1".to_owned(),
            name: "app".to_owned(),
            ..Container::default()
        };
        let answer = agent.handle(&Event::CreateContainer(Box::new((pod, container))));
        assert_eq!(
            matches!(answer, Answer::Adjust(_)),
            is_confined,
            "{answer:?}"
        );
    }
}

/// A policy with a rule more.
fn longer(enforcer: &str) -> String {
    let rule = r#"{"pattern": "/etc/other", "permissions": ["read"], "qualifiers": ["deny"]}"#;
    policy(enforcer).replacen("\"files\": [", &format!("\"files\": [{rule}, "), 1)
}

fn kernel_thread(agent: Agent) -> Arc<Agent> {
    let agent = Arc::new(agent);
    let own = Arc::clone(&agent);
    std::thread::spawn(move || own.keep_current());
    agent
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_true() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_changed_policy_is_brought_to_running_containers_and_reported_then() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = Arc::new(Noting::default());
    let agent = kernel_thread(agent(folder.path(), &kernel, &policy("BPF"), "closed"));
    ask(&agent, Event::CreateContainer, 0);
    ask(&agent, Event::StartContainer, 77);
    let is_enforced = |agent: &Agent| agent.state().profiles()[0].enforced == 1;
    assert!(is_enforced(&agent));
    assert!(kernel.changed.lock().unwrap().is_empty());
    take_policy(&agent, &longer("BPF"), "closed");
    agent.wake();
    wait_until("it is enforced", || is_enforced(&agent));
    let changed = kernel.changed.lock().unwrap().clone();
    assert_eq!(changed, [("demo/p".to_owned(), 2)]);
    // The next agent knows which version the kernel has.
    wait_until("it is written", || {
        let next = Agent::new(settings(folder.path()), Parts::default(), Arc::new(|_| ())).unwrap();
        let hash = next.state().records["c1"].hash.clone();
        hash == kinds::policy_hash(&longer("BPF"))
    });
}

#[test]
fn a_change_that_the_kernel_refuses_is_reported_as_the_earlier_version() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = Arc::new(Noting {
        refuses_changes: Some("no memory"),
        ..Noting::default()
    });
    let agent = kernel_thread(agent(folder.path(), &kernel, &policy("BPF"), "closed"));
    ask(&agent, Event::CreateContainer, 0);
    ask(&agent, Event::StartContainer, 77);
    take_policy(&agent, &longer("BPF"), "closed");
    agent.wake();
    let reasons = |agent: &Agent| agent.state().profiles()[0].reasons.join("; ");
    wait_until("it says why", || reasons(&agent).contains("no memory"));
    assert!(reasons(&agent).contains("earlier version"));
    assert_eq!(agent.state().profiles()[0].unprotected, 1);
}

#[test]
fn a_container_that_waits_for_its_start_is_late_until_the_runtime_asks() {
    for is_asked in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Arc::new(Noting::default());
        let agent = agent(folder.path(), &kernel, &policy("BPF"), "closed");
        let mut pod = pod("web", &[]);
        pod.id = "s1".to_owned();
        let container = Container {
            id: "c1".to_owned(),
            name: "app".to_owned(),
            pod_sandbox_id: "s1".to_owned(),
            state: 1,
            pid: 77,
            ..Container::default()
        };
        agent.handle(&Event::Synchronize {
            pods: vec![pod.clone()],
            containers: vec![container.clone()],
        });
        assert_eq!(kernel.confined.lock().unwrap().len(), 1);
        if is_asked {
            let start = Event::StartContainer(Box::new((pod, container)));
            assert_eq!(agent.handle(&start), Answer::Accept);
        }
        let state = agent.state().profiles().remove(0);
        let expected = if is_asked { (1, 0) } else { (0, 1) };
        assert_eq!((state.enforced, state.late), expected, "{state:?}");
        // It is confined once.
        assert_eq!(kernel.confined.lock().unwrap().len(), 1);
    }
}

#[test]
fn a_container_that_was_confined_with_another_version_counts_when_the_kernel_has_the_current_one() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = Arc::new(Noting {
        has_other_version: true,
        ..Noting::default()
    });
    let agent = agent(folder.path(), &kernel, &policy("BPF"), "closed");
    ask(&agent, Event::CreateContainer, 0);
    ask(&agent, Event::StartContainer, 77);
    assert_eq!(agent.state().profiles()[0].enforced, 0);
    let agent = kernel_thread(agent);
    wait_until("it is enforced", || {
        agent.state().profiles()[0].enforced == 1
    });
    assert_eq!(kernel.changed.lock().unwrap().len(), 1);
}

#[test]
fn a_container_that_starts_with_an_earlier_version_is_changed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = Arc::new(Noting::default());
    let agent = kernel_thread(agent(folder.path(), &kernel, &policy("BPF"), "closed"));
    ask(&agent, Event::CreateContainer, 0);
    take_policy(&agent, &longer("BPF"), "closed");
    // The thread waits for ten seconds from here on, if nothing wakes it.
    agent.wake();
    std::thread::sleep(Duration::from_millis(200));
    let begin = Instant::now();
    ask(&agent, Event::StartContainer, 77);
    wait_until("it is changed", || {
        !kernel.changed.lock().unwrap().is_empty()
    });
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn the_next_agent_has_the_kernel_change_what_the_one_before_may_not_have() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = Arc::new(Noting::default());
    let before = agent(folder.path(), &kernel, &policy("BPF"), "closed");
    ask(&before, Event::CreateContainer, 0);
    ask(&before, Event::StartContainer, 77);
    drop(before);
    let agent = kernel_thread(agent(folder.path(), &kernel, &policy("BPF"), "closed"));
    synchronize(&agent);
    wait_until("it is changed", || {
        !kernel.changed.lock().unwrap().is_empty()
    });
    assert_eq!(*kernel.changed.lock().unwrap(), [("demo/p".to_owned(), 1)]);
    assert_eq!(agent.state().profiles()[0].enforced, 1);
}

/// Tells an agent that the container runs.
fn synchronize(agent: &Agent) {
    let mut pod = pod("web", &[]);
    pod.id = "s1".to_owned();
    let container = Container {
        id: "c1".to_owned(),
        name: "app".to_owned(),
        pod_sandbox_id: "s1".to_owned(),
        state: 2,
        pid: 77,
        ..Container::default()
    };
    agent.handle(&Event::Synchronize {
        pods: vec![pod],
        containers: vec![container],
    });
}

#[test]
fn what_another_version_of_the_agent_has_confined_is_not_counted_as_changed() {
    let folder = tempfile::tempdir().unwrap();
    let first = Arc::new(Noting::default());
    let before = agent(folder.path(), &first, &policy("BPF"), "closed");
    ask(&before, Event::CreateContainer, 0);
    ask(&before, Event::StartContainer, 77);
    assert_eq!(before.state().numbers.len(), 1);
    drop(before);
    let kernel = Arc::new(Noting {
        build: "next",
        ..Noting::default()
    });
    let agent = agent(folder.path(), &kernel, &policy("BPF"), "closed");
    synchronize(&agent);
    let state = || agent.state().profiles().remove(0);
    let says = || {
        state()
            .reasons
            .join("; ")
            .contains("another version of the agent")
    };
    // It has the current policy.
    assert!(state().enforced == 1 && says(), "{:?}", state());
    // The number may be that of another container in this version.
    assert!(agent.state().numbers.is_empty());
    assert!(agent.state().outdated().is_empty());
    take_policy(&agent, &longer("BPF"), "closed");
    assert!(agent.state().outdated().is_empty());
    let (enforced, unprotected) = (state().enforced, state().unprotected);
    assert_eq!((enforced, unprotected), (0, 1));
    assert!(says(), "{:?}", state());
}
