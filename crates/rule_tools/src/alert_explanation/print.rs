//! An explained alert as text and as JSON.

use serde_json::{Value, json};

use super::{AlertExplanation, Evaluated, KnownRule};
use crate::event_explanation::{json_clause, reasons};

/// Version of [`AlertExplanation::object`]. It grows when a key changes its meaning or goes.
const FORMAT: u32 = 1;
/// Maximum number of processes that the text shows. Each is indented by its depth.
const SHOWN: usize = 64;

impl AlertExplanation<'_> {
    pub(super) fn text(&self) -> String {
        let mut out = self.happened();
        match &self.known {
            Some(known) => out.push_str(&known.text()),
            None => out.push_str(&format!(
                "\nwhy it matters, which clauses matched\n  unknown: the rule `{}` is not loaded; name its file\n",
                printable(&self.facts.rule)
            )),
        }
        out.push_str(&self.text_tree());
        if let Some(note) = &self.note {
            out.push_str("\ncheck next\n");
            for (at, step) in note.steps.iter().enumerate() {
                out.push_str(&format!("  {}. {step}\n", at + 1));
            }
            out.push_str(&format!(
                "\nknown false positives\n  {}\n  If it is one: `tollgate rules silence`.\n",
                note.false_positives
            ));
        }
        if !self.techniques.is_empty() {
            out.push_str("\ntechnique\n");
        }
        for technique in &self.techniques {
            let tactics: Vec<_> = technique.tactics().collect();
            out.push_str(&format!(
                "  {}  {} ({})\n",
                technique.id,
                technique.name,
                tactics.join(", ")
            ));
        }
        out
    }

    fn happened(&self) -> String {
        let facts = &self.facts;
        let rule = printable(&facts.rule);
        let mut out = match &facts.priority {
            Some(priority) => format!("{}: {rule}\n", printable(priority)),
            None => format!("{rule}\n"),
        };
        let parts: Vec<_> = [(facts.time.as_ref(), ""), (facts.host.as_ref(), "on ")]
            .into_iter()
            .filter_map(|(text, before)| Some(format!("{before}{}", printable(text?))))
            .collect();
        let when = if parts.is_empty() {
            String::new()
        } else {
            format!("{}: ", parts.join(" "))
        };
        out.push_str(&format!(
            "\nwhat happened\n  {when}{}.\n",
            printable(&self.sentence())
        ));
        out
    }

    fn sentence(&self) -> String {
        let title = self.facts.title.trim_end_matches('.');
        let all = std::iter::once(title).chain(self.facts.circumstances.iter().map(String::as_str));
        all.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn text_tree(&self) -> String {
        let mut out = String::from("\nprocess tree\n");
        // Each alert decides how many it has.
        let more = self.facts.ancestors.len().saturating_sub(SHOWN);
        if more > 0 {
            out.push_str(&format!("  {more} more, older ones\n"));
        }
        let mut last: Option<usize> = None;
        for (depth, (level, ancestor)) in self.tree().skip(more).enumerate() {
            let indent = "  ".repeat(depth + 1);
            if last.is_some_and(|last| last > level + 1) {
                out.push_str(&format!("{indent}...\n"));
            }
            last = Some(*level);
            let command = ancestor.cmdline.as_ref().or(ancestor.name.as_ref());
            let command = command.map_or("?".to_owned(), |command| printable(command));
            let pid = ancestor
                .pid
                .as_ref()
                .map(|pid| format!("  (pid {})", printable(pid)));
            out.push_str(&format!("{indent}{command}{}\n", pid.unwrap_or_default()));
        }
        match last {
            Some(_) => out,
            None => out + "  the alert has none\n",
        }
    }

    pub(super) fn object(&self) -> Value {
        let known = self.known.as_ref();
        let evaluated = known.and_then(|known| known.clause.as_ref().ok());
        let clause = evaluated.map(|evaluated| &evaluated.clause);
        let tree = self.tree().map(|(level, ancestor)| {
            json!({ "level": level, "name": ancestor.name, "cmdline": ancestor.cmdline, "pid": ancestor.pid })
        });
        let techniques = self.techniques.iter().map(|technique| {
            let tactics: Vec<_> = technique.tactics().collect();
            json!({ "id": technique.id, "name": technique.name, "tactics": tactics })
        });
        json!({
            "version": FORMAT,
            "rule": self.facts.rule,
            "rule_loaded": known.is_some(),
            "priority": self.facts.priority,
            "time": self.facts.time,
            "hostname": self.facts.host,
            "happened": self.sentence(),
            "why": known.map(|known| known.rule.desc.trim()),
            "matches": clause.and_then(|clause| clause.holds),
            "type_inferred": evaluated.and_then(|evaluated| evaluated.inferred),
            "condition": clause.map(json_clause),
            "condition_error": known.and_then(|known| known.clause.as_ref().err()),
            "tree": tree.collect::<Vec<_>>(),
            "check_next": self.note.as_ref().map(|note| &note.steps),
            "false_positives": self.note.as_ref().map(|note| &note.false_positives),
            "techniques": techniques.collect::<Vec<_>>(),
        })
    }
}

impl KnownRule<'_> {
    fn text(&self) -> String {
        let desc: Vec<_> = self.rule.desc.split_whitespace().collect();
        let mut out = format!(
            "\nwhy it matters\n  {}\n\nmatched because\n",
            printable(&desc.join(" "))
        );
        let Evaluated { clause, inferred } = match &self.clause {
            Ok(evaluated) => evaluated,
            Err(cause) => {
                out.push_str(&format!("  unknown: {}\n", printable(cause)));
                return out;
            }
        };
        match clause.holds {
            Some(true) => {}
            Some(false) => out.push_str(
                "  The rule, as it is loaded here, does not match this alert: another version of it raised the alert.\n",
            ),
            None => out.push_str("  `?` marks what the alert has no fields for.\n"),
        }
        if let Some(kind) = inferred {
            out.push_str(&format!(
                "  `evt.type` is not in the alert; `{kind}` is taken because the rule fits it.\n"
            ));
        }
        for line in reasons(clause) {
            out.push_str(&format!("  {}\n", printable(&line)));
        }
        out
    }
}

/// Returns text of a workload for a terminal.
fn printable(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '"' | '\\' | '\'' => out.push(character),
            _ => out.extend(character.escape_debug()),
        }
    }
    out
}
