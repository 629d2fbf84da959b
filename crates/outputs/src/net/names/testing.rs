//! Entry for fuzzing: answers of a name server.

use std::net::IpAddr;

use super::message::{Answer, Kind, answer, query};

/// Reads an answer to the question for addresses of `name`. The answer has the number of the question in place of its first two
/// bytes. Returns `None` if it answers another question.
///
/// # Panics
///
/// If the name is invalid.
#[must_use]
pub fn dns_answer(name: &str, is_v6: bool, bytes: &[u8]) -> Option<Vec<IpAddr>> {
    let kind = if is_v6 { Kind::V6 } else { Kind::V4 };
    let query = query(name, kind).expect("a valid name");
    let mut message = bytes.to_vec();
    let length = message.len().min(2);
    message[..length].copy_from_slice(&query[..length]);
    match answer(&message, &query, kind)?? {
        Answer::Addresses(addresses) => Some(addresses),
        Answer::NoSuchName => Some(Vec::new()),
    }
}
