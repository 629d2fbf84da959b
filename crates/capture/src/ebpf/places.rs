//! Containers and users of processes that may have ended when they are asked for.
//!
//! What a process was seen in holds for every other one of the same cgroups and namespaces.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use event::{Container, Containment, Group, Lookup, Process, User, World};

use super::record::{Header, PieceKind, Pieces, reversed_path};
use crate::users::UserDatabase;
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

impl Place {
    fn of(header: &Header) -> Self {
        Self {
            cgroup: header.cgroup,
            cgroup_namespace: header.cgroup_namespace,
            mount_namespace: header.mount_namespace,
            pid_level: header.pid_level,
        }
    }
}

/// Inode of the cgroup namespace that the machine starts with (include/linux/proc_ns.h).
const INITIAL_CGROUP_NAMESPACE: u32 = 0xefff_fffb;

/// Containers by place, and users by mount namespace.
#[derive(Debug, Default)]
pub(super) struct Places {
    containers: Mutex<HashMap<Place, Arc<Container>>>,
    databases: Mutex<HashMap<u32, Arc<UserDatabase>>>,
}

impl Places {
    /// The container of the process that a record is about.
    pub(super) fn container(
        &self,
        live: &LiveWorld,
        process: &Process,
        header: &Header,
    ) -> Arc<Container> {
        let place = Place::of(header);
        let known = self.lock().get(&place).cloned();
        if let Some(container) = known {
            return container;
        }
        let container = live.container(process);
        if container.containment != Containment::Unknown {
            self.remember(place, Arc::clone(&container));
        }
        container
    }

    /// Learns the container of a process that has just started a program: from `/proc` if it still
    /// runs, else from the cgroups that its record names.
    pub(super) fn learn(
        &self,
        live: &LiveWorld,
        process: &Process,
        header: &Header,
        pieces: Pieces<'_>,
    ) {
        self.database(live, process, header);
        let place = Place::of(header);
        if self.lock().contains_key(&place) {
            return;
        }
        let container = live.container(process);
        if container.containment != Containment::Unknown {
            return self.remember(place, container);
        }
        let mut cgroups = Vec::new();
        for piece in pieces.filter(|piece| piece.kind == PieceKind::Cgroup) {
            // As a line of /proc/PID/cgroup.
            cgroups.extend_from_slice(b"0::");
            cgroups.extend_from_slice(&reversed_path(piece.bytes));
            cgroups.push(b'\n');
        }
        let initial = header.pid_level == 0 && header.cgroup_namespace == INITIAL_CGROUP_NAMESPACE;
        let container = live.container_of_ended(&cgroups, initial);
        if container.containment != Containment::Unknown {
            self.remember(place, Arc::new(container));
        }
    }

    fn remember(&self, place: Place, container: Arc<Container>) {
        let mut containers = self.lock();
        if containers.len() >= LIMIT {
            // Rare enough that order of use is not worth keeping.
            containers.clear();
        }
        containers.insert(place, container);
    }

    /// A user by id.
    pub(super) fn user(
        &self,
        live: &LiveWorld,
        process: &Process,
        header: &Header,
        uid: u32,
    ) -> Lookup<Arc<User>> {
        self.database(live, process, header)
            .user(uid)
            .map_or(Lookup::Missing, Lookup::Found)
    }

    /// A group by id.
    pub(super) fn group(
        &self,
        live: &LiveWorld,
        process: &Process,
        header: &Header,
        gid: u32,
    ) -> Lookup<Arc<Group>> {
        self.database(live, process, header)
            .group(gid)
            .map_or(Lookup::Missing, Lookup::Found)
    }

    /// The users that a process sees; of one that has ended, those that others of its mount namespace
    /// were last seen to see. Where there was none, an empty database, which knows root.
    fn database(&self, live: &LiveWorld, process: &Process, header: &Header) -> Arc<UserDatabase> {
        let mut databases = self
            .databases
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = live.user_database(process) {
            if databases.len() >= LIMIT {
                databases.clear();
            }
            databases.insert(header.mount_namespace, Arc::clone(&database));
            return database;
        }
        let known = databases.get(&header.mount_namespace).cloned();
        let own = || {
            let is_own = live.own_mount_namespace() == Some(header.mount_namespace.into());
            is_own.then(|| live.own_database()).flatten()
        };
        known.or_else(own).unwrap_or_default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Place, Arc<Container>>> {
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
