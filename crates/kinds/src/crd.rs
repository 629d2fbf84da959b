//! CustomResourceDefinitions, made from `data/schema.txt`.

use serde_json::{Map, Value, json};

use crate::schema::Types;

/// Group of vArmor's kinds.
pub const VARMOR_GROUP: &str = "crd.varmor.org";
/// Version of vArmor's kinds.
pub const VARMOR_VERSION: &str = "v1beta1";
/// Group of Falco operator's kinds.
pub const FALCO_GROUP: &str = "artifact.falcosecurity.dev";
/// Group of our own kind.
pub const OWN_GROUP: &str = "tollgate.dev";
/// Version of Falco operator's kinds, and of our own.
pub const ALPHA_VERSION: &str = "v1alpha1";

/// A kind, as a row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Group.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Name in paths of the API.
    pub plural: &'static str,
    /// Short name for `kubectl`; empty if there is none.
    short: &'static str,
    /// Objects have a namespace.
    pub namespaced: bool,
    /// Name of the type in the table.
    shape: &'static str,
    /// Columns of `kubectl get`: name, type, path.
    columns: &'static [(&'static str, &'static str, &'static str)],
}

const AGE: (&str, &str, &str) = ("AGE", "date", ".metadata.creationTimestamp");

const POLICY_COLUMNS: &[(&str, &str, &str)] = &[
    ("ENFORCER", "string", ".spec.policy.enforcer"),
    ("MODE", "string", ".spec.policy.mode"),
    ("TARGET-KIND", "string", ".spec.target.kind"),
    ("TARGET-NAME", "string", ".spec.target.name"),
    ("TARGET-SELECTOR", "string", ".spec.target.selector"),
    ("PROFILE-NAME", "string", ".status.profileName"),
    ("READY", "boolean", ".status.ready"),
    ("STATUS", "string", ".status.phase"),
    AGE,
];

const ARTIFACT_COLUMNS: &[(&str, &str, &str)] = &[
    ("Priority", "integer", ".spec.priority"),
    (
        "Programmed",
        "string",
        ".status.conditions[?(@.type == 'Programmed')].status",
    ),
    ("Age", "date", ".metadata.creationTimestamp"),
];

/// All kinds.
pub const DEFINITIONS: [Definition; 7] = [
    Definition {
        group: VARMOR_GROUP,
        version: VARMOR_VERSION,
        kind: "VarmorPolicy",
        plural: "varmorpolicies",
        short: "vpol",
        namespaced: true,
        shape: "Policy",
        columns: POLICY_COLUMNS,
    },
    Definition {
        group: VARMOR_GROUP,
        version: VARMOR_VERSION,
        kind: "VarmorClusterPolicy",
        plural: "varmorclusterpolicies",
        short: "vcpol",
        namespaced: false,
        shape: "Policy",
        columns: POLICY_COLUMNS,
    },
    Definition {
        group: VARMOR_GROUP,
        version: VARMOR_VERSION,
        kind: "ArmorProfile",
        plural: "armorprofiles",
        short: "",
        namespaced: true,
        shape: "ArmorProfile",
        columns: &[
            ("PROFILE", "string", ".spec.profile.name"),
            ("ENFORCER", "string", ".spec.profile.enforcer"),
            ("MODE", "string", ".spec.profile.mode"),
            ("DESIRED", "integer", ".status.desiredNumberLoaded"),
            ("CURRENT", "integer", ".status.currentNumberLoaded"),
            AGE,
        ],
    },
    Definition {
        group: VARMOR_GROUP,
        version: VARMOR_VERSION,
        kind: "ArmorProfileModel",
        plural: "armorprofilemodels",
        short: "",
        namespaced: true,
        shape: "ArmorProfileModel",
        columns: &[
            ("STORAGE-TYPE", "string", ".storageType"),
            ("DESIRED", "integer", ".status.desiredNumber"),
            ("COMPLETED", "integer", ".status.completedNumber"),
            ("READY", "boolean", ".status.ready"),
            AGE,
        ],
    },
    Definition {
        group: FALCO_GROUP,
        version: ALPHA_VERSION,
        kind: "Rulesfile",
        plural: "rulesfiles",
        short: "",
        namespaced: true,
        shape: "Rulesfile",
        columns: ARTIFACT_COLUMNS,
    },
    Definition {
        group: FALCO_GROUP,
        version: ALPHA_VERSION,
        kind: "Config",
        plural: "configs",
        short: "",
        namespaced: true,
        shape: "Config",
        columns: ARTIFACT_COLUMNS,
    },
    Definition {
        group: OWN_GROUP,
        version: ALPHA_VERSION,
        kind: "NodeReport",
        plural: "nodereports",
        short: "",
        namespaced: false,
        shape: "NodeReport",
        columns: &[
            ("AGENT", "string", ".status.agentVersion"),
            ("OBSERVED", "string", ".status.observedVersion"),
            ("RENEWED", "date", ".status.renewTime"),
            AGE,
        ],
    },
];

impl Definition {
    /// The definition of a kind; `None` for a kind that is none of ours.
    #[must_use]
    pub fn of_kind(kind: &str) -> Option<&'static Self> {
        DEFINITIONS
            .iter()
            .find(|definition| definition.kind == kind)
    }

    /// `apiVersion` of objects.
    #[must_use]
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// The structural schema of an object.
    fn schema(&self, types: &Types) -> Value {
        let mut schema = types.schema(self.shape).expect("a test makes all schemas");
        let fields = Map::from_iter([
            ("apiVersion".to_owned(), json!({ "type": "string" })),
            ("kind".to_owned(), json!({ "type": "string" })),
            ("metadata".to_owned(), json!({ "type": "object" })),
        ]);
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.extend(fields);
        }
        schema
    }

    /// The CustomResourceDefinition.
    fn crd(&self, types: &Types) -> Value {
        let mut names = json!({
            "kind": self.kind,
            "listKind": format!("{}List", self.kind),
            "plural": self.plural,
            "singular": self.kind.to_lowercase(),
        });
        if !self.short.is_empty() {
            names["shortNames"] = json!([self.short]);
        }
        if self.group == FALCO_GROUP {
            names["categories"] = json!(["artifacts"]);
        }
        let columns = self.columns.iter();
        let columns = columns
            .map(|(name, shape, path)| json!({ "name": name, "type": shape, "jsonPath": path }));
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{}.{}", self.plural, self.group) },
            "spec": {
                "group": self.group,
                "names": names,
                "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
                "versions": [{
                    "name": self.version,
                    "served": true,
                    "storage": true,
                    "subresources": { "status": {} },
                    "additionalPrinterColumns": columns.collect::<Vec<_>>(),
                    "schema": { "openAPIV3Schema": self.schema(types) },
                }],
            },
        })
    }
}

/// The CustomResourceDefinitions of all kinds.
#[must_use]
pub fn all() -> Vec<Value> {
    let types = Types::load();
    DEFINITIONS
        .iter()
        .map(|definition| definition.crd(&types))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_definition_with_schema_status_and_columns() {
        let crds = all();
        let names: Vec<&str> = crds
            .iter()
            .filter_map(|crd| crd["metadata"]["name"].as_str())
            .collect();
        assert_eq!(
            names,
            [
                "varmorpolicies.crd.varmor.org",
                "varmorclusterpolicies.crd.varmor.org",
                "armorprofiles.crd.varmor.org",
                "armorprofilemodels.crd.varmor.org",
                "rulesfiles.artifact.falcosecurity.dev",
                "configs.artifact.falcosecurity.dev",
                "nodereports.tollgate.dev",
            ]
        );
        for crd in &crds {
            let version = &crd["spec"]["versions"][0];
            let schema = &version["schema"]["openAPIV3Schema"];
            assert_eq!(schema["properties"]["metadata"]["type"], "object", "{crd}");
            assert!(schema["properties"]["status"].is_object(), "{crd}");
            assert_eq!(version["subresources"], json!({ "status": {} }));
            assert!(
                version["additionalPrinterColumns"]
                    .as_array()
                    .is_some_and(|all| all.len() > 2)
            );
        }
    }

    #[test]
    fn the_fields_that_the_peer_requires_are_required() {
        let crds = all();
        let spec = |index: usize| {
            &crds[index]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        };
        assert_eq!(spec(0)["required"], json!(["target", "policy"]));
        assert_eq!(spec(0), spec(1), "both policies have one schema");
        let raw = &spec(0)["properties"]["policy"]["properties"]["enhanceProtect"]["properties"]["bpfRawRules"]
            ["properties"];
        let destination = &raw["network"]["properties"]["egress"]["properties"]["toDestinations"];
        assert_eq!(destination["items"]["required"], json!(["qualifiers"]));
        assert_eq!(
            raw["mounts"]["items"]["required"],
            json!(["qualifiers", "sourcePattern", "fstype", "flags"])
        );
    }
}
