//! Compiles the interest plan to the tables of the programs in `bpf/` (bpf/record.h).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use abi::{Arch, RegisterTest, Syscall};
use event::{DescriptorSource, EventKind, Interest, ParamSource, Plan, Reason};

use super::ROOT_CALLS;
use super::asked::{Asked, VisibleFields};
use super::automaton::Automaton;
use super::error::Error;
use super::rows::{
    Connection, ROW_AT_ONCE, ROW_CRITICAL, ROW_EXEC, ROW_OPENS, ROW_PATHS, ROW_SOCKET,
    ROW_SOCKETCALL, ROW_STREAMS, ROW_WORDS_SHIFT, Row, SOCKETCALLS, fetches, has_strings, short,
};
use super::slots::{MissingTables, Place, Slots};
use seccomp::adapt;

/// Number of rows of one bank; row 0 means no row.
pub(super) const ROWS: usize = 1024;
pub(super) const BANKS: usize = 2;
pub(super) const CALLS: usize = 1024;
/// Number of conventions that the tables have room for: `ABIS` of bpf/record.h.
const ABIS: usize = 3;

/// Demands of rules on the calls of one number, in any convention: `struct interest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NumberInterest {
    /// A bit for each convention that has a row for it.
    conventions: u8,
    /// Results of successful calls, as bits; all bits mean any result.
    results: u64,
}

impl NumberInterest {
    /// Returns the union of both.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            conventions: self.conventions | other.conventions,
            results: self.results | other.results,
        }
    }

    pub(super) fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.results.to_ne_bytes());
        bytes[8] = self.conventions;
        bytes
    }
}

/// All tables for the programs.
#[derive(Debug)]
pub(super) struct Tables {
    /// Rows by convention and number.
    numbers: Vec<u16>,
    rows: Vec<Row>,
    /// Names of the calls, by row.
    names: Vec<Vec<&'static str>>,
    slots: Slots,
    automaton: Option<Automaton>,
    /// True if records of execs contain the environment.
    pub(super) environment: bool,
    /// True if records of execs and ends contain the standard streams.
    pub(super) streams: bool,
    /// True if rules ask for the ends of processes.
    pub(super) ends: bool,
    /// Command names that rules compare with.
    pub(super) compared_names: BTreeSet<Vec<u8>>,
}

impl Tables {
    /// Compiles the plan. `ends`: rules ask for the ends of processes, which are no calls.
    pub(super) fn new(plan: &Plan, ends: bool) -> Result<Self, Error> {
        let mut builder = Builder {
            plan,
            rows: vec![Row::default()],
            names: vec![Vec::new()],
            by_row: HashMap::new(),
            slots: Slots::new(demands(plan)),
        };
        let mut numbers = vec![0; ABIS * CALLS];
        for (index, arch) in architectures() {
            for number in 0..CALLS {
                let raw = arch.raw_number(u32::try_from(number).expect("fewer than 1024"));
                let decoded = abi::arch::decode(arch.audit(), raw);
                if let Some((arch, Some(call))) = decoded {
                    numbers[index * CALLS + number] = builder.row_of(arch, call);
                }
            }
        }
        if builder.rows.len() > ROWS {
            return Err(Error::TooManyCalls {
                rows: builder.rows.len(),
                limit: ROWS,
            });
        }
        Ok(Self {
            numbers,
            rows: builder.rows,
            names: builder.names,
            automaton: builder.slots.automaton(),
            slots: builder.slots,
            environment: plan.environment,
            streams: state_kinds().any(|kind| plan.descriptors.contains(&kind)),
            ends,
            compared_names: plan.names.clone(),
        })
    }

    /// Returns the encoded rows, with their numbers.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, Vec<u8>)> + '_ {
        self.rows
            .iter()
            .enumerate()
            .skip(1)
            .map(|(index, row)| (index, row.encode()))
    }

    /// Writes the numbers of one bank into `struct calls`.
    pub(super) fn write_numbers(&self, bank: usize, calls: &mut [u8]) {
        let start = bank * ABIS * CALLS;
        for (index, row) in self.numbers.iter().enumerate() {
            let at = 2 * (start + index);
            calls[at..at + 2].copy_from_slice(&row.to_ne_bytes());
        }
    }

    /// Returns the calls that have a row.
    pub(super) fn calls(&self) -> Vec<(Arch, &'static str)> {
        let mut calls = Vec::new();
        for (index, arch) in architectures() {
            for number in 0..CALLS {
                if self.numbers[index * CALLS + number] == 0 {
                    continue;
                }
                let raw = arch.raw_number(u32::try_from(number).expect("fewer than 1024"));
                let decoded = abi::arch::decode(arch.audit(), raw);
                if let Some((arch, Some(call))) = decoded {
                    calls.push((arch, call.name()));
                }
            }
        }
        calls
    }

    /// Returns the demands by number of the call.
    pub(super) fn interest(&self) -> [NumberInterest; CALLS] {
        std::array::from_fn(|number| {
            let rows = (0..ABIS).map(|abi| (abi, self.numbers[abi * CALLS + number]));
            let asking = rows.filter(|(_, row)| *row != 0);
            asking.fold(NumberInterest::default(), |all, (abi, row)| {
                all.or(NumberInterest {
                    conventions: 1 << abi,
                    results: self.rows[usize::from(row)].wanted_results(),
                })
            })
        })
    }

    /// Returns the encoded automaton for paths; `None` if the patterns are too many for it.
    pub(super) fn automaton(&self) -> Option<Vec<u8>> {
        self.automaton.as_ref().map(Automaton::encode)
    }

    /// Encodes the demands of the slots, except those whose table is missing.
    pub(super) fn asked(&self, without: MissingTables) -> Vec<u8> {
        self.slots.encode(MissingTables {
            paths: self.automaton.is_none(),
            ..without
        })
    }

    /// Encodes the demands before rules are loaded.
    pub(super) fn nothing_asked() -> Vec<u8> {
        Slots::new([]).encode(MissingTables::default())
    }

    /// Returns the names of processes, with the slots that ask for each.
    pub(super) fn process_names(&self) -> BTreeMap<&[u8], u64> {
        self.slots.names()
    }

    /// Returns the ports, with the slots that ask for each.
    pub(super) fn ports(&self) -> BTreeMap<u16, u64> {
        self.slots.ports()
    }

    /// Returns the networks, with the slots that ask for each.
    pub(super) fn networks(&self) -> BTreeMap<(IpAddr, u8), u64> {
        self.slots.networks()
    }

    /// Returns the slots that accept a path.
    pub(super) fn slots_of_path(&self, path: &[u8]) -> u64 {
        self.slots.of_path(path)
    }

    /// Returns the slots that may accept a path below a directory, judging by the directory's path.
    pub(super) fn slots_below(&self, directory: &[u8]) -> u64 {
        self.slots.below(directory)
    }

    /// Returns the names of the calls of a row.
    pub(super) fn names(&self, row: usize) -> &[&'static str] {
        self.names.get(row).map_or(&[], Vec::as_slice)
    }
}

/// Returns the conventions of this host, with their positions in the table: `ABI_*` of bpf/record.h.
fn architectures() -> impl Iterator<Item = (usize, Arch)> {
    let all = Arch::native().map_or(&[][..], Arch::of_kernel);
    all.iter().copied().enumerate()
}

struct Builder<'p> {
    plan: &'p Plan,
    rows: Vec<Row>,
    names: Vec<Vec<&'static str>>,
    by_row: HashMap<Row, u16>,
    slots: Slots,
}

impl Builder<'_> {
    /// Returns the row of a call; 0 if it is of no interest.
    fn row_of(&mut self, arch: Arch, call: Syscall) -> u16 {
        let Some(row) = self.row(arch, call) else {
            return 0;
        };
        let next = short(self.rows.len().min(usize::from(u16::MAX)));
        let index = *self.by_row.entry(row.clone()).or_insert(next);
        if index == next {
            self.rows.push(row);
            self.names.push(Vec::new());
        }
        let names = &mut self.names[usize::from(index)];
        if !names.contains(&call.name()) {
            names.push(call.name());
        }
        index
    }

    fn row(&mut self, arch: Arch, call: Syscall) -> Option<Row> {
        if call == Syscall::SOCKETCALL {
            return self.socketcall(arch);
        }
        let planned = self.plan.calls.get(&call)?;
        let kind = EventKind::of_syscall(call);
        let opened = opened_path(kind);
        let socket = Connection::of(kind);
        let visible = visible_fields(kind);
        // A plan that restricts only the call's registers.
        let unsaid = [Interest::in_any(planned.any_of.clone())];
        let interests = self.plan.interests.get(&call);
        let mut demands = Row::default();
        for interest in interests.map_or(&unsaid[..], Vec::as_slice) {
            let slot = self.slots.of(interest, visible);
            demands.add_results(interest, slot);
            for group in &interest.any_of {
                add_group(&mut demands.any_of, adapt(group, arch, call), slot);
            }
        }
        if demands.any_of.is_empty() {
            return None;
        }
        let is_state = |reason: &Reason| !matches!(reason, Reason::Rule(_));
        // Port scanners connect as often as other programs open files.
        let is_rare = abi::FLOOR.iter().any(|trap| trap.call == call) && socket.is_none();
        let is_critical = planned.reasons.iter().any(is_state) || is_rare;
        let flags = [
            (ROW_OPENS, visible.opens),
            (ROW_PATHS, visible.paths),
            (ROW_SOCKET, visible.connection),
            (ROW_EXEC, kind.changes().image),
            (ROW_STREAMS, self.plan.descriptors.contains(&kind)),
            (ROW_CRITICAL, is_critical),
            (ROW_AT_ONCE, ROOT_CALLS.contains(&call)),
        ];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set);
        let words = u32::from(short(call.args().len()));
        Some(Row {
            flags: flags.fold(words << ROW_WORDS_SHIFT, |all, (flag, _)| all | flag),
            path_arg: opened.unwrap_or(0),
            socket,
            fetches: fetches(kind),
            ..demands
        })
    }

    /// Returns the row of the 32-bit call that stands for others: the rows of those apply.
    fn socketcall(&mut self, arch: Arch) -> Option<Row> {
        let mut socketcalls = BTreeMap::new();
        for operation in 1..SOCKETCALLS {
            if let Some(call) = Syscall::from_socketcall(operation) {
                let row = self.row_of(arch, call);
                if row != 0 {
                    socketcalls.insert(operation, row);
                }
            }
        }
        (!socketcalls.is_empty()).then(|| Row {
            flags: ROW_SOCKETCALL,
            socketcalls,
            ..Row::default()
        })
    }
}

/// Adds an alternative; the same tests for another slot share one.
fn add_group(any_of: &mut Vec<(Vec<RegisterTest>, u64)>, group: Vec<RegisterTest>, slot: u64) {
    match any_of.iter_mut().find(|(other, _)| *other == group) {
        Some((_, slots)) => *slots |= slot,
        None => any_of.push((group, slot)),
    }
}

/// Returns all that rules ask for beyond registers, and beside which registers of which calls.
fn demands(plan: &Plan) -> Vec<(Asked, Place)> {
    let mut tests: Vec<&[Vec<RegisterTest>]> = Vec::new();
    let mut demands = Vec::new();
    for (call, interests) in &plan.interests {
        let visible = visible_fields(EventKind::of_syscall(*call));
        for interest in interests {
            let known = tests.iter().position(|one| *one == interest.any_of);
            let number = known.unwrap_or_else(|| {
                tests.push(&interest.any_of);
                tests.len() - 1
            });
            demands.push((Asked::new(interest, visible), (*call, number)));
        }
    }
    demands
}

/// Returns what can be checked of a kind of calls.
fn visible_fields(kind: EventKind) -> VisibleFields {
    let opens = opened_path(kind).is_some();
    VisibleFields {
        opens,
        paths: !opens && has_strings(&fetches(kind)),
        connection: Connection::of(kind).is_some(),
    }
}

/// Returns the argument with the path, for a call that opens a file.
fn opened_path(kind: EventKind) -> Option<u8> {
    let DescriptorSource::Opened { name, .. } = kind.spec().descriptor else {
        return None;
    };
    match kind.spec().params.get(usize::from(name))?.source {
        ParamSource::Path { path, .. } => Some(path),
        _ => None,
    }
}

/// Returns the event kind of the end of a process.
pub(super) fn end() -> Option<EventKind> {
    // The table of events has it.
    EventKind::from_name("procexit").ok()
}

/// Returns the event kinds of records about processes.
fn state_kinds() -> impl Iterator<Item = EventKind> {
    let calls = [Syscall::EXECVE, Syscall::EXECVEAT];
    calls.into_iter().map(EventKind::of_syscall).chain(end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use event::{CallPlan, Need};

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_number_is_asked_for_under_each_convention_by_itself() {
        const MKDIR: usize = 83;
        const GETPID_AND_MKDIR_OF_I386: usize = 39;
        let planned = CallPlan {
            any_of: vec![Vec::new()],
            strings: false,
            result: Need::Never,
            reasons: Vec::new(),
        };
        let plan = Plan {
            calls: [(Syscall::MKDIR, planned)].into(),
            ..Plan::default()
        };
        let interest = Tables::new(&plan, false).expect("one call").interest();
        assert_eq!(interest[MKDIR].conventions, 0b101, "native and x32");
        assert_eq!(interest[GETPID_AND_MKDIR_OF_I386].conventions, 0b010);
        assert_eq!(interest[MKDIR].results, u64::MAX, "any");
        let is_asked = |one: &&NumberInterest| **one != NumberInterest::default();
        assert_eq!(interest.iter().filter(is_asked).count(), 2);
    }

    #[test]
    fn of_calls_with_few_results_only_these_are_asked_for() {
        let row = Row {
            limited: 1,
            results: 0b111,
            failed: 1,
            ..Row::default()
        };
        assert_eq!(row.wanted_results(), 0b111);
        let any = Row {
            succeeded: 2,
            ..row.clone()
        };
        assert_eq!(any.wanted_results(), u64::MAX);
        let several = Row {
            flags: ROW_SOCKETCALL,
            ..Row::default()
        };
        assert_eq!(several.wanted_results(), u64::MAX);
    }
}
