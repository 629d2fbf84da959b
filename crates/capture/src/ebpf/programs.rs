//! Loading the programs, attaching them, and their maps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, Once, PoisonError};

use event::Pid;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel};

use super::Error;
use super::hooks::{Attached, Attachment, Hooks, Options};
use super::tables::{BANKS, CALLS, ROWS, Tables};

/// What the build script has compiled.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/capture.bpf.o"));

/// Programs that keep track of processes.
const PROCESS_PROGRAMS: [&str; 3] = [
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
];
/// Tells an execveat from an execve.
const EXECVEAT_PROGRAM: &str = "prepare_exec";
/// The same for kernels that lack its tracepoint (before 6.10), where functions can be hooked, and
/// elsewhere. Where there is no tracefs, or no such call, each exec that succeeds is told as an execve.
const EXECVEAT_FUNCTION_PROGRAM: &str = "function_execveat";
const EXECVEAT_TRACEPOINT_PROGRAMS: [&str; 2] = ["enter_execveat", "exit_execveat"];

/// Sizes of the rings, in bytes: powers of two, as the kernel demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// For execs, forks, ends and privileges.
    pub critical: u32,
    /// For everything else.
    pub bulk: u32,
}

impl Default for RingSizes {
    fn default() -> Self {
        Self {
            critical: 4 << 20,
            bulk: 8 << 20,
        }
    }
}

/// `struct control`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Control {
    pub(super) bank: u32,
    pub(super) agent: i32,
    pub(super) scoped: bool,
    pub(super) environment: u32,
    pub(super) wake_bytes: u32,
    /// Whether paths and names are looked at in the kernel.
    pub(super) filters: bool,
    /// Nobody is watched any more.
    pub(super) off: bool,
    pub(super) any_path: [u64; BANKS],
    pub(super) any_name: [u64; BANKS],
    pub(super) dotted: [u64; BANKS],
}

impl Control {
    fn encode(&self) -> Vec<u8> {
        let states = 1_u32;
        let words = [
            self.bank,
            self.agent.cast_unsigned(),
            u32::from(self.scoped),
            states,
            self.environment,
            self.wake_bytes,
            u32::from(self.filters),
            u32::from(self.off),
        ];
        let slots = self.any_path.into_iter().chain(self.any_name);
        let slots = slots.chain(self.dotted);
        let mut encoded: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        encoded.extend(slots.flat_map(u64::to_ne_bytes));
        encoded
    }
}

/// The counters of the programs (bpf/record.h), summed over processors.
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
        }
    }

    /// Records that found no room.
    pub(super) fn lost(&self) -> u64 {
        self.lost_critical + self.lost_bulk + self.lost_state + self.no_memory
    }
}

/// The loaded programs.
pub(super) struct Programs {
    attached: Attached,
    maps: Maps,
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
    counters: MapHandle,
    lost: MapHandle,
    pub(super) critical: MapHandle,
    pub(super) bulk: MapHandle,
    state: Mutex<State>,
}

/// What was written last.
struct State {
    control: Control,
    interest: [u8; CALLS],
}

impl Programs {
    /// Loads them; nothing is attached yet.
    pub(super) fn load(sizes: RingSizes, control: Control, hooks: Hooks) -> Result<Self, Error> {
        hear_libbpf();
        let options = Options::find(hooks);
        let ((object, loaded), options) = match open(sizes, &options) {
            Ok(opened) => (opened, options),
            Err(refused) if options.has_functions() => {
                // Functions are what a kernel may have and yet refuse.
                let options = options.without_functions(chain(&refused));
                (open(sizes, &options)?, options)
            }
            Err(refused) => return Err(refused),
        };
        let maps = Maps::of(&object, control)?;
        maps.write_control(control)?;
        Ok(Self {
            attached: Attached::new(object, loaded, options),
            maps,
        })
    }

    /// From now on forks, execs and ends are told of.
    pub(super) fn attach_processes(&mut self) -> Result<(), Error> {
        PROCESS_PROGRAMS
            .iter()
            .try_for_each(|name| self.attached.attach(name))?;
        let is_loaded = |name: &str| self.attached.is_loaded(name);
        if is_loaded(EXECVEAT_PROGRAM) {
            return self.attached.attach(EXECVEAT_PROGRAM);
        }
        if is_loaded(EXECVEAT_FUNCTION_PROGRAM) {
            return self.attached.attach(EXECVEAT_FUNCTION_PROGRAM);
        }
        for name in EXECVEAT_TRACEPOINT_PROGRAMS {
            // See there: what is lost is the name of a rare call.
            let _ = self.attached.attach(name);
        }
        Ok(())
    }

    /// From now on planned calls are.
    pub(super) fn attach_calls(&mut self, tables: &Tables) -> Result<Attachment, Error> {
        self.attached.attach_calls(tables)
    }

    /// The maps; the programs stay attached for as long as the other part is held.
    pub(super) fn into_parts(self) -> (Maps, Attached) {
        (self.maps, self.attached)
    }

    pub(super) fn maps(&self) -> &Maps {
        &self.maps
    }
}

/// The object, and the names of its programs.
fn open(sizes: RingSizes, options: &Options) -> Result<(Object, BTreeSet<String>), Error> {
    let mut open = ObjectBuilder::default()
        .open_memory(OBJECT)
        .map_err(Error::load)?;
    for mut map in open.maps_mut() {
        let size = match map.name().to_str() {
            Some("critical") => sizes.critical,
            Some("bulk") => sizes.bulk,
            _ => continue,
        };
        map.set_max_entries(size).map_err(Error::load)?;
    }
    let tells_execs = has_tracepoint(EXECVEAT_TRACEPOINT);
    for mut program in open.progs_mut() {
        let name = program.name().to_str();
        if name == Some(EXECVEAT_PROGRAM) && tells_execs {
            program.set_autoload(true);
        }
        let is_other = name.is_some_and(|name| EXECVEAT_TRACEPOINT_PROGRAMS.contains(&name));
        if is_other && !tells_execs && !options.has_functions() {
            program.set_autoload(true);
        }
    }
    options.prepare(&mut open)?;
    let loaded = open.progs().filter(|program| program.autoload());
    let loaded = loaded.map(|program| program.name().to_string_lossy().into_owned());
    let loaded = loaded.collect();
    Ok((open.load().map_err(Error::load)?, loaded))
}

/// Its type, as BTF has it, and the event in tracefs is not asked because it may not be mounted.
const EXECVEAT_TRACEPOINT: &str = "btf_trace_sched_prepare_exec";

fn has_tracepoint(name: &str) -> bool {
    let btf = libbpf_rs::btf::Btf::from_vmlinux();
    btf.is_ok_and(|btf| {
        btf.type_by_name::<libbpf_rs::btf::types::Typedef<'_>>(name)
            .is_some()
    })
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

impl Maps {
    fn of(object: &Object, control: Control) -> Result<Self, Error> {
        let handle = |name: &'static str| {
            let map = object.maps().find(|map| map.name() == name);
            let map = map.ok_or(Error::Missing { name })?;
            MapHandle::try_from(&map).map_err(Error::map)
        };
        Ok(Self {
            control: handle(".data.control")?,
            calls: handle(".data.calls")?,
            interest: handle(".data.interest")?,
            rows: handle("rows")?,
            scope: handle("scope")?,
            automata: handle("automata")?,
            names: handle("names")?,
            counters: handle("counters")?,
            lost: handle("lost")?,
            critical: handle("critical")?,
            bulk: handle("bulk")?,
            state: Mutex::new(State {
                control,
                interest: [0; CALLS],
            }),
        })
    }

    fn write_control(&self, control: Control) -> Result<(), Error> {
        let value = control.encode();
        let key = 0_u32.to_ne_bytes();
        self.control
            .update(&key, &value, MapFlags::ANY)
            .map_err(Error::map)
    }

    /// Puts tables into force: written beside those in use, then switched to.
    pub(super) fn install(&self, tables: &Tables) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let bank = (state.control.bank + 1) % u32::try_from(BANKS).expect("two");
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
        // Before the switch calls of either are let through, and afterwards those of the new one.
        let interest = tables.interest();
        self.write_interest(&std::array::from_fn(|number| {
            interest[number] | state.interest[number]
        }))?;
        if let Some(automaton) = tables.automaton() {
            let written = self
                .automata
                .update(&bank.to_ne_bytes(), &automaton, MapFlags::ANY);
            written.map_err(Error::map)?;
        }
        state.control.any_path[index] = tables.any_path();
        state.control.any_name[index] = tables.any_name();
        state.control.dotted[index] = tables.dotted();
        if self.write_names(bank, tables).is_err() {
            // More than there is room for: then none is looked at.
            state.control.any_name[index] = u64::MAX;
        }
        state.control.bank = bank;
        self.write_control(state.control)?;
        state.interest = interest;
        self.write_interest(&interest)
    }

    fn write_interest(&self, interest: &[u8; CALLS]) -> Result<(), Error> {
        let key = 0_u32.to_ne_bytes();
        let written = self.interest.update(&key, interest, MapFlags::ANY);
        written.map_err(Error::map)
    }

    /// Names of processes of one bank, in the place of those that were there.
    fn write_names(&self, bank: u32, tables: &Tables) -> Result<(), libbpf_rs::Error> {
        let of_bank = |key: &Vec<u8>| key.get(16..20) == Some(&bank.to_ne_bytes()[..]);
        for key in self.names.keys().filter(of_bank).collect::<Vec<_>>() {
            self.names.delete(&key)?;
        }
        for (name, slots) in tables.process_names() {
            let mut key = name.to_vec();
            key.resize(16, 0);
            key.extend(bank.to_ne_bytes());
            key.extend(0_u32.to_ne_bytes());
            self.names
                .update(&key, &slots.to_ne_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    /// The row of the plan that a record's number means, whatever the bank.
    pub(super) fn row_index(row: u32) -> usize {
        usize::try_from(row).unwrap_or(0) % ROWS
    }

    /// Nothing is sent any more.
    pub(super) fn switch_off(&self) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.control.off = true;
        self.write_control(state.control)
    }

    /// Adds a process to the watched ones.
    pub(super) fn watch(&self, pid: Pid) -> Result<(), Error> {
        self.scope
            .update(&pid.0.to_ne_bytes(), &[1], MapFlags::ANY)
            .map_err(Error::map)
    }

    /// Whether any watched process is left.
    pub(super) fn watches_any(&self) -> bool {
        self.scope.keys().next().is_some()
    }

    /// The counters now.
    pub(super) fn counts(&self) -> Result<KernelCounts, Error> {
        let sums = sums(&self.counters, 0, 16)?;
        Ok(KernelCounts::from_sums(&sums))
    }

    /// Lost records by row, rows without any left out.
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
}

/// Counters of one entry, summed over processors.
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

/// What libbpf said last: its errors are numbers alone.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn hear_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
            let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
            if said.len() >= 64 {
                said.remove(0);
            }
            said.push(text.trim_end().to_owned());
        })));
    });
}

/// The last lines that libbpf said, and forgets them.
pub(super) fn said() -> String {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = std::mem::take(&mut *said);
    lines.join("; ")
}
