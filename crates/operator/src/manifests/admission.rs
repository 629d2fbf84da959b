//! Policies that the API server itself runs: no webhook, no certificate, no Secret.

use cluster::inactive_condition;
use kinds::MAX_NAME;
use kinds::annotations::OF_POLICY;
use serde_json::{Value, json};

use super::{Installation, NODE, of_cluster};

/// Reporting controller of agents' Events.
const REPORTER: &str = "tollgate.dev/node";
/// Reasons and actions of agents' Events.
const REASONS: [&str; 3] = [
    "RuleMatched Detect",
    "PolicyViolation Enforce",
    "PolicyNotEnforced Enforce",
];
/// Versions and kinds of the workloads to which agents' Events are related.
const RELATED: [&str; 4] = [
    "apps/v1 DaemonSet",
    "apps/v1 Deployment",
    "apps/v1 StatefulSet",
    "batch/v1 Job",
];
/// Maximum length in bytes of a reporting instance. A longer name of a node is cut.
const MAX_INSTANCE: usize = 128;

/// Name of the policies about marks.
const MARKS: &str = "tollgate-marks";

pub(super) fn objects(installation: &Installation) -> Vec<Value> {
    let mut objects = vec![own_report(installation), deny("tollgate-own-report")];
    if installation.events {
        objects.extend([own_events(installation), deny("tollgate-own-events")]);
    }
    if installation.webhook {
        return objects;
    }
    for (kind, scope) in [("VarmorPolicy", ""), ("VarmorClusterPolicy", "-cluster")] {
        for place in [Place::Pod, Place::Template] {
            let name = format!("{MARKS}{scope}{}", place.suffix());
            objects.push(marks(installation, &name, kind, place));
            objects.push(marks_binding(&name));
        }
    }
    objects
}

/// An agent writes the report of its own node alone: the API server puts the node of a bound token into the request.
fn own_report(installation: &Installation) -> Value {
    let agent = format!("system:serviceaccount:{}:{NODE}", installation.namespace);
    let key = "authentication.kubernetes.io/node-name";
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": of_cluster("tollgate-own-report"),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["tollgate.dev"],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["nodereports", "nodereports/status"],
            }] },
            "matchConditions": [{
                "name": "is-an-agent",
                "expression": format!("request.userInfo.username == '{agent}'"),
            }],
            "validations": [{
                "expression": format!(
                    "request.operation != 'DELETE' && has(request.userInfo.extra) && '{key}' in request.userInfo.extra \
                     && request.userInfo.extra['{key}'].size() == 1 && \
                     request.userInfo.extra['{key}'][0] == object.metadata.name"
                ),
                "message": "an agent may write the NodeReport of its own node alone",
                "reason": "Forbidden",
            }],
        },
    })
}

/// An agent writes Events of Pods alone, in the name of its own node: a node that was taken over can tell stories about pods, and
/// each of them says which node tells it.
fn own_events(installation: &Installation) -> Value {
    let agent = format!("system:serviceaccount:{}:{NODE}", installation.namespace);
    let key = "authentication.kubernetes.io/node-name";
    let node = format!("request.userInfo.extra['{key}'][0]");
    let list = |all: &[&str]| format!("'{}'", all.join("', '"));
    let (reasons, related) = (list(&REASONS), list(&RELATED));
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": of_cluster("tollgate-own-events"),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["events.k8s.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["events"],
            }] },
            "matchConditions": [{
                "name": "is-an-agent",
                "expression": format!("request.userInfo.username == '{agent}'"),
            }],
            "validations": [{
                "expression": format!(
                    "has(request.userInfo.extra) && '{key}' in request.userInfo.extra && \
                     request.userInfo.extra['{key}'].size() == 1 && has(object.reportingInstance) && \
                     object.reportingInstance == ({node}.size() > {MAX_INSTANCE} ? {node}.substring(0, {MAX_INSTANCE}) : {node}) && \
                     has(object.reportingController) && object.reportingController == '{REPORTER}' && \
                     has(object.regarding) && has(object.regarding.kind) && object.regarding.kind == 'Pod' && \
                     has(object.regarding.apiVersion) && object.regarding.apiVersion == 'v1' && \
                     has(object.reason) && has(object.action) && \
                     object.reason + ' ' + object.action in [{reasons}] && (!has(object.related) || \
                     has(object.related.apiVersion) && has(object.related.kind) && has(object.related.namespace) && \
                     object.related.namespace == object.metadata.namespace && \
                     object.related.apiVersion + ' ' + object.related.kind in [{related}])"
                ),
                "message": "an agent may write its own kinds of Events of Pods alone, as its own node",
                "reason": "Forbidden",
            }],
        },
    })
}

/// Has a policy deny.
pub(super) fn deny(name: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": of_cluster(name),
        "spec": { "policyName": name, "validationActions": ["Deny"] },
    })
}

/// Where a workload has its containers.
#[derive(Clone, Copy)]
enum Place {
    Pod,
    Template,
}

impl Place {
    fn suffix(self) -> &'static str {
        match self {
            Self::Pod => "-pods",
            Self::Template => "-workloads",
        }
    }

    /// The pod, in an expression.
    fn pod(self) -> &'static str {
        match self {
            Self::Pod => "object",
            Self::Template => "object.spec.template",
        }
    }

    fn pointer(self) -> &'static str {
        match self {
            Self::Pod => "",
            Self::Template => "/spec/template",
        }
    }

    fn rule(self) -> Value {
        match self {
            Self::Pod => {
                json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["pods"] })
            }
            Self::Template => json!({ "apiGroups": ["apps"], "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"], "resources": ["deployments", "statefulsets", "daemonsets"] }),
        }
    }
}

/// Marks a workload with the profile of the policy that is its parameter, or takes such a mark out of another one. Each
/// policy sees to its own mark alone, so that the order of policies makes no difference.
fn marks(installation: &Installation, name: &str, kind: &str, place: Place) -> Value {
    let is_of_cluster = kind == "VarmorClusterPolicy";
    let profile = match is_of_cluster {
        true => format!(
            "('varmor-cluster-{}-' + params.metadata.name).lowerAscii()",
            installation.namespace
        ),
        false => {
            "('varmor-' + params.metadata.namespace + '-' + params.metadata.name).lowerAscii()"
                .to_owned()
        }
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": of_cluster(name),
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "paramKind": { "apiVersion": "crd.varmor.org/v1beta1", "kind": kind },
            "matchConstraints": {
                "namespaceSelector": { "matchExpressions": [{ "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn", "values": [installation.namespace] }] },
                "resourceRules": [place.rule()],
            },
            "variables": [
                { "name": "labels", "expression": "has(object.metadata.labels) ? object.metadata.labels : {}" },
                { "name": "profile", "expression": profile },
                { "name": "acts", "expression": acts(installation) },
            ],
            "matchConditions": [],
            "mutations": [{
                "patchType": "JSONPatch",
                "jsonPatch": { "expression": patch(place) },
            }],
        },
    })
}

/// This installation acts on the policy, or none does yet. Marks of two installations may have the same name: who does not act
/// leaves them alone.
fn acts(installation: &Installation) -> String {
    let namespace = &installation.namespace;
    let inactive = inactive_condition(namespace);
    format!(
        "!has(params.status) || (!has(params.status.installation) || params.status.installation in ['', '{namespace}']) && \
         (!has(params.status.conditions) || !params.status.conditions.exists(c, c.type == '{inactive}'))"
    )
}

/// The target of the policy is this workload. A selector that nobody can read selects nothing: an agent has no profile for
/// such a policy, and an error here would refuse the workloads of others.
const IS_TARGET: &str = "params.spec.target.kind == object.kind && (has(params.spec.target.selector) ? \
    ((!has(params.spec.target.selector.matchLabels) || params.spec.target.selector.matchLabels.all(k, \
    k in variables.labels && variables.labels[k] == params.spec.target.selector.matchLabels[k])) && \
    (!has(params.spec.target.selector.matchExpressions) || params.spec.target.selector.matchExpressions.all(e, \
    e.operator in ['In', 'NotIn'] ? (e.key in variables.labels && has(e.values) && \
    variables.labels[e.key] in e.values) == (e.operator == 'In') : \
    e.operator in ['Exists', 'DoesNotExist'] && (e.key in variables.labels) == (e.operator == 'Exists')))) : \
    has(object.metadata.name) && has(params.spec.target.name) && params.spec.target.name == object.metadata.name)";

fn patch(place: Place) -> String {
    let (pod, pointer) = (place.pod(), place.pointer());
    let empty = |missing: &str, path: &str| {
        format!("({missing} ? [JSONPatch{{op: 'add', path: '{pointer}{path}', value: {{}}}}] : [])")
    };
    let metadata = match place {
        Place::Pod => String::new(),
        Place::Template => format!(
            "{} + ",
            empty(&format!("!has({pod}.metadata)"), "/metadata")
        ),
    };
    let annotations = empty(
        &format!("!has({pod}.metadata) || !has({pod}.metadata.annotations)"),
        "/metadata/annotations",
    );
    let key = format!("'{OF_POLICY}' + variables.profile");
    let path = format!("'{pointer}/metadata/annotations/' + jsonpatch.escapeKey({key})");
    // A policy whose name is too long has no profile.
    let has_profile = format!("variables.profile.size() <= {MAX_NAME}");
    let is_marked = format!(
        "has({pod}.metadata) && has({pod}.metadata.annotations) && {key} in {pod}.metadata.annotations"
    );
    // A pod has the marks of its workload, which admission cannot compare with it.
    let is_place = match place {
        Place::Pod => "params.spec.target.kind == 'Pod'",
        Place::Template => "true",
    };
    format!(
        "!({has_profile} && {is_place} && variables.acts) ? [] : ({IS_TARGET}) ? {metadata}{annotations} + \
         [JSONPatch{{op: 'add', path: {path}, value: 'target'}}] : ({is_marked}) ? \
         [JSONPatch{{op: 'remove', path: {path}}}] : []"
    )
}

fn marks_binding(name: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": of_cluster(name),
        "spec": {
            "policyName": name,
            "paramRef": { "selector": {}, "parameterNotFoundAction": "Allow" },
        },
    })
}
