//! Profiles that vArmor has made of what it recorded.

use serde_json::json;

use super::source::Source;
use super::{Carried, Options, Plan};

/// Grades the profiles that vArmor made of what it recorded.
pub(super) fn grade(plan: &mut Plan, profile: &Source<'_>, recorded: &Source<'_>) {
    for key in ["appArmor", "seccomp"] {
        let Some(made) = profile.get(key) else {
            continue;
        };
        match recorded.get(key).or_else(|| recorded.get("bpf")) {
            Some(_) => {
                let different = "what it was made from is converted in its place";
                plan.add(&made, Vec::new(), Carried::Partly(different.to_owned()));
            }
            None => plan.refuse(
                &made,
                "what it was made from is missing: remove `dynamicResult` to take the profiles as they are",
            ),
        }
    }
    refuse_bpf(plan, profile);
}

fn refuse_bpf(plan: &mut Plan, profile: &Source<'_>) {
    if let Some(rules) = profile.get("bpf") {
        plan.refuse(&rules, "rules in vArmor's compiled form are not read");
    }
}

/// Takes the profiles of a model without a recording as they are.
pub(super) fn as_they_are(
    plan: &mut Plan,
    profile: &Source<'_>,
    options: &Options,
    complains: bool,
) {
    let mut depth = json!({});
    let mut enforcer = String::new();
    for (key, name) in [("appArmor", "AppArmor"), ("seccomp", "Seccomp")] {
        let Some(text) = profile.get(key) else {
            continue;
        };
        depth[key] = json!({ "profileType": "Custom", "customProfile": text.text() });
        enforcer.push_str(name);
        plan.add(&text, vec![format!("defenseInDepth.{key}")], Carried::Whole);
    }
    refuse_bpf(plan, profile);
    if complains {
        depth["allowViolations"] = json!(true);
    }
    plan.policy.extend([
        (
            "enforcer".to_owned(),
            json!(options.enforcers.clone().unwrap_or(enforcer)),
        ),
        ("mode".to_owned(), json!("DefenseInDepth")),
        ("defenseInDepth".to_owned(), depth),
    ]);
}
