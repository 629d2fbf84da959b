//! Folders for caches that a home does not have yet.
//!
//! A box can only name what exists: a package manager that runs for the first time could not make its cache.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::options::Preset;
use crate::tools::{self, Tool};

/// Files among what tools write. Those that lock something are made, too; the others have a content.
const FILES: [&str; 4] = [
    ".claude.json",
    ".cargo/.package-cache",
    ".cargo/.package-cache-mutate",
    ".cargo/.global-cache",
];
const LOCKS: [&str; 2] = [".cargo/.package-cache", ".cargo/.package-cache-mutate"];

/// Makes what is missing of the caches of the command's tools in the user's own home. Returns whether anything
/// was made.
pub(super) fn make(preset: Preset, command: Option<&Path>) -> bool {
    let Some(home) = std::env::var_os("HOME") else {
        return false;
    };
    let home = Path::new(&home);
    if preset == Preset::Strict || !home.is_absolute() || !is_own(home) {
        return false;
    }
    let path = std::env::var_os("PATH");
    let folders: Vec<_> = path.iter().flat_map(std::env::split_paths).collect();
    let tools = tools::of(command);
    let is_one = tools.len() == 1;
    let is_installed = |tool: &Tool| {
        let mut names = tool.names.iter();
        names.any(|name| folders.iter().any(|folder| folder.join(name).exists()))
    };
    let wanted = tools
        .into_iter()
        .filter(|tool| is_one || is_installed(tool));
    // All are made before any is asked for.
    let made: Vec<bool> = wanted.map(|tool| make_all(home, tool.writes)).collect();
    made.contains(&true)
}

fn is_own(home: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    home.metadata().is_ok_and(|data| data.uid() == uid)
}

fn make_all(home: &Path, names: &[&str]) -> bool {
    let missing = names
        .iter()
        .filter(|name| home.join(name).symlink_metadata().is_err());
    let mut made = false;
    for name in missing {
        let path = home.join(name);
        // A cache that cannot be made is one that the command does without; what it tries is reported.
        made |= match (FILES.contains(name), LOCKS.contains(name)) {
            (false, _) => std::fs::create_dir_all(path).is_ok(),
            (true, true) => std::fs::File::create_new(path).is_ok(),
            (true, false) => false,
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
        let names = [".cargo/registry", ".cargo/.package-cache", ".claude.json"];
        assert!(make_all(home.path(), &names));
        assert!(home.path().join(".cargo/registry").is_dir());
        assert!(home.path().join(".cargo/.package-cache").is_file());
        assert!(!home.path().join(".claude.json").exists());
        assert!(!make_all(home.path(), &names));
    }
}
