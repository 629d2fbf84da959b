//! Agents that watch their node, in a pod with the capabilities of the manifests.

use e2e::cluster::whole::Cluster;
use e2e::need_cluster;
use serde_json::{Value, json};

use super::{INSTALLATION, PROD, apply, exec, namespace, pod};

/// What the rule of the test looks for.
const MARK: &str = "tollgate-mark";

/// A rule about programs with the mark, as an object of the cluster.
fn rule() -> Value {
    let rule = json!({ "rule": "Marked", "desc": "d", "priority": "WARNING",
        "condition": format!("evt.type = execve and evt.res = SUCCESS and proc.args contains {MARK}"),
        "output": "seen in %k8s.ns.name/%k8s.pod.name by %proc.cmdline" });
    json!({ "apiVersion": "artifact.falcosecurity.dev/v1alpha1", "kind": "Rulesfile",
        "metadata": { "name": "marks", "namespace": INSTALLATION }, "spec": { "inlineRules": [rule] } })
}

/// Waits for an alert of the agent with this text.
fn alert(cluster: &Cluster, text: &str) -> Value {
    cluster.until(&format!("an alert says {text}"), || {
        let log = cluster.kubectl(&["logs", "-n", INSTALLATION, "daemonset/tollgate-node"])?;
        let alerts = log
            .lines()
            .filter(|line| line.contains("\"rule\":\"Marked\""));
        let found = alerts.clone().find(|line| line.contains(text));
        let found = found.ok_or_else(|| alerts.collect::<Vec<_>>().join("\n"))?;
        serde_json::from_str(found).map_err(|error| error.to_string())
    })
}

#[test]
fn an_agent_in_a_pod_alerts_with_the_names_of_pods_from_their_first_program_on() {
    let programs = need_cluster!();
    let cluster = Cluster::start_with(&programs, &["--detect"]);
    apply(&cluster, &namespace(PROD));
    apply(&cluster, &rule());
    cluster.until("the rule is in force", || {
        let found = cluster.get(INSTALLATION, &["rulesfile", "marks"]);
        let all = found["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        let mut all = all.filter(|one| one["type"] == "Programmed" && one["status"] == "True");
        all.next()
            .map(drop)
            .ok_or_else(|| found["status"].to_string())
    });
    let line = format!("exec /bin/busybox sh -c 'exec /bin/busybox sleep 1000' {MARK}");
    apply(&cluster, &pod(PROD, "first", &line));
    let found = alert(&cluster, "prod/first");
    let fields = &found["output_fields"];
    assert_eq!(fields["k8s.node.name"], "n1", "{found}");
    assert_eq!(
        fields["container.image.repository"], "localhost/pod",
        "{found}"
    );
    apply(
        &cluster,
        &pod(PROD, "second", "exec /bin/busybox sleep 1000"),
    );
    cluster.until("a session runs", || {
        match exec(&cluster, "second", &["/bin/busybox", "true", MARK]) {
            error if error.is_empty() => Ok(()),
            error => Err(error),
        }
    });
    alert(&cluster, "prod/second");
    cluster.until("the pod has an Event", || {
        let described = cluster.kubectl(&["describe", "pod", "-n", PROD, "second"])?;
        match described.contains("RuleMatched") {
            true => Ok(()),
            false => Err(described),
        }
    });
}
