//! Bounds of a request before it is decoded: in memory an empty message takes a hundred times the two bytes that it takes on
//! the wire. Here messages are counted where they stand; the types of OpenTelemetry decode them.

use axum::http::StatusCode;

use crate::answer::Refusal;

/// Messages that hold others, up to the log records: at most about 200 bytes each in memory.
const MAX_OUTER: usize = 200_000;

/// Attributes and values: at most about 70 bytes each in memory.
const MAX_INNER: usize = 500_000;

/// Commas of a JSON text: each may stand for a value without brackets.
const MAX_COMMAS: usize = 1_000_000;

/// Depth of messages in each other, deeper than the decoder goes: what it decodes is counted.
const MAX_DEPTH: usize = 128;

/// Levels of brackets around what a log record consists of, in JSON.
const OUTER_BRACKETS: usize = 7;

#[derive(Default)]
struct Counts {
    outer: usize,
    inner: usize,
    commas: usize,
}

impl Counts {
    fn check(&self) -> Result<(), Refusal> {
        if self.outer <= MAX_OUTER && self.inner <= MAX_INNER && self.commas <= MAX_COMMAS {
            return Ok(());
        }
        let message = "the request has too many parts: send fewer log records at a time";
        Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message))
    }
}

/// Counts the objects and lists of a JSON text. What is not JSON is left to the decoder.
pub(super) fn check_json(text: &[u8]) -> Result<(), Refusal> {
    let mut counts = Counts::default();
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    for byte in text {
        if is_text {
            (is_text, is_escaped) = match byte {
                b'"' if !is_escaped => (false, false),
                b'\\' => (true, !is_escaped),
                _ => (true, false),
            };
            continue;
        }
        match byte {
            b'"' => is_text = true,
            b'{' | b'[' => {
                depth += 1;
                match depth <= OUTER_BRACKETS {
                    true => counts.outer += 1,
                    false => counts.inner += 1,
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => counts.commas += 1,
            _ => {}
        }
    }
    counts.check()
}

/// A message of `logs.proto` and what it uses.
#[derive(Clone, Copy)]
enum Kind {
    Request,
    ResourceLogs,
    Resource,
    EntityRef,
    ScopeLogs,
    Scope,
    LogRecord,
    KeyValue,
    AnyValue,
    ArrayValue,
    KeyValueList,
    /// A text in a list.
    Text,
}

impl Kind {
    /// Returns what a field of this message holds, if its number in memory is to be bounded.
    fn of_field(self, field: u64) -> Option<Self> {
        Some(match (self, field) {
            (Self::Request, 1) => Self::ResourceLogs,
            (Self::ResourceLogs, 1) => Self::Resource,
            (Self::ResourceLogs, 2) => Self::ScopeLogs,
            (Self::Resource, 3) => Self::EntityRef,
            (Self::EntityRef, 3 | 4) => Self::Text,
            (Self::ScopeLogs, 1) => Self::Scope,
            (Self::ScopeLogs, 2) => Self::LogRecord,
            (Self::LogRecord, 5) | (Self::KeyValue, 2) | (Self::ArrayValue, 1) => Self::AnyValue,
            (Self::Resource, 1)
            | (Self::Scope, 3)
            | (Self::LogRecord, 6)
            | (Self::KeyValueList, 1) => Self::KeyValue,
            (Self::AnyValue, 5) => Self::ArrayValue,
            (Self::AnyValue, 6) => Self::KeyValueList,
            _ => return None,
        })
    }

    fn is_outer(self) -> bool {
        matches!(
            self,
            Self::ResourceLogs
                | Self::Resource
                | Self::EntityRef
                | Self::ScopeLogs
                | Self::Scope
                | Self::LogRecord
        )
    }
}

/// Counts the messages of a request in Protocol Buffers. What is no message is left to the decoder.
pub(super) fn check_protobuf(bytes: &[u8]) -> Result<(), Refusal> {
    let mut counts = Counts::default();
    // Ends where the decoder ends, too.
    let _ = count(bytes, Kind::Request, MAX_DEPTH, &mut counts);
    counts.check()
}

/// Returns `None` at what the decoder refuses.
fn count(mut bytes: &[u8], kind: Kind, depth: usize, counts: &mut Counts) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        match key & 7 {
            0 => drop(varint(&mut bytes)?),
            1 => bytes = bytes.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (part, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                let Some(kind) = kind.of_field(key >> 3) else {
                    continue;
                };
                match kind.is_outer() {
                    true => counts.outer += 1,
                    false => counts.inner += 1,
                }
                if !matches!(kind, Kind::Text) {
                    count(part, kind, depth, counts)?;
                }
            }
            5 => bytes = bytes.get(4..)?,
            // Groups are not in these messages; the decoder skips what they hold.
            3 | 4 => {}
            _ => return None,
        }
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(number);
        }
    }
    None
}
