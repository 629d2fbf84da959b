//! Who may do what. Each line of the tables says why it is there.

use serde_json::{Value, json};

use super::{Installation, WEBHOOK, in_namespace, of_cluster};

/// Name of the operator, its service account and its roles.
pub const OPERATOR: &str = "tollgate-operator";
/// Name of the agent, its service account and its role.
pub const NODE: &str = "tollgate-node";

/// A right: verbs on resources of one group.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Group; empty for the core group.
    pub group: &'static str,
    /// Resources, with their subresource.
    pub resources: &'static [&'static str],
    /// Names of objects; empty for all.
    pub names: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// The reason.
    pub why: &'static str,
}

const READ: &[&str] = &["get", "list", "watch"];

/// Rights of the operator in the whole cluster. It may read no Secret, and change no workload but by
/// [`OF_RESTARTER`].
pub(crate) const OF_OPERATOR: [Access; 8] = [
    right(
        "crd.varmor.org",
        &["varmorpolicies", "varmorclusterpolicies"],
        READ,
        "policies are what it compiles",
    ),
    right(
        "crd.varmor.org",
        &[
            "varmorpolicies/status",
            "varmorclusterpolicies/status",
            "armorprofiles/status",
        ],
        &["patch"],
        "status is what it reports; it changes no policy",
    ),
    right(
        "crd.varmor.org",
        &["armorprofiles"],
        &["get", "list", "watch", "create", "patch", "delete"],
        "profiles are what it makes, in the namespaces of their policies",
    ),
    right(
        "events.k8s.io",
        &["events"],
        &["create"],
        "a change of readiness is an Event of the policy",
    ),
    right(
        "tollgate.dev",
        &["nodereports"],
        READ,
        "status of policies comes from reports",
    ),
    right(
        "",
        &["nodes"],
        READ,
        "a node without a report is unknown, and the boot of a report is compared",
    ),
    right(
        "",
        &["services", "pods"],
        READ,
        "egress rules name Services and Pods; watched when a policy does",
    ),
    right(
        "discovery.k8s.io",
        &["endpointslices"],
        READ,
        "addresses behind a Service; watched when a policy names one",
    ),
];

/// Rights of an operator that models behaviour, in the whole cluster.
pub(crate) const OF_MODELER: [Access; 2] = [
    right(
        "crd.varmor.org",
        &["armorprofilemodels"],
        &["get", "list", "watch", "create", "patch"],
        "models are what it makes, in the namespaces of their policies; it deletes none, and replaces none of others",
    ),
    right(
        "crd.varmor.org",
        &["armorprofilemodels/status"],
        &["patch"],
        "how far a model is",
    ),
];

/// Rights of an operator that restarts workloads, in the whole cluster.
pub(crate) const OF_RESTARTER: [Access; 1] = [right(
    "apps",
    &["deployments", "statefulsets", "daemonsets"],
    &["list", "patch"],
    "a restart is an annotation in the template of a workload, in whichever namespace a policy has some",
)];

/// Rights of the operator in its own namespace.
pub(crate) const OF_LEADER: [Access; 2] = [
    right(
        "coordination.k8s.io",
        &["leases"],
        &["create"],
        "the first operator makes the lease",
    ),
    Access {
        names: &[OPERATOR],
        ..right(
            "coordination.k8s.io",
            &["leases"],
            &["get", "update"],
            "one operator acts: the holder of this lease",
        )
    },
];

/// Rights of an operator with a webhook, in the whole cluster.
pub(crate) const OF_WEBHOOK: [Access; 1] = [Access {
    names: &[WEBHOOK],
    ..right(
        "admissionregistration.k8s.io",
        &[
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
        ],
        &["get", "patch"],
        "API servers have to trust its certificate; it changes no other webhook. Whoever has this right can have API servers ask about \
         any object, and see and change it",
    )
}];

/// Rights of an operator with a webhook, in its own namespace.
pub(crate) const OF_KEEPER: [Access; 1] = [Access {
    names: &[WEBHOOK],
    ..right(
        "",
        &["secrets"],
        &["get", "update"],
        "operators present the certificate of this Secret, and the leader replaces it; it reads no other Secret, and makes none",
    )
}];

/// Rights of the operator on what brings rules, in its own namespace.
pub(crate) const OF_REPORTER: [Access; 2] = [
    right(
        "artifact.falcosecurity.dev",
        &["rulesfiles", "configs"],
        READ,
        "their status says on which nodes they are in force",
    ),
    right(
        "artifact.falcosecurity.dev",
        &["rulesfiles/status", "configs/status"],
        &["patch"],
        "status is what it reports; it changes no rules",
    ),
];

/// Rights of an agent that watches its node, in the namespace of the installation. It writes none of what it reads: its report
/// says what came of it.
pub(crate) const OF_DETECTOR: [Access; 2] = [
    right(
        "artifact.falcosecurity.dev",
        &["rulesfiles", "configs"],
        READ,
        "they bring the rules and the configuration of the node",
    ),
    right(
        "",
        &["configmaps"],
        &["get"],
        "Rulesfiles and Configs name them; it asks for those by name, and can list none",
    ),
];

/// Rights of an agent that watches its node, in the whole cluster.
pub(crate) const OF_SELECTED: [Access; 1] = [right(
    "",
    &["nodes"],
    &["get"],
    "selectors of Rulesfiles and Configs are about labels of its node; it asks for that by name",
)];

/// Rights of an agent. A ValidatingAdmissionPolicy narrows the writes to the report of its own node.
pub(crate) const OF_NODE: [Access; 4] = [
    right(
        "crd.varmor.org",
        &["armorprofiles"],
        READ,
        "profiles are what it enforces; it lists metadata and gets those it needs",
    ),
    right(
        "crd.varmor.org",
        &["varmorpolicies", "varmorclusterpolicies"],
        &["get"],
        "a pod with the mark of a deleted policy is not refused; profiles say all that policies do",
    ),
    right(
        "tollgate.dev",
        &["nodereports"],
        &["create", "patch"],
        "it makes its own report; server-side apply creates by patch",
    ),
    right(
        "tollgate.dev",
        &["nodereports/status"],
        &["patch"],
        "it writes its own report",
    ),
];

/// Rights of an agent that writes Events, in the whole cluster. A ValidatingAdmissionPolicy narrows them to Events of Pods that
/// name its own node as their reporter.
pub(crate) const OF_EVENTS: [Access; 1] = [right(
    "events.k8s.io",
    &["events"],
    &["create"],
    "alerts and violations are Events of pods, which are in every namespace; it reads, changes and deletes none",
)];

const fn right(
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    why: &'static str,
) -> Access {
    Access {
        group,
        resources,
        names: &[],
        verbs,
        why,
    }
}

pub(super) fn objects(installation: &Installation) -> Vec<Value> {
    let account = |name| {
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": in_namespace(installation, name),
        })
    };
    let mut of_operator: Vec<Access> = OF_LEADER.into_iter().chain(OF_REPORTER).collect();
    let mut of_cluster_operator = OF_OPERATOR.to_vec();
    if installation.behavior_modeling {
        of_cluster_operator.extend(OF_MODELER);
    }
    if installation.update_workloads {
        of_cluster_operator.extend(OF_RESTARTER);
    }
    if installation.webhook {
        of_operator.extend(OF_KEEPER);
        of_cluster_operator.extend(OF_WEBHOOK);
    }
    let mut of_node = OF_NODE.to_vec();
    let mut more = Vec::new();
    if installation.detect {
        of_node.extend(OF_SELECTED);
        let own = || in_namespace(installation, NODE);
        more.push(self::role("Role", own(), &OF_DETECTOR));
        more.push(binding(installation, "Role", own(), NODE));
    }
    if installation.events {
        of_node.extend(OF_EVENTS);
    }
    let role = role("Role", in_namespace(installation, OPERATOR), &of_operator);
    let objects = vec![
        account(OPERATOR),
        account(NODE),
        self::role("ClusterRole", of_cluster(OPERATOR), &of_cluster_operator),
        self::role("ClusterRole", of_cluster(NODE), &of_node),
        role,
        binding(installation, "ClusterRole", of_cluster(OPERATOR), OPERATOR),
        binding(installation, "ClusterRole", of_cluster(NODE), NODE),
        binding(
            installation,
            "Role",
            in_namespace(installation, OPERATOR),
            OPERATOR,
        ),
    ];
    objects.into_iter().chain(more).collect()
}

fn role(kind: &str, metadata: Value, rights: &[Access]) -> Value {
    let rules = rights.iter().map(|right| {
        let mut rule = json!({ "apiGroups": [right.group], "resources": right.resources, "verbs": right.verbs });
        if !right.names.is_empty() {
            rule["resourceNames"] = json!(right.names);
        }
        rule
    });
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "rules": rules.collect::<Vec<_>>(),
    })
}

/// A binding of a role to the service account, all of the same name.
fn binding(installation: &Installation, role: &str, metadata: Value, name: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": format!("{role}Binding"),
        "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": installation.namespace }],
    })
}
