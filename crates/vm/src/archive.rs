//! Writer for initial RAM disks in the cpio format "newc", which the kernel unpacks
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_755;
pub(super) const TRAILER: &str = "TRAILER!!!";

/// Writes an archive.
#[derive(Debug)]
pub struct Archive<W: Write> {
    out: W,
    written: u64,
    inode: u32,
    folders: BTreeSet<PathBuf>,
}

/// Header fields of an entry, without its name.
#[derive(Clone, Copy, Default)]
struct Entry {
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    device: u64,
}

impl Entry {
    fn of(found: &fs::Metadata) -> Self {
        Self {
            mode: found.mode(),
            uid: found.uid(),
            gid: found.gid(),
            ..Self::default()
        }
    }
}

impl<W: Write> Archive<W> {
    /// Creates an archive without entries.
    pub fn new(out: W) -> Self {
        Self {
            out,
            written: 0,
            inode: 0,
            folders: BTreeSet::new(),
        }
    }

    /// Adds a directory and its parents, owned by root.
    ///
    /// # Errors
    ///
    /// The archive cannot be written.
    pub fn folder(&mut self, path: &Path) -> io::Result<()> {
        let above: Vec<_> = path.ancestors().collect();
        for folder in above.into_iter().rev() {
            let is_root = folder.parent().is_none() || folder.as_os_str().is_empty();
            if !is_root && self.folders.insert(folder.to_owned()) {
                let mode = FOLDER;
                self.header(
                    folder,
                    Entry {
                        mode,
                        ..Entry::default()
                    },
                )?;
            }
        }
        Ok(())
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    ///
    /// The archive cannot be written.
    pub fn link(&mut self, path: &Path, target: &Path) -> io::Result<()> {
        self.whole(path, LINK, target.as_os_str().as_bytes())
    }

    /// Adds an executable file that root owns.
    ///
    /// # Errors
    ///
    /// The archive cannot be written.
    pub fn bytes(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.whole(path, FILE, bytes)
    }

    fn whole(&mut self, path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
        path.parent().map_or(Ok(()), |folder| self.folder(folder))?;
        let size = bytes.len() as u64;
        self.header(
            path,
            Entry {
                mode,
                size,
                ..Entry::default()
            },
        )?;
        self.put(bytes)?;
        self.pad()
    }

    /// Adds a file, or everything below a directory, with owners and modes. Sockets are left out,
    /// since they lead nowhere in another machine.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written, or changes its size meanwhile.
    pub fn tree(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let found = fs::symlink_metadata(from)?;
        let kind = found.file_type();
        let mut entry = Entry::of(&found);
        to.parent().map_or(Ok(()), |folder| self.folder(folder))?;
        if kind.is_dir() {
            if self.folders.insert(to.to_owned()) {
                self.header(to, entry)?;
            }
            let mut names: Vec<_> = fs::read_dir(from)?.collect::<Result<_, _>>()?;
            names.sort_by_key(fs::DirEntry::file_name);
            for name in names {
                self.tree(&name.path(), &to.join(name.file_name()))?;
            }
        } else if kind.is_symlink() {
            let target = fs::read_link(from)?;
            entry.size = target.as_os_str().len() as u64;
            self.header(to, entry)?;
            self.put(target.as_os_str().as_bytes())?;
            self.pad()?;
        } else if kind.is_file() {
            entry.size = found.len();
            self.header(to, entry)?;
            let copied = io::copy(&mut File::open(from)?, &mut self.out)?;
            if copied != entry.size {
                let message = format!("{} changed while it was read", from.display());
                return Err(io::Error::other(message));
            }
            self.written += copied;
            self.pad()?;
        } else if !kind.is_socket() {
            entry.device = found.rdev();
            self.header(to, entry)?;
        }
        Ok(())
    }

    /// Returns the current size in bytes.
    pub fn size(&self) -> u64 {
        self.written
    }

    /// Completes the archive. Returns its size.
    ///
    /// # Errors
    ///
    /// The archive cannot be written.
    pub fn end(mut self) -> io::Result<u64> {
        self.header(Path::new(TRAILER), Entry::default())?;
        self.out.flush()?;
        Ok(self.written)
    }

    fn header(&mut self, path: &Path, entry: Entry) -> io::Result<()> {
        // Names in the archive are relative.
        let name = path.as_os_str().as_bytes();
        let name = name.strip_prefix(b"/").unwrap_or(name);
        let size = u32::try_from(entry.size).map_err(|_too_long| {
            let message = format!("{} is too long: 4 GiB or more", path.display());
            io::Error::other(message)
        })?;
        self.inode += 1;
        let name_size = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
        let (major, minor) = numbers(entry.device);
        let (links, time) = (1, 0);
        let mut header = String::from("070701");
        for word in [
            self.inode, entry.mode, entry.uid, entry.gid, links, time, size, 0, 0, major, minor,
            name_size, 0,
        ] {
            header.push_str(&format!("{word:08X}"));
        }
        self.put(header.as_bytes())?;
        self.put(name)?;
        self.put(&[0])?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        self.put(&[0; 3][..padding(self.written)])
    }
}

/// Number of padding bytes to a whole number of words, as which names and contents are stored.
pub(super) fn padding(size: u64) -> usize {
    usize::try_from(size.wrapping_neg() % 4).expect("it is below four")
}

/// Splits a device number into major (12 bits) and minor (20 bits), in the layout of `stat`.
fn numbers(device: u64) -> (u32, u32) {
    let bits = |value: u64, mask: u64| u32::try_from(value & mask).expect("it is masked");
    (
        bits(device >> 8, 0xfff),
        bits(device, 0xff) | bits(device >> 12, 0xf_ff00),
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn cpio_finds_in_it_what_was_put_into_it() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        fs::create_dir_all(from.join("sub")).unwrap();
        fs::write(from.join("sub/file"), "12345").unwrap();
        std::os::unix::fs::symlink("sub/file", from.join("link")).unwrap();
        let path = folder.path().join("image");
        let mut archive = Archive::new(File::create(&path).unwrap());
        archive.tree(&from, Path::new("/rootfs")).unwrap();
        archive.bytes(Path::new("/a/b/init"), b"x").unwrap();
        archive
            .link(Path::new("/lib"), Path::new("usr/lib"))
            .unwrap();
        let size = archive.end().unwrap();
        assert_eq!(size, fs::metadata(&path).unwrap().len());
        let mut list = Command::new("cpio");
        let list = list.arg("-t").stdin(File::open(&path).unwrap());
        let Ok(listed) = list.output() else {
            testing::skip!("needs cpio", || Ok("it cannot be started".to_owned()));
        };
        let listed = String::from_utf8(listed.stdout).unwrap();
        let expected = [
            "rootfs",
            "rootfs/link",
            "rootfs/sub",
            "rootfs/sub/file",
            "a",
            "a/b",
            "a/b/init",
            "lib",
        ];
        assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let mut archive = Archive::new(Vec::new());
        let error = archive
            .tree(Path::new("/no/such"), Path::new("/x"))
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn devices_are_two_numbers() {
        // /dev/null, and one whose minor number does not fit into a byte.
        assert_eq!(numbers(0x0103), (1, 3));
        assert_eq!(numbers(0x0010_0801), (8, 0x101));
    }
}
