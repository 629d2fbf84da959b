//! Containers and users of processes that may have ended when a rule asks.
//!
//! A container found for one process applies to every other one with the same cgroups and namespaces.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use event::{Container, Containment, Group, Lookup, Process, SystemInfo, User};

use super::maps::Maps;
use super::record::{Header, RecordPartKind, RecordParts, Root, reversed_path};
use super::scope::WatchScope;
use decoder::system_info::LiveSystemInfo;
use process_info::users::{RootId, UserDatabase};

/// Time for which each record of a place asks anew whether the place is watched: a runtime may write down the name
/// of a container after its first process. Until that is decided, nothing of the place is shown.
const UNDECIDED: Duration = Duration::from_secs(10);
/// Maximum number of places remembered.
const LIMIT: usize = 8192;
/// Maximum number of roots whose users are remembered.
const ROOT_LIMIT: usize = 256;
/// Maximum number of ancestors searched for the users that they see.
const ANCESTORS: usize = 8;

/// Numbers that determine a process's container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ContainerKey {
    cgroup: u64,
    cgroup_namespace: u32,
    mount_namespace: u32,
    pid_level: u8,
}

impl ContainerKey {
    /// Encodes `struct place_key`.
    fn encode(self) -> Vec<u8> {
        let words = [
            self.cgroup_namespace,
            self.mount_namespace,
            self.pid_level.into(),
            0,
        ];
        let mut key = self.cgroup.to_ne_bytes().to_vec();
        key.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        key
    }

    fn of(header: &Header) -> Self {
        Self {
            cgroup: header.cgroup,
            cgroup_namespace: header.cgroup_namespace,
            mount_namespace: header.mount_namespace,
            pid_level: header.pid_level,
        }
    }
}

/// Inode of the initial cgroup namespace (include/linux/proc_ns.h).
const INITIAL_CGROUP_NAMESPACE: u32 = 0xefff_fffb;

/// Properties of a place that the programs receive (bpf/record.h).
const PLACE_HOST: u32 = 1;
const PLACE_CONTAINER: u32 = 2;
const PLACE_OUT: u32 = 4;
const PLACE_IN: u32 = 8;

/// Containers by place, and users by root.
#[derive(Debug, Default)]
pub(super) struct ContainerTable {
    containers: Mutex<Containers>,
    databases: Mutex<Databases>,
    /// Places for which it is undecided whether they are watched, and since when.
    undecided: Mutex<HashMap<ContainerKey, Instant>>,
    /// The watched scope; `None` if all are watched.
    watched: Option<WatchScope>,
    /// Number of records left out because it was undecided whether their place is watched.
    undecided_records: AtomicU64,
    /// Number of places dropped because the table was full.
    evicted: AtomicU64,
    /// Number of roots dropped with their users because the table was full.
    evicted_roots: AtomicU64,
}

#[derive(Debug, Default)]
struct Containers {
    by_place: HashMap<ContainerKey, Arc<Container>>,
    /// Oldest first.
    order: VecDeque<ContainerKey>,
}

/// Users and groups that processes with a root last saw.
#[derive(Debug, Default)]
struct Databases {
    by_root: HashMap<Root, Arc<UserDatabase>>,
    /// Oldest first.
    order: VecDeque<Root>,
}

impl Databases {
    /// Adds a root; returns one that was dropped because the table was full.
    fn remember(&mut self, root: Root, database: Arc<UserDatabase>) -> Option<Root> {
        if self.by_root.insert(root, database).is_some() {
            return None;
        }
        self.order.push_back(root);
        if self.order.len() <= ROOT_LIMIT {
            return None;
        }
        let oldest = self.order.pop_front()?;
        self.by_root.remove(&oldest);
        Some(oldest)
    }
}

impl ContainerTable {
    pub(super) fn new(watched: Option<WatchScope>) -> Self {
        Self {
            watched,
            ..Self::default()
        }
    }

    /// Returns the container of the process that a record is about.
    pub(super) fn container(
        &self,
        live: &LiveSystemInfo,
        process: &Process,
        header: &Header,
    ) -> Arc<Container> {
        let place = ContainerKey::of(header);
        let known = self.lock().by_place.get(&place).cloned();
        if let Some(known) = &known
            && known.undescribed.is_none()
        {
            return Arc::clone(known);
        }
        // Its runtime may have written its name since.
        let now = live.container(process);
        match known {
            Some(known) if known.id != now.id => known,
            _ => {
                self.remember(place, &now);
                now
            }
        }
    }

    /// Identifies a place from its first record, and writes the result to the programs. Returns whether the
    /// place is watched.
    pub(super) fn learn(
        &self,
        (live, maps): (&LiveSystemInfo, &Maps),
        process: &Process,
        header: &Header,
        pieces: RecordParts<'_>,
    ) -> bool {
        if !header.is_new_place {
            return true;
        }
        let cgroups = pieces.filter(|piece| piece.kind == RecordPartKind::Cgroup);
        let cgroups = cgroups.map(|piece| {
            let hierarchy = u32::try_from(piece.address).unwrap_or(u32::MAX);
            (hierarchy, reversed_path(piece.bytes))
        });
        let cgroups: Vec<_> = cgroups.collect();
        let container = find(live, process, header, &cgroups);
        let watched = self.watched.as_ref();
        let place = ContainerKey::of(header);
        let is_watched = match watched {
            None => Some(true),
            Some(watched) => {
                let taken = watched.takes(&container, &cgroups);
                taken.or_else(|| self.waited(place))
            }
        };
        if let Some(former) = self.remember(place, &container) {
            maps.forget_place(&former.encode());
        }
        if let Some(is_watched) = is_watched {
            let side = if is_watched { PLACE_IN } else { PLACE_OUT };
            let verdict = side
                | match container.containment {
                    Containment::Host => PLACE_HOST,
                    Containment::Known => PLACE_CONTAINER,
                    Containment::Unknown => 0,
                };
            // Without the entry the programs ask again.
            let _ = maps.tell_place(&place.encode(), verdict);
        }
        if is_watched.is_none() {
            self.undecided_records.fetch_add(1, Ordering::Relaxed);
        }
        is_watched == Some(true)
    }

    /// Returns the answer about a place that is undecided: none for a while, and then that it is not watched.
    fn waited(&self, place: ContainerKey) -> Option<bool> {
        let mut undecided = self
            .undecided
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if undecided.len() >= LIMIT {
            // Their time begins anew.
            let forgotten = undecided.drain().count() as u64;
            self.evicted.fetch_add(forgotten, Ordering::Relaxed);
        }
        let first = undecided.entry(place).or_insert_with(Instant::now);
        if first.elapsed() < UNDECIDED {
            return None;
        }
        undecided.remove(&place);
        Some(false)
    }

    /// Adds a place; returns one that was dropped because the table was full.
    fn remember(&self, place: ContainerKey, container: &Arc<Container>) -> Option<ContainerKey> {
        if container.containment == Containment::Unknown {
            return None;
        }
        let mut containers = self.lock();
        let former = containers.by_place.insert(place, Arc::clone(container));
        if former.is_some() {
            return None;
        }
        containers.order.push_back(place);
        if containers.order.len() <= LIMIT {
            return None;
        }
        let oldest = containers.order.pop_front()?;
        containers.by_place.remove(&oldest);
        self.evicted.fetch_add(1, Ordering::Relaxed);
        Some(oldest)
    }

    /// Returns the number of records left out because it was undecided whether their place is watched.
    pub(super) fn undecided_records(&self) -> u64 {
        self.undecided_records.load(Ordering::Relaxed)
    }

    /// Returns the number of known places.
    pub(super) fn len(&self) -> usize {
        self.lock().by_place.len()
    }

    /// Returns the number of places dropped because the table was full.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Returns the number of roots dropped because the table was full.
    pub(super) fn evicted_roots(&self) -> u64 {
        self.evicted_roots.load(Ordering::Relaxed)
    }

    fn remember_users(&self, root: Root, database: &Arc<UserDatabase>) {
        let mut databases = self.databases();
        if databases.remember(root, Arc::clone(database)).is_some() {
            self.evicted_roots.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Learns the users of a process that has just started a program.
    pub(super) fn learn_users(&self, live: &LiveSystemInfo, process: &Process, header: &Header) {
        self.database(live, process, header);
    }

    /// Returns a user by id.
    pub(super) fn user(
        &self,
        live: &LiveSystemInfo,
        process: &Process,
        header: &Header,
        uid: u32,
    ) -> Lookup<Arc<User>> {
        let database = self.database(live, process, header);
        named(database, |users| users.user(uid))
    }

    /// Returns a group by id.
    pub(super) fn group(
        &self,
        live: &LiveSystemInfo,
        process: &Process,
        header: &Header,
        gid: u32,
    ) -> Lookup<Arc<Group>> {
        let database = self.database(live, process, header);
        named(database, |groups| groups.group(gid))
    }

    /// Returns the users that a process sees. For a process that has ended, or has another root by now, those
    /// that were last seen at its root; or those that an ancestor sees whose root is the same folder, perhaps
    /// by another mount: a new mount namespace has copies of all mounts.
    fn database(
        &self,
        live: &LiveSystemInfo,
        process: &Process,
        header: &Header,
    ) -> Option<Arc<UserDatabase>> {
        let is_its = |root: RootId| {
            root.mount == u64::from(header.root.mount_id) && root.inode == header.root.inode
        };
        let is_same_folder =
            |root: RootId| root.device == header.root.device && root.inode == header.root.inode;
        let now = live.rooted_users(process);
        if let Some((_, database)) = now.filter(|(root, _)| is_its(*root)) {
            self.remember_users(header.root, &database);
            return Some(database);
        }
        if let Some(known) = self.databases().by_root.get(&header.root).cloned() {
            return Some(known);
        }
        let found = ancestors(process)
            .filter_map(|ancestor| live.rooted_users(&ancestor))
            .find(|(root, _)| is_its(*root) || is_same_folder(*root));
        if let Some((_, database)) = found {
            self.remember_users(header.root, &database);
            return Some(database);
        }
        let is_ours = live.own_root().is_some_and(is_its);
        is_ours.then(|| live.own_database()).flatten()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Containers> {
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn databases(&self) -> std::sync::MutexGuard<'_, Databases> {
        self.databases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the nearest ancestors of a process.
fn ancestors(process: &Process) -> impl Iterator<Item = Arc<Process>> {
    std::iter::successors(process.parent(), |process| process.parent()).take(ANCESTORS)
}

/// Looks an id up in a database, if there is one; that uid and gid 0 are root's needs none.
fn named<T>(
    database: Option<Arc<UserDatabase>>,
    by_id: impl Fn(&UserDatabase) -> Option<Arc<T>>,
) -> Lookup<Arc<T>> {
    match &database {
        Some(database) => by_id(database).map_or(Lookup::Missing, Lookup::Found),
        None => by_id(&UserDatabase::default()).map_or(Lookup::Unknown, Lookup::Found),
    }
}

/// Finds the container of a process from its record, because it may have ended or moved since. Data that the
/// record lacks comes from `/proc`.
fn find(
    live: &LiveSystemInfo,
    process: &Process,
    header: &Header,
    cgroups: &[(u32, Vec<u8>)],
) -> Arc<Container> {
    // As lines of /proc/PID/cgroup.
    let mut lines = Vec::new();
    for (hierarchy, path) in cgroups {
        lines.extend_from_slice(format!("{hierarchy}::").as_bytes());
        lines.extend_from_slice(path);
        lines.push(b'\n');
    }
    let sees_groups = header.cgroup_namespace == INITIAL_CGROUP_NAMESPACE;
    let initial = header.pid_level == 0 && sees_groups;
    let mounts = header.mount_namespace.into();
    let mut recorded = Arc::new(live.container_of_ended(&lines, sees_groups, mounts));
    if recorded == *live.own_container() {
        // One entry for all places of the host, of which there may be thousands.
        recorded = Arc::clone(live.own_container());
    }
    if recorded.containment == Containment::Host {
        return recorded;
    }
    let now = live.container(process);
    match (recorded.containment, now.containment) {
        (Containment::Known, _) if recorded.id != now.id => recorded,
        (Containment::Unknown, Containment::Unknown) => {
            let of_same_mounts = || of_ancestor(live, process, mounts);
            initial.then(of_same_mounts).flatten().unwrap_or(recorded)
        }
        (_, Containment::Unknown) => recorded,
        _ => now,
    }
}

/// Returns the container of a living ancestor with these mounts. A process in the initial pid and cgroup namespaces
/// and in no group of a container is where others with its mounts are: services of the host can have their own.
fn of_ancestor(live: &LiveSystemInfo, process: &Process, mounts: u64) -> Option<Arc<Container>> {
    let mut ancestors = ancestors(process);
    let same = ancestors.find(|ancestor| live.mount_namespace(ancestor) == Some(mounts))?;
    let container = live.container(&same);
    (container.containment != Containment::Unknown).then_some(container)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: u32 = 100_000;

    fn place(number: u32) -> ContainerKey {
        ContainerKey {
            cgroup: number.into(),
            cgroup_namespace: 1,
            mount_namespace: 2,
            pid_level: 0,
        }
    }

    #[test]
    fn places_that_come_and_go_leave_a_bounded_number_behind() {
        let places = ContainerTable::new(None);
        let container = Arc::new(Container::host());
        let forgotten = (0..MANY).filter_map(|number| places.remember(place(number), &container));
        let forgotten: Vec<_> = forgotten.collect();
        let limit = u32::try_from(LIMIT).unwrap();
        let oldest: Vec<_> = (0..MANY - limit).map(place).collect();
        assert_eq!(forgotten, oldest, "the programs are told of each");
        assert_eq!(places.evicted(), u64::from(MANY - limit));
        // A known place is not added again.
        assert_eq!(places.remember(place(MANY - 1), &container), None);
        let kept = places.lock();
        assert_eq!((kept.by_place.len(), kept.order.len()), (LIMIT, LIMIT));
        assert!(kept.by_place.contains_key(&place(MANY - 1)));
    }

    #[test]
    fn so_do_those_that_cannot_be_told() {
        let places = ContainerTable::new(None);
        for number in 0..MANY {
            assert_eq!(places.waited(place(number)), None);
        }
        let kept = places.undecided.lock().unwrap().len();
        assert!(kept <= LIMIT);
        assert_eq!(places.evicted() + kept as u64, u64::from(MANY));
    }

    #[test]
    fn so_do_roots() {
        let places = ContainerTable::new(None);
        for number in 0..MANY {
            let root = Root {
                mount: number.into(),
                ..Root::default()
            };
            places.remember_users(root, &Arc::default());
            places.remember_users(root, &Arc::default());
        }
        let databases = places.databases();
        let kept = (databases.by_root.len(), databases.order.len());
        assert_eq!(kept, (ROOT_LIMIT, ROOT_LIMIT));
        let evicted = u64::from(MANY) - ROOT_LIMIT as u64;
        assert_eq!(places.evicted_roots(), evicted);
    }
}
