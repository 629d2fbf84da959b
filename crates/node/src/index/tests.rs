//! Tests of the index.

use serde_json::json;

use super::*;

pub(crate) fn profile(name: &str, target: Value, owner: &str, created: &str) -> Value {
    json!({ "metadata": { "name": name, "namespace": "demo", "resourceVersion": "7",
        "creationTimestamp": created,
        "annotations": { TARGET: target.to_string(), HASH: format!("hash-of-{name}") },
        "ownerReferences": [{ "apiVersion": "crd.varmor.org/v1beta1", "kind": owner, "name": "x", "uid": "1",
            "controller": true }] } })
}

pub(crate) fn pod(name: &str, labels: &[(&str, &str)]) -> PodSandbox {
    PodSandbox {
        name: name.to_owned(),
        namespace: "demo".to_owned(),
        labels: labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..PodSandbox::default()
    }
}

fn index(objects: &[Value]) -> Index {
    let mut index = Index::new("tollgate".to_owned());
    for object in objects {
        index.apply(object).unwrap();
    }
    index
}

fn name(index: &Index, pod: &PodSandbox) -> Option<String> {
    let found = index.find(pod, "app").unwrap();
    found.map(|entry| entry.key.name)
}

#[test]
fn pods_of_a_workload_are_found_by_name_and_by_labels() {
    let by_name = |kind: &str| {
        profile(
            "p",
            json!({"kind": kind, "name": "web"}),
            "VarmorPolicy",
            "1",
        )
    };
    let deployed = pod(
        "web-abc-x1",
        &[("pod-template-hash", "abc"), ("app", "web")],
    );
    let set = pod(
        "web-0",
        &[
            ("controller-revision-hash", "r"),
            ("statefulset.kubernetes.io/pod-name", "web-0"),
        ],
    );
    let daemon = pod("web-x1", &[("controller-revision-hash", "r")]);
    let bare = pod("web", &[("app", "web")]);
    for (kind, own) in [
        ("Deployment", &deployed),
        ("StatefulSet", &set),
        ("DaemonSet", &daemon),
        ("Pod", &bare),
    ] {
        let index = index(&[by_name(kind)]);
        for pod in [&deployed, &set, &daemon, &bare] {
            let expected = (pod == own).then_some("p");
            assert_eq!(
                name(&index, pod).as_deref(),
                expected,
                "{kind} {}",
                pod.name
            );
        }
        let mut elsewhere = own.clone();
        elsewhere.namespace = "other".to_owned();
        assert_eq!(name(&index, &elsewhere).as_deref(), None, "{kind}");
    }
    let selector = json!({"kind": "Deployment", "selector": {"matchLabels": {"app": "web"}}});
    let index = index(&[profile("p", selector, "VarmorPolicy", "1")]);
    assert_eq!(name(&index, &deployed).as_deref(), Some("p"));
    assert_eq!(name(&index, &bare).as_deref(), None);
}

#[test]
fn a_policy_of_the_cluster_wins_then_an_older_one_and_then_a_mark() {
    let target = json!({"kind": "Pod", "name": "web"});
    let bare = |mark: Option<&str>| {
        let mut pod = pod("web", &[]);
        let mark = mark.map(|mark| (format!("{MARK}app"), mark.to_owned()));
        pod.annotations.extend(mark);
        pod
    };
    let of = |name: &str, owner: &str, age: &str| profile(name, target.clone(), owner, age);
    let other = profile(
        "m",
        json!({"kind": "Pod", "name": "x"}),
        "VarmorPolicy",
        "0",
    );
    let mut cluster = of("c", "VarmorClusterPolicy", "3");
    cluster["metadata"]["namespace"] = json!("tollgate");
    let mut all = index(&[
        cluster,
        of("a", "VarmorPolicy", "2"),
        of("b", "VarmorPolicy", "1"),
        other,
    ]);
    for (namespace, expected) in [("tollgate", "c"), ("demo", "b"), ("demo", "a")] {
        assert_eq!(name(&all, &bare(Some("m"))).as_deref(), Some(expected));
        assert!(all.delete(&ObjectKey {
            namespace: namespace.to_owned(),
            name: expected.to_owned(),
        }));
    }
    assert_eq!(name(&all, &bare(Some("m"))).as_deref(), Some("m"));
    assert_eq!(name(&all, &bare(None)).as_deref(), None);
    assert_eq!(
        all.find(&bare(Some("n")), "app").unwrap_err(),
        Undecided::NoProfile("n".to_owned())
    );
}

#[test]
fn two_targets_that_meet_in_a_cut_name_are_told_apart_by_the_mark_or_refused() {
    let long = "n".repeat(60);
    let of = |profile_name: &str, end: &str, age: &str| {
        let target = json!({"kind": "Deployment", "name": format!("{long}{end}")});
        profile(profile_name, target, "VarmorPolicy", age)
    };
    let other = json!({"kind": "Pod", "name": "x"});
    let all = index(&[
        of("a", "a", "1"),
        of("b", "b", "2"),
        profile("weak", other, "VarmorPolicy", "0"),
    ]);
    let mut pod = pod(
        &format!("{}x1y2z", &long[..58]),
        &[("pod-template-hash", "h")],
    );
    let error = all.find(&pod, "app").unwrap_err().to_string();
    assert!(error.contains("demo/a or of demo/b"), "{error}");
    let mark = |name: &str| (format!("{OF_POLICY}{name}"), "target".to_owned());
    // A mark of something else does not help.
    pod.annotations.extend([mark("weak")]);
    all.find(&pod, "app").unwrap_err();
    pod.annotations.extend([mark("b")]);
    assert_eq!(name(&all, &pod).as_deref(), Some("b"));
    assert_eq!(
        name(&index(&[of("a", "a", "1")]), &pod).as_deref(),
        Some("a")
    );
}

#[test]
fn marks_of_several_policies_are_ranked_and_all_have_to_be_known() {
    let target = json!({"kind": "Deployment", "name": "x", "containers": ["app"]});
    let mut cluster = profile("c", target.clone(), "VarmorClusterPolicy", "9");
    cluster["metadata"]["namespace"] = json!("tollgate");
    let of = |name: &str, age: &str| profile(name, target.clone(), "VarmorPolicy", age);
    let all = index(&[cluster, of("a", "2"), of("b", "1")]);
    let marked = |names: &[&str]| {
        let mut pod = pod("web", &[]);
        let marks = names
            .iter()
            .map(|name| (format!("{OF_POLICY}{name}"), "target".to_owned()));
        pod.annotations.extend(marks);
        // That of an earlier build does not count beside them.
        pod.annotations
            .insert(format!("{MARK}app"), "gone".to_owned());
        pod
    };
    assert_eq!(name(&all, &marked(&["a", "b", "c"])).as_deref(), Some("c"));
    assert_eq!(name(&all, &marked(&["a", "b"])).as_deref(), Some("b"));
    assert_eq!(all.find(&marked(&["a"]), "side"), Ok(None));
    let expected = Err(Undecided::NoProfile("d".to_owned()));
    assert_eq!(all.find(&marked(&["a", "d"]), "app"), expected);
    assert_eq!(all.of_pod(&marked(&["a"])).len(), 1);
}

#[test]
fn a_profile_of_another_installation_is_left_to_its_agents() {
    let target = json!({"kind": "Pod", "name": "web"});
    let of = |installation: &str| {
        let mut object = profile("p", target.clone(), "VarmorPolicy", "1");
        object["metadata"]["annotations"][INSTALLATION] = json!(installation);
        object
    };
    let web = pod("web", &[]);
    let mut all = index(&[of("tollgate")]);
    assert_eq!(name(&all, &web).as_deref(), Some("p"));
    assert_eq!(all.apply(&of("other")), Ok(true));
    assert_eq!((name(&all, &web).as_deref(), all.len()), (None, 0));
    assert_eq!(all.apply(&of("other")), Ok(false));
}

#[test]
fn an_object_that_cannot_be_read_refuses_or_changes_nothing() {
    let target = json!({"kind": "Pod", "name": "web"});
    let good = profile("p", target.clone(), "VarmorPolicy", "1");
    let mut foreign = good.clone();
    foreign["metadata"]["annotations"] = json!({});
    foreign["metadata"]["resourceVersion"] = json!("9");
    let mut ours = foreign.clone();
    ours["metadata"]["annotations"] = json!({ INSTALLATION: "tollgate" });
    let web = pod("web", &[]);
    // What was known stays.
    for broken in [&foreign, &ours] {
        let mut all = index(std::slice::from_ref(&good));
        let error = all.apply(broken).unwrap_err().to_string();
        assert!(
            error.contains("demo/p") && error.contains(TARGET),
            "{error}"
        );
        assert_eq!((all.version, name(&all, &web).as_deref()), (9, Some("p")));
    }
    let mut all = index(&[]);
    all.apply(&foreign).unwrap_err();
    assert_eq!(name(&all, &web).as_deref(), None);
    all.apply(&ours).unwrap_err();
    let found = all.find(&pod("any", &[]), "app").unwrap().unwrap();
    assert!(found.problem.is_some());
    let mut other = pod("any", &[]);
    other.namespace = "other".to_owned();
    assert_eq!(name(&all, &other).as_deref(), None);
    // Its target is known, and not its policy.
    ours["metadata"]["annotations"][TARGET] = json!(target.to_string());
    let mut all = index(&[]);
    all.apply(&ours).unwrap_err();
    assert_eq!(name(&all, &web).as_deref(), Some("p"));
    assert_eq!(name(&all, &pod("any", &[])).as_deref(), None);
}

#[test]
fn a_profile_is_of_the_cluster_only_in_the_namespace_of_the_installation() {
    let target = json!({"kind": "Pod", "name": "web"});
    let of = |namespace: &str, owner: &str| {
        let mut object = profile("p", target.clone(), owner, "0");
        object["metadata"]["namespace"] = json!(namespace);
        object
    };
    let web = pod("web", &[]);
    let forged = index(&[of("evil", "VarmorClusterPolicy")]);
    assert_eq!(name(&forged, &web).as_deref(), None);
    let mut marked = web.clone();
    marked
        .annotations
        .insert(format!("{MARK}app"), "p".to_owned());
    assert_eq!(
        forged.find(&marked, "app").unwrap_err(),
        Undecided::NoProfile("p".to_owned())
    );
    let real = of("tollgate", "VarmorClusterPolicy");
    assert_eq!(
        name(&index(std::slice::from_ref(&real)), &web).as_deref(),
        Some("p")
    );
    let mut of_another_group = real;
    of_another_group["metadata"]["ownerReferences"][0]["apiVersion"] = json!("evil.io/v1");
    assert_eq!(name(&index(&[of_another_group]), &web).as_deref(), None);
}

/// Its agents may be gone, and nothing says whether they have confined the container.
#[test]
fn the_mark_of_a_profile_of_another_installation_is_unknown() {
    let mut object = profile(
        "varmor-demo-p",
        json!({"kind": "Pod", "name": "x"}),
        "VarmorPolicy",
        "0",
    );
    object["metadata"]["annotations"][INSTALLATION] = json!("other");
    let all = index(&[object]);
    let mut web = pod("web", &[]);
    let mark = format!("{OF_POLICY}varmor-demo-p");
    web.annotations.insert(mark, "target".to_owned());
    let error = all.find(&web, "app").unwrap_err();
    assert_eq!(error, Undecided::NoProfile("varmor-demo-p".to_owned()));
    assert_eq!(all.unknown_marks(&web), ["varmor-demo-p"]);
}

/// Objects with each thing that an entry has, and with what it does not have.
fn objects_of_all_forms() -> Vec<Value> {
    let pod = json!({"kind": "Pod", "name": "web"});
    let selected = json!({"kind": "Deployment", "selector": { "matchLabels": {"app": "web", "b": ""},
        "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a", ""]}, {"key": "x", "operator": "Exists"}] },
        "containers": ["app", "side"]});
    let every = json!({"kind": "CronTab", "selector": {}});
    let hash = "0123456789abcdef".repeat(4);
    let mut all = Vec::new();
    for (number, target) in [pod, selected, every].into_iter().enumerate() {
        for (kind, hash) in [
            ("VarmorPolicy", &*hash),
            ("VarmorClusterPolicy", "ABC"),
            ("Other", ""),
        ] {
            for created in ["2026-11-29T20:00:00Z", "2026-11-29T20:00:00+01:00", "", "x"] {
                let mut object = profile("p", target.clone(), kind, created);
                object["metadata"]["annotations"][HASH] = json!(hash);
                object["metadata"]["name"] = json!(format!("p-{number}-{}", all.len()));
                all.push(object);
            }
        }
    }
    let first = all[0].clone();
    all.extend(changed_forms().iter().enumerate().map(|(number, change)| {
        let mut object = first.clone();
        object["metadata"]["name"] = json!(format!("q-{number}"));
        change(&mut object["metadata"]);
        object
    }));
    all
}

/// What metadata may have besides.
fn changed_forms() -> [fn(&mut Value); 12] {
    [
        |meta| meta["annotations"][FAIL_MODE] = json!("open"),
        |meta| meta["annotations"][FAIL_MODE] = json!("OPEN"),
        |meta| meta["annotations"][MODELING] = json!("17/5"),
        |meta| meta["annotations"][MODELING] = json!("18446744073709551615/5/over"),
        |meta| meta["annotations"][INSTALLATION] = json!("tollgate"),
        |meta| meta["namespace"] = json!("tollgate"),
        |meta| {
            meta["namespace"] = json!("tollgate");
            meta["ownerReferences"][0]["kind"] = json!("VarmorClusterPolicy");
        },
        |meta| {
            meta["namespace"] = json!("tollgate");
            let mut second = meta["ownerReferences"][0].clone();
            second["kind"] = json!("VarmorClusterPolicy");
            let owners = meta["ownerReferences"].as_array_mut();
            owners.expect("an array").push(second);
        },
        |meta| meta["ownerReferences"] = json!([]),
        |meta| {
            meta["name"] = json!("varmor-demo-web");
            meta["ownerReferences"][0]["name"] = json!("web");
        },
        |meta| {
            meta["name"] = json!("varmor-cluster-tollgate-web");
            meta["namespace"] = json!("tollgate");
            meta["ownerReferences"][0]["kind"] = json!("VarmorClusterPolicy");
            meta["ownerReferences"][0]["name"] = json!("web");
        },
        // The name of a policy may have capitals, that of its profile has none.
        |meta| {
            meta["name"] = json!("varmor-demo-web2");
            meta["ownerReferences"][0]["name"] = json!("Web2");
        },
    ]
}

#[test]
fn what_is_packed_is_what_came_also_for_the_next_agent() {
    let objects = objects_of_all_forms();
    let mut all = index(&objects);
    // One of ours that cannot be read is known, too.
    for (name, annotations) in [
        ("r1", json!({ INSTALLATION: "tollgate" })),
        (
            "r2",
            json!({ INSTALLATION: "tollgate", TARGET: "{", HASH: "x" }),
        ),
        (
            "r3",
            json!({ INSTALLATION: "tollgate", TARGET: "{\"kind\":\"Pod\"}", HASH: "x", MODELING: "?" }),
        ),
    ] {
        let mut object = objects[0].clone();
        object["metadata"]["name"] = json!(name);
        object["metadata"]["annotations"] = annotations;
        all.apply(&object).unwrap_err();
    }
    assert_eq!(all.len(), objects.len() + 3);
    for object in &objects {
        let meta: Meta = serde_json::from_value(object["metadata"].clone()).unwrap();
        let key = ObjectKey {
            namespace: meta.namespace.clone().unwrap(),
            name: meta.name.clone(),
        };
        assert_eq!(all.get(&key), Some(all.entry(&key, &meta)), "{object}");
    }
    let text = serde_json::to_string(&all.objects()).unwrap();
    let kept: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut next = Index::new("tollgate".to_owned());
    next.load(&kept);
    let (before, after): (Vec<Entry>, Vec<Entry>) =
        (all.entries().collect(), next.entries().collect());
    assert_eq!(before, after);
    let sorted: Vec<ObjectKey> = all.keys().collect();
    assert!(sorted.is_sorted() && sorted.len() == all.len());
}

#[test]
fn entries_of_a_namespace_are_found_among_those_of_others() {
    let target = json!({"kind": "Pod", "name": "web"});
    let mut all = Index::new("tollgate".to_owned());
    for namespace in ["a", "aa", "demo", "demo-2", "demo.", "e", "tollgate"] {
        for name in ["x", "", "z"] {
            let mut object = profile(name, target.clone(), "VarmorPolicy", "1");
            object["metadata"]["namespace"] = json!(namespace);
            all.apply(&object).unwrap();
        }
    }
    let web = pod("web", &[]);
    let near: Vec<ObjectKey> = all.near(&web).map(|entry| entry.key).collect();
    assert_eq!(near.len(), 3);
    assert!(near.iter().all(|key| key.namespace == "demo"), "{near:?}");
    assert_eq!(all.of_pod(&web).len(), 3);
}
