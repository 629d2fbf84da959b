//! Looking for any of many texts within another.

use std::sync::OnceLock;

use aho_corasick::AhoCorasick;

/// Texts to look for. What finds them at once is made when it is first asked for: that takes longer than all else
/// that is made of a rule, and most programs of a container never come so far. The first call that asks waits for it,
/// some tens of microseconds.
#[derive(Debug)]
pub(crate) struct Substrings {
    needles: Box<[Box<[u8]>]>,
    ignore_case: bool,
    /// `None` within: they are too many for one.
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

    /// Whether a text has one of them in it.
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
