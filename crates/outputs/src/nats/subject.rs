//! Subjects of alerts: a template in which words in angle brackets stand for parts of the alert.

use rules::Alert;

/// Maximum length of a subject in bytes. A server closes the connection at a line of more than 4096
/// (`max_control_line`), in which subject and inbox have to fit.
const MAX_SUBJECT: usize = 2048;

/// Maximum length of an alert's part in bytes.
const MAX_TOKEN: usize = 255;

/// A parsed subject template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Hostname,
    Priority,
    Rule,
    Source,
}

const FIELDS: [(&str, Field); 4] = [
    ("hostname", Field::Hostname),
    ("priority", Field::Priority),
    ("rule", Field::Rule),
    ("source", Field::Source),
];

impl Subject {
    /// Parses a template such as `falco.<priority>.<rule>`. The error describes the mistake.
    pub(super) fn parse(template: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some((text, after)) = rest.split_once('<') {
            // A `>` at the end would be a wildcard; here it closes a name.
            let Some((name, after)) = after.split_once('>') else {
                return Err("a `<` has no `>`".to_owned());
            };
            let known = FIELDS.iter().find(|(known, _)| *known == name);
            let (_, field) = known.ok_or_else(|| {
                let known: Vec<_> = FIELDS.iter().map(|(name, _)| format!("<{name}>")).collect();
                format!("`<{name}>` is not one of {}", known.join(", "))
            })?;
            parts.push(Part::Text(text.to_owned()));
            parts.push(Part::Field(*field));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        let subject = Self { parts };
        let sample = subject.fill(|_| "x".to_owned());
        let is_token = |token: &str| {
            let is_allowed =
                |c: char| !c.is_whitespace() && !c.is_control() && c != '*' && c != '>';
            !token.is_empty() && token.chars().all(is_allowed)
        };
        if !sample.split('.').all(is_token) {
            let problem = "it needs words with dots between them, without spaces and wildcards";
            return Err(problem.to_owned());
        }
        let longest = subject.fill(|_| "x".repeat(MAX_TOKEN)).len();
        if longest > MAX_SUBJECT {
            return Err(format!(
                "with names of {MAX_TOKEN} bytes it has {longest}, and a server takes {MAX_SUBJECT}"
            ));
        }
        Ok(subject)
    }

    /// Returns the subject of an alert.
    pub(super) fn of(&self, alert: &Alert) -> String {
        self.fill(|field| match field {
            Field::Hostname => token(&alert.hostname),
            Field::Priority => token(&alert.priority.to_string()),
            Field::Rule => token(&alert.rule),
            Field::Source => token(&alert.source),
        })
    }

    fn fill(&self, value: impl Fn(Field) -> String) -> String {
        let texts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Field(field) => value(*field),
        });
        texts.collect()
    }
}

/// Converts text to lower case and replaces all but letters and digits by `_`; a dot would begin
/// another token. Cuts after [`MAX_TOKEN`] bytes.
fn token(text: &str) -> String {
    let mut token = String::new();
    for c in text.chars() {
        if c.is_alphanumeric() {
            token.extend(c.to_lowercase());
        } else if !token.ends_with('_') {
            token.push('_');
        }
    }
    let mut ends = (0..=token.len().min(MAX_TOKEN)).rev();
    let end = ends.find(|end| token.is_char_boundary(*end));
    token.truncate(end.unwrap_or_default());
    match token.trim_matches('_') {
        "" => "_".to_owned(),
        token => token.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::testing::deliveries;
    use crate::format::Format;

    #[test]
    fn parts_of_the_alert_stand_for_names_in_brackets() {
        let alerts = deliveries(1, Format::default());
        let mut alert = alerts[0].alert().clone();
        alert.rule = "Read sensitive file (untrusted)".into();
        for (template, subject) in [
            (
                "falco.<priority>.<rule>",
                "falco.notice.read_sensitive_file_untrusted",
            ),
            ("a.<source>", "a.internal"),
            ("<hostname>.alerts", "box.alerts"),
            ("alerts", "alerts"),
        ] {
            assert_eq!(Subject::parse(template).unwrap().of(&alert), subject);
        }
        alert.rule = "a.b > *".into();
        assert_eq!(Subject::parse("<rule>").unwrap().of(&alert), "a_b");
        alert.rule = "...".into();
        assert_eq!(Subject::parse("x.<rule>").unwrap().of(&alert), "x._");
    }

    #[test]
    fn a_long_name_is_cut_so_that_the_server_takes_the_subject() {
        let alerts = deliveries(1, Format::default());
        let mut alert = alerts[0].alert().clone();
        let subject = Subject::parse("falco.<rule>").unwrap();
        for (rule, length) in [("x", 255), ("\u{e4}", 254)] {
            alert.rule = rule.repeat(5000).into();
            let filled = subject.of(&alert);
            assert_eq!(filled.len(), "falco.".len() + length);
        }
    }

    #[test]
    fn templates_that_are_no_subject_are_refused() {
        for (template, problem) in [
            ("", "it needs words"),
            ("a..b", "it needs words"),
            ("a.", "it needs words"),
            ("a b", "it needs words"),
            ("a.*", "it needs words"),
            ("a.>", "it needs words"),
            ("a.<rule", "a `<` has no `>`"),
            (&"a".repeat(2049), "with names of 255 bytes it has 2049"),
            (
                &["<rule>"; 9].join("."),
                "with names of 255 bytes it has 2303",
            ),
            (
                "a.<who>",
                "`<who>` is not one of <hostname>, <priority>, <rule>, <source>",
            ),
        ] {
            let error = Subject::parse(template).unwrap_err();
            assert!(error.starts_with(problem), "{template}: {error}");
        }
    }
}
