//! The directory tree of a pass: the host's own programs, but its own accounts and secrets.
//!
//! The tree is built on a tmpfs in a mount namespace of its own, so nothing of it remains on the host.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use abi::constant::{MNT_DETACH, MS_NOSUID, MS_RDONLY, MS_REC, MS_REMOUNT};
use sys::namespace;

const MS_BIND: u64 = abi::constant::MS_BIND.u64();

/// Mount point of the tree. The tmpfs hides the files below, for this namespace only.
const BASE: &str = "/tmp";

/// Password file without valid hashes.
const SHADOW: &str = "root:!:19000:0:99999:7:::\ndemo:!:19000:0:99999:7:::\n";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\ndemo:x:1000:1000:demo:/home/demo:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\ndemo:x:1000:\nnogroup:x:65534:\n";

/// Files from the host's /etc that loaders, shells and package managers read.
const ETC: [&str; 6] = [
    "ld.so.cache",
    "ld.so.conf",
    "nsswitch.conf",
    "alternatives",
    "debian_version",
    "os-release",
];

/// Devices that programs expect.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

type Result<T> = std::result::Result<T, String>;

/// Detaches this mount namespace from the host's and mounts a tmpfs to build in.
pub(crate) fn base() -> Result<PathBuf> {
    crate::action::make_private().map_err(|error| error.chain())?;
    tmpfs(Path::new(BASE))?;
    Ok(PathBuf::from(BASE))
}

/// Makes an image of the host's root with an empty layer over it, as container runtimes do.
pub(crate) fn layered(base: &Path) -> Result<PathBuf> {
    let (upper, work, root) = (base.join("upper"), base.join("work"), base.join("root"));
    for dir in [&upper, &work, &root] {
        make_dir(dir)?;
    }
    make_dir(&upper.join("etc"))?;
    write(&upper.join("etc/shadow"), SHADOW, 0o640)?;
    let data = format!(
        "lowerdir=/,upperdir={},workdir={}",
        upper.display(),
        work.display()
    );
    mount(Some("overlay"), &root, Some("overlay"), 0, Some(&data))?;
    make_dir(&root.join("var/log"))?;
    furnish(&root)?;
    Ok(root)
}

/// Makes a root with the host's programs, read-only, and everything else empty.
pub(crate) fn bound(base: &Path) -> Result<PathBuf> {
    let root = base.join("root");
    make_dir(&root)?;
    for name in ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        adopt(&Path::new("/").join(name), &root.join(name))?;
    }
    let etc = root.join("etc");
    make_dir(&etc)?;
    for name in ETC {
        adopt(&Path::new("/etc").join(name), &etc.join(name))?;
    }
    write(&etc.join("passwd"), PASSWD, 0o644)?;
    write(&etc.join("group"), GROUP, 0o644)?;
    write(&etc.join("hostname"), "demo\n", 0o644)?;
    write(&etc.join("shadow"), SHADOW, 0o644)?;
    for dir in ["var/log", "var/tmp", "var/lib/dpkg"] {
        make_dir(&root.join(dir))?;
    }
    open_to_all(&root.join("var/log"))?;
    furnish(&root)?;
    Ok(root)
}

/// Adds what both trees need: scratch space, devices, processes.
fn furnish(root: &Path) -> Result<()> {
    for name in ["tmp", "run", "root", "home", "srv", "dev"] {
        let dir = root.join(name);
        make_dir(&dir)?;
        tmpfs(&dir)?;
    }
    for name in ["tmp", "srv", "dev/shm", "run/demo", "home/demo"] {
        let dir = root.join(name);
        make_dir(&dir)?;
        open_to_all(&dir)?;
    }
    for name in DEVICES {
        let (host, here) = (Path::new("/dev").join(name), root.join("dev").join(name));
        if host.exists() {
            write(&here, "", 0o666)?;
            bind(&host, &here)?;
        }
    }
    link("/proc/self/fd", &root.join("dev/fd"))?;
    let proc = root.join("proc");
    make_dir(&proc)?;
    mount(Some("proc"), &proc, Some("proc"), MS_NOSUID.u64(), None)
}

/// Makes `root` the root of this mount namespace. Nothing of the host remains reachable.
pub(crate) fn pivot(root: &Path) -> Result<()> {
    // The kernel requires the new root to be a mount.
    mount(
        Some(&root.display().to_string()),
        root,
        None,
        MS_BIND | MS_REC.u64(),
        None,
    )?;
    let describe_error = |error| format!("cannot make {} the root: {error}", root.display());
    std::env::set_current_dir(root).map_err(|error| describe_error(error.to_string()))?;
    // With both names the same, the old root ends up above the new one.
    namespace::pivot_root(c".", c".").map_err(|error| describe_error(error.to_string()))?;
    namespace::unmount(c".", MNT_DETACH.i32())
        .map_err(|error| describe_error(error.to_string()))?;
    std::env::set_current_dir("/").map_err(|error| describe_error(error.to_string()))
}

/// Changes the root directory.
pub(crate) fn chroot(root: &Path) -> Result<()> {
    let describe_error = |error| format!("cannot change the root to {}: {error}", root.display());
    namespace::chroot(&c_path(root)?).map_err(|error| describe_error(error.to_string()))?;
    std::env::set_current_dir("/").map_err(|error| describe_error(error.to_string()))
}

/// Shows the host's file, folder or link at another place, if it exists.
fn adopt(host: &Path, here: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(host) else {
        return Ok(());
    };
    if found.is_symlink() {
        let target = fs::read_link(host).map_err(describe_error("read link", host))?;
        return link(&target.display().to_string(), here);
    }
    if found.is_dir() {
        make_dir(here)?;
    } else {
        write(here, "", 0o644)?;
    }
    bind(host, here)
}

/// Mounts read-only where the kernel allows it; an ordinary user cannot write the host's files anyway.
fn bind(host: &Path, here: &Path) -> Result<()> {
    mount(
        Some(&host.display().to_string()),
        here,
        None,
        MS_BIND | MS_REC.u64(),
        None,
    )?;
    if host.is_dir() {
        let flags = MS_REMOUNT.u64() | MS_BIND | MS_RDONLY.u64();
        let _ = mount(None, here, None, flags, None);
    }
    Ok(())
}

fn tmpfs(dir: &Path) -> Result<()> {
    mount(
        Some("tmpfs"),
        dir,
        Some("tmpfs"),
        MS_NOSUID.u64(),
        Some("mode=0755"),
    )
}

fn mount(
    source: Option<&str>,
    target: &Path,
    kind: Option<&str>,
    flags: u64,
    data: Option<&str>,
) -> Result<()> {
    crate::action::mount(source, target, kind, flags, data).map_err(|error| error.chain())
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| format!("cannot use the path {}: {error}", path.display()))
}

fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(describe_error("make", dir))
}

fn open_to_all(dir: &Path) -> Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o1777))
        .map_err(describe_error("open", dir))
}

fn write(file: &Path, text: &str, mode: u32) -> Result<()> {
    fs::write(file, text).map_err(describe_error("write", file))?;
    fs::set_permissions(file, fs::Permissions::from_mode(mode))
        .map_err(describe_error("write", file))
}

fn link(target: &str, at: &Path) -> Result<()> {
    symlink(target, at).map_err(describe_error("make link", at))
}

fn describe_error(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> String {
    let what = format!("cannot {verb} {}", path.display());
    move |error| format!("{what}: {error}")
}
