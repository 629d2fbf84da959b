//! Rules and configuration of a node, as a function of Rulesfiles, Configs, ConfigMaps and the labels of the node.
//!
//! [`Artifacts`] takes [`ArtifactEvent`]s, in any order that keeps the order of each single object, and says by
//! [`Artifacts::desired`] which texts the node is to load, in which order. [`Desired::settle`] compares that with what is in
//! force and with a compiler: an object that is wrong keeps its last good texts, and takes nothing from the others.

mod settle;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use kinds::artifact::{
    CONFIG_KEY, Config, ConfigMapRef, ConfigSpec, RULES_KEY, Rulesfile, RulesfileSpec,
};
use kinds::crd::Definition;
use kinds::{LabelSelector, ObjectKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use settle::{AcceptedArtifact, AcceptedSources, ArtifactState, Problem, Settled};

/// Highest priority of an artifact.
const MAX_PRIORITY: u8 = 99;

/// A kind of objects that bring rules or configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ArtifactKind {
    /// Rules.
    Rulesfile,
    /// Settings of falco.yaml.
    Config,
}

impl ArtifactKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Rulesfile, Self::Config];

    /// Name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rulesfile => "Rulesfile",
            Self::Config => "Config",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Key of the text in a ConfigMap.
    #[must_use]
    pub fn config_map_key(self) -> &'static str {
        match self {
            Self::Rulesfile => RULES_KEY,
            Self::Config => CONFIG_KEY,
        }
    }
}

/// An object that brings rules or configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArtifactId {
    /// Its kind.
    pub kind: ArtifactKind,
    /// Namespace and name.
    pub key: ObjectKey,
}

/// Where an object has a text. The order is that in which texts of one priority are loaded, as in Falco's operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Medium {
    /// In a ConfigMap.
    ConfigMap,
    /// In the object itself.
    Inline,
}

/// A text that a node loads. The order of texts is that in which they are loaded: by priority, medium and object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceText {
    /// Priority of the object.
    pub priority: u8,
    /// Where the object has the text.
    pub medium: Medium,
    /// Name for messages, unique among all texts of a node.
    pub name: String,
    /// The text, in YAML.
    pub text: String,
}

/// What happens to the sources of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum ArtifactEvent {
    /// An object, new or changed, as the API server has it. An object that is not what its kind has to be is an error of
    /// this object.
    Object(ArtifactKind, Value),
    /// An object was deleted.
    Gone(ArtifactId),
    /// The ConfigMap of this name, in the namespace of the artifacts; `None` if there is none.
    ConfigMap(String, Option<BTreeMap<String, String>>),
    /// The API server does not give this ConfigMap to the node, for a reason of this ConfigMap alone.
    UnreadableConfigMap(String, String),
    /// The labels of the node.
    Labels(BTreeMap<String, String>),
    /// Every object of the kind that existed when the agent started is known.
    Synced(ArtifactKind),
}

/// An object of either kind, in one form.
#[derive(Clone, Debug, PartialEq)]
struct Stored {
    generation: i64,
    content: Result<Content, String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Content {
    priority: u8,
    selector: Option<LabelSelector>,
    inline: Option<String>,
    config_map: Option<String>,
}

/// What is known of a ConfigMap.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Found(BTreeMap<String, String>),
    Missing,
    Unreadable(String),
}

/// The objects that may concern a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Artifacts {
    objects: BTreeMap<ArtifactId, Stored>,
    config_maps: BTreeMap<String, Answer>,
    labels: Option<BTreeMap<String, String>>,
    synced: BTreeSet<ArtifactKind>,
}

/// Why an object, or a new version of it, is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// A ConfigMap that it refers to is missing or lacks the key.
    pub is_unresolved: bool,
    /// The reason, for people.
    pub message: String,
}

impl Refusal {
    fn invalid(message: String) -> Self {
        Self {
            is_unresolved: false,
            message,
        }
    }

    fn unresolved(message: String) -> Self {
        Self {
            is_unresolved: true,
            message,
        }
    }
}

/// An object that is for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredArtifact {
    /// The object.
    pub id: ArtifactId,
    /// Generation of its spec.
    pub generation: i64,
    /// Its texts, or why it has none.
    pub texts: Result<Vec<SourceText>, Refusal>,
}

/// The objects that are for a node, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The objects.
    pub artifacts: Vec<DesiredArtifact>,
}

impl Artifacts {
    /// Takes an event.
    pub fn apply(&mut self, event: ArtifactEvent) {
        match event {
            ArtifactEvent::Object(kind, object) => {
                let (id, stored) = read(kind, object);
                self.objects.insert(id, stored);
            }
            ArtifactEvent::Gone(id) => {
                self.objects.remove(&id);
            }
            ArtifactEvent::ConfigMap(name, data) => {
                let answer = data.map_or(Answer::Missing, Answer::Found);
                self.config_maps.insert(name, answer);
            }
            ArtifactEvent::UnreadableConfigMap(name, why) => {
                self.config_maps.insert(name, Answer::Unreadable(why));
            }
            ArtifactEvent::Labels(labels) => self.labels = Some(labels),
            ArtifactEvent::Synced(kind) => {
                self.synced.insert(kind);
            }
        }
    }

    /// Names of the ConfigMaps that objects for this node refer to. Before the labels of the node are known there are none.
    /// What cannot be the name of one is not asked for.
    #[must_use]
    pub fn config_maps(&self) -> BTreeSet<&str> {
        let contents = self
            .selected()
            .filter_map(|(_, stored)| stored.content.as_ref().ok());
        contents
            .filter_map(|content| content.config_map.as_deref())
            .filter(|name| is_name(name))
            .collect()
    }

    /// Returns true if the labels of the node are known.
    #[must_use]
    pub fn has_labels(&self) -> bool {
        self.labels.is_some()
    }

    /// Returns true if it is known whether the ConfigMap of this name exists.
    #[must_use]
    pub fn has_config_map(&self, name: &str) -> bool {
        self.config_maps.contains_key(name)
    }

    /// What the node is to load. `None` while it is not known: before all objects and the labels of the node are, and while
    /// a ConfigMap that is referred to was not asked for.
    #[must_use]
    pub fn desired(&self) -> Option<Desired> {
        let is_synced = ArtifactKind::ALL
            .iter()
            .all(|kind| self.synced.contains(kind));
        let are_read = self
            .config_maps()
            .into_iter()
            .all(|name| self.config_maps.contains_key(name));
        if !is_synced || !are_read || self.labels.is_none() {
            return None;
        }
        let artifacts = self.selected().map(|(id, stored)| DesiredArtifact {
            id: id.clone(),
            generation: stored.generation,
            texts: self.texts(id, stored),
        });
        Some(Desired {
            artifacts: artifacts.collect(),
        })
    }

    /// The objects whose selector is for this node. Of one that cannot be read, the selector is unknown: it is for all.
    fn selected(&self) -> impl Iterator<Item = (&ArtifactId, &Stored)> {
        let labels = self.labels.as_ref();
        self.objects.iter().filter(move |(_, stored)| {
            labels.is_some_and(|labels| match &stored.content {
                Ok(content) => content
                    .selector
                    .as_ref()
                    .is_none_or(|selector| selector.matches(labels)),
                Err(_) => true,
            })
        })
    }

    fn texts(&self, id: &ArtifactId, stored: &Stored) -> Result<Vec<SourceText>, Refusal> {
        let content = stored.content.clone().map_err(Refusal::invalid)?;
        let text = |medium, part: &str, text: String| SourceText {
            priority: content.priority,
            medium,
            name: format!("{}:{}:{part}", id.kind.name(), id.key),
            text,
        };
        let mut texts = Vec::new();
        if let Some(name) = &content.config_map {
            let key = id.kind.config_map_key();
            let found = self.config_map(name).map_err(Refusal::unresolved)?;
            let found = found.get(key).ok_or_else(|| {
                Refusal::unresolved(format!("the ConfigMap `{name}` has no key `{key}`"))
            })?;
            texts.push(text(Medium::ConfigMap, "configMapRef", found.clone()));
        }
        if let Some(inline) = &content.inline {
            let part = match id.kind {
                ArtifactKind::Rulesfile => "inlineRules",
                ArtifactKind::Config => "config",
            };
            texts.push(text(Medium::Inline, part, inline.clone()));
        }
        Ok(texts)
    }

    /// The data of a ConfigMap, or why there are none.
    fn config_map(&self, name: &str) -> Result<&BTreeMap<String, String>, String> {
        if !is_name(name) {
            return Err(format!("`{name}` cannot be the name of a ConfigMap"));
        }
        match self.config_maps.get(name) {
            Some(Answer::Found(data)) => Ok(data),
            Some(Answer::Missing) | None => Err(format!("there is no ConfigMap `{name}`")),
            Some(Answer::Unreadable(why)) => {
                Err(format!("the ConfigMap `{name}` cannot be read: {why}"))
            }
        }
    }
}

/// Whether an object of Kubernetes can have this name: labels of small letters, digits and inner dashes, joined by dots. Another
/// one would be part of the path of a request, and the answer one about something else.
fn is_name(name: &str) -> bool {
    const MAX_NAME: usize = 253;
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        label.bytes().all(is_inner)
            && !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= MAX_NAME && name.split('.').all(is_label)
}

/// Returns the id and the generation of an object, and the object with what objects in a list lack. An object without a
/// name or a generation is from no API server: it has the empty name and 0, which no other has.
pub(crate) fn identify(kind: ArtifactKind, mut object: Value) -> (ArtifactId, i64, Value) {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
    let id = ArtifactId {
        kind,
        key: ObjectKey {
            namespace: text("namespace"),
            name: text("name"),
        },
    };
    let generation = metadata["generation"].as_i64().unwrap_or_default();
    let definition = Definition::of_kind(kind.name()).expect("the kind is in the table");
    object["kind"] = definition.kind.into();
    object["apiVersion"] = definition.api_version().into();
    if object["spec"].is_null() {
        object["spec"] = Value::Object(serde_json::Map::new());
    }
    (id, generation, object)
}

/// Reads an object.
fn read(kind: ArtifactKind, object: Value) -> (ArtifactId, Stored) {
    let (id, generation, object) = identify(kind, object);
    let content = match kind {
        ArtifactKind::Rulesfile => serde_json::from_value(object)
            .map_err(|error| error.to_string())
            .and_then(|rules: Rulesfile| of_rules(rules.spec)),
        ArtifactKind::Config => serde_json::from_value(object)
            .map_err(|error| error.to_string())
            .and_then(|config: Config| of_config(config.spec)),
    };
    (
        id,
        Stored {
            generation,
            content,
        },
    )
}

fn of_rules(spec: RulesfileSpec) -> Result<Content, String> {
    if let Some(artifact) = &spec.oci_artifact {
        let repository = artifact["image"]["repository"].as_str();
        let named = repository.map_or_else(String::new, |name| format!(" ({name})"));
        return Err(format!(
            "`ociArtifact`{named} is not supported: an agent that watches a node pulls nothing from a registry; \
             put the rules into `inlineRules` or a ConfigMap"
        ));
    }
    let is_shaped = |value: &Value| value.is_array();
    let inline = inline(
        "inlineRules",
        "a list of rules",
        spec.inline_rules,
        is_shaped,
    )?;
    content(spec.priority, spec.selector, inline, spec.config_map_ref)
}

fn of_config(spec: ConfigSpec) -> Result<Content, String> {
    let is_shaped = |value: &Value| value.is_object();
    let inline = inline("config", "a group of settings", spec.config, is_shaped)?;
    content(spec.priority, spec.selector, inline, spec.config_map_ref)
}

fn content(
    priority: u8,
    selector: Option<LabelSelector>,
    inline: Option<String>,
    config_map: Option<ConfigMapRef>,
) -> Result<Content, String> {
    if priority > MAX_PRIORITY {
        return Err(format!(
            "the priority {priority} is not between 0 and {MAX_PRIORITY}"
        ));
    }
    Ok(Content {
        priority,
        selector,
        inline,
        config_map: config_map.map(|reference| reference.name),
    })
}

/// The text of a value in an object. It is a structure, or the text of one, as Falco's operator had before 0.2.
fn inline(
    field: &str,
    shape: &str,
    value: Option<Value>,
    is_shaped: impl Fn(&Value) -> bool,
) -> Result<Option<String>, String> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(value) if is_shaped(&value) => Ok(Some(kinds::yaml_text::stream(&[value]))),
        Some(_) => Err(format!("`{field}` has to be {shape}")),
    }
}
