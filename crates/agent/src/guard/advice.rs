//! Advice to a denial: the option of `tollgate guard` that would allow it.

use std::path::{Path, PathBuf};

use diagnostics::shell;
use policy::pattern::Pattern;
use policy::{FileAccess, Policy, Restriction};
use serde::{Deserialize, Serialize};

use super::printable;
use crate::spec::paths;

/// Folders that no advice opens as a whole. A command that the user lets into one of them is hardly in a box.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct WideFolders {
    /// Homes. They and what is above them are proposed for no access.
    #[serde(with = "paths")]
    pub homes: Vec<PathBuf>,
    /// Folders of the system. They and what is above them are not proposed for writing.
    #[serde(with = "paths")]
    pub system: Vec<PathBuf>,
    /// Folders of the system with programs and settings. No folder in them is proposed for writing.
    #[serde(with = "paths")]
    pub programs: Vec<PathBuf>,
}

/// What a denial's report proposes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// An option.
    Option(String),
    /// Nothing, because the option would open this folder as a whole.
    TooWide(String),
    /// Nothing, because no option allows it.
    None,
}

/// What a policy of `tollgate guard` says about files.
#[derive(Debug, Default)]
pub(super) struct FileRules {
    /// Ids of the rules that options for files change.
    rules: Vec<String>,
    allowed: Vec<(Pattern, FileAccess, bool)>,
    denied: Vec<Pattern>,
}

impl FileRules {
    pub(super) fn of(policies: &[Policy]) -> Self {
        let mut found = Self::default();
        for rule in policies.iter().flat_map(|policy| &policy.rules) {
            for restriction in &rule.restrictions {
                match restriction {
                    Restriction::OnlyFiles(files) => {
                        let files = files.iter();
                        let files = files.map(|file| (file.path.clone(), file.access, file.exec));
                        found.allowed.extend(files);
                    }
                    Restriction::File { path, .. } => found.denied.push(path.clone()),
                    _ => continue,
                }
                found.rules.push(rule.id.clone());
            }
        }
        found
    }

    /// Returns the advice for an access that a rule denied to a path.
    pub(super) fn advice(
        &self,
        wide: &WideFolders,
        rule: &str,
        access: &str,
        call: &str,
        object: &str,
    ) -> Advice {
        let path = named_by_option(access, call, object);
        match self.rules.iter().any(|own| own == rule) && !self.allow(access, path) {
            true => advice(wide, access, call, object),
            false => Advice::None,
        }
    }

    /// Returns true if the option for an access to a path would change nothing.
    fn allow(&self, access: &str, path: &str) -> bool {
        let covers = |pattern: &Pattern| pattern.matches(path) || pattern.subtree() == Some(path);
        let is_allowed = |(pattern, allowed, exec): &(Pattern, FileAccess, bool)| {
            let has_access = match access {
                "exec" => *exec,
                "write" => allowed.write,
                _ => allowed.read,
            };
            has_access && covers(pattern)
        };
        self.allowed.iter().any(is_allowed) && !self.denied.iter().any(covers)
    }
}

impl WideFolders {
    /// Returns true if the option for an access to a path opens more than an advice may. `access` is `read`,
    /// `write` or `exec`.
    #[must_use]
    pub fn are_opened_by(&self, access: &str, path: &Path) -> bool {
        // A name that cannot be resolved is looked at as it is written.
        let real = path.canonicalize();
        let paths = [Some(path), real.as_deref().ok()];
        let is_above =
            |folder: &PathBuf| paths.iter().flatten().any(|path| folder.starts_with(path));
        let is_below =
            |folder: &PathBuf| paths.iter().flatten().any(|path| path.starts_with(folder));
        let opens_system = || {
            self.system.iter().any(is_above)
                || path.is_dir()
                    && self
                        .programs
                        .iter()
                        .any(|folder| is_above(folder) || is_below(folder))
        };
        !path.is_absolute()
            || paths.contains(&Some(Path::new("/")))
            || self.homes.iter().any(is_above)
            || access == "write" && opens_system()
    }
}

/// Returns the advice for an access that a call was denied to a path, or to a peer.
pub(super) fn advice(wide: &WideFolders, access: &str, call: &str, object: &str) -> Advice {
    if access == "connect" {
        // An abstract name, or a peer with more than its name, is no value of the option.
        return match object.contains('@') || object.contains(' ') {
            true => Advice::None,
            false => option(access, object),
        };
    }
    let path = named_by_option(access, call, object);
    match wide.are_opened_by(access, Path::new(path)) {
        true => Advice::TooWide(printable(path)),
        false => option(access, path),
    }
}

/// Returns the path that an option has to name for an access to a file.
fn named_by_option<'a>(access: &str, call: &str, object: &'a str) -> &'a str {
    match access {
        "write" => allowed_by(call, object),
        _ => object,
    }
}

fn option(access: &str, object: &str) -> Advice {
    Advice::Option(printable(&format!(
        "--allow-{access} {}",
        shell::quoted(object)
    )))
}

/// Returns the path that has to be allowed for a change of `path`: the folder, for what makes, moves or removes its
/// entry. No box can allow that for a single name.
fn allowed_by<'a>(call: &str, path: &'a str) -> &'a str {
    let changes_folder = [
        "unlink", "rmdir", "mkdir", "mknod", "rename", "link", "symlink", "bind",
    ]
    .iter()
    .any(|begin| call.starts_with(begin));
    let is_absent = std::fs::symlink_metadata(path)
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    let folder = Path::new(path).parent().and_then(Path::to_str);
    match folder {
        Some(folder) if !folder.is_empty() && (changes_folder || is_absent) => folder,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_a_folder_needs_the_folder() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let (here, absent) = (folder.path().join("here"), folder.path().join("absent"));
        std::fs::write(&here, "x").expect("it can be written");
        let folder = folder.path().to_str().expect("it is text");
        let (here, absent) = (here.to_str().expect("text"), absent.to_str().expect("text"));
        assert_eq!(allowed_by("openat", here), here);
        // creat(2) of a file that is there empties it, which the file alone allows.
        assert_eq!(allowed_by("creat", here), here);
        assert_eq!(allowed_by("creat", absent), folder);
        assert_eq!(allowed_by("openat", absent), folder);
        assert_eq!(allowed_by("unlinkat", here), folder);
        assert_eq!(allowed_by("renameat2", here), folder);
        assert_eq!(allowed_by("truncate", here), here);
    }

    #[test]
    fn no_advice_opens_a_home_or_the_system() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let real = folder.path().canonicalize().expect("it exists");
        let home = real.join("home/me");
        std::fs::create_dir_all(&home).expect("made");
        std::os::unix::fs::symlink(&home, real.join("link")).expect("made");
        let wide = WideFolders {
            homes: vec![home.clone()],
            system: vec![PathBuf::from("/var/lib")],
            programs: vec![PathBuf::from("/etc")],
        };
        let text = |path: &Path| path.to_str().expect("it is text").to_owned();
        let inside = |name: &str| text(&home.join(name));
        let write = |call, path: &str| advice(&wide, "write", call, path);
        let wide_for = |folder: &Path| Advice::TooWide(text(folder));
        assert_eq!(write("openat", &inside("new")), wide_for(&home));
        assert_eq!(write("mkdir", &text(&home)), wide_for(&real.join("home")));
        assert_eq!(
            write("openat", &text(&real.join("link/new"))),
            wide_for(&real.join("link"))
        );
        for (call, path, folder) in [
            ("mkdir", "/x", "/"),
            ("openat", "/tollgate-absent", "/"),
            ("unlink", "/etc/passwd", "/etc"),
            ("unlink", "/etc/default/x", "/etc/default"),
            ("mkdir", "/var/lib/x", "/var/lib"),
            ("rmdir", "/var/lib", "/var"),
        ] {
            assert_eq!(
                write(call, path),
                wide_for(Path::new(folder)),
                "{call} {path}"
            );
        }
        let read = |path: &str| advice(&wide, "read", "openat", path);
        assert_eq!(read(&text(&home)), wide_for(&home));
        assert_eq!(read("/"), wide_for(Path::new("/")));
    }

    #[test]
    fn folders_in_a_home_and_files_of_the_system_are_proposed() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let home = folder.path().canonicalize().expect("it exists");
        let notes = home.join("notes");
        std::fs::create_dir(&notes).expect("made");
        let wide = WideFolders {
            homes: vec![home],
            system: Vec::new(),
            programs: vec![PathBuf::from("/etc")],
        };
        let notes = notes.to_str().expect("it is text");
        let new = format!("{notes}/new");
        for (access, path, option) in [
            ("write", new.as_str(), format!("--allow-write {notes}")),
            (
                "write",
                "/etc/passwd",
                "--allow-write /etc/passwd".to_owned(),
            ),
            ("read", notes, format!("--allow-read {notes}")),
            ("read", "/etc", "--allow-read /etc".to_owned()),
        ] {
            assert_eq!(
                advice(&wide, access, "openat", path),
                Advice::Option(option)
            );
        }
    }
}
