//! Proofs that a parameter does not exist.

use crate::ParamSource;

/// A proof that a parameter does not exist.
///
/// What could not be read may be anything, so a failed read must not become an absent value: then rules
/// would pass over it in silence. Each way to make an absence is a function that takes what proves it, and
/// there is no other: an error of a read proves nothing.
///
/// ```
/// use event::{Absence, Param};
///
/// let given = |address: u64| Absence::of_null(address).map_or(Param::Unreadable, Param::Absent);
/// assert!(matches!(given(0), Param::Absent(_)));
/// assert_eq!(given(0x1000), Param::Unreadable);
/// ```
///
/// ```compile_fail
/// let invented = event::Param::Absent(event::Absence(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence(());

impl Absence {
    /// The caller passed a null pointer, and there is nothing at that address.
    #[must_use]
    pub fn of_null(address: u64) -> Option<Self> {
        (address == 0).then_some(Self(()))
    }

    /// The caller passed a length of zero.
    #[must_use]
    pub fn of_length(length: u64) -> Option<Self> {
        (length == 0).then_some(Self(()))
    }

    /// No argument of the call holds the parameter: it is answered by the process or the result. What no engine
    /// reads may be there all the same.
    #[must_use]
    pub fn of_source(source: ParamSource) -> Option<Self> {
        let is_argument = matches!(source, ParamSource::Register(_) | ParamSource::Nowhere)
            || source.is_in_memory();
        (!is_argument).then_some(Self(()))
    }

    /// The call returned this, so it moved no bytes.
    #[must_use]
    pub fn of_result(result: i64) -> Option<Self> {
        (result <= 0).then_some(Self(()))
    }

    /// A recording or a message of another program has no value for it.
    #[must_use]
    pub fn recorded() -> Self {
        Self(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_proves_an_absence_gives_one() {
        assert!(Absence::of_null(0).is_some() && Absence::of_null(8).is_none());
        assert!(Absence::of_length(0).is_some() && Absence::of_length(1).is_none());
        assert!(Absence::of_result(-14).is_some() && Absence::of_result(5).is_none());
        assert!(Absence::of_source(ParamSource::Process).is_some());
        let path = ParamSource::Path {
            path: 1,
            base: None,
        };
        assert!(Absence::of_source(path).is_none());
        assert!(Absence::of_source(ParamSource::Nowhere).is_none());
    }
}
