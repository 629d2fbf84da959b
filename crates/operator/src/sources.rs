//! Threads that watch the objects of a kind, and make events of them.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::mpsc::SyncSender;
use std::thread;

use apiserver::{ApiError, Change, Client, Resource, watch};
use cluster::artifacts::{ArtifactId, ArtifactKind};
use cluster::{Event, ObjectKind, PolicyId};
use kinds::crd::Definition;
use kinds::{ObjectKey, Scope};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What a thread reports.
#[derive(Debug)]
pub(crate) enum Notice {
    /// Something happened in the cluster.
    Event(Event),
    /// All objects of a source exist as given.
    Listed(Source),
    /// The API server cannot be asked; it is asked again.
    Failed(Source, ApiError),
    /// An object is not what its kind has to be, and was left out.
    Unreadable(Source, ObjectKey, String),
}

/// A kind of objects that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Policies,
    ClusterPolicies,
    Profiles,
    Models,
    Nodes,
    Reports,
    Rulesfiles,
    Configs,
    Services,
    Endpoints,
    Pods,
}

impl Source {
    /// Sources that are always watched.
    pub(crate) const ALWAYS: [Self; 7] = [
        Self::Policies,
        Self::ClusterPolicies,
        Self::Profiles,
        Self::Nodes,
        Self::Reports,
        Self::Rulesfiles,
        Self::Configs,
    ];

    /// Sources that give the objects of a kind.
    pub(crate) fn of(kind: ObjectKind) -> &'static [Self] {
        match kind {
            ObjectKind::Policies => &[Self::Policies, Self::ClusterPolicies],
            ObjectKind::Profiles => &[Self::Profiles],
            ObjectKind::Models => &[Self::Models],
            ObjectKind::Nodes => &[Self::Nodes],
            ObjectKind::Reports => &[Self::Reports],
            ObjectKind::Services => &[Self::Services],
            ObjectKind::Endpoints => &[Self::Endpoints],
            ObjectKind::Pods => &[Self::Pods],
        }
    }

    /// The kind whose objects this source gives; `None` if nothing waits for all objects of it.
    pub(crate) fn kind(self) -> Option<ObjectKind> {
        Some(match self {
            Self::Policies | Self::ClusterPolicies => ObjectKind::Policies,
            Self::Profiles => ObjectKind::Profiles,
            Self::Models => ObjectKind::Models,
            Self::Nodes => ObjectKind::Nodes,
            Self::Reports => ObjectKind::Reports,
            // The status of each is about that object alone.
            Self::Rulesfiles | Self::Configs => return None,
            Self::Services => ObjectKind::Services,
            Self::Endpoints => ObjectKind::Endpoints,
            Self::Pods => ObjectKind::Pods,
        })
    }

    /// `installation` is the namespace of Rulesfiles and Configs that are read.
    fn resource(self, installation: &str) -> Resource {
        let ours = |kind| {
            let definition = Definition::of_kind(kind).expect("the kind is in the table");
            Resource::of(definition)
        };
        match self {
            Self::Policies => ours("VarmorPolicy"),
            Self::ClusterPolicies => ours("VarmorClusterPolicy"),
            Self::Profiles => ours("ArmorProfile"),
            Self::Models => ours("ArmorProfileModel"),
            Self::Reports => ours("NodeReport"),
            Self::Rulesfiles => ours("Rulesfile").in_namespace(installation),
            Self::Configs => ours("Config").in_namespace(installation),
            Self::Nodes => Resource::new("", "v1", "nodes"),
            Self::Services => Resource::new("", "v1", "services"),
            Self::Endpoints => Resource::new("discovery.k8s.io", "v1", "endpointslices"),
            Self::Pods => Resource::new("", "v1", "pods"),
        }
    }

    fn applied(self, object: Value) -> Result<Event, serde_json::Error> {
        Ok(match self {
            Self::Policies => Event::Policy(self.policy(object, Scope::Namespace)?),
            Self::ClusterPolicies => Event::Policy(self.policy(object, Scope::Cluster)?),
            Self::Profiles => Event::Profile(typed(object, Some("ArmorProfile"))?),
            Self::Models => Event::Model(typed(object, Some("ArmorProfileModel"))?),
            Self::Nodes => Event::Node(typed(object, None)?),
            Self::Reports => Event::Report(typed(object, Some("NodeReport"))?),
            Self::Rulesfiles => Event::Artifact(ArtifactKind::Rulesfile, Box::new(object)),
            Self::Configs => Event::Artifact(ArtifactKind::Config, Box::new(object)),
            Self::Services => Event::Service(typed(object, None)?),
            Self::Endpoints => Event::Endpoints(typed(object, None)?),
            Self::Pods => Event::Pod(typed(object, None)?),
        })
    }

    fn policy(
        self,
        object: Value,
        scope: Scope,
    ) -> Result<Box<kinds::PolicyObject>, serde_json::Error> {
        typed(object, Some(scope.kind()))
    }

    fn deleted(self, key: ObjectKey) -> Event {
        let gone = |scope, key| Event::PolicyGone(PolicyId { scope, key });
        let artifact = |kind, key| Event::ArtifactGone(ArtifactId { kind, key });
        match self {
            Self::Policies => gone(Scope::Namespace, key),
            Self::ClusterPolicies => gone(Scope::Cluster, key),
            Self::Profiles => Event::ProfileGone(key),
            Self::Models => Event::ModelGone(key),
            Self::Nodes => Event::NodeGone(key.name),
            Self::Reports => Event::ReportGone(key.name),
            Self::Rulesfiles => artifact(ArtifactKind::Rulesfile, key),
            Self::Configs => artifact(ArtifactKind::Config, key),
            Self::Services => Event::ServiceGone(key),
            Self::Endpoints => Event::EndpointsGone(key),
            Self::Pods => Event::PodGone(key),
        }
    }
}

/// Reads an object. Objects in a list lack `kind` and `apiVersion`.
fn typed<T: DeserializeOwned>(
    mut object: Value,
    kind: Option<&str>,
) -> Result<Box<T>, serde_json::Error> {
    if let Some(definition) = kind.and_then(Definition::of_kind) {
        object["kind"] = definition.kind.into();
        object["apiVersion"] = definition.api_version().into();
    }
    serde_json::from_value(object).map(Box::new)
}

/// The sources that are watched.
#[derive(Debug)]
pub(crate) struct Sources {
    client: Client,
    installation: String,
    sender: SyncSender<Notice>,
    started: BTreeSet<Source>,
}

impl Sources {
    pub(crate) fn new(client: Client, installation: &str, sender: SyncSender<Notice>) -> Self {
        Self {
            client,
            installation: installation.to_owned(),
            sender,
            started: BTreeSet::new(),
        }
    }

    /// Watches a source, unless it is watched already. The thread ends when nobody receives.
    pub(crate) fn start(&mut self, source: Source) -> std::io::Result<()> {
        if !self.started.insert(source) {
            return Ok(());
        }
        let (client, sender) = (self.client.clone(), self.sender.clone());
        let name = format!("watch-{source:?}").to_lowercase();
        let resource = source.resource(&self.installation);
        thread::Builder::new().name(name).spawn(move || {
            watch(&client, &resource, |change| {
                let notice = notice(source, change);
                match sender.send(notice) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            });
        })?;
        Ok(())
    }
}

fn notice(source: Source, change: Change) -> Notice {
    match change {
        Change::Applied(object) => {
            let text = |key: &str| {
                object["metadata"][key]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            let key = ObjectKey {
                namespace: text("namespace"),
                name: text("name"),
            };
            match source.applied(object) {
                Ok(event) => Notice::Event(event),
                Err(error) => Notice::Unreadable(source, key, error.to_string()),
            }
        }
        Change::Deleted(key) => Notice::Event(source.deleted(key)),
        Change::Listed => Notice::Listed(source),
        Change::Failed(error) => Notice::Failed(source, error),
    }
}
