//! Levels of rules: how much attention an alert asks for.
//!
//! A level is a tag of the rule, because Falco takes any tag and warns of keys that it does not know.

use std::fmt;
use std::str::FromStr;

use crate::diagnostic::closest;
use crate::ruleset::Rule;

/// How much attention the alerts of a rule ask for. A higher level includes the lower ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Somebody should look at each alert. Rules without a tag of a level have this one.
    #[default]
    Stable,
    /// Alerts for people who look for something: many, and most of them are ordinary work.
    Hunting,
    /// Records for an examination: alerts are written down, and sent nowhere.
    Forensic,
}

/// Start of the tags that name a level.
const PREFIX: &str = "level_";

impl Level {
    /// All levels, the lowest first.
    pub const ALL: [Self; 3] = [Self::Stable, Self::Hunting, Self::Forensic];

    /// Returns the name on command lines and in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Hunting => "hunting",
            Self::Forensic => "forensic",
        }
    }

    /// Returns the tag of rules of this level, such as `level_hunting`.
    #[must_use]
    pub fn tag(self) -> String {
        format!("{PREFIX}{}", self.name())
    }

    /// Returns the level that a tag names; `None` if the tag is about something else.
    #[must_use]
    pub fn of_tag(tag: &str) -> Option<Result<Self, UnknownLevel>> {
        Some(tag.strip_prefix(PREFIX)?.parse())
    }

    /// Returns the highest level that one of the tags names, and stable if none does. Loading warns of a tag that names no
    /// level.
    pub fn of_tags<'t>(tags: impl IntoIterator<Item = &'t String>) -> Self {
        let levels = tags.into_iter().filter_map(|tag| Self::of_tag(tag)?.ok());
        levels.max().unwrap_or_default()
    }
}

impl Rule {
    /// Returns the level of the rule.
    #[must_use]
    pub fn level(&self) -> Level {
        Level::of_tags(&self.tags)
    }
}

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|level| level.name() == text);
        found.ok_or_else(|| UnknownLevel {
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is no level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLevel {
    text: String,
}

impl UnknownLevel {
    /// Returns the level that was perhaps meant.
    #[must_use]
    pub fn suggestion(&self) -> Option<&'static str> {
        closest(&self.text, Level::ALL.map(Level::name))
    }
}

impl fmt::Display for UnknownLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Level::ALL.map(Level::name).join(", ");
        write!(f, "unknown level `{}`: expected {names}", self.text)
    }
}

impl std::error::Error for UnknownLevel {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_a_level_and_the_highest_counts() {
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
            assert_eq!(Level::of_tag(&level.tag()), Some(Ok(level)));
        }
        let of = |tags: &[&str]| {
            Level::of_tags(&tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), Level::Stable);
        assert_eq!(of(&["host", "T1059"]), Level::Stable);
        assert_eq!(of(&["level_stable", "level_hunting"]), Level::Hunting);
        assert!(Level::Stable < Level::Hunting && Level::Hunting < Level::Forensic);
    }

    #[test]
    fn an_unknown_level_is_an_error_with_a_suggestion() {
        let error = "huntin".parse::<Level>().expect_err("it is no level");
        assert_eq!(
            error.to_string(),
            "unknown level `huntin`: expected stable, hunting, forensic"
        );
        assert_eq!(error.suggestion(), Some("hunting"));
        assert_eq!(
            "x".parse::<Level>()
                .expect_err("it is no level")
                .suggestion(),
            None
        );
        assert!(matches!(Level::of_tag("level_x"), Some(Err(_))));
    }
}
