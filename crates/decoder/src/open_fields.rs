//! Flags, permissions and lookup rules that an open passes in a structure in memory (`openat2`).
//!
//! Whoever can write that memory can show the agent other flags than the kernel copies. The open file shows some
//! of those that the kernel used, whatever the memory holds.

use std::fmt;
use std::sync::LazyLock;

use abi::Arch;
use abi::constant::{
    O_ASYNC, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_DSYNC, O_EXCL, O_LARGEFILE, O_NOCTTY, O_NONBLOCK,
    O_SYNC, O_TMPFILE, O_TRUNC,
};
use bumpalo::Bump;
use event::{
    Descriptor, DescriptorSource, EventKind, Known, OpenFlags, Param, ParamSource, ParamType,
};

use super::decode::Decoded;

/// Flags that an open file does not show as they were passed: those that are about the call alone; `O_LARGEFILE`, which
/// the kernel adds; those that drivers or other threads may have set since.
const HIDDEN: u64 = O_CREAT.u64()
    | O_EXCL.u64()
    | O_NOCTTY.u64()
    | O_TRUNC.u64()
    | O_LARGEFILE.u64()
    | O_NONBLOCK.u64()
    | O_ASYNC.u64()
    | O_CLOEXEC.u64();
/// `O_SYNC` without `O_DSYNC`, which it includes.
const FULL_SYNC: u64 = O_SYNC.u64() & !O_DSYNC.u64();
/// `O_TMPFILE` without `O_DIRECTORY`, which it includes.
const TEMPORARY: u64 = O_TMPFILE.u64() & !O_DIRECTORY.u64();

/// Flags that an open file shows as they were passed: all that have a name and are not hidden.
static SHOWN: LazyLock<u64> = LazyLock::new(|| {
    let arch = Arch::native().unwrap_or(Arch::X86_64);
    let entries = abi::flags::OPEN.entries();
    entries.iter().fold(0, |all, flag| all | flag.value(arch)) & !HIDDEN
});

/// Flags of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFlags {
    /// The kernel's flags of the file, as fcntl(2) and `/proc/PID/fdinfo` show them.
    pub flags: u64,
    /// True if the open is known to have created the file.
    pub is_created: bool,
}

/// Values that an open passes in memory, with the positions of their parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFields {
    kind: EventKind,
    flags_at: usize,
    values: Vec<(usize, u64)>,
}

/// Returns whether an open passes its flags in memory.
#[must_use]
pub fn are_in_memory(kind: EventKind) -> bool {
    flags_position(kind).is_some()
}

fn flags_position(kind: EventKind) -> Option<usize> {
    let spec = kind.spec();
    let DescriptorSource::Opened { flags, .. } = spec.descriptor else {
        return None;
    };
    let position = usize::from(flags);
    matches!(spec.params.get(position)?.source, ParamSource::Field { .. }).then_some(position)
}

/// Returns the positions of the parameters that are fields of a structure in memory.
fn positions(kind: EventKind) -> impl Iterator<Item = usize> {
    let params = kind.spec().params.iter().enumerate();
    let fields = params.filter(|(_, spec)| matches!(spec.source, ParamSource::Field { .. }));
    fields.map(|(position, _)| position)
}

impl OpenFields {
    /// Returns the values that were read; `None` if the call passes none in memory, or if one could not be read.
    #[must_use]
    pub fn of(kind: EventKind, decoded: &Decoded<'_>) -> Option<Self> {
        let flags_at = flags_position(kind)?;
        let value = |position| match decoded.params.get(position) {
            Some(Param::Uint(value)) => Some((position, *value)),
            _ => None,
        };
        let values = positions(kind).map(value).collect::<Option<_>>()?;
        Some(Self {
            kind,
            flags_at,
            values,
        })
    }

    /// Returns the flags.
    #[must_use]
    pub fn flags(&self) -> u64 {
        let flags = self.values.iter().find(|(at, _)| *at == self.flags_at);
        flags.map_or(0, |(_, flags)| *flags)
    }

    /// Returns whether the kernel may have opened a file with these flags from these values.
    #[must_use]
    pub fn fit(&self, file: FileFlags) -> bool {
        let passed = self.flags();
        // The kernel adds the flag itself.
        let implied = match passed & FULL_SYNC {
            0 => 0,
            _ => O_DSYNC.u64(),
        };
        let may_create = passed & (O_CREAT.u64() | TEMPORARY) != 0;
        ((passed | implied) ^ file.flags) & *SHOWN == 0 && (may_create || !file.is_created)
    }

    /// Returns the values with the flags that an open file shows.
    #[must_use]
    pub fn corrected(&self, file: FileFlags) -> Self {
        let mut flags = self.flags() & !*SHOWN | file.flags & *SHOWN;
        if file.is_created && flags & TEMPORARY == 0 {
            flags |= O_CREAT.u64();
        }
        let value = |(at, value): &(usize, u64)| match *at == self.flags_at {
            true => (*at, flags),
            false => (*at, *value),
        };
        Self {
            values: self.values.iter().map(value).collect(),
            ..*self
        }
    }

    /// Returns the call with these values.
    #[must_use]
    pub fn put<'a>(&self, decoded: &Decoded<'a>, arena: &'a Bump) -> Decoded<'a> {
        let value = |position| {
            let own = self.values.iter().find(|(at, _)| *at == position);
            own.map(|(_, value)| Param::Uint(*value))
        };
        let params = decoded.params.iter().enumerate();
        let params = params.map(|(position, param)| value(position).unwrap_or(*param));
        let kind = OpenFlags(self.flags()).kind();
        Decoded {
            params: arena.alloc_slice_fill_iter(params),
            // The kind of an opened file is derived from the flags.
            descriptor: decoded.descriptor.map(|known| match known.kind {
                Known::Yes(_) => Descriptor {
                    kind: Known::Yes(kind),
                    ..known
                },
                _ => known,
            }),
            ..*decoded
        }
    }
}

/// Returns the call with any value in the place of those that an open passes in memory.
#[must_use]
pub fn without_values<'a>(kind: EventKind, decoded: &Decoded<'a>, arena: &'a Bump) -> Decoded<'a> {
    let mut params = decoded.params.to_vec();
    for position in positions(kind) {
        if let Some(param) = params.get_mut(position) {
            *param = Param::Unreadable;
        }
    }
    Decoded {
        params: arena.alloc_slice_copy(&params),
        descriptor: decoded.descriptor.map(|known| Descriptor {
            kind: Known::NotYet,
            ..known
        }),
        ..*decoded
    }
}

impl fmt::Display for OpenFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arch = Arch::native().unwrap_or(Arch::X86_64);
        let params = self.kind.spec().params;
        for (index, (position, value)) in self.values.iter().enumerate() {
            let spec = &params[*position];
            let space = if index > 0 { " " } else { "" };
            match spec.ty {
                ParamType::Flags(set) if *value != 0 || *position == self.flags_at => {
                    let mut names = String::new();
                    set.format(arch, *value, &mut names);
                    write!(f, "{space}{}={names}", spec.name)?;
                }
                _ => write!(f, "{space}{}={value:#o}", spec.name)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
