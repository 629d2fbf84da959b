//! Tests of policies of bundles.

use bundle::PrivateKey;
use outputs::CollectorOutput;

use super::*;

fn text(calls: &[&str]) -> String {
    let rules = calls
        .iter()
        .map(|call| format!("    - {{names: [{call}], action: SCMP_ACT_ERRNO}}\n"));
    format!(
        "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    \
         syscallRawRules:\n{}",
        rules.collect::<String>()
    )
}

fn file(name: &str, calls: &[&str]) -> File {
    File {
        name: name.to_owned(),
        text: text(calls),
    }
}

fn content(policies: &[File]) -> Content {
    Content {
        version: 1,
        policies: policies.to_vec(),
        ..Content::default()
    }
}

/// A command with the policy `web`, which is in force.
fn taker(calls: &[&str]) -> PolicyTaker {
    let own = Arc::new(policy_files::parse("web.yaml", &text(calls)));
    PolicyTaker::Takes(Arc::new(Taking {
        own: Some(Arc::clone(&own)),
        in_force: InForce::Known(own),
        how: PolicyStrictness::default(),
        refused: None,
    }))
}

fn problem(taker: &PolicyTaker, new: &[File], last: Option<&[File]>) -> String {
    let last = last.map(content);
    let refused = taker.check(&content(new), last.as_ref(), false);
    refused.expect_err("it is refused").problem
}

#[test]
fn a_bundle_may_tighten_a_policy_and_loosens_none_unless_that_is_allowed() {
    let taker = taker(&["mkdir"]);
    let tighter = [file("web", &["mkdir", "symlink"])];
    let own = [file("web", &["mkdir"])];
    let looser = [file("web", &["symlink"])];
    assert_eq!(taker.check(&content(&tighter), None, false), Ok(()));
    assert!(problem(&taker, &looser, None).contains("allows more"));
    assert_eq!(taker.check(&content(&looser), None, true), Ok(()));
    // Than the last bundle, which waits for the next start; also if it is left out.
    let why = problem(&taker, &own, Some(&tighter));
    assert!(why.contains("no rule that is as strict"), "{why}");
    let why = problem(&taker, &[], Some(&tighter));
    assert!(why.contains("no rule that is as strict"), "{why}");
    assert_eq!(
        taker.check(&content(&[]), Some(&content(&own)), false),
        Ok(())
    );
    // Of others, too: agents of a host share the last bundle.
    let other = [file("db", &["mkdir"])];
    assert!(problem(&taker, &[], Some(&other)).contains("the bundle does without it"));
    let none = PolicyTaker::Not("watch");
    assert!(problem(&none, &[], Some(&other)).contains("the bundle does without it"));
}

#[test]
fn a_policy_that_cannot_be_used_is_refused_with_its_name() {
    let taker = taker(&["mkdir"]);
    let with = |text: String| {
        let name = "web".to_owned();
        problem(&taker, &[File { name, text }], None)
    };
    let why = with(text(&["mkdir"]).replace("Seccomp", "Seccmp"));
    assert!(
        why.contains("policy web: ") && why.contains("Seccmp"),
        "{why}"
    );
    let indented = text(&["mkdir"]).replace('\n', "\n  ");
    let why = with(format!(
        "apiVersion: crd.varmor.org/v1beta1\nkind: VarmorPolicy\nmetadata: {{name: other}}\nspec:\n  {indented}\n"
    ));
    assert!(why.contains("its document is called other"), "{why}");
    let why = with(format!("{0}---\n{0}", text(&["mkdir"])));
    assert!(why.contains("it has 2 policies"), "{why}");
    let refusal = PolicyTaker::Not("watch").check(&content(&[file("web", &[])]), None, true);
    let refusal = refusal.expect_err("it takes none");
    assert!(
        refusal
            .problem
            .contains("`tollgate watch` takes no policies")
    );
    let policy = refusal.policy.expect("one of the bundle");
    assert!(matches!(policy.state, BundledPolicyState::Refused(_)));
}

#[test]
fn an_agent_that_took_over_compares_with_what_it_finds_again() {
    let key = PrivateKey::generate().expect("random numbers");
    let temporary = tempfile::tempdir().expect("a folder for temporary files");
    let path = temporary.path().join("key");
    std::fs::write(&path, key.public().to_text()).expect("writable");
    let output = CollectorOutput {
        enabled: true,
        bundle_key: path,
        spool: temporary.path().join("spool"),
        ..CollectorOutput::default()
    };
    let folder = BundleFolder::of(&output).expect("a key");
    let folder = folder.as_ref().expect("it is pinned");
    let kept = file("web", &["mkdir", "symlink"]);
    let signed = content(std::slice::from_ref(&kept))
        .pack()
        .expect("it is good");
    folder
        .keep(Some(&signed.sign(&key).to_text()))
        .expect("writable");
    let record = |text: &str| PolicyRecord {
        name: "web".to_owned(),
        digest: sha256(text.as_bytes()),
        ..PolicyRecord::default()
    };
    let took_over = |text: &str| taker(&["mkdir"]).taking_over(Some(&record(text)), Some(folder));
    let after = took_over(&kept.text);
    let state = |taker: &PolicyTaker| {
        taker.report(&content(std::slice::from_ref(&kept)))[0]
            .state
            .clone()
    };
    assert_eq!(state(&after), BundledPolicyState::InForce);
    assert!(problem(&after, &[file("web", &["mkdir"])], None).contains("allows more"));
    let unknown = took_over("another text");
    assert_eq!(state(&unknown), BundledPolicyState::NextStart);
    let why = problem(&unknown, std::slice::from_ref(&kept), None);
    assert!(why.contains("the one in force is not known"), "{why}");
    assert!(unknown.policy_in_force().is_none());
}

#[test]
fn an_agent_that_took_over_without_a_record_does_not_know_what_is_in_force() {
    let after = taker(&["mkdir"]).taking_over(None, None);
    let new = [file("web", &["symlink"])];
    let why = problem(&after, &new, None);
    assert!(why.contains("the one in force is not known"), "{why}");
    assert_eq!(after.check(&content(&new), None, true), Ok(()));
    // A command without a policy has none in force.
    let without = PolicyTaker::Takes(Arc::new(Taking {
        own: None,
        in_force: InForce::Nothing,
        how: PolicyStrictness::default(),
        refused: None,
    }));
    let after = without.taking_over(None, None);
    assert_eq!(after.check(&content(&new), None, false), Ok(()));
}

#[test]
fn a_policy_of_another_name_is_unused() {
    let states = |taker: &PolicyTaker| {
        let kept = content(&[file("web", &["mkdir"]), file("db", &["mkdir"])]);
        let policies = taker.report(&kept).into_iter();
        policies.map(|policy| policy.state).collect::<Vec<_>>()
    };
    let of_web = states(&taker(&["mkdir"]));
    assert_eq!(of_web[0], BundledPolicyState::InForce);
    assert!(matches!(of_web[1], BundledPolicyState::Unused(_)));
    let of_watch = states(&PolicyTaker::Not("watch"));
    assert!(
        of_watch
            .iter()
            .all(|state| matches!(state, BundledPolicyState::Unused(_)))
    );
}
