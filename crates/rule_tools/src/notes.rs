//! Notes on rules for people who get their alerts.

use std::collections::BTreeMap;

use config::rule_files;
use diagnostics::failure::Failure;
use yaml::settings::{self, Entry, Problem};

use crate::described_event::unusable;

/// Notes on one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// Honest work that raises the alert.
    pub(crate) false_positives: String,
    /// What to do next, the first step first.
    pub(crate) steps: Vec<String>,
}

/// Reads the notes on the built-in rules, by name of the rule.
///
/// # Errors
///
/// The text has a mistake, which a test of this crate finds.
pub(crate) fn builtin() -> Result<BTreeMap<String, Note>, Failure> {
    read(rule_files::NOTES).map_err(|problem| unusable(&problem))
}

fn read(text: &str) -> Result<BTreeMap<String, Note>, Problem> {
    let root = settings::read("rules/notes.yaml", text)?;
    let mut shared = BTreeMap::new();
    let mut notes = BTreeMap::new();
    for entry in root.group()? {
        match &*entry.key {
            "steps" => {
                for step in entry.node.group()? {
                    shared.insert(step.key.clone(), one_line(step.node.text()?));
                }
            }
            "rules" => {
                for rule in entry.node.group()? {
                    notes.insert(rule.key.clone(), note(rule, &shared)?);
                }
            }
            _ => return Err(unknown_key(entry)),
        }
    }
    Ok(notes)
}

fn note(rule: &Entry, shared: &BTreeMap<String, String>) -> Result<Note, Problem> {
    let mut note = Note::default();
    let mut then = Vec::new();
    for entry in rule.node.group()? {
        match &*entry.key {
            "false_positives" => note.false_positives = one_line(entry.node.text()?),
            "check" => note.steps.push(one_line(entry.node.text()?)),
            "then" => {
                for step in entry.node.list()? {
                    let name = step.text()?;
                    let text = shared.get(name).ok_or_else(|| {
                        Problem::new(&step.origin, format!("there is no step `{name}`"))
                    })?;
                    then.push(text.clone());
                }
            }
            _ => return Err(unknown_key(entry)),
        }
    }
    if note.false_positives.is_empty() || note.steps.is_empty() {
        let message = format!(
            "the note on `{}` has no false_positives or no check",
            rule.key
        );
        return Err(Problem::new(&rule.node.origin, message));
    }
    note.steps.extend(then);
    Ok(note)
}

fn unknown_key(entry: &Entry) -> Problem {
    Problem::new(&entry.node.origin, format!("unknown key `{}`", entry.key))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_built_in_rule_has_a_note_and_every_note_a_rule() {
        let text = [rule_files::BUILTIN, rule_files::MORE].concat();
        let (ruleset, _) = rules::Loader::new().add("built-in", &text).finish();
        let rules: BTreeSet<_> = ruleset.rules.iter().map(|rule| &*rule.name).collect();
        let notes = read(rule_files::NOTES).expect("the notes are right");
        let noted: BTreeSet<_> = notes.keys().map(String::as_str).collect();
        assert_eq!(noted, rules);
    }

    #[test]
    fn a_note_without_a_step_or_with_an_unknown_one_is_a_mistake() {
        let steps = "steps: {look: Look.}\nrules:\n";
        let good = "  R: {false_positives: None., check: See., then: [look]}\n";
        let notes = read(&format!("{steps}{good}")).expect("it is right");
        assert_eq!(notes["R"].steps, ["See.", "Look."]);
        for (bad, cause) in [
            (
                "  R: {false_positives: None.}\n",
                "has no false_positives or no check",
            ),
            (
                "  R: {false_positives: None., check: See., then: [lok]}\n",
                "no step `lok`",
            ),
            (
                "  R: {false_positive: None., check: See.}\n",
                "unknown key `false_positive`",
            ),
        ] {
            let problem = read(&format!("{steps}{bad}")).expect_err(bad);
            assert!(problem.message.contains(cause), "{}", problem.message);
        }
    }
}
