//! Alerts as the program prints them.

use std::fmt;

use serde_json::{Map, Value};

/// One alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// Name of the rule.
    pub rule: String,
    /// Priority, as Falco's JSON spells it.
    pub priority: String,
    /// Source of the event.
    pub source: String,
    /// Tags of the rule.
    pub tags: Vec<String>,
    /// The alert as text.
    pub output: String,
    /// Time of the event, in ISO 8601.
    pub time: String,
    /// The fields of the output.
    pub fields: Map<String, Value>,
}

impl Alert {
    /// Parses one line of JSON. `None` if the line is not an alert.
    pub fn parse(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line.trim()).ok()?;
        let text = |key: &str| Some(value.get(key)?.as_str()?.to_owned());
        let tags = value.get("tags")?.as_array()?.iter();
        Some(Self {
            rule: text("rule")?,
            priority: text("priority")?,
            source: text("source")?,
            tags: tags
                .filter_map(|tag| tag.as_str().map(str::to_owned))
                .collect(),
            output: text("output")?,
            time: text("time")?,
            fields: value.get("output_fields")?.as_object()?.clone(),
        })
    }

    /// Returns a field as text; `<NA>` if it has no value.
    ///
    /// # Panics
    /// If the rule does not print the field.
    pub fn field(&self, name: &str) -> String {
        match self.fields.get(name) {
            Some(Value::Null) => "<NA>".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => panic!("no field {name} in {self}"),
        }
    }

    /// Returns a field as a number.
    ///
    /// # Panics
    /// If the field is not a number.
    pub fn number(&self, name: &str) -> i64 {
        let text = self.field(name);
        text.parse()
            .unwrap_or_else(|error| panic!("{name}={text} is no number ({error}): {self}"))
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = Value::Object(self.fields.clone());
        write!(
            f,
            "[{} {} {:?} {}] {} {fields}",
            self.rule, self.priority, self.tags, self.source, self.output
        )
    }
}

/// A pattern for a field: text in which `*` stands for anything.
#[derive(Clone, Copy, Debug)]
pub struct Pattern<'p>(pub &'p str);

impl Pattern<'_> {
    /// Returns true if `text` matches.
    pub fn fits(self, text: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else {
            return text == self.0;
        };
        let Some(text) = text.strip_prefix(start) else {
            return false;
        };
        // The shortest match of a star is enough when only stars follow, so try all of them.
        let mut ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        ends.any(|at| Pattern(rest).fits(&text[at..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text, fits) in [
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("abc*", "abcd", true),
            ("*bcd", "abcd", true),
            ("*bc*", "abcd", true),
            ("*bc*", "acbd", false),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("a*b*d", "a.b.b.d", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(Pattern(pattern).fits(text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn lines_that_are_no_alerts_are_told_apart() {
        let line = r#"{"hostname":"h","output":"x","output_fields":{"a":null,"b":3},"priority":"Notice","rule":"R","source":"syscall","tags":["t"],"time":"2026"}"#;
        let alert = Alert::parse(line).unwrap();
        assert_eq!(
            (alert.field("a"), alert.number("b")),
            ("<NA>".to_owned(), 3)
        );
        assert_eq!(Alert::parse("{}"), None);
        assert_eq!(Alert::parse("plain text"), None);
    }
}
