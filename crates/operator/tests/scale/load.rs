//! The objects of a large cluster, and the two servers that take them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use apiserver::fake::FakeApiserver;
use apiserver::real::{Programs, RealApiserver};
use apiserver::{Client, Resource};
use kinds::ObjectKey;
use kinds::crd::Definition;
use serde_json::{Value, json};

/// Namespaces over which policies are spread.
const NAMESPACES: usize = 50;
/// Requests at the same time.
const WRITERS: usize = 8;

/// How large a cluster is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) nodes: usize,
    pub(crate) policies: usize,
    /// Pods of each node, all confined by some policy.
    pub(crate) pods: usize,
}

impl Size {
    /// `NODESxPOLICIESxPODS`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let numbers: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
        let [nodes, policies, pods] = numbers.ok()?.try_into().ok()?;
        Some(Self {
            nodes,
            policies,
            pods,
        })
    }

    pub(crate) fn name(self) -> String {
        format!("{}x{}x{}", self.nodes, self.policies, self.pods)
    }

    /// The profiles of a node, each with the number of its pods that use it.
    fn profiles(self, node: usize) -> Vec<(usize, u64)> {
        let mut all = vec![];
        for pod in 0..self.pods {
            let policy = (node * self.pods + pod) % self.policies;
            match all.iter_mut().find(|(known, _)| *known == policy) {
                Some((_, count)) => *count += 1,
                None => all.push((policy, 1)),
            }
        }
        all
    }
}

pub(crate) fn namespace(policy: usize) -> String {
    format!("team-{:02}", policy % NAMESPACES)
}

fn of(kind: &str) -> Resource {
    Resource::of(Definition::of_kind(kind).expect("the kind is in the table"))
}

/// A policy as people write them. `version` is in one of its rules.
fn policy(number: usize, version: usize) -> Value {
    let private = format!("/srv/private-{version}/**");
    json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": format!("service-{number}"), "namespace": namespace(number),
            "labels": { "app.kubernetes.io/managed-by": "gitops" } },
        "spec": { "target": { "kind": "Deployment", "selector": { "matchLabels": { "app": format!("service-{number}") } } },
            "policy": { "enforcer": "BPF", "mode": "EnhanceProtect", "enhanceProtect": {
                "hardeningRules": ["disallow-mount", "disallow-umount", "disallow-insmod", "disable-cap-privileged"],
                "attackProtectionRules": [{ "rules": ["mitigate-sa-leak", "disable-write-etc", "disable-wget", "disable-curl"] }],
                "bpfRawRules": {
                    "files": [{ "qualifiers": ["deny"], "pattern": private, "permissions": ["read", "write"] }],
                    "network": { "egress": { "toDestinations": [
                        { "qualifiers": ["deny"], "ip": "192.0.2.7", "ports": [{ "port": 22 }] }] } } } } } } })
}

fn node_name(number: usize) -> String {
    format!("node-{number:05}.cluster.example")
}

/// A node with what a kubelet reports that makes it long: labels and images.
fn node(number: usize) -> Value {
    let name = node_name(number);
    let images: Vec<Value> = (0..20)
        .map(|image| {
            json!({ "names": [format!("registry.example/team/service-{image}@sha256:{:064x}", image * 7919),
                format!("registry.example/team/service-{image}:1.{number}")], "sizeBytes": 123_456_789 })
        })
        .collect();
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": "m5.2xlarge", "topology.kubernetes.io/region": "region-1",
            "topology.kubernetes.io/zone": format!("region-1{}", ["a", "b", "c"][number % 3]),
            "pool": format!("pool-{}", number % 20) } },
        "status": { "nodeInfo": { "bootID": boot(number), "machineID": format!("{number:032x}"), "systemUUID": boot(number),
                "kernelVersion": "6.18.0", "osImage": "Linux", "containerRuntimeVersion": "containerd://2.4.2",
                "kubeletVersion": "v1.37.2", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64" },
            "images": images } })
}

fn boot(number: usize) -> String {
    format!("{number:08x}-1234-4abc-8def-0123456789ab")
}

/// What has to be known of profiles to report about them.
#[derive(Debug, Default)]
pub(crate) struct Profiles {
    /// Hash by number of the policy.
    pub(crate) hashes: Vec<String>,
    /// The highest resource version.
    pub(crate) version: u64,
}

/// The report of a node that enforces all its profiles.
fn report(size: Size, number: usize, profiles: &Profiles, time: &str) -> Value {
    let states: Vec<Value> = size
        .profiles(number)
        .into_iter()
        .map(|(policy, pods)| {
            json!({ "namespace": namespace(policy), "name": profile_name(policy), "hash": profiles.hashes[policy],
                "containers": pods, "enforced": pods, "late": 0, "unprotected": 0 })
        })
        .collect();
    let enforcers = ["Seccomp", "AppArmor", "BPF", "NetworkProxy"];
    let enforcers = enforcers.map(|name| {
        json!({ "name": name, "available": name != "NetworkProxy", "reason": match name {
            "NetworkProxy" => "rules inside of connections need a proxy, which tollgate has none of",
            _ => "" } })
    });
    json!({ "apiVersion": "tollgate.dev/v1alpha1", "kind": "NodeReport", "metadata": { "name": node_name(number) },
        "status": { "agentVersion": "0.1.0", "bootID": boot(number), "observedVersion": profiles.version.to_string(),
            "renewTime": time, "enforcers": enforcers, "profiles": states } })
}

pub(crate) fn profile_name(policy: usize) -> String {
    format!("varmor-{}-service-{policy}", namespace(policy))
}

/// The status of a policy, with its generation.
fn status_of(mut policy: Value) -> Value {
    let mut status = policy["status"].take();
    status["generation"] = policy["metadata"]["generation"].take();
    status
}

/// A server that takes the objects.
pub(crate) enum Server {
    Memory(FakeApiserver, Client),
    /// With the folder that it has its files in.
    Real {
        server: Box<RealApiserver>,
        _folder: tempfile::TempDir,
    },
}

impl Server {
    pub(crate) fn memory() -> Self {
        let server = FakeApiserver::start().expect("loopback can be used");
        let client = Client::new(&server.access(), "tester").expect("the address is right");
        Self::Memory(server, client)
    }

    pub(crate) fn real(programs: &Programs) -> Self {
        let folder = tempfile::tempdir().expect("there are temporary folders");
        let key = rcgen::KeyPair::generate().expect("keys can be made");
        let key = [key.serialize_pem(), key.public_key_pem()];
        let server = RealApiserver::start(programs, folder.path(), [&key[0], &key[1]]);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let namespaces: Vec<String> = (0..NAMESPACES).map(namespace).collect();
        let mut namespaces: Vec<&str> = namespaces.iter().map(String::as_str).collect();
        namespaces.push("tollgate");
        server
            .install(&namespaces)
            .expect("the definitions are taken");
        Self::Real {
            server: Box::new(server),
            _folder: folder,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Memory(..) => "memory",
            Self::Real { .. } => "real",
        }
    }

    /// Options by which the operator finds it.
    pub(crate) fn options(&self) -> Vec<String> {
        match self {
            Self::Memory(server, _) => vec!["--server".to_owned(), server.access().server],
            Self::Real { server, .. } => server.options(),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        match self {
            Self::Memory(_, client) => client,
            Self::Real { server, .. } => &server.client,
        }
    }

    /// Writes an object with its status.
    fn put(&self, resource: &Resource, object: Value) {
        let text = |key: &str| object["metadata"][key].as_str().map(str::to_owned);
        let key = ObjectKey {
            namespace: text("namespace").unwrap_or_else(String::new),
            name: text("name").expect("the objects of this test have names"),
        };
        match self {
            Self::Memory(server, _) => {
                let path = resource.object_path(&key);
                let mut object = object;
                // What others have written stays.
                if let Some(old) = server.get(&path)
                    && object["status"].is_null()
                {
                    object["status"] = old["status"].clone();
                }
                server.put(&path, object);
            }
            Self::Real { server, .. } => {
                let mut first = object.clone();
                let status = first.as_object_mut().and_then(|all| all.remove("status"));
                if status.is_none() || server.client.get(resource, &key).is_err() {
                    let applied = server.client.apply(resource, &first);
                    applied.unwrap_or_else(|error| panic!("{error}"));
                }
                if status.is_some() {
                    let applied = server.client.apply_status(resource, &object);
                    applied.unwrap_or_else(|error| panic!("{error}"));
                }
            }
        }
    }

    /// Writes many objects, several at a time.
    fn put_all(&self, resource: &Resource, count: usize, make: impl Fn(usize) -> Value + Sync) {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return;
                        }
                        self.put(resource, make(number));
                    }
                });
            }
        });
    }

    pub(crate) fn put_nodes(&self, size: Size) {
        self.put_all(&Resource::new("", "v1", "nodes"), size.nodes, node);
    }

    pub(crate) fn put_policies(&self, count: usize) {
        self.put_all(&of("VarmorPolicy"), count, |number| policy(number, 0));
    }

    pub(crate) fn change_policy(&self, number: usize, version: usize) {
        self.put(&of("VarmorPolicy"), policy(number, version));
    }

    /// Writes the reports of the nodes from `first` on.
    pub(crate) fn put_reports(&self, size: Size, first: usize, profiles: &Profiles) {
        let time = jiff::Timestamp::now().to_string();
        self.put_all(&of("NodeReport"), size.nodes - first, |number| {
            report(size, first + number, profiles, &time)
        });
    }

    /// Reads the policy of a number: its status with its generation.
    pub(crate) fn status(&self, number: usize) -> Value {
        let key = ObjectKey {
            namespace: namespace(number),
            name: format!("service-{number}"),
        };
        let policy = self.client().get(&of("VarmorPolicy"), &key);
        status_of(policy.expect("it was written"))
    }

    /// Hash and resource version of the profile of a policy.
    pub(crate) fn profile(&self, number: usize) -> Option<(String, u64)> {
        let key = ObjectKey {
            namespace: namespace(number),
            name: profile_name(number),
        };
        let profile = self.client().get(&of("ArmorProfile"), &key).ok()?;
        let hash = profile["spec"]["profile"]["hash"].as_str()?.to_owned();
        let version = profile["metadata"]["resourceVersion"].as_str()?;
        Some((hash, version.parse().ok()?))
    }

    /// The profiles of the first `count` policies; `None` if some are missing.
    pub(crate) fn profiles(&self, count: usize) -> Option<Profiles> {
        let mut found = Profiles {
            hashes: vec![String::new(); count],
            version: 0,
        };
        self.client()
            .list(&of("ArmorProfile"), |profile| {
                let name = profile["metadata"]["name"].as_str().expect("it has one");
                let number = name.rsplit('-').next().and_then(|last| last.parse().ok());
                let number: usize = number.expect("its policy has a number");
                let hash = profile["spec"]["profile"]["hash"].as_str();
                hash.expect("it has one")
                    .clone_into(&mut found.hashes[number]);
                let version = profile["metadata"]["resourceVersion"].as_str();
                let version: u64 = version
                    .and_then(|text| text.parse().ok())
                    .expect("a number");
                found.version = found.version.max(version);
            })
            .ok()?;
        (!found.hashes.iter().any(String::is_empty)).then_some(found)
    }

    /// The policies, by their numbers.
    pub(crate) fn statuses(&self, count: usize) -> Vec<Value> {
        let mut found = vec![Value::Null; count];
        let listed = self.client().list(&of("VarmorPolicy"), |policy| {
            let name = policy["metadata"]["name"].as_str().expect("it has one");
            let number: Option<usize> = name.rsplit('-').next().and_then(|last| last.parse().ok());
            found[number.expect("it has a number")] = status_of(policy);
        });
        listed.expect("policies are served");
        found
    }
}
