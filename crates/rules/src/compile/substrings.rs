//! Search for any of many substrings.

use std::sync::OnceLock;

use aho_corasick::AhoCorasick;

/// Substrings to search for. The automaton is built on first use: building it takes longer than all the rest
/// of compiling a rule, and most programs of a container never need it. The first search waits for it, some
/// tens of microseconds.
#[derive(Debug)]
pub(crate) struct Substrings {
    needles: Box<[Box<[u8]>]>,
    ignore_case: bool,
    /// Automaton; the inner `None` means that the substrings are too many for one.
    automaton: OnceLock<Option<AhoCorasick>>,
}

impl Substrings {
    pub(crate) fn new(needles: impl Iterator<Item: Into<Box<[u8]>>>, ignore_case: bool) -> Self {
        Self {
            needles: needles.map(Into::into).collect(),
            ignore_case,
            automaton: OnceLock::new(),
        }
    }

    /// Returns true if a text contains one of the substrings.
    pub(crate) fn are_in(&self, text: &[u8]) -> bool {
        let automaton = self.automaton.get_or_init(|| {
            let mut builder = AhoCorasick::builder();
            builder.ascii_case_insensitive(self.ignore_case);
            builder.build(&self.needles).ok()
        });
        match automaton {
            Some(automaton) => automaton.is_match(text),
            None => self.needles.iter().any(|needle| self.is_in(needle, text)),
        }
    }

    fn is_in(&self, needle: &[u8], text: &[u8]) -> bool {
        let is_it = |part: &[u8]| match self.ignore_case {
            true => part.eq_ignore_ascii_case(needle),
            false => part == needle,
        };
        needle.is_empty() || text.windows(needle.len()).any(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_with_an_automaton_and_without() {
        for (needles, ignore_case, text, expected) in [
            (&["b", "zz"][..], false, "abc", true),
            (&["B"], false, "abc", false),
            (&["B"], true, "abc", true),
            (&["abcd"], true, "abc", false),
            (&[""], false, "", true),
            (&[], false, "abc", false),
        ] {
            let needles = || needles.iter().map(|needle| needle.as_bytes());
            let with = Substrings::new(needles(), ignore_case);
            let without = Substrings::new(needles(), ignore_case);
            without.automaton.set(None).expect("it is not there yet");
            assert_eq!(with.are_in(text.as_bytes()), expected, "{text}");
            assert_eq!(without.are_in(text.as_bytes()), expected, "{text}");
        }
    }
}
