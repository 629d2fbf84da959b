//! The nearest known name to a misspelt one.

/// The candidate nearest to `name`, if it is near enough to be meant.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    // A third of the letters wrong is a typing error, more is another word.
    let limit = (name.chars().count() / 3).max(1);
    candidates
        .map(|candidate| (distance(name, candidate), candidate))
        .min()
        .filter(|(distance, _)| *distance <= limit)
        .map(|(_, candidate)| candidate)
}

/// The end of an error message that offers the suggestion.
pub(crate) fn hint(suggestion: Option<&str>) -> String {
    suggestion
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

/// Levenshtein distance.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (row, letter) in left.chars().enumerate() {
        let mut diagonal = row;
        above[0] = row + 1;
        for (column, other) in right.iter().enumerate() {
            let change = diagonal + usize::from(letter != *other);
            diagonal = above[column + 1];
            above[column + 1] = change.min(diagonal + 1).min(above[column] + 1);
        }
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_recognised_and_another_word_is_not() {
        let names = ["proc.name", "proc.pname", "fd.name"];
        assert_eq!(nearest("proc.nmae", names.into_iter()), Some("proc.name"));
        assert_eq!(nearest("proc.pnam", names.into_iter()), Some("proc.pname"));
        assert_eq!(nearest("container.id", names.into_iter()), None);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn a_hint_is_empty_without_a_suggestion() {
        assert_eq!(hint(None), "");
        assert_eq!(hint(Some("fd.name")), "; did you mean `fd.name`?");
    }
}
