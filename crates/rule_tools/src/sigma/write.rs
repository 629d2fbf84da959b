//! Writes a rule as an item of a rule file.

use std::collections::BTreeSet;

use rules::level::Level;
use yaml::quote;

use super::fields::Category;
use super::pattern::quoted;
use super::selection::Expr;
use super::source::Header;

/// Returns the name of the rule: its title, with its identifier if another rule has the title.
pub(super) fn unique(header: &Header, taken: &BTreeSet<String>) -> String {
    let title = match header.title.is_empty() {
        true => "Sigma rule",
        false => &header.title,
    };
    let mut name = title.to_owned();
    if taken.contains(&name) {
        name = format!("{title} ({})", header.id);
    }
    let mut number = 2;
    while taken.contains(&name) {
        name = format!("{title} ({number})");
        number += 1;
    }
    name
}

/// Writes the item.
pub(super) fn item(name: &str, header: &Header, category: Category, condition: &Expr) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    if !header.id.is_empty() {
        line(format!("# Sigma rule {}", quote::comment(&header.id)));
    }
    if !header.author.is_empty() {
        line(format!("# Author: {}", quote::comment(&header.author)));
    }
    for reference in &header.references {
        line(format!("# {}", quote::comment(reference)));
    }
    line(format!("- rule: {}", quote::scalar(name)));
    let description = match header.description.is_empty() {
        true => name,
        false => &header.description,
    };
    line(format!("  desc: {}", quote::scalar(description)));
    line(String::from("  condition: >"));
    line(format!("    {}", category.condition()));
    let condition = match condition {
        Expr::All(parts) => parts.iter().map(|part| part.text(true)).collect(),
        other => vec![other.text(true)],
    };
    for part in condition {
        line(format!("    and {part}"));
    }
    let output = format!("{} {}", name.replace(['%', '*'], " "), category.output());
    line(format!("  output: {}", quote::scalar(&output)));
    line(format!("  priority: {}", priority(&header.level)));
    let tags: Vec<_> = header
        .tags
        .iter()
        .map(|tag| quote::scalar(&tag_of(tag)))
        .collect();
    line(format!("  tags: [{}]", tags.join(", ")));
    if matches!(header.status.as_str(), "deprecated" | "unsupported") {
        line(String::from("  enabled: false"));
    }
    line(String::from("  source: syscall"));
    out
}

/// Returns the priority of a level.
fn priority(level: &str) -> &'static str {
    match level {
        "critical" => "CRITICAL",
        "high" => "ERROR",
        "low" => "NOTICE",
        "informational" => "INFORMATIONAL",
        // A rule without a level is taken for one of the middle.
        _ => "WARNING",
    }
}

/// Returns the tag for one of Sigma's: `attack.t1059.004` is `T1059.004`, `attack.execution` is `mitre_execution`; software
/// and groups (`attack.s0029`) stay as they are.
fn tag_of(tag: &str) -> String {
    if Level::of_tag(tag).is_some() {
        // A level is this program's word, and would turn the rule off.
        return format!("sigma.{tag}");
    }
    let Some(attack) = tag.strip_prefix("attack.") else {
        return tag.to_owned();
    };
    let (kind, number) = attack.split_at(attack.len().min(1));
    let is_number = number.starts_with(|c: char| c.is_ascii_digit());
    match (kind, is_number) {
        ("t", true) => attack.to_ascii_uppercase(),
        (_, true) => tag.to_owned(),
        (_, false) => format!("mitre_{}", attack.replace('-', "_")),
    }
}

/// Writes a rule that has a regular expression alone.
pub(super) fn probe(regex: &str) -> String {
    let condition = format!("evt.type = execve and proc.name regex {}", quoted(regex));
    let condition = quote::scalar(&condition);
    format!(
        "- rule: probe\n  desc: probe\n  condition: {condition}\n  output: probe\n  priority: INFO\n"
    )
}
