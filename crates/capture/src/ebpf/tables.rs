//! From the interest plan to the tables that the programs in `bpf/` go by (bpf/record.h).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use abi::{Arch, RegisterTest, Syscall, TestOp, TestWidth};
use event::{DescriptorSource, EventKind, Interest, ParamSource, PathPattern, Plan, Reason};

use super::Error;
use super::automaton::{self, Automaton};
use crate::filter::adapt;

/// Rows of one bank; row 0 is no row.
pub(super) const ROWS: usize = 1024;
pub(super) const BANKS: usize = 2;
pub(super) const CALLS: usize = 1024;
/// Conventions in the order of the tables.
const ABIS: [Arch; 3] = [Arch::X86_64, Arch::I386, Arch::X32];
const TESTS: usize = 40;
const FETCHES: usize = 6;
const SOCKETCALLS: u32 = 32;
/// `struct row`.
pub(super) const ROW_SIZE: usize = 32 + 4 * 32 + 8 * FETCHES + 32 * TESTS;

const ROW_CRITICAL: u32 = 1;
const ROW_EXEC: u32 = 2;
const ROW_SOCKETCALL: u32 = 4;
const ROW_OPENS: u32 = 8;
/// Slots of the plan; the first asks for no path and no name.
const SLOTS: usize = automaton::PATTERN_BITS;

/// What of the caller's memory goes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fetch {
    Text(u8),
    Path { path: u8, base: Option<u8> },
    Texts(u8),
    Bytes { arg: u8, offset: u8, size: u8 },
    Buffer { arg: u8, len: u8, limit: u8 },
    Message(u8),
    Descriptor(u8),
    Result,
}

const NO_ARGUMENT: u8 = 255;
/// Bytes of a data buffer that rules can see; as under the other engines.
const BUFFER_LIMIT: u8 = 80;
/// Longest socket address: `struct sockaddr_storage`.
const ADDRESS_LIMIT: u8 = 128;

impl Fetch {
    fn encode(self, to: &mut Vec<u8>) {
        let (kind, arg, other, size, offset): (u8, u8, u8, u8, u32) = match self {
            Self::Text(arg) => (1, arg, NO_ARGUMENT, 0, 0),
            Self::Path { path, base } => (2, path, base.unwrap_or(NO_ARGUMENT), 0, 0),
            Self::Texts(arg) => (3, arg, NO_ARGUMENT, 0, 0),
            Self::Bytes { arg, offset, size } => (4, arg, NO_ARGUMENT, size, offset.into()),
            Self::Buffer { arg, len, limit } => (5, arg, len, limit, 0),
            Self::Message(arg) => (6, arg, NO_ARGUMENT, 0, 0),
            Self::Descriptor(arg) => (7, arg, NO_ARGUMENT, 0, 0),
            Self::Result => (8, NO_ARGUMENT, NO_ARGUMENT, 0, 0),
        };
        to.extend([kind, arg, other, size]);
        to.extend(offset.to_ne_bytes());
    }
}

/// One row: what the kernel does about a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Row {
    flags: u32,
    /// Alternatives of tests, with the slots that each speaks for.
    any_of: Vec<(Vec<RegisterTest>, u64)>,
    failed: u64,
    succeeded: u64,
    path_arg: u8,
    fetches: Vec<Fetch>,
    socketcalls: BTreeMap<u32, u16>,
}

impl Row {
    fn encode(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(ROW_SIZE);
        let count: usize = self
            .any_of
            .iter()
            .map(|(group, _)| group.len().max(1))
            .sum();
        // Too many to be tested: then all are let through.
        let tests = if count > TESTS { 0 } else { count };
        to.extend(self.flags.to_ne_bytes());
        to.extend(short(tests).to_ne_bytes());
        to.extend(short(self.fetches.len()).to_ne_bytes());
        to.extend(self.failed.to_ne_bytes());
        to.extend(self.succeeded.to_ne_bytes());
        to.extend(u32::from(self.path_arg).to_ne_bytes());
        to.extend(0_u32.to_ne_bytes());
        for operation in 0..SOCKETCALLS {
            let row = self.socketcalls.get(&operation).copied().unwrap_or(0);
            to.extend(u32::from(row).to_ne_bytes());
        }
        let fetched = to.len();
        self.fetches.iter().for_each(|fetch| fetch.encode(&mut to));
        to.resize(fetched + 8 * FETCHES, 0);
        if tests > 0 {
            for (group, slots) in &self.any_of {
                // Always: no bit of nothing is set.
                let always = [RegisterTest::full(0, TestOp::NoBit, 0)];
                let group = if group.is_empty() { &always[..] } else { group };
                for (index, test) in group.iter().enumerate() {
                    let ends = (index + 1 == group.len()).then_some(*slots);
                    encode_test(*test, ends, &mut to);
                }
            }
        }
        to.resize(ROW_SIZE, 0);
        to
    }
}

/// What some rules ask of paths and of names of processes.
type Asked = (
    Option<BTreeSet<PathPattern>>,
    Option<BTreeSet<Vec<u8>>>,
    bool,
);

/// What rules ask, by slot.
#[derive(Debug)]
struct Slots {
    asked: Vec<Asked>,
}

impl Slots {
    fn new() -> Self {
        Self {
            asked: vec![(None, None, false)],
        }
    }

    /// The slot of an interest, as a bit.
    fn of(&mut self, interest: &Interest) -> u64 {
        let asked = (
            interest.paths.clone(),
            interest.names.clone(),
            interest.dotted,
        );
        let known = self.asked.iter().position(|other| *other == asked);
        let index = known.unwrap_or_else(|| {
            if self.asked.len() == SLOTS {
                // No room: let through.
                return 0;
            }
            self.asked.push(asked);
            self.asked.len() - 1
        });
        1 << index
    }

    fn bits(&self, which: impl Fn(usize) -> bool) -> u64 {
        let slots = (0..self.asked.len()).filter(|slot| which(*slot));
        slots.fold(0, |bits, slot| bits | 1 << slot)
    }
}

/// `slots`: of the group that the test ends.
fn encode_test(test: RegisterTest, slots: Option<u64>, to: &mut Vec<u8>) {
    let (op, mask): (u8, u64) = match test.op {
        TestOp::AllBits => (0, 0),
        TestOp::AnyBit => (1, 0),
        TestOp::Eq => (2, 0),
        TestOp::Ge => (3, 0),
        TestOp::Le => (4, 0),
        TestOp::MaskedEq { mask } => (5, mask),
        TestOp::Ne => (6, 0),
        TestOp::NoBit => (7, 0),
    };
    let low = u8::from(test.width == TestWidth::Low32);
    to.extend([test.arg, op, low, u8::from(slots.is_some()), 0, 0, 0, 0]);
    to.extend(test.value.to_ne_bytes());
    to.extend(mask.to_ne_bytes());
    to.extend(slots.unwrap_or(0).to_ne_bytes());
}

fn short(number: usize) -> u16 {
    u16::try_from(number).expect("bounded by the table")
}

/// Everything the programs are told by.
#[derive(Debug)]
pub(super) struct Tables {
    /// By convention and number: the row.
    numbers: Vec<u16>,
    rows: Vec<Row>,
    /// By row: the names of its calls.
    names: Vec<Vec<&'static str>>,
    slots: Slots,
    automaton: Option<Automaton>,
}

impl Tables {
    /// Compiles the plan.
    pub(super) fn new(plan: &Plan) -> Result<Self, Error> {
        let mut builder = Builder {
            plan,
            rows: vec![Row::default()],
            names: vec![Vec::new()],
            by_row: HashMap::new(),
            slots: Slots::new(),
        };
        let mut numbers = vec![0; ABIS.len() * CALLS];
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
        let mut patterns: BTreeMap<PathPattern, u64> = BTreeMap::new();
        for (slot, (paths, _, dotted)) in builder.slots.asked.iter().enumerate() {
            for pattern in paths.iter().flatten() {
                *patterns.entry(pattern.clone()).or_default() |= 1 << slot;
            }
            if paths.is_none() && *dotted {
                // Every path, so that what was passed decides.
                *patterns.entry(PathPattern::Prefix(Vec::new())).or_default() |= 1 << slot;
            }
        }
        Ok(Self {
            numbers,
            rows: builder.rows,
            names: builder.names,
            automaton: Automaton::new(&patterns),
            slots: builder.slots,
        })
    }

    /// The rows, encoded, with their numbers.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, Vec<u8>)> + '_ {
        self.rows
            .iter()
            .enumerate()
            .skip(1)
            .map(|(index, row)| (index, row.encode()))
    }

    /// Writes the numbers of one bank into `struct calls`.
    pub(super) fn write_numbers(&self, bank: usize, calls: &mut [u8]) {
        let start = bank * ABIS.len() * CALLS;
        for (index, row) in self.numbers.iter().enumerate() {
            let at = 2 * (start + index);
            calls[at..at + 2].copy_from_slice(&row.to_ne_bytes());
        }
    }

    /// The calls that have a row.
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

    /// By number: not 0 if some convention has a row for it.
    pub(super) fn interest(&self) -> [u8; CALLS] {
        std::array::from_fn(|number| {
            let rows = (0..ABIS.len()).map(|abi| self.numbers[abi * CALLS + number]);
            u8::from(rows.into_iter().any(|row| row != 0))
        })
    }

    /// The automaton for paths, encoded; `None` if the patterns are too many for it.
    pub(super) fn automaton(&self) -> Option<Vec<u8>> {
        self.automaton.as_ref().map(Automaton::encode)
    }

    /// Slots that ask for no path.
    pub(super) fn any_path(&self) -> u64 {
        match self.automaton {
            Some(_) => self.slots.bits(|slot| {
                let (paths, _, dotted) = &self.slots.asked[slot];
                paths.is_none() && !dotted
            }),
            None => u64::MAX,
        }
    }

    /// Slots that ask for `..` in the path that was passed.
    pub(super) fn dotted(&self) -> u64 {
        self.slots.bits(|slot| self.slots.asked[slot].2)
    }

    /// Slots that ask for no name of a process.
    pub(super) fn any_name(&self) -> u64 {
        self.slots.bits(|slot| self.slots.asked[slot].1.is_none())
    }

    /// Names of processes, with the slots that ask for each.
    pub(super) fn process_names(&self) -> BTreeMap<&[u8], u64> {
        let mut names: BTreeMap<&[u8], u64> = BTreeMap::new();
        for (slot, (_, asked, _)) in self.slots.asked.iter().enumerate() {
            for name in asked.iter().flatten() {
                *names.entry(name).or_default() |= 1 << slot;
            }
        }
        names
    }

    /// The calls of a row.
    pub(super) fn names(&self, row: usize) -> &[&'static str] {
        self.names.get(row).map_or(&[], Vec::as_slice)
    }
}

/// The conventions of this machine, with their places in the table.
fn architectures() -> impl Iterator<Item = (usize, Arch)> {
    let native = Arch::native().unwrap_or(ABIS[0]);
    let others = ABIS
        .into_iter()
        .enumerate()
        .skip(1)
        .filter(move |_| native == ABIS[0]);
    std::iter::once((0, native)).chain(others)
}

struct Builder<'p> {
    plan: &'p Plan,
    rows: Vec<Row>,
    names: Vec<Vec<&'static str>>,
    by_row: HashMap<Row, u16>,
    slots: Slots,
}

impl Builder<'_> {
    /// The row of a call; 0 if it is of no interest.
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
        // A plan that says nothing of a call but its registers.
        let unsaid = [Interest {
            any_of: planned.any_of.clone(),
            failed: true,
            succeeded: true,
            paths: None,
            dotted: false,
            names: None,
        }];
        let interests = self.plan.interests.get(&call);
        let interests = interests.map_or(&unsaid[..], Vec::as_slice);
        let (mut any_of, mut failed, mut succeeded) = (Vec::new(), 0, 0);
        for interest in interests {
            let slot = if opened.is_some() {
                self.slots.of(interest)
            } else {
                self.slots.of(&Interest {
                    paths: None,
                    dotted: false,
                    ..interest.clone()
                })
            };
            failed |= if interest.failed { slot } else { 0 };
            succeeded |= if interest.succeeded { slot } else { 0 };
            for group in &interest.any_of {
                add_group(&mut any_of, adapt(group, arch, call), slot);
            }
        }
        if any_of.is_empty() {
            return None;
        }
        let mut flags = if opened.is_some() { ROW_OPENS } else { 0 };
        if kind.changes().image {
            flags |= ROW_EXEC;
        }
        let is_rare = |reason: &Reason| !matches!(reason, Reason::Rule(_));
        if planned.reasons.iter().any(is_rare) || abi::FLOOR.iter().any(|trap| trap.call == call) {
            flags |= ROW_CRITICAL;
        }
        Some(Row {
            flags,
            any_of,
            failed,
            succeeded,
            path_arg: opened.unwrap_or(0),
            fetches: fetches(kind),
            socketcalls: BTreeMap::new(),
        })
    }

    /// The 32-bit call that stands for others: it is told by the rows of those.
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

/// Adds an alternative; the same tests for another slot are no other alternative.
fn add_group(any_of: &mut Vec<(Vec<RegisterTest>, u64)>, group: Vec<RegisterTest>, slot: u64) {
    match any_of.iter_mut().find(|(other, _)| *other == group) {
        Some((_, slots)) => *slots |= slot,
        None => any_of.push((group, slot)),
    }
}

/// The argument with the path, of a call that opens a file.
fn opened_path(kind: EventKind) -> Option<u8> {
    let DescriptorSource::Opened { name, .. } = kind.spec().descriptor else {
        return None;
    };
    match kind.spec().params.get(usize::from(name))?.source {
        ParamSource::Path { path, .. } => Some(path),
        _ => None,
    }
}

/// What the event table asks for beyond registers.
fn fetches(kind: EventKind) -> Vec<Fetch> {
    let spec = kind.spec();
    let mut fetches: Vec<Fetch> = Vec::new();
    let mut add = |fetch| {
        if !fetches.contains(&fetch) {
            fetches.push(fetch);
        }
    };
    match spec.descriptor {
        DescriptorSource::Argument(fd) | DescriptorSource::Duplicated(fd) => {
            add(Fetch::Descriptor(fd));
        }
        DescriptorSource::Opened { .. } | DescriptorSource::Accepted(_) => add(Fetch::Result),
        DescriptorSource::Addressed {
            fd, address, len, ..
        } => {
            add(Fetch::Descriptor(fd));
            add(Fetch::Buffer {
                arg: address,
                len,
                limit: ADDRESS_LIMIT,
            });
        }
        DescriptorSource::Message { fd, message } => {
            add(Fetch::Descriptor(fd));
            add(Fetch::Message(message));
        }
        DescriptorSource::None | DescriptorSource::CreatedSocket | DescriptorSource::Created(_) => {
        }
    }
    for param in spec.params {
        match param.source {
            ParamSource::Path { path, base } => add(Fetch::Path { path, base }),
            ParamSource::Text(arg) => add(Fetch::Text(arg)),
            ParamSource::Texts(arg) => add(Fetch::Texts(arg)),
            ParamSource::Field { arg, offset, size } => add(Fetch::Bytes { arg, offset, size }),
            ParamSource::Buffer { arg, len } => add(Fetch::Buffer {
                arg,
                len,
                limit: BUFFER_LIMIT,
            }),
            _ => {}
        }
    }
    fetches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_asks_for_more_than_a_row_holds() {
        for call in Syscall::all() {
            let fetches = fetches(EventKind::of_syscall(call));
            assert!(fetches.len() <= FETCHES, "{call}: {fetches:?}");
        }
    }
}
