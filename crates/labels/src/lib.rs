//! Labels of agents, and selectors over them in the syntax of Kubernetes.
//!
//! An agent chooses its labels itself, so they are hostile input: number, length and characters are bounded.
//!
//! ```
//! use labels::{Labels, Selector};
//!
//! let labels = Labels::parse("tier=db,zone=b")?;
//! assert!(Selector::parse("tier=db, zone in (a, b)")?.matches(&labels));
//! assert!(!Selector::parse("!zone")?.matches(&labels));
//! # Ok::<(), labels::LabelError>(())
//! ```

mod selector;

use std::collections::BTreeMap;
use std::fmt;

pub use selector::Selector;

/// Labels of an agent at most.
pub const MAX_LABELS: usize = 32;

/// Longest name or value in bytes, as in Kubernetes.
const MAX_NAME: usize = 63;

/// Longest prefix of a key in bytes, as in Kubernetes.
const MAX_PREFIX: usize = 253;

/// A label or a selector is not valid.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LabelError {
    /// The key is not one.
    #[error(
        "{key:?} is not the key of a label: expected up to 63 letters, digits, `-`, `_` and `.` that begin and end with a \
         letter or digit, after an optional domain and `/`"
    )]
    Key {
        /// The text, shortened.
        key: String,
    },
    /// The value is not one.
    #[error(
        "{value:?} is not the value of the label {key}: expected up to 63 letters, digits, `-`, `_` and `.` that begin and \
         end with a letter or digit, or nothing"
    )]
    Value {
        /// The key.
        key: String,
        /// The text, shortened.
        value: String,
    },
    /// The text is not `KEY=VALUE`.
    #[error("{text:?} is not a label: expected KEY=VALUE")]
    Pair {
        /// The text, shortened.
        text: String,
    },
    /// Two values for one key.
    #[error("the label {key} has two values")]
    Repeated {
        /// The key.
        key: String,
    },
    /// More labels than an agent may have.
    #[error("more than {MAX_LABELS} labels")]
    TooMany,
    /// The text is not a selector.
    #[error("the selector cannot be read at {near:?}: {problem}")]
    Selector {
        /// What is expected.
        problem: &'static str,
        /// The text there, shortened.
        near: String,
    },
    /// No labels match the selector.
    #[error("the selector matches nothing: its tests of {key} contradict each other")]
    Contradiction {
        /// The key.
        key: String,
    },
}

/// Returns the beginning of a text: a message must not be as long as a sender wants.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

fn is_name(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Returns true for a DNS subdomain.
fn is_domain(text: &str) -> bool {
    let is_part = |part: &str| {
        is_name(part)
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    text.len() <= MAX_PREFIX && text.split('.').all(is_part)
}

fn checked_key(key: &str) -> Result<(), LabelError> {
    let is_key = match key.split_once('/') {
        Some((prefix, name)) => is_domain(prefix) && is_name(name),
        None => is_name(key),
    };
    match is_key {
        true => Ok(()),
        false => Err(LabelError::Key {
            key: shortened(key),
        }),
    }
}

fn checked_value(key: &str, value: &str) -> Result<(), LabelError> {
    match value.is_empty() || is_name(value) {
        true => Ok(()),
        false => Err(LabelError::Value {
            key: key.to_owned(),
            value: shortened(value),
        }),
    }
}

/// Labels of an agent. `Display` writes them as [`Labels::parse`] reads them, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Returns these labels.
    ///
    /// # Errors
    ///
    /// A key or value is not valid, a key occurs twice, or there are more than [`MAX_LABELS`].
    pub fn new<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, LabelError> {
        let mut labels = BTreeMap::new();
        for (key, value) in pairs {
            let (key, value) = (key.as_ref(), value.as_ref());
            checked_key(key)?;
            checked_value(key, value)?;
            if labels.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(LabelError::Repeated {
                    key: key.to_owned(),
                });
            }
            if labels.len() > MAX_LABELS {
                return Err(LabelError::TooMany);
            }
        }
        Ok(Self(labels))
    }

    /// Reads `KEY=VALUE,KEY=VALUE`; an empty text has no labels.
    ///
    /// # Errors
    ///
    /// As for [`Labels::new`], or a part is not `KEY=VALUE`.
    pub fn parse(text: &str) -> Result<Self, LabelError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let pairs: Result<Vec<_>, _> = text.split(',').map(pair).collect();
        Self::new(pairs?)
    }

    /// Returns the value of a label.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Returns keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads `KEY=VALUE`.
///
/// # Errors
///
/// The text is not one, or its key or value is not valid.
pub fn pair(text: &str) -> Result<(&str, &str), LabelError> {
    let (key, value) = text.split_once('=').ok_or_else(|| LabelError::Pair {
        text: shortened(text),
    })?;
    checked_key(key)?;
    checked_value(key, value)?;
    Ok((key, value))
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_those_of_kubernetes_and_no_others() {
        for good in [
            "",
            "a=b",
            "a=",
            "app.kubernetes.io/name=web,Tier=db_1.2-x",
            &format!("{}=v", "k".repeat(63)),
        ] {
            let labels = Labels::parse(good).expect(good);
            assert_eq!(Labels::parse(&labels.to_string()), Ok(labels), "{good}");
        }
        for bad in [
            "a",
            "=b",
            "a=b,",
            "-a=b",
            "a-=b",
            "a=b c",
            "a=<b>",
            "a=b\n",
            "a=\u{1b}[2J",
            "a=b,a=c",
            "/a=b",
            "x/y/a=b",
            "Upper.example/a=b",
            "a..b/c=d",
            "é=b",
            &format!("{}=v", "k".repeat(64)),
            &format!("k={}", "v".repeat(64)),
            &format!("{}/k=v", "p.".repeat(127) + "p"),
        ] {
            let error = Labels::parse(bad).expect_err(bad).to_string();
            assert!(error.len() < 400 && !error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn the_number_of_labels_is_bounded() {
        let of = |count: usize| Labels::new((0..count).map(|n| (format!("k{n}"), "v")));
        assert!(of(MAX_LABELS).is_ok());
        assert_eq!(of(MAX_LABELS + 1), Err(LabelError::TooMany));
    }
}
