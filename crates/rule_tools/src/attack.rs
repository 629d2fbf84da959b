//! The techniques of MITRE ATT&CK, as a table.

use rules::Rule;
use rules::diagnostic::closest;

/// Version of the table.
pub(crate) const VERSION: &str = "18";

/// Tactics in the order of an attack.
pub(crate) const TACTICS: [&str; 14] = [
    "reconnaissance",
    "resource-development",
    "initial-access",
    "execution",
    "persistence",
    "privilege-escalation",
    "defense-evasion",
    "credential-access",
    "discovery",
    "lateral-movement",
    "collection",
    "command-and-control",
    "exfiltration",
    "impact",
];

const TABLE: &str = include_str!("../data/attack.tsv");

/// Where a technique applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Platform {
    /// Linux.
    Linux,
    /// Containers, and not Linux alone.
    Container,
    /// Other systems only.
    Other,
}

impl Platform {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Container => "container",
            Self::Other => "other",
        }
    }
}

/// A technique or sub-technique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Technique {
    /// Such as `T1059.004`.
    pub(crate) id: &'static str,
    pub(crate) platform: Platform,
    /// Tactics, separated by commas.
    tactics: &'static str,
    pub(crate) name: &'static str,
}

impl Technique {
    /// Returns all techniques, sorted by id.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| Self::parse(line).expect("a test reads the whole table"))
    }

    fn parse(line: &'static str) -> Option<Self> {
        let mut cells = line.split('\t');
        Some(Self {
            id: cells.next()?,
            platform: match cells.next()? {
                "linux" => Platform::Linux,
                "container" => Platform::Container,
                "other" => Platform::Other,
                _ => return None,
            },
            tactics: cells.next()?,
            name: cells.next()?,
        })
    }

    /// Returns the technique with this id.
    pub(crate) fn find(id: &str) -> Option<Self> {
        Self::all().find(|technique| technique.id == id)
    }

    pub(crate) fn tactics(self) -> impl Iterator<Item = &'static str> {
        self.tactics.split(',')
    }

    /// Returns whether the technique is used against Linux or containers.
    pub(crate) fn is_ours(self) -> bool {
        self.platform != Platform::Other
    }
}

/// Returns whether a tag of a rule has the form of an id, such as `T1059` or `T1059.004`.
pub(crate) fn is_id(tag: &str) -> bool {
    let Some(digits) = tag.strip_prefix('T') else {
        return false;
    };
    let (technique, sub) = match digits.split_once('.') {
        Some((technique, sub)) => (technique, Some(sub)),
        None => (digits, None),
    };
    let are_digits = |text: &str, count: usize| {
        text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    are_digits(technique, 4) && sub.is_none_or(|sub| are_digits(sub, 3))
}

/// Returns the tactic that a tag of a rule names, such as `defense-evasion` of `mitre_defense_evasion`.
pub(crate) fn tactic(tag: &str) -> Option<&'static str> {
    let name = tag.strip_prefix("mitre_")?.replace('_', "-");
    TACTICS.into_iter().find(|tactic| *tactic == name)
}

/// Returns a message for each tag of a rule that looks like a technique or a tactic and is none, with the tag that was
/// perhaps meant.
pub(crate) fn unknown_tags(rule: &Rule) -> impl Iterator<Item = (String, Option<String>)> {
    rule.tags.iter().filter_map(|tag| {
        if is_id(tag) && Technique::find(tag).is_none() {
            let near = closest(tag, Technique::all().map(|technique| technique.id));
            let message = format!("ATT&CK {VERSION} has no technique {tag}");
            Some((message, near.map(str::to_owned)))
        } else if tag.starts_with("mitre_") && tactic(tag).is_none() {
            let tags = TACTICS.map(|tactic| format!("mitre_{}", tactic.replace('-', "_")));
            let near = closest(tag, tags.iter().map(String::as_str)).map(str::to_owned);
            Some((
                format!("ATT&CK {VERSION} has no tactic for the tag {tag}"),
                near,
            ))
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use config::rule_files;

    use super::*;

    #[test]
    fn every_line_is_a_technique_of_known_tactics() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        let all: Vec<_> = lines
            .map(|line| Technique::parse(line).unwrap_or_else(|| panic!("{line}")))
            .collect();
        assert!(all.is_sorted_by(|a, b| a.id < b.id), "sorted, each once");
        assert!(all.len() > 600, "{}", all.len());
        for technique in all {
            assert!(is_id(technique.id), "{technique:?}");
            assert!(!technique.name.is_empty(), "{technique:?}");
            for tactic in technique.tactics() {
                assert!(TACTICS.contains(&tactic), "{technique:?}");
            }
        }
    }

    #[test]
    fn every_built_in_rule_names_a_technique_and_the_tactics_that_it_serves() {
        let text = [rule_files::BUILTIN, rule_files::MORE].concat();
        let (ruleset, diagnostics) = rules::Loader::new().add("built-in", &text).finish();
        assert!(diagnostics.is_empty(), "{diagnostics:?}");
        for rule in &ruleset.rules {
            let tags = || rule.tags.iter().map(String::as_str);
            let ids: Vec<_> = tags().filter(|tag| is_id(tag)).collect();
            let techniques: Vec<_> = ids.iter().filter_map(|id| Technique::find(id)).collect();
            assert_eq!(techniques.len(), ids.len(), "{}: {ids:?}", rule.name);
            assert!(!techniques.is_empty(), "{}: {ids:?}", rule.name);
            let named: Vec<_> = tags().filter(|tag| tag.starts_with("mitre_")).collect();
            let tactics: Vec<_> = named.iter().filter_map(|tag| tactic(tag)).collect();
            assert_eq!(tactics.len(), named.len(), "{}: {named:?}", rule.name);
            // `TA0003` stands for a tactic of which the rule names no single technique.
            let has_tactic_id = tags().any(|tag| tag.starts_with("TA"));
            let serves = |wanted: &str| {
                techniques
                    .iter()
                    .any(|known| known.tactics().any(|one| one == wanted))
            };
            assert!(
                tactics.iter().any(|wanted| serves(wanted)),
                "{}: {named:?} {ids:?}",
                rule.name
            );
            for wanted in tactics {
                assert!(
                    serves(wanted) || has_tactic_id,
                    "{}: no technique of {wanted}: {ids:?}",
                    rule.name
                );
            }
        }
    }

    #[test]
    fn ids_are_told_from_other_tags() {
        for id in ["T1059", "T1059.004"] {
            assert!(is_id(id), "{id}");
        }
        for other in [
            "", "T", "T105", "T10590", "T1059.", "T1059.04", "t1059", "TA0002", "T105x",
        ] {
            assert!(!is_id(other), "{other}");
        }
    }
}
