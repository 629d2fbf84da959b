//! Calls that open files: what their flags mean, and what of them is the same whoever makes them.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::{
    DescriptorKind, DescriptorSource, Event, EventKind, Known, Name, Outcome, Param, Stage,
};

/// A call that has opened a file or failed to, by what does not depend on who made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening<'a> {
    /// Which call.
    pub kind: EventKind,
    /// The name as it was passed. It is absolute.
    pub name: &'a [u8],
    /// Flags, if the call has any.
    pub flags: Option<u64>,
    /// Permissions of a new file, if the call has any.
    pub mode: Option<u64>,
    /// What it returned.
    pub result: i64,
}

/// Nothing can come of an opening, whoever makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImpossibleOpen {
    /// Nor can it if the result is another one, as long as neither is below this.
    pub alike_from: i64,
}

/// Where the parameters of a call that opens files stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct OpeningParams {
    /// The name.
    pub name: usize,
    /// The flags; those of `creat` are always the same.
    pub flags: usize,
    /// Permissions of a new file.
    pub mode: Option<usize>,
}

impl OpeningParams {
    /// `None` if calls of this kind open nothing.
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

/// A number among parameters: `None` if it cannot be told, `Some(None)` if there is none.
fn number(param: Option<&Param<'_>>) -> Option<Option<u64>> {
    match param {
        Some(Param::Uint(number)) => Some(Some(*number)),
        Some(Param::Int(number)) => Some(Some(number.cast_unsigned())),
        Some(Param::Absent(_)) | None => Some(None),
        Some(_) => None,
    }
}

impl<'a> Opening<'a> {
    /// What an event tells of an opening; `None` if not all of it is known, or if the name is relative
    /// to a directory of the caller. `at`: those of the event's kind.
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

    /// The same of a call's parameters.
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

/// Flags of `open` with the values of the architecture that this program was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFlags(pub u64);

/// Values of names. To look one up takes longer than most fields of an event.
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
    /// What is opened, by what the caller says: Falco takes a file for a directory if the caller asks
    /// for one, and for a file if not.
    #[must_use]
    pub fn kind(self) -> DescriptorKind {
        // O_TMPFILE contains the bit of O_DIRECTORY but makes a file.
        if self.0 & NAMED.directory != 0 && !self.makes_temporary() {
            DescriptorKind::Directory
        } else {
            DescriptorKind::File
        }
    }

    /// Whether a file without a name is made.
    pub(crate) fn makes_temporary(self) -> bool {
        self.0 & NAMED.temporary == NAMED.temporary
    }

    /// Whether a file is made if there is none.
    pub(crate) fn may_create(self) -> bool {
        self.0 & NAMED.create != 0 || self.makes_temporary()
    }

    /// Whether a success means that a file was made.
    #[must_use]
    pub fn must_create(self) -> bool {
        self.0 & NAMED.exclusive != 0 || self.makes_temporary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_are_no_directories_and_surely_made() {
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
        assert_eq!(temporary.kind(), DescriptorKind::File);
        assert!(temporary.may_create() && temporary.must_create());
        assert!(!flags(&["O_WRONLY", "O_CREAT"]).must_create());
        assert!(flags(&["O_WRONLY", "O_CREAT", "O_EXCL"]).must_create());
    }
}
