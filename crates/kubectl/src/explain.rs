//! `kubectl tollgate explain`.

use std::collections::HashMap;

use apiserver::Resource;
use kinds::annotations::{FailMode, INSTALLATION};
use kinds::crd::Definition;
use kinds::{ArmorProfile, NodeReport, ObjectKey, PolicyObject};
use node::explain::{Mechanism, PolicyCoverage, Profiles, coverage, is_about};
use nri::message::PodSandbox;
use serde_json::{Value, json};

use crate::output::{Shown, Table, columns};
use crate::session::{Failure, Session, key};
use crate::state::{acting, policies, read, ready};

/// What is said of a container.
struct Container {
    name: String,
    /// `None` if no policy is about the container.
    policy: Option<Confinement>,
    /// Why the container is refused when it is created.
    refused: Option<String>,
}

/// The policy of a container.
struct Confinement {
    /// Kind, namespace and name of the policy.
    policy: String,
    /// Namespace of the installation that wrote the profile; empty if that was another program.
    installation: String,
    profile: ObjectKey,
    fail_mode: FailMode,
    coverage: PolicyCoverage,
}

/// A pod, and everything that decides about it.
struct Explained {
    pod: PodSandbox,
    node: String,
    mechanism: Mechanism,
    containers: Vec<Container>,
    /// All that is to be said besides.
    notes: Vec<String>,
}

/// Shows a pod.
pub(crate) fn show(session: &Session, name: &str, handlers: &[String]) -> Result<Shown, Failure> {
    let Some(namespace) = &session.namespace else {
        return Err(Failure::Object {
            what: "--all-namespaces".to_owned(),
            problem: "a pod has one namespace: name it with -n".to_owned(),
        });
    };
    let at = key(namespace, name);
    let pod = session.find(&Resource::new("", "v1", "pods"), &at)?;
    let pod = pod.ok_or_else(|| Failure::Missing {
        what: format!("the pod {at}"),
    })?;
    let sandbox = sandbox(session, &pod)?;
    let mut objects = session.list("ArmorProfile", Some(namespace))?;
    if *namespace != session.installation {
        objects.extend(session.list("ArmorProfile", Some(&session.installation))?);
    }
    let (profiles, mut notes) = Profiles::new(&session.installation, &objects);
    let mechanism = match handlers.contains(&sandbox.runtime_handler) {
        true => Mechanism::Runtime,
        false => Mechanism::Filter,
    };
    let containers = containers(&pod)
        .into_iter()
        .map(|name| container(&profiles, &objects, (&sandbox, mechanism), name))
        .collect::<Result<Vec<_>, _>>()?;
    notes.extend(without_profile(session, &sandbox, &objects)?);
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    notes.extend(on_node(session, node, &containers)?);
    Ok(shown(&Explained {
        pod: sandbox,
        node: node.to_owned(),
        mechanism,
        containers,
        notes,
    }))
}

/// The pod as a container runtime describes it to an agent.
fn sandbox(session: &Session, pod: &Value) -> Result<PodSandbox, Failure> {
    let metadata = &pod["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
    let texts = |key: &str| -> HashMap<String, String> {
        let pairs = metadata[key].as_object().into_iter().flatten();
        pairs
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    };
    let handler = match pod["spec"]["runtimeClassName"].as_str() {
        None => String::new(),
        Some(class) => {
            let classes = Resource::new("node.k8s.io", "v1", "runtimeclasses");
            let found = session.find(&classes, &key("", class))?;
            let found = found.ok_or_else(|| Failure::Missing {
                what: format!("the RuntimeClass {class} of the pod"),
            })?;
            found["handler"].as_str().unwrap_or_default().to_owned()
        }
    };
    Ok(PodSandbox {
        name: text("name"),
        uid: text("uid"),
        namespace: text("namespace"),
        labels: texts("labels"),
        annotations: texts("annotations"),
        runtime_handler: handler,
        ..PodSandbox::default()
    })
}

/// Names of all containers.
fn containers(pod: &Value) -> Vec<&str> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten())
        .filter_map(|container| container["name"].as_str())
        .collect()
}

fn container(
    profiles: &Profiles,
    objects: &[Value],
    (pod, mechanism): (&PodSandbox, Mechanism),
    name: &str,
) -> Result<Container, Failure> {
    let mut out = Container {
        name: name.to_owned(),
        policy: None,
        refused: None,
    };
    let choice = match profiles.choose(pod, name) {
        Ok(Some(choice)) => choice,
        Ok(None) => return Ok(out),
        Err(undecided) => {
            out.refused = Some(undecided);
            return Ok(out);
        }
    };
    let is_it = |object: &&Value| {
        object["metadata"]["namespace"] == choice.profile.namespace.as_str()
            && object["metadata"]["name"] == choice.profile.name.as_str()
    };
    let object = objects.iter().find(is_it).cloned().unwrap_or_default();
    let profile: ArmorProfile = read(object)?;
    let owner = profile.metadata.owner_references.first();
    let policy = owner.map_or_else(String::new, |owner| match owner.kind.as_str() {
        "VarmorPolicy" => format!("{} {}/{}", owner.kind, choice.profile.namespace, owner.name),
        _ => format!("{} {}", owner.kind, owner.name),
    });
    let text = &profile.spec.profile.policy;
    let coverage = coverage(&choice.profile.name, text, mechanism);
    let coverage = coverage.map_err(|problem| Failure::Object {
        what: format!("the ArmorProfile {}", choice.profile),
        problem,
    })?;
    out.refused = choice.problem.or_else(|| {
        let is_refused = choice.fail_mode == FailMode::Closed && !coverage.gaps.is_empty();
        is_refused.then(|| coverage.gaps.join("; "))
    });
    out.policy = Some(Confinement {
        policy,
        installation: profile
            .metadata
            .annotations
            .get(INSTALLATION)
            .cloned()
            // vArmor's profiles name none.
            .unwrap_or_default(),
        profile: choice.profile,
        fail_mode: choice.fail_mode,
        coverage,
    });
    Ok(out)
}

/// Policies that are about the pod, and that no profile was made of.
fn without_profile(
    session: &Session,
    pod: &PodSandbox,
    objects: &[Value],
) -> Result<Vec<String>, Failure> {
    let has_profile = |policy: &PolicyObject| {
        let uid = policy.metadata.uid.as_deref().unwrap_or_default();
        let owners = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners
                .into_iter()
                .flatten()
                .any(|owner| owner["uid"] == uid)
        };
        objects.iter().any(owners)
    };
    let policies = policies(session)?;
    let lacking = policies
        .iter()
        .filter(|policy| is_about(&policy.spec.target, pod) && !has_profile(policy));
    let note = |policy: &PolicyObject| {
        let (_, reason, message) = ready(policy);
        let (kind, key) = (&policy.kind, policy.key());
        let by = acting(policy).map_or_else(String::new, |acting| {
            format!(" (the installation in {acting} acts on it)")
        });
        format!(
            "{kind} {key} is about the pod and not enforced, because it has no profile{by}: {reason}: {message}"
        )
    };
    Ok(lacking.map(note).collect())
}

/// What the node of the pod reports of the profiles of its containers.
fn on_node(
    session: &Session,
    node: &str,
    containers: &[Container],
) -> Result<Vec<String>, Failure> {
    if node.is_empty() {
        return Ok(vec!["the pod has no node yet".to_owned()]);
    }
    let definition = Definition::of_kind("NodeReport").expect("the kind is in the table");
    let report = session.find(&Resource::of(definition), &key("", node))?;
    let report: Option<NodeReport> = report.map(read).transpose()?;
    let Some(status) = report.and_then(|report| report.status) else {
        return Ok(vec![format!(
            "node {node} has not reported: whether the containers are confined is not known"
        )]);
    };
    let mut keys: Vec<&ObjectKey> = Vec::new();
    for confinement in containers.iter().filter_map(|one| one.policy.as_ref()) {
        if !keys.contains(&&confinement.profile) {
            keys.push(&confinement.profile);
        }
    }
    let note = |key: &ObjectKey| {
        let mut of_node = status.profiles.iter();
        let found = of_node.find(|one| one.namespace == key.namespace && one.name == key.name);
        let Some(found) = found else {
            return format!("node {node} reports no container with {key}");
        };
        let mut text = format!(
            "node {node} reports for {key}: {} containers, {} enforced, {} late, {} unprotected",
            found.containers, found.enforced, found.late, found.unprotected
        );
        for reason in found.failure.iter().chain(&found.reasons) {
            text.push_str(&format!("; {reason}"));
        }
        text
    };
    Ok(keys.into_iter().map(note).collect())
}

/// The table of containers, without rows.
fn overview(title: String) -> Table {
    Table {
        title,
        columns: columns(&[
            "CONTAINER",
            "POLICY",
            "PROFILE",
            "FAIL-MODE",
            "REFUSED",
            "+INSTALLATION",
        ]),
        ..Table::default()
    }
}

fn shown(explained: &Explained) -> Shown {
    let by = match explained.mechanism {
        Mechanism::Filter => "seccomp filter of the container runtime",
        Mechanism::Runtime => "tollgate runtime",
    };
    let (namespace, name) = (&explained.pod.namespace, &explained.pod.name);
    let mut overview = overview(format!("Pod {namespace}/{name}, confined by {by}"));
    let mut rules = Table {
        columns: columns(&[
            "CONTAINER",
            "RULE",
            "ACTION",
            "ENFORCED",
            "BY",
            "NOT ENFORCED",
        ]),
        ..Table::default()
    };
    for container in &explained.containers {
        let refused = container.refused.clone().unwrap_or_else(|| "no".to_owned());
        let Some(policy) = &container.policy else {
            let none = || String::new();
            overview.rows.push(vec![
                container.name.clone(),
                none(),
                none(),
                none(),
                refused,
                none(),
            ]);
            continue;
        };
        overview.rows.push(vec![
            container.name.clone(),
            policy.policy.clone(),
            policy.profile.to_string(),
            policy.fail_mode.name().to_owned(),
            refused,
            policy.installation.clone(),
        ]);
        for rule in &policy.coverage.rules {
            let by: Vec<String> = rule.enforcers.iter().map(ToString::to_string).collect();
            rules.rows.push(vec![
                container.name.clone(),
                rule.rule.clone(),
                rule.action.to_owned(),
                rule.grade.name().to_owned(),
                by.join(", "),
                rule.gaps.join("; "),
            ]);
        }
    }
    Shown {
        tables: vec![overview, rules],
        data: data(explained),
        notes: explained.notes.clone(),
    }
}

fn data(explained: &Explained) -> Value {
    let containers = explained.containers.iter().map(|container| {
        let policy = container.policy.as_ref();
        let rules = policy.map(|policy| {
            let rules = policy.coverage.rules.iter();
            let rule = rules.map(|rule| {
                let by: Vec<String> = rule.enforcers.iter().map(ToString::to_string).collect();
                json!({ "rule": rule.rule, "action": rule.action, "grade": rule.grade.name(),
                    "enforcers": by, "gaps": rule.gaps })
            });
            rule.collect::<Vec<_>>()
        });
        json!({
            "name": container.name,
            "policy": policy.map(|policy| &policy.policy),
            "profile": policy.map(|policy| policy.profile.to_string()),
            "installation": policy.map(|policy| &policy.installation),
            "failMode": policy.map(|policy| policy.fail_mode.name()),
            "refused": container.refused,
            "rules": rules,
            "gaps": policy.map(|policy| &policy.coverage.gaps),
        })
    });
    json!({
        "namespace": explained.pod.namespace,
        "pod": explained.pod.name,
        "node": explained.node,
        "mechanism": match explained.mechanism {
            Mechanism::Filter => "filter",
            Mechanism::Runtime => "runtime",
        },
        "containers": containers.collect::<Vec<_>>(),
        "notes": explained.notes,
    })
}
