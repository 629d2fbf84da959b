//! From a policy to the ArmorProfile that there has to be.

use std::collections::BTreeMap;

use kinds::annotations::{FAIL_MODE, FailMode, HASH, MODELING, TARGET};
use kinds::compile::{self, NotLoaded};
use kinds::validate::{self, Installation, Invalid};
use kinds::{
    ArmorProfileSpec, BehaviorModeling, ModelingRun, NameTooLong, ObjectKey, PolicyObject, Profile,
    ProfileMode, Scope, policy_hash, profile_name,
};
use serde_json::Value;

use crate::claim::Rival;
use crate::{Cluster, ObjectKind, PolicyId, egress};

/// An ArmorProfile that there has to be.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredProfile {
    /// Namespace: that of the policy, or that of the installation for a policy of the cluster.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Content.
    pub spec: ArmorProfileSpec,
    /// Annotations by which nodes decide whether they need the profile.
    pub notes: BTreeMap<String, String>,
    /// Rules that tollgate cannot enforce, because they need a proxy.
    pub needs_proxy: Vec<String>,
    /// Behaviour is modelled from now on: whoever writes the profile adds the annotation
    /// [`MODELING`](kinds::annotations::MODELING) with the time.
    pub starts_run: bool,
}

/// Why a policy has no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The policy does not exist.
    #[error("there is no such policy")]
    Gone,
    /// The name of the profile would be too long.
    #[error(transparent)]
    Name(#[from] NameTooLong),
    /// The policy is not valid.
    #[error("the policy is refused: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Invalid>),
    /// The policy cannot be loaded.
    #[error(transparent)]
    NotLoaded(#[from] NotLoaded),
    /// An egress rule has a mistake.
    #[error("`{rule}` {cause}")]
    Egress {
        /// The rule.
        rule: String,
        /// What is wrong with it.
        cause: String,
    },
    /// Egress rules are about too many addresses.
    #[error(
        "the Services and Pods of egress rules have {found} addresses, and {limit} are the limit"
    )]
    TooManyAddresses {
        /// Number of addresses.
        found: usize,
        /// Maximum.
        limit: usize,
    },
    /// The objects that egress rules are about are not known yet.
    #[error("not all {0:?} are known yet")]
    NotSynced(ObjectKind),
    /// Another policy has the same profile name.
    #[error("the policy {other} is older and has the same profile name")]
    SameName {
        /// The other policy.
        other: ObjectKey,
    },
    /// Another installation acts on the policy.
    #[error("{owner} acts on the policy")]
    OtherInstallation {
        /// Who acts.
        owner: Rival,
    },
}

impl ProfileError {
    /// Returns true if the error may go away without a change of the policy.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::NotSynced(_))
    }
}

impl Cluster {
    /// The ArmorProfile of a policy.
    ///
    /// # Errors
    ///
    /// If the policy is not valid, if another one or another installation has its profile, or if what it depends on is
    /// not known yet. An ArmorProfile that exists then stays as it is: it is never weakened by an error.
    pub fn profile(&self, id: &PolicyId) -> Result<DesiredProfile, ProfileError> {
        let policy = self.policies.get(id).ok_or(ProfileError::Gone)?;
        let key = self.profile_key(id)?;
        self.check_owner(id, &key)?;
        let installation = Installation {
            namespace: &self.installation,
            behavior_modeling: self.behavior_modeling,
        };
        let invalid = validate::policy(policy, None, installation);
        if !invalid.is_empty() {
            return Err(ProfileError::Invalid(invalid));
        }
        let missing = egress::needs(policy)
            .into_iter()
            .find(|kind| !self.synced.contains(kind));
        if let Some(kind) = missing {
            return Err(ProfileError::NotSynced(kind));
        }
        let part = egress::expand(policy, &self.network)?;
        let compiled = compile::load_part(&policy.metadata.name, part)?;
        let spec = spec(policy, key.name.clone(), compiled.text);
        let modeling = spec.behavior_modeling;
        let run = self
            .run_to_be(&key, modeling.duration)
            .filter(|_| modeling.enable);
        Ok(DesiredProfile {
            starts_run: modeling.enable && run.is_none(),
            notes: notes(policy, &spec, run),
            spec,
            namespace: key.namespace,
            name: key.name,
            needs_proxy: compiled.needs_proxy,
        })
    }

    /// Namespace and name of the ArmorProfile of a policy.
    pub(crate) fn profile_key(&self, id: &PolicyId) -> Result<ObjectKey, NameTooLong> {
        let namespace = match id.scope {
            Scope::Namespace => id.key.namespace.as_str(),
            Scope::Cluster => self.installation.as_str(),
        };
        let of_policy = (id.scope == Scope::Namespace).then_some(namespace);
        Ok(ObjectKey {
            name: profile_name(of_policy, &id.key.name, &self.installation)?,
            namespace: namespace.to_owned(),
        })
    }

    /// Refuses a profile that belongs to another policy or another installation.
    fn check_owner(&self, id: &PolicyId, key: &ObjectKey) -> Result<(), ProfileError> {
        // Nodes know a profile by its name alone, whatever its namespace.
        let rivals = self.by_profile.get(&key.name).into_iter().flatten();
        let oldest = rivals.min_by_key(|rival| (self.age(rival), (*rival).clone()));
        if let Some(other) = oldest.filter(|oldest| *oldest != id) {
            return Err(ProfileError::SameName {
                other: other.key.clone(),
            });
        }
        self.check_claim(id)
    }

    /// When a policy was created. One without a time is not stored yet, and so younger than all others.
    pub(crate) fn age(&self, id: &PolicyId) -> (bool, &str) {
        let policy = self.policies.get(id);
        let created = policy.and_then(|policy| policy.metadata.creation_timestamp.as_deref());
        (created.is_none(), created.unwrap_or_default())
    }
}

fn spec(policy: &PolicyObject, name: String, text: String) -> ArmorProfileSpec {
    let part = |mode: &str, key: &str, field: &str| {
        let part = policy
            .spec
            .policy
            .get(key)
            .filter(|_| policy.spec.mode() == mode);
        part.and_then(|part| part.get(field)).cloned()
    };
    let allows = part("EnhanceProtect", "enhanceProtect", "allowViolations")
        .or_else(|| part("DefenseInDepth", "defenseInDepth", "allowViolations"));
    let duration = part("BehaviorModeling", "modelingOptions", "duration");
    ArmorProfileSpec {
        target: policy.spec.target.clone(),
        profile: Profile {
            name,
            enforcer: policy.spec.enforcer().to_owned(),
            mode: match allows == Some(Value::Bool(true)) {
                true => ProfileMode::ReportOnly,
                false => ProfileMode::Enforce,
            },
            hash: policy_hash(&text),
            policy: text,
        },
        behavior_modeling: BehaviorModeling {
            enable: policy.spec.mode() == "BehaviorModeling",
            duration: duration
                .and_then(|duration| duration.as_u64())
                .unwrap_or_default(),
        },
        update_existing_workloads: policy.spec.update_existing_workloads,
    }
}

/// Annotations of an ArmorProfile that nodes read.
pub(crate) const NOTES: [&str; 4] = [TARGET, HASH, FAIL_MODE, MODELING];

fn notes(
    policy: &PolicyObject,
    spec: &ArmorProfileSpec,
    run: Option<ModelingRun>,
) -> BTreeMap<String, String> {
    let target = serde_json::to_string(&spec.target).expect("a target is JSON");
    let written = policy.metadata.annotations.get(FAIL_MODE);
    let mode = FailMode::of(written.map(String::as_str));
    let values = [target, spec.profile.hash.clone(), mode.name().to_owned()];
    let names = [TARGET, HASH, FAIL_MODE].map(str::to_owned);
    let run = run.map(|run| (MODELING.to_owned(), run.to_string()));
    names.into_iter().zip(values).chain(run).collect()
}
