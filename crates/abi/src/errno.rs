//! Error numbers. The generic table is the same on every architecture of this crate.

use core::fmt;

use crate::{Arch, flags};

include!(concat!(env!("OUT_DIR"), "/errno.rs"));

/// A kernel error number, positive.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Errno(pub i32);

/// Largest error number a call can return; results from -4095 to -1 are errors.
pub const MAX_ERRNO: i64 = 4095;

impl Errno {
    /// Returns the raw result of a call that fails with this error.
    #[must_use]
    pub const fn result(self) -> i64 {
        -(self.0 as i64)
    }

    /// Returns the error of a raw result, or `None` if the call succeeded.
    #[must_use]
    pub fn from_result(result: i64) -> Option<Self> {
        if !(-MAX_ERRNO..=-1).contains(&result) {
            return None;
        }
        i32::try_from(-result).ok().map(Self)
    }

    /// Returns the number of a name such as `ENOENT`, including aliases such as `EWOULDBLOCK`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = match name {
            "EDEADLOCK" => "EDEADLK",
            "ENOTSUP" => "EOPNOTSUPP",
            "EWOULDBLOCK" => "EAGAIN",
            other => other,
        };
        let value = flags::ERRNO.value_of(Arch::X86_64, name)?;
        i32::try_from(value).ok().map(Self)
    }

    /// Returns the name, or `None` for a number without a name.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let value = u64::try_from(self.0).ok()?;
        flags::ERRNO.name_of(Arch::X86_64, value)
    }
}

impl From<i32> for Errno {
    fn from(number: i32) -> Self {
        Self(number)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn names_and_numbers_agree() {
        assert_eq!(Errno::from_name("ENOENT"), Some(Errno::ENOENT));
        assert_eq!(Errno::from_name("EAGAIN"), Some(Errno(11)));
        assert_eq!(Errno::from_name("EWOULDBLOCK"), Some(Errno::EAGAIN));
        assert_eq!(Errno::from_name("EDEADLOCK"), Some(Errno(35)));
        assert_eq!(Errno::from_name("ENOTSUP"), Some(Errno(95)));
        assert_eq!(Errno::from_name("ENONSENSE"), None);
        assert_eq!(Errno(111).name(), Some("ECONNREFUSED"));
        assert_eq!(Errno(11).name(), Some("EAGAIN"));
        assert_eq!(Errno(133).name(), Some("EHWPOISON"));
        assert_eq!(Errno(512).name(), Some("ERESTARTSYS"));
        assert_eq!(Errno(4000).to_string(), "4000");
        assert_eq!(Errno(-1).name(), None);
    }

    #[test]
    fn results_above_the_error_range_are_addresses() {
        assert_eq!(Errno::from_result(-2), Some(Errno::ENOENT));
        assert_eq!(Errno::from_result(-4095), Some(Errno(4095)));
        assert_eq!(Errno::from_result(-4096), None);
        assert_eq!(Errno::from_result(0), None);
        assert_eq!(Errno::from_result(3), None);
        assert_eq!(
            Errno::from_result(Errno::EFAULT.result()),
            Some(Errno::EFAULT)
        );
    }
}
