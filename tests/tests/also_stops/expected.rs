//! What `fixtures/also_stops.txt` says rules and texts are about.

use std::collections::{BTreeMap, BTreeSet};

/// `fixtures/also_stops.txt`.
pub(super) struct Expected {
    /// What rules are about, by how their names begin.
    about: Vec<(&'static str, Vec<&'static str>)>,
    /// What texts of the program mean, by how they begin.
    pub(super) stops: Vec<(&'static str, Vec<&'static str>)>,
    /// The same for texts of AppArmor's alone.
    pub(super) apparmor: Vec<(&'static str, Vec<&'static str>)>,
}

impl Expected {
    pub(super) fn read() -> Self {
        let mut sets: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut found = Self {
            about: Vec::new(),
            stops: Vec::new(),
            apparmor: Vec::new(),
        };
        let lines = include_str!("../../fixtures/also_stops.txt").lines();
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (kind, rest) = line.split_once(' ').expect("a line has a kind");
            let separator = match kind {
                "stops" | "apparmor" => " = ",
                _ => " ",
            };
            let (name, words) = rest.split_once(separator).expect("a line has operations");
            let mut operations = Vec::new();
            for word in words.split(' ').filter(|word| *word != "-") {
                match word.strip_prefix('@') {
                    Some(set) => operations.extend(sets[set].iter().copied()),
                    None => operations.push(word),
                }
            }
            match kind {
                "set" => sets.entry(name).or_default().extend(operations),
                "about" => found.about.push((name, operations)),
                "stops" => found.stops.push((name, operations)),
                "apparmor" => found.apparmor.push((name, operations)),
                other => panic!("no such kind of line: {other}"),
            }
        }
        found
    }

    /// The operations that a text of the program means.
    pub(super) fn meaning(&self, text: &str) -> &[&'static str] {
        let mut every = self.stops.iter().chain(&self.apparmor);
        let known = every.find(|(begin, _)| text.starts_with(begin));
        let (_, operations) =
            known.unwrap_or_else(|| panic!("also_stops.txt does not say what `{text}` means"));
        operations
    }

    /// The operations that failed although the rule is not about them and no text means them.
    pub(super) fn unlisted<'f>(
        &self,
        rule: &str,
        said: &BTreeSet<String>,
        failed: &[(&'f str, i32)],
    ) -> Vec<(&'f str, i32)> {
        let about = self.about(rule);
        let is_listed = |name: &str| said.iter().any(|text| has(self.meaning(text), name));
        let is_unlisted = |(name, _): &&(&str, i32)| !has(about, name) && !is_listed(name);
        failed.iter().filter(is_unlisted).copied().collect()
    }

    /// The texts that mean an operation that failed.
    pub(super) fn shown(
        &self,
        said: &BTreeSet<String>,
        failed: &[(&str, i32)],
    ) -> BTreeSet<String> {
        let happens = |text: &&String| failed.iter().any(|(name, _)| has(self.meaning(text), name));
        said.iter().filter(happens).cloned().collect()
    }

    /// The operations that a rule is about.
    pub(super) fn about(&self, rule: &str) -> &[&'static str] {
        let known = self.about.iter().find(|(begin, _)| rule.starts_with(begin));
        known.map_or(&[], |(_, operations)| operations)
    }
}

/// Returns whether a pattern of the list names the operation.
fn has(patterns: &[&str], operation: &str) -> bool {
    patterns
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(begin) => operation.starts_with(begin),
            None => operation == *pattern,
        })
}
