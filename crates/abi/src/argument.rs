//! Meaning and formatting of system-call arguments.

use alloc::string::String;
use core::fmt::Write as _;

use crate::{Arch, FlagSet, Signal, flags};

/// `AT_FDCWD`: the directory descriptor that stands for the working directory.
pub const AT_FDCWD: i32 = -100;

/// One argument of a call.
///
/// On i386 a 64-bit argument occupies two registers, so arguments after an `Int64` or `Uint64` of a file-size
/// call (`pread64`, `fallocate`, `truncate64` ...) are one register later there.
#[derive(Clone, Copy, Debug)]
pub struct ArgSpec {
    /// Name used in manual pages.
    pub name: &'static str,
    /// Meaning of the register's value.
    pub kind: ArgKind,
    /// Number of register bits that the kernel reads.
    pub width: RegisterWidth,
}

/// Number of register bits that the kernel reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RegisterWidth {
    /// All bits.
    Full64,
    /// The low 32 bits; the caller may put anything in the upper half.
    Low32,
}

/// Meaning of a register's value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ArgKind {
    /// Address of an array of strings, the new program's arguments.
    Argv,
    /// Address of bytes.
    Buffer,
    /// A directory descriptor, or `AT_FDCWD`.
    DirFd,
    /// Exactly one value of a set.
    Enum(&'static FlagSet),
    /// Address of an array of strings, the new program's environment.
    Envp,
    /// A file descriptor.
    Fd,
    /// A combination of flags of a set.
    Flags(&'static FlagSet),
    /// A group id; 16 bits wide in the i386 calls without `32`.
    Gid,
    /// A signed 32-bit number.
    Int32,
    /// A signed 64-bit number.
    Int64,
    /// File mode bits. The kernel reads only 16 bits.
    Mode,
    /// Address of a path.
    Path,
    /// A process, thread or group id.
    Pid,
    /// Address of an object without a more precise kind.
    Pointer,
    /// A value of unknown meaning.
    Raw,
    /// A signal number.
    Signal,
    /// A length in bytes.
    Size,
    /// Address of a socket address.
    Sockaddr,
    /// Length of a socket address.
    SockaddrLen,
    /// Address of the named structure.
    Struct(&'static str),
    /// Address of a string that is not a path.
    Text,
    /// A user id; 16 bits wide in the i386 calls without `32`.
    Uid,
    /// An unsigned 32-bit number.
    Uint32,
    /// An unsigned 64-bit number.
    Uint64,
}

impl ArgSpec {
    /// Returns true if the kernel ignores the upper half of the register.
    ///
    /// A filter must compare such an argument by its low half only: a test of the upper half lets a caller
    /// bypass the filter.
    #[must_use]
    pub fn is_low32(&self) -> bool {
        self.width == RegisterWidth::Low32
    }

    /// Returns the part of the register that the kernel reads.
    #[must_use]
    pub fn effective(&self, raw: u64) -> u64 {
        match self.width {
            RegisterWidth::Full64 => raw,
            RegisterWidth::Low32 => raw & u64::from(u32::MAX),
        }
    }

    /// Returns true if the register holds an address.
    #[must_use]
    pub fn is_pointer(&self) -> bool {
        matches!(
            self.kind,
            ArgKind::Argv
                | ArgKind::Buffer
                | ArgKind::Envp
                | ArgKind::Path
                | ArgKind::Pointer
                | ArgKind::Sockaddr
                | ArgKind::Struct(_)
                | ArgKind::Text
        )
    }

    /// Appends the register's value as text, without following addresses.
    pub fn format(&self, arch: Arch, raw: u64, out: &mut String) {
        let value = self.effective(raw);
        let low = low_signed(raw);
        let written = match self.kind {
            ArgKind::DirFd if low == AT_FDCWD => write!(out, "AT_FDCWD"),
            ArgKind::Enum(set) | ArgKind::Flags(set) => {
                set.format(arch, value, out);
                Ok(())
            }
            ArgKind::DirFd | ArgKind::Fd | ArgKind::Int32 | ArgKind::Pid => write!(out, "{low}"),
            // -1 means "leave unchanged" to the set*id and chown calls.
            ArgKind::Uid | ArgKind::Gid if low == -1 => write!(out, "-1"),
            ArgKind::Int64 => write!(out, "{}", value.cast_signed()),
            ArgKind::Mode => write!(out, "{:#o}", value & 0xffff),
            ArgKind::Signal => write!(out, "{}", Signal(low)),
            ArgKind::Size
            | ArgKind::SockaddrLen
            | ArgKind::Uid
            | ArgKind::Gid
            | ArgKind::Uint32
            | ArgKind::Uint64 => write!(out, "{value}"),
            _ if value == 0 && self.is_pointer() => write!(out, "NULL"),
            _ => write!(out, "{value:#x}"),
        };
        written.expect("writing to a String cannot fail");
    }
}

/// Returns the low half of a register as the signed number that the kernel reads.
#[must_use]
pub fn low_signed(raw: u64) -> i32 {
    low_unsigned(raw).cast_signed()
}

/// Returns the low half of a register.
#[must_use]
pub fn low_unsigned(raw: u64) -> u32 {
    let low = raw & u64::from(u32::MAX);
    u32::try_from(low).expect("the mask leaves 32 bits")
}

/// Appends mode bits by name, e.g. `S_ISUID|S_IRUSR|S_IXUSR`.
pub fn format_mode(arch: Arch, mode: u32, out: &mut String) {
    flags::MODE.format(arch, u64::from(mode), out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Syscall;

    fn shown(call: Syscall, index: usize, raw: u64) -> String {
        let mut out = String::new();
        call.args()[index].format(Arch::X86_64, raw, &mut out);
        out
    }

    #[test]
    fn upper_half_of_an_int_is_ignored() {
        assert_eq!(shown(Syscall::OPENAT, 0, 0xdead_beef_ffff_ff9c), "AT_FDCWD");
        assert_eq!(shown(Syscall::SETUID, 0, 0x1_0000_0000), "0");
        assert_eq!(shown(Syscall::CHMOD, 1, 0xffff_0000_0000_0fed), "0o7755");
        assert!(Syscall::PRCTL.args()[0].is_low32());
        assert!(
            !Syscall::PTRACE.args()[0].is_low32(),
            "ptrace's request is a long"
        );
        assert!(!Syscall::MMAP.args()[2].is_low32());
    }

    /// The kernel takes every descriptor as an int, whatever the prototype says.
    #[test]
    fn descriptors_are_low32_everywhere() {
        for call in Syscall::all() {
            for arg in call.args() {
                if matches!(arg.kind, ArgKind::Fd | ArgKind::DirFd) {
                    assert!(arg.is_low32(), "{call} {}", arg.name);
                }
                let is_descriptor = matches!(arg.name, "fd" | "dirfd" | "oldfd" | "pidfd");
                let kind_fits = matches!(arg.kind, ArgKind::Fd | ArgKind::DirFd);
                assert!(!is_descriptor || kind_fits, "{call} {}", arg.name);
                assert!(!(arg.is_pointer() && arg.is_low32()), "{call} {}", arg.name);
            }
        }
    }

    #[test]
    fn kinds_are_shown_in_their_own_words() {
        assert_eq!(shown(Syscall::OPENAT, 2, 0x241), "O_WRONLY|O_CREAT|O_TRUNC");
        assert_eq!(shown(Syscall::DUP3, 2, 0x80000), "O_CLOEXEC");
        assert_eq!(shown(Syscall::KILL, 1, 9), "SIGKILL");
        assert_eq!(shown(Syscall::SETRESUID, 0, u64::from(u32::MAX)), "-1");
        assert_eq!(shown(Syscall::EXECVE, 1, 0), "NULL");
        assert_eq!(shown(Syscall::LSEEK, 1, u64::MAX), "-1");
    }
}
