//! Batches as they are in the stream.

use std::io::{Read, Write};

use async_nats::HeaderMap;
use async_nats::jetstream::message::PublishMessage;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use ring::digest;
use store::AgentId;

use crate::alert::MAX_ALERT;
use crate::body::{MAX_RECORDS, MAX_TEXT};

/// Text of one message at most, before it is compressed. One record alone may be longer.
const TEXT: usize = 384 << 10;

/// Largest message in bytes: what is compressed can be a little larger than its text.
pub(super) const MAX_MESSAGE: usize = 512 << 10;

/// Version of the form of a message. A message of another version is set aside.
const FORMAT: &str = "1";

const HEADER_FORMAT: &str = "Tollgate-Format";
const HEADER_FIRST: &str = "Tollgate-Sequence";
const HEADER_COUNT: &str = "Tollgate-Records";
const HEADER_RECEIVED: &str = "Tollgate-Received";

/// Records of one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    first: u64,
    count: u64,
    text: String,
}

/// A batch that was in the queue.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) first: u64,
    pub(super) received_ns: i64,
    pub(super) text: String,
}

/// Divides lines into parts that fit into a message.
pub(super) fn parts(first: u64, lines: &[&str]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (number, line) in (first..).zip(lines) {
        let line = beginning(line);
        match parts.last_mut() {
            Some(part) if part.text.len() + line.len() < TEXT => {
                part.count += 1;
                part.text.push('\n');
                part.text.push_str(line);
            }
            _ => parts.push(Part {
                first: number,
                count: 1,
                text: line.to_owned(),
            }),
        }
    }
    parts
}

/// Line in place of one whose beginning is blank: a blank line is no record, and the numbers after it would be wrong. It is no
/// alert, so it is stored as one that cannot be read.
const BLANK: &str = "(a line that is too long and begins with blanks)";

/// Returns a line, or the beginning of one that is too long for an alert: it still is, and an excerpt is all that is kept of it.
fn beginning(line: &str) -> &str {
    // A character has up to four bytes.
    let end = (MAX_ALERT + 1..=MAX_ALERT + 4).find(|end| line.is_char_boundary(*end));
    let beginning = end.map_or(line, |end| &line[..end]);
    match beginning.trim().is_empty() {
        true => BLANK,
        false => beginning,
    }
}

impl Part {
    /// Returns the number of the last record.
    pub(super) fn last(&self) -> u64 {
        self.first.saturating_add(self.count - 1)
    }

    /// Returns the message. Its identifier names agent, numbers and text, so that JetStream drops it if it comes again.
    pub(super) fn encode(&self, sender: AgentId, received_ns: i64) -> PublishMessage {
        let digest = digest::digest(&digest::SHA256, self.text.as_bytes());
        let digest = &digest.as_ref()[..16];
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let id = format!("{}-{}-{}-{digest}", sender.0, self.first, self.count);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let written = encoder.write_all(self.text.as_bytes());
        let compressed = written.and_then(|()| encoder.finish());
        let compressed = compressed.expect("a vector takes everything");
        PublishMessage::build()
            .payload(compressed.into())
            .message_id(id)
            .header(HEADER_FORMAT, FORMAT)
            .header(HEADER_FIRST, &*self.first.to_string())
            .header(HEADER_COUNT, &*self.count.to_string())
            .header(HEADER_RECEIVED, &*received_ns.to_string())
    }
}

/// Returns the number of the last record of a message, by its headers.
pub(super) fn last(headers: &HeaderMap) -> Option<u64> {
    let first: u64 = number(headers, HEADER_FIRST)?;
    let count: u64 = number(headers, HEADER_COUNT)?;
    first.checked_add(count.checked_sub(1)?)
}

/// Reads a message, or says why it is none of ours.
pub(super) fn decode(headers: Option<&HeaderMap>, payload: &[u8]) -> Result<Queued, String> {
    let headers = headers.ok_or("it has no headers")?;
    let format = headers.get(HEADER_FORMAT).map(|value| value.as_str());
    if format != Some(FORMAT) {
        let found = format.unwrap_or("none").escape_default();
        return Err(format!("its format is `{found}`: expected {FORMAT}"));
    }
    let missing = |name| format!("its header {name} is missing or no number");
    let first = number(headers, HEADER_FIRST).filter(|first: &u64| *first > 0);
    let first = first.ok_or_else(|| missing(HEADER_FIRST))?;
    let count: u64 = number(headers, HEADER_COUNT).ok_or_else(|| missing(HEADER_COUNT))?;
    let received_ns = number(headers, HEADER_RECEIVED).ok_or_else(|| missing(HEADER_RECEIVED))?;
    let mut text = String::new();
    let read = GzDecoder::new(payload)
        .take(MAX_TEXT)
        .read_to_string(&mut text);
    read.map_err(|error| format!("its text cannot be read: {error}"))?;
    let lines = text.lines().count();
    if lines as u64 != count || lines > MAX_RECORDS {
        return Err(format!("it has {lines} records instead of {count}"));
    }
    Ok(Queued {
        first,
        received_ns,
        text,
    })
}

fn number<T: std::str::FromStr>(headers: &HeaderMap, name: &'static str) -> Option<T> {
    headers.get(name)?.as_str().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(part: &Part) -> Result<Queued, String> {
        let message = part.encode(AgentId(3), 7).outbound_message("s");
        assert!(message.payload.len() <= MAX_MESSAGE);
        decode(message.headers.as_ref(), &message.payload)
    }

    #[test]
    fn a_batch_is_divided_without_loss_and_keeps_its_numbers() {
        let long = "ä".repeat(MAX_ALERT);
        let lines = [
            "a",
            "-",
            &*long,
            "b",
            &*"c".repeat(200_000),
            &*"d".repeat(200_000),
            "e",
        ];
        let parts = parts(5, &lines);
        let mut next = 5;
        let mut text = Vec::new();
        for part in &parts {
            assert_eq!(part.first, next);
            next = part.last() + 1;
            let queued = read(part).expect("it is ours");
            assert_eq!((queued.first, queued.received_ns), (part.first, 7));
            text.extend(queued.text.lines().map(str::to_owned));
        }
        assert_eq!(next, 12);
        assert!(parts.len() > 1, "{}", parts.len());
        assert!(text[2].len() > MAX_ALERT, "it stays too long to be read");
        text[2] = long.clone();
        assert_eq!(text, lines);
    }

    #[test]
    fn a_long_line_that_begins_with_blanks_keeps_its_place_among_the_records() {
        let long = format!("{}{{}}", " ".repeat(2 * MAX_ALERT));
        let wide = format!("{}{{}}", "\u{2003}".repeat(MAX_ALERT));
        let lines = ["{}", &*long, &*wide, "{}"];
        let mut records = 0;
        for part in parts(1, &lines) {
            let queued = read(&part).expect("it is ours");
            assert_eq!(queued.first, records + 1);
            let read = crate::ingest::records(&queued.text, 7).expect("it is a batch");
            records += read.len() as u64;
            assert_eq!(part.last(), records);
        }
        assert_eq!(records, 4);
    }

    #[test]
    fn a_message_that_is_none_of_ours_says_why() {
        let part = &parts(1, &["a", "b"])[0];
        let good = part.encode(AgentId(3), 7).outbound_message("s");
        let headers = good.headers.expect("it has some");
        for (name, value, why) in [
            (HEADER_FORMAT, "2", "its format is `2`"),
            (HEADER_FIRST, "0", "Tollgate-Sequence"),
            (HEADER_COUNT, "3", "2 records instead of 3"),
            (HEADER_RECEIVED, "x", "Tollgate-Received"),
        ] {
            let mut headers = headers.clone();
            headers.insert(name, value);
            let problem = decode(Some(&headers), &good.payload).expect_err(why);
            assert!(problem.contains(why), "{problem}");
        }
        let problem = decode(Some(&headers), b"text").expect_err("no gzip");
        assert!(problem.starts_with("its text cannot be read"), "{problem}");
        assert!(decode(None, b"").is_err());
    }
}
