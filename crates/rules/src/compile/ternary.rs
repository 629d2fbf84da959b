//! Three-valued logic (Kleene), which decides conditions from partial knowledge.

use std::ops::Not;

/// Truth value of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ternary {
    /// The condition does not hold, whatever becomes known later.
    False,
    /// The condition is undecided.
    Unknown,
    /// The condition holds, whatever becomes known later.
    True,
}

impl Ternary {
    /// Returns the conjunction.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::False, _) | (_, Self::False) => Self::False,
            (Self::True, Self::True) => Self::True,
            _ => Self::Unknown,
        }
    }

    /// Returns the disjunction.
    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        !(!self).and(!other)
    }
}

impl From<bool> for Ternary {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

impl Not for Ternary {
    type Output = Self;

    fn not(self) -> Self {
        match self {
            Self::False => Self::True,
            Self::Unknown => Self::Unknown,
            Self::True => Self::False,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ternary::{self, False, True, Unknown};

    #[test]
    fn unknown_yields_only_to_the_value_that_decides() {
        let all = [False, Unknown, True];
        for a in all {
            assert_eq!(a.and(False), False);
            assert_eq!(a.or(True), True);
            assert_eq!(a.and(True), a);
            assert_eq!(a.or(False), a);
            for b in all {
                assert_eq!(!(a.and(b)), (!a).or(!b));
                assert_eq!(a.and(b), b.and(a));
            }
        }
        assert_eq!(Unknown.and(Unknown), Unknown);
        assert_eq!(Ternary::from(true), True);
    }
}
