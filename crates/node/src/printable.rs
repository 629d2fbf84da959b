//! Texts that programs and authors of objects choose, for terminals.

use outputs::json::write_escaped;

/// Returns a text in which nothing is invisible or controls a terminal: such characters are escaped as in JSON (`\u202e`).
/// Quotes and backslashes stay, so that JSON stays the same JSON.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        write_printable(&mut out, letter);
    }
    out
}

/// Appends a character, escaped if it is invisible.
pub(crate) fn write_printable(out: &mut String, letter: char) {
    match letter {
        '"' | '\\' => out.push(letter),
        _ => write_escaped(out, letter.encode_utf8(&mut [0; 4])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_turn_or_hide_text_are_escaped_and_letters_stay() {
        let bad = "\u{202e}\u{2066}\u{2069}\u{200b}\u{feff}\u{2028}\u{2029}\u{1b}\n\u{7f}\u{e0001}";
        let shown = printable(bad);
        assert!(
            shown.is_ascii() && shown.starts_with(r"\u202e\u2066"),
            "{shown}"
        );
        let letters = "a \"b\\c\" \u{e4}\u{4e2d}\u{1f600}";
        assert_eq!(printable(letters), letters);
        let json = serde_json::json!({ "a": bad, "b": letters });
        let read: serde_json::Value = serde_json::from_str(&printable(&json.to_string())).unwrap();
        assert_eq!(read, json);
    }
}
