//! Which installation acts on a policy.

use super::*;

const CLUSTER_POLICY: &str = "all";

/// A policy of the cluster, with the claim that its status has.
fn cluster_policy(claim: Option<&str>) -> Event {
    let status = claim.map(|claim| json!({ "installation": claim }));
    Event::Policy(read(json!({
        "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorClusterPolicy",
        "metadata": { "name": CLUSTER_POLICY, "uid": "u1" },
        "spec": { "target": { "kind": "Deployment", "selector": {} },
            "policy": { "enforcer": "BPF", "mode": "RuntimeDefault" } },
        "status": status,
    })))
}

fn all() -> PolicyId {
    PolicyId {
        scope: Scope::Cluster,
        key: key("", CLUSTER_POLICY),
    }
}

/// The profile of the policy of the cluster in the namespace of an installation; without one, as vArmor writes it.
fn profile_of(cluster: &Cluster, namespace: &str, installation: Option<&str>) -> Event {
    let profile = cluster.profile(&all());
    let spec = profile.map_or(Value::Null, |profile| json!(profile.spec));
    let spec = match spec.is_null() {
        false => spec,
        true => {
            json!({ "target": { "kind": "Deployment", "selector": {} }, "updateExistingWorkloads": false,
            "behaviorModeling": { "enable": false, "duration": 0 },
            "profile": { "name": "x", "enforcer": "BPF", "mode": "enforce" } })
        }
    };
    let annotations = installation.map_or(json!({}), |name| json!({ INSTALLATION: name }));
    Event::Profile(read(json!({
        "apiVersion": "crd.varmor.org/v1beta1", "kind": "ArmorProfile",
        "metadata": { "name": format!("varmor-cluster-{namespace}-{CLUSTER_POLICY}"), "namespace": namespace,
            "resourceVersion": "7", "annotations": annotations, "ownerReferences": [{
                "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorClusterPolicy", "name": CLUSTER_POLICY,
                "uid": "u1", "controller": true }] },
        "spec": spec,
    })))
}

fn of_two() -> [Cluster; 2] {
    let mut both = ["a", "b"].map(|name| Cluster::new(name, false));
    for cluster in &mut both {
        sync(cluster);
        cluster.apply(cluster_policy(None));
    }
    both
}

#[test]
fn a_policy_belongs_to_the_installation_that_its_status_names() {
    let [mut a, mut b] = of_two();
    for cluster in [&a, &b] {
        assert_eq!(cluster.claim(&all()), PolicyClaim::Free);
    }
    // What either writes first has its claim.
    let status = a.status(&all()).unwrap();
    assert_eq!(status.installation.as_deref(), Some("a"));
    a.apply(cluster_policy(Some("a")));
    b.apply(cluster_policy(Some("a")));
    assert_eq!(a.claim(&all()), PolicyClaim::Ours);
    assert_eq!(a.inactive(&all()), None);
    assert_eq!(
        b.claim(&all()),
        PolicyClaim::Other(Rival::Installation("a".to_owned()))
    );
    assert!(matches!(
        b.profile(&all()),
        Err(ProfileError::OtherInstallation { .. })
    ));
    let condition = b.inactive(&all()).unwrap();
    assert_eq!(condition.kind, "b.tollgate.dev/Active");
    assert_eq!(
        (condition.status, condition.reason.as_str()),
        (ConditionStatus::False, "OtherInstallation")
    );
    assert_eq!(
        condition.message,
        "the installation in the namespace a acts on this policy, and the installation in the namespace b does nothing"
    );
}

#[test]
fn a_profile_from_before_there_were_claims_is_one() {
    let [a, mut b] = of_two();
    b.apply(profile_of(&a, "a", Some("a")));
    assert_eq!(
        b.claim(&all()),
        PolicyClaim::Other(Rival::Installation("a".to_owned()))
    );
    b.apply(Event::ProfileGone(key("a", "varmor-cluster-a-all")));
    assert_eq!(b.claim(&all()), PolicyClaim::Free);
    // Also one of a namespace, which has the same name for all.
    let mut other = Cluster::new("tollgate", false);
    sync(&mut other);
    other.apply(simple("web"));
    let Event::Profile(mut profile) = stored(&other, &id("web"), 12) else {
        panic!("it is a profile");
    };
    profile
        .metadata
        .annotations
        .insert(INSTALLATION.to_owned(), "a".to_owned());
    other.apply(Event::Profile(profile));
    let expected = PolicyClaim::Other(Rival::Installation("a".to_owned()));
    assert_eq!(other.claim(&id("web")), expected);
}

/// vArmor writes an ArmorProfile, and replaces the status by one without fields that it does not know.
#[test]
fn a_policy_on_which_varmor_acts_is_left_to_it_and_the_profile_in_force_stays() {
    let [mut a, _] = of_two();
    a.apply(cluster_policy(Some("a")));
    a.apply(profile_of(&a, "a", Some("a")));
    assert_eq!(a.claim(&all()), PolicyClaim::Ours);
    a.take_changes();
    a.apply(profile_of(&a, "varmor", None));
    assert!(a.take_changes().contains(&all()), "its status is written");
    for claim in [Some("a"), None] {
        a.apply(cluster_policy(claim));
        let rival = Rival::Program(key("varmor", "varmor-cluster-varmor-all"));
        assert_eq!(a.claim(&all()), PolicyClaim::Other(rival));
        let message = a.inactive(&all()).unwrap().message;
        assert!(
            message.contains("another program, such as vArmor, whose ArmorProfile is varmor/varmor-cluster-varmor-all"),
            "{message}"
        );
    }
    assert_eq!(a.orphans(), [], "nothing is weakened");
    a.apply(Event::ProfileGone(key(
        "varmor",
        "varmor-cluster-varmor-all",
    )));
    assert_eq!(a.claim(&all()), PolicyClaim::Free);
}

#[test]
fn a_claim_that_is_handed_over_is_followed_and_the_old_profile_goes_when_the_new_one_is_there() {
    let [mut a, mut b] = of_two();
    let of_a = profile_of(&a, "a", Some("a"));
    for cluster in [&mut a, &mut b] {
        cluster.apply(cluster_policy(Some("a")));
        cluster.apply(of_a.clone());
        cluster.apply(cluster_policy(Some("b")));
    }
    assert_eq!((a.claim(&all()), b.claim(&all())).1, PolicyClaim::Ours);
    assert!(matches!(a.claim(&all()), PolicyClaim::Other(_)));
    assert_eq!(a.orphans(), [], "until then the policy is in force");
    let of_b = profile_of(&b, "b", Some("b"));
    a.apply(of_b.clone());
    b.apply(of_b);
    let orphans = a.orphans();
    assert_eq!(orphans.len(), 1);
    assert_eq!(orphans[0].0, key("a", "varmor-cluster-a-all"));
    assert_eq!(b.orphans(), []);
}

#[test]
fn the_profile_of_a_namespace_is_taken_over_with_the_claim() {
    let mut cluster = one_node();
    let Event::Profile(mut profile) = stored(&cluster, &id("web"), 12) else {
        panic!("it is a profile");
    };
    profile
        .metadata
        .annotations
        .insert(INSTALLATION.to_owned(), "old".to_owned());
    cluster.apply(Event::Profile(profile));
    let Event::Policy(mut policy) = simple("web") else {
        panic!("it is a policy");
    };
    policy.status = Some(PolicyStatus {
        installation: Some("tollgate".to_owned()),
        ..PolicyStatus::default()
    });
    cluster.apply(Event::Policy(policy));
    let desired = cluster.profile(&id("web")).unwrap();
    assert!(!cluster.is_written(&desired));
    let (_, reason, message) = ready(&cluster, &id("web"));
    assert_eq!(reason, "Processing");
    assert_eq!(message, "the ArmorProfile is not written yet");
}

/// Both ran before there were claims. If each gave way to the other's profile, the policy would have none.
#[test]
fn of_two_installations_with_profiles_from_before_there_were_claims_the_first_claim_decides() {
    let [mut a, mut b] = of_two();
    let profiles = [
        profile_of(&a, "a", Some("a")),
        profile_of(&b, "b", Some("b")),
    ];
    for cluster in [&mut a, &mut b] {
        for profile in &profiles {
            cluster.apply(profile.clone());
        }
        assert_eq!(cluster.claim(&all()), PolicyClaim::Free);
        assert_eq!(cluster.orphans(), []);
    }
    for cluster in [&mut a, &mut b] {
        cluster.apply(cluster_policy(Some("a")));
    }
    assert_eq!(a.claim(&all()), PolicyClaim::Ours);
    assert_eq!(a.orphans(), []);
    assert_eq!(b.orphans().len(), 1, "it was handed over by the claim");
}

/// Anybody who may create ArmorProfiles in a namespace can name a policy as the owner.
#[test]
fn a_profile_with_another_name_than_that_of_varmor_is_no_claim() {
    let [mut a, _] = of_two();
    a.apply(cluster_policy(Some("a")));
    let named = |namespace: &str, name: &str, installation: Option<&str>| {
        let Event::Profile(mut profile) = profile_of(&a, namespace, installation) else {
            panic!("it is a profile");
        };
        profile.metadata.name = name.to_owned();
        Event::Profile(profile)
    };
    let wrong = [
        named("evil", "x", None),
        named("evil", "varmor-cluster-varmor-all", None),
        named("evil", "varmor-cluster-all", Some("evil")),
    ];
    let right = named("varmor", "varmor-cluster-varmor-all", None);
    for event in wrong {
        a.apply(event);
        assert_eq!(a.claim(&all()), PolicyClaim::Ours);
    }
    a.apply(right);
    assert!(matches!(
        a.claim(&all()),
        PolicyClaim::Other(Rival::Program(_))
    ));
    // One of a namespace has the same name for all.
    let mut other = Cluster::new("tollgate", false);
    sync(&mut other);
    let Event::Policy(mut policy) = simple("Web") else {
        panic!("it is a policy");
    };
    policy.metadata.uid = Some("u1".to_owned());
    other.apply(Event::Policy(policy));
    let Event::Profile(mut profile) = profile_of(&other, "evil", None) else {
        panic!("it is a profile");
    };
    profile.metadata.name = "varmor-demo-web".to_owned();
    other.apply(Event::Profile(profile.clone()));
    assert_eq!(other.claim(&id("Web")), PolicyClaim::Free);
    profile.metadata.namespace = Some("demo".to_owned());
    other.apply(Event::Profile(profile));
    assert!(matches!(other.claim(&id("Web")), PolicyClaim::Other(_)));
}
