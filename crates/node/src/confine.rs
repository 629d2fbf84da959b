//! How an agent confines a container, and how it checks what was made of that.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kinds::ObjectKey;
use kinds::annotations::FailMode;
use nri::message::{Container, ContainerAdjustment, LinuxContainerAdjustment, PodSandbox};
use policy::{EnforcerKind, Enforcers};

use crate::agent::Agent;
use crate::filter::{self, Filter};
use crate::index::Entry;
use crate::merge::{is_same, merge};
use crate::state::Expected;
use crate::store::{Body, InKernel, Record, Way, write_policy};

/// Annotation by which tollgate's runtime finds a policy.
const POLICY: &str = "tollgate.policy";

/// Handlers of runtimes whose programs are those of the node's kernel; the first is that of pods without a RuntimeClass.
const SHARES_KERNEL: [&str; 4] = ["", "runc", "crun", "youki"];

impl Agent {
    /// Prepares the kernel for a policy before a container needs it.
    pub(crate) fn prepare(&self, key: &ObjectKey, body: &Body) {
        // What is wrong with a policy is told of its containers.
        let Ok(mut policy) = filter::read(&key.name, &body.policy) else {
            return;
        };
        policy.enforcers = self.kernel.enforcers_of(&policy);
        if policy.enforcers.without(EnforcerKind::Seccomp) == Enforcers::default() {
            return;
        }
        if let Err(cause) = self.kernel.prepare(&policy) {
            self.say(format!("cannot prepare the kernel for {key}: {cause}"));
        }
    }

    /// Prepares the kernel for the policies that the agent before has kept.
    pub(crate) fn prepare_known(&self) {
        let known: Vec<_> = self.state().bodies.clone().into_iter().collect();
        for (key, body) in known {
            self.prepare(&key, &body);
        }
    }

    /// How a container is confined. An error says why it cannot be, or not as a whole.
    pub(crate) fn confine(
        &self,
        pod: &PodSandbox,
        container: &Container,
        entry: &Entry,
        body: &Body,
    ) -> Result<(Expected, ContainerAdjustment), String> {
        if self.settings.handlers.contains(&pod.runtime_handler) {
            return self.hand_to_runtime(entry, body);
        }
        let filter = self.filter(entry, body)?;
        if !filter.gaps.is_empty() && entry.fail_mode == FailMode::Closed {
            return Err(filter.gaps.join("; "));
        }
        if filter.kernel.is_some() && !SHARES_KERNEL.contains(&&*pod.runtime_handler) {
            return Err(format!(
                "the runtime class `{}` may run programs in a sandbox, where BPF of the node does not see them",
                pod.runtime_handler
            ));
        }
        let own = container
            .linux
            .as_ref()
            .and_then(|linux| linux.seccomp_policy.as_ref());
        // Where the kernel enforces all of it, a runtime without seccomp policies does.
        let policy = match filter.is_empty() && filter.kernel.is_some() {
            true => None,
            false => Some(merge(&filter, own)?),
        };
        let adjustment = ContainerAdjustment {
            annotations: HashMap::new(),
            linux: policy.clone().map(|policy| LinuxContainerAdjustment {
                seccomp_policy: Some(policy),
            }),
        };
        let kernel = filter.kernel.clone();
        let way = match kernel {
            Some(_) => Way::Kernel,
            None => Way::Seccomp,
        };
        let expected = Expected {
            record: record(entry, body, way, Some(&filter)),
            policy,
            kernel,
        };
        Ok((expected, adjustment))
    }

    /// Hands the policy of a container to tollgate's runtime, which enforces all of it.
    fn hand_to_runtime(
        &self,
        entry: &Entry,
        body: &Body,
    ) -> Result<(Expected, ContainerAdjustment), String> {
        let record = record(entry, body, Way::Runtime, None);
        let name = record.policy_name();
        write_policy(&self.settings.policies, &name, &body.policy).map_err(|error| {
            let cause = crate::chain(&error);
            format!("cannot hand the policy to the runtime: {cause}")
        })?;
        let adjustment = ContainerAdjustment {
            annotations: HashMap::from([(POLICY.to_owned(), name)]),
            linux: None,
        };
        let expected = Expected {
            record,
            policy: None,
            kernel: None,
        };
        Ok((expected, adjustment))
    }

    /// The compiled filter of a policy.
    pub(crate) fn filter(&self, entry: &Entry, body: &Body) -> Result<Arc<Filter>, String> {
        let (key, hash) = (&entry.key, &body.hash);
        if let Some((of, filter)) = self.state().filters.get(key)
            && of == hash
        {
            return Ok(Arc::clone(filter));
        }
        let filter = Arc::new(Filter::compile(&key.name, &body.policy, &self.kernel)?);
        let cached = (hash.clone(), Arc::clone(&filter));
        self.state().filters.insert(key.clone(), cached);
        Ok(filter)
    }

    /// Checks what the runtime has made of a container, and has the kernel do its part, which the record says then.
    pub(crate) fn check(
        &self,
        expected: &mut Expected,
        container: &Container,
    ) -> Result<(), String> {
        self.check_runtime(expected, container)?;
        let Some(policy) = &expected.kernel else {
            return Ok(());
        };
        let owner = expected.record.key().to_string();
        let confined = self.kernel.confine(&owner, policy, container.pid)?;
        if !confined.is_current {
            // An agent before has confined it, and not written with which version: it is changed like a running one.
            expected.record.hash.clear();
        }
        let build = self.kernel.build();
        expected.record.kernel = Some(InKernel {
            build: build.ok_or("the node has no such enforcer")?.to_owned(),
            number: confined.number,
            hash: expected.record.hash.clone(),
            has_filter: expected.policy.is_some(),
        });
        Ok(())
    }

    /// Has the kernel confine a container that was created before this agent knew of it.
    pub(crate) fn adopt(
        &self,
        pod: &PodSandbox,
        container: &Container,
        entry: &Entry,
        body: &Body,
    ) -> Result<Expected, String> {
        const UNKNOWN: &str = "it was created before the agent knew of it";
        let confined = self.confine(pod, container, entry, body);
        let (mut expected, _) = confined.map_err(|cause| format!("{UNKNOWN}: {cause}"))?;
        match expected.kernel {
            Some(_) => self.check(&mut expected, container)?,
            None => return Err(UNKNOWN.to_owned()),
        }
        Ok(expected)
    }

    fn check_runtime(&self, expected: &Expected, container: &Container) -> Result<(), String> {
        match &expected.policy {
            None if expected.record.way == Way::Kernel => Ok(()),
            Some(policy) => {
                let linux = container.linux.as_ref();
                let own = linux.and_then(|linux| linux.seccomp_policy.as_ref());
                match own.is_some_and(|own| is_same(own, policy)) {
                    true => Ok(()),
                    false => Err(
                        "the container runtime has not taken the seccomp filter: it needs \
                                  containerd 2.2 or CRI-O 1.34"
                            .to_owned(),
                    ),
                }
            }
            None => {
                let name = expected.record.policy_name();
                match is_noted(&self.settings.runtime_state, &container.id, &name) {
                    true => Ok(()),
                    false => Err("the runtime that has created it is not tollgate's".to_owned()),
                }
            }
        }
    }
}

/// What is kept of a container. Without a filter the whole policy is enforced.
fn record(entry: &Entry, body: &Body, way: Way, filter: Option<&Filter>) -> Record {
    Record {
        namespace: entry.key.namespace.clone(),
        name: entry.key.name.clone(),
        hash: body.hash.clone(),
        way,
        is_late: false,
        kernel: None,
        gaps: filter.map_or_else(Vec::new, |filter| filter.gaps.clone()),
        notes: filter.map_or_else(Vec::new, |filter| filter.notes.clone()),
    }
}

/// Returns true if tollgate's runtime has noted a container with the policy of this name.
fn is_noted(state: &Path, id: &str, policy: &str) -> bool {
    // Below a folder for each state directory of the runtime.
    let roots = fs::read_dir(state).into_iter().flatten().flatten();
    let notes = roots.filter_map(|root| {
        let text = fs::read(root.path().join(id).join("container.json")).ok()?;
        serde_json::from_slice::<serde_json::Value>(&text).ok()
    });
    let mut files = notes.filter_map(|note| note["policy"].as_str().map(PathBuf::from));
    let wanted = format!("{policy}.yaml");
    files.any(|file| file.file_name().is_some_and(|name| *name == *wanted))
}
