//! Capability names and sets.

use alloc::string::String;
use core::fmt;

use crate::{Arch, flags};

/// Number of the newest capability this crate knows (`CAP_CHECKPOINT_RESTORE`, Linux 5.9).
pub const LAST: u8 = 40;

/// A set of capabilities as the kernel writes it in `/proc/PID/status`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Every capability in this crate's table.
    pub const ALL: Self = Self((1 << (LAST + 1)) - 1);

    /// Parses a comma or space separated list of names, as printed by [`fmt::Display`].
    ///
    /// # Errors
    /// Returns the first word that is not a capability.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut set = Self::default();
        for word in text.split([' ', ',']).filter(|w| !w.is_empty()) {
            let number = from_name(word).ok_or_else(|| String::from(word))?;
            set.0 |= 1 << number;
        }
        Ok(set)
    }

    /// Returns true if the set holds this capability number.
    #[must_use]
    pub fn contains(self, number: u8) -> bool {
        number < 64 && self.0 & (1 << number) != 0
    }
}

/// Writes Falco's form: names in number order, separated by spaces; nothing for the empty set.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for entry in flags::CAPABILITY.entries() {
            if self.0 & (1 << entry.value(Arch::X86_64)) != 0 {
                write!(f, "{separator}{}", entry.name())?;
                separator = " ";
            }
        }
        Ok(())
    }
}

/// Returns the name of a capability number.
#[must_use]
pub fn name(number: u8) -> Option<&'static str> {
    flags::CAPABILITY.name_of(Arch::X86_64, u64::from(number))
}

/// Returns the number of a capability name, with or without `CAP_`, in upper or lower case.
#[must_use]
pub fn from_name(name: &str) -> Option<u8> {
    let has_prefix = name
        .get(..4)
        .is_some_and(|p| p.eq_ignore_ascii_case("CAP_"));
    let short = if has_prefix { &name[4..] } else { name };
    let entry = flags::CAPABILITY.entries().iter().find(|e| {
        e.name()
            .strip_prefix("CAP_")
            .is_some_and(|own| own.eq_ignore_ascii_case(short))
    })?;
    u8::try_from(entry.value(Arch::X86_64)).ok()
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn sets_print_in_number_order() {
        assert_eq!(Capabilities(0b11).to_string(), "CAP_CHOWN CAP_DAC_OVERRIDE");
        assert_eq!(Capabilities(0).to_string(), "");
        assert_eq!(Capabilities::ALL.to_string().split(' ').count(), 41);
        assert_eq!(
            Capabilities::parse("cap_sys_admin,CAP_CHOWN"),
            Ok(Capabilities(1 << 21 | 1))
        );
        assert_eq!(
            Capabilities::parse("CAP_NONSENSE"),
            Err("CAP_NONSENSE".to_string())
        );
    }

    #[test]
    fn every_number_has_a_name() {
        for number in 0..=LAST {
            let name = name(number).expect("0 to LAST have names");
            assert_eq!(from_name(name), Some(number));
        }
        assert_eq!(name(LAST + 1), None);
        assert!(Capabilities::ALL.contains(LAST));
        assert!(!Capabilities::ALL.contains(200));
    }
}
