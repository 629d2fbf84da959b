//! Tests of profiles that are deleted.

use super::*;

/// The profile of the policy as the API server has it, deleted or not.
fn deleted(cluster: &Cluster, version: u64, is_deleted: bool, finalizers: &[&str]) -> Event {
    let Event::Profile(mut profile) = stored(cluster, &id("web"), version) else {
        panic!("it is a profile");
    };
    profile.metadata.uid = Some("u".to_owned());
    profile.metadata.finalizers = finalizers.iter().map(ToString::to_string).collect();
    profile.metadata.deletion_timestamp = is_deleted.then(|| "2026-01-01T00:00:00Z".to_owned());
    Event::Profile(profile)
}

fn released(cluster: &Cluster) -> Vec<(Vec<String>, bool)> {
    let all = cluster.released(|_| false).into_iter();
    all.map(|release| (release.finalizers, release.is_seen))
        .collect()
}

#[test]
fn a_deleted_profile_waits_for_every_node_and_for_no_policy() {
    let mut cluster = one_node();
    cluster.apply(simple("web"));
    let of_others = [FINALIZER, "other.example/x"];
    let (there, going) = (
        deleted(&cluster, 15, false, &of_others),
        deleted(&cluster, 17, true, &of_others),
    );
    let later = deleted(&cluster, 19, true, &of_others);
    cluster.apply(there);
    assert_eq!(cluster.orphans(), []);
    cluster.apply(going);
    cluster.apply(report_of("n1", "b1", 1, 18, json!([])));
    // Its policy exists: it stays, however old the deletion is.
    assert_eq!(cluster.released(|_| true), []);
    cluster.apply(Event::PolicyGone(id("web")));
    // It is deleted already.
    assert_eq!(cluster.orphans(), []);
    // A later version of the same deletion need not be seen.
    cluster.apply(later);
    let expected = (vec!["other.example/x".to_owned()], true);
    assert_eq!(released(&cluster), std::slice::from_ref(&expected));
    cluster.apply(node("n2", "b"));
    assert_eq!(released(&cluster), []);
    let overdue = cluster.released(|since| since == "2026-01-01T00:00:00Z");
    assert!(overdue.len() == 1 && !overdue[0].is_seen, "{overdue:?}");
    cluster.apply(report_of("n2", "b", 1, 16, json!([])));
    assert_eq!(released(&cluster), []);
    cluster.apply(report_of("n2", "b", 2, 17, json!([])));
    assert_eq!(released(&cluster), [expected]);
}

/// The field of the policy may have been switched off after restarts.
#[test]
fn every_profile_of_a_kind_that_can_be_restarted_may_have_left_marks() {
    let mut cluster = one_node();
    let Event::Profile(mut profile) = deleted(&cluster, 17, true, &[FINALIZER]) else {
        panic!("it is a profile");
    };
    assert!(!profile.spec.update_existing_workloads);
    cluster.apply(Event::PolicyGone(id("web")));
    for (kind, expected) in [
        ("Deployment", Some("Deployment")),
        ("DaemonSet", Some("DaemonSet")),
        ("Pod", None),
    ] {
        profile.spec.target.kind = kind.to_owned();
        cluster.apply(Event::Profile(profile.clone()));
        let all = cluster.released(|_| true);
        assert!(all[0].is_overdue);
        let expected = expected.map(|kind| (kind.to_owned(), Some("demo".to_owned())));
        assert_eq!(all[0].restarted, expected);
    }
}
