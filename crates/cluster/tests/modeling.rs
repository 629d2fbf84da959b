//! Behaviour of a workload, merged over its pods and nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::modeling::{MAX_ITEMS, Modeling, Observation};
use kinds::Recording;
use proptest::prelude::*;
use serde_json::json;

fn recording(text: &str) -> Recording {
    serde_json::from_str(text).expect("it is valid")
}

fn seen(node: &str, container: &str, times: (u64, u64), text: &str) -> Observation {
    Observation {
        node: node.to_owned(),
        container: container.to_owned(),
        began: times.0,
        until: times.1,
        recording: recording(text),
    }
}

#[test]
fn replicas_on_two_nodes_become_one_model_and_what_is_new_is_timed() {
    let mut all = Modeling::default();
    assert_eq!(all.progress(), None);
    let calls = r#"{"seccomp": {"syscalls": ["bind"]}}"#;
    let files = r#"{"bpf": {"files": [{"path": "/a", "permissions": ["read"]}],
        "network": {"egresses": [{"ip": "10.0.0.1", "ports": [1]}]}}}"#;
    all.observe(&seen("n1", "c1", (100, 160), calls));
    all.observe(&seen("n2", "c2", (130, 190), files));
    // The same again, later: nothing new.
    all.observe(&seen("n1", "c1", (100, 400), calls));
    let progress = all.progress().expect("it is valid");
    assert_eq!((progress.containers, progress.nodes.len()), (2, 2));
    assert_eq!(progress.watched.as_secs(), 300);
    assert_eq!(progress.nothing_new_for.as_secs(), 210);
    let object = |nodes: &[&str], seconds| {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        all.object(
            ("demo", "varmor-demo-web"),
            &nodes,
            Duration::from_secs(seconds),
        )
    };
    let done = object(&["n1", "n2"], 300);
    assert_eq!(
        done["status"],
        json!({ "desiredNumber": 2, "completedNumber": 2, "ready": true })
    );
    let result = &done["data"]["dynamicResult"];
    assert_eq!(result["seccomp"]["syscalls"], json!(["bind"]));
    assert_eq!(result["bpf"]["network"]["egresses"][0]["ports"], json!([1]));
    assert_eq!(object(&["n1", "n2"], 301)["status"]["ready"], false);
    let silent = object(&["n1", "n3"], 300);
    assert_eq!(
        silent["status"],
        json!({ "desiredNumber": 2, "completedNumber": 1, "ready": false })
    );
}

/// That nobody watched files is not that no file was used.
#[test]
fn what_nobody_watched_is_absent_and_what_was_watched_in_vain_is_empty() {
    let mut all = Modeling::default();
    all.observe(&seen("n", "c", (0, 1), r#"{"seccomp": {}}"#));
    assert_eq!(json!(all.recording()), json!({ "seccomp": {} }));
    all.observe(&seen("n", "c", (0, 1), r#"{"bpf": {}}"#));
    assert_eq!(
        json!(all.recording()),
        json!({ "seccomp": {}, "bpf": { "network": {} } })
    );
    assert!(serde_json::from_str::<Recording>(r#"{"secomp": {}}"#).is_err());
}

#[test]
fn a_model_that_is_too_large_is_cut_and_never_ready() {
    let mut all = Modeling::default();
    let mut report = seen("n", "c", (0, 9), r#"{"bpf": {}}"#);
    let programs = (0..=MAX_ITEMS).map(|number| format!("/p{number}"));
    report
        .recording
        .bpf
        .as_mut()
        .expect("it is valid")
        .executions = programs.collect();
    all.observe(&report);
    let object = all.object(
        ("d", "m"),
        &BTreeSet::from(["n".to_owned()]),
        Duration::ZERO,
    );
    assert!(all.progress().expect("it is valid").is_cut);
    assert_eq!(object["status"]["ready"], false);
    assert_eq!(all.recording().items().len(), MAX_ITEMS);
}

fn observation() -> impl Strategy<Value = Observation> {
    let words = |names: &'static [&'static str]| {
        prop::collection::btree_set(prop::sample::select(names), 0..3)
    };
    (
        (0..3_u8, 0..3_u8, 0..50_u64, 0..50_u64),
        prop::option::of(words(&["bind", "listen", "mount"])),
        prop::option::of((words(&["/a", "/b", "/c/*"]), words(&["read", "write"]), words(&["chown", "kill"]))),
        prop::collection::btree_set(0..4_u16, 0..3),
    )
        .prop_map(|((node, container, began, more), calls, bpf, ports)| {
            let mut text = json!({});
            if let Some(calls) = calls {
                text["seccomp"] = json!({ "syscalls": calls });
            }
            if let Some((files, permissions, capabilities)) = bpf {
                let files: Vec<_> = files
                    .iter()
                    .map(|path| json!({ "path": path, "permissions": permissions }))
                    .collect();
                text["bpf"] = json!({ "files": files, "capabilities": capabilities, "executions": files.iter()
                    .map(|file| file["path"].clone()).collect::<Vec<_>>(), "network": {
                    "sockets": [{ "domain": "AF_INET", "type": "SOCK_STREAM" }],
                    "egresses": [{ "ip": "10.0.0.1", "ports": ports }] } });
            }
            let (node, container) = (format!("n{node}"), format!("c{container}"));
            seen(&node, &container, (began, began + more), &text.to_string())
        })
}

proptest! {
    #[test]
    fn any_order_of_reports_gives_the_same_model(
        reports in prop::collection::vec(observation(), 1..12),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
        cut in any::<prop::sample::Index>(),
    ) {
        let of = |reports: &mut dyn Iterator<Item = &Observation>| {
            let mut all = Modeling::default();
            reports.for_each(|report| all.observe(report));
            all
        };
        let expected = of(&mut reports.iter());
        prop_assert_eq!(&of(&mut reports.iter().rev()), &expected);
        // Some twice, in any order.
        let again = order.iter().map(|at| at.get(&reports));
        prop_assert_eq!(&of(&mut again.chain(&reports)), &expected);
        // Two operators, of which each has seen a part.
        let (first, second) = reports.split_at(cut.index(reports.len()));
        let mut both = of(&mut second.iter());
        both.merge(of(&mut first.iter()));
        prop_assert_eq!(&both, &expected);
        // What is written can be read again, and says the same.
        let text = json!(expected.recording()).to_string();
        prop_assert_eq!(recording(&text), expected.recording());
    }
}
