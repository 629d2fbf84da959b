//! A JSON writer.
//!
//! Alerts contain data that a hostile program passed to the kernel, so this writer is total: every
//! byte sequence becomes valid JSON, and none can control a terminal.

/// Appends `text` as a JSON string with quotes.
pub fn write_string(out: &mut String, text: &str) {
    out.push('"');
    write_escaped(out, text);
    out.push('"');
}

/// Appends bytes that may not be UTF-8 as a JSON string with quotes; each invalid sequence becomes
/// U+FFFD.
pub fn write_bytes(out: &mut String, bytes: &[u8]) {
    write_string(out, &String::from_utf8_lossy(bytes));
}

/// Appends `text` escaped as inside a JSON string, without quotes.
///
/// Besides what JSON requires, the writer escapes every invisible character: controls, format
/// characters (which change the writing direction or hide text), line and paragraph separators,
/// spaces other than U+0020, and private and unassigned code points. A JSON reader sees the same
/// text either way.
pub fn write_escaped(out: &mut String, text: &str) {
    let mut clean = 0;
    for (at, c) in text.char_indices() {
        if !needs_escape(c) {
            continue;
        }
        out.push_str(&text[clean..at]);
        write_escape(out, c);
        clean = at + c.len_utf8();
    }
    out.push_str(&text[clean..]);
}

/// Appends `text` with invisible characters escaped; quotes and backslashes stay.
pub(crate) fn write_visible(out: &mut String, text: &str) {
    for c in text.chars() {
        match needs_escape(c) && c != '"' && c != '\\' {
            true => write_escape(out, c),
            false => out.push(c),
        }
    }
}

/// Returns text for a terminal or a log: invisible characters escaped.
#[must_use]
pub fn visible(text: &str) -> String {
    let mut out = String::new();
    write_visible(&mut out, text);
    out
}

/// Returns text of a peer for a terminal or a log: invisible characters escaped, at most 500 characters.
pub(crate) fn shown(text: &str) -> String {
    const LENGTH: usize = 500;
    let mut out = String::new();
    let end = text.char_indices().nth(LENGTH);
    write_visible(&mut out, &text[..end.map_or(text.len(), |(end, _)| end)]);
    out
}

fn needs_escape(c: char) -> bool {
    if c.is_ascii() {
        return c == '"' || c == '\\' || c.is_ascii_control();
    }
    !is_printable(c) || is_ignorable(c)
}

/// Returns true if the standard library prints a character unescaped: categories L, M, N, P and S.
/// Its tables cover all code points and escape unknown ones.
fn is_printable(c: char) -> bool {
    // The standard library prints a combining character unescaped only after another character.
    let mut text = [b'a', 0, 0, 0, 0];
    let length = 1 + c.encode_utf8(&mut text[1..]).len();
    let text = std::str::from_utf8(&text[..length]).expect("both characters are whole");
    text.escape_debug().nth(1) == Some(c)
}

/// Returns true for letters and marks that Unicode requires terminals to hide
/// (`Default_Ignorable_Code_Point`): joiners, fillers and variation selectors. A test compares them
/// with all code points.
fn is_ignorable(c: char) -> bool {
    matches!(
        c,
        '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180d}'
            | '\u{180f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

fn write_escape(out: &mut String, c: char) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\u{8}' => out.push_str("\\b"),
        '\t' => out.push_str("\\t"),
        '\n' => out.push_str("\\n"),
        '\u{c}' => out.push_str("\\f"),
        '\r' => out.push_str("\\r"),
        _ => {
            // JSON escapes a character above U+FFFF as two UTF-16 units.
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

/// Writes an object member by member: `{"a":1,"b":"x"}`.
pub struct Object<'o> {
    out: &'o mut String,
    first: bool,
}

impl<'o> Object<'o> {
    /// Opens an object.
    pub fn open(out: &'o mut String) -> Self {
        out.push('{');
        Self { out, first: true }
    }

    /// Appends a member whose value is text.
    pub fn string(&mut self, key: &str, value: &str) -> &mut Self {
        write_string(self.key(key), value);
        self
    }

    /// Appends a member whose value is a number.
    pub fn number(&mut self, key: &str, value: u64) -> &mut Self {
        self.key(key).push_str(&value.to_string());
        self
    }

    /// Appends a member whose value is a number, or `null`.
    pub fn number_or_null(&mut self, key: &str, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.number(key, value),
            None => {
                self.key(key).push_str("null");
                self
            }
        }
    }

    /// Appends a member that `write` writes.
    pub fn member(&mut self, key: &str, write: impl FnOnce(&mut String)) -> &mut Self {
        write(self.key(key));
        self
    }

    /// Appends a member that is an object.
    pub fn object(&mut self, key: &str, write: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        let mut inner = Object::open(self.key(key));
        write(&mut inner);
        inner.close();
        self
    }

    /// Closes the object.
    pub fn close(self) {
        self.out.push('}');
    }

    fn key(&mut self, key: &str) -> &mut String {
        if !self.first {
            self.out.push(',');
        }
        self.first = false;
        write_string(self.out, key);
        self.out.push(':');
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> String {
        let mut out = String::new();
        write_string(&mut out, text);
        out
    }

    #[test]
    fn every_character_survives_a_round_trip() {
        for c in '\0'..=char::MAX {
            let text = format!("a{c}b");
            let back: String = serde_json::from_str(&string(&text)).unwrap();
            assert_eq!(back, text, "U+{:04X}", u32::from(c));
        }
    }

    #[test]
    fn what_has_no_ink_is_escaped_and_what_has_is_not() {
        let class = |class: &str| regex::Regex::new(&format!("^(?s:{class})$")).unwrap();
        let hidden = class(r"[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}--\x20]");
        // The standard library may know a later version of Unicode, which assigns these.
        let unassigned = class(r"\p{Cn}");
        let mut letters_since = 0;
        for c in '\0'..=char::MAX {
            let text = c.to_string();
            let escaped = string(&text) != format!("\"{c}\"");
            let expected = hidden.is_match(&text) || matches!(c, '"' | '\\');
            if escaped != expected && unassigned.is_match(&text) {
                letters_since += 1;
                continue;
            }
            assert_eq!(escaped, expected, "U+{:04X}", u32::from(c));
        }
        assert!(letters_since < 20_000, "{letters_since}");
        assert_eq!(
            string("a\u{202e}b\u{2028}c\u{e0041}d\u{fe0f}"),
            r#""a\u202eb\u2028c\udb40\udc41d\ufe0f""#
        );
        // A letter with a combining accent, and other scripts.
        assert_eq!(
            string("e\u{301} \u{65e5} \u{1f600}"),
            "\"e\u{301} \u{65e5} \u{1f600}\""
        );
    }

    #[test]
    fn control_characters_never_reach_the_output() {
        let all: String = (0..0xa0).filter_map(char::from_u32).collect();
        assert!(!string(&all).chars().any(char::is_control));
        assert_eq!(
            string("\u{1b}[2J\u{9b}\u{7f}"),
            r#""\u001b[2J\u009b\u007f""#
        );
        assert_eq!(string("\u{8}\t\n\u{c}\r\"\\/"), r#""\b\t\n\f\r\"\\/""#);
    }

    #[test]
    fn invalid_utf8_becomes_the_replacement_character() {
        let mut out = String::new();
        write_bytes(&mut out, b"a\xffb\xe2\x82c\xed\xa0\x80");
        let back: String = serde_json::from_str(&out).unwrap();
        assert_eq!(back, "a\u{fffd}b\u{fffd}c\u{fffd}\u{fffd}\u{fffd}");
    }

    #[test]
    fn objects_nest() {
        let mut out = String::new();
        let mut object = Object::open(&mut out);
        object
            .number("n", 1)
            .string("s", "x")
            .number_or_null("z", None);
        object.object("o", |o| {
            o.number("m", u64::MAX);
        });
        object.close();
        assert_eq!(
            out,
            r#"{"n":1,"s":"x","z":null,"o":{"m":18446744073709551615}}"#
        );
    }
}
