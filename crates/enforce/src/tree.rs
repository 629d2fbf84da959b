//! File system access of the planner of Landlock rules.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use policy::compile::landlock::{DirectoryEntry, Tree};
use policy::pattern::Pattern;
use process_info::procfs::{mount_lines, unescape};

/// Types of file systems that are views of the kernel: they contain no programs, and none of the secrets for
/// which patterns with wildcards are written. Control groups are not in the list, because rules name their
/// files at any place (`/**/release_agent`).
const OF_THE_KERNEL: [&str; 13] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "configfs",
    "debugfs",
    "devpts",
    "efivarfs",
    "fusectl",
    "mqueue",
    "proc",
    "pstore",
    "sysfs",
    "tracefs",
];

/// Folders that contain programs.
const PROGRAM_FOLDERS: [&str; 10] = [
    "/bin",
    "/sbin",
    "/usr/bin",
    "/usr/games",
    "/usr/lib/busybox",
    "/usr/lib/initramfs-tools/bin",
    "/usr/libexec",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/sbin",
];

/// The mounted file systems of this process.
#[derive(Debug)]
pub(crate) struct MountedFileSystems {
    /// Mount points of kernel views.
    skipped: BTreeSet<PathBuf>,
    /// Mount points of other file systems inside of kernel views, such as the control groups in /sys.
    inside: BTreeSet<PathBuf>,
}

impl MountedFileSystems {
    /// Parses the text of `/proc/PID/mountinfo`.
    pub(crate) fn of(table: &str) -> Self {
        let (skipped, others): (Vec<_>, Vec<_>) =
            points(table).partition(|(_, kind)| OF_THE_KERNEL.contains(kind));
        let paths =
            |points: Vec<(PathBuf, &str)>| points.into_iter().map(|(path, _)| path).collect();
        let (skipped, others): (BTreeSet<PathBuf>, BTreeSet<PathBuf>) =
            (paths(skipped), paths(others));
        // The nearest mount above decides: a mount inside a searched one is reached from there.
        let lies_in_skipped = |path: &&PathBuf| {
            let mut above = path.ancestors().skip(1);
            let nearest = above.find(|path| skipped.contains(*path) || others.contains(*path));
            nearest.is_some_and(|path| skipped.contains(path))
        };
        let inside = others.iter().filter(lies_in_skipped).cloned().collect();
        Self { skipped, inside }
    }

    /// The programs that a pattern `/**/NAME` matches in the folders of programs. A file elsewhere would be
    /// one copy of many, and a search for it takes seconds. `None` for any other pattern.
    pub(crate) fn programs(pattern: &Pattern, path: Option<&OsStr>) -> Option<BTreeSet<String>> {
        if pattern.fixed_prefix() != "/" || pattern.literal().is_some() {
            return None;
        }
        let mut folders: BTreeSet<PathBuf> = PROGRAM_FOLDERS.iter().map(PathBuf::from).collect();
        folders.extend(path.into_iter().flat_map(std::env::split_paths));
        let mut found = BTreeSet::new();
        for folder in folders {
            // Most of these folders do not exist on most hosts.
            let Ok(entries) = fs::read_dir(&folder) else {
                continue;
            };
            let paths = entries.flatten().map(|entry| entry.path());
            let meant =
                paths.filter(|path| path.to_str().is_some_and(|path| pattern.matches(path)));
            found.extend(meant.map(|path| resolved(&path)));
        }
        Some(found)
    }

    /// The files that each pattern matches now, with symbolic links followed. A path without wildcards
    /// matches whether it exists or not. Each folder is read once, regardless of the number of patterns.
    pub(crate) fn expand(&self, patterns: &[&Pattern]) -> Vec<BTreeSet<String>> {
        let mut found = vec![BTreeSet::new(); patterns.len()];
        let mut searches: BTreeMap<PathBuf, Vec<Search>> = BTreeMap::new();
        for (index, pattern) in patterns.iter().enumerate() {
            match pattern.literal().or_else(|| pattern.subtree()) {
                Some(path) => drop(found[index].insert(resolved(Path::new(path)))),
                None => {
                    let search = Search::new(index, pattern);
                    let start = search.start.clone();
                    searches.entry(start).or_default().push(search);
                }
            }
        }
        for (start, searches) in searches {
            self.walk(start, &searches, &mut found);
        }
        found
    }

    fn walk(&self, start: PathBuf, searches: &[Search], found: &mut [BTreeSet<String>]) {
        // A pattern may refer to a kernel view, such as /sys/fs/cgroup/**/release_agent.
        let is_within = start
            .ancestors()
            .any(|folder| self.skipped.contains(folder));
        let inside = self.inside.iter();
        let inside = inside.filter(|path| !is_within && path.starts_with(&start));
        let mut open: Vec<PathBuf> = inside.cloned().collect();
        open.push(start);
        while let Some(folder) = open.pop() {
            if !is_within && self.skipped.contains(&folder) {
                continue;
            }
            // A folder that cannot be read contains nothing that could be granted by name.
            let Ok(entries) = fs::read_dir(&folder) else {
                continue;
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                for search in searches.iter().filter(|search| search.may_be(&name)) {
                    let path = entry.path();
                    if path
                        .to_str()
                        .is_some_and(|path| search.wanted.matches(path))
                    {
                        found[search.index].insert(resolved(&path));
                    }
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    open.push(entry.path());
                }
            }
        }
    }
}

/// The search for the matches of a pattern.
struct Search {
    index: usize,
    /// The folder above all possible matches.
    start: PathBuf,
    /// The pattern of the matches. `/**/.ssh/**` matches the folder, and with it everything below.
    wanted: Pattern,
    /// The name that every match has, if there is one: nearly all files have another name.
    name: Option<OsString>,
}

impl Search {
    fn new(index: usize, pattern: &Pattern) -> Self {
        let prefix = pattern.fixed_prefix();
        let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let of_all = pattern.text().strip_suffix("/**");
        let of_folder = of_all.and_then(|text| Pattern::parse(text).ok());
        let wanted = of_folder.unwrap_or_else(|| pattern.clone());
        let name = wanted.text().rsplit('/').next();
        Self {
            index,
            start: PathBuf::from(if folder.is_empty() { "/" } else { folder }),
            name: name.filter(|name| !name.contains('*')).map(OsString::from),
            wanted,
        }
    }

    fn may_be(&self, name: &OsStr) -> bool {
        self.name.as_deref().is_none_or(|own| own == name)
    }
}

impl Tree for MountedFileSystems {
    fn entries(&self, folder: &str) -> Vec<DirectoryEntry> {
        // A folder that cannot be listed is not granted.
        let Ok(entries) = fs::read_dir(folder) else {
            return Vec::new();
        };
        let entry = |entry: fs::DirEntry| {
            let kind = entry.file_type().ok().filter(|kind| !kind.is_symlink())?;
            Some(DirectoryEntry {
                // A name that is not UTF-8 is not granted.
                name: entry.file_name().into_string().ok()?,
                is_folder: kind.is_dir(),
            })
        };
        entries.flatten().filter_map(entry).collect()
    }
}

/// Resolves a path: the existing part with links followed, the rest unchanged.
pub(crate) fn resolved(path: &Path) -> String {
    let mut rest = PathBuf::new();
    let mut known = path;
    loop {
        if let Ok(real) = fs::canonicalize(known) {
            let whole = if rest.as_os_str().is_empty() {
                real
            } else {
                real.join(&rest)
            };
            return whole.to_string_lossy().into_owned();
        }
        let (Some(parent), Some(name)) = (known.parent(), known.file_name()) else {
            return path.to_string_lossy().into_owned();
        };
        rest = if rest.as_os_str().is_empty() {
            PathBuf::from(name)
        } else {
            Path::new(name).join(&rest)
        };
        known = parent;
    }
}

/// Mount points and the types of their file systems.
fn points(table: &str) -> impl Iterator<Item = (PathBuf, &str)> {
    mount_lines(table.as_bytes()).filter_map(|mount| {
        let point = unescape(mount.mount_point).into_owned();
        let kind = std::str::from_utf8(mount.fs_type).ok()?;
        Some((PathBuf::from(OsString::from_vec(point)), kind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["a/.ssh", "b/c", "bin"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        for file in ["a/.ssh/id", "b/c/tool", "bin/tool", "bin/other"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("other", dir.path().join("bin/a-link")).unwrap();
        dir
    }

    fn expand(dir: &Path, rest: &str) -> Vec<String> {
        let real = fs::canonicalize(dir).unwrap();
        let text = format!("{}{rest}", real.display());
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let found = MountedFileSystems::of(&table)
            .expand(&[&Pattern::parse(&text).unwrap()])
            .remove(0);
        let prefix = real.to_string_lossy().into_owned();
        found
            .into_iter()
            .map(|path| path.strip_prefix(&prefix).unwrap_or(&path).to_owned())
            .collect()
    }

    #[test]
    fn patterns_stand_for_what_exists_with_links_followed() {
        let dir = tree();
        assert_eq!(expand(dir.path(), "/**/tool"), ["/b/c/tool", "/bin/tool"]);
        assert_eq!(expand(dir.path(), "/**/.ssh/**"), ["/a/.ssh"]);
        assert_eq!(expand(dir.path(), "/**/a-link"), ["/bin/other"]);
        assert_eq!(expand(dir.path(), "/bin/*"), ["/bin/other", "/bin/tool"]);
        assert_eq!(expand(dir.path(), "/b/**"), ["/b"]);
        assert!(expand(dir.path(), "/**/absent").is_empty());
    }

    #[test]
    fn programs_are_looked_for_where_the_shell_looks() {
        let dir = tree();
        let bin = fs::canonicalize(dir.path().join("bin")).unwrap();
        let find = |text: &str| {
            let pattern = Pattern::parse(text).unwrap();
            MountedFileSystems::programs(&pattern, Some(bin.as_os_str())).unwrap()
        };
        let own = |name: &str| bin.join(name).to_string_lossy().into_owned();
        assert_eq!(find("/**/a-link"), BTreeSet::from([own("other")]));
        assert!(find("/**/tool").contains(&own("tool")));
        assert!(!find("/**/sh").is_empty());
    }

    #[test]
    fn a_path_that_does_not_exist_is_meant_all_the_same() {
        let dir = tree();
        std::os::unix::fs::symlink("b", dir.path().join("way")).unwrap();
        assert_eq!(expand(dir.path(), "/way/new/file"), ["/b/new/file"]);
    }

    #[test]
    fn views_of_the_kernel_are_left_out_and_what_is_mounted_in_them_is_not() {
        let table = "22 1 0:21 / /proc rw - proc proc rw\n23 1 8:1 / / rw,x - ext4 /dev/a rw\n\
                     24 1 0:5 / /a\\040b rw shared:1 - sysfs s rw\n\
                     25 24 0:6 / /a\\040b/groups rw - tmpfs t rw\n\
                     26 25 0:7 / /a\\040b/groups/devices rw - cgroup c rw,devices\n";
        let mounted = MountedFileSystems::of(table);
        let texts = |paths: &BTreeSet<PathBuf>| -> Vec<String> {
            let text = |path: &PathBuf| path.to_string_lossy().into_owned();
            paths.iter().map(text).collect()
        };
        assert_eq!(texts(&mounted.skipped), ["/a b", "/proc"]);
        assert_eq!(texts(&mounted.inside), ["/a b/groups"]);
    }
}
