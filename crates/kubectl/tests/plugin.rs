//! The program with a real API server, which `tests/cluster/build` builds into the cache, and the operator.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::{fs, thread};

use apiserver::Resource;
use apiserver::real::{Programs, RealApiserver, until};
use kinds::ObjectKey;
use kinds::crd::Definition;
use operator::{Operator, Settings};
use serde_json::{Value, json};

/// A cluster whose nodes and kubelets this test plays.
struct Cluster {
    server: RealApiserver,
    folder: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Cluster {
    fn start(programs: &Programs) -> Self {
        let folder = tempfile::tempdir().expect("there are temporary folders");
        let key = rcgen::KeyPair::generate().expect("keys can be made");
        let (private, public) = (key.serialize_pem(), key.public_key_pem());
        let server = RealApiserver::start(programs, folder.path(), [&private, &public]);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let installed = server.install(&["prod", "tollgate"]);
        installed.expect("the definitions are structural");
        let kubeconfig = folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: one\ncontexts:\n- name: one\n  context: {{cluster: c, user: u, \
             namespace: prod}}\n- name: nobody\n  context: {{cluster: c, user: nobody}}\nclusters:\n- name: c\n  cluster: \
             {{server: '{}', certificate-authority: certs/apiserver.crt}}\nusers:\n- {{name: u, user: {{tokenFile: \
             token}}}}\n- {{name: nobody, user: {{token: wrong}}}}\n",
            server.server
        );
        fs::write(&kubeconfig, text).expect("the folder is ours");
        Self {
            server,
            folder,
            kubeconfig,
        }
    }

    fn apply(&self, object: &Value) -> Value {
        let applied = self.server.client.apply(&resource(object), object);
        applied.unwrap_or_else(|error| panic!("{error:?} {object}"))
    }

    fn plugin(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-tollgate"));
        command.env("KUBECONFIG", &self.kubeconfig).args(arguments);
        command.output().expect("the program was built")
    }

    /// Standard output and standard error of a success.
    fn shown(&self, arguments: &[&str]) -> (String, String) {
        let output = self.plugin(arguments);
        let (out, problem) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{arguments:?}: {problem}");
        (out, problem)
    }

    fn data(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        serde_json::from_str(&self.shown(&all).0).expect("it is JSON")
    }

    /// What a node reports.
    fn report(&self, node: &str, renewed: &str, profiles: &[Value]) {
        let mut report = json!({ "apiVersion": "tollgate.dev/v1alpha1", "kind": "NodeReport", "metadata": { "name": node } });
        self.apply(&report);
        report["status"] = json!({ "agentVersion": "1", "bootID": "", "observedVersion": "999999999",
            "renewTime": renewed, "profiles": profiles });
        let written = self.server.client.apply_status(&of("NodeReport"), &report);
        written.unwrap_or_else(|error| panic!("{error:?}"));
    }

    fn profile(&self, name: &str) -> Value {
        let key = key("prod", name);
        let found = until(|| {
            let found = self.server.client.get(&of("ArmorProfile"), &key);
            found.map_err(|error| error.to_string())
        });
        found.expect("the operator writes it")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn of(kind: &str) -> Resource {
    Resource::of(Definition::of_kind(kind).expect("the kind is in the table"))
}

fn resource(object: &Value) -> Resource {
    let kind = object["kind"]
        .as_str()
        .expect("objects of this test have one");
    if Definition::of_kind(kind).is_some() {
        return of(kind);
    }
    match kind {
        "RuntimeClass" => Resource::new("node.k8s.io", "v1", "runtimeclasses"),
        "Event" => Resource::new("events.k8s.io", "v1", "events"),
        _ => Resource::new("", "v1", &format!("{}s", kind.to_lowercase())),
    }
}

fn policy(name: &str, enforcer: &str, rule: &str) -> Value {
    json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": name, "namespace": "prod" },
        "spec": { "target": { "kind": "Pod", "name": name }, "policy": { "enforcer": enforcer,
            "mode": "EnhanceProtect", "enhanceProtect": { "hardeningRules": [rule] } } } })
}

fn pod(name: &str, class: Option<&str>) -> Value {
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "prod" },
        "spec": { "nodeName": "n1", "initContainers": [{ "name": "first", "image": "x" }],
            "containers": [{ "name": "app", "image": "x" }] } });
    if let Some(class) = class {
        pod["spec"]["runtimeClassName"] = json!(class);
    }
    pod
}

/// The row of a table that begins with these cells.
fn row(table: &str, cells: &[&str]) -> Vec<String> {
    let split = |line: &str| -> Vec<String> {
        let cells = line
            .split("   ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect()
    };
    let mut rows = table.lines().map(split);
    let found = rows.find(|row| row.len() >= cells.len() && row[..cells.len()] == *cells);
    found.unwrap_or_else(|| panic!("no row {cells:?} in\n{table}"))
}

fn prepare(cluster: &Cluster) {
    for node in ["n1", "n2"] {
        cluster.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node } }));
    }
    cluster.apply(
        &json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": { "name": "strict" }, "handler": "tollgate" }),
    );
    // No controller makes it here.
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "default", "namespace": "prod" } }));
    for (name, enforcer, rule) in [
        ("web", "Seccomp", "disallow-insmod"),
        ("core", "BPF", "disallow-write-core-pattern"),
        ("wrong", "Seccomp", "disallow-nothing-at-all"),
    ] {
        cluster.apply(&policy(name, enforcer, rule));
        cluster.apply(&pod(name, None));
    }
    cluster.apply(&pod("alone", None));
}

/// Without an operator nothing is known, and nothing is said to be enforced.
fn nothing_is_known_without_an_operator(cluster: &Cluster) {
    let (table, warning) = cluster.shown(&["status"]);
    let web = row(&table, &["prod", "web"]);
    assert_eq!(
        web[2..9],
        [
            "Unknown",
            "<unknown>",
            "<unknown>",
            "<unknown>",
            "<unknown>",
            "<unknown>",
            "<unknown>"
        ]
    );
    assert!(warning.contains("no operator has ever acted"), "{warning}");
    let (table, _) = cluster.shown(&["coverage", "n1"]);
    let cell = row(&table, &["n1", "prod", "web", "Unknown"]);
    assert!(
        cell.last()
            .is_some_and(|cause| cause.contains("has not seen the policy")),
        "{table}"
    );
    let (_, notes) = cluster.shown(&["explain", "web"]);
    assert!(
        notes.contains("VarmorPolicy prod/web is about the pod and not enforced"),
        "{notes}"
    );
}

fn states_of_nodes_are_told_apart(cluster: &Cluster) {
    let hash = cluster.profile("varmor-prod-web")["spec"]["profile"]["hash"].clone();
    let now = jiff::Timestamp::now().to_string();
    let of_web = json!({ "namespace": "prod", "name": "varmor-prod-web", "hash": hash, "containers": 3,
        "enforced": 2, "late": 0, "unprotected": 1, "reasons": ["it ran before\u{1b}[2J"] });
    cluster.report("n1", &now, &[of_web]);
    let coverage = || cluster.shown(&["coverage"]).0;
    until(|| {
        let (table, _) = cluster.shown(&["status", "web"]);
        let web = row(&table, &["prod", "web"]);
        let is_there = web[2..9] == ["Unknown", "Pending", "3", "2", "0", "1", "1"];
        is_there.then_some(()).ok_or(table)
    })
    .expect("the operator writes the status");
    let table = coverage();
    let cell = row(
        &table,
        &["n1", "prod", "web", "Unprotected", "3", "2", "0", "1"],
    );
    // A node does not control the terminal of who looks.
    assert_eq!(cell[8], "it ran before\\u001b[2J");
    assert!(
        row(&table, &["n2", "prod", "web", "Unknown"])[8].contains("no report"),
        "{table}"
    );
    assert!(
        row(&table, &["n1", "prod", "wrong", "Unknown"])[8].contains("no profile"),
        "{table}"
    );
    row(&table, &["n1", "prod", "core", "Idle", "0"]);
    cluster.report("n2", "2026-01-01T00:00:00Z", &[]);
    let table = coverage();
    assert!(
        row(&table, &["n2", "prod", "web", "Unknown"])[8].contains("stopped to report"),
        "{table}"
    );
    cluster.report("n2", &jiff::Timestamp::now().to_string(), &[]);
    row(
        &coverage(),
        &["n2", "prod", "web", "Idle", "0", "0", "0", "0"],
    );
    until(|| {
        let (table, _) = cluster.shown(&["status", "web"]);
        let is_false = row(&table, &["prod", "web"])[2] == "False";
        is_false.then_some(()).ok_or(table)
    })
    .expect("all nodes have reported");
    data_has_what_tables_have(cluster);
}

fn data_has_what_tables_have(cluster: &Cluster) {
    let data = cluster.data(&["coverage", "n1"]);
    let items = data["items"].as_array().expect("it is a list");
    assert!(
        items
            .iter()
            .any(|item| item["policy"] == "web" && item["unprotected"] == 1),
        "{data}"
    );
    assert!(
        items
            .iter()
            .any(|item| item["policy"] == "wrong" && item["enforced"].is_null()),
        "{data}"
    );
}

fn a_pod_is_explained(cluster: &Cluster) {
    let (table, notes) = cluster.shown(&["explain", "web"]);
    assert!(
        table.contains("Pod prod/web, confined by seccomp filter"),
        "{table}"
    );
    for container in ["first", "app"] {
        row(
            &table,
            &[
                container,
                "VarmorPolicy prod/web",
                "prod/varmor-prod-web",
                "closed",
                "no",
            ],
        );
        row(
            &table,
            &[container, "disallow-insmod", "deny", "partial", "Seccomp"],
        );
    }
    assert!(
        notes.contains("3 containers, 2 enforced, 0 late, 1 unprotected"),
        "{notes}"
    );
    let (table, _) = cluster.shown(&["explain", "core"]);
    let app = row(&table, &["app", "VarmorPolicy prod/core"]);
    assert!(app[4].contains("disallow-write-core-pattern"), "{table}");
    row(
        &table,
        &[
            "app",
            "disallow-write-core-pattern",
            "deny",
            "none",
            "<none>",
        ],
    );
    the_installation_that_acts_is_shown(cluster);
    let data = cluster.data(&["explain", "core"]);
    assert_eq!(data["containers"][1]["installation"], "tollgate", "{data}");
    assert_eq!(data["containers"][1]["rules"][0]["grade"], "none", "{data}");
    assert_eq!(data["mechanism"], "filter");
    let (_, notes) = cluster.shown(&["explain", "wrong"]);
    assert!(notes.contains("no such rule"), "{notes}");
    let (table, _) = cluster.shown(&["explain", "alone"]);
    row(&table, &["app", "<none>", "<none>", "<none>", "no"]);
    // With the runtime, other enforcers have the rule.
    cluster.apply(&pod("strict", Some("strict")));
    cluster.apply(&policy("strict", "BPF", "disallow-write-core-pattern"));
    cluster.profile("varmor-prod-strict");
    let (table, _) = cluster.shown(&["explain", "strict"]);
    assert!(table.contains("confined by tollgate runtime"), "{table}");
    row(
        &table,
        &["app", "disallow-write-core-pattern", "deny", "full", "BPF"],
    );
}

fn the_installation_that_acts_is_shown(cluster: &Cluster) {
    let (table, _) = cluster.shown(&["explain", "web", "-o", "wide"]);
    assert!(
        row(&table, &["app", "VarmorPolicy prod/web"]).contains(&"tollgate".to_owned()),
        "{table}"
    );
    let (table, _) = cluster.shown(&["status", "web", "-o", "wide"]);
    assert!(
        row(&table, &["prod", "web"]).contains(&"tollgate".to_owned()),
        "{table}"
    );
    let data = cluster.data(&["status", "web"]);
    assert_eq!(data["items"][0]["installation"], "tollgate", "{data}");
}

fn alerts_are_events_and_what_nodes_report(cluster: &Cluster) {
    let now = jiff::Timestamp::now().strftime("%FT%T.%6fZ").to_string();
    for (name, reporter, note) in [
        (
            "refused",
            "kubelet",
            "Error: failed to create container: tollgate: prod/varmor-prod-core: `x` needs BPF",
        ),
        ("other", "kubelet", "Back-off pulling image"),
        (
            "alert",
            "tollgate.dev/node",
            "container app: Shell (Notice): a shell",
        ),
    ] {
        cluster.apply(&json!({ "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": { "name": name, "namespace": "prod" }, "eventTime": now, "action": "Create",
            "reportingController": reporter, "reportingInstance": "n1", "reason": "Failed", "type": "Warning",
            "regarding": { "apiVersion": "v1", "kind": "Pod", "name": "core", "namespace": "prod" }, "note": note }));
    }
    let (table, note) = cluster.shown(&["alerts"]);
    assert!(
        table.contains("Pod prod/core") && table.contains("needs BPF"),
        "{table}"
    );
    assert!(!table.contains("Back-off"), "{table}");
    assert!(table.contains("container app: Shell"), "{table}");
    let (wide, _) = cluster.shown(&["alerts", "-o", "wide"]);
    let mut of_agent = wide.lines();
    let of_agent = of_agent.find(|line| line.contains("container app: Shell"));
    assert!(
        of_agent.is_some_and(|line| line.contains("   node n1   ")),
        "{wide}"
    );
    assert!(
        table.contains("VarmorPolicy prod/wrong") && table.contains("no such rule"),
        "{table}"
    );
    assert!(
        table.contains("node n1: 1 of 3 containers unprotected"),
        "{table}"
    );
    assert!(note.contains("run with --events"), "{note}");
}

fn what_cannot_be_read_is_an_error_and_not_an_empty_table(cluster: &Cluster) {
    for (arguments, code, message) in [
        (
            &["status", "none"][..],
            2,
            "cannot find a policy with the name none",
        ),
        (&["explain", "none"], 2, "cannot find the pod prod/none"),
        (&["coverage", "n3"], 2, "cannot find the node n3"),
        (&["explain", "-A", "web"], 4, "a pod has one namespace"),
        (
            &["status", "--context", "nobody"],
            3,
            "cannot read varmorpolicies",
        ),
        (&["alerts", "--context", "nobody"], 3, "cannot read events"),
        (&["status", "--context", "none"], 2, "the name `none`"),
    ] {
        let output = cluster.plugin(arguments);
        let problem = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{problem}");
        assert!(
            problem.contains(message) && output.stdout.is_empty(),
            "{problem}"
        );
    }
    let (table, _) = cluster.shown(&["status", "-n", "tollgate"]);
    assert_eq!(table, "");
    let (yaml, _) = cluster.shown(&["status", "-A", "web", "-o", "yaml"]);
    assert!(yaml.contains("  name: web\n"), "{yaml}");
    let (wide, _) = cluster.shown(&["status", "-o", "wide"]);
    assert!(
        wide.contains("ENFORCER") && wide.contains("varmor-prod-core"),
        "{wide}"
    );
}

#[test]
fn policies_are_converted_without_a_cluster() {
    let folder = tempfile::tempdir().expect("there are temporary folders");
    let file = folder.path().join("ksp.yaml");
    let policy = "apiVersion: security.kubearmor.com/v1\nkind: KubeArmorPolicy\nmetadata: {name: web}\nspec:\n  \
                  selector: {matchLabels: {app: web}}\n  process: {matchPaths: [{path: /bin/sh}, {path: /bin/a, \
                  ownerOnly: true}]}\n";
    fs::write(&file, policy).expect("the folder is ours");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-tollgate"));
        command.env_remove("KUBECONFIG").env_remove("HOME");
        command.arg("convert").arg(&file).args(arguments);
        command.output().expect("the program was built")
    };
    let refused = run(&[]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(refused.stdout.is_empty());
    let problem = text(&refused.stderr);
    assert!(
        problem.contains("--accept-partial 'spec.process.matchPaths[1]'"),
        "{problem}"
    );
    let done = run(&["--accept-partial", "spec.process.matchPaths[1]"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("kind: VarmorPolicy\n"));
}

#[test]
fn the_plug_in_shows_what_is_enforced_and_what_is_not_known() {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(missing) => {
            let found: Result<String, String> = Ok(missing);
            testing::skip!("needs what tests/cluster/build builds, and etcd", || found)
        }
    };
    let cluster = Cluster::start(&programs);
    prepare(&cluster);
    nothing_is_known_without_an_operator(&cluster);
    let client = cluster.server.client.clone();
    // It ends with the test.
    thread::spawn(move || {
        let operator = Operator::new(client, Settings::new("tollgate", "one"));
        let _ = operator.run(|_| {});
    });
    cluster.profile("varmor-prod-core");
    until(|| {
        let (table, _) = cluster.shown(&["status", "wrong"]);
        match table.contains("no such rule") {
            true => Ok(()),
            false => Err(table),
        }
    })
    .expect("the operator writes the status");
    states_of_nodes_are_told_apart(&cluster);
    a_pod_is_explained(&cluster);
    alerts_are_events_and_what_nodes_report(&cluster);
    what_cannot_be_read_is_an_error_and_not_an_empty_table(&cluster);
    drop(cluster.folder);
}
