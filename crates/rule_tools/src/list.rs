//! Lists rules, or shows one in full.

use std::io::ErrorKind;
use std::path::PathBuf;

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use rules::Rule;
use rules::diagnostic::closest;
use rules::ruleset::{Count, Counted};
use serde_json::{Value, json};
use yaml::quote::comment;

use crate::RuleFiles;

/// Prints the list of rules, or one rule in full.
///
/// # Errors
///
/// The rules have errors, or there is no such rule.
pub fn execute(files: &RuleFiles, rule: Option<&str>, is_json: bool) -> Outcome {
    // What cannot be looked at, such as a file in a folder of another user, is reported when it is read.
    let is_absent = |file: &&PathBuf| {
        file.metadata()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    if let Some(absent) = files.named.iter().find(is_absent) {
        let message = format!("cannot read {}: no such file", absent.display());
        let help = "a rule is shown by its name: tollgate rules list --rule 'Write below etc'";
        return Err(Failure::new(Exit::BadInput, message).help(help));
    }
    let loaded = files.load_to_show()?;
    loaded.usable()?;
    let rules = &loaded.ruleset.rules;
    let Some(name) = rule else {
        return terminal::print(&if is_json {
            json_list(rules)
        } else {
            text_list(rules)
        });
    };
    let Some(rule) = loaded.ruleset.rule(name) else {
        let failure = Failure::new(
            Exit::BadInput,
            format!("cannot show rule `{name}`: no such rule"),
        );
        let similar = closest(name, rules.iter().map(|rule| &*rule.name));
        return Err(failure.help(match similar {
            Some(similar) => format!("did you mean `{similar}`?"),
            None => "`tollgate rules list` shows all".to_owned(),
        }));
    };
    terminal::print(&if is_json {
        format!("{}\n", json_rule(rule))
    } else {
        text_rule(rule)
    })
}

fn text_list(rules: &[Rule]) -> String {
    let width = rules
        .iter()
        .map(|rule| comment(&rule.name).chars().count())
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    for rule in rules {
        let off = match (rule.enabled, rule.is_silent()) {
            (false, _) => "  (disabled)",
            (true, true) => "  (adds to a risk, no alert)",
            (true, false) => "",
        };
        let priority = rule.priority.name();
        out.push_str(&format!(
            "{:width$}  {priority}{off}\n",
            comment(&rule.name)
        ));
    }
    out
}

fn text_rule(rule: &Rule) -> String {
    let tags: Vec<_> = rule.tags.iter().map(String::as_str).collect();
    let mut out = format!(
        "{}\n  priority   {}\n  source     {}\n  tags       {}\n  enabled    {}\n  defined    {}\n  \
         desc       {}\n  condition  {}\n  output     {}\n",
        comment(&rule.name),
        rule.priority.name(),
        comment(&rule.source),
        comment(&tags.join(", ")),
        rule.enabled,
        comment(&rule.location.to_string()),
        lines(&rule.desc),
        lines(&rule.condition.to_string()),
        lines(&rule.output.text),
    );
    if let Some(risk) = rule.risk {
        let silent = if risk.is_silent { ", no alert" } else { "" };
        out.push_str(&format!("  risk       {}{silent}\n", risk.weight));
    }
    if let Some(count) = &rule.count {
        out.push_str(&format!("  count      {}\n", comment(&count_words(count))));
    }
    out
}

/// Describes what a rule counts before it alerts.
fn count_words(count: &Count) -> String {
    let Count { over, .. } = count;
    let mut out = match &count.of {
        Counted::Matches => format!("over {over} matches"),
        Counted::Risk { .. } => format!("risk over {over} in a process tree"),
    };
    out += &format!(" within {} s", f64::from(count.within_ms) / 1000.0);
    if !count.by.is_empty() {
        out += &format!(", by {}", count.by.join(", "));
    }
    if !count.distinct.is_empty() {
        out += &format!(", distinct {}", count.distinct.join(", "));
    }
    if let Counted::Risk { below } = &count.of
        && !below.is_empty()
    {
        out += &format!(", below {}", below.join(", "));
    }
    out
}

fn json_count(count: &Count) -> Value {
    let (key, below) = match &count.of {
        Counted::Matches => ("over", None),
        Counted::Risk { below } => ("risk_over", Some(below)),
    };
    json!({
        key: count.over,
        "within_ms": count.within_ms,
        "by": count.by,
        "distinct": count.distinct,
        "below": below,
    })
}

/// Returns text of several lines for a terminal.
fn lines(text: &str) -> String {
    text.split('\n').map(comment).collect::<Vec<_>>().join("\n")
}

fn json_list(rules: &[Rule]) -> String {
    let rules: Vec<_> = rules.iter().map(json_rule).collect();
    format!("{}\n", json!({ "rules": rules }))
}

fn json_rule(rule: &Rule) -> Value {
    let exceptions: Vec<_> = rule
        .exceptions
        .iter()
        .map(|exception| &exception.name)
        .collect();
    json!({
        "name": &*rule.name,
        "description": rule.desc,
        "condition": rule.condition.to_string(),
        "output": rule.output.text,
        "priority": rule.priority.name(),
        "source": rule.source,
        "tags": rule.tags,
        "enabled": rule.enabled,
        "exceptions": exceptions,
        "risk": rule.risk.map(|risk| json!({ "weight": risk.weight, "silent": risk.is_silent })),
        "count": rule.count.as_ref().map(json_count),
        "file": &*rule.location.file,
        "line": rule.location.line,
    })
}

#[cfg(test)]
mod tests {
    use config::rule_files::{self, RuleFile};

    use super::*;

    #[test]
    fn names_and_texts_of_rules_do_not_reach_the_terminal_raw() {
        let text = "- rule: \"R\\x1b[2J\"\n  desc: \"one\\ntwo\\x1b[2J\"\n  condition: evt.type = open\n  \
            output: \"o\\x1b[2J\"\n  priority: INFO\n";
        let file = RuleFile {
            name: "r\u{1b}.yaml".into(),
            text: Ok(text.to_owned()),
        };
        let loaded = rule_files::load_read(vec![file]);
        let rules = &loaded.ruleset.rules;
        for text in [text_list(rules), text_rule(&rules[0])] {
            assert!(text.contains("R\\x1b[2J"), "{text:?}");
            assert!(!text.contains('\u{1b}'), "{text:?}");
        }
        assert!(text_rule(&rules[0]).contains("one\ntwo"));
    }
}
