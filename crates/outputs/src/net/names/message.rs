//! DNS messages (RFC 1035): one question, and the addresses in its answer.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

/// Kind of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    V4,
    V6,
}

impl Kind {
    /// Record type: A, or AAAA (RFC 3596).
    fn code(self) -> u16 {
        match self {
            Kind::V4 => 1,
            Kind::V6 => 28,
        }
    }
}

/// Answer of a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// All addresses of the kind that fit into the message.
    Addresses(Vec<IpAddr>),
    /// The name does not exist, so it has no addresses of another kind either.
    NoSuchName,
}

/// Record class: the Internet.
const CLASS: u16 = 1;
const HEADER: usize = 12;
/// Flag: the server may forward the question.
const RECURSION_DESIRED: u16 = 0x0100;
const IS_ANSWER: u16 = 0x8000;

/// Builds the question. Returns `None` if the name is invalid.
pub(super) fn query(name: &str, kind: Kind) -> Option<Vec<u8>> {
    const MAX_NAME: usize = 253;
    const MAX_LABEL: usize = 63;
    if name.is_empty() || name.len() > MAX_NAME {
        return None;
    }
    let mut message = Vec::with_capacity(HEADER + name.len() + 6);
    // Each value has a new key from the kernel's random numbers.
    let [id_high, id_low, ..] = RandomState::new().build_hasher().finish().to_be_bytes();
    message.extend([id_high, id_low]);
    for word in [RECURSION_DESIRED, 1, 0, 0, 0] {
        message.extend(word.to_be_bytes());
    }
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok()?;
        if label.is_empty() || label.len() > MAX_LABEL {
            return None;
        }
        message.push(length);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.code().to_be_bytes());
    message.extend(CLASS.to_be_bytes());
    Some(message)
}

/// Parses a response. The outer `None`: the message does not answer the question. The inner `None`:
/// the server reports a failure.
pub(super) fn answer(message: &[u8], query: &[u8], kind: Kind) -> Option<Option<Answer>> {
    const RESPONSE_CODE: u16 = 0x000f;
    const NO_ERROR: u16 = 0;
    const NO_SUCH_NAME: u16 = 3;
    let flags = word(message, 2)?;
    let is_ours = message.get(..2) == query.get(..2) && flags & IS_ANSWER != 0;
    if !is_ours {
        return None;
    }
    match flags & RESPONSE_CODE {
        NO_ERROR => {}
        NO_SUCH_NAME => return Some(Some(Answer::NoSuchName)),
        _ => return Some(None),
    }
    // The answer repeats the question, possibly in another case.
    let question = query.get(HEADER..)?;
    let repeated = message.get(HEADER..query.len())?;
    if !repeated.eq_ignore_ascii_case(question) {
        return None;
    }
    let count = word(message, 6)?;
    let mut at = query.len();
    let mut addresses = Vec::new();
    for _ in 0..count {
        // A truncated message keeps its complete records.
        let Some(record) = record(message, at) else {
            break;
        };
        at = record.end;
        if record.kind == kind.code() && record.class == CLASS {
            addresses.extend(address(record.data));
        }
    }
    Some(Some(Answer::Addresses(addresses)))
}

struct Record<'m> {
    kind: u16,
    class: u16,
    data: &'m [u8],
    end: usize,
}

/// Returns the record at an offset. Its owner is ignored: a recursive server has followed all
/// aliases.
fn record(message: &[u8], at: usize) -> Option<Record<'_>> {
    let at = skip_name(message, at)?;
    let length = usize::from(word(message, at + 8)?);
    let start = at + 10;
    Some(Record {
        kind: word(message, at)?,
        class: word(message, at + 2)?,
        data: message.get(start..start + length)?,
        end: start + length,
    })
}

/// Returns the offset after a name, which ends with an empty label or a pointer.
fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    const POINTER: u8 = 0xc0;
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if length & POINTER == POINTER => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

fn address(data: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(data).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(data).map(IpAddr::from))
        .ok()
}

fn word(message: &[u8], at: usize) -> Option<u16> {
    let bytes = message.get(at..at + 2)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}
