//! An API server with everything that the manifests have.

use std::fs;
use std::path::{Path, PathBuf};

use apiserver::real::{Programs, RealApiserver, until};
use apiserver::{ApiError, Client, Resource};
use e2e::Scratch;
use kinds::crd::Definition;
use kinds::{ObjectKey, crd};
use operator::manifests::{self, Installation};
use serde_json::{Value, json};

/// Namespace of the installation.
pub(crate) const NAMESPACE: &str = "tollgate";

/// An installation with all that there can be.
pub(crate) fn installation() -> Installation {
    Installation {
        namespace: NAMESPACE.to_owned(),
        image: "registry.example/tollgate:1".to_owned(),
        detect: true,
        events: true,
        violations: true,
        behavior_modeling: true,
        update_workloads: true,
        bpf: true,
        webhook: false,
        webhook_exempt: Vec::new(),
        webhook_names: Vec::new(),
    }
}

/// The text of a value; empty for other values.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Name and namespace.
pub(crate) fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// A kind of ours.
pub(crate) fn of(kind: &str) -> Resource {
    Resource::of(Definition::of_kind(kind).expect("the kind is in the table"))
}

/// An API server with the manifests, the namespaces `demo` and `prod`, and the node `n1`.
pub(crate) struct Installed {
    pub(crate) server: RealApiserver,
    pub(crate) scratch: Scratch,
}

impl Installed {
    /// An API server without anything.
    pub(crate) fn bare(programs: &Programs) -> Self {
        let scratch = Scratch::new();
        let folder = scratch.path().join("control");
        fs::create_dir(&folder).expect("the folder is ours");
        let pair = rcgen::KeyPair::generate().expect("keys can be made");
        let pair = [pair.serialize_pem(), pair.public_key_pem()];
        let server = RealApiserver::start(programs, &folder, [&pair[0], &pair[1]]);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        Self { server, scratch }
    }

    pub(crate) fn start(programs: &Programs) -> Self {
        let installed = Self::bare(programs);
        let own = ["demo", "prod"].map(
            |name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }),
        );
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
        // No controller makes the default accounts of namespaces here, which pods need.
        let accounts = ["demo", NAMESPACE].map(|namespace| {
            json!({ "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": { "name": "default", "namespace": namespace } })
        });
        let all = manifests::all(&installation()).into_iter();
        for object in all.chain(own).chain([node]).chain(accounts) {
            let applied = installed.apply(&object);
            applied.unwrap_or_else(|error| panic!("{error}\n{object:#}"));
        }
        for definition in &crd::DEFINITIONS {
            let listed = || {
                installed
                    .server
                    .client
                    .list(&Resource::of(definition), drop)
            };
            until(|| listed().map_err(|error| error.to_string())).expect("the kind is served");
        }
        installed
    }

    /// Folder of the API server, with the token of the administrator as `token`.
    pub(crate) fn folder(&self) -> PathBuf {
        self.scratch.path().join("control")
    }

    pub(crate) fn client(&self) -> &Client {
        &self.server.client
    }

    /// Path of an object, by what the server says of its kinds. Without a name, path of the kind.
    fn path(&self, object: &Value, name: &str) -> String {
        let version = text(&object["apiVersion"]);
        let root = match version.contains('/') {
            true => format!("/apis/{version}"),
            false => format!("/api/{version}"),
        };
        let found = self.client().attempt("GET", &root, &[], None);
        let found = found.unwrap_or_else(|error| panic!("{error}"));
        let mut resources = found["resources"].as_array().into_iter().flatten();
        let resource = resources
            .find(|one| one["kind"] == object["kind"] && !text(&one["name"]).contains('/'))
            .unwrap_or_else(|| panic!("{version} has no kind {}", object["kind"]));
        let plural = text(&resource["name"]);
        let scope = match resource["namespaced"] == true {
            true => format!(
                "{root}/namespaces/{}",
                text(&object["metadata"]["namespace"])
            ),
            false => root,
        };
        match name.is_empty() {
            true => format!("{scope}/{plural}"),
            false => format!("{scope}/{plural}/{name}"),
        }
    }

    /// Server-side apply, by which a field that the kind has not is an error.
    pub(crate) fn apply(&self, object: &Value) -> Result<Value, ApiError> {
        self.apply_as(object, "")
    }

    /// Like [`Installed::apply`], and nothing is kept.
    pub(crate) fn try_apply(&self, object: &Value) -> Result<Value, ApiError> {
        self.apply_as(object, "&dryRun=All")
    }

    fn apply_as(&self, object: &Value, more: &str) -> Result<Value, ApiError> {
        let path = self.path(object, text(&object["metadata"]["name"]));
        let path = format!("{path}?fieldManager=tester&force=true&fieldValidation=Strict{more}");
        self.client().attempt("PATCH", &path, &[], Some(object))
    }

    /// Has the server do everything that it does when an object is created, and keeps nothing.
    pub(crate) fn try_create(&self, object: &Value) -> Result<Value, ApiError> {
        let path = self.path(object, "");
        let path = format!("{path}?dryRun=All&fieldValidation=Strict");
        self.client().attempt("POST", &path, &[], Some(object))
    }

    pub(crate) fn get(&self, object: &Value) -> Result<Value, ApiError> {
        let path = self.path(object, text(&object["metadata"]["name"]));
        self.client().attempt("GET", &path, &[], None)
    }

    /// Has an installation act on a policy; returns the policy.
    pub(crate) fn claim(&self, policy: &Value, installation: &str) -> Value {
        let metadata = json!({ "name": policy["metadata"]["name"], "namespace": policy["metadata"]["namespace"] });
        let status = json!({ "profileName": "", "ready": false, "installation": installation });
        let claim = json!({ "apiVersion": policy["apiVersion"], "kind": policy["kind"], "metadata": metadata, "status": status });
        let claimed = self
            .client()
            .apply_status(&of(text(&policy["kind"])), &claim);
        claimed.unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn delete(&self, object: &Value) {
        let path = self.path(object, text(&object["metadata"]["name"]));
        let deleted = self.client().attempt("DELETE", &path, &[], None);
        deleted.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Writes a kubeconfig with the token of a file.
    pub(crate) fn kubeconfig(&self, name: &str, token: &Path) -> PathBuf {
        let token = fs::read_to_string(token).expect("the token was written");
        let authority = self.folder().join("certs/apiserver.crt");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": {
                "server": self.server.server, "certificate-authority": authority } }],
            "users": [{ "name": "u", "user": { "token": token } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        let path = self.folder().join(format!("{name}.kubeconfig"));
        fs::write(&path, config.to_string()).expect("the folder is ours");
        path
    }

    /// A token of a service account of the installation, as a file. A kubelet binds those of pods to the pod.
    pub(crate) fn token(&self, account: &str, pod: Option<&Value>) -> PathBuf {
        let resource = Resource::new("", "v1", &format!("serviceaccounts/{account}/token"));
        let mut request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "metadata": { "namespace": NAMESPACE, "name": account }, "spec": { "audiences": [] } });
        if let Some(pod) = pod {
            request["spec"]["boundObjectRef"] = json!({ "apiVersion": "v1", "kind": "Pod",
                "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"] });
        }
        let made = self.client().create(&resource, &request);
        let made = made.unwrap_or_else(|error| panic!("{error}"));
        let path = self.folder().join(format!("token-of-{account}"));
        fs::write(&path, text(&made["status"]["token"])).expect("the folder is ours");
        path
    }
}

/// The enforcers of a report: a seccomp filter was tried, and the others are those of `tollgate runtime`, which no pod has used.
pub(crate) fn says_what_was_tried(enforcers: &Value) {
    let all = enforcers.as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(all.len(), 5, "{enforcers}");
    let (first, others) = all.split_first().expect("there are five");
    assert_eq!(
        (text(&first["name"]), &first["available"]),
        ("Seccomp", &json!(true))
    );
    for other in others {
        let is_open =
            other["unknown"] == true || text(&other["reason"]).contains("--runtime-handler");
        assert!(is_open && other["available"] == false, "{other}");
    }
}
