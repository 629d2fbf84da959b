//! Leftovers of a runtime that was killed while it created a container.
//!
//! runc briefly mounts its own binary over a file in the container's state directory, so that
//! containers cannot write to it. If runc is killed at that moment, the mount and the file remain,
//! and `runc delete` does not look for them.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use abi::constant::MNT_DETACH;
use process_info::procfs::{mount_lines, unescape};

use crate::Runtime;

/// Returns the directories in which a runtime may keep container states without `--root`: that of the machine,
/// and, depending on runtime and user, that of the user.
#[must_use]
pub fn usual_roots(runtime: &Runtime) -> Vec<PathBuf> {
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    roots_of(&runtime.name(), of_user.map(PathBuf::from))
}

fn roots_of(name: &OsStr, of_user: Option<PathBuf>) -> Vec<PathBuf> {
    if !["runc", "crun", "youki"].iter().any(|known| name == *known) {
        return Vec::new();
    }
    let folders = std::iter::once(PathBuf::from("/run")).chain(of_user);
    folders.map(|folder| folder.join(name)).collect()
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
        // Under rootless podman the folder of the machine is closed. The list of mounts is not.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => folder.to_owned(),
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
    fn a_runtime_may_keep_states_in_the_folder_of_the_user() {
        let of = |name: &str, user: Option<&str>| roots_of(name.as_ref(), user.map(PathBuf::from));
        assert_eq!(of("runc", None), [Path::new("/run/runc")]);
        let both = ["/run/crun", "/run/user/7/crun"].map(PathBuf::from);
        assert_eq!(of("crun", Some("/run/user/7")), both);
        assert!(of("other", Some("/run/user/7")).is_empty());
    }

    #[test]
    fn a_folder_that_is_not_there_has_left_nothing() {
        assert!(remove(Path::new("/nowhere/at/all")).is_ok());
    }
}
