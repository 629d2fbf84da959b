//! Names of flags and enumerated values, one set per file of `data/flags/`.

use alloc::string::String;
use core::fmt::Write as _;

use crate::Arch;

include!(concat!(env!("OUT_DIR"), "/flags.rs"));

/// The names of one kind of flag or enumerated value.
#[derive(Debug)]
pub struct FlagSet {
    name: &'static str,
    style: Style,
    entries: &'static [Flag],
}

/// Combination rule of a set's names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Style {
    /// Names combine with `|`.
    Bits,
    /// A value has one name.
    Enum,
}

/// One name and its value on each architecture.
#[derive(Debug)]
pub struct Flag {
    name: &'static str,
    generic: u64,
    aarch64: u64,
    /// Mask of an enumeration inside a flag word (`O_ACCMODE`); 0 for an ordinary bit.
    field: u64,
}

impl Flag {
    /// Returns the C name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the value on `arch`.
    #[must_use]
    pub fn value(&self, arch: Arch) -> u64 {
        match arch {
            // 32-bit Arm has the same differences (arch/arm/include/uapi/asm/fcntl.h).
            Arch::Aarch64 | Arch::Arm => self.aarch64,
            Arch::I386 | Arch::X32 | Arch::X86_64 => self.generic,
        }
    }
}

impl FlagSet {
    /// Returns every set, sorted by name.
    #[must_use]
    pub fn all() -> &'static [&'static Self] {
        &ALL
    }

    /// Returns the set of the file `data/flags/NAME.txt`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<&'static Self> {
        ALL.binary_search_by_key(&name, |set| set.name)
            .ok()
            .map(|index| ALL[index])
    }

    /// Returns the name of the set.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns whether the names combine or exclude each other.
    #[must_use]
    pub fn style(&self) -> Style {
        self.style
    }

    /// Returns the names alone, in file order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|flag| flag.name)
    }

    /// Returns the names with their values, in file order.
    #[must_use]
    pub fn entries(&self) -> &'static [Flag] {
        self.entries
    }

    /// Returns the value of a C name on `arch`.
    #[must_use]
    pub fn value_of(&self, arch: Arch, name: &str) -> Option<u64> {
        self.entries
            .iter()
            .find(|e| e.name == name)
            .map(|e| e.value(arch))
    }

    /// Returns the name of exactly this value on `arch`.
    #[must_use]
    pub fn name_of(&self, arch: Arch, value: u64) -> Option<&'static str> {
        self.entries
            .iter()
            .find(|e| e.value(arch) == value)
            .map(|e| e.name)
    }

    /// Appends the value as names joined by `|`; bits without a name are written in hexadecimal.
    pub fn format(&self, arch: Arch, value: u64, out: &mut String) {
        let mut first = true;
        let rest = self.visit(arch, value, |name| {
            if !first {
                out.push('|');
            }
            first = false;
            out.push_str(name);
        });
        if rest != 0 || first {
            let bar = if first { "" } else { "|" };
            let written = if self.style == Style::Enum || rest == 0 {
                write!(out, "{bar}{rest}")
            } else {
                write!(out, "{bar}{rest:#x}")
            };
            written.expect("writing to a String cannot fail");
        }
    }

    /// Calls `visit` with the name of every part of `value`; returns the bits without a name.
    pub fn visit(&self, arch: Arch, value: u64, mut visit: impl FnMut(&'static str)) -> u64 {
        if self.style == Style::Enum {
            return match self.name_of(arch, value) {
                Some(name) => {
                    visit(name);
                    0
                }
                None => value,
            };
        }
        let mut rest = value;
        let mut done = 0;
        for entry in self.entries {
            let own = entry.value(arch);
            if entry.field != 0 {
                if entry.field & done == 0 && value & entry.field == own {
                    visit(entry.name);
                    done |= entry.field;
                    rest &= !entry.field;
                }
            } else if own != 0 && rest & own == own {
                visit(entry.name);
                rest &= !own;
            }
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(set: &FlagSet, arch: Arch, value: u64) -> String {
        let mut out = String::new();
        set.format(arch, value, &mut out);
        out
    }

    #[test]
    fn access_mode_is_a_field_and_not_bits() {
        assert_eq!(shown(&OPEN, Arch::X86_64, 0), "O_RDONLY");
        assert_eq!(shown(&OPEN, Arch::X86_64, 0o102), "O_RDWR|O_CREAT");
        assert_eq!(shown(&OPEN, Arch::X86_64, 3), "0x3");
        assert_eq!(shown(&OPEN, Arch::X86_64, 0x8000_0002), "O_RDWR|0x80000000");
    }

    #[test]
    fn names_of_several_bits_swallow_their_parts() {
        assert_eq!(shown(&OPEN, Arch::X86_64, 0x10_1001), "O_WRONLY|O_SYNC");
        assert_eq!(shown(&OPEN, Arch::X86_64, 0x1001), "O_WRONLY|O_DSYNC");
        assert_eq!(shown(&OPEN, Arch::X86_64, 0x41_0002), "O_RDWR|O_TMPFILE");
    }

    #[test]
    fn arm_swaps_directory_and_direct() {
        assert_eq!(shown(&OPEN, Arch::Aarch64, 0x4000), "O_RDONLY|O_DIRECTORY");
        assert_eq!(shown(&OPEN, Arch::X86_64, 0x4000), "O_RDONLY|O_DIRECT");
        assert_eq!(OPEN.value_of(Arch::Aarch64, "O_NOFOLLOW"), Some(0x8000));
        assert_eq!(OPEN.value_of(Arch::Arm, "O_NOFOLLOW"), Some(0x8000));
        assert_eq!(OPEN.value_of(Arch::X86_64, "O_NOFOLLOW"), Some(0x2_0000));
        assert_eq!(OPEN.value_of(Arch::X86_64, "O_NONSENSE"), None);
    }

    #[test]
    fn enumerations_print_one_name_or_the_number() {
        assert_eq!(shown(&PTRACE, Arch::X86_64, 16), "PTRACE_ATTACH");
        assert_eq!(shown(&PTRACE, Arch::X86_64, 0), "PTRACE_TRACEME");
        assert_eq!(shown(&PTRACE, Arch::X86_64, 9999), "9999");
        assert_eq!(
            shown(&SOCKET_TYPE, Arch::X86_64, 0x80003),
            "SOCK_RAW|SOCK_CLOEXEC"
        );
        assert_eq!(shown(&MEMFD, Arch::X86_64, 0), "0");
        assert_eq!(shown(&CLONE, Arch::X86_64, 0x11), "SIGCHLD");
    }

    #[test]
    fn every_name_of_every_set_round_trips() {
        for set in FlagSet::all() {
            assert_eq!(
                FlagSet::from_name(set.name()).map(FlagSet::name),
                Some(set.name())
            );
            for arch in Arch::ALL {
                for flag in set.entries() {
                    let value = flag.value(arch);
                    assert_eq!(
                        set.value_of(arch, flag.name()),
                        Some(value),
                        "{}",
                        flag.name()
                    );
                    let text = shown(set, arch, value);
                    let named = text.split('|').any(|word| word == flag.name());
                    assert!(
                        named,
                        "{}: {} = {value:#x} prints as {text}",
                        set.name(),
                        flag.name()
                    );
                }
            }
        }
    }
}
