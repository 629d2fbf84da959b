//! Selectors over labels.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::{LabelError, Labels, checked_key, checked_value, shortened};

/// Longest text of a selector in bytes.
const MAX_TEXT: usize = 4096;

/// Tests of a selector at most.
const MAX_TESTS: usize = 32;

/// A test of one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    /// The label has one of the values.
    In(BTreeSet<String>),
    /// The label has none of the values, or is absent.
    NotIn(BTreeSet<String>),
    /// The label is there.
    Exists,
    /// The label is absent.
    Absent,
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        match self {
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Exists => value.is_some(),
            Self::Absent => value.is_none(),
        }
    }
}

/// Tests on labels, all of which have to hold. Without tests it matches everything.
///
/// The syntax is that of Kubernetes: `a=b`, `a==b`, `a!=b`, `a in (b, c)`, `a notin (b, c)`, `a`, `!a`, with commas between.
/// Two texts with the same tests are the same selector, and `Display` writes both alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(BTreeSet<(String, Test)>);

impl Selector {
    /// Reads a selector; an empty text matches everything.
    ///
    /// # Errors
    ///
    /// The text is not a selector, is too long, or matches nothing.
    pub fn parse(text: &str) -> Result<Self, LabelError> {
        if text.len() > MAX_TEXT {
            return Err(wrong("it is longer than 4096 bytes", text));
        }
        let mut tests = BTreeSet::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (test, after) = test(rest)?;
            tests.insert(test);
            rest = match after.trim_start().strip_prefix(',') {
                Some(after) if after.trim().is_empty() => {
                    return Err(wrong("expected a test after the comma", rest));
                }
                Some(after) => after.trim_start(),
                None if after.trim().is_empty() => "",
                None => return Err(wrong("expected a comma between tests", after)),
            };
        }
        if tests.len() > MAX_TESTS {
            return Err(wrong("it has more than 32 tests", text));
        }
        let selector = Self(tests);
        match selector.contradiction() {
            Some(key) => Err(LabelError::Contradiction {
                key: key.to_owned(),
            }),
            None => Ok(selector),
        }
    }

    /// Returns true if all tests hold.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        let mut tests = self.0.iter();
        tests.all(|(key, test)| test.holds(labels.get(key)))
    }

    /// Returns true if labels exist that both match.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let both = Self(self.0.union(&other.0).cloned().collect());
        both.contradiction().is_none()
    }

    /// Returns the number of tests: a selector with more of them is more specific.
    #[must_use]
    pub fn tests(&self) -> usize {
        self.0.len()
    }

    /// Returns a key whose tests no value fulfils.
    fn contradiction(&self) -> Option<&str> {
        let keys: BTreeSet<&str> = self.0.iter().map(|(key, _)| &**key).collect();
        keys.into_iter().find(|key| {
            let of_key = self.0.iter().filter(|(of, _)| of == key);
            let tests: Vec<&Test> = of_key.map(|(_, test)| test).collect();
            // Absent, one of the listed values, or one that nobody lists: values are unlimited.
            let listed = tests.iter().flat_map(|test| match test {
                Test::In(values) | Test::NotIn(values) => {
                    values.iter().map(String::as_str).collect()
                }
                Test::Exists | Test::Absent => Vec::new(),
            });
            let mut candidates: Vec<Option<&str>> = listed.map(Some).collect();
            // No label has a space, so this is in no list.
            candidates.extend([None, Some(" ")]);
            let fulfils = |value: &Option<&str>| tests.iter().all(|test| test.holds(*value));
            !candidates.iter().any(fulfils)
        })
    }
}

impl FromStr for Selector {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        Self::parse(text)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, test)) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            let (single, several, values) = match test {
                Test::Exists => {
                    f.write_str(key)?;
                    continue;
                }
                Test::Absent => {
                    write!(f, "!{key}")?;
                    continue;
                }
                Test::In(values) => ("=", "in", values),
                Test::NotIn(values) => ("!=", "notin", values),
            };
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            match values[..] {
                [value] => write!(f, "{key}{single}{value}")?,
                _ => write!(f, "{key} {several} ({})", values.join(","))?,
            }
        }
        Ok(())
    }
}

fn wrong(problem: &'static str, near: &str) -> LabelError {
    LabelError::Selector {
        problem,
        near: shortened(near),
    }
}

/// Splits at the end of a key or value.
fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_whitespace() || "=!,()<>".contains(c));
    text.split_at(end.unwrap_or(text.len()))
}

/// Reads one test and returns what follows it.
fn test(text: &str) -> Result<((String, Test), &str), LabelError> {
    if let Some(after) = text.strip_prefix('!') {
        let (key, after) = word(after.trim_start());
        checked_key(key)?;
        return Ok(((key.to_owned(), Test::Absent), after));
    }
    let (key, after) = word(text);
    checked_key(key)?;
    let (test, after) = of_key(key, after.trim_start())?;
    Ok(((key.to_owned(), test), after))
}

fn of_key<'t>(key: &str, text: &'t str) -> Result<(Test, &'t str), LabelError> {
    type Make = fn(BTreeSet<String>) -> Test;
    let operators: [(&str, Make); 3] = [("!=", Test::NotIn), ("==", Test::In), ("=", Test::In)];
    for (operator, make) in operators {
        if let Some(after) = text.strip_prefix(operator) {
            let (value, after) = word(after.trim_start());
            checked_value(key, value)?;
            return Ok((make(BTreeSet::from([value.to_owned()])), after));
        }
    }
    let (operator, after) = word(text);
    match operator {
        "" if text.is_empty() || text.starts_with(',') => Ok((Test::Exists, text)),
        "in" => list(key, after).map(|(values, after)| (Test::In(values), after)),
        "notin" => list(key, after).map(|(values, after)| (Test::NotIn(values), after)),
        _ => Err(wrong("expected `=`, `!=`, `in`, `notin` or a comma", text)),
    }
}

/// Reads `(a, b)`.
fn list<'t>(key: &str, text: &'t str) -> Result<(BTreeSet<String>, &'t str), LabelError> {
    let problem = "expected values in parentheses, such as (a, b)";
    let within = text.trim_start().strip_prefix('(');
    let (within, after) = within
        .and_then(|text| text.split_once(')'))
        .ok_or_else(|| wrong(problem, text))?;
    let values = within.split(',').map(str::trim);
    let mut list = BTreeSet::new();
    for value in values {
        checked_value(key, value)?;
        list.insert(value.to_owned());
    }
    Ok((list, after))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn selector(text: &str) -> Selector {
        Selector::parse(text).expect(text)
    }

    #[test]
    fn each_operator_is_tested_with_the_value_another_one_and_none() {
        for (text, listed, other, absent) in [
            ("", true, true, true),
            ("k=b", true, false, false),
            ("k == b", true, false, false),
            ("k!=b", false, true, true),
            ("k in (a, b)", true, false, false),
            ("k notin (a,b)", false, true, true),
            ("k", true, true, false),
            ("!k", false, false, true),
            (" ! k ", false, false, true),
            ("k, k!=a", true, true, false),
            ("k=", false, false, false),
        ] {
            let of = |labels: &str| selector(text).matches(&Labels::parse(labels).expect(labels));
            assert_eq!(
                (of("k=b"), of("k=c"), of("x=b")),
                (listed, other, absent),
                "{text}"
            );
        }
        assert!(selector("k=").matches(&Labels::parse("k=").expect("a label")));
    }

    #[test]
    fn texts_with_the_same_tests_are_one_selector() {
        for (text, canonical) in [
            ("b=2 , a == 1", "a=1,b=2"),
            ("k in (b,a,b)", "k in (a,b)"),
            ("k in (a)", "k=a"),
            ("k notin (a)", "k!=a"),
            ("a=1,a=1", "a=1"),
            ("!b,a", "a,!b"),
        ] {
            assert_eq!(selector(text).to_string(), canonical);
            assert_eq!(selector(canonical), selector(text));
        }
        assert_eq!(selector("a=1,a=1").tests(), 1);
    }

    #[test]
    fn what_is_no_selector_is_an_error_with_its_place() {
        for (text, expected) in [
            ("a=1,", "after the comma"),
            (",a", "key of a label"),
            ("a b", "expected `=`"),
            ("a=1 b=2", "a comma between"),
            ("a in b", "parentheses"),
            ("a in (b", "parentheses"),
            ("a > 1", "expected `=`"),
            ("a=b/c", "not the value"),
            ("a=1,a=2", "matches nothing"),
            ("a,!a", "matches nothing"),
            ("a in (b,c), a notin (b,c)", "matches nothing"),
        ] {
            let error = Selector::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(Selector::parse(&"a,".repeat(5000)).is_err());
        let many: Vec<_> = (0..33).map(|n| format!("k{n}")).collect();
        assert!(Selector::parse(&many.join(",")).is_err());
    }

    #[test]
    fn selectors_overlap_unless_a_key_has_no_value_for_both() {
        for (one, other, expected) in [
            ("", "a=1", true),
            ("a=1", "b=1", true),
            ("a=1", "a=2", false),
            ("a in (1,2)", "a in (2,3)", true),
            ("a in (1,2)", "a notin (1,2,3)", false),
            ("a!=1", "a!=2", true),
            ("a", "!a", false),
            ("!a", "a!=1", true),
            ("a=1", "a", true),
        ] {
            let (one, other) = (selector(one), selector(other));
            assert_eq!(one.overlaps(&other), expected, "{one} and {other}");
            assert_eq!(other.overlaps(&one), expected);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_written_alike(text in "[ab!=,() notin]{0,40}") {
            if let Ok(selector) = Selector::parse(&text) {
                prop_assert_eq!(Selector::parse(&selector.to_string()), Ok(selector));
            }
        }

        #[test]
        fn what_two_selectors_both_match_overlaps(
            one in "k(=|!=)[ab](,j(=|!=)[ab])?", other in "(!k|k in \\((a|b|a,b)\\)|j)", labels in "(k=[abc])?",
        ) {
            let labels = Labels::parse(&labels).expect("valid");
            if let (Ok(one), Ok(other)) = (Selector::parse(&one), Selector::parse(&other)) {
                let both = one.matches(&labels) && other.matches(&labels);
                prop_assert!(!both || one.overlaps(&other));
            }
        }
    }
}
