//! Signal names.

use core::fmt;

use crate::{Arch, flags};

include!(concat!(env!("OUT_DIR"), "/signal.rs"));

/// A signal number.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Signal(pub i32);

/// First real-time signal of the kernel; C libraries reserve the first two or three.
const FIRST_REAL_TIME: i32 = 32;
const LAST: i32 = 64;

impl Signal {
    /// Returns the number of a name, with or without `SIG`, in upper or lower case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let has_prefix = name.get(..3).is_some_and(|p| p.eq_ignore_ascii_case("SIG"));
        let short = if has_prefix { &name[3..] } else { name };
        let entry = flags::SIGNAL.entries().iter().find(|e| {
            e.name()
                .strip_prefix("SIG")
                .is_some_and(|own| own.eq_ignore_ascii_case(short))
        })?;
        i32::try_from(entry.value(Arch::X86_64)).ok().map(Self)
    }

    /// Returns the C name; real-time signals (32 to 64) have none.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let value = u64::try_from(self.0).ok()?;
        flags::SIGNAL.name_of(Arch::X86_64, value)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None if (FIRST_REAL_TIME..=LAST).contains(&self.0) => {
                write!(f, "SIGRT_{}", self.0 - FIRST_REAL_TIME)
            }
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn names_round_trip_and_real_time_signals_are_counted() {
        for number in 1..=31 {
            let name = Signal(number).name().expect("1 to 31 have names");
            assert_eq!(Signal::from_name(name), Some(Signal(number)));
        }
        assert_eq!(Signal::from_name("kill"), Some(Signal::SIGKILL));
        assert_eq!(Signal::from_name("é"), None);
        assert_eq!(Signal(34).to_string(), "SIGRT_2");
        assert_eq!(Signal(99).to_string(), "99");
        assert_eq!(Signal(0).to_string(), "0");
    }
}
