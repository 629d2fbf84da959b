//! The techniques of MITRE ATT&CK, as a table.

/// Version of the table.
pub(super) const VERSION: &str = "18";

/// Tactics in the order of an attack.
pub(super) const TACTICS: [&str; 14] = [
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

const TABLE: &str = include_str!("../../data/attack.tsv");

/// Where a technique applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Platform {
    /// Linux.
    Linux,
    /// Containers, and not Linux alone.
    Container,
    /// Other systems only.
    Other,
}

impl Platform {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Container => "container",
            Self::Other => "other",
        }
    }
}

/// A technique or sub-technique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Technique {
    /// Such as `T1059.004`.
    pub(super) id: &'static str,
    pub(super) platform: Platform,
    /// Tactics, separated by commas.
    tactics: &'static str,
    pub(super) name: &'static str,
}

impl Technique {
    /// Returns all techniques, sorted by id.
    pub(super) fn all() -> impl Iterator<Item = Self> {
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

    pub(super) fn tactics(self) -> impl Iterator<Item = &'static str> {
        self.tactics.split(',')
    }

    /// Returns whether the technique is used against Linux or containers.
    pub(super) fn is_ours(self) -> bool {
        self.platform != Platform::Other
    }
}

/// Returns whether a tag of a rule has the form of an id, such as `T1059` or `T1059.004`.
pub(super) fn is_id(tag: &str) -> bool {
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

#[cfg(test)]
mod tests {
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
