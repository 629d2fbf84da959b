//! Text from elsewhere, such as the name of a file, as a part of YAML.

use std::fmt::Write as _;

/// Returns the text as a double-quoted scalar on one line, whatever it contains.
///
/// ```
/// assert_eq!(yaml::quote::scalar("/tmp/a\"b\n- rule: x"), r#""/tmp/a\"b\n- rule: x""#);
/// ```
#[must_use]
pub fn scalar(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c => push(&mut out, c),
        }
    }
    out.push('"');
    out
}

/// Returns the text on one line, for a comment. Characters that end a line or change the terminal are escaped.
#[must_use]
pub fn comment(text: &str) -> String {
    let mut out = String::new();
    text.chars().for_each(|c| push(&mut out, c));
    out
}

/// Appends a character; one that YAML 1.2 does not call printable, or that ends a line, is escaped.
fn push(out: &mut String, c: char) {
    // Bidirectional controls make text look like other text.
    let is_hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    let is_unassigned = matches!(c, '\u{fffe}' | '\u{ffff}');
    // Writing to a text cannot fail.
    let _ = match c {
        '\n' => write!(out, "\\n"),
        '\t' => write!(out, "\\t"),
        '\r' => write!(out, "\\r"),
        c if c.is_control() => write!(out, "\\x{:02x}", u32::from(c)),
        c if is_hidden || is_unassigned => write!(out, "\\u{:04x}", u32::from(c)),
        c => write!(out, "{c}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    #[test]
    fn every_text_is_read_as_it_was() {
        let all: String = (0..0x3000).filter_map(char::from_u32).collect();
        for text in [
            "",
            "plain",
            "a: b # c",
            "\"quoted\" \\ 'x'",
            "- rule: x\n  condition: y",
            "\u{1b}[2Jx\u{7f}\u{85}\u{202e}\u{feff}\u{10ffff}",
            &all,
        ] {
            let quoted = scalar(text);
            assert!(!quoted.contains('\n'), "{quoted}");
            let node = settings::read("t", &format!("key: {quoted} # comment\n")).expect("YAML");
            let read = node.entry("key").map(|entry| entry.node.text());
            assert_eq!(read, Some(Ok(text)), "{quoted}");
        }
    }

    #[test]
    fn a_comment_stays_on_its_line() {
        assert_eq!(
            comment("a\n- rule: b\u{2028}c\u{1b}"),
            "a\\n- rule: b\\u2028c\\x1b"
        );
    }
}
