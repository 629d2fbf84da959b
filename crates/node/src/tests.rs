//! Tests of an agent that is asked by a runtime, without either.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver::Change;
use kinds::ObjectKey;
use kinds::annotations::{FAIL_MODE, HASH};
use nri::message::{Container, LinuxContainer, LinuxSeccomp, PodSandbox};
use nri::{Answer, Event, Plugin};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::index::Index;
use crate::index::tests::{pod, profile};
use crate::profiles::take;
use crate::queue::Wanted;
use crate::run::{Parts, write_index};
use crate::store::Body;
use crate::{Settings, ViolationFiles, report};

const POLICY: &str = r#"{"policy": {"enforcer": "Seccomp", "mode": "EnhanceProtect", "enhanceProtect":
    {"privileged": true, "hardeningRules": ["disallow-mount"]}}}"#;

pub(crate) fn settings(folder: &Path) -> Settings {
    Settings {
        node: "n1".to_owned(),
        installation: "tollgate".to_owned(),
        socket: folder.join("nri.sock"),
        state: folder.to_owned(),
        handlers: vec!["tollgate".to_owned()],
        policies: folder.join("policies"),
        runtime_state: folder.join("runtime"),
        deadline: Duration::from_millis(200),
        listen: None,
        renewal: Duration::from_secs(30),
    }
}

pub(crate) fn agent(folder: &Path) -> Agent {
    let parts = Parts {
        detection: None,
        events: Some(Arc::default()),
        violations: ViolationFiles {
            alerts: None,
            log: Some(folder.join("violations.log")),
        },
        behavior: None,
        kernel: None,
        enforcers: Vec::new(),
    };
    Agent::new(settings(folder), parts, Arc::new(|_| ())).unwrap()
}

pub(crate) fn key(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: "demo".to_owned(),
        name: name.to_owned(),
    }
}

pub(crate) fn web() -> Value {
    of_policy(POLICY)
}

pub(crate) fn of_policy(policy: &str) -> Value {
    let target = json!({"kind": "Pod", "name": "web"});
    let mut object = profile("p", target, "VarmorPolicy", "1");
    object["metadata"]["annotations"][HASH] = json!(kinds::policy_hash(policy));
    object
}

pub(crate) fn body(policy: &str) -> Body {
    Body {
        hash: kinds::policy_hash(policy),
        policy: policy.to_owned(),
    }
}

pub(crate) fn container(filter: Option<LinuxSeccomp>) -> Container {
    Container {
        id: "c1".to_owned(),
        name: "app".to_owned(),
        linux: Some(LinuxContainer {
            seccomp_policy: filter,
            ..LinuxContainer::default()
        }),
        ..Container::default()
    }
}

/// Gives an agent the policy of `p`.
pub(crate) fn put_body(agent: &Agent) {
    agent.state().bodies.insert(key("p"), body(POLICY));
}

pub(crate) fn create(agent: &Agent, pod: &PodSandbox) -> Answer {
    agent.handle(&Event::CreateContainer(Box::new((
        pod.clone(),
        container(None),
    ))))
}

pub(crate) fn start(agent: &Agent, pod: &PodSandbox, filter: Option<LinuxSeccomp>) -> Answer {
    agent.handle(&Event::StartContainer(Box::new((
        pod.clone(),
        container(filter),
    ))))
}

pub(crate) fn refusal(answer: Answer) -> String {
    match answer {
        Answer::Refuse(text) => text,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn filter_of(answer: Answer) -> LinuxSeccomp {
    match answer {
        Answer::Adjust(adjustment) => adjustment.linux.unwrap().seccomp_policy.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_container_waits_for_its_policy_and_starts_with_its_filter_alone() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    agent.state().index.apply(&web()).unwrap();
    let web = pod("web", &[]);
    assert_eq!(create(&agent, &pod("other", &[])), Answer::Accept);
    let text = refusal(create(&agent, &web));
    assert_eq!(text, "tollgate: demo/p: the policy is not here yet");
    assert_eq!(agent.wanted.take().0, Wanted::Profile(key("p")));
    agent.state().bodies.insert(key("p"), body(POLICY));
    let filter = filter_of(create(&agent, &web));
    assert!(filter.syscalls.iter().any(|rule| rule.names == ["mount"]));
    let text = refusal(start(&agent, &web, None));
    assert!(text.contains("has not taken the seccomp filter"), "{text}");
    let text = refusal(start(&agent, &web, Some(filter)));
    assert!(
        text.contains("created before the agent knew of it"),
        "{text}"
    );
    let filter = filter_of(create(&agent, &web));
    assert_eq!(start(&agent, &web, Some(filter)), Answer::Accept);
    let [state] = &agent.state().profiles()[..] else {
        panic!("one profile is used");
    };
    assert_eq!((state.containers, state.enforced), (1, 1));
}

#[test]
fn answers_that_wait_in_vain_do_not_add_up_and_the_next_policy_ends_the_pause() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    take(&agent, Change::Applied(web()));
    take(&agent, Change::Listed);
    // The runtime asks for one after the other, and the API server is away.
    let begin = Instant::now();
    for _ in 0..50 {
        let text = refusal(create(&agent, &pod("web", &[])));
        assert!(text.contains("the policy is not here yet"), "{text}");
    }
    // 50 times 120 ms are 6 s. What this machine does besides may take some time.
    let took = begin.elapsed();
    assert!((100..900).contains(&took.as_millis()), "{took:?}");
    assert!(!agent.state().gave_up.is_empty());
    agent.state().take_body(&key("p"), body(POLICY));
    assert!(agent.state().gave_up.is_empty());
    filter_of(create(&agent, &pod("web", &[])));
}

#[test]
fn what_an_author_writes_into_a_pod_does_not_switch_its_policy_off() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    take(&agent, Change::Applied(web()));
    take(&agent, Change::Listed);
    agent.state().take_body(&key("p"), body(POLICY));
    let plain = filter_of(create(&agent, &pod("web", &[])));
    for (name, value) in [
        ("tollgate.dev/opt-out", "allow"),
        ("tollgate.dev/fail-mode", "open"),
        ("tollgate.dev/tolerate-missing", "true"),
        ("container.tollgate.dev/app", "unconfined"),
        ("profile.tollgate.dev/other", "target"),
        (
            "container.seccomp.security.beta.varmor.org/app",
            "unconfined",
        ),
        ("tollgate.policy", "other"),
    ] {
        let mut pod = pod("web", &[("pod-template-hash", "h")]);
        pod.annotations.insert(name.to_owned(), value.to_owned());
        assert_eq!(filter_of(create(&agent, &pod)), plain, "{name}");
    }
    let mut other_class = pod("web", &[]);
    other_class.runtime_handler = "other".to_owned();
    assert_eq!(filter_of(create(&agent, &other_class)), plain);
    // The runtime says that a container is unconfined by no policy of its own; `kubectl debug` adds one to a pod.
    let mut debugger = container(None);
    debugger.id = "c2".to_owned();
    debugger.name = "debugger".to_owned();
    let event = Event::CreateContainer(Box::new((pod("web", &[]), debugger)));
    assert_eq!(filter_of(agent.handle(&event)), plain);
    // The same container in a pod without a policy.
    let other = create(&agent, &pod("other", &[]));
    assert!(matches!(other, Answer::Accept), "{other:?}");
}

#[test]
fn the_next_agent_decides_and_reports_as_the_one_before_without_an_api_server() {
    let folder = tempfile::tempdir().unwrap();
    let web_pod = PodSandbox {
        id: "s1".to_owned(),
        ..pod("web", &[])
    };
    let running = Container {
        pod_sandbox_id: "s1".to_owned(),
        ..container(None)
    };
    {
        let agent = agent(folder.path());
        agent.state().index.apply(&web()).unwrap();
        agent.state().bodies.insert(key("p"), body(POLICY));
        agent.store.write_body(&key("p"), &body(POLICY)).unwrap();
        agent
            .store
            .write_objects(&agent.state().index.objects())
            .unwrap();
        let filter = filter_of(create(&agent, &web_pod));
        start(&agent, &web_pod, Some(filter));
    }
    let agent = agent(folder.path());
    let stranger = Container {
        id: "c2".to_owned(),
        ..running.clone()
    };
    agent.handle(&Event::Synchronize {
        pods: vec![web_pod.clone()],
        containers: vec![running.clone(), stranger],
    });
    let state = agent.state().profiles().remove(0);
    assert_eq!(
        (state.containers, state.enforced, state.unprotected),
        (2, 1, 1)
    );
    assert_eq!(state.reasons, ["it ran before the agent or the policy"]);
    filter_of(create(&agent, &web_pod));
    // An index from the disk says nothing about what was seen.
    assert_eq!(
        report::status(&agent.state(), None, Vec::new(), "b").observed_version,
        "0"
    );
    agent.handle(&Event::StopContainer(Box::new((web_pod, running))));
    assert_eq!(agent.store.records().unwrap(), []);
    let metrics = report::metrics(&agent);
    assert!(
        metrics.contains("\ntollgate_node_containers_unprotected 1\n"),
        "{metrics}"
    );
}

#[test]
fn the_fail_mode_decides_about_what_cannot_be_enforced() {
    let of_bpf = POLICY.replace("Seccomp", "BPF");
    for (mode, is_created) in [("open", true), ("closed", false), ("Open", false)] {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent(folder.path());
        let mut object = of_policy(&of_bpf);
        object["metadata"]["annotations"][FAIL_MODE] = json!(mode);
        agent.state().index.apply(&object).unwrap();
        agent.state().bodies.insert(key("p"), body(&of_bpf));
        let answer = create(&agent, &pod("web", &[]));
        match answer {
            Answer::Refuse(text) => {
                assert!(
                    !is_created && text.contains("disallow-mount"),
                    "{mode} {text}"
                );
            }
            Answer::Adjust(_) => assert!(is_created, "{mode}"),
            Answer::Accept => panic!("{mode}: it is confined as far as that is possible"),
        }
        // The kubelet writes an Event of a container that was refused.
        let events = agent.events.as_ref().unwrap().figures();
        assert_eq!(events.waiting, u64::from(is_created), "{mode}");
        let line = format!(
            "tollgate_node_event_occurrences_total {}\n",
            u64::from(is_created)
        );
        let metrics = report::metrics(&agent);
        assert!(metrics.contains(&line), "{metrics}");
        assert!(
            metrics.contains("occurrences_lost_total{reason=\"full\"} 0\n"),
            "{metrics}"
        );
    }
}

#[test]
fn a_profile_that_was_deleted_while_no_agent_ran_is_forgotten_after_the_first_list() {
    let folder = tempfile::tempdir().unwrap();
    {
        let agent = agent(folder.path());
        let mut index = Index::new(agent.settings.installation.clone());
        index.apply(&web()).unwrap();
        agent.store.write_objects(&index.objects()).unwrap();
        agent.store.write_body(&key("p"), &body(POLICY)).unwrap();
    }
    let agent = agent(folder.path());
    let target = json!({"kind": "Pod", "name": "web"});
    let newer = profile("q", target, "VarmorPolicy", "2");
    take(&agent, Change::Applied(newer));
    let found = |agent: &Agent| {
        let state = agent.state();
        let found = state.index.find(&pod("web", &[]), "app").unwrap();
        found.map(|entry| entry.key.name.clone())
    };
    assert_eq!(found(&agent).as_deref(), Some("p"), "before the list");
    take(&agent, Change::Listed);
    assert_eq!(found(&agent).as_deref(), Some("q"));
    assert!(agent.state().is_index_changed);
    assert!(agent.state().body(&key("p")).is_none());
    assert_eq!(agent.store.body(&key("p")), None);
}

#[test]
fn what_is_not_known_yet_is_not_taken_for_no_policy() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    // No file and no list: the runtime is not connected to.
    assert!(!agent.state().index.is_usable);
    take(&agent, Change::Applied(web()));
    assert!(!agent.state().index.is_usable);
    take(&agent, Change::Listed);
    assert!(agent.state().index.is_usable);
    agent.wait_for_index();
    // A mark without a profile.
    let mut marked = pod("other", &[]);
    let mark = format!("{}app", kinds::annotations::MARK);
    marked.annotations.insert(mark, "gone".to_owned());
    let text = refusal(start(&agent, &marked, None));
    assert!(text.contains("no ArmorProfile gone"), "{text}");
    let running = Container {
        pod_sandbox_id: "s1".to_owned(),
        ..container(None)
    };
    marked.id = "s1".to_owned();
    agent.handle(&Event::Synchronize {
        pods: vec![marked],
        containers: vec![running],
    });
    let [state] = &agent.state().profiles()[..] else {
        panic!("one profile is used");
    };
    assert_eq!((&*state.name, state.unprotected), ("gone", 1));
}

#[test]
fn files_that_a_loss_of_power_has_torn_keep_no_agent_down() {
    let folder = tempfile::tempdir().unwrap();
    {
        let agent = agent(folder.path());
        let mut index = Index::new(agent.settings.installation.clone());
        index.apply(&web()).unwrap();
        agent.store.write_objects(&index.objects()).unwrap();
        agent.store.write_body(&key("p"), &body(POLICY)).unwrap();
    }
    let (record, torn) = (folder.path().join("containers/c1.json"), "{\"hash");
    for path in [folder.path().join("bodies/demo~p.json"), record.clone()] {
        std::fs::write(path, torn).unwrap();
    }
    let restarted = agent(folder.path());
    assert!(restarted.state().index.is_usable);
    assert!(restarted.state().body(&key("p")).is_none() && !record.exists());
    // A text that was cut, in JSON that was not.
    let cut = Body {
        policy: POLICY[..9].to_owned(),
        ..body(POLICY)
    };
    restarted.store.write_body(&key("p"), &cut).unwrap();
    assert_eq!(restarted.store.body(&key("p")), None);
    // An index that cannot be read is not an empty one.
    std::fs::write(folder.path().join("profiles.json"), torn).unwrap();
    let restarted = agent(folder.path());
    assert!(!restarted.state().index.is_usable);
}

#[test]
fn a_policy_is_handed_to_the_runtime_whole_and_under_a_name_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    let policies = folder.path().join("policies");
    std::fs::create_dir(&policies).unwrap();
    take(&agent, Change::Applied(web()));
    take(&agent, Change::Listed);
    agent.state().bodies.insert(key("p"), body(POLICY));
    let web = PodSandbox {
        runtime_handler: "tollgate".to_owned(),
        ..pod("web", &[])
    };
    let name = format!("kubernetes.demo.p-{}", &body(POLICY).hash[..16]);
    let path = policies.join(format!("{name}.yaml"));
    let own = policies.join("web.yaml");
    for file in [&path, &own] {
        std::fs::write(file, "torn").unwrap();
    }
    let Answer::Adjust(adjustment) = create(&agent, &web) else {
        panic!("it is confined");
    };
    assert_eq!(adjustment.annotations["tollgate.policy"], name);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), POLICY);
    // The runtime has noted another policy, whose name begins alike.
    let note = folder.path().join("runtime/root/c1");
    std::fs::create_dir_all(&note).unwrap();
    let noted = |name: &str| {
        let text = json!({ "policy": format!("/etc/tollgate/policies/{name}.yaml") });
        std::fs::write(note.join("container.json"), text.to_string()).unwrap();
    };
    noted(&name.replace("p-", "p-2-"));
    let text = refusal(start(&agent, &web, None));
    assert!(text.contains("not tollgate's"), "{text}");
    create(&agent, &web);
    noted(&name);
    assert_eq!(start(&agent, &web, None), Answer::Accept);
    write_index(&agent);
    assert!(path.exists());
    agent.handle(&Event::StopContainer(Box::new((web, container(None)))));
    take(&agent, Change::Deleted(key("p")));
    write_index(&agent);
    assert!(!path.exists() && own.exists());
}

#[test]
fn an_agent_that_has_lost_the_runtime_reports_nothing_and_is_not_healthy() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(folder.path());
    let works = || {
        let state = agent.state();
        (state.can_report(), state.health().is_ok())
    };
    take(&agent, Change::Listed);
    assert_eq!(works(), (false, false));
    agent.handle(&Event::Synchronize {
        pods: Vec::new(),
        containers: Vec::new(),
    });
    assert_eq!(works(), (true, true));
    agent.disconnect();
    assert_eq!(works(), (false, false));
}
