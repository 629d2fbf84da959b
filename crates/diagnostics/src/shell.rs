//! Words of a shell's command line.

/// Quotes a word for a shell if it needs that.
///
/// ```
/// use diagnostics::shell::quoted;
///
/// assert_eq!(quoted("/etc/passwd"), "/etc/passwd");
/// assert_eq!(quoted("it's"), r"'it'\''s'");
/// ```
#[must_use]
pub fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
