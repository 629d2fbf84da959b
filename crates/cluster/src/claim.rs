//! Which installation acts on a policy.
//!
//! The field `installation` of a policy's status says it. An installation writes a status, which has that field, only if the
//! object still has the version in which the field was empty or its own: of two that claim a policy at once, the API server
//! refuses one. Only the installation that has the claim writes an ArmorProfile.
//!
//! vArmor knows no claims. It shows itself by an ArmorProfile without the annotation of an installation, and has the policy
//! then: tollgate cannot keep it from acting.

use std::fmt;

use kinds::{Condition, ConditionStatus, ObjectKey, PolicyObject, Scope, profile_name};

use crate::node::StoredProfile;
use crate::profile::ProfileError;
use crate::status::condition;
use crate::{Cluster, PolicyId};

/// Who acts on a policy in place of this installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Another installation of tollgate, by its namespace.
    Installation(String),
    /// Another program, such as vArmor, by its ArmorProfile.
    Program(ObjectKey),
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Installation(namespace) => {
                write!(f, "the installation in the namespace {namespace}")
            }
            Self::Program(profile) => write!(
                f,
                "another program, such as vArmor, whose ArmorProfile is {profile}"
            ),
        }
    }
}

/// Whether this installation acts on a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyClaim {
    /// It does.
    Ours,
    /// No installation does: this one may claim the policy.
    Free,
    /// Another one does.
    Other(Rival),
}

impl Cluster {
    /// Whether this installation acts on a policy. A policy that does not exist is free.
    #[must_use]
    pub fn claim(&self, id: &PolicyId) -> PolicyClaim {
        let Some(policy) = self.policies.get(id) else {
            return PolicyClaim::Free;
        };
        let mut before = None;
        for (key, profile) in self.foreign_profiles(id, policy) {
            match profile.installation.as_str() {
                "" => return PolicyClaim::Other(Rival::Program(key.clone())),
                namespace => before = Some(namespace),
            }
        }
        // Earlier builds wrote profiles without a claim. If two did, the first claim decides: neither gives way to a profile alone.
        let before = before.filter(|_| !self.has_profile(id));
        match claimed(policy).or(before) {
            None => PolicyClaim::Free,
            Some(claimed) if claimed == self.installation => PolicyClaim::Ours,
            Some(claimed) => PolicyClaim::Other(Rival::Installation(claimed.to_owned())),
        }
    }

    /// Returns true if the API server has a profile for a policy that this installation has written.
    fn has_profile(&self, id: &PolicyId) -> bool {
        let own = self.profile_key(id).ok();
        let stored = own.and_then(|key| self.stored.get(&key));
        stored.is_some_and(|profile| profile.installation == self.installation)
    }

    /// ArmorProfiles of other installations and programs for a policy. One with another name than theirs is none: anybody may
    /// name a policy as the owner of an object.
    fn foreign_profiles<'c>(
        &'c self,
        id: &PolicyId,
        policy: &PolicyObject,
    ) -> impl Iterator<Item = (&'c ObjectKey, &'c StoredProfile)> {
        let own = self.profile_key(id).ok();
        // A policy that the API server has not taken yet has none, and owns nothing.
        let uid = policy.metadata.uid.as_deref().unwrap_or_default();
        let owned = self.foreign.get(uid).into_iter().flatten();
        let named = own.and_then(|key| self.stored.get_key_value(&key));
        let owned = owned.filter(|key| is_name_for(id, key));
        let owned = owned.filter_map(|key| self.stored.get_key_value(key));
        let all = named.into_iter().chain(owned);
        all.filter(|(_, profile)| profile.installation != self.installation)
    }

    /// Returns true if another installation has taken over a policy of this one, which the policy's status says, and has written
    /// its profile: that of this installation is not needed any more.
    pub(crate) fn is_handed_over(&self, id: &PolicyId) -> bool {
        let PolicyClaim::Other(Rival::Installation(namespace)) = self.claim(id) else {
            return false;
        };
        let policy = self.policies.get(id);
        policy.is_some_and(|policy| {
            if claimed(policy) != Some(&namespace) {
                return false;
            }
            let mut profiles = self.foreign_profiles(id, policy);
            profiles.any(|(_, profile)| profile.installation == namespace)
        })
    }

    /// Refuses a policy on which another installation acts.
    pub(crate) fn check_claim(&self, id: &PolicyId) -> Result<(), ProfileError> {
        match self.claim(id) {
            PolicyClaim::Ours | PolicyClaim::Free => Ok(()),
            PolicyClaim::Other(owner) => Err(ProfileError::OtherInstallation { owner }),
        }
    }

    /// The condition by which this installation says that it does not act on a policy, because another one does. Its type
    /// names this installation: the condition Ready is the other one's. `None` if this installation acts.
    #[must_use]
    pub fn inactive(&self, id: &PolicyId) -> Option<Condition> {
        let PolicyClaim::Other(rival) = self.claim(id) else {
            return None;
        };
        let installation = &self.installation;
        let message = format!(
            "{} acts on this policy, and the installation in the namespace {installation} does nothing",
            rival
        );
        let kind = inactive_condition(installation);
        let status = ConditionStatus::False;
        Some(condition(&kind, status, "OtherInstallation", message))
    }

    /// Notes that the policy of a profile may belong to another installation now, or to none.
    pub(crate) fn note_foreign(&mut self, key: &ObjectKey, owner: &str, is_foreign: bool) {
        if owner.is_empty() {
            return;
        }
        let known = self.foreign.entry(owner.to_owned()).or_default();
        let changed = match is_foreign {
            true => known.insert(key.clone()),
            false => known.remove(key),
        };
        if known.is_empty() {
            self.foreign.remove(owner);
        }
        if changed || is_foreign {
            let is_owner = |policy: &&PolicyObject| policy.metadata.uid.as_deref() == Some(owner);
            let owners = self.policies.iter();
            let owners = owners.filter(|(_, policy)| is_owner(policy));
            self.changes.extend(owners.map(|(id, _)| id.clone()));
        }
    }
}

/// The installation that the status of a policy names.
fn claimed(policy: &PolicyObject) -> Option<&str> {
    let claimed = policy.status.as_ref()?.installation.as_deref()?;
    (!claimed.is_empty()).then_some(claimed)
}

/// Returns true if a profile of an installation or of vArmor for a policy has this key. Those for a policy of the cluster lie in
/// the namespace of the installation.
fn is_name_for(id: &PolicyId, key: &ObjectKey) -> bool {
    let of_policy = (id.scope == Scope::Namespace).then_some(&*id.key.namespace);
    let is_near = of_policy.is_none_or(|namespace| namespace == key.namespace);
    let name = profile_name(of_policy, &id.key.name, &key.namespace);
    is_near && name.is_ok_and(|name| name == key.name)
}

/// Type of the condition by which an installation says that it does not act.
#[must_use]
pub fn inactive_condition(installation: &str) -> String {
    format!("{installation}.tollgate.dev/Active")
}
