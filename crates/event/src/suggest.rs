//! Suggestions for misspelt names.

use strsim::osa_distance;

/// Returns the candidate nearest to `name`, if it is near enough to be meant.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    // Up to a third of the letters wrong is a typing error; more is another word.
    let limit = (name.chars().count() / 3).max(1);
    candidates
        // Each additional or missing letter is one edit.
        .filter(|candidate| candidate.chars().count().abs_diff(name.chars().count()) <= limit)
        .map(|candidate| {
            // Of two equally near candidates, a letter missing at the end is more likely than a wrong one.
            let is_longer = candidate.starts_with(name);
            let unlike = name.len().abs_diff(candidate.len());
            (osa_distance(name, candidate), !is_longer, unlike, candidate)
        })
        .min()
        .filter(|(distance, ..)| *distance <= limit)
        .map(|(.., candidate)| candidate)
}

/// Formats the end of an error message that offers the suggestion.
pub(crate) fn hint(suggestion: Option<&str>) -> String {
    suggestion
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_recognised_and_another_word_is_not() {
        let names = ["proc.name", "proc.pname", "fd.name"];
        assert_eq!(nearest("proc.nmae", names.into_iter()), Some("proc.name"));
        assert_eq!(nearest("proc.pnam", names.into_iter()), Some("proc.pname"));
        let near = ["fd.num", "fd.name"].into_iter();
        assert_eq!(nearest("fd.nam", near), Some("fd.name"));
        assert_eq!(nearest("container.id", names.into_iter()), None);
        assert_eq!(nearest("flasg", ["flags"].into_iter()), Some("flags"));
    }

    #[test]
    fn a_hint_is_empty_without_a_suggestion() {
        assert_eq!(hint(None), "");
        assert_eq!(hint(Some("fd.name")), "; did you mean `fd.name`?");
    }
}
