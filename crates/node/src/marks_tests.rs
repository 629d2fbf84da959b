//! Marks of pods, and what the API server says of their policies.

use std::path::Path;
use std::sync::Arc;

use apiserver::fake::FakeApiserver;
use apiserver::{Change, Client};
use nri::Answer;
use nri::message::PodSandbox;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::index::tests::{pod, profile};
use crate::profiles::take;
use crate::tests::{agent, create, refusal, start};

const POLICY: &str = "/apis/crd.varmor.org/v1beta1/namespaces/demo/varmorpolicies/web";

/// An agent that asks an API server, which has the policy `web` and not its profile.
fn asking(folder: &Path) -> (Arc<Agent>, FakeApiserver) {
    let agent = Arc::new(agent(folder));
    take(&agent, Change::Listed);
    let server = FakeApiserver::start().unwrap();
    let client = Client::new(&server.access(), "agent").unwrap();
    let policy = json!({ "metadata": { "name": "web", "namespace": "demo" } });
    server.put(POLICY, policy);
    let of_fetch = Arc::clone(&agent);
    std::thread::spawn(move || crate::profiles::ask(&of_fetch, &client));
    (agent, server)
}

/// A pod with the mark of a profile.
fn marked(name: &str, profile: &str) -> PodSandbox {
    let mut pod = pod(name, &[]);
    let mark = format!("{}{profile}", kinds::annotations::OF_POLICY);
    pod.annotations.insert(mark, "target".to_owned());
    pod
}

#[test]
fn a_mark_blocks_a_pod_while_its_policy_exists_or_is_not_known_to_be_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, server) = asking(folder.path());
    // The policy exists, and its profile is not here yet.
    let text = refusal(create(&agent, &marked("one", "varmor-demo-web")));
    assert!(text.contains("no ArmorProfile varmor-demo-web"), "{text}");
    // Nobody answers: that does not mean that the policy is gone.
    server.remove(POLICY);
    server.fail(1);
    std::thread::sleep(crate::state::PAUSE);
    refusal(create(&agent, &marked("two", "varmor-demo-web")));
    std::thread::sleep(crate::state::PAUSE);
    assert_eq!(
        create(&agent, &marked("three", "varmor-demo-web")),
        Answer::Accept
    );
    assert_eq!(
        start(&agent, &marked("three", "varmor-demo-web"), None),
        Answer::Accept
    );
    let all = "varmor-cluster-tollgate-all";
    assert_eq!(create(&agent, &marked("four", all)), Answer::Accept);
    assert_eq!(agent.state().profiles(), []);
    // Policies of another installation are not known here.
    refusal(create(&agent, &marked("five", "varmor-cluster-other-all")));
    // A policy that is being deleted is deleted; one that comes again is not.
    let deleted = json!({ "metadata": { "name": "web", "namespace": "demo",
        "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    server.put(POLICY, deleted);
    std::thread::sleep(crate::state::PAUSE);
    assert_eq!(
        create(&agent, &marked("six", "varmor-demo-web")),
        Answer::Accept
    );
    server.put(
        POLICY,
        json!({ "metadata": { "name": "web", "namespace": "demo" } }),
    );
    refusal(create(&agent, &marked("seven", "varmor-demo-web")));
}

#[test]
fn the_mark_of_a_policy_on_which_another_installation_acts_keeps_its_pods_out() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, server) = asking(folder.path());
    let claimed = |status: Value| json!({ "metadata": { "name": "web", "namespace": "demo" }, "status": status });
    let inactive = json!([{ "type": "tollgate.tollgate.dev/Active", "status": "False" }]);
    for (pod, status) in [
        ("4a", json!({ "installation": "other" })),
        ("4b", json!({ "conditions": inactive })),
        ("4c", json!({ "installation": "tollgate" })),
        ("4d", json!({ "installation": "" })),
    ] {
        server.put(POLICY, claimed(status));
        std::thread::sleep(crate::state::PAUSE);
        refusal(create(&agent, &marked(pod, "varmor-demo-web")));
    }
}

#[test]
fn a_mark_that_was_asked_for_in_vain_is_asked_for_again_at_the_next_change() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, server) = asking(folder.path());
    server.remove(POLICY);
    let web = marked("one", "varmor-demo-web");
    assert_eq!(create(&agent, &web), Answer::Accept);
    assert_eq!(start(&agent, &web, None), Answer::Accept);
    let wait = |there: &dyn Fn() -> bool| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !there() {
            assert!(std::time::Instant::now() < end, "it does not come");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    agent.state().gone.clear();
    server.fail(1);
    take(&agent, Change::Listed);
    wait(&|| agent.state().asked_in_vain);
    // The change is about no container of the node.
    let other = json!({"kind": "Pod", "name": "other"});
    take(
        &agent,
        Change::Applied(profile("q", other, "VarmorPolicy", "2")),
    );
    wait(&|| !agent.state().gone.is_empty());
    assert!(!agent.state().asked_in_vain);
}
