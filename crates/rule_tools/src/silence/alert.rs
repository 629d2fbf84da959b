//! An alert as JSON, of this program or of Falco.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use event::field::Field;
use rules::synthetic_event::SyntheticValue;
use serde_json::{Deserializer, Value, json};

/// An alert: the values that its output prints.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Alert {
    pub(crate) rule: String,
    pub(crate) output: String,
    /// Fields with their values, in the order of the alert. Text that is no field of an event is left out.
    pub(crate) fields: Vec<(String, SyntheticValue)>,
}

/// A field, and what its value becomes.
pub(crate) type Change = (&'static str, fn(&str) -> String);

impl Alert {
    /// Reads an alert from a file, or from the standard input if that is `-`.
    pub(crate) fn read(path: &Path, number: Option<u64>) -> Result<Self, Failure> {
        let object = read_object(path, number)?;
        Self::of(&object).map_err(|cause| Self::unreadable(path, &cause))
    }

    /// Returns the failure for a file without a usable alert.
    pub(crate) fn unreadable(path: &Path, cause: &str) -> Failure {
        let message = format!("cannot read alert {}: {cause}", path.display());
        Failure::new(Exit::BadInput, message).help(
            "give one alert as JSON: `tollgate run --json` prints them, and Falco with json_output",
        )
    }

    /// Converts the JSON of an alert.
    pub(crate) fn of(object: &Value) -> Result<Self, String> {
        let rule = object.get("rule").and_then(Value::as_str);
        let rule = rule.ok_or("the object has no `rule`")?;
        let fields = object.get("output_fields").and_then(Value::as_object);
        let fields = fields.ok_or(
            "the object has no `output_fields` (json_include_output_fields_property: true)",
        )?;
        let fields = fields.iter().filter_map(|(name, value)| {
            let value = value_of(value)?;
            // Users add other texts to alerts (`static_fields`).
            Field::parse(name).is_ok().then(|| (name.clone(), value))
        });
        let output = object.get("output").and_then(Value::as_str);
        Ok(Self {
            rule: rule.to_owned(),
            output: output.unwrap_or_default().to_owned(),
            fields: fields.collect(),
        })
    }

    /// Returns the alert as JSON, with the fields of events alone.
    pub(crate) fn as_json(&self) -> Value {
        let fields = self.fields.iter().map(|(name, value)| {
            let value = match value {
                SyntheticValue::Absent => Value::Null,
                SyntheticValue::One(text) => text.as_str().into(),
                SyntheticValue::Many(texts) => texts.as_slice().into(),
            };
            (name.clone(), value)
        });
        let fields: serde_json::Map<String, Value> = fields.collect();
        json!({ "rule": self.rule, "output_fields": fields })
    }

    /// Returns the text of a field that exists and is exact. A replacement character stands for bytes that are no text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.value(name)? {
            SyntheticValue::One(text) if !text.is_empty() && !text.contains('\u{fffd}') => {
                Some(text)
            }
            _ => None,
        }
    }

    /// Returns the value of a field; `None` if the alert does not have it.
    pub(crate) fn value(&self, name: &str) -> Option<&SyntheticValue> {
        let mut fields = self.fields.iter();
        fields
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }

    /// Sets fields that the alert has. Returns `None` if it has none of them.
    pub(crate) fn with(&self, changes: &[Change]) -> Option<Self> {
        let mut changed = self.clone();
        let mut is_changed = false;
        for (name, value) in &mut changed.fields {
            let change = changes.iter().find(|(known, _)| known == name);
            if let (Some((_, change)), SyntheticValue::One(text)) = (change, &mut *value) {
                *text = change(text);
                is_changed = true;
            }
        }
        is_changed.then_some(changed)
    }
}

/// Reads the JSON of an alert from a file, or from the standard input if that is `-`. What `tollgate alerts show --json`
/// prints is one, too.
pub(crate) fn read_object(path: &Path, number: Option<u64>) -> Result<Value, Failure> {
    let cannot = |cause: String| Alert::unreadable(path, &cause);
    let text = match path == Path::new("-") {
        true => io::read_to_string(io::stdin().take(LIMIT)),
        false => fs::File::open(path).and_then(|file| io::read_to_string(file.take(LIMIT))),
    };
    let text = text.map_err(|error| cannot(error.to_string()))?;
    let objects = Deserializer::from_str(&text).into_iter::<Value>();
    let objects: Result<Vec<_>, _> = objects.collect();
    let mut objects = objects.map_err(|error| cannot(error.to_string()))?;
    let count = objects.len();
    let index = match number {
        Some(number) => {
            let index = number.checked_sub(1).map(usize::try_from);
            index.and_then(Result::ok).unwrap_or(usize::MAX)
        }
        None if count > 1 => {
            return Err(cannot(format!("it has {count} alerts")).help("choose one with --number N"));
        }
        None => 0,
    };
    if index >= count {
        return Err(cannot(match number {
            Some(number) => format!("there is no alert {number}, only {count}"),
            None => "it is empty".to_owned(),
        }));
    }
    let mut object = objects.swap_remove(index);
    Ok(match object.get_mut("alert") {
        Some(inner) if inner.is_object() => inner.take(),
        _ => object,
    })
}

/// Maximum size of the input in bytes; an alert has some KiB.
const LIMIT: u64 = 64 << 20;

fn value_of(value: &Value) -> Option<SyntheticValue> {
    Some(match value {
        Value::Null => SyntheticValue::Absent,
        Value::String(text) if text == "<NA>" => SyntheticValue::Absent,
        Value::String(text) => SyntheticValue::One(text.clone()),
        Value::Bool(_) | Value::Number(_) => SyntheticValue::One(value.to_string()),
        Value::Array(items) => {
            let text = |item: &Value| {
                item.as_str()
                    .map_or_else(|| item.to_string(), str::to_owned)
            };
            SyntheticValue::Many(items.iter().map(text).collect())
        }
        Value::Object(_) => return None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An alert with these fields.
    pub(in super::super) fn alert(rule: &str, fields: Value) -> Alert {
        Alert::of(&json!({ "rule": rule, "output": "o", "output_fields": fields }))
            .expect("an alert")
    }

    #[test]
    fn only_exact_values_of_fields_are_used() {
        let fields = json!({
            "fd.name": "/a", "proc.name": "x\u{fffd}", "user.uid": 0, "proc.tty": null, "team": "blue",
        });
        let alert = alert("R", fields);
        assert_eq!(alert.text("fd.name"), Some("/a"));
        assert_eq!(alert.text("user.uid"), Some("0"));
        assert_eq!(alert.text("proc.name"), None, "the bytes are not known");
        assert_eq!(alert.text("proc.tty"), None);
        assert_eq!(alert.value("proc.tty"), Some(&SyntheticValue::Absent));
        assert_eq!(alert.value("team"), None);
    }
}
