//! Finding the program under test.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package lies in the repository")
}

/// Returns the program under test: `TOLLGATE_BIN`, or the newest build in the target folder.
///
/// # Panics
/// If there is none.
pub fn program() -> PathBuf {
    if let Some(path) = env::var_os("TOLLGATE_BIN") {
        let path = PathBuf::from(path);
        assert!(
            path.is_file(),
            "TOLLGATE_BIN names {}, which is no file",
            path.display()
        );
        return path;
    }
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
    let builds = ["release/tollgate", "debug/tollgate"].map(|build| target.join(build));
    builds
        .iter()
        .find(|build| build.is_file())
        .cloned()
        .unwrap_or_else(|| {
            panic!(
                "cannot find {} or {}: run `make build`",
                builds[0].display(),
                builds[1].display()
            )
        })
}

/// Returns the file that a shell would run for `name`.
///
/// # Panics
/// If it is not installed.
pub fn which(name: &str) -> PathBuf {
    let path = env::var("PATH").unwrap_or_default();
    // Debian keeps administration programs in folders that are not in the PATH of ordinary users.
    let folders = path
        .split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"]);
    // Version managers put wrappers first that work only in their own folders.
    let system = folders.filter(|folder| folder.ends_with("bin") && !folder.starts_with("/root"));
    let mut files = system.map(|folder| Path::new(folder).join(name));
    files
        .find(|file| fs::metadata(file).is_ok_and(|data| data.is_file()))
        .unwrap_or_else(|| {
            panic!(
                "cannot find `{name}`, which these tests need: run `./x test`, which installs it"
            )
        })
}

/// Returns true if a program is in a folder of `PATH`.
pub fn installed(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Returns the Rust toolchain that runs this test, where every user can reach it: it mostly lies in a home folder
/// that is closed to others. `folder`: `CARGO_TARGET_TMPDIR`.
///
/// # Panics
/// If it cannot be copied.
pub fn toolchain(folder: &Path) -> PathBuf {
    let copy = folder.join("toolchain");
    let cargo = PathBuf::from(env::var("CARGO").expect("cargo sets it for tests"));
    let root = cargo.parent().and_then(Path::parent);
    let root = root.expect("it lies in a folder `bin`");
    if !copy.join("bin/cargo").exists() {
        // Other names of the same files where that can be, which costs nothing.
        let copied = |how: &str| {
            let mut copier = Command::new("cp");
            copier.args([how, "-T"]).arg(root).arg(&copy).status()
        };
        let is_linked = copied("-al").is_ok_and(|status| status.success());
        assert!(is_linked || copied("-a").is_ok_and(|status| status.success()));
    }
    copy
}
