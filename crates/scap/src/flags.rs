//! Translation between the portable flags of captures and the native flags of this architecture.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use abi::flags::Style;
use abi::{Arch, FlagSet};

use crate::table::Flags;

/// A translation between two sets of flags.
#[derive(Clone, Debug)]
pub(crate) struct Translation {
    /// The lowest two bits are the access mode of `open`.
    has_access: bool,
    is_enum: bool,
    /// Pairs of portable and native value. Those of several bits come first.
    pairs: Vec<(u64, u64)>,
    /// Native value of each bit of a portable value.
    bits: [u64; 64],
    /// Pairs whose portable value has several bits.
    several: Vec<(u64, u64)>,
}

/// `O_ACCMODE`.
const ACCESS: u64 = 3;

/// Cache of translations by the names of both sets: there are few sets, shared by many parameters.
type Known = HashMap<(&'static str, &'static str), &'static Translation>;

impl Translation {
    /// Returns the translation between two sets.
    pub(crate) fn between(portable: &'static Flags, native: &'static FlagSet) -> &'static Self {
        static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .entry((portable.name, native.name()))
            // Leaked, once per set for the life of the program.
            .or_insert_with(|| Box::leak(Box::new(Self::new(portable, native))))
    }

    /// Pairs flags of the same name, apart from a prefix that captures omit (`MS_`).
    fn new(portable: &Flags, native: &FlagSet) -> Self {
        let arch = Arch::native().unwrap_or(Arch::X86_64);
        let has_access = portable.name == "file_flags" && native.name() == "open";
        let value = |name: &'static str| {
            // If there is no such name, use one with another prefix: captures omit `MS_`, and write
            // `EPOLL_CLOEXEC` for `O_CLOEXEC`.
            let tail = |name: &'static str| name.split_once('_').map_or(name, |(_, tail)| tail);
            let mut entries = native.entries().iter();
            let exact = entries.clone().find(|entry| entry.name() == name);
            let alike = || entries.find(|entry| tail(entry.name()) == tail(name));
            Some(exact.or_else(alike)?.value(arch))
        };
        let mut pairs: Vec<(u64, u64)> = portable
            .entries
            .iter()
            .filter_map(|(name, portable)| Some((*portable, value(name)?)))
            .filter(|(portable, _)| !has_access || portable & ACCESS == 0)
            .collect();
        pairs.sort_by_key(|(_, native)| std::cmp::Reverse(native.count_ones()));
        let mut bits = [0; 64];
        for (portable, native) in &pairs {
            if portable.is_power_of_two()
                && let Ok(bit) = usize::try_from(portable.trailing_zeros())
            {
                bits[bit] |= native;
            }
        }
        let is_several = |(portable, _): &&(u64, u64)| portable.count_ones() > 1;
        Self {
            has_access,
            is_enum: native.style() == Style::Enum,
            several: pairs.iter().filter(is_several).copied().collect(),
            pairs,
            bits,
        }
    }

    /// Converts a capture's value to the native value.
    pub(crate) fn to_native(&self, value: u64) -> u64 {
        if self.is_enum {
            let pair = self.pairs.iter().find(|(portable, _)| *portable == value);
            return pair.map_or(value, |(_, native)| *native);
        }
        let access = if self.has_access {
            (value & ACCESS).saturating_sub(1)
        } else {
            0
        };
        let mut all = access;
        let mut rest = value;
        while let Ok(bit @ 0..64) = usize::try_from(rest.trailing_zeros()) {
            all |= self.bits[bit];
            rest &= rest - 1;
        }
        let set = |(portable, _): &&(u64, u64)| value & portable == *portable;
        self.several
            .iter()
            .filter(set)
            .fold(all, |all, (_, native)| all | native)
    }

    /// Converts a native value to the value in captures.
    pub(crate) fn to_portable(&self, value: u64) -> u64 {
        if self.is_enum {
            let pair = self.pairs.iter().find(|(_, native)| *native == value);
            return pair.map_or(value, |(portable, _)| *portable);
        }
        let mut rest = value;
        let mut portable = 0;
        if self.has_access {
            // The fourth value means neither reading nor writing, which captures cannot represent.
            portable = ((value & ACCESS) + 1) & ACCESS;
            rest &= !ACCESS;
        }
        // As Falco's drivers do: a flag that includes another one sets both. Falco takes an open with O_TMPFILE
        // for one of a directory because O_DIRECTORY is set, too.
        let set = |(_, native): &&(u64, u64)| *native != 0 && rest & native == *native;
        self.pairs
            .iter()
            .filter(set)
            .fold(portable, |all, (flag, _)| all | flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::EventType;

    fn translation(code: u16, param: &str, native: &FlagSet) -> Translation {
        let ty = EventType::of(code).unwrap();
        let flags = ty.params[ty.param(param).unwrap()].flags.unwrap();
        Translation::new(flags, native)
    }

    #[test]
    fn open_flags_go_there_and_back() {
        let open = translation(307, "flags", &abi::flags::OPEN);
        let arch = Arch::native().unwrap();
        let bits = |names: &[&str]| {
            let value = |name: &&str| abi::flags::OPEN.value_of(arch, name).unwrap();
            names.iter().map(value).fold(0, |all, bit| all | bit)
        };
        for (names, portable) in [
            (&["O_RDONLY"][..], 1),
            (&["O_WRONLY", "O_CREAT", "O_TRUNC"], 2 | 4 | 0x100),
            (&["O_RDWR", "O_SYNC"], 3 | 0x80 | 0x10),
            (
                &["O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"],
                1 | 0x400 | 0x1000,
            ),
            (&["O_RDWR", "O_TMPFILE"], 3 | 0x2000 | 0x400),
        ] {
            let native = bits(names);
            assert_eq!(open.to_portable(native), portable, "{names:?}");
            assert_eq!(open.to_native(portable), native, "{names:?}");
        }
    }

    #[test]
    fn enumerations_and_prefixes_are_paired() {
        let seek = translation(87, "whence", &abi::flags::SEEK);
        assert_eq!((seek.to_native(1), seek.to_portable(2)), (1, 2));
        let mount = EventType::all().find(|ty| ty.name == "mount").unwrap().code;
        let mount = translation(mount, "flags", &abi::flags::MOUNT);
        let arch = Arch::native().unwrap();
        let bind = abi::flags::MOUNT.value_of(arch, "MS_BIND").unwrap();
        assert_eq!(
            (mount.to_native(0x1000), mount.to_portable(bind)),
            (bind, 0x1000)
        );
    }

    #[test]
    fn every_set_that_events_use_finds_its_names() {
        for ty in EventType::all() {
            let Ok(kind) = event::EventKind::from_name(ty.name) else {
                continue;
            };
            for param in &ty.params {
                let (Some(flags), Some(at)) = (param.flags, kind.param_index(param.name)) else {
                    continue;
                };
                let (event::ParamType::Flags(set) | event::ParamType::Enum(set)) =
                    kind.spec().params[at].ty
                else {
                    continue;
                };
                let found = Translation::new(flags, set).pairs.len();
                let names = flags.entries.len().min(set.entries().len());
                assert!(found * 2 >= names, "{} {}: {found}", ty.name, flags.name);
            }
        }
    }
}
