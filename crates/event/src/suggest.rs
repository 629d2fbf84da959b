//! The nearest known name to a misspelt one.

/// The candidate nearest to `name`, if it is near enough to be meant.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    // A third of the letters wrong is a typing error, more is another word.
    let limit = (name.chars().count() / 3).max(1);
    candidates
        .map(|candidate| {
            // Of two that are equally near, a letter left out at the end is likelier than a wrong one.
            let is_longer = candidate.starts_with(name);
            let unlike = name.len().abs_diff(candidate.len());
            (distance(name, candidate), !is_longer, unlike, candidate)
        })
        .min()
        .filter(|(distance, ..)| *distance <= limit)
        .map(|(.., candidate)| candidate)
}

/// The end of an error message that offers the suggestion.
pub(crate) fn hint(suggestion: Option<&str>) -> String {
    suggestion
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

/// Edit distance; two neighbouring letters that changed places count once.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut rows = vec![(0..=right.len()).collect::<Vec<usize>>()];
    for i in 1..=left.len() {
        let mut row = vec![i];
        for j in 1..=right.len() {
            let change = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            let swapped =
                i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
            if swapped {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
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
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("flasg", "flags"), 1);
    }

    #[test]
    fn a_hint_is_empty_without_a_suggestion() {
        assert_eq!(hint(None), "");
        assert_eq!(hint(Some("fd.name")), "; did you mean `fd.name`?");
    }
}
