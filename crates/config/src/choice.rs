//! Settings with a fixed set of words as values.

use yaml::settings::{Node, Problem};

/// An enum whose values are words in a configuration and on a command line.
///
/// ```
/// use config::{Choice, Verify};
///
/// assert_eq!(Verify::from_word("off"), Some(Verify::Off));
/// assert_eq!(Verify::Off.word(), "off");
/// ```
pub trait Choice: Copy + PartialEq + 'static {
    /// Every value with its word and its description for the command line's help.
    const CHOICES: &'static [(Self, &'static str, &'static str)];

    /// Returns the value of a word.
    #[must_use]
    fn from_word(word: &str) -> Option<Self> {
        let found = Self::CHOICES.iter().find(|(_, known, _)| *known == word);
        found.map(|(value, _, _)| *value)
    }

    /// Returns the word of this value.
    #[must_use]
    fn word(self) -> &'static str {
        let found = Self::CHOICES.iter().find(|(value, _, _)| *value == self);
        found.map_or("", |(_, word, _)| word)
    }
}

/// Reads a setting of this type.
pub(crate) fn choice<T: Choice>(node: &Node) -> Result<T, Problem> {
    let word = node.text()?;
    T::from_word(word).ok_or_else(|| {
        let words: Vec<_> = T::CHOICES.iter().map(|(_, word, _)| *word).collect();
        let message = format!("expected {}, found `{word}`", words.join(" or "));
        Problem::new(&node.origin, message)
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::{IoUring, OnAgentDeath, Verify, WatchContainers, WatchedBy};

    fn check<T: Choice + Debug>(count: usize) {
        assert_eq!(T::CHOICES.len(), count);
        for (value, word, description) in T::CHOICES {
            assert_eq!(T::from_word(word), Some(*value));
            assert_eq!(value.word(), *word);
            assert!(!description.is_empty(), "{word}");
        }
        assert_eq!(T::from_word("no such word"), None);
    }

    #[test]
    fn every_value_has_one_word() {
        check::<IoUring>(2);
        check::<OnAgentDeath>(3);
        check::<Verify>(3);
        check::<WatchContainers>(4);
        check::<WatchedBy>(2);
    }
}
