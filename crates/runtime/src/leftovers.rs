//! Leftovers of a runtime that was killed while it created a container.
//!
//! runc briefly mounts its own binary over a file in the container's state directory, so that
//! containers cannot write to it. If runc is killed at that moment, the mount and the file remain,
//! and `runc delete` does not look for them.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use abi::constant::MNT_DETACH;
use process_info::procfs::{mount_lines, unescape};

use crate::Runtime;

/// Returns the default directory in which a runtime keeps container states, that is, without
/// `--root`.
#[must_use]
pub fn usual_root(runtime: &Runtime) -> Option<PathBuf> {
    let name = runtime.name();
    ["runc", "crun", "youki"]
        .iter()
        .find(|known| name == **known)
        .map(|name| Path::new("/run").join(name))
}

/// Unmounts everything below the state directory of a container that its runtime no longer knows.
/// Removes the directory if something was mounted.
///
/// # Errors
///
/// A mount or the directory cannot be removed.
pub fn remove(folder: &Path) -> io::Result<()> {
    let folder = match folder.canonicalize() {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let below = mounts_below(&mounts, &folder);
    if below.is_empty() {
        // Other contents belong to the runtime.
        return Ok(());
    }
    for mount in &below {
        let path = CString::new(mount.as_os_str().as_bytes()).map_err(io::Error::other)?;
        sys::namespace::unmount(&path, MNT_DETACH.i32())?;
    }
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the mounts below a directory, the last one first.
fn mounts_below(mounts: &str, folder: &Path) -> Vec<PathBuf> {
    let below = mount_lines(mounts.as_bytes())
        .map(|mount| unescape(mount.mount_point).into_owned())
        .map(|point| PathBuf::from(OsString::from_vec(point)))
        .filter(|point| point.starts_with(folder) && point != folder);
    let mut below: Vec<_> = below.collect();
    below.reverse();
    below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_one_container_are_told_from_others() {
        let mounts = "22 27 0:21 / /run/runc rw - tmpfs none rw\n\
                      23 27 254:0 /usr/sbin/runc /run/runc/a/runc.X rw - ext4 /dev/vda rw\n\
                      24 27 254:0 /usr/sbin/runc /run/runc/ab/runc.X rw - ext4 /dev/vda rw\n\
                      25 27 254:0 /usr/sbin/runc /run/runc/a/with\\040blank rw - ext4 /dev/vda rw\n";
        let expected = ["/run/runc/a/with blank", "/run/runc/a/runc.X"].map(PathBuf::from);
        assert_eq!(mounts_below(mounts, Path::new("/run/runc/a")), expected);
    }

    #[test]
    fn a_folder_that_is_not_there_has_left_nothing() {
        assert!(remove(Path::new("/nowhere/at/all")).is_ok());
    }
}
