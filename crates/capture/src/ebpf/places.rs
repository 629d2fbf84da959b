//! Containers and users of processes that may have ended when they are asked for.
//!
//! What a process was seen in holds for every other one of the same cgroups and namespaces.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use event::{Container, Containment, Group, Lookup, Process, User, World};

use super::record::Header;
use crate::world::LiveWorld;

/// How many places are remembered.
const LIMIT: usize = 8192;

/// All that decides on a process's container, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    cgroup: u64,
    cgroup_namespace: u32,
    mount_namespace: u32,
    pid_level: u8,
}

/// Containers by place.
#[derive(Debug, Default)]
pub(super) struct Places {
    containers: Mutex<HashMap<Place, Arc<Container>>>,
}

impl Places {
    /// The container of the process that a record is about.
    pub(super) fn container(
        &self,
        live: &LiveWorld,
        process: &Process,
        header: &Header,
    ) -> Arc<Container> {
        let place = Place {
            cgroup: header.cgroup,
            cgroup_namespace: header.cgroup_namespace,
            mount_namespace: header.mount_namespace,
            pid_level: header.pid_level,
        };
        let known = self.lock().get(&place).cloned();
        if let Some(container) = known {
            return container;
        }
        let container = live.container(process);
        if container.containment != Containment::Unknown {
            let mut containers = self.lock();
            if containers.len() >= LIMIT {
                // Rare enough that order of use is not worth keeping.
                containers.clear();
            }
            containers.insert(place, Arc::clone(&container));
        }
        container
    }

    /// A user by id.
    pub(super) fn user(
        &self,
        live: &LiveWorld,
        process: &Process,
        header: &Header,
        uid: u32,
    ) -> Lookup<Arc<User>> {
        match live.user(process, uid) {
            Lookup::Unknown if self.shares_files(live, process, header) => live.own_user(uid),
            user => user,
        }
    }

    /// A group by id.
    pub(super) fn group(
        &self,
        live: &LiveWorld,
        process: &Process,
        header: &Header,
        gid: u32,
    ) -> Lookup<Arc<Group>> {
        match live.group(process, gid) {
            Lookup::Unknown if self.shares_files(live, process, header) => live.own_group(gid),
            group => group,
        }
    }

    /// Whether a process that has ended saw the agent's files: it was in the same mount namespace.
    fn shares_files(&self, live: &LiveWorld, process: &Process, header: &Header) -> bool {
        process.pid == header.pid
            && live.own_mount_namespace() == Some(header.mount_namespace.into())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Place, Arc<Container>>> {
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
