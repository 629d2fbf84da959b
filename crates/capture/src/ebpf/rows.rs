//! Rows of the plan: the kernel's actions on a call (`struct row` of bpf/record.h).

use std::collections::BTreeMap;

use abi::{RegisterTest, TestOp, TestWidth};
use event::{DescriptorSource, EventKind, Interest, ParamSource};

const TESTS: usize = 40;
const FETCHES: usize = 6;
pub(super) const SOCKETCALLS: u32 = 32;
/// `struct row`.
pub(super) const ROW_SIZE: usize = 72 + 4 * 32 + 8 * FETCHES + 32 * TESTS;

pub(super) const ROW_CRITICAL: u32 = 1;
pub(super) const ROW_EXEC: u32 = 2;
pub(super) const ROW_SOCKETCALL: u32 = 4;
pub(super) const ROW_OPENS: u32 = 8;
pub(super) const ROW_PATHS: u32 = 16;
pub(super) const ROW_SOCKET: u32 = 32;
pub(super) const ROW_STREAMS: u32 = 64;
pub(super) const ROW_AT_ONCE: u32 = 128;
/// Position of the number of words that a `socketcall` takes from memory.
pub(super) const ROW_WORDS_SHIFT: u32 = 24;

/// Data to copy from the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MemoryRead {
    Text(u8),
    Path { path: u8, base: Option<u8> },
    Texts(u8),
    Bytes { arg: u8, offset: u8, size: u8 },
    Buffer { arg: u8, len: u8, limit: u8 },
    Message { message: u8, count: Option<u8> },
    Descriptor(u8),
    Result,
}

const NO_ARGUMENT: u8 = 255;
/// Maximum number of bytes of a data buffer that rules can see; as in the other engines.
const BUFFER_LIMIT: u8 = 80;
/// Longest socket address: `struct sockaddr_storage`.
const ADDRESS_LIMIT: u8 = 128;

impl MemoryRead {
    fn encode(self, to: &mut Vec<u8>) {
        let (kind, arg, other, size, offset): (u8, u8, u8, u8, u32) = match self {
            Self::Text(arg) => (1, arg, NO_ARGUMENT, 0, 0),
            Self::Path { path, base } => (2, path, base.unwrap_or(NO_ARGUMENT), 0, 0),
            Self::Texts(arg) => (3, arg, NO_ARGUMENT, 0, 0),
            Self::Bytes { arg, offset, size } => (4, arg, NO_ARGUMENT, size, offset.into()),
            Self::Buffer { arg, len, limit } => (5, arg, len, limit, 0),
            Self::Message { message, count } => (6, message, count.unwrap_or(NO_ARGUMENT), 0, 0),
            Self::Descriptor(arg) => (7, arg, NO_ARGUMENT, 0, 0),
            Self::Result => (8, NO_ARGUMENT, NO_ARGUMENT, 0, 0),
        };
        to.extend([kind, arg, other, size]);
        to.extend(offset.to_ne_bytes());
    }
}

/// Location of the connection that a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Connection {
    /// Argument with the descriptor; `None` if it is the result.
    descriptor: Option<u8>,
    address: Address,
}

/// Address that is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Address {
    None,
    /// Positions of the arguments with its pointer and its length.
    Given(u8, u8),
    /// Inside a `struct msghdr`, or several, whose number is another argument.
    Message(u8, Option<u8>),
}

/// Stands for the result in place of an argument's position.
const RESULT: u8 = 254;

impl Connection {
    /// Returns the location for a kind of calls; `None` if they are about no descriptor that may be a socket.
    pub(super) fn of(kind: EventKind) -> Option<Self> {
        let (descriptor, address) = match kind.spec().descriptor {
            DescriptorSource::Argument(fd) | DescriptorSource::Duplicated(fd) => {
                (Some(fd), Address::None)
            }
            DescriptorSource::Addressed {
                fd, address, len, ..
            } => (Some(fd), Address::Given(address, len)),
            DescriptorSource::Message { fd, message, count } => {
                (Some(fd), Address::Message(message, count))
            }
            DescriptorSource::Accepted(_) => (None, Address::None),
            DescriptorSource::None
            | DescriptorSource::Opened { .. }
            | DescriptorSource::CreatedSocket
            | DescriptorSource::Created(_) => return None,
        };
        Some(Self {
            descriptor,
            address,
        })
    }

    /// Encodes descriptor, address, length and message.
    fn encode(self) -> [u8; 4] {
        let (address, len, message) = match self.address {
            Address::None => (NO_ARGUMENT, NO_ARGUMENT, NO_ARGUMENT),
            Address::Given(address, len) => (address, len, NO_ARGUMENT),
            Address::Message(message, count) => {
                (NO_ARGUMENT, count.unwrap_or(NO_ARGUMENT), message)
            }
        };
        [self.descriptor.unwrap_or(RESULT), address, len, message]
    }
}

/// One row: the kernel's actions on a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) flags: u32,
    /// Alternatives of tests, with the slots that each stands for.
    pub(super) any_of: Vec<(Vec<RegisterTest>, u64)>,
    pub(super) failed: u64,
    pub(super) succeeded: u64,
    /// Slots that accept a successful call only with one of `results`, a set of bits.
    pub(super) limited: u64,
    pub(super) results: u64,
    /// Slots that accept a failed call only with one of `errors`, a set of bits.
    pub(super) refused: u64,
    pub(super) errors: u128,
    pub(super) path_arg: u8,
    /// Location of the connection, for a call about one.
    pub(super) socket: Option<Connection>,
    pub(super) fetches: Vec<MemoryRead>,
    pub(super) socketcalls: BTreeMap<u32, u16>,
}

impl Row {
    /// Adds the results for which the rules of a slot want the call.
    pub(super) fn add_results(&mut self, interest: &Interest, slot: u64) {
        match &interest.errors {
            Some(few) if interest.failed => {
                self.refused |= slot;
                let few = few.iter().map(|error| 1_u128 << (error & 127));
                self.errors |= few.fold(0, |bits, bit| bits | bit);
            }
            _ => self.failed |= if interest.failed { slot } else { 0 },
        }
        match &interest.results {
            Some(few) if interest.succeeded => {
                self.limited |= slot;
                let few = few.iter().map(|result| 1_u64 << (result & 63));
                self.results |= few.fold(0, |bits, bit| bits | bit);
            }
            _ => self.succeeded |= if interest.succeeded { slot } else { 0 },
        }
    }

    /// Returns the results of successful calls that some slot accepts, as bits; all bits mean any result.
    pub(super) fn wanted_results(&self) -> u64 {
        let is_several = self.flags & ROW_SOCKETCALL != 0;
        match self.limited {
            _ if is_several || self.succeeded != 0 => u64::MAX,
            0 => 0,
            _ => self.results,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
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
        to.extend(self.limited.to_ne_bytes());
        to.extend(self.results.to_ne_bytes());
        to.extend(self.refused.to_ne_bytes());
        for half in [self.errors & u128::from(u64::MAX), self.errors >> 64] {
            to.extend(u64::try_from(half).unwrap_or(u64::MAX).to_ne_bytes());
        }
        to.extend(u32::from(self.path_arg).to_ne_bytes());
        to.extend(self.socket.map_or([NO_ARGUMENT; 4], Connection::encode));
        for operation in 0..SOCKETCALLS {
            let row = self.socketcalls.get(&operation).copied().unwrap_or(0);
            to.extend(u32::from(row).to_ne_bytes());
        }
        let fetched = to.len();
        self.fetches.iter().for_each(|fetch| fetch.encode(&mut to));
        to.resize(fetched + 8 * FETCHES, 0);
        if tests > 0 {
            for (group, slots) in &self.any_of {
                // Always true: an empty mask has no bit set.
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

/// The comparisons that the programs know: `OP_*` in `bpf/record.h`.
const EQUALS: u8 = 0;
const AT_LEAST: u8 = 1;
const AT_MOST: u8 = 2;

/// Encodes a test. `slots`: those of the group that the test ends.
fn encode_test(test: RegisterTest, slots: Option<u64>, to: &mut Vec<u8>) {
    let width = match test.width {
        TestWidth::Full64 => u64::MAX,
        TestWidth::Low32 => u64::from(u32::MAX),
    };
    let wanted = test.value & width;
    let (op, is_negated, mask, value) = match test.op {
        TestOp::AllBits => (EQUALS, false, wanted, wanted),
        TestOp::AnyBit => (EQUALS, true, wanted, 0),
        TestOp::Eq => (EQUALS, false, width, wanted),
        TestOp::Ge => (AT_LEAST, false, width, wanted),
        TestOp::Le => (AT_MOST, false, width, wanted),
        TestOp::MaskedEq { mask } => (EQUALS, false, mask & width, wanted),
        TestOp::Ne => (EQUALS, true, width, wanted),
        TestOp::NoBit => (EQUALS, false, wanted, 0),
    };
    let flags = [u8::from(is_negated), u8::from(slots.is_some())];
    to.extend([test.arg, op, flags[0], flags[1], 0, 0, 0, 0]);
    to.extend(value.to_ne_bytes());
    to.extend(mask.to_ne_bytes());
    to.extend(slots.unwrap_or(0).to_ne_bytes());
}

pub(super) fn short(number: usize) -> u16 {
    u16::try_from(number).expect("bounded by the table")
}

/// Returns whether strings are among the fetched data.
pub(super) fn has_strings(fetches: &[MemoryRead]) -> bool {
    let is_string =
        |fetch: &MemoryRead| matches!(fetch, MemoryRead::Text(_) | MemoryRead::Path { .. });
    fetches.iter().any(is_string)
}

/// Returns the data that the event table needs beyond registers.
pub(super) fn fetches(kind: EventKind) -> Vec<MemoryRead> {
    let spec = kind.spec();
    let mut fetches: Vec<MemoryRead> = Vec::new();
    let mut add = |fetch| {
        if !fetches.contains(&fetch) {
            fetches.push(fetch);
        }
    };
    match spec.descriptor {
        DescriptorSource::Argument(fd) | DescriptorSource::Duplicated(fd) => {
            add(MemoryRead::Descriptor(fd));
        }
        DescriptorSource::Opened { .. } | DescriptorSource::Accepted(_) => add(MemoryRead::Result),
        DescriptorSource::Addressed {
            fd, address, len, ..
        } => {
            add(MemoryRead::Descriptor(fd));
            add(MemoryRead::Buffer {
                arg: address,
                len,
                limit: ADDRESS_LIMIT,
            });
        }
        DescriptorSource::Message { fd, message, count } => {
            add(MemoryRead::Descriptor(fd));
            add(MemoryRead::Message { message, count });
        }
        DescriptorSource::None | DescriptorSource::CreatedSocket | DescriptorSource::Created(_) => {
        }
    }
    for param in spec.params {
        match param.source {
            ParamSource::Path { path, base } => add(MemoryRead::Path { path, base }),
            ParamSource::Text(arg) => add(MemoryRead::Text(arg)),
            ParamSource::Texts(arg) => add(MemoryRead::Texts(arg)),
            ParamSource::Field { arg, offset, size } => {
                add(MemoryRead::Bytes { arg, offset, size })
            }
            ParamSource::Buffer { arg, len } => add(MemoryRead::Buffer {
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
    use abi::Syscall;

    /// Evaluates an encoded test as `fails` in `bpf/filter.h` does.
    fn holds(encoded: &[u8], args: &[u64; 6]) -> bool {
        let word = |at: usize| {
            u64::from_ne_bytes(
                encoded[at..at + 8]
                    .try_into()
                    .expect("eight bytes of a test"),
            )
        };
        let (arg, op, is_negated) = (encoded[0], encoded[1], encoded[2] == 1);
        let (wants, mask) = (word(8), word(16));
        let has = args[usize::from(arg)] & mask;
        let holds = match op {
            EQUALS => has == wants,
            AT_LEAST => has >= wants,
            AT_MOST => has <= wants,
            other => panic!("unknown comparison {other}"),
        };
        holds != is_negated
    }

    #[test]
    fn encoded_tests_hold_where_the_tests_hold() {
        let numbers = [
            0,
            1,
            2,
            3,
            0x40,
            0x41,
            0x8000_0000,
            u64::from(u32::MAX),
            1 << 32,
            1 << 32 | 3,
            u64::MAX,
        ];
        let ops = [
            TestOp::AllBits,
            TestOp::AnyBit,
            TestOp::Eq,
            TestOp::Ge,
            TestOp::Le,
            TestOp::MaskedEq { mask: 3 },
            TestOp::MaskedEq { mask: 1 << 32 | 1 },
            TestOp::Ne,
            TestOp::NoBit,
        ];
        for op in ops {
            for value in numbers {
                for test in [
                    RegisterTest::low(2, op, value),
                    RegisterTest::full(2, op, value),
                ] {
                    let mut encoded = Vec::new();
                    encode_test(test, Some(1), &mut encoded);
                    assert_eq!(encoded.len(), 32);
                    for has in numbers {
                        let args = [9, 9, has, 9, 9, 9];
                        let expected = test.holds(&args);
                        assert_eq!(holds(&encoded, &args), expected, "{test:?} of {has:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_call_asks_for_more_than_a_row_holds() {
        for call in Syscall::all() {
            let fetches = fetches(EventKind::of_syscall(call));
            assert!(fetches.len() <= FETCHES, "{call}: {fetches:?}");
        }
    }
}
