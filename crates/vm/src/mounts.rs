//! Mounts entries of the configuration into the container's root, in order.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use abi::Errno;
use diagnostics::failure::Failure;
use serde_json::Value;

use super::container::{list, text};
use super::guest::{broken, mount};
use super::image::ROOT;

pub(super) const MS_RDONLY: u64 = abi::constant::MS_RDONLY.u64();
pub(super) const MS_REMOUNT: u64 = abi::constant::MS_REMOUNT.u64();
pub(super) const MS_BIND: u64 = abi::constant::MS_BIND.u64();
pub(super) const MS_REC: u64 = abi::constant::MS_REC.u64();
/// Supported mount types, besides bind mounts.
pub(super) const TYPES: [&str; 7] = [
    "proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2",
];
/// The cgroup version of machines.
const GROUPS: &str = "cgroup2";
/// Mount options that are flags. Others are passed to the file system.
const FLAGS: [(&str, u64); 11] = [
    ("ro", MS_RDONLY),
    ("rro", MS_RDONLY),
    ("nosuid", 1 << 1),
    ("nodev", 1 << 2),
    ("noexec", 1 << 3),
    ("noatime", 1 << 10),
    ("nodiratime", 1 << 11),
    ("relatime", 1 << 21),
    ("strictatime", 1 << 24),
    ("rw", 0),
    ("rrw", 0),
];
/// Ignored mount options: they concern other mounts or programs, or ask for what is the case
/// anyway.
const NO_MATTER: [&str; 20] = [
    "async",
    "atime",
    "bind",
    "copy",
    "defaults",
    "dev",
    "diratime",
    "exec",
    "nocopy",
    "notmpcopyup",
    "private",
    "rbind",
    "rprivate",
    "rshared",
    "rslave",
    "runbindable",
    "shared",
    "slave",
    "suid",
    "unbindable",
];
/// Option of a tmpfs that starts with a copy of what it covers.
const COPY_UP: &str = "tmpcopyup";
const EINVAL: i32 = Errno::EINVAL.0;
const ENOENT: i32 = Errno::ENOENT.0;
const ENOTDIR: i32 = Errno::ENOTDIR.0;
/// Maximum number of links followed, the kernel's limit (path_resolution(7)).
const LINKS: u32 = 40;

/// Mounts one entry of `mounts`.
pub(super) fn mount_one(entry: &Value) -> Result<(), Failure> {
    let kind = text(&entry["type"]);
    let source = text(&entry["source"]);
    let mut flags = 0;
    let mut data = Vec::new();
    let mut copies = false;
    for option in list(&entry["options"]).iter().map(text) {
        match FLAGS.iter().find(|(name, _)| *name == option) {
            Some((_, flag)) => flags |= flag,
            None if option == COPY_UP => copies = true,
            None if NO_MATTER.contains(&option) => {}
            None => data.push(option),
        }
    }
    let found = within(Path::new(ROOT), Path::new(text(&entry["destination"])));
    let found = found.map_err(broken("find a place for a mount"))?;
    let is_file = kind == "bind" && Path::new(source).is_file();
    place(&found, is_file).map_err(broken("make a place for a mount"))?;
    // Both parts come from JSON and from links, which may not be UTF-8.
    let target = found.to_str().ok_or(io::ErrorKind::InvalidFilename);
    let target = target.map_err(|kind| broken("find a place for a mount")(kind.into()))?;
    match kind {
        "bind" => {
            mount(source, "", target, MS_BIND | MS_REC, "")?;
            match flags {
                0 => Ok(()),
                flags => mount("", "", target, MS_REMOUNT | MS_BIND | flags, ""),
            }
        }
        "cgroup" => mount(GROUPS, GROUPS, target, flags, ""),
        "tmpfs" if copies => {
            let covered = File::open(target).map_err(broken("copy what a mount covers"))?;
            mount(kind, kind, target, flags & !MS_RDONLY, &data.join(","))?;
            let from = PathBuf::from(format!("/proc/self/fd/{}", covered.as_raw_fd()));
            copy(&from, Path::new(target)).map_err(broken("copy what a mount covers"))?;
            match flags & MS_RDONLY {
                0 => Ok(()),
                _ => mount("", "", target, MS_REMOUNT | flags, &data.join(",")),
            }
        }
        _ => mount(kind, kind, target, flags, &data.join(",")),
    }
}

/// Creates the mount point.
fn place(target: &Path, is_file: bool) -> io::Result<()> {
    if !is_file {
        return fs::create_dir_all(target);
    }
    target.parent().map_or(Ok(()), fs::create_dir_all)?;
    match target.exists() {
        true => Ok(()),
        false => File::create(target).map(drop),
    }
}

/// Resolves a container path: links are followed inside the root, and `..` stops there.
pub(super) fn within(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev();
        let wanted =
            parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        wanted.map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut left = parts(path);
    let mut at = PathBuf::new();
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        match fs::read_link(root.join(&next)) {
            Ok(target) => {
                links += 1;
                if links > LINKS {
                    return Err(io::Error::other(format!(
                        "{} has too many links",
                        path.display()
                    )));
                }
                if target.is_absolute() {
                    at = PathBuf::new();
                }
                left.extend(parts(&target));
            }
            // The path is not a link, or does not exist yet.
            Err(error) if matches!(error.raw_os_error(), Some(EINVAL | ENOENT | ENOTDIR)) => {
                at = next
            }
            Err(error) => return Err(error),
        }
    }
    Ok(root.join(at))
}

/// Copies the contents of a directory, with owners and modes.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let found = entry.metadata()?;
        let kind = found.file_type();
        if kind.is_dir() {
            fs::create_dir(&target)?;
            copy(&source, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else if kind.is_file() {
            io::copy(&mut File::open(&source)?, &mut File::create(&target)?)?;
        } else {
            let name = CString::new(target.as_os_str().as_bytes())?;
            sys::namespace::make_node(None, &name, found.mode(), found.rdev())?;
        }
        own(&target, &found)?;
    }
    own(to, &fs::metadata(from)?)
}

/// Sets owner and mode. Changing the owner clears set-user-ID bits, so the mode is set last.
fn own(target: &Path, as_it_was: &fs::Metadata) -> io::Result<()> {
    let (uid, gid) = (Some(as_it_was.uid()), Some(as_it_was.gid()));
    std::os::unix::fs::lchown(target, uid, gid)?;
    if as_it_was.file_type().is_symlink() {
        return Ok(());
    }
    fs::set_permissions(
        target,
        fs::Permissions::from_mode(as_it_was.mode() & 0o7777),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_container_do_not_lead_out_of_it() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("run/inner")).unwrap();
        symlink("/run", root.join("var")).unwrap();
        symlink("../../../run", root.join("up")).unwrap();
        symlink("round", root.join("round")).unwrap();
        let leads = |path: &str| {
            let target = within(root, Path::new(path)).unwrap();
            target.strip_prefix(root).unwrap().display().to_string()
        };
        for (path, to) in [
            ("/var/inner/new", "run/inner/new"),
            ("/up/inner", "run/inner"),
            ("/../../etc/passwd", "etc/passwd"),
            ("/run/inner/../..", ""),
            ("relative", "relative"),
            ("/run/inner/./x", "run/inner/x"),
        ] {
            assert_eq!(leads(path), to, "{path}");
        }
        assert!(within(root, Path::new("/round/x")).is_err());
    }

    #[test]
    fn a_copy_has_modes_and_links() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("deep/er")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("deep/er/file"), "text").unwrap();
        let mode = |mode| fs::Permissions::from_mode(mode);
        fs::set_permissions(from.join("deep/er/file"), mode(0o4711)).unwrap();
        fs::set_permissions(&from, mode(0o1777)).unwrap();
        symlink("/no/such", from.join("link")).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read(to.join("deep/er/file")).unwrap(), b"text");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&to.join("deep/er/file")), 0o4711);
        assert_eq!(mode(&to), 0o1777);
        assert_eq!(
            fs::read_link(to.join("link")).unwrap(),
            Path::new("/no/such")
        );
    }
}
