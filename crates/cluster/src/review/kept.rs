//! Reads the few parts of a question that an answer depends on, and skips the rest without keeping it.

use std::fmt;

use kinds::annotations::OF_POLICY;
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Maximum number of labels of an object, and of marks in its annotations.
pub(super) const MAX_PAIRS: usize = 4096;

/// What is kept of a value. A value of another type is kept as `false`, which is none of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keep {
    /// A text.
    Text,
    /// A mapping of texts.
    Labels,
    /// A mapping of texts, of which only marks are kept.
    Annotations,
    /// A mapping, of which these keys are kept.
    Fields(&'static [(&'static str, Keep)]),
}

const METADATA: Keep = Keep::Fields(&[
    ("name", Keep::Text),
    ("labels", Keep::Labels),
    ("annotations", Keep::Annotations),
    ("deletionTimestamp", Keep::Text),
]);

const TEMPLATE: Keep = Keep::Fields(&[(
    "metadata",
    Keep::Fields(&[("annotations", Keep::Annotations)]),
)]);

const OBJECT: Keep = Keep::Fields(&[
    ("metadata", METADATA),
    ("spec", Keep::Fields(&[("template", TEMPLATE)])),
]);

const OLD: Keep = Keep::Fields(&[("status", Keep::Fields(&[("installation", Keep::Text)]))]);

/// Everything that is kept of a question.
pub(super) const REVIEW: Keep = Keep::Fields(&[
    ("apiVersion", Keep::Text),
    ("kind", Keep::Text),
    (
        "request",
        Keep::Fields(&[
            ("uid", Keep::Text),
            ("kind", Keep::Fields(&[("kind", Keep::Text)])),
            ("operation", Keep::Text),
            ("subResource", Keep::Text),
            ("namespace", Keep::Text),
            ("object", OBJECT),
            ("oldObject", OLD),
        ]),
    ),
]);

impl<'de> DeserializeSeed<'de> for Keep {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keep {
    type Value = Value;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a value of JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(match self {
            Self::Text => text.into(),
            _ => Value::Bool(false),
        })
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Bool(false))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Bool(false))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Bool(false))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Bool(false))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Bool(false))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        match self {
            Self::Text => {
                while pairs.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Value::Bool(false))
            }
            Self::Labels => texts(pairs, |_| true),
            Self::Annotations => texts(pairs, |key| key.starts_with(OF_POLICY)),
            Self::Fields(fields) => {
                let mut kept = Map::new();
                while let Some(key) = pairs.next_key::<String>()? {
                    let field = fields.iter().find(|(known, _)| *known == key);
                    let Some((_, keep)) = field else {
                        pairs.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    kept.insert(key, pairs.next_value_seed(*keep)?);
                }
                Ok(Value::Object(kept))
            }
        }
    }
}

/// A mapping of texts; a value that is no text stays as `false`, whatever its key, so that the mapping is refused.
fn texts<'de, A: MapAccess<'de>>(
    mut pairs: A,
    is_kept: impl Fn(&str) -> bool,
) -> Result<Value, A::Error> {
    let mut kept = Map::new();
    while let Some(key) = pairs.next_key::<String>()? {
        let value = pairs.next_value_seed(Keep::Text)?;
        if !is_kept(&key) && value.is_string() {
            continue;
        }
        if kept.len() == MAX_PAIRS {
            return Err(A::Error::custom(format!(
                "an object has more than {MAX_PAIRS} labels, or as many marks"
            )));
        }
        kept.insert(key, value);
    }
    Ok(Value::Object(kept))
}
