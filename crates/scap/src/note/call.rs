//! Notes about a call.

use core::net::IpAddr;
use std::sync::Arc;

use bumpalo::Bump;
use event::{Absence, Descriptor, DescriptorAnswers, DescriptorKind, Lookup, Outcome, Param, Stat};
use serde_json::{Value, json};

use super::descriptor::{
    read_descriptor, read_name, read_open, read_type, show_asked, show_descriptor,
};
use super::process::{read_stat, show_stat};
use super::{bytes, entry, is_there, looked, lookup, text, there};

/// Converts a parameter to its form in a note.
pub(crate) fn show_param(param: &Param<'_>) -> Value {
    match param {
        Param::Pending => json!("pending"),
        Param::Unreadable => json!("?"),
        Param::Absent(_) => Value::Null,
        Param::Int(value) => json!({ "i": value }),
        Param::Uint(value) => json!({ "u": value }),
        Param::Text(value) => json!({ "t": text(value) }),
        Param::Texts(values) => {
            json!({ "l": values.iter().map(|value| text(value)).collect::<Vec<_>>() })
        }
        Param::Tuple => json!("tuple"),
    }
}

/// Converts a note's value to a parameter.
fn read_param<'a>(value: &Value, arena: &'a Bump) -> Option<Param<'a>> {
    let copy = |value: &Value| -> Option<&'a [u8]> {
        Some(arena.alloc_slice_copy(&bytes(value.as_str()?)?))
    };
    Some(match value {
        Value::Null => Param::Absent(Absence::recorded()),
        Value::String(word) if word == "tuple" => Param::Tuple,
        Value::String(word) if word == "pending" => Param::Pending,
        Value::String(_) => Param::Unreadable,
        Value::Object(object) => {
            let (key, value) = object.iter().next()?;
            match key.as_str() {
                "i" => Param::Int(value.as_i64()?),
                "u" => Param::Uint(value.as_u64()?),
                "t" => Param::Text(copy(value)?),
                "l" => {
                    let texts: Option<Vec<&[u8]>> = value.as_array()?.iter().map(copy).collect();
                    Param::Texts(arena.alloc_slice_copy(&texts?))
                }
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// Facts about a call that the capture's event cannot represent.
#[derive(Debug, Default)]
pub(crate) struct CallExtras<'e> {
    /// Name of a call without a number in captures.
    pub(crate) kind: Option<&'e str>,
    /// Parameters by position.
    pub(crate) params: Vec<(usize, Value)>,
    /// The descriptor, if the event does not describe it exactly.
    pub(crate) descriptor: Option<Option<&'e Descriptor<'e>>>,
    /// The outcome of the call, if it is not a result.
    pub(crate) outcome: Option<Outcome>,
    /// The result, if the event has no field for it.
    pub(crate) result: Option<i64>,
    /// Memory sizes of the process, if a rule has used them.
    pub(crate) stat: Option<&'e Lookup<Stat>>,
    /// Directories among the arguments.
    pub(crate) directories: Vec<(i32, Lookup<Vec<u8>>)>,
    /// Leaders that were not found.
    pub(crate) strangers: Vec<(i32, Lookup<()>)>,
    /// Addresses of host names at the time of the call.
    pub(crate) addresses: Addresses,
    /// Answers about the process's other descriptors that rules have used.
    pub(crate) asked: Option<DescriptorAnswers>,
}

/// Host names with their addresses.
pub(crate) type Addresses = Vec<(String, Lookup<Arc<[IpAddr]>>)>;

impl CallExtras<'_> {
    /// Returns the note; `None` if there are no such facts.
    pub(crate) fn to_json(&self) -> Option<String> {
        let mut note = serde_json::Map::new();
        if !self.params.is_empty() {
            note.insert("params".to_owned(), json!(self.params));
        }
        if let Some(kind) = self.kind {
            note.insert("kind".to_owned(), json!(kind));
        }
        if let Some(descriptor) = self.descriptor {
            let shown = descriptor.map_or(Value::Null, show_descriptor);
            note.insert("descriptor".to_owned(), shown);
        }
        let outcome = self.outcome.and_then(|outcome| match outcome {
            Outcome::Returned(_) => None,
            Outcome::Pending => Some("pending"),
            Outcome::Unlearnt => Some("unlearnt"),
            Outcome::None => Some("none"),
        });
        if let Some(outcome) = outcome {
            note.insert("outcome".to_owned(), json!(outcome));
        }
        if let Some(result) = self.result {
            note.insert("outcome".to_owned(), json!(result));
        }
        if let Some(stat) = self.stat {
            note.insert("stat".to_owned(), lookup(stat, show_stat));
        }
        if !self.directories.is_empty() {
            let shown = self.directories.iter();
            let shown: Vec<Value> = shown
                .map(|(number, path)| json!([number, lookup(path, |path| json!(text(path)))]))
                .collect();
            note.insert("directories".to_owned(), shown.into());
        }
        if !self.strangers.is_empty() {
            let shown = self.strangers.iter();
            let shown: Vec<Value> = shown.map(|(pid, is)| json!([pid, there(is)])).collect();
            note.insert("strangers".to_owned(), shown.into());
        }
        if !self.addresses.is_empty() {
            let shown = self.addresses.iter();
            let shown: Vec<Value> = shown
                .map(|(name, found)| {
                    json!([
                        name,
                        lookup(found, |found| json!(
                            found.iter().map(ToString::to_string).collect::<Vec<_>>()
                        ))
                    ])
                })
                .collect();
            note.insert("addresses".to_owned(), shown.into());
        }
        if let Some(asked) = &self.asked {
            note.insert("asked".to_owned(), show_asked(asked));
        }
        (!note.is_empty()).then(|| Value::Object(note).to_string())
    }
}

/// A note about the call that follows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call(Value);

impl Call {
    pub(crate) fn of_json(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok().map(Self)
    }

    /// Sets the parameters that the event could not represent.
    pub(crate) fn correct<'a>(&self, params: &mut [Param<'a>], arena: &'a Bump) {
        let entries = self.0.get("params").and_then(Value::as_array);
        for entry in entries.into_iter().flatten() {
            let at = entry.get(0).and_then(Value::as_u64);
            let param = entry.get(1).and_then(|value| read_param(value, arena));
            let slot = at
                .and_then(|at| usize::try_from(at).ok())
                .and_then(|at| params.get_mut(at));
            if let (Some(slot), Some(param)) = (slot, param) {
                *slot = param;
            }
        }
    }

    /// Returns the name of a call without a number in captures.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.0.get("kind")?.as_str()
    }

    /// Returns the descriptor. `None`: not in the note. `Some(None)`: the event has no descriptor.
    pub(crate) fn descriptor<'a>(&self, arena: &'a Bump) -> Option<Option<Descriptor<'a>>> {
        Some(read_descriptor(self.0.get("descriptor")?, arena))
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        let outcome = self.0.get("outcome")?;
        if let Some(result) = outcome.as_i64() {
            return Some(Outcome::Returned(result));
        }
        Some(match outcome.as_str()? {
            "pending" => Outcome::Pending,
            "none" => Outcome::None,
            _ => Outcome::Unlearnt,
        })
    }

    /// Returns the path of an open directory among the arguments, if the note has it.
    pub(crate) fn directory(&self, number: i32) -> Option<Lookup<Vec<u8>>> {
        let entry = entry(self.0.get("directories")?, number)?;
        Some(looked(entry.get(1), |path| {
            path.as_str()
                .filter(|path| path.starts_with('/'))
                .and_then(bytes)
        }))
    }

    /// Returns the open descriptors, if the note has them.
    pub(crate) fn open_descriptors(&self) -> Option<Lookup<Vec<i32>>> {
        read_open(self.0.get("asked")?)
    }

    /// Returns the type of an open descriptor, if the note has it.
    pub(crate) fn descriptor_type(&self, number: i32) -> Option<Lookup<DescriptorKind>> {
        read_type(self.0.get("asked")?, number)
    }

    /// Returns the name of an open descriptor, if the note has it.
    pub(crate) fn descriptor_name(&self, number: i32) -> Option<Lookup<Vec<u8>>> {
        read_name(self.0.get("asked")?, number)
    }

    /// Returns the addresses of a host name, if the note has them.
    pub(crate) fn addresses(&self, name: &str) -> Option<Lookup<Arc<[IpAddr]>>> {
        let noted = self.0.get("addresses")?.as_array()?;
        let is = |entry: &&Value| entry.get(0).and_then(Value::as_str) == Some(name);
        let entry = noted.iter().find(is)?;
        Some(looked(entry.get(1), |found| {
            let found = found.as_array()?.iter();
            found.map(|ip| ip.as_str()?.parse().ok()).collect()
        }))
    }

    /// Returns the lookup result of a process that was not found at recording time.
    pub(crate) fn stranger(&self, pid: i32) -> Option<Lookup<()>> {
        let entry = entry(self.0.get("strangers")?, pid)?;
        Some(is_there(entry.get(1)))
    }

    pub(crate) fn stat(&self) -> Option<Lookup<Stat>> {
        Some(looked(Some(self.0.get("stat")?), read_stat))
    }
}
