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

fn name<'i>(index: &'i Index, pod: &PodSandbox) -> Option<&'i str> {
    let found = index.find(pod, "app").unwrap();
    found.map(|entry| entry.key.name.as_str())
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
            assert_eq!(name(&index, pod), expected, "{kind} {}", pod.name);
        }
        let mut elsewhere = own.clone();
        elsewhere.namespace = "other".to_owned();
        assert_eq!(name(&index, &elsewhere), None, "{kind}");
    }
    let selector = json!({"kind": "Deployment", "selector": {"matchLabels": {"app": "web"}}});
    let index = index(&[profile("p", selector, "VarmorPolicy", "1")]);
    assert_eq!(name(&index, &deployed), Some("p"));
    assert_eq!(name(&index, &bare), None);
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
        assert_eq!(name(&all, &bare(Some("m"))), Some(expected));
        assert!(all.delete(&ObjectKey {
            namespace: namespace.to_owned(),
            name: expected.to_owned(),
        }));
    }
    assert_eq!(name(&all, &bare(Some("m"))), Some("m"));
    assert_eq!(name(&all, &bare(None)), None);
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
    assert_eq!(name(&all, &pod), Some("b"));
    assert_eq!(name(&index(&[of("a", "a", "1")]), &pod), Some("a"));
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
    assert_eq!(name(&all, &marked(&["a", "b", "c"])), Some("c"));
    assert_eq!(name(&all, &marked(&["a", "b"])), Some("b"));
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
    assert_eq!(name(&all, &web), Some("p"));
    assert_eq!(all.apply(&of("other")), Ok(true));
    assert_eq!((name(&all, &web), all.objects().len()), (None, 0));
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
        assert_eq!((all.version, name(&all, &web)), (9, Some("p")));
    }
    let mut all = index(&[]);
    all.apply(&foreign).unwrap_err();
    assert_eq!(name(&all, &web), None);
    all.apply(&ours).unwrap_err();
    let found = all.find(&pod("any", &[]), "app").unwrap().unwrap();
    assert!(found.problem.is_some());
    let mut other = pod("any", &[]);
    other.namespace = "other".to_owned();
    assert_eq!(name(&all, &other), None);
    // Its target is known, and not its policy.
    ours["metadata"]["annotations"][TARGET] = json!(target.to_string());
    let mut all = index(&[]);
    all.apply(&ours).unwrap_err();
    assert_eq!(name(&all, &web), Some("p"));
    assert_eq!(name(&all, &pod("any", &[])), None);
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
    assert_eq!(name(&forged, &web), None);
    let mut marked = web.clone();
    marked
        .annotations
        .insert(format!("{MARK}app"), "p".to_owned());
    assert_eq!(
        forged.find(&marked, "app").unwrap_err(),
        Undecided::NoProfile("p".to_owned())
    );
    let real = of("tollgate", "VarmorClusterPolicy");
    assert_eq!(name(&index(std::slice::from_ref(&real)), &web), Some("p"));
    let mut of_another_group = real;
    of_another_group["metadata"]["ownerReferences"][0]["apiVersion"] = json!("evil.io/v1");
    assert_eq!(name(&index(&[of_another_group]), &web), None);
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
