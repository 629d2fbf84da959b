//! Identification of the container of a process.
//!
//! The result has three values. `Host` is returned only if proven: the agent and the process are both in the
//! initial pid and cgroup namespaces, and no part of the process's cgroup path looks like a container's, or it is
//! the agent's own path and the agent's mounts are those of the machine's first process. A pid namespace alone makes
//! no container: such a process is on the host if its mount namespace is the agent's. Of a
//! process that has ended only the mount namespace is known: it is on the host if that is the agent's. A private cgroup namespace
//! shows `/` to the processes inside, so without the namespaces that path proves nothing. `Known` needs an id from the cgroup, from the container's mounts, or, for processes
//! that share the agent's namespaces, from the agent's options. Everything else is `Unknown`.

mod host;
mod inside;
mod nested;
pub mod registry;
mod state;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use event::{Container, Containment};

use process_info::procfs::{CgroupLine, Proc, ProcError, cgroup_lines};

use self::host::Surroundings;
use self::nested::Nested;
use self::registry::{ContainerFacts, Registry};
use event::cgroup::Identity;

/// The container that the lines of `/proc/PID/cgroup` name, if any: the innermost one of the first hierarchy
/// that names one, or one inside of it that another hierarchy names.
pub fn identify(cgroup: &[u8]) -> Option<Identity> {
    let paths = cgroup_lines(cgroup).filter_map(|line| std::str::from_utf8(line.path).ok());
    event::cgroup::identify_in_all(paths)
}

/// Returns true if recorded control groups are those of `own`, which has more hierarchies: those without a controller
/// are not recorded.
fn are_groups_of(own: &[u8], recorded: &[u8]) -> bool {
    let is_own = |line: CgroupLine<'_>| {
        cgroup_lines(own).any(|other| (other.hierarchy, other.path) == (line.hierarchy, line.path))
    };
    !recorded.is_empty() && cgroup_lines(recorded).all(is_own)
}

/// Inode numbers of the initial namespaces (include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;
const INITIAL_CGROUP_NAMESPACE: u64 = 0xefff_fffb;

/// Maximum number of ancestors that are read; more than any real chain has.
const ANCESTOR_LIMIT: usize = 256;

/// Maximum number of cached containers.
const CACHE_LIMIT: usize = 1024;
/// Delay before a runtime's files are read again after they contained nothing; it grows with each attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Entries for fuzzing: the files of container engines.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    /// Returns a file of an engine, below the root of its state, that [`KnownContainer::by_id`](super::KnownContainer::by_id) reads
    /// about a container of this id.
    #[must_use]
    pub fn state_files(id: &str) -> [String; 5] {
        [
            format!("var/lib/docker/containers/{id}/config.v2.json"),
            format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json"),
            "var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db".to_owned(),
            "var/lib/containers/storage/overlay-containers/containers.json".to_owned(),
            "var/lib/containers/storage/libpod/bolt_state.db".to_owned(),
        ]
    }
}

/// The user's options on containers.
#[derive(Clone, Debug, Default)]
pub struct ContainerOptions {
    /// Id of the agent's own container (`--container-id`).
    pub own_id: Option<String>,
    /// Root of the search for the runtimes' state; `/` by default.
    pub state_root: Option<PathBuf>,
    /// The watched container, if the runtime announces it.
    pub told: Option<KnownContainer>,
    /// What the container runtime tells this program about containers, if it does.
    pub registry: Option<Arc<Registry>>,
}

/// A container as its runtime was asked to create it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownContainer {
    /// Id of the container.
    pub id: String,
    /// The bundle: the folder with the container's `config.json`.
    pub bundle: PathBuf,
}

impl KnownContainer {
    /// The container with this id, as the runtimes' files describe it.
    pub fn by_id(id: &str, state_root: &std::path::Path) -> Container {
        let mut container = Identity::named(id.to_owned()).into_container();
        state::describe(&mut container, state_root);
        container
    }

    fn describe(&self, state_root: &std::path::Path) -> Container {
        let mut container = Identity::named(self.id.clone()).into_container();
        state::describe_bundle(&mut container, &self.bundle, state_root);
        container
    }
}

/// Identifies the containers of processes, and caches them.
#[derive(Debug)]
pub struct Containers {
    own: ContainerKey,
    own_container: Arc<Container>,
    agent_on_host: bool,
    state_root: PathBuf,
    runtime_container: Option<KnownContainer>,
    registry: Option<Arc<Registry>>,
    known: Mutex<HashMap<ContainerKey, CachedContainer>>,
}

/// A cached container.
#[derive(Clone, Debug)]
struct CachedContainer {
    container: Arc<Container>,
    /// Time of the last look-up, and the number of look-ups that found nothing.
    looked: Instant,
    misses: u32,
    /// Number of changes of the registry when it was asked last.
    changes: u64,
    /// What the registry said of the container.
    told: Option<Arc<ContainerFacts>>,
    /// The registry has said something new.
    is_outdated: bool,
}

impl CachedContainer {
    /// Notes whether the registry has something new. Facts that it has no more stay known.
    fn ask(&mut self, registry: &Registry) {
        let changes = registry.changes();
        if self.changes == changes {
            return;
        }
        self.changes = changes;
        let told = registry.facts_of(&self.container);
        let is_known = |told: &Arc<_>| {
            self.told
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, told))
        };
        self.is_outdated |= told.is_some_and(|told| !is_known(&told));
    }

    /// Returns true if the runtime may have written its state, or told this program, since the last look-up.
    fn is_due(&self) -> bool {
        if self.is_outdated {
            return true;
        }
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(self.misses.min(8));
        self.container.undescribed.is_some() && self.looked.elapsed() >= pause
    }
}

/// The data that determines a process's container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ContainerKey {
    pid_namespace: u64,
    cgroup_namespace: u64,
    mount_namespace: u64,
    cgroup: Vec<u8>,
}

impl ContainerKey {
    fn of(proc: &Proc, pid: i32) -> Result<Self, ProcError> {
        Ok(Self {
            pid_namespace: proc.namespace(pid, "ns/pid")?,
            cgroup_namespace: proc.namespace(pid, "ns/cgroup")?,
            mount_namespace: proc.namespace(pid, "ns/mnt")?,
            cgroup: proc.cgroup(pid)?,
        })
    }

    fn is_initial(&self) -> bool {
        self.pid_namespace == INITIAL_PID_NAMESPACE
            && self.cgroup_namespace == INITIAL_CGROUP_NAMESPACE
    }
}

impl Containers {
    /// Determines where the agent itself runs.
    pub fn new(proc: &Proc, options: ContainerOptions) -> Result<Self, ProcError> {
        let agent = std::process::id().cast_signed();
        let own = ContainerKey::of(proc, agent)?;
        let state_root = options.state_root.unwrap_or_else(|| PathBuf::from("/"));
        let in_cgroup = identify(&own.cgroup);
        let (mounts, first_mounts) = (proc.mountinfo(agent).ok(), proc.mountinfo(1).ok());
        let first_namespace = proc.namespace(1, "ns/mnt").ok();
        let has_first_namespace = first_namespace == Some(own.mount_namespace);
        let whole = (in_cgroup.is_some() && !has_first_namespace).then(host::mounts_of_namespace);
        let around = Surroundings {
            is_initial: own.is_initial(),
            is_named: options.own_id.is_some(),
            is_in_named_group: in_cgroup.is_some(),
            has_first_namespace,
            mounts: whole.as_ref().and_then(Option::as_deref),
            first_mounts: first_mounts.as_deref(),
        };
        let agent_on_host = around.prove_host();
        let own_container = if agent_on_host {
            Container::host()
        } else {
            let own = options.own_id.map(Identity::named);
            let identity = own
                .or(in_cgroup)
                .or_else(|| inside::by_mounts(mounts.as_deref()?))
                .or_else(inside::by_own_surroundings);
            let mut container = identity.map_or_else(Container::unknown, Identity::into_container);
            container.privileged = privileged(proc, agent, &container);
            container
        };
        Ok(Self {
            own,
            own_container: Arc::new(own_container),
            agent_on_host,
            state_root,
            runtime_container: options.told,
            registry: options.registry,
            known: Mutex::default(),
        })
    }

    /// The agent's own container.
    pub fn own(&self) -> &Arc<Container> {
        &self.own_container
    }

    /// Returns true if the agent is proven to run on the host, so that paths in it are trustworthy.
    pub fn agent_on_host(&self) -> bool {
        self.agent_on_host
    }

    /// Returns true if this process sees the folders that mounts of containers name: on the host, and where its own
    /// runtime has made the mounts, which may itself be in a container.
    pub fn sees_sources_of_mounts(&self) -> bool {
        self.agent_on_host || self.runtime_container.is_some()
    }

    /// The container of a process. Reads only kernel memory, and the runtimes' state once for each container.
    pub fn of(&self, proc: &Proc, pid: i32) -> Result<Arc<Container>, ProcError> {
        let place = match ContainerKey::of(proc, pid) {
            Err(ProcError::Denied { .. }) => return Ok(self.by_cgroup_alone(&proc.cgroup(pid)?)),
            place => place?,
        };
        if place == self.own {
            return Ok(Arc::clone(&self.own_container));
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.get_mut(&place).map(|cached| {
            if let Some(registry) = &self.registry {
                cached.ask(registry);
            }
            cached.clone()
        });
        drop(known);
        // Before the look-up: what is told meanwhile is looked up again.
        let changes = self.changes_of_registry();
        if let Some(before) = before.as_ref().filter(|before| !before.is_due()) {
            return Ok(Arc::clone(&before.container));
        }
        let mut container = self.find(proc, pid, &place);
        if container.privileged.is_none() {
            container.privileged = privileged(proc, pid, &container);
        }
        let container = Arc::new(container);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CACHE_LIMIT {
            // Rare enough to clear the whole cache instead of tracking the order of use.
            known.clear();
        }
        let looked = CachedContainer {
            container: Arc::clone(&container),
            looked: Instant::now(),
            misses: before.map_or(0, |before| before.misses + 1),
            changes,
            told: self.told_since(&container, changes),
            is_outdated: false,
        };
        known.insert(place, looked);
        Ok(container)
    }

    /// The container by cgroup alone: namespaces of another user's or an undumpable process cannot be read,
    /// its cgroup can.
    fn by_cgroup_alone(&self, cgroup: &[u8]) -> Arc<Container> {
        if let Some(known) = &self.runtime_container
            && cgroup != self.own.cgroup
        {
            let blind = ContainerKey {
                pid_namespace: 0,
                cgroup_namespace: 0,
                mount_namespace: 0,
                cgroup: cgroup.to_vec(),
            };
            return Arc::new(self.describe_known(known, &blind, &blind));
        }
        // An engine has put the agent into that group, which does not tell its containers from the host.
        if self.agent_on_host && cgroup == self.own.cgroup {
            return Arc::new(Container::unknown());
        }
        if let Some(identity) = identify(cgroup) {
            let mut container = identity.into_container();
            self.describe_by_registry(&mut container);
            return Arc::new(container);
        }
        let inside = self.own_container.containment == Containment::Known;
        if inside && cgroup == self.own.cgroup {
            return Arc::clone(&self.own_container);
        }
        Arc::new(Container::unknown())
    }

    fn find(&self, proc: &Proc, pid: i32, place: &ContainerKey) -> Container {
        // Regardless of its cgroup, the process descends from the container's first process.
        if let Some(known) = &self.runtime_container {
            let outer = self.outermost(proc, pid);
            return self.describe_known(known, outer.as_ref().unwrap_or(place), place);
        }
        if let Some(identity) = identify(&place.cgroup) {
            return self.described(identity);
        }
        if place.mount_namespace != self.own.mount_namespace
            && let Ok(mounts) = proc.mountinfo(pid)
            && let Some(identity) = inside::by_mounts(&mounts)
        {
            return self.described(identity);
        }
        if self.agent_on_host {
            return if place.is_initial() || self.has_mounts_of_host(place) {
                Container::host()
            } else {
                Container::unknown()
            };
        }
        // The process is below the agent's own cgroup, in any namespaces: inside the same container, or in
        // one that was created there.
        let is_here = place.cgroup_namespace == self.own.cgroup_namespace
            && self.own_container.containment == Containment::Known;
        // No group is named after a container without an id: the container begins at its own group.
        let id = self.own_container.full_id.as_deref().unwrap_or_default();
        if is_here && nested::decide(id, &self.own, place) == Nested::Outer {
            return (*self.own_container).clone();
        }
        Container::unknown()
    }

    /// Returns true for a process of the host that only made a pid namespace, as `unshare -pf` does: its control group,
    /// seen from outside, names no container, and its mounts are the agent's. A mount namespace of its own proves
    /// nothing, whatever is mounted there now: a container starts with the host's mounts, and changes its root later.
    fn has_mounts_of_host(&self, place: &ContainerKey) -> bool {
        place.cgroup_namespace == INITIAL_CGROUP_NAMESPACE
            && place.mount_namespace == self.own.mount_namespace
    }

    /// The announced container, or one inside of it. `outer` is the key of its outermost process.
    fn describe_known(
        &self,
        known: &KnownContainer,
        outer: &ContainerKey,
        place: &ContainerKey,
    ) -> Container {
        match nested::decide(&known.id, outer, place) {
            Nested::Outer => known.describe(&self.state_root),
            Nested::Inner(identity) => {
                let inner = identity.into_container();
                let mut outside = inner.clone();
                state::describe(&mut outside, &self.state_root);
                // A name that the workload chose, for a container that was not created inside.
                match outside.undescribed {
                    None => Container::unknown(),
                    Some(_) => inner,
                }
            }
            Nested::Unknown => Container::unknown(),
        }
    }

    /// The key of the outermost ancestor with mounts other than the agent's: the container's first process,
    /// or that of an exec session.
    fn outermost(&self, proc: &Proc, pid: i32) -> Option<ContainerKey> {
        let mut found = None;
        let mut current = pid;
        for _ in 0..ANCESTOR_LIMIT {
            let Ok(place) = ContainerKey::of(proc, current) else {
                break;
            };
            if place.mount_namespace == self.own.mount_namespace {
                break;
            }
            found = Some(place);
            match proc.stat(current).map(|process| process.stat.ppid.0) {
                Ok(parent) if parent > 0 => current = parent,
                _ => break,
            }
        }
        found
    }

    /// The container of a process that has ended, from recorded data: its control groups as lines of `/proc/PID/cgroup`
    /// without names of controllers, whether it was in the initial cgroup namespace, and its mount namespace. A container
    /// has mounts of its own, whatever other namespaces it shares.
    pub fn of_ended(&self, cgroups: &[u8], initial: bool, mount_namespace: u64) -> Container {
        let has_mounts_of_host = mount_namespace == self.own.mount_namespace;
        let is_on_host = self.agent_on_host && initial && has_mounts_of_host;
        let is_own = are_groups_of(&self.own.cgroup, cgroups);
        match identify(cgroups).filter(|_| !(is_own && is_on_host)) {
            Some(identity) => self.described(identity),
            None if is_on_host => Container::host(),
            None => Container::unknown(),
        }
    }

    fn described(&self, identity: Identity) -> Container {
        let mut container = identity.into_container();
        // Inside a container these directories would belong to the workload.
        if self.agent_on_host {
            state::describe(&mut container, &self.state_root);
        }
        self.describe_by_registry(&mut container);
        container
    }

    fn changes_of_registry(&self) -> u64 {
        self.registry.as_ref().map_or(0, |all| all.changes())
    }

    /// What the registry says of a container; `None` also if it has changed since, so that it is asked again.
    fn told_since(&self, container: &Container, changes: u64) -> Option<Arc<ContainerFacts>> {
        let told = self.registry.as_ref()?.facts_of(container);
        told.filter(|_| self.changes_of_registry() == changes)
    }

    /// Adds what the runtime has told this program.
    fn describe_by_registry(&self, container: &mut Container) {
        if let Some(registry) = &self.registry {
            registry.describe(container);
        }
    }
}

/// Capabilities that only `--privileged` grants together: raw I/O, ptrace, admin, boot, modules, net.
const TELLING: u64 = 1 << 12 | 1 << 16 | 1 << 17 | 1 << 19 | SYS_ADMIN | 1 << 22;
const SYS_ADMIN: u64 = 1 << 21;

fn privileged(proc: &Proc, pid: i32, container: &Container) -> Option<bool> {
    if container.containment == Containment::Host {
        return None;
    }
    privileged_by(proc.status(pid).ok()?.status.cap_bounding)
}

/// Guesses from the bounding set, which only shrinks, whether a container is privileged.
pub fn privileged_by(bounding: u64) -> Option<bool> {
    if bounding & TELLING == TELLING {
        Some(true)
    } else {
        (bounding & SYS_ADMIN == 0).then_some(false)
    }
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
