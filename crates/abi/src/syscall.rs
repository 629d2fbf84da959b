//! The system-call table: one row per call name over all architectures.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Arch;
use crate::arch::ARM_PRIVATE;
use crate::argument::{ArgKind, ArgSpec, RegisterWidth};

include!(concat!(env!("OUT_DIR"), "/calls.rs"));

const NONE: u16 = u16::MAX;

/// A system call, identified by its name and not by an architecture's number.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Syscall(u16);

/// Serializes as the index in the table, which only the same build of this program can read.
impl Serialize for Syscall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Syscall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let index = u16::deserialize(deserializer)?;
        match usize::from(index) < Self::COUNT {
            true => Ok(Self(index)),
            false => Err(de::Error::custom("no such system call")),
        }
    }
}

impl Syscall {
    /// Number of calls; indices run from 0 to `COUNT - 1`.
    pub const COUNT: usize = NAMES.len();

    /// Returns the call of this name, e.g. `openat`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let index = NAMES.binary_search(&name).ok()?;
        Some(Self(
            u16::try_from(index).expect("the table has fewer than 65535 rows"),
        ))
    }

    /// Returns the call of this number; x32 numbers are given without their bit.
    #[must_use]
    pub fn from_number(arch: Arch, number: u32) -> Option<Self> {
        let [common, private]: [&[u16]; 2] = match arch {
            Arch::Aarch64 => [&BY_AARCH64, &BY_AARCH64_PRIVATE],
            Arch::Arm => [&BY_ARM, &BY_ARM_PRIVATE],
            Arch::I386 => [&BY_I386, &BY_I386_PRIVATE],
            Arch::X32 => [&BY_X32, &BY_X32_PRIVATE],
            Arch::X86_64 => [&BY_X86_64, &BY_X86_64_PRIVATE],
        };
        let (table, number) = match number.checked_sub(ARM_PRIVATE) {
            Some(offset) => (private, offset),
            None => (common, number),
        };
        let index = *table.get(usize::try_from(number).ok()?)?;
        (index != NONE).then_some(Self(index))
    }

    /// Returns the call that sub-call `number` of i386's `socketcall` stands for (`SYS_SOCKET` is 1).
    ///
    /// `SYS_SEND` and `SYS_RECV` have no call of their own: they map to `sendto` and `recvfrom` without an
    /// address.
    #[must_use]
    pub fn from_socketcall(number: u32) -> Option<Self> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        SOCKETCALLS.get(index).copied()
    }

    /// Returns the number of memory words that sub-call `number` of i386's `socketcall` reads its arguments
    /// from.
    ///
    /// `SYS_SEND` and `SYS_RECV` have no address: those arguments of `sendto` and `recvfrom` are 0.
    #[must_use]
    pub fn socketcall_words(number: u32) -> usize {
        const SEND: u32 = 9;
        const RECV: u32 = 10;
        match number {
            SEND | RECV => 4,
            _ => Self::from_socketcall(number).map_or(0, |call| call.args().len()),
        }
    }

    /// Returns the call at this index of the table.
    #[must_use]
    pub fn from_index(index: usize) -> Option<Self> {
        let index = u16::try_from(index).ok()?;
        (usize::from(index) < Self::COUNT).then_some(Self(index))
    }

    /// Returns every call, sorted by name.
    pub fn all() -> impl ExactSizeIterator<Item = Self> + Clone {
        (0..u16::try_from(Self::COUNT).expect("the table has fewer than 65535 rows")).map(Self)
    }

    /// Returns every call that Falco reports under this event name: `setuid` gives `setuid` and `setuid32`.
    pub fn with_event_name(name: &str) -> impl Iterator<Item = Self> {
        Self::all().filter(move |call| call.event_name() == name)
    }

    /// Returns the index in the table, for arrays indexed by call.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the kernel's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[self.index()]
    }

    /// Returns the number on `arch`, for x32 without its bit; `None` if the call does not exist there.
    #[must_use]
    pub fn number(self, arch: Arch) -> Option<u32> {
        let number = NUMBERS[self.index()][arch.column()];
        (number != u32::MAX).then_some(number)
    }

    /// Returns the same call under its common name: `getuid32` gives `getuid`, `openat` gives itself.
    #[must_use]
    pub fn base(self) -> Self {
        self.alias_of().unwrap_or(self)
    }

    /// Returns the call of the common name if this one is a variant of it.
    #[must_use]
    pub fn alias_of(self) -> Option<Self> {
        let base = BASES[self.index()];
        (base != NONE).then_some(Self(base))
    }

    /// Returns Falco's `evt.type` for this call.
    #[must_use]
    pub fn event_name(self) -> &'static str {
        EVENT_NAMES[self.index()]
    }

    /// Returns the arguments in register order; also empty for calls that no kernel implements any more.
    #[must_use]
    pub fn args(self) -> &'static [ArgSpec] {
        ARGS[self.index()]
    }

    /// Returns the position of the argument of this name.
    #[must_use]
    pub fn arg_index(self, name: &str) -> Option<usize> {
        self.args().iter().position(|arg| arg.name == name)
    }

    /// Returns the call whose name is nearest to `name`, for error messages; `None` if no name is near.
    #[must_use]
    pub fn suggest(name: &str) -> Option<Self> {
        // Up to a third of the letters wrong is a typing error; more is another word.
        let limit = (name.chars().count() / 3).max(1);
        Self::all()
            .map(|call| (edit_distance(name, call.name()), call))
            .min_by_key(|(distance, _)| *distance)
            .filter(|(distance, _)| *distance <= limit)
            .map(|(_, call)| call)
    }
}

impl core::fmt::Display for Syscall {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// Sub-calls of `socketcall`, from 1 (include/uapi/linux/net.h).
const SOCKETCALLS: [Syscall; 20] = [
    Syscall::SOCKET,
    Syscall::BIND,
    Syscall::CONNECT,
    Syscall::LISTEN,
    Syscall::ACCEPT,
    Syscall::GETSOCKNAME,
    Syscall::GETPEERNAME,
    Syscall::SOCKETPAIR,
    Syscall::SENDTO,
    Syscall::RECVFROM,
    Syscall::SENDTO,
    Syscall::RECVFROM,
    Syscall::SHUTDOWN,
    Syscall::SETSOCKOPT,
    Syscall::GETSOCKOPT,
    Syscall::SENDMSG,
    Syscall::RECVMSG,
    Syscall::ACCEPT4,
    Syscall::RECVMMSG,
    Syscall::SENDMMSG,
];

/// Damerau-Levenshtein distance (swapped neighbours count once), computed with three rolling rows.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: alloc::vec::Vec<char> = right.chars().collect();
    let mut before: alloc::vec::Vec<usize> = alloc::vec![0; right.len() + 1];
    let mut above: alloc::vec::Vec<usize> = (0..=right.len()).collect();
    let mut previous = None;
    for (row, letter) in left.chars().enumerate() {
        let mut current = alloc::vec![row + 1];
        for (column, other) in right.iter().enumerate() {
            let change = above[column] + usize::from(letter != *other);
            let mut best = change.min(above[column + 1] + 1).min(current[column] + 1);
            if column > 0 && previous == Some(*other) && letter == right[column - 1] {
                best = best.min(before[column - 1] + 1);
            }
            current.push(best);
        }
        before = core::mem::replace(&mut above, current);
        previous = Some(letter);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::path::Path;
    use std::string::{String, ToString as _};

    use super::*;
    use crate::flags;

    #[test]
    fn names_and_numbers_round_trip_on_every_architecture() {
        for call in Syscall::all() {
            assert_eq!(Syscall::from_name(call.name()), Some(call));
            assert_eq!(Syscall::from_index(call.index()), Some(call));
            assert!(call.args().len() <= 6);
            for arch in Arch::ALL {
                if let Some(number) = call.number(arch) {
                    assert_eq!(
                        Syscall::from_number(arch, number),
                        Some(call),
                        "{call} {arch}"
                    );
                }
            }
        }
        assert_eq!(Syscall::from_index(Syscall::COUNT), None);
        assert_eq!(Syscall::from_name("no_such_call"), None);
        assert_eq!(Syscall::from_number(Arch::I386, u32::MAX), None);
    }

    #[test]
    fn known_numbers_per_architecture() {
        let rows = [
            (Syscall::OPENAT, ["257", "257", "295", "56", "322"]),
            (Syscall::EXECVE, ["59", "520", "11", "221", "11"]),
            (Syscall::OPEN, ["2", "2", "5", "-", "5"]),
            (Syscall::CONNECT, ["42", "42", "362", "203", "283"]),
            (Syscall::SOCKETCALL, ["-", "-", "102", "-", "-"]),
            (Syscall::SEND, ["-", "-", "-", "-", "289"]),
            (Syscall::NEWFSTATAT, ["262", "262", "-", "79", "-"]),
            (Syscall::RENAMEAT, ["264", "264", "302", "38", "329"]),
            (Syscall::CLONE3, ["435"; 5]),
            (Syscall::FCHMODAT2, ["452"; 5]),
            (Syscall::MSEAL, ["462"; 5]),
            (Syscall::FILE_GETATTR, ["468"; 5]),
            (Syscall::SETUID32, ["-", "-", "213", "-", "213"]),
            (Syscall::SET_TLS, ["-", "-", "-", "-", "983045"]),
        ];
        let shown = |number: Option<u32>| number.map_or(String::from("-"), |n| n.to_string());
        for (call, numbers) in rows {
            let own = Arch::ALL.map(|arch| shown(call.number(arch)));
            assert_eq!(own, numbers.map(String::from), "{call}");
        }
    }

    #[test]
    fn variants_lead_to_their_base_and_falco_name() {
        assert_eq!(Syscall::GETUID32.alias_of(), Some(Syscall::GETUID));
        assert_eq!(Syscall::FCNTL64.base(), Syscall::FCNTL);
        assert_eq!(Syscall::OPENAT.base(), Syscall::OPENAT);
        assert_eq!(Syscall::SETUID32.event_name(), "setuid");
        assert_eq!(Syscall::UMOUNT2.event_name(), "umount2");
        assert_eq!(Syscall::PREAD64.event_name(), "pread");
        assert_eq!(Syscall::CLOCK_GETTIME64.event_name(), "clock_gettime");
        let both: std::vec::Vec<_> = Syscall::with_event_name("setuid").collect();
        assert_eq!(both, [Syscall::SETUID, Syscall::SETUID32]);
        for call in Syscall::all() {
            assert_eq!(
                call.base().alias_of(),
                None,
                "{call} has a base that has a base"
            );
        }
    }

    #[test]
    fn socketcall_numbers_are_those_of_the_data_file() {
        assert_eq!(Syscall::from_socketcall(0), None);
        assert_eq!(Syscall::from_socketcall(21), None);
        for entry in flags::SOCKETCALL.entries() {
            let number = u32::try_from(entry.value(Arch::I386)).expect("1 to 20");
            let call = Syscall::from_socketcall(number).expect("the table has 20 rows");
            let own = entry.name().trim_start_matches("SYS_").to_lowercase();
            let expected = match own.as_str() {
                "send" => "sendto",
                "recv" => "recvfrom",
                other => other,
            };
            assert_eq!(call.name(), expected);
        }
    }

    #[test]
    fn suggestions_are_near_or_absent() {
        assert_eq!(Syscall::suggest("opnat"), Some(Syscall::OPENAT));
        assert_eq!(Syscall::suggest("exceve"), Some(Syscall::EXECVE));
        assert_eq!(Syscall::suggest("completely_different_thing"), None);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("ab", "ba"), 1);
    }

    /// The host's kernel headers may be older or newer than the table; calls that both know must agree.
    #[test]
    fn numbers_agree_with_the_kernel_headers_of_this_machine() {
        const X86: &str = "/usr/include/x86_64-linux-gnu/asm";
        const ARM: &str = "/usr/arm-linux-gnueabihf/include/asm";
        let files = [
            (X86, "unistd_64.h", Arch::X86_64),
            (X86, "unistd_32.h", Arch::I386),
            (X86, "unistd_x32.h", Arch::X32),
            (ARM, "unistd-eabi.h", Arch::Arm),
        ];
        for (folder, file, arch) in files {
            let Ok(text) = std::fs::read_to_string(Path::new(folder).join(file)) else {
                let reason = std::format!("needs {file}");
                testing::skip_part!(
                    &reason,
                    || Ok("it is not in the kernel headers here".into())
                );
                continue;
            };
            let mut seen = 0;
            for (name, number) in text.lines().filter_map(header_line) {
                let name = if arch == Arch::I386 {
                    i386_name(&name)
                } else {
                    &name
                };
                let call = Syscall::from_name(name);
                let call = call.unwrap_or_else(|| panic!("{file}: {name} is not in calls.txt"));
                assert_eq!(call.number(arch), Some(number), "{file}: {name}");
                seen += 1;
            }
            assert!(seen > 300, "{file} has the expected form");
        }
    }

    /// The 64-bit names of the generic table, which arm64 uses as it is.
    #[test]
    fn arm_numbers_agree_with_the_generic_header_of_this_machine() {
        let Ok(text) = std::fs::read_to_string("/usr/include/asm-generic/unistd.h") else {
            testing::skip!("needs asm-generic/unistd.h", || Ok(
                "it is not in /usr/include".into()
            ));
        };
        let mut seen = 0;
        for line in text.lines() {
            let Some((name, value)) = line.strip_prefix("#define __NR").and_then(|l| {
                let (name, value) = l.split_once(' ')?;
                Some((
                    name.strip_prefix('_').or(name.strip_prefix("3264_"))?,
                    value.trim(),
                ))
            }) else {
                continue;
            };
            let name = match name {
                "fstatat" => "newfstatat",
                other => other,
            };
            // 244 and 295 begin ranges for other architectures; time64 calls are 32-bit only.
            let Ok(number) = value.parse::<u32>() else {
                continue;
            };
            if name == "arch_specific_syscall" || name == "syscalls" || name.contains("time64") {
                continue;
            }
            let only_32_bit = (403..424).contains(&number);
            if only_32_bit || name == "sync_file_range2" {
                continue;
            }
            let call = Syscall::from_name(name);
            let call = call.unwrap_or_else(|| panic!("{name} is not in calls.txt"));
            assert_eq!(call.number(Arch::Aarch64), Some(number), "{name}");
            seen += 1;
        }
        assert!(seen > 300, "the header has the expected form");
    }

    fn header_line(line: &str) -> Option<(String, u32)> {
        let (name, value) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        let value = value
            .trim()
            .trim_start_matches("(__X32_SYSCALL_BIT + ")
            .trim_start_matches("(__NR_SYSCALL_BASE + ")
            .trim_end_matches(')');
        Some((String::from(name), value.parse().ok()?))
    }

    fn i386_name(name: &str) -> &str {
        match name {
            "mmap" => "old_mmap",
            "select" => "old_select",
            other => other,
        }
    }
}
