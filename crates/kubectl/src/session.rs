//! The cluster and the namespace that a command is about.

use std::error::Error;
use std::path::PathBuf;
use std::{env, io};

use apiserver::{Access, AccessError, ApiError, Client, Resource};
use kinds::ObjectKey;
use kinds::crd::Definition;
use serde_json::{Value, json};

use crate::Options;

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// There is no kubeconfig file to look for.
    #[error("cannot find a kubeconfig file: neither KUBECONFIG nor HOME is set")]
    NoKubeconfig,
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Objects cannot be read.
    #[error("cannot read {what}")]
    Api {
        /// The objects.
        what: String,
        /// The cause.
        #[source]
        source: ApiError,
    },
    /// What was asked for does not exist.
    #[error("cannot find {what}")]
    Missing {
        /// What was asked for.
        what: String,
    },
    /// An object is not what it has to be.
    #[error("cannot use {what}: {problem}")]
    Object {
        /// The object.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file cannot be converted.
    #[error("cannot convert {name}: {problem}")]
    File {
        /// The file.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Rules cannot be carried over.
    #[error("cannot convert {name} as a whole")]
    Refused {
        /// The file.
        name: String,
    },
    /// The output cannot be written.
    #[error("cannot write the output")]
    Output(#[source] io::Error),
}

impl Failure {
    /// The error with its causes.
    pub(crate) fn text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text
    }

    /// The next step.
    pub(crate) fn help(&self) -> Option<&'static str> {
        match self {
            Self::NoKubeconfig => Some("name one with --kubeconfig FILE"),
            Self::Api { source, .. } if is_refusal(source) => Some(
                "ask for the right to get and list these objects; what is not read here is not known",
            ),
            Self::Api { source, .. } if source.code() == Some(404) => Some(
                "install tollgate: tollgate-operator manifests | kubectl apply --server-side -f -",
            ),
            _ => None,
        }
    }

    /// Exit code, as of all programs of tollgate: 2 bad input, 3 missing privilege, 4 anything else.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NoKubeconfig | Self::Access(_) | Self::Missing { .. } | Self::File { .. } => 2,
            Self::Refused { .. } => 3,
            Self::Api { source, .. } if is_refusal(source) => 3,
            Self::Api { .. } | Self::Object { .. } | Self::Output(_) => 4,
        }
    }
}

fn is_refusal(error: &ApiError) -> bool {
    matches!(error.code(), Some(401 | 403))
}

/// A cluster, and what a command is about.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// `None` for all.
    pub(crate) namespace: Option<String>,
    /// Namespace of operator and agents.
    pub(crate) installation: String,
}

impl Session {
    pub(crate) fn open(options: &Options) -> Result<Self, Failure> {
        let files = match &options.kubeconfig {
            Some(file) => vec![file.clone()],
            None => kubeconfigs()?,
        };
        let context = Access::context(&files, options.context.as_deref())?;
        let namespace = match options.all_namespaces {
            true => None,
            false => {
                let named = options.namespace.clone().or(context.namespace);
                Some(named.unwrap_or_else(|| "default".to_owned()))
            }
        };
        Ok(Self {
            client: Client::new(&context.access, "kubectl-tollgate")?,
            namespace,
            installation: options.installation.clone(),
        })
    }

    /// The objects of a kind of ours; those of the cluster if `namespace` is `None`.
    pub(crate) fn list(&self, kind: &str, namespace: Option<&str>) -> Result<Vec<Value>, Failure> {
        let definition = Definition::of_kind(kind).expect("the kind is in the table");
        let mut objects = self.list_any(&Resource::of(definition), namespace)?;
        // Items of a list lack them.
        for object in &mut objects {
            object["apiVersion"] = json!(definition.api_version());
            object["kind"] = json!(kind);
        }
        Ok(objects)
    }

    /// The objects of any kind.
    pub(crate) fn list_any(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> Result<Vec<Value>, Failure> {
        let resource = match namespace {
            Some(namespace) => resource.clone().in_namespace(namespace),
            None => resource.clone(),
        };
        let mut objects = Vec::new();
        let listed = self.client.list(&resource, |object| objects.push(object));
        listed.map_err(|source| Failure::Api {
            what: resource.plural,
            source,
        })?;
        Ok(objects)
    }

    /// An object; `None` if it does not exist.
    pub(crate) fn find(
        &self,
        resource: &Resource,
        key: &ObjectKey,
    ) -> Result<Option<Value>, Failure> {
        match self.client.get(resource, key) {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(source) => Err(Failure::Api {
                what: format!("{key} of {}", resource.plural),
                source,
            }),
        }
    }
}

/// Namespace and name.
pub(crate) fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// Where `kubectl` looks for clusters.
fn kubeconfigs() -> Result<Vec<PathBuf>, Failure> {
    if let Some(list) = env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
        let files = env::split_paths(&list).filter(|path| !path.as_os_str().is_empty());
        return Ok(files.collect());
    }
    let home = env::var_os("HOME").ok_or(Failure::NoKubeconfig)?;
    Ok(vec![PathBuf::from(home).join(".kube/config")])
}
