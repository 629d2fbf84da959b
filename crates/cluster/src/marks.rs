//! Marks that admission puts into workloads, by which a node finds the profile of a container.

use std::collections::BTreeMap;

use kinds::annotations::OF_POLICY;
use kinds::{PolicyObject, Scope};
use serde_json::{Map, Value, json};

use crate::{Cluster, PolicyClaim, PolicyId};

/// Annotation of a policy that lets authors of workloads switch confinement off, with the value `allow`.
const OPT_OUT: &str = "tollgate.dev/opt-out";

/// Value of the mark of a policy, as admission writes it.
pub(crate) const TARGET: &str = "target";

/// A workload that is created or changed.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    /// Its kind.
    pub kind: &'a str,
    /// Its namespace, which the object itself may lack at admission.
    pub namespace: &'a str,
    /// The object.
    pub object: &'a Value,
}

/// An operation of a JSON patch. It always is `add`, which replaces a value that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchOperation {
    /// JSON pointer.
    pub path: String,
    /// The value.
    pub value: Value,
}

impl PatchOperation {
    /// The operation as RFC 6902 has it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({ "op": "add", "path": self.path, "value": self.value })
    }
}

/// A mark of an enforcer: an annotation of the pod, and a field of the container.
struct Mark {
    /// The enforcer, as it stands in the text of a policy, in lower case.
    enforcer: &'static str,
    annotation: &'static str,
    /// Key in `securityContext`; empty for none.
    field: &'static str,
}

const MARKS: [Mark; 3] = [
    Mark {
        enforcer: "apparmor",
        annotation: "container.apparmor.security.beta.varmor.org/",
        field: "appArmorProfile",
    },
    Mark {
        enforcer: "bpf",
        annotation: "container.bpf.security.beta.varmor.org/",
        field: "",
    },
    Mark {
        enforcer: "seccomp",
        annotation: "container.seccomp.security.beta.varmor.org/",
        field: "seccompProfile",
    },
];

impl Cluster {
    /// The marks that a workload lacks; empty if no policy is for it.
    ///
    /// Every policy has a mark of its own. The fields of enforcers have one value: a policy of the cluster wins over one
    /// of the namespace, and an older one over a newer.
    #[must_use]
    pub fn marks(&self, workload: Workload<'_>) -> Vec<PatchOperation> {
        let targets = self
            .policies
            .iter()
            .filter(|(id, policy)| is_for(id, policy, workload));
        let targets = targets.filter(|(id, _)| !matches!(self.claim(id), PolicyClaim::Other(_)));
        // A policy without a profile has no mark; its status says why.
        let profiles = targets.filter_map(|(id, policy)| {
            let key = self.profile_key(id).ok()?;
            Some((id, policy, key.name))
        });
        let mut profiles: Vec<_> = profiles.collect();
        profiles
            .sort_by_key(|(id, ..)| (id.scope == Scope::Namespace, self.age(id), (*id).clone()));
        let names = profiles.iter().map(|(.., name)| name.clone()).collect();
        match profiles.first() {
            Some((_, policy, name)) => Marker::new(policy, name, workload).marks(names),
            None => Vec::new(),
        }
    }
}

pub(crate) fn is_for(id: &PolicyId, policy: &PolicyObject, workload: Workload<'_>) -> bool {
    let target = &policy.spec.target;
    let metadata = &workload.object["metadata"];
    let is_selected = match &target.selector {
        Some(selector) => selector.matches(&texts(&metadata["labels"])),
        None => metadata["name"].as_str() == Some(&target.name),
    };
    let is_near = id.scope == Scope::Cluster || id.key.namespace == workload.namespace;
    is_near && target.kind == workload.kind && is_selected
}

pub(crate) fn texts(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    let texts = pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    texts.collect()
}

/// Makes the marks of one workload.
struct Marker<'a> {
    policy: &'a PolicyObject,
    profile: &'a str,
    /// JSON pointer of the pod.
    root: &'static str,
    pod: &'a Value,
    operations: Vec<PatchOperation>,
    annotations: Map<String, Value>,
}

impl<'a> Marker<'a> {
    fn new(policy: &'a PolicyObject, profile: &'a str, workload: Workload<'a>) -> Self {
        let root = match workload.kind {
            "Pod" => "",
            _ => "/spec/template",
        };
        Self {
            policy,
            profile,
            root,
            pod: workload.object.pointer(root).unwrap_or(&Value::Null),
            operations: Vec::new(),
            annotations: Map::new(),
        }
    }

    fn marks(mut self, profiles: Vec<String>) -> Vec<PatchOperation> {
        for list in ["initContainers", "containers"] {
            let containers = self.pod["spec"][list].as_array();
            for (index, container) in containers.into_iter().flatten().enumerate() {
                let name = container["name"].as_str().unwrap_or_default();
                if self.policy.spec.target.has_container(name) {
                    let path = format!("{}/spec/{list}/{index}", self.root);
                    self.mark(container, name, &path);
                }
            }
        }
        for profile in profiles {
            let key = format!("{OF_POLICY}{profile}");
            self.annotations.insert(key, json!(TARGET));
        }
        self.annotate();
        self.operations
    }

    fn mark(&mut self, container: &Value, name: &str, path: &str) {
        let enforcers = self.policy.spec.enforcer().to_lowercase();
        let uses = |mark: &&Mark| enforcers.contains(mark.enforcer) || enforcers.contains("auto");
        let mut fields = Map::new();
        for mark in MARKS.iter().filter(uses) {
            if self.is_excepted(mark, container, name) {
                continue;
            }
            let value = json!(format!("localhost/{}", self.profile));
            self.annotations
                .insert(format!("{}{name}", mark.annotation), value);
            if !mark.field.is_empty() {
                fields.insert(mark.field.to_owned(), self.profile_of(mark));
            }
        }
        if fields.is_empty() {
            return;
        }
        let path = format!("{path}/securityContext");
        match container["securityContext"].is_object() {
            false => self.add(path, Value::Object(fields)),
            true => {
                for (field, value) in fields {
                    self.add(format!("{path}/{field}"), value);
                }
            }
        }
    }

    /// The value of a field of `securityContext`.
    fn profile_of(&self, mark: &Mark) -> Value {
        match mark.enforcer == "seccomp" && self.policy.spec.mode() == "RuntimeDefault" {
            true => json!({ "type": "RuntimeDefault" }),
            false => json!({ "type": "Localhost", "localhostProfile": self.profile }),
        }
    }

    fn allows_opt_out(&self) -> bool {
        let annotations = &self.policy.metadata.annotations;
        annotations
            .get(OPT_OUT)
            .is_some_and(|value| value == "allow")
    }

    fn annotation(&self, key: &str) -> &str {
        self.pod["metadata"]["annotations"][key]
            .as_str()
            .unwrap_or_default()
    }

    /// Returns true if the enforcer has no mark in a container: a runtime gives a privileged container no seccomp
    /// filter, and authors may except a container if the policy lets them.
    fn is_excepted(&self, mark: &Mark, container: &Value, name: &str) -> bool {
        let context = &container["securityContext"];
        if mark.enforcer == "seccomp" && context["privileged"] == json!(true) {
            return true;
        }
        let of_container = &context[mark.field]["type"];
        let of_pod = &self.pod["spec"]["securityContext"][mark.field]["type"];
        let is_unconfined = [of_container, of_pod].contains(&&json!("Unconfined"));
        let annotation = format!("{}{name}", mark.annotation);
        self.allows_opt_out() && (is_unconfined || self.annotation(&annotation) == "unconfined")
    }

    /// Adds the annotations, and the mapping for them if the pod has none.
    fn annotate(&mut self) {
        if self.annotations.is_empty() {
            return;
        }
        let annotations = std::mem::take(&mut self.annotations);
        let metadata = format!("{}/metadata", self.root);
        if !self.pod["metadata"].is_object() {
            return self.add(metadata, json!({ "annotations": annotations }));
        }
        let path = format!("{metadata}/annotations");
        if !self.pod["metadata"]["annotations"].is_object() {
            return self.add(path, Value::Object(annotations));
        }
        for (key, value) in annotations {
            let key = key.replace('~', "~0").replace('/', "~1");
            self.add(format!("{path}/{key}"), value);
        }
    }

    /// Adds an operation unless the workload has the value already.
    fn add(&mut self, path: String, value: Value) {
        let local = path.strip_prefix(self.root).unwrap_or(&path);
        if self.pod.pointer(local) != Some(&value) {
            self.operations.push(PatchOperation { path, value });
        }
    }
}
