//! The list of candidates, as text and as JSON.

use std::path::PathBuf;

use serde_json::{Value, json};
use yaml::quote;

use super::alert::Alert;
use super::{Proposal, Written};

/// What is listed.
pub(super) struct Listing<'a> {
    pub(super) alert: &'a Alert,
    pub(super) options: &'a [Proposal],
    pub(super) against: &'a [PathBuf],
}

impl Listing<'_> {
    /// Formats the candidates for people.
    pub(super) fn text(&self) -> String {
        let mut out = format!(
            "rule     {}\nalert    {}\n\n",
            quote::comment(&self.alert.rule),
            quote::comment(&self.alert.output)
        );
        for (number, option) in (1..).zip(self.options) {
            out.push_str(&format!("{number:3}  {}\n", option.candidate.title));
            out.push_str(&format!("     {}\n", option.candidate.condition()));
            if option.left.is_none() {
                out.push_str("     silences the rule altogether: needs --force\n");
            }
            for (count, path) in option.counts.iter().zip(self.against) {
                let unknown = match count.unknown {
                    0 => String::new(),
                    unknown => format!(", unknown for {unknown}"),
                };
                out.push_str(&format!(
                    "     silences {} of {} alerts in {}{unknown}\n",
                    count.silenced,
                    count.all,
                    path.display()
                ));
                for example in &count.examples {
                    out.push_str(&format!("       also: {example}\n"));
                }
            }
        }
        out.push('\n');
        out
    }

    /// Returns the candidates for programs.
    pub(super) fn json(&self, written: Option<&Written<'_>>) -> Value {
        let candidates: Vec<_> = self
            .options
            .iter()
            .map(|option| self.candidate(option))
            .collect();
        let files: Vec<_> = written.map_or_else(Vec::new, |written| {
            let paths = [&written.target.rules, &written.target.test];
            paths.map(|path| path.display().to_string()).to_vec()
        });
        json!({
            "rule": self.alert.rule,
            "candidates": candidates,
            "chosen": written.map(|written| written.number + 1),
            "written": files,
            "own_action": written.map(|written| written.own.object()),
        })
    }

    fn candidate(&self, option: &Proposal) -> Value {
        let tests = option.candidate.tests.iter().map(|test| {
            json!({ "field": test.field, "comparison": test.comparison.word(), "value": test.value })
        });
        let counts = option.counts.iter().zip(self.against).map(|(count, path)| {
            json!({
                "file": path.display().to_string(),
                "alerts": count.all,
                "silenced": count.silenced,
                "unknown": count.unknown,
                "examples": count.examples,
            })
        });
        json!({
            "title": option.candidate.title,
            "condition": option.candidate.condition(),
            "tests": tests.collect::<Vec<_>>(),
            "silences_alert": option.silences,
            "silences_rule": option.left.is_none(),
            "against": counts.collect::<Vec<_>>(),
        })
    }
}
