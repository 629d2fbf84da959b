//! Which workload a pod is of, as far as a container runtime tells: it knows labels and the name of a pod, and no owners.

use std::collections::{BTreeMap, HashMap};

use kinds::Target;
use nri::message::PodSandbox;

/// Longest name of a pod that a controller makes up. The API server cuts what comes before its random end.
const MAX_NAME: usize = 63;
/// What is left of the part before the random end, of 5 bytes.
const MAX_BASE: usize = MAX_NAME - 5;

/// How a target and a pod go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    No,
    /// The name of the pod is cut, and begins as those of the target's pods do: another workload's may, too.
    Perhaps,
    Yes,
}

/// Compares a pod with a target. Labels of a workload are taken to be those of its pods.
pub(crate) fn compare(target: &Target, pod: &PodSandbox) -> Match {
    let kind = kind(pod);
    let yes = |is_it: bool| if is_it { Match::Yes } else { Match::No };
    match &target.selector {
        Some(selector) => {
            let labels: BTreeMap<String, String> = pod
                .labels
                .iter()
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            // The kind Pod is about every pod, whoever owns it.
            let is_kind = target.kind == "Pod" || kind == target.kind;
            yes(is_kind && selector.matches(&labels))
        }
        None if target.kind == "Pod" => yes(target.name == pod.name),
        None if target.kind != kind => Match::No,
        None => compare_name(target, pod),
    }
}

/// Kind of the workload of a pod, by the labels that its controller gives it; `Pod` if it has none.
fn kind(pod: &PodSandbox) -> &'static str {
    let has = |key: &str| pod.labels.contains_key(key);
    if has("pod-template-hash") {
        return "Deployment";
    }
    match (
        has("controller-revision-hash"),
        has("statefulset.kubernetes.io/pod-name"),
    ) {
        (true, true) => "StatefulSet",
        (true, false) => "DaemonSet",
        (false, _) => "Pod",
    }
}

/// The controller of a pod, or what is behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// Group and version of the kind.
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) name: String,
}

/// The workload of a pod, by the labels and the name that controllers give; `None` if these do not tell, also because the name
/// was cut. Authors of pods can write such labels themselves.
pub(crate) fn workload(pod: &PodSandbox) -> Option<Workload> {
    let label = |keys: &[&str]| {
        let mut found = keys.iter().filter_map(|key| pod.labels.get(*key));
        found.next().filter(|value| !value.is_empty())
    };
    let (base, end) = pod.name.rsplit_once('-')?;
    let is_random = end.len() == MAX_NAME - MAX_BASE;
    // What the API server has cut ends anywhere in the name of the workload.
    let is_whole = pod.name.len() < MAX_NAME;
    let (api_version, kind, name) = match kind(pod) {
        "Deployment" => {
            let hash = pod.labels.get("pod-template-hash")?;
            let name = base.strip_suffix(hash.as_str())?.strip_suffix('-')?;
            ("apps/v1", "Deployment", is_random.then_some(name)?)
        }
        "StatefulSet" => {
            let is_of_pod = pod.labels.get("statefulset.kubernetes.io/pod-name") == Some(&pod.name);
            let is_number = !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit());
            (
                "apps/v1",
                "StatefulSet",
                (is_of_pod && is_number).then_some(base)?,
            )
        }
        "DaemonSet" => (
            "apps/v1",
            "DaemonSet",
            (is_whole && is_random).then_some(base)?,
        ),
        _ => {
            let name = label(&["batch.kubernetes.io/job-name", "job-name"])?;
            ("batch/v1", "Job", name.as_str())
        }
    };
    let name = Some(name).filter(|name| !name.is_empty())?.to_owned();
    Some(Workload {
        api_version,
        kind,
        name,
    })
}

/// Compares the name of a pod with those that the controller of a workload gives.
fn compare_name(target: &Target, pod: &PodSandbox) -> Match {
    let hash = |labels: &HashMap<String, String>| labels.get("pod-template-hash").cloned();
    let mut base = match (&*target.kind, hash(&pod.labels)) {
        ("Deployment", Some(hash)) => format!("{}-{hash}-", target.name),
        _ => format!("{}-", target.name),
    };
    // A StatefulSet numbers its pods, and names that are too long are refused.
    let is_cut = target.kind != "StatefulSet" && base.len() > MAX_BASE;
    if is_cut {
        let mut end = MAX_BASE;
        while !base.is_char_boundary(end) {
            end -= 1;
        }
        base.truncate(end);
    }
    let end = pod.name.strip_prefix(&base);
    match end.is_some_and(|end| !end.is_empty() && !end.contains('-')) {
        false => Match::No,
        true if !is_cut => Match::Yes,
        true if pod.name.len() == MAX_NAME => Match::Perhaps,
        true => Match::No,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::index::tests::pod;

    /// The name that the API server makes of what a controller wants.
    fn made(base: &str) -> String {
        format!("{}x1y2z", &base[..base.len().min(MAX_BASE)])
    }

    fn target(kind: &str, name: &str) -> Target {
        serde_json::from_value(json!({ "kind": kind, "name": name })).unwrap()
    }

    #[test]
    fn a_long_name_is_compared_with_what_is_left_of_it() {
        let hash = "5d4f8c7b9f";
        for length in [1, 46, 47, 48, 57, 58, 59, 100] {
            let name = "n".repeat(length);
            let labels = [("pod-template-hash", hash)];
            let deployed = pod(&made(&format!("{name}-{hash}-")), &labels);
            let daemon = pod(
                &made(&format!("{name}-")),
                &[("controller-revision-hash", "r")],
            );
            for (kind, own, other, added) in [
                ("Deployment", &deployed, &daemon, hash.len() + 2),
                ("DaemonSet", &daemon, &deployed, 1),
            ] {
                let expected = match length + added > MAX_BASE {
                    true => Match::Perhaps,
                    false => Match::Yes,
                };
                let target = target(kind, &name);
                assert_eq!(compare(&target, own), expected, "{kind} {length}");
                assert_eq!(compare(&target, other), Match::No, "{kind} {length}");
            }
            let shorter = target("Deployment", &name[1..]);
            let is_hidden = length > MAX_BASE;
            let expected = if is_hidden { Match::Perhaps } else { Match::No };
            assert_eq!(compare(&shorter, &deployed), expected, "{length}");
        }
    }

    #[test]
    fn a_workload_is_known_where_labels_and_name_tell_it() {
        let found = |name: &str, labels: &[(&str, &str)]| {
            let workload = workload(&pod(name, labels))?;
            Some(format!("{} {}", workload.kind, workload.name))
        };
        let hash = [("pod-template-hash", "5d4f8c7b9f")];
        let daemon = [("controller-revision-hash", "r")];
        let set = |name| {
            [
                ("controller-revision-hash", "r"),
                ("statefulset.kubernetes.io/pod-name", name),
            ]
        };
        for (name, labels, expected) in [
            (
                "web-front-5d4f8c7b9f-x1y2z",
                &hash[..],
                Some("Deployment web-front"),
            ),
            ("log-x1y2z", &daemon, Some("DaemonSet log")),
            (
                "db-main-10",
                &set("db-main-10"),
                Some("StatefulSet db-main"),
            ),
            (
                "backup-x1y2z",
                &[("job-name", "backup")],
                Some("Job backup"),
            ),
            ("web", &[], None),
            // Labels that somebody has copied.
            ("web-5d4f8c7b9f-x1y2z-debug", &hash, None),
            ("web", &hash, None),
            ("-5d4f8c7b9f-x1y2z", &hash, None),
            ("db-main-10", &set("db-main-9"), None),
            ("db-main-ten", &set("db-main-ten"), None),
        ] {
            assert_eq!(found(name, labels).as_deref(), expected, "{name}");
        }
        // A name that may have been cut is not taken for the whole.
        let name = "n".repeat(58);
        assert_eq!(found(&made(&format!("{name}-")), &daemon), None);
        assert_eq!(found(&made(&format!("{name}-5d4f8c7b9f-")), &hash), None);
        let name = "n".repeat(46);
        let expected = format!("Deployment {name}");
        let whole = made(&format!("{name}-5d4f8c7b9f-"));
        assert_eq!(found(&whole, &hash), Some(expected));
    }

    #[test]
    fn a_selector_is_for_pods_whose_name_is_cut() {
        let selector = json!({"kind": "Deployment", "selector": {"matchLabels": {"app": "web"}}});
        let target: Target = serde_json::from_value(selector).unwrap();
        let name = made(&format!("{}-5d4f8c7b9f-", "n".repeat(55)));
        let labels = [("pod-template-hash", "5d4f8c7b9f"), ("app", "web")];
        assert_eq!(compare(&target, &pod(&name, &labels)), Match::Yes);
        assert_eq!(compare(&target, &pod(&name, &labels[1..])), Match::No);
    }
}
