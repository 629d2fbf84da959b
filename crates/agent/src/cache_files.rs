//! Files of a cache: whole or absent, few, and in a folder that no other user can change.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use diagnostics::text_file;

/// Maximum number of cached files: some tens of KiB for a filter, some hundreds for rules.
pub(super) const KEPT: usize = 32;
/// Magic bytes of a file, with the version of its format. The hash of the parts and the parts follow.
const MAGIC: &[u8; 8] = b"tgplan2\n";

pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns true if no other user can write to the directory, whose contents are trusted.
pub(super) fn is_private(folder: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(folder).is_ok_and(|found| {
        found.is_dir() && found.uid() == own && found.permissions().mode() & 0o022 == 0
    })
}

/// Creates the directory and makes room. Returns false if its contents cannot be trusted.
pub(super) fn ready(folder: &Path) -> std::io::Result<bool> {
    // Others have their own files in the folder above, such as `/run/tollgate`, and reach what they may read there.
    if let Some(above) = folder.parent() {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o755).create(above)?;
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)?;
    let is_private = is_private(folder);
    if is_private {
        make_room(folder)?;
    }
    Ok(is_private)
}

/// Removes the older half of the files when there are too many; those still in use are created again.
fn make_room(folder: &Path) -> std::io::Result<()> {
    let files = fs::read_dir(folder)?.flatten();
    let changed = |file: &fs::DirEntry| file.metadata().and_then(|meta| meta.modified()).ok();
    let mut files: Vec<_> = files.map(|file| (changed(&file), file.path())).collect();
    if files.len() >= KEPT {
        files.sort();
        for (_, file) in &files[..files.len() - KEPT / 2] {
            match fs::remove_file(file) {
                // Another process makes room, too.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
    }
    Ok(())
}

/// Reads a file that no other user can have written.
pub(super) fn read(folder: &Path, file: &Path) -> Option<Vec<u8>> {
    if !is_private(folder) {
        return None;
    }
    // A file that cannot be read is created again.
    text_file::read_bytes(file).ok()
}

/// Writes a file of several parts atomically.
pub(super) fn write<const N: usize>(
    folder: &Path,
    file: &Path,
    parts: [&[u8]; N],
) -> std::io::Result<()> {
    let mut written = tempfile::NamedTempFile::new_in(folder)?;
    written.write_all(&encode(parts))?;
    written.persist(file)?;
    Ok(())
}

/// Returns the bytes of a file of several parts.
pub(super) fn encode<const N: usize>(parts: [&[u8]; N]) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        body.extend_from_slice(&(part.len() as u64).to_le_bytes());
        body.extend_from_slice(part);
    }
    [&MAGIC[..], &hash(&body).to_le_bytes(), &body].concat()
}

/// Splits a file into its parts. Returns `None` if the file has another format, or other bytes than were written: a
/// damaged filter may still be one, of other calls.
pub(super) fn parts<const N: usize>(bytes: &[u8]) -> Option<[&[u8]; N]> {
    let (written, mut rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*written) == hash(rest)).then_some(())?;
    let mut found = [&bytes[..0]; N];
    for one in &mut found {
        (*one, rest) = part(rest)?;
    }
    rest.is_empty().then_some(found)
}

/// Splits off a length and that many bytes.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
    rest.split_at_checked(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        write(folder.path(), &file, [b"key".as_slice(), b"", b"filter"]).unwrap();
        read(folder.path(), &file).unwrap()
    }

    #[test]
    fn the_folder_is_closed_to_others_and_the_one_above_is_not() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("tollgate/rules");
        assert!(ready(&folder).unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        // Also readable and not writable where the umask takes nothing away.
        assert_eq!(mode(&place.path().join("tollgate")) & !0o055, 0o700);
        assert_ne!(mode(&place.path().join("tollgate")) & 0o055, 0);
    }

    #[test]
    fn a_file_is_split_into_the_parts_that_were_written() {
        let bytes = written();
        assert_eq!(parts(&bytes), Some([b"key".as_slice(), b"", b"filter"]));
        assert_eq!(parts::<2>(&bytes), None, "another number of parts");
    }

    #[test]
    fn a_file_of_an_older_or_newer_format_is_not_read() {
        let bytes = written();
        for number in [b'1', b'3'] {
            let mut other = bytes.clone();
            other[MAGIC.len() - 2] = number;
            assert_eq!(parts::<3>(&other), None);
        }
        // As the first format had it: without a hash.
        let older = [&b"tgplan1\n"[..], &bytes[MAGIC.len() + 8..]].concat();
        assert_eq!(parts::<3>(&older), None);
    }

    #[test]
    fn a_file_with_a_changed_or_missing_byte_is_not_read() {
        let bytes = written();
        for place in 0..bytes.len() {
            assert_eq!(parts::<3>(&bytes[..place]), None, "{place}");
            for change in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[place] ^= change;
                assert_eq!(parts::<3>(&changed), None, "{place}");
            }
        }
    }
}
