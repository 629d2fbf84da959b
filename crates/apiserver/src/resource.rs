//! Kinds of objects, as paths of the API have them.

use kinds::ObjectKey;
use kinds::crd::Definition;

/// A kind of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Name in paths.
    pub plural: String,
    /// Only objects of this namespace, where objects have one.
    pub namespace: Option<String>,
    /// Only metadata of objects is read.
    pub metadata_only: bool,
}

impl Resource {
    /// The objects of a kind in all namespaces.
    #[must_use]
    pub fn new(group: &str, version: &str, plural: &str) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            namespace: None,
            metadata_only: false,
        }
    }

    /// The objects of a kind of ours.
    #[must_use]
    pub fn of(definition: &Definition) -> Self {
        Self::new(definition.group, definition.version, definition.plural)
    }

    /// Only objects of one namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        Self {
            namespace: Some(namespace.to_owned()),
            ..self
        }
    }

    /// Only metadata, for a reader that decides by it which objects it needs.
    #[must_use]
    pub fn only_metadata(self) -> Self {
        Self {
            metadata_only: true,
            ..self
        }
    }

    /// Path of the list of objects.
    #[must_use]
    pub fn path(&self) -> String {
        self.path_in(self.namespace.as_deref().unwrap_or_default())
    }

    /// Path of an object. An empty namespace means an object of the cluster.
    #[must_use]
    pub fn object_path(&self, key: &ObjectKey) -> String {
        format!("{}/{}", self.path_in(&key.namespace), key.name)
    }

    fn path_in(&self, namespace: &str) -> String {
        let root = match self.group.is_empty() {
            true => format!("/api/{}", self.version),
            false => format!("/apis/{}/{}", self.group, self.version),
        };
        match namespace.is_empty() {
            true => format!("{root}/{}", self.plural),
            false => format!("{root}/namespaces/{namespace}/{}", self.plural),
        }
    }
}
