//! The program with a real API server, which `tests/cluster/build` builds into the cache.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use apiserver::{Access, ApiError, Client, Resource};
use kinds::ObjectKey;
use kinds::crd::Definition;
use serde_json::{Value, json};

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Path, program: &Path, arguments: &[String]) -> Running {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let log = fs::File::create(folder.join(format!("{name}.log"))).expect("the folder is ours");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Running(
        command
            .stderr(log)
            .spawn()
            .expect("the program can be started"),
    )
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    listener.local_addr().expect("it is bound").port()
}

/// etcd and kube-apiserver on loopback.
struct Cluster {
    folder: tempfile::TempDir,
    access: Access,
    client: Client,
    _programs: [Running; 2],
}

impl Cluster {
    fn start(apiserver: &Path, etcd: &Path) -> Self {
        let folder = tempfile::tempdir().expect("there are temporary folders");
        let path = folder.path();
        let key = rcgen::KeyPair::generate().expect("keys can be made");
        fs::write(path.join("sa.key"), key.serialize_pem()).expect("the folder is ours");
        fs::write(path.join("sa.pub"), key.public_key_pem()).expect("the folder is ours");
        fs::write(path.join("token"), "secret").expect("the folder is ours");
        let tokens = "secret,admin,admin,\"system:masters\"\n";
        fs::write(path.join("tokens.csv"), tokens).expect("the folder is ours");
        let [clients, peers, port] = [free_port(), free_port(), free_port()];
        let (clients, peers) = (
            format!("http://127.0.0.1:{clients}"),
            format!("http://127.0.0.1:{peers}"),
        );
        let etcd = start(
            path,
            etcd,
            &[
                "--data-dir=etcd".to_owned(),
                format!("--listen-client-urls={clients}"),
                format!("--advertise-client-urls={clients}"),
                format!("--listen-peer-urls={peers}"),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=default={peers}"),
            ],
        );
        let server = start(
            path,
            apiserver,
            &[
                format!("--etcd-servers={clients}"),
                format!("--secure-port={port}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--cert-dir=certs".to_owned(),
                "--token-auth-file=tokens.csv".to_owned(),
                "--authorization-mode=RBAC".to_owned(),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                "--service-account-key-file=sa.pub".to_owned(),
                "--service-account-signing-key-file=sa.key".to_owned(),
                "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            ],
        );
        let access = Access::files(
            &format!("https://127.0.0.1:{port}"),
            Some(path.join("certs/apiserver.crt")),
            Some(path.join("token")),
            None,
        );
        let client = connect(&access, path);
        Self {
            folder,
            access,
            client,
            _programs: [server, etcd],
        }
    }

    fn operator(&self) -> Running {
        let text = |path: &str| self.folder.path().join(path).display().to_string();
        let mut arguments = vec!["run".to_owned()];
        for (option, value) in [
            ("--namespace", "tollgate".to_owned()),
            ("--name", "one".to_owned()),
            ("--server", self.access.server.clone()),
            ("--certificate-authority", text("certs/apiserver.crt")),
            ("--token", text("token")),
        ] {
            arguments.extend([option.to_owned(), value]);
        }
        let program = Path::new(env!("CARGO_BIN_EXE_tollgate-operator"));
        start(self.folder.path(), program, &arguments)
    }
}

/// Waits until the server answers.
fn connect(access: &Access, folder: &Path) -> Client {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let client = Client::new(access, "tester").map_err(|error| error.to_string());
        let client = client.and_then(|client| {
            let all = Resource::new("", "v1", "namespaces");
            let default = client.get(&all, &key_of("", "default"));
            default
                .map(|_| client)
                .map_err(|error| format!("{error:?}"))
        });
        match client {
            Ok(client) => return client,
            Err(error) if Instant::now() > end => {
                let log = fs::read_to_string(folder.join("kube-apiserver.log"));
                panic!("{error} {}", log.unwrap_or_default());
            }
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn wait<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = there() {
            return found;
        }
        assert!(Instant::now() < end, "{what} does not come");
        thread::sleep(Duration::from_millis(100));
    }
}

fn key_of(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn of(kind: &str) -> Resource {
    Resource::of(Definition::of_kind(kind).expect("the kind is in the table"))
}

fn policy(enforcer: &str, target: &str) -> Value {
    json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": "web", "namespace": "demo" },
        "spec": { "target": { "kind": target, "name": "web" }, "policy": { "enforcer": enforcer,
            "mode": "EnhanceProtect", "enhanceProtect": { "hardeningRules": ["disallow-mount"] } } } })
}

fn refusal(result: Result<Value, ApiError>) -> String {
    result.expect_err("the server refuses it").to_string()
}

/// Writes the definitions, and waits until the server has them.
fn prepare(cluster: &Cluster) {
    let crds = Resource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    for crd in kinds::crd::all() {
        cluster
            .client
            .apply(&crds, &crd)
            .expect("the definition is structural, and its rules are cheap");
    }
    for name in ["demo", "tollgate"] {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        let all = Resource::new("", "v1", "namespaces");
        cluster
            .client
            .apply(&all, &namespace)
            .expect("it can be made");
    }
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
    cluster
        .client
        .apply(&Resource::new("", "v1", "nodes"), &node)
        .expect("it can be made");
    wait("the kind", || {
        cluster
            .client
            .apply(&of("VarmorPolicy"), &policy("AppArmorBPF", "Pod"))
            .ok()
    });
}

fn refuses_what_the_webhook_refuses(cluster: &Cluster) {
    let policies = of("VarmorPolicy");
    let changed = |policy: Value| refusal(cluster.client.apply(&policies, &policy));
    assert!(changed(policy("AppArmorBPF", "Job")).contains("the kind has to be Deployment"));
    assert!(changed(policy("AppArmorBPF", "DaemonSet")).contains("the target cannot be changed"));
    assert!(changed(policy("BPF", "Pod")).contains("the enforcer AppArmor cannot be removed"));
}

/// Reports for the node that it has seen the profile.
fn report(cluster: &Cluster, profile: &Value) {
    let mut report = json!({ "apiVersion": "tollgate.dev/v1alpha1", "kind": "NodeReport", "metadata": { "name": "n1" } });
    cluster
        .client
        .apply(&of("NodeReport"), &report)
        .expect("it can be made");
    report["status"] = json!({ "agentVersion": "1", "bootID": "",
        "observedVersion": profile["metadata"]["resourceVersion"], "renewTime": jiff::Timestamp::now().to_string() });
    cluster
        .client
        .apply_status(&of("NodeReport"), &report)
        .expect("it can be written");
}

#[test]
fn a_real_api_server_takes_the_definitions_and_a_policy_becomes_ready() {
    let program = env::var_os("TOLLGATE_CACHE")
        .map(|cache| Path::new(&cache).join("kubernetes/bin/kube-apiserver"));
    let path = env::var_os("PATH").unwrap_or_default();
    let etcd = env::split_paths(&path)
        .map(|folder| folder.join("etcd"))
        .find(|path| path.exists());
    let (Some(program), Some(etcd)) = (program.filter(|path| path.exists()), etcd) else {
        testing::skip!("needs what tests/cluster/build builds, and etcd", || Ok::<
            _,
            String,
        >(
            "TOLLGATE_CACHE has no kube-apiserver, or PATH no etcd".to_owned()
        ));
    };
    let cluster = Cluster::start(&program, &etcd);
    prepare(&cluster);
    refuses_what_the_webhook_refuses(&cluster);
    let policies = of("VarmorPolicy");
    let _operator = cluster.operator();
    let profile = wait("the profile", || {
        cluster
            .client
            .get(&of("ArmorProfile"), &key_of("demo", "varmor-demo-web"))
            .ok()
    });
    let ready = |status: &str| {
        wait(status, || {
            let policy = cluster.client.get(&policies, &key_of("demo", "web")).ok()?;
            let conditions = policy["status"]["conditions"].as_array()?.clone();
            let is_it =
                |condition: &Value| condition["type"] == "Ready" && condition["status"] == status;
            conditions.iter().any(is_it).then_some(policy)
        })
    };
    // Before all nodes are known there is none, and nothing is ready, either.
    wait("the node", || {
        (ready("Unknown")["status"]["coverage"]["unknownNodes"] == 1).then_some(())
    });
    report(&cluster, &profile);
    let done = ready("True");
    assert_eq!(done["status"]["phase"], "Protecting");
    assert_eq!(
        done["status"]["observedGeneration"],
        done["metadata"]["generation"]
    );
    let uid = done["metadata"]["uid"].as_str().expect("it has one");
    cluster
        .client
        .delete(&policies, &key_of("demo", "web"), uid)
        .expect("it is there");
    wait("the end of the profile", || {
        let profile = cluster
            .client
            .get(&of("ArmorProfile"), &key_of("demo", "varmor-demo-web"));
        profile.err().filter(|error| error.code() == Some(404))
    });
}
