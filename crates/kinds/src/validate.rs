//! Validation of policies, as vArmor's webhook does it.
//!
//! The CustomResourceDefinitions contain most of it as rules that the API server evaluates. Here is all of it, for the
//! operator and for files. What an API server refuses, crate `policy` refuses, too.

mod proxy;
mod quantity;

use policy::EnforcerKind;
use serde_json::Value;

use crate::names::{NameTooLong, profile_name};
use crate::policy_object::{Phase, PolicyObject, PolicySpec, Scope};

const WORKLOADS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "Pod"];

/// The name of the enforcer that tollgate splits up: it is no enforcer of crate `policy`.
const PROXY: &str = "networkproxy";

/// What an installation decides.
#[derive(Clone, Copy, Debug)]
pub struct Installation<'a> {
    /// Namespace of the installation: that of the profiles of VarmorClusterPolicies.
    pub namespace: &'a str,
    /// The mode BehaviorModeling is enabled.
    pub behavior_modeling: bool,
}

/// Why a policy is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The object is no policy.
    #[error("the kind has to be VarmorPolicy or VarmorClusterPolicy, found `{found}`")]
    Kind {
        /// The kind of the object.
        found: String,
    },
    /// The kind of the target is no workload.
    #[error(
        "the kind of the target has to be Deployment, StatefulSet, DaemonSet or Pod, found `{found}`"
    )]
    TargetKind {
        /// The kind of the target.
        found: String,
    },
    /// Neither name nor selector, or both.
    #[error("the target needs one of `name` and `selector`, and not both")]
    TargetChoice,
    /// The part of the mode is missing.
    #[error("the mode {mode} needs `{key}`")]
    MissingPart {
        /// The mode.
        mode: &'static str,
        /// The part.
        key: &'static str,
    },
    /// BehaviorModeling is not enabled.
    #[error("the mode BehaviorModeling is not enabled in this installation")]
    ModelingDisabled,
    /// The mode cannot use an enforcer.
    #[error("the mode {mode} cannot use the enforcer {enforcer}")]
    EnforcerOfMode {
        /// The mode.
        mode: &'static str,
        /// The enforcer.
        enforcer: &'static str,
    },
    /// The name of the profile would be too long.
    #[error(transparent)]
    Name(#[from] NameTooLong),
    /// A field cannot be changed.
    #[error("`{field}` cannot be changed: delete the policy and create it again")]
    Immutable {
        /// The field.
        field: &'static str,
    },
    /// An enforcer cannot be removed.
    #[error("the enforcer {enforcer} cannot be removed: delete the policy and create it again")]
    EnforcerRemoved {
        /// The enforcer.
        enforcer: &'static str,
    },
    /// A field cannot be changed while behaviour is recorded.
    #[error("`{field}` cannot be changed before behaviour modelling is complete")]
    Modeling {
        /// The field.
        field: &'static str,
    },
    /// A setting of the proxy.
    #[error("`{field}` {cause}")]
    Proxy {
        /// The field.
        field: String,
        /// What is wrong with it.
        cause: String,
    },
}

/// Checks a policy that is created, or one that replaces `old`, and returns all problems.
#[must_use]
pub fn policy(
    new: &PolicyObject,
    old: Option<&PolicyObject>,
    installation: Installation<'_>,
) -> Vec<Invalid> {
    let mut found = Vec::new();
    let name = new.metadata.name.as_str();
    let namespace = new.metadata.namespace.as_deref().unwrap_or_default();
    match Scope::of_kind(&new.kind) {
        None => found.push(Invalid::Kind {
            found: new.kind.clone(),
        }),
        Some(scope) => {
            let namespace = (scope == Scope::Namespace).then_some(namespace);
            let profile = profile_name(namespace, name, installation.namespace);
            found.extend(profile.err().map(Invalid::Name));
        }
    }
    check_target(&new.spec, &mut found);
    check_mode(
        &new.spec,
        installation.behavior_modeling || old.is_some(),
        &mut found,
    );
    proxy::check(&new.spec, &mut found);
    if let Some(old) = old {
        check_change(new, old, &mut found);
    }
    found
}

fn check_target(spec: &PolicySpec, found: &mut Vec<Invalid>) {
    let target = &spec.target;
    if !WORKLOADS.contains(&target.kind.as_str()) {
        found.push(Invalid::TargetKind {
            found: target.kind.clone(),
        });
    }
    if target.name.is_empty() != target.selector.is_some() {
        found.push(Invalid::TargetChoice);
    }
}

/// Returns true if the enforcers of a policy include one. As in vArmor, any text around the name is ignored.
fn uses(spec: &PolicySpec, enforcer: &str) -> bool {
    spec.enforcer().to_lowercase().contains(enforcer)
}

fn check_mode(spec: &PolicySpec, modeling: bool, found: &mut Vec<Invalid>) {
    for (mode, key) in [
        ("EnhanceProtect", "enhanceProtect"),
        ("BehaviorModeling", "modelingOptions"),
        ("DefenseInDepth", "defenseInDepth"),
    ] {
        if spec.mode() == mode && !spec.policy.get(key).is_some_and(Value::is_object) {
            found.push(Invalid::MissingPart { mode, key });
        }
    }
    if spec.mode() == "BehaviorModeling" && !modeling {
        found.push(Invalid::ModelingDisabled);
    }
    for (mode, enforcer, id) in [
        ("BehaviorModeling", "NetworkProxy", PROXY),
        ("DefenseInDepth", "BPF", EnforcerKind::Bpf.id()),
    ] {
        if spec.mode() == mode && uses(spec, id) {
            found.push(Invalid::EnforcerOfMode { mode, enforcer });
        }
    }
}

fn check_change(new: &PolicyObject, old: &PolicyObject, found: &mut Vec<Invalid>) {
    if new.spec.target != old.spec.target {
        found.push(Invalid::Immutable { field: "target" });
    }
    for (enforcer, id) in [
        ("AppArmor", EnforcerKind::AppArmor.id()),
        ("Seccomp", EnforcerKind::Seccomp.id()),
        ("NetworkProxy", PROXY),
    ] {
        if uses(&old.spec, id) && !uses(&new.spec, id) {
            found.push(Invalid::EnforcerRemoved { enforcer });
        }
    }
    proxy::check_change(&new.spec, &old.spec, found);
    let status = new.status.as_ref().or(old.status.as_ref());
    if status.and_then(|status| status.phase) != Some(Phase::Modeling) {
        return;
    }
    if new.spec.mode() != "BehaviorModeling" {
        found.push(Invalid::Modeling { field: "mode" });
    } else if new.spec.enforcer() != old.spec.enforcer() {
        found.push(Invalid::Modeling { field: "enforcer" });
    }
}

#[cfg(test)]
mod tests;
