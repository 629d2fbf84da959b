//! Unpacks what [`Archive`](crate::Archive) packs, for a warm machine.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Component, Path, PathBuf};

use super::archive::{TRAILER, padding};

const MAGIC: &[u8] = b"070701";
const HEADER: usize = 110;
/// Maximum length of a name or a link's target, as in the kernel.
const LONGEST_NAME: usize = 4096;
const KIND: u32 = 0o170_000;
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const MODE: u32 = 0o7777;

/// Creates a device or a pipe: path, mode, major and minor number.
pub type MakeNode<'m> = &'m mut dyn FnMut(&Path, u32, (u32, u32)) -> io::Result<()>;

/// Header of an entry.
struct Entry {
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    device: (u32, u32),
    path: PathBuf,
}

/// Unpacks an archive below a directory. Existing entries are replaced, except directories.
///
/// # Errors
///
/// The archive is invalid, or something cannot be created.
pub fn unpack(from: &mut impl Read, root: &Path, make_node: MakeNode<'_>) -> io::Result<()> {
    while let Some(entry) = header(from, root)? {
        let path = entry.path.display();
        let unpacked = put(from, &entry, &mut *make_node);
        unpacked.map_err(|cause| io::Error::new(cause.kind(), format!("{path}: {cause}")))?;
    }
    Ok(())
}

/// Returns the header of the next entry; `None` at the end.
fn header(from: &mut impl Read, root: &Path) -> io::Result<Option<Entry>> {
    let mut header = [0; HEADER];
    from.read_exact(&mut header)?;
    if !header.starts_with(MAGIC) {
        return Err(malformed("it has no header"));
    }
    let mut words = [0; 13];
    for (word, digits) in words.iter_mut().zip(header[MAGIC.len()..].chunks_exact(8)) {
        let digits = std::str::from_utf8(digits).map_err(|_no| malformed("a number is none"))?;
        *word = u32::from_str_radix(digits, 16).map_err(|_no| malformed("a number is none"))?;
    }
    let [
        _,
        mode,
        uid,
        gid,
        _,
        _,
        size,
        _,
        _,
        major,
        minor,
        name_size,
        _,
    ] = words;
    let name_size = usize::try_from(name_size).unwrap_or(usize::MAX);
    if !(1..=LONGEST_NAME).contains(&name_size) {
        return Err(malformed("a name is too long"));
    }
    let mut name = vec![0; name_size + padding((HEADER + name_size) as u64)];
    from.read_exact(&mut name)?;
    name.truncate(name_size - 1);
    if name == TRAILER.as_bytes() {
        return Ok(None);
    }
    let name = PathBuf::from(std::ffi::OsString::from_vec(name));
    let is_below = name
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if !is_below {
        return Err(malformed("a name leads elsewhere"));
    }
    Ok(Some(Entry {
        mode,
        uid,
        gid,
        size: size.into(),
        device: (major, minor),
        path: root.join(name),
    }))
}

fn put(from: &mut impl Read, entry: &Entry, make_node: MakeNode<'_>) -> io::Result<()> {
    let path = &entry.path;
    let kind = entry.mode & KIND;
    if kind == FOLDER {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            made => made?,
        }
    } else {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    match kind {
        FOLDER => {}
        FILE => copy(from, entry, &mut new_file(path)?)?,
        LINK => {
            let mut target = Vec::new();
            if entry.size > LONGEST_NAME as u64 {
                return Err(malformed("a link is too long"));
            }
            copy(from, entry, &mut target)?;
            symlink(PathBuf::from(std::ffi::OsString::from_vec(target)), path)?;
            return lchown(path, Some(entry.uid), Some(entry.gid));
        }
        _ => make_node(path, entry.mode, entry.device)?,
    }
    // In this order, because changing the owner clears set-user-ID bits.
    chown(path, Some(entry.uid), Some(entry.gid))?;
    fs::set_permissions(path, Permissions::from_mode(entry.mode & MODE))
}

fn new_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

fn copy(from: &mut impl Read, entry: &Entry, to: &mut impl io::Write) -> io::Result<()> {
    let copied = io::copy(&mut from.take(entry.size), to)?;
    if copied != entry.size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    from.read_exact(&mut [0; 3][..padding(entry.size)])
}

fn malformed(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the archive is malformed: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::Archive;

    fn packed(from: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.tree(from, Path::new("/rootfs")).unwrap();
        archive.bytes(Path::new("/a/init"), b"12345").unwrap();
        archive
            .link(Path::new("/lib"), Path::new("usr/lib"))
            .unwrap();
        archive.end().unwrap();
        bytes
    }

    fn no_node(path: &Path, _: u32, _: (u32, u32)) -> io::Result<()> {
        Err(io::Error::other(path.display().to_string()))
    }

    #[test]
    fn what_was_packed_is_there_again() {
        testing::need_root!();
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("sub")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("sub/file"), "123456").unwrap();
        fs::write(from.join("sub/empty"), "").unwrap();
        fs::set_permissions(from.join("sub"), Permissions::from_mode(0o710)).unwrap();
        fs::set_permissions(from.join("sub/file"), Permissions::from_mode(0o4751)).unwrap();
        symlink("sub/file", from.join("link")).unwrap();
        let bytes = packed(&from);
        // Twice: what is there is replaced.
        for _ in 0..2 {
            unpack(&mut &bytes[..], &to, &mut no_node).unwrap();
            let file = to.join("rootfs/sub/file");
            assert_eq!(fs::read(&file).unwrap(), b"123456");
            let mode = |path: &Path| fs::metadata(path).unwrap().mode() & MODE;
            assert_eq!((mode(&file), mode(&to.join("rootfs/sub"))), (0o4751, 0o710));
            assert_eq!(
                fs::read_link(to.join("rootfs/link")).unwrap(),
                Path::new("sub/file")
            );
            assert_eq!(fs::read(to.join("a/init")).unwrap(), b"12345");
            assert_eq!(fs::read_link(to.join("lib")).unwrap(), Path::new("usr/lib"));
            assert_eq!(fs::metadata(to.join("rootfs/sub/empty")).unwrap().len(), 0);
        }
    }

    #[test]
    fn what_is_cut_off_or_leads_elsewhere_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        fs::create_dir(&to).unwrap();
        let from = folder.path().join("file");
        fs::write(&from, "1234567").unwrap();
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.tree(&from, Path::new("/one")).unwrap();
        archive.end().unwrap();
        for len in 0..bytes.len() - 3 {
            assert!(
                unpack(&mut &bytes[..len], &to, &mut no_node).is_err(),
                "{len}"
            );
        }
        for name in ["../two", "/two", "a/../../two"] {
            let mut bytes = Vec::new();
            let mut archive = Archive::new(&mut bytes);
            // A leading slash is taken away once.
            archive
                .tree(&from, &Path::new("/").join(format!("./{name}")))
                .unwrap();
            archive.end().unwrap();
            let error = unpack(&mut &bytes[..], &to, &mut no_node).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{name}: {error}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn devices_are_made_by_the_caller() {
        testing::need_root!();
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive
            .tree(Path::new("/dev/null"), Path::new("/null"))
            .unwrap();
        archive.end().unwrap();
        let mut made = Vec::new();
        let mut make = |path: &Path, mode: u32, device| {
            made.push((mode & KIND, device));
            fs::write(path, "")
        };
        unpack(&mut &bytes[..], folder.path(), &mut make).unwrap();
        assert_eq!(made, [(0o020_000, (1, 3))]);
    }
}
