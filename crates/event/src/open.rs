//! What the flags of `open` mean.

use std::sync::LazyLock;

use crate::DescriptorKind;

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
    pub(crate) fn must_create(self) -> bool {
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
