//! What is allowed in a condition or an output, and probably a mistake.

use std::collections::HashSet;
use std::sync::LazyLock;

use event::field::{self, Field};

/// Returns true if a text would be parsed as a field. Most texts are not fields, and the registry would
/// search the nearest name for each of them.
pub(super) fn is_field_name(text: &str) -> bool {
    static CLASSES: LazyLock<HashSet<&'static str>> =
        LazyLock::new(|| field::docs().map(|(class, _)| class.name).collect());
    let class = text.split_once('.').map(|(class, _)| class);
    class.is_some_and(|class| CLASSES.contains(class)) && Field::parse(text).is_ok()
}

/// Returns true if plain text does what a regular expression does, but for an anchor or a wildcard at an end.
pub(super) fn needs_no_regex(text: &str) -> bool {
    let wild = [".*", ".+", ".?"];
    let start = std::iter::once("^").chain(wild);
    let text = start
        .clone()
        .find_map(|start| text.strip_prefix(start))
        .unwrap_or(text);
    let mut ends = std::iter::once("$").chain(wild);
    let text = ends.find_map(|end| text.strip_suffix(end)).unwrap_or(text);
    !text.contains(|c| ".+*?^$()[]{}|\\".contains(c))
}

/// Reason why an event has no latency in Falco.
const NO_ENTRY: &str = "Falco no longer has a value for it, because it sees only returns";

/// Fields that Falco deprecates, with the reason.
pub(crate) const DEPRECATED: [(&str, &str); 6] = [
    (
        "evt.dir",
        "an event is a call that has returned, so it is always `<`",
    ),
    ("evt.latency", NO_ENTRY),
    ("evt.latency.human", NO_ENTRY),
    ("evt.latency.ns", NO_ENTRY),
    ("evt.latency.s", NO_ENTRY),
    ("evt.wait_latency", NO_ENTRY),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_needs_no_regular_expression() {
        for text in ["abc", "^abc$", ".*abc", "abc.+", "/etc/x", ".*"] {
            assert!(needs_no_regex(text), "{text}");
        }
        for text in ["a.c", "a|b", "(abc)", "^.*abc", "ab*", "a{2}"] {
            assert!(!needs_no_regex(text), "{text}");
        }
    }
}
