//! Writes JSON in which no text can control a terminal.

use outputs::json;
use serde_json::Value;

/// Appends a value.
pub(crate) fn write(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => json::write_string(out, text),
        Value::Array(values) => {
            out.push('[');
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write(out, value);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (at, (name, value)) in members.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                json::write_string(out, name);
                out.push(':');
                write(out, value);
            }
            out.push('}');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_the_value_and_has_no_control_characters() {
        let value = serde_json::json!({"a\u{1b}[2J": ["\u{202e}x\u{9b}", null, 1.5, true, {"b": "<script>"}]});
        let mut text = String::new();
        write(&mut text, &value);
        assert_eq!(
            serde_json::from_str::<Value>(&text).expect("it is JSON"),
            value
        );
        assert!(
            text.is_ascii() && !text.chars().any(char::is_control),
            "{text}"
        );
    }
}
