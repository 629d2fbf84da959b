//! Coverage as lines for people.

use yaml::quote::comment;

use super::{Coverage, Row, RuleSight, names};
use crate::attack::{TACTICS, Technique, VERSION};

/// Number of rules that a line names.
const SHOWN: usize = 3;

impl Coverage<'_> {
    pub(super) fn text(&self, long: bool) -> String {
        let mut out = format!(
            "ATT&CK {VERSION}: techniques for Linux and containers that enabled rules name (engines: {})\n",
            names(&self.abilities.engines).join(", ")
        );
        out.push_str(&self.limits());
        for tactic in TACTICS {
            let (covered, all) = self.count(Some(tactic));
            let rows = || self.rows.iter().filter(|row| row.is_of(tactic));
            if all == 0 && rows().next().is_none() {
                continue;
            }
            out.push_str(&format!("\n{tactic}  {covered} of {all}\n"));
            for row in rows().filter(|row| row.is_covered()) {
                out.push_str(&line(row));
            }
            for row in rows().filter(|row| !row.is_covered() && (long || !row.rules.is_empty())) {
                out.push_str(&line(row));
            }
        }
        let (covered, all) = self.count(None);
        out.push_str(&format!("\nall tactics  {covered} of {all} techniques\n"));
        out.push_str(&self.text_levels());
        out.push_str(&self.doubts());
        out
    }

    /// Formats what does not work here.
    fn limits(&self) -> String {
        let mut out = String::new();
        for missing in &self.abilities.missing {
            out.push_str(&format!(
                "{} does not work here: {}\n",
                missing.kind.name(),
                missing.why
            ));
            if let Some(fix) = &missing.fix {
                out.push_str(&format!("  help: {fix}\n"));
            }
        }
        for limit in &self.abilities.limits {
            out.push_str(&format!("limit: {limit}\n"));
        }
        out
    }

    fn text_levels(&self) -> String {
        let mut out = String::from("\nlevels\n");
        for (level, rules) in self.levels().filter(|(_, rules)| *rules > 0) {
            let (noun, them) = if rules == 1 {
                ("rule", "it")
            } else {
                ("rules", "them")
            };
            let state = match level <= self.level {
                true => "on".to_owned(),
                false => format!("off; --level {level} turns {them} on"),
            };
            out.push_str(&format!("  {:8}  {rules} {noun}  {state}\n", level.name()));
        }
        out
    }

    /// Formats the rules that cannot alert, that see a part, or whose tags say too little.
    fn doubts(&self) -> String {
        // The rules of levels that are off are many, and counted above.
        let on = self.rules.iter();
        let on = on.filter(|entry| entry.rule.level() <= self.level);
        let unseen = on.filter_map(|entry| Some((entry, entry.sight.why_not()?)));
        let limited = self
            .rules
            .iter()
            .filter_map(|entry| Some((entry, entry.sight.limit()?)));
        let mut out = section("rules that cannot alert", unseen.collect());
        out.push_str(&section(
            "rules that see a part of what they are about",
            limited.collect(),
        ));
        let untagged = self.untagged();
        if !untagged.is_empty() {
            out.push_str(&format!(
                "\nrules that name no technique  {}\n",
                untagged.len()
            ));
            for rule in untagged {
                out.push_str(&format!("  {}\n", comment(rule)));
            }
        }
        for (tag, rules) in &self.unknown {
            out.push_str(&format!(
                "warning: ATT&CK {VERSION} has no technique {} (rule {})\n",
                comment(tag),
                comment(&rules.join(", "))
            ));
        }
        out
    }
}

fn section(title: &str, rules: Vec<(&RuleSight<'_>, &str)>) -> String {
    if rules.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{title}  {}\n", rules.len());
    for (entry, why) in rules {
        out.push_str(&format!(
            "  {}: {}\n",
            comment(&entry.rule.name),
            comment(why)
        ));
    }
    out
}

fn line(row: &Row<'_>) -> String {
    let Technique { id, name, .. } = row.technique;
    let mut shown: Vec<_> = row.seen().map(|entry| comment(&entry.rule.name)).collect();
    let is_covered = !shown.is_empty();
    if !is_covered {
        shown = row.unseen().map(|(rule, _)| comment(&rule.name)).collect();
    }
    if shown.len() > SHOWN {
        let more = shown.len() - SHOWN;
        shown.truncate(SHOWN);
        shown.push(format!("{more} more"));
    }
    let rules = match (is_covered, shown.is_empty()) {
        (true, _) => shown.join("; "),
        (false, true) => "-".to_owned(),
        (false, false) => format!("not seen: {}", shown.join("; ")),
    };
    format!("  {id:9}  {name:42}  {rules}\n")
}
