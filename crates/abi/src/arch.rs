//! Architectures of the system-call interface on x86-64 and arm64 kernels.

use core::fmt;

use crate::Syscall;

/// Bit that is set in the number of every x32 call; the audit value is that of x86-64.
pub const X32_BIT: u32 = 0x4000_0000;

/// First number of the calls that only 32-bit Arm has (`__ARM_NR_BASE`, arch/arm/include/uapi/asm/unistd.h).
pub const ARM_PRIVATE: u32 = 0xf_0000;
/// Number of these calls, and of the numbers from [`ARM_PRIVATE`] that can be one.
pub const ARM_PRIVATE_LEN: u32 = 8;

const AUDIT_X86_64: u32 = 0xc000_003e;
const AUDIT_I386: u32 = 0x4000_0003;
const AUDIT_AARCH64: u32 = 0xc000_00b7;
const AUDIT_ARM: u32 = 0x4000_0028;

/// A system-call convention with its own numbers.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Arch {
    /// 64-bit x86.
    X86_64,
    /// 32-bit pointers in 64-bit mode: x86-64's audit value, numbers with [`X32_BIT`] set.
    X32,
    /// 32-bit x86, also reached by `int 0x80` from a 64-bit program.
    I386,
    /// 64-bit Arm.
    Aarch64,
    /// 32-bit Arm (EABI), as an arm64 kernel offers it to 32-bit programs.
    Arm,
}

impl Arch {
    /// Every architecture, in the column order of `data/calls.txt`.
    pub const ALL: [Self; 5] = [
        Self::X86_64,
        Self::X32,
        Self::I386,
        Self::Aarch64,
        Self::Arm,
    ];

    /// Returns the architecture that this program was built for; `None` on any other architecture.
    #[must_use]
    pub const fn native() -> Option<Self> {
        if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
            Some(Self::X86_64)
        } else if cfg!(target_arch = "x86_64") {
            Some(Self::X32)
        } else if cfg!(target_arch = "x86") {
            Some(Self::I386)
        } else if cfg!(target_arch = "aarch64") {
            Some(Self::Aarch64)
        } else if cfg!(target_arch = "arm") {
            Some(Self::Arm)
        } else {
            None
        }
    }

    /// Returns every convention by which programs make calls on a kernel of this architecture, its own first.
    #[must_use]
    pub const fn of_kernel(self) -> &'static [Self] {
        match self {
            Self::X86_64 | Self::X32 | Self::I386 => &[Self::X86_64, Self::I386, Self::X32],
            Self::Aarch64 | Self::Arm => &[Self::Aarch64, Self::Arm],
        }
    }

    /// Returns the `AUDIT_ARCH_*` value that seccomp and ptrace report.
    #[must_use]
    pub const fn audit(self) -> u32 {
        match self {
            Self::X86_64 | Self::X32 => AUDIT_X86_64,
            Self::I386 => AUDIT_I386,
            Self::Aarch64 => AUDIT_AARCH64,
            Self::Arm => AUDIT_ARM,
        }
    }

    /// Returns the architecture of a raw (audit value, number) pair; `None` for a foreign audit value.
    #[must_use]
    pub const fn from_audit(audit: u32, nr: u32) -> Option<Self> {
        match audit {
            AUDIT_X86_64 if nr & X32_BIT != 0 => Some(Self::X32),
            AUDIT_X86_64 => Some(Self::X86_64),
            AUDIT_I386 => Some(Self::I386),
            AUDIT_AARCH64 => Some(Self::Aarch64),
            AUDIT_ARM => Some(Self::Arm),
            _ => None,
        }
    }

    /// Returns the number as the kernel reports it, with [`X32_BIT`] set for x32.
    #[must_use]
    pub const fn raw_number(self, number: u32) -> u32 {
        match self {
            Self::X32 => number | X32_BIT,
            _ => number,
        }
    }

    /// Returns the size of a pointer in user memory in bytes, e.g. of the elements of `argv`.
    #[must_use]
    pub const fn pointer_bytes(self) -> usize {
        match self {
            Self::X86_64 | Self::Aarch64 => 8,
            Self::X32 | Self::I386 | Self::Arm => 4,
        }
    }

    /// Returns the common lower-case name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::X32 => "x32",
            Self::I386 => "i386",
            Self::Aarch64 => "aarch64",
            Self::Arm => "arm",
        }
    }

    pub(crate) const fn column(self) -> usize {
        match self {
            Self::X86_64 => 0,
            Self::X32 => 1,
            Self::I386 => 2,
            Self::Aarch64 => 3,
            Self::Arm => 4,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the architecture and call of a raw (audit value, number) pair as seccomp reports it.
///
/// The call is `None` for a number outside the tables. Kernels before 5.4 ran x86-64 calls for x32 numbers
/// without an x32 call, and x32 calls (512 to 547) without the bit: both are named too, because a program
/// that tries them must not look like an unknown call.
#[must_use]
pub fn decode(audit: u32, nr: u32) -> Option<(Arch, Option<Syscall>)> {
    let arch = Arch::from_audit(audit, nr)?;
    let number = if arch == Arch::X32 { nr & !X32_BIT } else { nr };
    let sibling = match arch {
        Arch::X86_64 => Some(Arch::X32),
        Arch::X32 => Some(Arch::X86_64),
        Arch::I386 | Arch::Aarch64 | Arch::Arm => None,
    };
    let call = Syscall::from_number(arch, number)
        .or_else(|| sibling.and_then(|other| Syscall::from_number(other, number)));
    Some((arch, call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x32_bit_selects_x32() {
        assert_eq!(
            decode(AUDIT_X86_64, 59),
            Some((Arch::X86_64, Some(Syscall::EXECVE)))
        );
        assert_eq!(
            decode(AUDIT_X86_64, X32_BIT | 520),
            Some((Arch::X32, Some(Syscall::EXECVE)))
        );
        assert_eq!(
            decode(AUDIT_I386, 11),
            Some((Arch::I386, Some(Syscall::EXECVE)))
        );
        assert_eq!(
            decode(AUDIT_AARCH64, 221),
            Some((Arch::Aarch64, Some(Syscall::EXECVE)))
        );
        assert_eq!(
            decode(AUDIT_ARM, 11),
            Some((Arch::Arm, Some(Syscall::EXECVE)))
        );
        assert_eq!(
            decode(AUDIT_ARM, ARM_PRIVATE + 2),
            Some((Arch::Arm, Some(Syscall::CACHEFLUSH)))
        );
        assert_eq!(decode(AUDIT_ARM, ARM_PRIVATE), Some((Arch::Arm, None)));
        assert_eq!(decode(1, 59), None);
        assert_eq!(decode(AUDIT_X86_64, 1_000_000), Some((Arch::X86_64, None)));
    }

    #[test]
    fn old_kernels_let_x32_and_x86_64_numbers_mix() {
        assert_eq!(
            decode(AUDIT_X86_64, 520),
            Some((Arch::X86_64, Some(Syscall::EXECVE)))
        );
        assert_eq!(
            decode(AUDIT_X86_64, X32_BIT | 59),
            Some((Arch::X32, Some(Syscall::EXECVE)))
        );
    }
}
