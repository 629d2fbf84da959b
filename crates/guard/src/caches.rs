//! Folders for caches that a home does not have yet.
//!
//! A box can only name what exists: a package manager that runs for the first time could not make its cache.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::options::Preset;
use crate::places::resolved;
use crate::tools;

/// Those of the caches that are files. They lock something, and are empty.
const LOCKS: [&str; 2] = [".cargo/.package-cache", ".cargo/.package-cache-mutate"];
/// Where programs are looked for without the variable `PATH`, as execvp(3) does.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// Makes what is missing of the caches of the command in the user's own home: those of a package manager, or, for
/// another command, which may start any, those of the package managers that it can find. Returns whether anything
/// was made.
pub(super) fn make(preset: Preset, command: Option<&Path>) -> bool {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let home = home.filter(|home| preset != Preset::Strict && is_own(home));
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    home.is_some_and(|home| make_all(&home, &names(command, &path)))
}

/// Returns true if a folder is the home of this user alone. Where the variable names the root of the file system,
/// the user has no home.
fn is_own(home: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    let is_users = home
        .metadata()
        .is_ok_and(|data| data.is_dir() && data.uid() == uid);
    home.is_absolute() && is_users && resolved(home) != Path::new("/")
}

/// The files and folders that a command makes on its first run.
fn names(command: Option<&Path>, path: &std::ffi::OsStr) -> Vec<&'static str> {
    let own = command.and_then(Path::file_name);
    let tools = tools::of(command);
    let is_package_manager = tools.len() == 1;
    let folders: Vec<PathBuf> = std::env::split_paths(path).collect();
    let runs = |program: &&str| {
        own.is_some_and(|own| own == *program)
            || !is_package_manager
                && folders
                    .iter()
                    .any(|folder| is_program(&folder.join(program)))
    };
    let writes = tools.into_iter().flat_map(|tool| tool.writes);
    let wanted = writes.filter(|(_, makers)| makers.iter().any(&runs));
    wanted.map(|(name, _)| *name).collect()
}

fn is_program(path: &Path) -> bool {
    let data = path.metadata();
    data.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

fn make_all(home: &Path, names: &[&str]) -> bool {
    let missing = names
        .iter()
        .filter(|name| home.join(name).symlink_metadata().is_err());
    let mut made = false;
    for name in missing {
        let path = home.join(name);
        // A cache that cannot be made is one that the command does without; what it tries is reported.
        made |= match LOCKS.contains(name) {
            false => std::fs::create_dir_all(path).is_ok(),
            true => std::fs::File::create_new(path).is_ok(),
        };
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_made_once() {
        let home = tempfile::tempdir().expect("a folder");
        let names = [".cargo/registry", ".cargo/.package-cache"];
        assert!(make_all(home.path(), &names));
        assert!(home.path().join(".cargo/registry").is_dir());
        assert!(home.path().join(".cargo/.package-cache").is_file());
        assert!(!make_all(home.path(), &names));
    }

    #[test]
    fn only_programs_that_are_there_get_caches() {
        let folder = tempfile::tempdir().expect("a folder");
        let found = |command: &str| names(Some(Path::new(command)), folder.path().as_os_str());
        assert_eq!(found("/opt/npm"), [".npm", ".cache"]);
        assert!(found("sh").is_empty());
        assert_eq!(found("claude"), [".claude"]);
        let put = |name: &str, mode| {
            let path = folder.path().join(name);
            std::fs::write(&path, "").expect("written");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
        };
        put("yarn", 0o755);
        put("go", 0o644);
        std::fs::create_dir(folder.path().join("cargo")).expect("made");
        assert_eq!(found("sh"), [".cache", ".yarn"]);
        assert_eq!(found("npm"), [".npm", ".cache"]);
    }

    #[test]
    fn the_root_of_the_file_system_is_no_home() {
        let home = tempfile::tempdir().expect("a folder");
        assert!(is_own(home.path()));
        let root = home.path().join("root");
        std::os::unix::fs::symlink("/", &root).expect("made");
        for path in [Path::new("/"), Path::new("/./"), &root, Path::new("home")] {
            assert!(!is_own(path), "{}", path.display());
        }
    }
}
