//! Versions of the engine and of plugins.

use std::fmt;

/// A version `MAJOR.MINOR.PATCH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Changes that break.
    pub major: u32,
    /// Additions.
    pub minor: u32,
    /// Corrections.
    pub patch: u32,
}

impl Version {
    /// Creates a version from its parts.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// Parses `1.2.3`; a suffix after `-` or `+` is ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let core = text.split(['-', '+']).next()?;
        let mut parts = core.split('.').map(number);
        let version = Self::new(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }

    /// Returns true if this version meets the requirement `required`.
    #[must_use]
    pub fn satisfies(self, required: Self) -> bool {
        self.major == required.major && self >= required
    }
}

/// Parses digits only: `u32::from_str` would accept a sign.
pub(super) fn number(text: &str) -> Option<u32> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())?
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_takes_three_numbers() {
        assert_eq!(Version::parse("0.57.0"), Some(Version::new(0, 57, 0)));
        assert_eq!(Version::parse("1.2.3-rc1+x"), Some(Version::new(1, 2, 3)));
        for text in [
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "a.b.c",
            "1..3",
            "+1.2.3",
            "1.2.x",
            "99999999999.0.0",
        ] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn satisfies_needs_the_same_major_and_no_lower_version() {
        let have = Version::new(0, 57, 2);
        for (required, expected) in [
            (Version::new(0, 57, 2), true),
            (Version::new(0, 57, 3), false),
            (Version::new(0, 58, 0), false),
            (Version::new(0, 1, 9), true),
            (Version::new(1, 0, 0), false),
        ] {
            assert_eq!(have.satisfies(required), expected, "{required}");
        }
        assert!(!Version::new(1, 0, 0).satisfies(have));
    }
}
