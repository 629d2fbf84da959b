//! What admission writes into workloads: the marks by which a node finds the policies of a container.
//!
//! The API server does it by itself from Kubernetes 1.36 on; this is the same for a webhook. A test compares it with the marks of the
//! library, and another test compares those with the marks of a real API server.

use std::collections::{BTreeMap, BTreeSet};

use kinds::annotations::OF_POLICY;
use kinds::{ObjectKey, Scope, Target, profile_name};
use serde_json::{Value, json};

use crate::marks::{TARGET, texts};
use crate::{PolicyId, Workload, inactive_condition};

/// Of each policy, what its marks need: one object of some hundred bytes.
#[derive(Debug)]
pub struct Admission {
    installation: String,
    policies: BTreeMap<PolicyId, MarkedPolicy>,
}

#[derive(Debug, PartialEq, Eq)]
struct MarkedPolicy {
    /// Key of the mark.
    mark: String,
    /// The kind of its workloads.
    kind: String,
    /// `None` if nobody can read it: it selects nothing.
    target: Option<Target>,
}

impl Admission {
    /// No policies yet. `installation` is the namespace of the operator.
    #[must_use]
    pub fn new(installation: &str) -> Self {
        Self {
            installation: installation.to_owned(),
            policies: BTreeMap::new(),
        }
    }

    /// Takes a policy, new or changed, as the API server has it.
    pub fn apply(&mut self, scope: Scope, policy: &Value) {
        let text = |key: &str| {
            let text = policy["metadata"][key].as_str();
            // An object of the cluster has no namespace.
            text.unwrap_or_default().to_owned()
        };
        let key = ObjectKey {
            namespace: text("namespace"),
            name: text("name"),
        };
        let of_policy = (scope == Scope::Namespace).then_some(&*key.namespace);
        let name = profile_name(of_policy, &key.name, &self.installation);
        let marked = name.ok().filter(|_| self.acts_on(policy));
        let id = PolicyId { scope, key };
        match marked {
            // A policy whose name is too long has no profile, and one of another installation is not this one's affair.
            None => drop(self.policies.remove(&id)),
            Some(name) => {
                let target = serde_json::from_value(policy["spec"]["target"].clone());
                let marked = MarkedPolicy {
                    mark: format!("{OF_POLICY}{name}"),
                    // Without a kind it is about no workload.
                    kind: policy["spec"]["target"]["kind"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                    target: target.ok(),
                };
                self.policies.insert(id, marked);
            }
        }
    }

    /// Forgets a policy that was deleted.
    pub fn remove(&mut self, id: &PolicyId) {
        self.policies.remove(id);
    }

    /// This installation acts on the policy, or none does yet.
    fn acts_on(&self, policy: &Value) -> bool {
        let status = &policy["status"];
        let owner = status["installation"].as_str();
        let is_own = owner.is_none_or(|owner| owner.is_empty() || owner == self.installation);
        let inactive = inactive_condition(&self.installation);
        let conditions = status["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        is_own && !conditions.any(|one| one["type"] == *inactive)
    }

    /// The operations of a JSON patch (RFC 6902) by which a workload gets the marks of the policies that are about it, and loses
    /// those of others. Empty if it has them.
    #[must_use]
    pub fn patch(&self, workload: Workload<'_>) -> Vec<Value> {
        let is_pod = workload.kind == "Pod";
        let pod = match is_pod {
            true => workload.object,
            false => &workload.object["spec"]["template"],
        };
        let present = &pod["metadata"]["annotations"];
        let labels = texts(&workload.object["metadata"]["labels"]);
        let name = workload.object["metadata"]["name"].as_str();
        // Two policies can have one mark, such as a VarmorPolicy of a namespace `cluster`: each key is looked at once.
        let (mut wanted, mut others) = (BTreeSet::new(), BTreeSet::new());
        for marked in self.near(workload.namespace) {
            let is_target = marked.target.as_ref().is_some_and(|target| {
                let is_selected = match &target.selector {
                    Some(selector) => selector.matches(&labels),
                    None => name == Some(&target.name),
                };
                target.kind == workload.kind && is_selected
            });
            // A pod has the marks of its workload, which cannot be compared with it.
            let is_comparable = !is_pod || marked.kind == "Pod";
            match is_target {
                true => drop(wanted.insert(&*marked.mark)),
                false if is_comparable => drop(others.insert(&*marked.mark)),
                false => {}
            }
        }
        let is_added = |mark: &&str| present[*mark] != TARGET;
        let is_removed = |mark: &&str| !present[*mark].is_null() && !wanted.contains(mark);
        let removed: Vec<&str> = others.into_iter().filter(is_removed).collect();
        let added: Vec<&str> = wanted.iter().copied().filter(is_added).collect();
        operations(is_pod, pod, &added, &removed)
    }

    /// The policies of the cluster, and those of a namespace.
    fn near<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a MarkedPolicy> {
        let is_near =
            move |id: &PolicyId| id.scope == Scope::Cluster || id.key.namespace == namespace;
        let all = self.policies.iter();
        all.filter(move |(id, _)| is_near(id)).map(|(_, one)| one)
    }
}

fn operations(is_pod: bool, pod: &Value, added: &[&str], removed: &[&str]) -> Vec<Value> {
    let root = if is_pod { "" } else { "/spec/template" };
    let add = |path: &str, value: Value| json!({ "op": "add", "path": format!("{root}{path}"), "value": value });
    let mut all = Vec::new();
    if !added.is_empty() && !pod["metadata"].is_object() {
        all.push(add("/metadata", json!({})));
    }
    if !added.is_empty() && !pod["metadata"]["annotations"].is_object() {
        all.push(add("/metadata/annotations", json!({})));
    }
    let path = |mark: &str| {
        let mark = mark.replace('~', "~0").replace('/', "~1");
        format!("/metadata/annotations/{mark}")
    };
    all.extend(added.iter().map(|mark| add(&path(mark), json!(TARGET))));
    let remove = |mark: &&str| json!({ "op": "remove", "path": format!("{root}{}", path(mark)) });
    all.extend(removed.iter().map(remove));
    all
}
