//! Splitting of command lines that users write.

/// Splits a command line at blanks; text in quotes stays together.
///
/// # Errors
///
/// A message if a quote is not closed.
pub fn split_words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let (mut word, mut quote) = (None::<String>, None);
    for c in text.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    match quote {
        Some(_) => Err(format!("a quote in the arguments does not end: {text}")),
        None => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_split_as_in_a_shell() {
        assert_eq!(
            split_words("a  'b c' d\"e f\"").unwrap(),
            ["a", "b c", "de f"]
        );
        assert_eq!(split_words("''").unwrap(), [""]);
        assert!(split_words("").unwrap().is_empty());
        assert!(split_words("'a").is_err());
    }
}
