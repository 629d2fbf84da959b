//! Tests on register arguments, which a seccomp filter can decide without reading memory.

use serde::{Deserialize, Serialize};

/// Number of register bits that a test compares.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum TestWidth {
    /// All 64 bits.
    Full64,
    /// The low 32 bits; see [`crate::ArgSpec::is_low32`].
    Low32,
}

/// An unsigned comparison.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum TestOp {
    /// All bits of `value` are set.
    AllBits,
    /// At least one bit of `value` is set.
    AnyBit,
    /// Equal to `value`.
    Eq,
    /// At least `value`.
    Ge,
    /// At most `value`.
    Le,
    /// `register & mask == value`.
    MaskedEq {
        /// The bits that are compared.
        mask: u64,
    },
    /// Different from `value`.
    Ne,
    /// No bit of `value` is set.
    NoBit,
}

/// One comparison of one register argument.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct RegisterTest {
    /// Argument index, 0 to 5.
    pub arg: u8,
    /// Number of register bits that the test compares.
    pub width: TestWidth,
    /// The comparison.
    pub op: TestOp,
    /// The constant operand.
    pub value: u64,
}

impl RegisterTest {
    /// Creates a comparison of the low half.
    #[must_use]
    pub const fn low(arg: u8, op: TestOp, value: u64) -> Self {
        Self {
            arg,
            width: TestWidth::Low32,
            op,
            value,
        }
    }

    /// Creates a comparison of the whole register.
    #[must_use]
    pub const fn full(arg: u8, op: TestOp, value: u64) -> Self {
        Self {
            arg,
            width: TestWidth::Full64,
            op,
            value,
        }
    }

    /// Returns true if the test holds for these arguments. An index above 5 never holds.
    #[must_use]
    pub fn holds(&self, args: &[u64; 6]) -> bool {
        let Some(raw) = args.get(usize::from(self.arg)) else {
            return false;
        };
        let (register, value) = match self.width {
            TestWidth::Full64 => (*raw, self.value),
            TestWidth::Low32 => (raw & u64::from(u32::MAX), self.value & u64::from(u32::MAX)),
        };
        match self.op {
            TestOp::AllBits => register & value == value,
            TestOp::AnyBit => register & value != 0,
            TestOp::Eq => register == value,
            TestOp::Ge => register >= value,
            TestOp::Le => register <= value,
            TestOp::MaskedEq { mask } => register & mask == value,
            TestOp::Ne => register != value,
            TestOp::NoBit => register & value == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_tests_ignore_the_upper_half_and_full_tests_do_not() {
        let args = [0xffff_ffff_0000_0005, 0, 0, 0, 0, 0];
        assert!(RegisterTest::low(0, TestOp::Eq, 5).holds(&args));
        assert!(!RegisterTest::full(0, TestOp::Eq, 5).holds(&args));
        assert!(RegisterTest::low(0, TestOp::AnyBit, 6).holds(&args));
        assert!(!RegisterTest::low(0, TestOp::AllBits, 6).holds(&args));
        assert!(RegisterTest::low(0, TestOp::NoBit, 2).holds(&args));
        assert!(RegisterTest::low(0, TestOp::Le, 5).holds(&args));
        assert!(RegisterTest::full(0, TestOp::Ge, 6).holds(&args));
        assert!(RegisterTest::low(0, TestOp::MaskedEq { mask: 4 }, 4).holds(&args));
        assert!(!RegisterTest::low(9, TestOp::NoBit, 0).holds(&args));
    }
}
