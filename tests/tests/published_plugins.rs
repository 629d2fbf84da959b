//! Plugins that the Falco project publishes, built by somebody else: `TOLLGATE_TEST_PLUGINS` names the folder with
//! `libdummy.so`, `libjson.so`, `libk8saudit.so`, optionally `libdummy_rs.so`, and the rule files that are published with them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Limited, Scratch, program, skip};
use serde_json::{Value, json};

/// Returns the folder of plugins.
fn folder() -> Option<PathBuf> {
    std::env::var_os("TOLLGATE_TEST_PLUGINS").map(PathBuf::from)
}

fn none() -> Result<String, String> {
    match folder() {
        None => Ok("TOLLGATE_TEST_PLUGINS names no folder".to_owned()),
        Some(_) => Err("TOLLGATE_TEST_PLUGINS names a folder".to_owned()),
    }
}

/// A plugin in a configuration: its name, `init_config` and `open_params`.
type Configured<'p> = (&'p str, &'p str, &'p str);

/// A configuration of plugins, and rules.
struct Detector<'p> {
    scratch: &'p Scratch,
    plugins: &'p Path,
    configured: &'p [Configured<'p>],
}

impl Detector<'_> {
    fn config(&self) -> PathBuf {
        let list = self.configured.iter().map(|(name, init, open)| {
            let library = self.plugins.join(format!("lib{name}.so"));
            json!({"name": name, "library_path": library, "init_config": init, "open_params": open})
        });
        let config = json!({
            "json_output": true,
            "stdout_output": {"enabled": true},
            "log_level": "info",
            "log_stderr": true,
            "rule_matching": "all",
            "plugins": list.collect::<Vec<_>>(),
        });
        self.scratch.file("falco.yaml", 0o644, config.to_string())
    }

    /// Returns the alerts of these rules. No event of a plugin may be undecided, and no process of one restarted.
    fn alerts(&self, rules: &[&Path]) -> Vec<Value> {
        let mut command = Command::new(program());
        command.arg("falco").arg("-c").arg(self.config());
        for rules in rules {
            command.arg("-r").arg(rules);
        }
        command
            .args(["--disable-source", "syscall"])
            .stdin(Stdio::null());
        let ran = Limited::start(&mut command, Duration::from_secs(60)).finish(b"");
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        for expected in [" 0 restarts", ", 0 rules undecided"] {
            assert!(ran.stderr.contains(expected), "{}", ran.stderr);
        }
        let lines = ran.stdout.lines();
        let alerts = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        alerts
            .filter(|alert| alert["source"] != "internal")
            .collect()
    }

    /// Returns what `rules check` says about a rule file that may refer to the plugins.
    fn check(&self, rules: &Path) -> (Option<i32>, String) {
        let mut command = Command::new(program());
        command.args(["rules", "check", "-c"]).arg(self.config());
        let output = command.arg(rules).output().expect("the program was built");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    }
}

/// Returns the texts of the alerts of a rule.
fn of<'a>(alerts: &'a [Value], rule: &str) -> Vec<&'a str> {
    let of_rule = alerts.iter().filter(|alert| alert["rule"] == rule);
    let output = |alert: &'a Value| alert["output"].as_str().unwrap_or_default();
    of_rule
        .map(output)
        .filter_map(|text| text.splitn(3, ' ').nth(2))
        .collect()
}

fn names(alerts: &[Value]) -> BTreeSet<&str> {
    let rules = alerts.iter().filter_map(|alert| alert["rule"].as_str());
    rules.filter(|rule| !rule.starts_with("Tollgate")).collect()
}

/// Rules that take two values of one field, which the plugin computes in one place.
const OF_DUMMY: &str = "\
- rule: Even
  desc: d
  condition: dummy.divisible[2] = 1
  output: even %dummy.value %dummy.strvalue %dummy.divisible[2] %dummy.divisible[5] %evt.plugininfo
  priority: INFO
  source: dummy
";

#[test]
fn the_plugin_dummy_makes_the_events_that_it_is_asked_for() {
    let Some(plugins) = folder() else {
        skip!("needs published plugins", none);
    };
    let scratch = Scratch::new();
    let open = r#"{"start": 1, "maxEvents": 5}"#;
    let detector = Detector {
        scratch: &scratch,
        plugins: &plugins,
        configured: &[("dummy", r#"{"jitter": 0}"#, open)],
    };
    let own = scratch.file("own.yaml", 0o644, OF_DUMMY);
    let published = plugins.join("dummy_rules.yaml");
    let alerts = detector.alerts(&[&published, &own]);
    let triggered = [2, 3, 4, 5, 6].map(|value| format!("-> triggered (value={value})"));
    assert_eq!(of(&alerts, "Sample dummy plugin rule"), triggered);
    let even =
        [2, 4, 6].map(|value| format!("even {value} {value} 1 0 {{\"sample\": \"{value}\"}}"));
    assert_eq!(of(&alerts, "Even"), even);
    let (code, text) = detector.check(&published);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn the_plugin_dummy_rs_of_the_sdk_for_rust_makes_events() {
    let Some(plugins) = folder().filter(|folder| folder.join("libdummy_rs.so").exists()) else {
        skip!("needs the published plugin dummy_rs", || Ok(
            "TOLLGATE_TEST_PLUGINS names no folder with libdummy_rs.so".to_owned()
        ));
    };
    let scratch = Scratch::new();
    let detector = Detector {
        scratch: &scratch,
        plugins: &plugins,
        configured: &[(
            "dummy_rs",
            r#"{"jitter": 0}"#,
            r#"{"start": 1, "maxEvents": 3}"#,
        )],
    };
    let alerts = detector.alerts(&[&plugins.join("dummy_rs_rules.yaml")]);
    let triggered = [2, 3, 4].map(|value| format!("-> triggered (value={value})"));
    assert_eq!(of(&alerts, "Sample dummy plugin rule"), triggered);
}

/// Returns an event of the audit log of Kubernetes.
fn audit(verb: &str, resource: &str, more: Value) -> String {
    let mut event = json!({
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "RequestResponse",
        "auditID": format!("id-{verb}-{resource}"),
        "stage": "ResponseComplete",
        "requestURI": format!("/api/v1/namespaces/shop/{resource}"),
        "verb": verb,
        "user": {"username": "jane", "groups": ["buyers", "system:authenticated"]},
        "sourceIPs": ["192.0.2.7"],
        "objectRef": {"resource": resource, "namespace": "shop", "name": "thing", "apiVersion": "v1"},
        "responseStatus": {"code": 201},
        "requestReceivedTimestamp": "2026-11-28T12:00:00.000001Z",
        "stageTimestamp": "2026-11-28T12:00:00.000002Z",
        "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""},
    });
    for (key, value) in more.as_object().expect("an object") {
        event[key] = value.clone();
    }
    event.to_string()
}

/// Returns events that published rules are about. The sensitive folder is the second of two volumes.
fn events() -> String {
    let pod = json!({"requestObject": {"spec": {
        "containers": [
            {"name": "a", "image": "example/a:1"},
            {"name": "b", "image": "example/b:1", "securityContext": {"privileged": true}},
        ],
        "volumes": [{"name": "x", "hostPath": {"path": "/srv"}}, {"name": "y", "hostPath": {"path": "/etc"}}],
    }}});
    let exec = json!({
        "stage": "ResponseStarted",
        "requestURI": "/api/v1/namespaces/shop/pods/thing/exec?command=sh&container=a",
        "objectRef": {"resource": "pods", "subresource": "exec", "namespace": "shop", "name": "thing"},
        "responseStatus": {"code": 101},
    });
    let role = json!({"requestObject": {"rules": [{"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}]}});
    let lines = [
        audit("create", "pods", pod),
        audit("create", "pods", exec),
        audit("create", "clusterroles", role),
        audit("get", "services", json!({"user": {"username": "admin"}})),
    ];
    lines.join("\n") + "\n"
}

/// Rules that take three values of one field of `json`, from events of `k8saudit`.
const OF_JSON: &str = "\
- rule: Admin
  desc: d
  condition: json.value[/user/username] = admin and json.value[/verb] = get and not json.value[/nothing] exists
  output: admin %json.value[/user/username] %json.value[/verb] %json.value[/objectRef/resource] %ka.verb %ka.user.groups
  priority: INFO
  source: k8s_audit
- rule: Lists
  desc: d
  condition: ka.verb = create and ka.user.groups intersects (buyers) and not ka.req.role.rules exists and not ka.uri.param[command] exists
  output: lists %ka.user.groups %ka.req.pod.containers.image %ka.req.pod.containers.image[1] %ka.req.pod.volumes.hostpath
  priority: INFO
  source: k8s_audit
";

#[test]
fn published_rules_for_the_audit_log_of_kubernetes_alert() {
    let Some(plugins) = folder() else {
        skip!("needs published plugins", none);
    };
    let scratch = Scratch::new();
    let log = scratch.file("audit.json", 0o644, events());
    // As Falco's configuration has them: without a configuration of their own.
    let configured = [
        ("k8saudit", "", log.to_str().expect("its path is text")),
        ("json", "", ""),
    ];
    let detector = Detector {
        scratch: &scratch,
        plugins: &plugins,
        configured: &configured,
    };
    let own = scratch.file("own.yaml", 0o644, OF_JSON);
    let published = plugins.join("k8s_audit_rules.yaml");
    let alerts = detector.alerts(&[&published, &own]);
    let found = names(&alerts);
    for expected in [
        "Disallowed K8s User",
        "Create Privileged Pod",
        "Create Sensitive Mount Pod",
        "Attach/Exec Pod",
        "ClusterRole With Wildcard Created",
    ] {
        assert!(found.contains(expected), "{expected}: {found:?}");
    }
    assert!(!found.contains("Create HostNetwork Pod"), "{found:?}");
    assert_eq!(of(&alerts, "Admin"), ["admin admin get services get <NA>"]);
    let lists =
        "lists (buyers,system:authenticated) (example/a:1,example/b:1) (example/b:1) (/srv,/etc)";
    assert_eq!(of(&alerts, "Lists"), [lists]);
    let exec = of(&alerts, "Attach/Exec Pod");
    assert!(exec[0].contains("command=sh"), "{exec:?}");
    let (code, text) = detector.check(&published);
    assert_eq!(code, Some(0), "{text}");
}
