//! Confines the programs of containers that another program makes.
//!
//! The programs in the kernel look a container up by its control group when a program begins in it: its first program, and
//! those that are started in it later. Tasks inherit the policy from there on. Programs in the mount namespace of the container
//! runtime are left alone: newer runtimes begin in the group before they enter the container.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use libbpf_rs::{MapCore, MapFlags};
use policy::Policy;
use policy::compile::MachineFeatures;
use policy::compile::bpf::Profile;

use super::Error;
use super::container_place::{ContainerPlace, Hierarchy};
use super::hooks::{attach, hooks};
use super::mount_shape::MountShape;
use super::programs::{
    ALL, Counter, KernelPrograms, cannot, delete, ledger, put, text, word, words,
};
use super::tables::{PLACES, TOO_MANY_PLACES, Tables};

/// Size of `struct container`, and of the fields before its path.
const ENTRY_SIZE: usize = 512;
const PATH_AT: usize = 12;
/// `OF_CONTAINER` of bpf/policy.h.
const OF_CONTAINER: u32 = 1 << 31;
const MAP: &str = "containers";

impl ContainerPlace {
    fn entry(&self, number: u32, table: u32) -> Vec<u8> {
        let mut entry = words(&[number, self.runtime_namespace, table]);
        entry.extend(self.group_below.as_bytes());
        entry.resize(ENTRY_SIZE, 0);
        entry
    }
}

/// An entry of the table of containers.
struct TableEntry {
    key: Vec<u8>,
    value: Vec<u8>,
}

/// Attaches the programs that a policy needs, which takes longer than a container runtime waits. Containers whose programs are
/// attached are confined meanwhile.
///
/// # Errors
/// If the kernel refuses them.
pub fn prepare_containers(policy: &Policy) -> Result<(), Error> {
    let profile = Profile::compile(policy, &MachineFeatures::default());
    attach(&hooks(&profile))?;
    KernelPrograms::open()?.begin()
}

/// Tells the programs of this build from those of others, whose containers and numbers are their own.
#[must_use]
pub fn containers_build() -> &'static str {
    env!("TOLLGATE_BPF_BUILD")
}

/// A container that the kernel confines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfinedContainer {
    /// Number under which the kernel reports its violations.
    pub number: u32,
    /// It has the policy that was asked for. If not, it was confined before, with another version.
    pub is_current: bool,
}

/// Confines every program that begins in a container from now on, with all that it starts. A container that is confined
/// already keeps what it has.
///
/// Containers with the same policy of one `owner` and the same mounts share a table in the kernel.
/// The policy stays in the kernel as long as one of the programs runs, and until the container's control group is
/// removed.
///
/// # Errors
/// If the kernel lacks a hook that the policy needs, or the policy cannot be loaded.
pub fn confine_container(
    owner: &str,
    policy: &Policy,
    place: &ContainerPlace,
) -> Result<ConfinedContainer, Error> {
    let (profile, kernel) = open(policy)?;
    kernel.begin()?;
    if let Some((number, table)) = kernel.container(place)? {
        let known = kernel.shared(table)?;
        if known.owner != owner {
            return Err(Error::Container {
                pid: place.pid,
                why: format!("is confined already, by the policy of {}", known.owner),
            });
        }
        return Ok(ConfinedContainer {
            number,
            is_current: known.has(&profile),
        });
    }
    let shape = MountShape::of(&place.mounts);
    if shape.devices.len() > PLACES {
        return Err(TOO_MANY_PLACES);
    }
    let table = kernel.shared_table(owner, &profile, &shape)?;
    let number = kernel.next(Counter::Number)?;
    let entered = kernel.enter_container(owner, place, number, table, &shape);
    if let Err(error) = entered {
        // The first error is the one to tell. A table that no container has is removed with the next that ends.
        let _ = kernel.remove_containers(&BTreeSet::from([number]));
        return Err(error);
    }
    Ok(ConfinedContainer {
        number,
        is_current: true,
    })
}

/// Brings a policy into force in all containers that have another version of the owner's. Tasks that run are under the one
/// or the other at any time. Returns the number of tables that were exchanged.
///
/// # Errors
/// If the kernel lacks a hook that the policy needs, or the policy cannot be loaded. Containers keep what they have.
pub fn change_containers(owner: &str, policy: &Policy) -> Result<usize, Error> {
    let (profile, kernel) = open(policy)?;
    let mut outdated = kernel.outdated(owner, &profile)?;
    // Containers start while tables are made.
    drop(kernel);
    let path = std::env::var_os("PATH");
    let mut changed = 0;
    while !outdated.is_empty() {
        for table in &outdated {
            let tables = Tables::shared(&profile, &table.shape, path.as_deref())?;
            let kernel = KernelPrograms::open()?;
            changed += usize::from(kernel.change_shared(table, &profile, &tables)?);
        }
        // Containers that have started meanwhile may have a table more of the version before.
        outdated = KernelPrograms::open()?.outdated(owner, &profile)?;
    }
    Ok(changed)
}

/// Removes what the kernel has of containers that have ended, and tables that no container has.
///
/// # Errors
/// If something cannot be removed.
pub fn remove_ended_containers() -> Result<(), Error> {
    match super::is_ever_used() {
        true => KernelPrograms::open()?.remove_ended(),
        false => Ok(()),
    }
}

/// Opens the kernel for a policy all of whose hooks it has.
fn open(policy: &Policy) -> Result<(Profile, KernelPrograms), Error> {
    let profile = Profile::compile(policy, &MachineFeatures::default());
    let (kernel, lacks) = KernelPrograms::open_for(&hooks(&profile))?;
    match lacks.into_iter().next() {
        Some(lack) => Err(Error::Lacks { lack }),
        None => Ok((profile, kernel)),
    }
}

impl KernelPrograms {
    /// Makes what all containers share.
    fn begin(&self) -> Result<(), Error> {
        if ledger(&self.map("ledgers")?, ALL)?.is_some() {
            return Ok(());
        }
        self.put_ring(ALL)?;
        self.put_ledger(ALL, "")
    }

    /// Numbers of a container that was entered before, and of its table.
    fn container(&self, place: &ContainerPlace) -> Result<Option<(u32, u32)>, Error> {
        let found = self.map(MAP)?;
        let found = found.lookup(&place.group.to_ne_bytes(), MapFlags::ANY);
        let found = found.map_err(Error::map(MAP))?;
        Ok(found.and_then(|entry| word(&entry, 0).zip(word(&entry, 2))))
    }

    fn enter_container(
        &self,
        owner: &str,
        place: &ContainerPlace,
        number: u32,
        table: u32,
        shape: &MountShape,
    ) -> Result<(), Error> {
        self.put_ledger(number, owner)?;
        let places = self.map("places")?;
        for (index, device) in shape.devices.iter().enumerate() {
            let index = u32::try_from(index).expect("places are limited");
            let key = words(&[number | OF_CONTAINER, *device]);
            put(&places, "places", &key, &index.to_ne_bytes())?;
        }
        // The last one: from here on programs are confined.
        let key = place.group.to_ne_bytes();
        put(&self.map(MAP)?, MAP, &key, &place.entry(number, table))
    }

    /// Numbers of the containers.
    pub(super) fn container_numbers(&self) -> Result<BTreeSet<u32>, Error> {
        let entries = self.containers()?.into_iter();
        Ok(entries.filter_map(|entry| word(&entry.value, 0)).collect())
    }

    /// Removes containers that have ended, and tables that no container has.
    pub(super) fn remove_ended(&self) -> Result<(), Error> {
        let ledgers = match self.map_path(MAP).exists() && self.map_path("ledgers").exists() {
            true => self.map("ledgers")?,
            false => return Ok(()),
        };
        let (mut ended, mut used) = (BTreeSet::new(), BTreeSet::new());
        let entries = self.containers()?;
        // Looked for where containers are.
        let hierarchy = match entries.is_empty() {
            true => None,
            false => Some(Hierarchy::whole()?),
        };
        for entry in &entries {
            let (Some(number), Some(table)) = (word(&entry.value, 0), word(&entry.value, 2)) else {
                continue;
            };
            let users = ledger(&ledgers, number)?.map_or(0, |[users, ..]| users);
            // Below zero means zero: tasks are counted without a lock.
            let has_tasks = users != 0 && users <= u64::MAX / 2;
            let is_there = match &hierarchy {
                Some(hierarchy) if !has_tasks => entry.has_group(hierarchy)?,
                _ => true,
            };
            match is_there {
                true => used.insert(table),
                false => ended.insert(number),
            };
        }
        ended.extend(self.left_numbers()?);
        if !ended.is_empty() {
            self.remove_containers(&ended)?;
        }
        self.retain_shared(&used)
    }

    fn remove_containers(&self, numbers: &BTreeSet<u32>) -> Result<(), Error> {
        let map = self.map(MAP)?;
        // First: a program that begins in a container without its policy may do nothing.
        for entry in self.containers()? {
            if word(&entry.value, 0).is_some_and(|number| numbers.contains(&number)) {
                delete(&map, MAP, &entry.key)?;
            }
        }
        let places = self.map("places")?;
        let is_theirs = |key: &Vec<u8>| {
            let owner = word(key, 0).filter(|owner| owner & OF_CONTAINER != 0);
            owner.is_some_and(|owner| numbers.contains(&(owner & !OF_CONTAINER)))
        };
        let theirs: Vec<Vec<u8>> = places.keys().filter(is_theirs).collect();
        for key in &theirs {
            delete(&places, "places", key)?;
        }
        // Last: by its ledger a number is found that a killed process has left.
        let maps = ["labels", "ledgers"];
        numbers
            .iter()
            .try_for_each(|number| self.remove_keys(&maps, *number))
    }

    /// Numbers that processes which were killed have left: with a ledger, and with neither container nor policy nor task.
    fn left_numbers(&self) -> Result<BTreeSet<u32>, Error> {
        let mut known = self.container_numbers()?;
        known.extend(self.numbers("policies")?);
        known.insert(ALL);
        let loaded = self.loaded()?.into_iter();
        // The folder is that of a policy, which the next load removes.
        let left = loaded.filter(|one| {
            let is_policy = known.contains(&one.number) || self.waiting(one.number).exists();
            one.users == 0 && !is_policy
        });
        Ok(left.map(|one| one.number).collect())
    }

    fn containers(&self) -> Result<Vec<TableEntry>, Error> {
        if !self.map_path(MAP).exists() {
            return Ok(Vec::new());
        }
        let map = self.map(MAP)?;
        let mut found = Vec::new();
        for key in map.keys() {
            let entry = map.lookup(&key, MapFlags::ANY).map_err(Error::map(MAP))?;
            if let Some(value) = entry.filter(|entry| entry.len() == ENTRY_SIZE) {
                found.push(TableEntry { key, value });
            }
        }
        Ok(found)
    }
}

impl TableEntry {
    /// Returns true if the control group is still there.
    fn has_group(&self, hierarchy: &Hierarchy) -> Result<bool, Error> {
        let group = self.key.first_chunk().copied().map(u64::from_ne_bytes);
        let path = hierarchy.at.join(text(&self.value[PATH_AT..]));
        match fs::metadata(&path) {
            Ok(found) => Ok(Some(found.ino()) == group),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(cannot(&path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_ended_only_if_its_group_is_known_to_be_gone() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("pod1");
        fs::create_dir(&group).unwrap();
        let entry = |path: &str, number: u64| {
            let mut value = vec![0; PATH_AT];
            value.extend(path.as_bytes());
            value.resize(ENTRY_SIZE, 0);
            let key = number.to_ne_bytes().to_vec();
            TableEntry { key, value }
        };
        let own = fs::metadata(&group).unwrap().ino();
        let hierarchy = Hierarchy {
            root: "/".to_owned(),
            at: root.path().to_owned(),
        };
        assert!(entry("pod1", own).has_group(&hierarchy).unwrap());
        assert!(!entry("pod1", own + 1).has_group(&hierarchy).unwrap());
        assert!(!entry("pod2", own).has_group(&hierarchy).unwrap());
        // What cannot be looked at may be there.
        fs::write(root.path().join("file"), "").unwrap();
        assert!(entry("file/pod1", own).has_group(&hierarchy).is_err());
    }
}
