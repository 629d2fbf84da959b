//! Constants of the kernel's interface by their C names, for the architecture of this build.
//!
//! The values come from the same `data/flags/*.txt` as the tables in [`flags`](crate::flags). Error numbers
//! are in [`Errno`](crate::Errno) and signals in [`Signal`](crate::Signal).

include!(concat!(env!("OUT_DIR"), "/constants.rs"));

/// A constant that converts to the integer width the caller needs.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Constant(u64);

impl Constant {
    const fn new(generic: u64, aarch64: u64) -> Self {
        Self(if cfg!(target_arch = "aarch64") {
            aarch64
        } else {
            generic
        })
    }

    /// Returns all 64 bits.
    #[must_use]
    pub const fn u64(self) -> u64 {
        self.0
    }

    /// Returns the low 32 bits.
    ///
    /// # Panics
    /// Panics if a higher bit is set.
    #[must_use]
    pub const fn u32(self) -> u32 {
        assert!(self.0 >> 32 == 0, "the constant has more than 32 bits");
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Returns the low 32 bits as C's `int`.
    ///
    /// # Panics
    /// Panics if a higher bit is set.
    #[must_use]
    pub const fn i32(self) -> i32 {
        self.u32().cast_signed()
    }

    /// Returns the low 16 bits.
    ///
    /// # Panics
    /// Panics if a higher bit is set.
    #[must_use]
    pub const fn u16(self) -> u16 {
        assert!(self.0 >> 16 == 0, "the constant has more than 16 bits");
        let [a, b, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([a, b])
    }

    /// Returns the low 8 bits.
    ///
    /// # Panics
    /// Panics if a higher bit is set.
    #[must_use]
    pub const fn u8(self) -> u8 {
        assert!(self.0 >> 8 == 0, "the constant has more than 8 bits");
        self.0.to_le_bytes()[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arch, flags};

    #[test]
    fn values_are_those_of_the_tables() {
        let native = Arch::native().expect("the tests run on an architecture of the tables");
        let value = |set: &flags::FlagSet, name| set.value_of(native, name);
        for (constant, set, name) in [
            (O_CLOEXEC, &flags::OPEN, "O_CLOEXEC"),
            (O_DIRECTORY, &flags::OPEN, "O_DIRECTORY"),
            (MS_REC, &flags::MOUNT, "MS_REC"),
            (CAP_SYS_ADMIN, &flags::CAPABILITY, "CAP_SYS_ADMIN"),
        ] {
            assert_eq!(Some(constant.u64()), value(set, name), "{name}");
        }
        // The constant that differs between architectures.
        let directory = Constant::new(0o200_000, 0o40_000);
        assert_eq!(O_DIRECTORY, directory);
    }

    #[test]
    fn widths_agree() {
        assert_eq!(
            (O_CLOEXEC.i32(), O_CLOEXEC.u32()),
            (0o2_000_000, 0o2_000_000)
        );
        assert_eq!((AF_INET6.u16(), AF_INET6.u8()), (10, 10));
    }

    #[test]
    #[should_panic(expected = "more than 16 bits")]
    fn what_does_not_fit_is_refused() {
        let _ = O_CLOEXEC.u16();
    }
}
