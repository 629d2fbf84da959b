//! Any order of events that keeps the order of each object gives the same answers, and so does a new operator that sees
//! only what there is at the end.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const POLICIES: [&str; 2] = ["p0", "p1"];
const NODES: [&str; 2] = ["n0", "n1"];

/// A change of one object, with small numbers.
#[derive(Clone, Debug)]
enum Change {
    Policy(usize, Option<u8>),
    Profile(usize, Option<u8>),
    Node(usize, Option<u8>),
    /// Boot, version that was seen, and the hash, counted from 0, of the profiles in use.
    Report(usize, Option<(u8, u8, u8)>),
    Silent(usize),
    Pod(Option<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let object = 0..2_usize;
    let number = || prop::option::weighted(0.8, 0..3_u8);
    let report = prop::option::weighted(0.8, (0..2_u8, 10..14_u8, 0..3_u8));
    prop_oneof![
        (object.clone(), number()).prop_map(|(object, body)| Change::Policy(object, body)),
        (object.clone(), number()).prop_map(|(object, version)| Change::Profile(object, version)),
        (object.clone(), prop::option::weighted(0.9, 0..2_u8))
            .prop_map(|(node, boot)| Change::Node(node, boot)),
        (object.clone(), report).prop_map(|(node, report)| Change::Report(node, report)),
        object.prop_map(Change::Silent),
        number().prop_map(Change::Pod),
    ]
}

/// Names the object of a change: its changes keep their order.
fn object(change: &Change) -> (u8, usize) {
    match change {
        Change::Policy(index, _) => (0, *index),
        Change::Profile(index, _) => (1, *index),
        Change::Node(index, _) => (2, *index),
        Change::Report(index, _) => (3, *index),
        // A silence is about a report that was seen.
        Change::Silent(index) => (3, *index),
        Change::Pod(_) => (4, 0),
    }
}

fn body(number: u8) -> Value {
    match number {
        0 => json!({ "enforcer": "BPF", "mode": "AlwaysAllow" }),
        1 => {
            json!({ "enforcer": "BPF", "mode": "EnhanceProtect", "enhanceProtect": { "bpfRawRules": {
            "network": { "egress": { "toPods": [{ "qualifiers": ["deny"], "podSelector": {} }] } } } } })
        }
        _ => json!({ "enforcer": "BPF", "mode": "DefenseInDepth" }),
    }
}

/// The spec of the profile of a policy with this body, in a cluster with the Pod's address.
fn spec(index: usize, number: u8, pod: Option<u8>) -> Value {
    let mut cluster = Cluster::new("tollgate", false);
    cluster.apply(Event::Synced(ObjectKind::Pods));
    cluster.apply(policy(POLICIES[index], body(number)));
    cluster.apply(pod_event(pod));
    match cluster.profile(&id(POLICIES[index])) {
        Ok(profile) => json!(profile.spec),
        // As another version may have written it.
        Err(_) => {
            json!({ "target": { "kind": "Pod", "name": "x" }, "updateExistingWorkloads": false,
            "behaviorModeling": { "enable": false, "duration": 0 },
            "profile": { "name": "n", "enforcer": "BPF", "mode": "enforce", "hash": "none" } })
        }
    }
}

fn pod_event(number: Option<u8>) -> Event {
    match number {
        None => Event::PodGone(key("demo", "pod")),
        Some(number) => Event::Pod(read(
            json!({ "metadata": { "name": "pod", "namespace": "demo" },
            "status": { "podIPs": [{ "ip": format!("10.0.0.{number}") }] } }),
        )),
    }
}

/// The event of a change. `time` is the second in which the last report of the object was written.
fn event(change: &Change, time: u64) -> Event {
    match change {
        Change::Policy(index, None) => Event::PolicyGone(id(POLICIES[*index])),
        Change::Policy(index, Some(number)) => policy(POLICIES[*index], body(*number)),
        Change::Profile(index, None) => {
            Event::ProfileGone(key("demo", &format!("varmor-demo-{}", POLICIES[*index])))
        }
        Change::Profile(index, Some(number)) => {
            let name = format!("varmor-demo-{}", POLICIES[*index]);
            Event::Profile(read(json!({
                "apiVersion": "crd.varmor.org/v1beta1", "kind": "ArmorProfile",
                "metadata": { "name": name, "namespace": "demo", "resourceVersion": (10 + number).to_string(),
                    "annotations": { INSTALLATION: "tollgate" } },
                "spec": spec(*index, *number, Some(1)),
            })))
        }
        Change::Node(index, None) => Event::NodeGone(NODES[*index].to_owned()),
        Change::Node(index, Some(boot)) => node(NODES[*index], &format!("b{boot}")),
        Change::Report(index, None) => Event::ReportGone(NODES[*index].to_owned()),
        Change::Report(index, Some((boot, version, used))) => {
            let profiles = POLICIES.iter().enumerate().map(|(policy, name)| {
                json!({ "namespace": "demo", "name": format!("varmor-demo-{name}"),
                    "hash": spec(policy, *used, Some(1))["profile"]["hash"], "containers": used, "enforced": used })
            });
            let profiles = profiles.collect();
            report_of(
                NODES[*index],
                &format!("b{boot}"),
                time,
                u64::from(*version),
                profiles,
            )
        }
        Change::Silent(index) => Event::Silent {
            node: NODES[*index].to_owned(),
            since: format!("2026-01-01T00:00:{time:02}Z"),
        },
        Change::Pod(number) => pod_event(*number),
    }
}

/// Events of a history, each with its object.
fn events(history: &[Change]) -> Vec<((u8, usize), Event)> {
    let mut times = [0_u64; 2];
    let mut of = |change: &Change| {
        let time = match change {
            Change::Report(index, _) => {
                times[*index] += 1;
                times[*index]
            }
            Change::Silent(index) => times[*index],
            _ => 0,
        };
        (object(change), event(change, time))
    };
    history.iter().map(&mut of).collect()
}

type Answer = (
    Option<PolicyStatus>,
    Result<String, ProfileError>,
    Option<kinds::ArmorProfileStatus>,
);

fn answers(cluster: &Cluster) -> Vec<Answer> {
    let of = |name: &&str| {
        let profile = cluster.profile(&id(name));
        let profile = profile.map(|profile| profile.spec.profile.hash);
        let status = cluster.status(&id(name));
        // A profile without a policy is deleted with it: nobody writes its status.
        let of_profile = cluster.profile_status(&key("demo", &format!("varmor-demo-{name}")));
        let of_profile = of_profile.filter(|_| status.is_some());
        (status, profile, of_profile)
    };
    POLICIES.iter().map(of).collect()
}

fn run(events: impl IntoIterator<Item = Event>) -> Cluster {
    let mut cluster = Cluster::new("tollgate", false);
    sync(&mut cluster);
    cluster.apply(Event::Synced(ObjectKind::Pods));
    events.into_iter().for_each(|event| cluster.apply(event));
    cluster
}

/// The events in another order: repeatedly takes the next event of some object.
fn shuffled(mut events: Vec<((u8, usize), Event)>, choices: &[Index]) -> Vec<Event> {
    let mut order = Vec::new();
    let mut choices = choices.iter().cycle();
    while let (false, Some(choice)) = (events.is_empty(), choices.next()) {
        let chosen = events[choice.index(events.len())].0;
        let first = events.iter().position(|(object, _)| *object == chosen);
        order.push(events.remove(first.expect("the object has an event")).1);
    }
    order
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_order_of_events_gives_the_same_answers(
        history in prop::collection::vec(change(), 0..24),
        choices in prop::collection::vec(any::<Index>(), 1..24),
    ) {
        let events = events(&history);
        // A node that comes back must not inherit silence, so its deletion is ordered with its reports.
        prop_assume!(!history.iter().any(|change| matches!(change, Change::Node(_, None))));
        let one = run(events.iter().map(|(_, event)| event.clone()));
        let other = run(shuffled(events, &choices));
        prop_assert_eq!(answers(&one), answers(&other));
    }

    #[test]
    fn a_new_leader_comes_to_the_same_answers(history in prop::collection::vec(change(), 0..24)) {
        let history: Vec<Change> = history.into_iter().filter(|change| !matches!(change, Change::Silent(_))).collect();
        let all = events(&history);
        let old = run(all.iter().map(|(_, event)| event.clone()));
        let last = all.iter().enumerate().filter(|(index, (object, _))| {
            !all[index + 1..].iter().any(|(later, _)| later == object)
        });
        let new = run(last.map(|(_, (_, event))| event.clone()));
        prop_assert_eq!(answers(&old), answers(&new));
    }

    #[test]
    fn what_changes_an_answer_is_in_the_changes(history in prop::collection::vec(change(), 0..24)) {
        let mut cluster = run([]);
        for (_, event) in events(&history) {
            let before = answers(&cluster);
            cluster.take_changes();
            cluster.apply(event.clone());
            let changes = cluster.take_changes();
            for (index, (one, other)) in before.iter().zip(answers(&cluster)).enumerate() {
                let is_noted = changes.contains(&id(POLICIES[index]));
                prop_assert!(is_noted || *one == other, "{:?} changes {}", event, POLICIES[index]);
            }
        }
    }

    #[test]
    fn ready_means_that_every_node_has_reported_the_current_profile(
        history in prop::collection::vec(change(), 0..40),
    ) {
        let cluster = run(events(&history).into_iter().map(|(_, event)| event));
        for name in POLICIES {
            let Some(status) = cluster.status(&id(name)) else { continue };
            let coverage = status.coverage.unwrap();
            if status.ready {
                prop_assert_eq!((coverage.unknown_nodes, coverage.unprotected), (0, 0));
                prop_assert!(coverage.nodes > 0);
            }
        }
    }
}

#[test]
fn nothing_is_kept_of_a_node_that_is_gone_with_its_report() {
    let mut cluster = one_node();
    let silent = |cluster: &mut Cluster| {
        let since = "2026-01-01T00:00:03Z".to_owned();
        let node = "n1".to_owned();
        cluster.apply(Event::Silent { node, since });
    };
    cluster.apply(report_of("n1", "b1", 3, 10, json!([])));
    silent(&mut cluster);
    cluster.apply(Event::NodeGone("n1".to_owned()));
    // The operator takes the report for silent until it is gone, and may say so once more.
    silent(&mut cluster);
    cluster.apply(Event::ReportGone("n1".to_owned()));
    silent(&mut cluster);
    assert_eq!(cluster.nodes.entries(), 0);
}
