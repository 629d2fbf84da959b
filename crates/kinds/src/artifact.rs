//! Kinds of Falco's operator that bring rules and configuration: Rulesfile and Config.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::labels::LabelSelector;
use crate::meta::{Condition, Object};

/// Priority of an artifact that names none.
const DEFAULT_PRIORITY: u8 = 50;
/// Key of the rules in a ConfigMap.
pub const RULES_KEY: &str = "rules.yaml";
/// Key of the configuration in a ConfigMap.
pub const CONFIG_KEY: &str = "config.yaml";

/// A Rulesfile: rules of Falco.
pub type Rulesfile = Object<RulesfileSpec, ArtifactStatus>;
/// A Config: a part of falco.yaml.
pub type Config = Object<ConfigSpec, ArtifactStatus>;

/// Spec of a Rulesfile. Several sources are several files, loaded in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RulesfileSpec {
    /// Rules in a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci_artifact: Option<Value>,
    /// The rules themselves: a list, or the text of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_rules: Option<Value>,
    /// A ConfigMap with the key [`RULES_KEY`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapRef>,
    /// From 0 to 99. A file of higher priority is loaded later, and so may change rules of the others.
    #[serde(default = "default_priority")]
    pub priority: u8,
    /// Labels of the nodes; `None` means all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Spec of a Config.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigSpec {
    /// The configuration itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
    /// A ConfigMap with the key [`CONFIG_KEY`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapRef>,
    /// From 0 to 99. A part of higher priority is loaded later.
    #[serde(default = "default_priority")]
    pub priority: u8,
    /// Labels of the nodes; `None` means all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// A ConfigMap in the namespace of the object that refers to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigMapRef {
    /// Name of the ConfigMap.
    pub name: String,
}

/// Status of a Rulesfile or a Config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ArtifactStatus {
    /// The conditions Programmed and ResolvedRefs.
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

fn default_priority() -> u8 {
    DEFAULT_PRIORITY
}
