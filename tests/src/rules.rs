//! Rule files that tests load.

use std::fs;
use std::path::PathBuf;

use crate::binary::repository;

/// A rule that fires on every program start: proof that a run without other alerts was watched at all.
pub const SENTINEL: &str = "\
- rule: Sentinel
  desc: every program start
  condition: evt.type in (execve, execveat) and evt.rawres = 0
  output: started process=%proc.name command=%proc.cmdline pid=%proc.pid container=%container.id
  priority: DEBUG
  tags: [sentinel]
";

/// Properties of a rule in the published rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StockRule {
    /// Name of the rule.
    pub name: String,
    /// Priority of the rule, in capitals.
    pub priority: String,
    /// Tags of the rule.
    pub tags: Vec<String>,
    /// Fields of its output.
    pub fields: Vec<String>,
}

/// Returns Falco's stable rules, which lie next to the repository where its references are shared.
pub fn stock_rules_file() -> Option<PathBuf> {
    let path = repository()
        .parent()?
        .join("shared/reference/upstream/falco_rules.yaml");
    path.is_file().then_some(path)
}

/// Returns the path of our own rules, if they exist.
pub fn default_rules() -> Option<PathBuf> {
    let path = repository().join("rules/default.yaml");
    path.is_file().then_some(path)
}

/// Files of the built-in rules, in the order in which they are loaded.
const BUILTIN: [&str; 10] = [
    "default.yaml",
    "command_and_control.yaml",
    "credential_access.yaml",
    "defense_evasion.yaml",
    "execution.yaml",
    "exfiltration.yaml",
    "impact.yaml",
    "persistence.yaml",
    "counted.yaml",
    "risk.yaml",
];

/// Returns the files of the built-in rules, in the order in which they are loaded.
///
/// # Panics
/// If one of them is not part of the repository.
pub fn builtin_rule_files() -> Vec<PathBuf> {
    let paths = BUILTIN.map(|name| repository().join("rules").join(name));
    for path in &paths {
        assert!(path.is_file(), "{} is missing", path.display());
    }
    paths.to_vec()
}

/// Returns the text of all built-in rules.
///
/// # Panics
/// If a file cannot be read.
pub fn builtin_rules() -> String {
    let read = |path: PathBuf| {
        fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
    };
    let texts = builtin_rule_files().into_iter().map(read);
    texts.collect::<Vec<_>>().join("\n")
}

/// Reads names, priorities, tags and output fields by plain text search, so that what tests expect does not
/// come from the loader they test.
///
/// # Panics
/// If the file cannot be read or has another form.
pub fn stock_rules(file: &PathBuf) -> Vec<StockRule> {
    let text = fs::read_to_string(file)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
    let items = text
        .split("\n- ")
        .filter_map(|item| item.strip_prefix("rule: "));
    items.map(stock_rule).collect()
}

fn stock_rule(item: &str) -> StockRule {
    // Comments between rules belong to the next rule.
    let item = item.split("\n#").next().unwrap_or(item);
    let name = item
        .lines()
        .next()
        .expect("text has a line")
        .trim()
        .to_owned();
    let after = |key: &str| {
        let (_, rest) = item
            .split_once(&format!("\n  {key}:"))
            .unwrap_or_else(|| panic!("no {key} in {name}"));
        rest.trim_start()
            .lines()
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let tags = after("tags");
    let tags = tags
        .trim_start_matches('[')
        .trim_end_matches(']')
        .split(',');
    let output = item.split_once("\n  output:").map_or("", |(_, rest)| rest);
    let output = output.split("\n  priority:").next().unwrap_or_default();
    let field = |part: &str| {
        let end = part.find(|c: char| !(c.is_alphanumeric() || "._[]".contains(c)));
        part[..end.unwrap_or(part.len())].to_owned()
    };
    StockRule {
        priority: after("priority"),
        tags: tags.map(|tag| tag.trim().to_owned()).collect(),
        fields: output.split('%').skip(1).map(field).collect(),
        name,
    }
}
