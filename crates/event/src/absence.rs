//! Proofs that a parameter does not exist.

use crate::ParamSource;

/// A proof that a parameter does not exist.
///
/// A parameter that could not be read may have any value, so a failed read must not become an absent value:
/// rules would then silently fail to match. Every constructor takes evidence of the absence; an error of a
/// read is no evidence.
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
    /// Returns the proof for a null pointer that the caller passed; `None` for any other address.
    #[must_use]
    pub fn of_null(address: u64) -> Option<Self> {
        (address == 0).then_some(Self(()))
    }

    /// Returns the proof for a length of zero that the caller passed; `None` for any other length.
    #[must_use]
    pub fn of_length(length: u64) -> Option<Self> {
        (length == 0).then_some(Self(()))
    }

    /// Returns the proof for a parameter that no argument of the call holds: the process or the result
    /// answers it. Returns `None` for a parameter that no engine reads, because it may exist all the same.
    #[must_use]
    pub fn of_source(source: ParamSource) -> Option<Self> {
        let is_argument = matches!(source, ParamSource::Register(_) | ParamSource::Nowhere)
            || source.is_in_memory();
        (!is_argument).then_some(Self(()))
    }

    /// Returns the proof for a call whose `result` shows that it moved no bytes.
    #[must_use]
    pub fn of_result(result: i64) -> Option<Self> {
        (result <= 0).then_some(Self(()))
    }

    /// Returns the proof for a recording, or a message of another program, that has no value for the
    /// parameter.
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
