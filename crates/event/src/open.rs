//! Calls that open files: their flags, and the facts that do not depend on the caller.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::{
    DescriptorKind, DescriptorSource, Event, EventKind, Known, Name, Outcome, Param, Stage,
};

/// A completed call to open a file, described only by facts that do not depend on the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening<'a> {
    /// Kind of the call.
    pub kind: EventKind,
    /// Absolute name, as passed.
    pub name: &'a [u8],
    /// Open flags, if the call has any.
    pub flags: Option<u64>,
    /// Permissions of a new file, if the call has any.
    pub mode: Option<u64>,
    /// Result of the call.
    pub result: i64,
}

/// A proof that no rule matches an opening, whichever process makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImpossibleOpen {
    /// Smallest result that the proof also covers: no rule matches the same opening with any result that is
    /// at least this, provided the proven result is too.
    pub alike_from: i64,
}

/// Parameter positions of a call that opens files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct OpeningParams {
    /// Position of the name.
    pub name: usize,
    /// Position of the flags; those of `creat` are constant.
    pub flags: usize,
    /// Position of the permissions of a new file.
    pub mode: Option<usize>,
}

impl OpeningParams {
    /// Returns the positions, or `None` if calls of this kind do not open files.
    #[must_use]
    pub fn of(kind: EventKind) -> Option<Self> {
        let DescriptorSource::Opened { name, flags } = kind.spec().descriptor else {
            return None;
        };
        Some(Self {
            name: usize::from(name),
            flags: usize::from(flags),
            mode: kind.param_index("mode"),
        })
    }
}

/// Returns a numeric parameter: `None` if it is unknown, `Some(None)` if it does not exist.
fn number(param: Option<&Param<'_>>) -> Option<Option<u64>> {
    match param {
        Some(Param::Uint(number)) => Some(Some(*number)),
        Some(Param::Int(number)) => Some(Some(number.cast_unsigned())),
        Some(Param::Absent(_)) | None => Some(None),
        Some(_) => None,
    }
}

impl<'a> Opening<'a> {
    /// Returns the opening of an event; `None` if a part of it is unknown, or if the name is relative to a
    /// directory of the caller. `at` holds the positions of the event's kind.
    #[must_use]
    pub fn of(event: &Event<'a>, at: OpeningParams) -> Option<Self> {
        let descriptor = event.descriptor.as_ref()?;
        let (Name::Passed { raw, .. }, Outcome::Returned(result)) =
            (descriptor.name, event.outcome)
        else {
            return None;
        };
        if event.stage < Stage::Exit || descriptor.number != Known::Yes(result.max(-1)) {
            return None;
        }
        let [flags, mode] =
            [Some(at.flags), at.mode].map(|at| at.and_then(|at| event.params.get(at)));
        Self::new(event.kind, raw, flags, mode, result)
    }

    /// Creates an opening from a call's parameters.
    #[must_use]
    pub fn new(
        kind: EventKind,
        name: &'a [u8],
        flags: Option<&Param<'_>>,
        mode: Option<&Param<'_>>,
        result: i64,
    ) -> Option<Self> {
        if name.first() != Some(&b'/') {
            return None;
        }
        Some(Self {
            kind,
            name,
            flags: number(flags)?,
            mode: number(mode)?,
            result,
        })
    }
}

/// Flags of `open`, with the values of the architecture that this program was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFlags(pub u64);

/// Cached flag values. Looking one up by name takes longer than most fields of an event.
struct Named {
    create: u64,
    directory: u64,
    exclusive: u64,
    temporary: u64,
}

static NAMED: LazyLock<Named> = LazyLock::new(|| {
    let arch = abi::Arch::native().unwrap_or(abi::Arch::X86_64);
    let value = |name| {
        let value = abi::flags::OPEN.value_of(arch, name);
        value.expect("every architecture has the flags that POSIX names and O_TMPFILE")
    };
    Named {
        create: value("O_CREAT"),
        directory: value("O_DIRECTORY"),
        exclusive: value("O_EXCL"),
        temporary: value("O_TMPFILE"),
    }
});

impl OpenFlags {
    /// Returns the kind of the opened object according to the flags: like Falco, a directory if the caller
    /// asks for one, and a file otherwise. `O_TMPFILE` includes `O_DIRECTORY`: the name that the call passes is
    /// that of a directory, and the file that it makes has none, so it is in no place that a rule could name.
    #[must_use]
    pub fn kind(self) -> DescriptorKind {
        if self.0 & NAMED.directory != 0 {
            DescriptorKind::Directory
        } else {
            DescriptorKind::File
        }
    }

    /// Returns true if the call creates a file without a name.
    pub(crate) fn makes_temporary(self) -> bool {
        self.0 & NAMED.temporary == NAMED.temporary
    }

    /// Returns true if the call creates a missing file.
    pub(crate) fn may_create(self) -> bool {
        self.0 & NAMED.create != 0 || self.makes_temporary()
    }

    /// Returns true if success means that a file was created.
    #[must_use]
    pub fn must_create(self) -> bool {
        self.0 & NAMED.exclusive != 0 || self.makes_temporary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_have_the_kind_of_their_directory_and_are_surely_made() {
        let arch = abi::Arch::native().unwrap();
        let flags = |names: &[&str]| {
            let value = |name: &&str| abi::flags::OPEN.value_of(arch, name).unwrap();
            OpenFlags(names.iter().map(value).fold(0, |all, flag| all | flag))
        };
        assert_eq!(flags(&["O_RDONLY"]).kind(), DescriptorKind::File);
        let directory = flags(&["O_RDONLY", "O_DIRECTORY"]);
        assert_eq!(directory.kind(), DescriptorKind::Directory);
        assert!(!directory.may_create());
        let temporary = flags(&["O_RDWR", "O_TMPFILE"]);
        assert_eq!(temporary.kind(), DescriptorKind::Directory);
        assert!(temporary.may_create() && temporary.must_create());
        assert!(!flags(&["O_WRONLY", "O_CREAT"]).must_create());
        assert!(flags(&["O_WRONLY", "O_CREAT", "O_EXCL"]).must_create());
    }
}
