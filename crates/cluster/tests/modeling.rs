//! Behaviour of a workload, merged over its pods and nodes.

use cluster::modeling::{MAX_BYTES, MAX_ITEMS, MAX_NODES, Modeling};
use kinds::{ArmorProfileModel, BehaviorReport, MAX_TEXT, ModelingRun, Recording};
use proptest::prelude::*;
use serde_json::{Value, json};

const RUN: ModelingRun = ModelingRun {
    start: 100,
    minutes: 5,
    is_over: false,
};

fn recording(text: &str) -> Recording {
    serde_json::from_str(text).expect("it is valid")
}

fn seen(times: (u64, u64), text: &str) -> BehaviorReport {
    BehaviorReport {
        run: RUN.start,
        since: times.0,
        until: times.1,
        containers: 1,
        from_start: 1,
        recorded: recording(text),
        ..BehaviorReport::default()
    }
}

/// A report with so many programs.
fn programs(count: usize) -> BehaviorReport {
    let mut report = seen((100, 400), r#"{"bpf": {}}"#);
    let all = (0..count).map(|number| format!("/p{number:05}"));
    let bpf = report.recorded.bpf.as_mut().expect("it is valid");
    bpf.executions = all.collect();
    report
}

#[test]
fn replicas_on_two_nodes_become_one_model_and_what_is_new_is_timed() {
    let mut all = Modeling::default();
    assert_eq!(all.progress(RUN), None);
    let calls = r#"{"seccomp": {"syscalls": ["bind"]}}"#;
    let files = r#"{"bpf": {"files": [{"path": "/a", "permissions": ["read"]}],
        "network": {"egresses": [{"ip": "10.0.0.1", "ports": [1]}]}}}"#;
    all.observe("n1", &seen((100, 160), calls));
    all.observe("n2", &seen((130, 190), files));
    // The same again, later: nothing new.
    all.observe("n1", &seen((100, 400), calls));
    let progress = all.progress(RUN).expect("it is valid");
    assert_eq!((progress.containers, progress.from_start), (2, 2));
    assert_eq!(progress.observed.as_secs(), 300);
    assert_eq!(progress.newest, 190);
    assert_eq!(progress.nothing_new_for.as_secs(), 210);
    let nodes: Vec<_> = all.nodes(RUN).collect();
    assert_eq!(nodes, [("n1", true), ("n2", false)]);
    let result = json!(all.recording());
    assert_eq!(result["seccomp"]["syscalls"], json!(["bind"]));
    assert_eq!(result["bpf"]["network"]["egresses"][0]["ports"], json!([1]));
    assert_eq!(all.lacks().count(), 0);
}

/// That nobody watched files is not that no file was used.
#[test]
fn what_nobody_watched_is_absent_and_what_was_watched_in_vain_is_empty() {
    let mut all = Modeling::default();
    all.observe("n", &seen((100, 101), r#"{"seccomp": {}}"#));
    assert_eq!(json!(all.recording()), json!({ "seccomp": {} }));
    all.observe("n", &seen((100, 101), r#"{"bpf": {}}"#));
    assert_eq!(
        json!(all.recording()),
        json!({ "seccomp": {}, "bpf": { "network": {} } })
    );
    assert!(serde_json::from_str::<Recording>(r#"{"secomp": {}}"#).is_err());
}

#[test]
fn what_exceeds_a_limit_is_cut_and_said() {
    let mut all = Modeling::default();
    // One of the items says that programs were observed.
    all.observe("n", &programs(MAX_ITEMS - 1));
    assert_eq!(all.lacks().count(), 0);
    all.observe("n", &programs(MAX_ITEMS));
    let reasons: Vec<&str> = all.lacks().collect();
    assert_eq!(reasons, ["there are more than 10000 single things"]);
    assert_eq!(all.recording().items().len(), MAX_ITEMS);

    let mut all = Modeling::default();
    let long = format!(
        r#"{{"bpf": {{"executions": ["/{}", "/b"]}}}}"#,
        "a".repeat(MAX_TEXT)
    );
    all.observe("n", &seen((100, 400), &long));
    assert_eq!(
        all.recording()
            .bpf
            .expect("it was watched")
            .executions
            .len(),
        1
    );
    let reasons: Vec<&str> = all.lacks().collect();
    assert_eq!(reasons, ["a name has more than 1024 bytes"]);

    let mut all = Modeling::default();
    let mut report = programs(0);
    let bpf = report.recorded.bpf.as_mut().expect("it is valid");
    let names = (0..2000).map(|number| format!("/{number:04}{}", "a".repeat(900)));
    bpf.executions = names.collect();
    all.observe("n", &report);
    let text = json!(all.recording()).to_string();
    assert!(
        text.len() <= MAX_BYTES && text.len() > MAX_BYTES / 4,
        "{}",
        text.len()
    );

    let mut all = Modeling::default();
    for number in 0..=MAX_NODES {
        all.observe(&format!("n{number:05}"), &seen((100, 400), "{}"));
    }
    assert_eq!(all.nodes(RUN).count(), MAX_NODES);
    assert_eq!(all.lacks().count(), 1);
}

#[test]
fn a_node_that_says_what_it_likes_neither_moves_times_nor_fills_the_reasons() {
    let mut all = Modeling::default();
    let mut report = seen((u64::MAX, 0), r#"{"seccomp": {"syscalls": ["bind"]}}"#);
    report.containers = u64::MAX;
    report.from_start = u64::MAX;
    report.incomplete = (0..500)
        .map(|number| format!("{number}; a\nb{}", "x".repeat(5000)))
        .collect();
    all.observe("n1", &report);
    all.observe("n2", &report);
    let progress = all.progress(RUN).expect("something was observed");
    assert_eq!(progress.containers, u64::MAX);
    assert!(progress.observed.as_secs() <= 300 && progress.newest <= RUN.end());
    let reasons: Vec<&str> = all.lacks().collect();
    assert_eq!(reasons.len(), 16);
    for reason in reasons {
        assert!(
            reason.starts_with("n1: ") && reason.len() <= 256,
            "{reason}"
        );
        assert!(!reason.contains("; ") && !reason.contains('\n'), "{reason}");
    }
    // An empty report of a node that observed nothing is no observation.
    let mut nothing = Modeling::default();
    nothing.observe("n", &BehaviorReport::default());
    assert_eq!(nothing.progress(RUN), None);
}

/// The object of a model as it was written.
fn written(recorded: &Recording, status: Value) -> ArmorProfileModel {
    let object = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "ArmorProfileModel",
        "metadata": { "name": "m" }, "data": { "dynamicResult": recorded }, "status": status });
    serde_json::from_value(object).expect("it is valid")
}

#[test]
fn the_next_operator_knows_what_the_one_before_has_written() {
    let mut before = Modeling::default();
    before.observe(
        "n1",
        &seen(
            (100, 200),
            r#"{"seccomp": {"syscalls": ["bind", "listen"]}}"#,
        ),
    );
    let status = json!({ "ready": false, "containers": 7, "fromStart": 2, "newest": 150, "observedSeconds": 99,
        "conditions": [{ "type": "Complete", "status": "False", "reason": "Incomplete", "message": "n1: a; n2: b" },
            { "type": "Complete", "status": "Unknown", "reason": "Waiting", "message": "c" }] });
    let mut after = Modeling::default();
    after
        .adopt(&written(&before.recording(), status))
        .expect("it is ours");
    assert_eq!(after.recording(), before.recording());
    let progress = after.progress(RUN).expect("something was observed");
    assert_eq!(
        (progress.containers, progress.from_start, progress.newest),
        (7, 2, 150)
    );
    assert_eq!(progress.observed.as_secs(), 99);
    assert_eq!(Vec::from_iter(after.lacks()), ["n1: a", "n2: b"]);
    // Of its nodes nothing is known before they report.
    assert_eq!(after.nodes(RUN).count(), 0);
    let foreign = json!({ "dynamicResult": { "appArmor": { "profiles": ["x"] } } });
    let mut model = written(&Recording::default(), json!({ "ready": true }));
    model.data = foreign;
    assert!(after.adopt(&model).is_err());
}

fn report() -> impl Strategy<Value = (u8, BehaviorReport)> {
    let words = |names: &'static [&'static str]| {
        prop::collection::btree_set(prop::sample::select(names), 0..3)
    };
    (
        (0..3_u8, 0..50_u64, 0..50_u64, 0..3_u64),
        prop::option::of(words(&["bind", "listen", "mount"])),
        prop::option::of((
            words(&["/a", "/b", "/c/*"]),
            words(&["read", "write"]),
            words(&["chown", "kill"]),
        )),
        prop::collection::btree_set(0..4_u16, 0..3),
        words(&["lost", "cut", "full"]),
    )
        .prop_map(|((node, began, more, containers), calls, bpf, ports, reasons)| {
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
            let mut report = seen((began, began + more), &text.to_string());
            report.containers = containers;
            report.from_start = containers / 2;
            report.incomplete = reasons.into_iter().map(str::to_owned).collect();
            (node, report)
        })
}

/// A report in parts: each has some of its items, and all have its times and counts.
fn parts(report: &BehaviorReport, choices: &[prop::sample::Index]) -> Vec<BehaviorReport> {
    let mut parts = vec![Vec::new(); 3];
    let mut choices = choices.iter().cycle();
    for item in report.recorded.items() {
        let part = choices.next().map_or(0, |choice| choice.index(3));
        parts[part].push(item);
    }
    let part = |items: &Vec<_>| BehaviorReport {
        recorded: items.iter().collect(),
        ..report.clone()
    };
    parts.iter().map(part).collect()
}

proptest! {
    #[test]
    fn any_order_of_reports_and_any_split_gives_the_same_model(
        reports in prop::collection::vec(report(), 1..12),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
        cut in any::<prop::sample::Index>(),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 1..12),
    ) {
        let of = |reports: &mut dyn Iterator<Item = &(u8, BehaviorReport)>| {
            let mut all = Modeling::default();
            reports.for_each(|(node, report)| all.observe(&format!("n{node}"), report));
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
        // Each report in three parts.
        let split: Vec<_> = reports
            .iter()
            .flat_map(|(node, report)| parts(report, &choices).into_iter().map(|part| (*node, part)))
            .collect();
        prop_assert_eq!(&of(&mut split.iter().rev()), &expected);
        // What is written can be read again, and says the same.
        let text = json!(expected.recording()).to_string();
        prop_assert_eq!(recording(&text), expected.recording());
    }
}

#[test]
fn what_is_cut_does_not_depend_on_the_order() {
    let (low, high) = (programs(MAX_ITEMS), {
        let mut report = programs(0);
        let bpf = report.recorded.bpf.as_mut().expect("it is valid");
        bpf.executions = (0..9000).map(|number| format!("/o{number:05}")).collect();
        report
    });
    let of = |reports: [&BehaviorReport; 2]| {
        let mut all = Modeling::default();
        reports
            .into_iter()
            .for_each(|report| all.observe("n", report));
        all
    };
    assert_eq!(of([&low, &high]), of([&high, &low]));
}
