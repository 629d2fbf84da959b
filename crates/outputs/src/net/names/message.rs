//! Messages of DNS (RFC 1035): one question, and the addresses in its answer.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

/// Which addresses are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    V4,
    V6,
}

impl Kind {
    /// Type of the record: A, AAAA (RFC 3596).
    fn code(self) -> u16 {
        match self {
            Kind::V4 => 1,
            Kind::V6 => 28,
        }
    }
}

/// What a server knows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// All addresses of the kind that fit into the message.
    Addresses(Vec<IpAddr>),
    /// The name does not exist, so that it has no addresses of another kind either.
    NoSuchName,
}

/// Class of all records there are: the Internet.
const CLASS: u16 = 1;
const HEADER: usize = 12;
/// A question that a server may pass on to others.
const RECURSION_DESIRED: u16 = 0x0100;
const IS_ANSWER: u16 = 0x8000;

/// The question; nothing if it is no name.
pub(super) fn query(name: &str, kind: Kind) -> Option<Vec<u8>> {
    const MAX_NAME: usize = 253;
    const MAX_LABEL: usize = 63;
    if name.is_empty() || name.len() > MAX_NAME {
        return None;
    }
    let mut message = Vec::with_capacity(HEADER + name.len() + 6);
    // Keyed anew for each value, from the kernel's random numbers.
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

/// Reads what came back. The outer nothing: this is no answer to the question. The inner nothing:
/// the server says that it cannot answer.
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
    // The question is repeated, perhaps in another case.
    let question = query.get(HEADER..)?;
    let repeated = message.get(HEADER..query.len())?;
    if !repeated.eq_ignore_ascii_case(question) {
        return None;
    }
    let count = word(message, 6)?;
    let mut at = query.len();
    let mut addresses = Vec::new();
    for _ in 0..count {
        // A message that ends early, as one does that was too long, keeps what it has.
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

/// The record at a place. Whose it is does not matter: a server that passes questions on has
/// followed aliases to the end.
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

/// Where a name ends: after an empty label, or after a pointer to the rest.
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
