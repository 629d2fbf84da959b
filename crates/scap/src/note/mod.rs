//! Notes: facts that this program records in a capture for its own use, because the format cannot
//! represent them or they were not known when the event was recorded.
//!
//! A note is a `notification` event marked as state-only, so other readers ignore it. It contains
//! JSON. Bytes that may not be UTF-8 are stored as the characters with the same numbers.

mod call;
mod container;
mod descriptor;
mod process;

use event::Lookup;
use serde_json::{Value, json};

pub(crate) use call::{Addresses, Call, CallExtras, show_param};
pub(crate) use process::ExactProcess;

/// `id` of notes about a process.
pub(crate) const PROCESS: &str = "tollgate.process";
/// `id` of notes about the call that follows.
pub(crate) const CALL: &str = "tollgate.call";

fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    text.chars()
        .map(|letter| u8::try_from(u32::from(letter)).ok())
        .collect()
}

fn lookup<T>(fact: &Lookup<T>, show: impl FnOnce(&T) -> Value) -> Value {
    match fact {
        Lookup::Found(fact) => show(fact),
        Lookup::Missing => Value::Null,
        Lookup::Unknown => json!("?"),
    }
}

fn looked<T>(value: Option<&Value>, read: impl FnOnce(&Value) -> Option<T>) -> Lookup<T> {
    match value {
        Some(Value::Null) => Lookup::Missing,
        Some(value) => read(value).map_or(Lookup::Unknown, Lookup::Found),
        None => Lookup::Unknown,
    }
}

fn there(fact: &Lookup<()>) -> Value {
    lookup(fact, |()| json!(1))
}

fn is_there(value: Option<&Value>) -> Lookup<()> {
    looked(value, |value| value.is_number().then_some(()))
}

/// Returns the entry with this number in a list of pairs.
fn entry(list: &Value, number: i32) -> Option<&Value> {
    let is = |entry: &&Value| entry.get(0).and_then(Value::as_i64) == Some(i64::from(number));
    list.as_array()?.iter().find(is)
}
