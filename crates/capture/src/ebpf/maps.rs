//! The maps of the programs, which carry their configuration and their counters.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use event::Pid;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};

use super::error::Error;
use super::named::{self, NamedFiles};
use super::rings;
use super::slots::MissingTables;
use super::tables::{BANKS, CALLS, NumberInterest, ROWS, Tables};
use crate::notify::ProcessLoss;

/// `INODE_WORDS`.
const INODE_BITS: usize = 64 * 1024;

/// `struct control` without the demands of the slots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Control {
    /// Version of the tables, incremented when others come into force; its last bit is their bank.
    pub(super) version: u32,
    pub(super) agent: i32,
    /// Processes whose calls are inspected.
    pub(super) scope: Scope,
    pub(super) environment: bool,
    pub(super) streams: bool,
    pub(super) wake_bytes: u32,
    /// True if paths and names are checked in the kernel.
    pub(super) filters: bool,
    /// True if no process is watched any more.
    pub(super) off: bool,
    /// True if rules ask for the ends of processes.
    pub(super) ends: bool,
    /// Number of waiting bytes at which records of forks and ends are dropped.
    pub(super) state_limit: u32,
}

/// Watched processes, as the programs know them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Scope {
    /// All processes.
    #[default]
    All,
    /// Processes entered in a map, and their descendants.
    Pids,
    /// Processes of places not known to be outside the scope.
    Places,
}

impl Control {
    fn encode(&self, asked: &[Vec<u8>; BANKS]) -> Vec<u8> {
        let states = 1_u32;
        let scoped = match self.scope {
            Scope::All => 0,
            Scope::Pids => 1,
            Scope::Places => 2,
        };
        let words = [
            self.version,
            self.agent.cast_unsigned(),
            scoped,
            states,
            u32::from(self.environment),
            u32::from(self.streams),
            self.wake_bytes,
            u32::from(self.filters),
            u32::from(self.off),
            u32::from(self.ends),
            self.state_limit,
            0,
        ];
        let words = words.into_iter().flat_map(u32::to_ne_bytes);
        words.chain(asked.iter().flatten().copied()).collect()
    }
}

/// Counters of the programs (bpf/record.h), summed over processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelCounts {
    pub(super) by_registers: u64,
    pub(super) by_scope: u64,
    pub(super) by_path: u64,
    pub(super) by_name: u64,
    pub(super) sent: u64,
    pub(super) unreadable: u64,
    pub(super) truncated: u64,
    pub(super) lost_critical: u64,
    pub(super) lost_bulk: u64,
    pub(super) lost_state: u64,
    pub(super) no_memory: u64,
    pub(super) by_socket: u64,
    pub(super) by_place: u64,
    pub(super) by_ring: u64,
    /// Lost records of processes that had more of a ring than was free.
    pub(super) lost_share: u64,
}

impl KernelCounts {
    fn from_sums(sums: &[u64]) -> Self {
        let at = |index: usize| sums.get(index).copied().unwrap_or(0);
        Self {
            by_registers: at(1),
            by_scope: at(2),
            by_path: at(3),
            by_name: at(4),
            sent: at(5),
            unreadable: at(6),
            truncated: at(7),
            lost_critical: at(8),
            lost_bulk: at(9),
            lost_state: at(10),
            no_memory: at(11),
            by_socket: at(12),
            by_place: at(13),
            by_ring: at(14),
            lost_share: at(15),
        }
    }

    /// Returns the number of records dropped because a ring was full.
    pub(super) fn lost(&self) -> u64 {
        self.lost_critical + self.lost_bulk + self.lost_state + self.no_memory
    }
}

/// Handles on the maps, for every thread.
pub(super) struct Maps {
    control: MapHandle,
    calls: MapHandle,
    interest: MapHandle,
    rows: MapHandle,
    scope: MapHandle,
    automata: MapHandle,
    names: MapHandle,
    ports: MapHandle,
    networks: MapHandle,
    inodes: MapHandle,
    inode_bits: MapHandle,
    shown: MapHandle,
    places: MapHandle,
    waiting: MapHandle,
    births: MapHandle,
    ring_calls: MapHandle,
    counters: MapHandle,
    lost: MapHandle,
    losers: MapHandle,
    pub(super) critical: MapHandle,
    pub(super) bulk: MapHandle,
    state: Mutex<State>,
}

/// State as last written.
struct State {
    control: Control,
    asked: [Vec<u8>; BANKS],
    interest: [NumberInterest; CALLS],
    /// By bank: files that rules name.
    inodes: [Entries; BANKS],
    /// Tables that did not fit.
    without: MissingTables,
}

/// Keys and values.
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

impl Maps {
    /// Takes the maps of loaded programs and writes `control`.
    pub(super) fn of(object: &Object, control: Control) -> Result<Self, Error> {
        let handle = |name: &'static str| {
            let map = object.maps().find(|map| map.name() == name);
            let map = map.ok_or(Error::Missing { name })?;
            MapHandle::try_from(&map).map_err(Error::map)
        };
        let state = State {
            control,
            asked: std::array::from_fn(|_| Tables::nothing_asked()),
            interest: [NumberInterest::default(); CALLS],
            inodes: Default::default(),
            without: MissingTables::default(),
        };
        let maps = Self {
            control: handle(".data.control")?,
            calls: handle(".data.calls")?,
            interest: handle(".data.interest")?,
            rows: handle("rows")?,
            scope: handle("scope")?,
            automata: handle("automata")?,
            names: handle("names")?,
            ports: handle("ports")?,
            networks: handle("networks")?,
            inodes: handle("inodes")?,
            inode_bits: handle(".data.inode_bits")?,
            shown: handle(".data.shown")?,
            places: handle("places")?,
            waiting: handle(".data.waiting")?,
            births: handle(".data.births")?,
            ring_calls: handle(".data.ring_calls")?,
            counters: handle("counters")?,
            lost: handle("lost")?,
            losers: handle("losers")?,
            critical: handle("critical")?,
            bulk: handle("bulk")?,
            state: Mutex::new(state),
        };
        maps.write(&maps.ring_calls, &rings::calls())?;
        maps.write_control(&maps.state())?;
        Ok(maps)
    }

    /// Writes a state for the programs.
    fn write_control(&self, state: &State) -> Result<(), Error> {
        let value = state.control.encode(&state.asked);
        self.write(&self.control, &value)
    }

    /// Writes the only entry of a map.
    fn write(&self, map: &MapHandle, value: &[u8]) -> Result<(), Error> {
        let written = map.update(&0_u32.to_ne_bytes(), value, MapFlags::ANY);
        written.map_err(Error::map)
    }

    /// Puts tables into force: writes them beside those in use, then switches over.
    pub(super) fn install(&self, tables: &Tables, named: &NamedFiles) -> Result<(), Error> {
        let mut state = self.state();
        let version = state.control.version.wrapping_add(1);
        let bank = version % u32::try_from(BANKS).expect("two");
        let first = bank * u32::try_from(ROWS).expect("fits the table");
        for (index, row) in tables.rows() {
            let key = first + u32::try_from(index).expect("fewer than the rows");
            let written = self.rows.update(&key.to_ne_bytes(), &row, MapFlags::ANY);
            written.map_err(Error::map)?;
        }
        let key = 0_u32.to_ne_bytes();
        let calls = self.calls.lookup(&key, MapFlags::ANY).map_err(Error::map)?;
        // An array has all its entries from the start.
        let mut calls = calls.ok_or(Error::Missing {
            name: "the table of calls",
        })?;
        let index = usize::try_from(bank).expect("two");
        tables.write_numbers(index, &mut calls);
        let written = self.calls.update(&key, &calls, MapFlags::ANY);
        written.map_err(Error::map)?;
        // Before the switch, calls of both the old and the new tables are let through; afterwards only those
        // of the new ones.
        let interest = tables.interest();
        self.write_interest(&std::array::from_fn(|number| {
            interest[number].or(state.interest[number])
        }))?;
        if let Some(automaton) = tables.automaton() {
            let written = self
                .automata
                .update(&bank.to_ne_bytes(), &automaton, MapFlags::ANY);
            written.map_err(Error::map)?;
        }
        // A table that does not fit is not used.
        let without = MissingTables {
            names: self.write_names(bank, tables).is_err(),
            ports: self.write_ports(bank, tables).is_err(),
            networks: self.write_networks(bank, tables).is_err(),
            paths: self
                .write_inodes(&mut state.inodes, bank, named.entries(tables, bank))
                .is_err(),
        };
        state.without = without;
        state.asked[index] = tables.asked(without);
        state.control.environment = tables.environment;
        state.control.streams = tables.streams;
        state.control.ends = tables.ends;
        state.control.version = version;
        self.write_control(&state)?;
        state.interest = interest;
        self.write_interest(&interest)
    }

    /// Replaces the files that rules name. Stale entries are removed.
    pub(super) fn rename(&self, tables: &Tables, named: &NamedFiles) -> Result<(), Error> {
        let mut state = self.state();
        let bank = state.control.version % u32::try_from(BANKS).expect("two");
        let entries = named.entries(tables, bank);
        let written = self.write_inodes(&mut state.inodes, bank, entries);
        if written.is_ok() == state.without.paths {
            // If they do not fit, paths are not checked.
            state.without.paths = written.is_err();
            let index = usize::try_from(bank).expect("two");
            state.asked[index] = tables.asked(state.without);
            self.write_control(&state)?;
        }
        written.map_err(Error::map)
    }

    /// Returns the identities that the kernel computed last ([`super::hooks::Attached::show`]).
    pub(super) fn shown(&self) -> Result<Vec<u8>, Error> {
        let shown = self.shown.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        shown.map_err(Error::map)?.ok_or(Error::Missing {
            name: "what a file is",
        })
    }

    fn write_inodes(
        &self,
        inodes: &mut [Entries; BANKS],
        bank: u32,
        entries: Entries,
    ) -> Result<(), libbpf_rs::Error> {
        let bank = usize::try_from(bank).expect("two");
        let former = &mut inodes[bank];
        for (key, value) in &entries {
            if former.get(key) != Some(value) {
                self.inodes.update(key, value, MapFlags::ANY)?;
                former.insert(key.clone(), value.clone());
            }
        }
        let gone: Vec<_> = former
            .keys()
            .filter(|key| !entries.contains_key(*key))
            .cloned()
            .collect();
        // The programs must find new entries before they stop finding the former ones: a file that was missing may
        // be opened meanwhile, and then only its folder or its own entry tells that rules name it.
        self.write_inode_bits(inodes)?;
        let former = &mut inodes[bank];
        for key in &gone {
            self.inodes.delete(key)?;
            former.remove(key);
        }
        match gone.is_empty() {
            true => Ok(()),
            false => self.write_inode_bits(inodes),
        }
    }

    /// Writes the bits of all entries of both banks.
    fn write_inode_bits(&self, inodes: &[Entries; BANKS]) -> Result<(), libbpf_rs::Error> {
        let mut words = vec![0_u64; INODE_BITS / 64];
        for key in inodes.iter().flat_map(BTreeMap::keys) {
            let bit = named::bit(key);
            words[bit / 64] |= 1 << (bit % 64);
        }
        let bits: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        self.inode_bits
            .update(&0_u32.to_ne_bytes(), &bits, MapFlags::ANY)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_interest(&self, interest: &[NumberInterest; CALLS]) -> Result<(), Error> {
        let encoded: Vec<u8> = interest.iter().flat_map(|one| one.encode()).collect();
        self.write(&self.interest, &encoded)
    }

    fn write_names(&self, bank: u32, tables: &Tables) -> Result<(), libbpf_rs::Error> {
        let named = tables.process_names().into_iter().map(|(name, slots)| {
            let mut key = name.to_vec();
            key.resize(16, 0);
            key.extend(bank.to_ne_bytes());
            key.extend(0_u32.to_ne_bytes());
            (key, slots)
        });
        let of_bank = |key: &[u8]| key.get(16..20) == Some(&bank.to_ne_bytes()[..]);
        replace(&self.names, of_bank, named)
    }

    fn write_ports(&self, bank: u32, tables: &Tables) -> Result<(), libbpf_rs::Error> {
        let ports = tables.ports().into_iter().map(|(port, slots)| {
            let key = [u32::from(port), bank].map(u32::to_ne_bytes);
            (key.concat(), slots)
        });
        let of_bank = |key: &[u8]| key.get(4..8) == Some(&bank.to_ne_bytes()[..]);
        replace(&self.ports, of_bank, ports)
    }

    fn write_networks(&self, bank: u32, tables: &Tables) -> Result<(), libbpf_rs::Error> {
        // `struct network_key`: the bank and the version are compared, too.
        const FIXED_BITS: u32 = 32;
        let bank = u8::try_from(bank).expect("two");
        let networks = tables.networks().into_iter();
        let networks = networks.map(|((address, bits), slots)| {
            let (version, mut bytes) = match address {
                IpAddr::V4(address) => (4, address.octets().to_vec()),
                IpAddr::V6(address) => (6, address.octets().to_vec()),
            };
            bytes.resize(16, 0);
            let prefix = (FIXED_BITS + u32::from(bits)).to_ne_bytes();
            (
                [&prefix[..], &[bank, version, 0, 0], &bytes].concat(),
                slots,
            )
        });
        let of_bank = |key: &[u8]| key.get(4) == Some(&bank);
        replace(&self.networks, of_bank, networks)
    }

    /// Writes the properties of the place with this key.
    pub(super) fn tell_place(&self, key: &[u8], verdict: u32) -> Result<(), Error> {
        let updated = self
            .places
            .update(key, &verdict.to_ne_bytes(), MapFlags::ANY);
        updated.map_err(Error::map)
    }

    /// Removes a place.
    pub(super) fn forget_place(&self, key: &[u8]) {
        // It may have been dropped already: the map is limited.
        let _ = self.places.delete(key);
    }

    /// Requests that the next record wakes the agent.
    pub(super) fn await_record(&self) -> Result<(), Error> {
        self.write(&self.waiting, &1_u32.to_ne_bytes())
    }

    /// Returns the row of the plan for a record's row number, whatever the bank.
    pub(super) fn row_index(row: u32) -> usize {
        usize::try_from(row).unwrap_or(0) % ROWS
    }

    /// Stops the programs from sending records.
    pub(super) fn switch_off(&self) -> Result<(), Error> {
        let mut state = self.state();
        state.control.off = true;
        self.write_control(&state)
    }

    /// Adds a process to the watched ones.
    pub(super) fn watch(&self, pid: Pid) -> Result<(), Error> {
        self.scope
            .update(&pid.0.to_ne_bytes(), &[1], MapFlags::ANY)
            .map_err(Error::map)
    }

    /// Returns whether a process is watched.
    pub(super) fn watches(&self, pid: Pid) -> Result<bool, Error> {
        let found = self.scope.lookup(&pid.0.to_ne_bytes(), MapFlags::ANY);
        Ok(found.map_err(Error::map)?.is_some())
    }

    /// Returns whether any watched process is left.
    ///
    /// The kernel takes long enough to search for one that a process may be born behind the search position
    /// while its parent ends ahead of it: none is left only if none was born meanwhile.
    pub(super) fn watches_any(&self) -> Result<bool, Error> {
        let is_any = || self.scope.keys().next().is_some();
        if is_any() {
            return Ok(true);
        }
        let before = self.births()?;
        Ok(is_any() || self.births()? != before)
    }

    /// Returns the number of processes added to the watched ones by birth.
    fn births(&self) -> Result<u64, Error> {
        let births = self.births.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let births = births.map_err(Error::map)?;
        let first = births.as_deref().and_then(|bytes| bytes.first_chunk());
        let first = first.ok_or(Error::Missing {
            name: "the count of births",
        })?;
        Ok(u64::from_ne_bytes(*first))
    }

    /// Returns the current counters.
    pub(super) fn counts(&self) -> Result<KernelCounts, Error> {
        let sums = sums(&self.counters, 0, 16)?;
        Ok(KernelCounts::from_sums(&sums))
    }

    /// Returns lost records by row, without rows that lost none.
    pub(super) fn losses(&self) -> Result<BTreeMap<usize, u64>, Error> {
        let mut losses = BTreeMap::new();
        for key in 0..ROWS * BANKS {
            let number = u32::try_from(key).expect("fits the table");
            let lost: u64 = sums(&self.lost, number, 1)?.into_iter().sum();
            if lost > 0 {
                *losses.entry(Self::row_index(number)).or_default() += lost;
            }
        }
        Ok(losses)
    }

    /// Returns lost records by process, those with the most first.
    pub(super) fn losers(&self) -> Vec<ProcessLoss> {
        let found = |key: Vec<u8>| {
            // An entry that another has displaced meanwhile is not reported any more.
            let value = self.losers.lookup(&key, MapFlags::ANY).ok().flatten()?;
            loser(&key, &value)
        };
        let mut losers: Vec<_> = self.losers.keys().filter_map(found).collect();
        losers.sort_by_key(|loser| std::cmp::Reverse(loser.count));
        losers
    }
}

/// Decodes `struct loser_key` and `struct loser`.
fn loser(key: &[u8], value: &[u8]) -> Option<ProcessLoss> {
    let word = |at: usize| {
        let bytes = key.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes))
    };
    let count = u64::from_ne_bytes(*value.first_chunk()?);
    let name = value.get(8..24)?;
    let len = name.iter().position(|byte| *byte == 0);
    let name = &name[..len.unwrap_or(name.len())];
    Some(ProcessLoss {
        pid: Pid(word(0)?.cast_signed()),
        name: String::from_utf8_lossy(name).into_owned(),
        lane: if word(4)? == 0 { "critical" } else { "bulk" },
        cause: if word(8)? == 1 { "full" } else { "share" },
        count,
    })
}

/// Replaces the entries of a bank.
fn replace(
    map: &MapHandle,
    is_former: impl Fn(&[u8]) -> bool,
    entries: impl Iterator<Item = (Vec<u8>, u64)>,
) -> Result<(), libbpf_rs::Error> {
    let former: Vec<_> = map.keys().filter(|key| is_former(key)).collect();
    former.iter().try_for_each(|key| map.delete(key))?;
    let mut entries = entries;
    entries.try_for_each(|(key, slots)| map.update(&key, &slots.to_ne_bytes(), MapFlags::ANY))
}

/// Returns the counters of one entry, summed over processors.
fn sums(map: &MapHandle, key: u32, count: usize) -> Result<Vec<u64>, Error> {
    let mut sums = vec![0; count];
    let found = map.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY);
    let found = found.map_err(Error::map)?.ok_or(Error::Missing {
        name: "a counter of losses",
    })?;
    for processor in found {
        for (sum, bytes) in sums.iter_mut().zip(processor.as_chunks::<8>().0) {
            *sum += u64::from_ne_bytes(*bytes);
        }
    }
    Ok(sums)
}
