//! Search for further names of the files that a policy withholds: second mounts, overlay layers, hard links.
//!
//! A Landlock rule belongs to an inode. The kernel collects rules from the opened file upwards, through
//! folders and mount points, so a right must be withheld at every name of a file: a grant above one of the
//! names, or on the same inode, restores the right. AppArmor and BPF LSM match by path.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use policy::compile::landlock::DeniedPath;
use policy::compile::{NameKind, OtherName};
use process_info::procfs::{MountLine, mount_lines, unescape};

/// Maximum number of files below withheld folders whose link count is read.
const FILES_LIMIT: usize = 400_000;
/// Maximum number of directory entries that are read in search of further names.
const ENTRIES_LIMIT: usize = 2_000_000;

/// Types of file systems that contain only files of their own. Any other type may expose files of another
/// file system without a record in a table: over a network, or through a server process. Overlays are
/// resolved.
const SHOW_THEIR_OWN: [&str; 56] = [
    "autofs",
    "bcachefs",
    "bdev",
    "binder",
    "binfmt_misc",
    "bpf",
    "btrfs",
    "cgroup",
    "cgroup2",
    "configfs",
    "cpuset",
    "cramfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "fusectl",
    "hfs",
    "hfsplus",
    "hugetlbfs",
    "iso9660",
    "jffs2",
    "jfs",
    "minix",
    "mqueue",
    "msdos",
    "nfsd",
    "nilfs2",
    "nsfs",
    "ntfs3",
    "overlay",
    "pipefs",
    "proc",
    "pstore",
    "ramfs",
    "reiserfs",
    "resctrl",
    "romfs",
    "rootfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
    "udf",
    "vfat",
    "xfs",
];

/// One mount of the process from which files are withheld.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    device: Vec<u8>,
    /// The mounted directory of the file system.
    root: PathBuf,
    /// The mount point.
    point: PathBuf,
    kind: String,
    /// The layers of an overlay.
    layers: Vec<PathBuf>,
}

/// The mount table.
#[derive(Clone, Debug)]
pub(crate) struct Mounts(Vec<Mount>);

/// Withheld paths with all names that were found.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Withheld paths, each with its rule. The given paths come first.
    pub(crate) denied: Vec<(String, DeniedPath)>,
    /// Further names, and places that could not be searched, by rule.
    pub(crate) others: BTreeMap<String, BTreeSet<OtherName>>,
}

type Inode = (u64, u64);

/// A withheld file with several names.
struct HardLinkedFile {
    path: String,
    links: u64,
    /// The rules that withhold the file, each with its rights.
    by: Vec<(String, u64)>,
    /// Names of the file, as paths within the file system.
    names: BTreeSet<PathBuf>,
}

impl Mounts {
    /// Parses the text of `/proc/PID/mountinfo`.
    pub(crate) fn new(table: &str) -> Self {
        let lines = mount_lines(table.as_bytes());
        // A mounted namespace is not a directory.
        Self(
            lines
                .filter(|line| line.root.starts_with(b"/"))
                .map(|line| Mount::new(&line))
                .collect(),
        )
    }

    /// The mount that contains a path.
    fn of(&self, path: &Path) -> Option<&Mount> {
        let above = self.0.iter().filter(|mount| path.starts_with(&mount.point));
        // Of several mounts at one place, the last one is visible.
        above.max_by_key(|mount| mount.point.as_os_str().len())
    }

    /// Paths of the same file through other mounts of its file system.
    fn second_mounts(&self, path: &Path) -> Vec<PathBuf> {
        let Some((own, within)) = self.of(path).and_then(|own| Some((own, own.within(path)?)))
        else {
            return Vec::new();
        };
        let others = self.0.iter().filter(|other| other.device == own.device);
        let names = others.filter_map(|other| match within.strip_prefix(&other.root) {
            Ok(rest) => Some((path.to_owned(), joined(&other.point, rest))),
            // The other mount exposes only a part of the withheld folder.
            Err(_) => {
                let part = other.root.strip_prefix(&within).ok()?;
                Some((joined(path, part), other.point.clone()))
            }
        });
        let others = names.filter(|(one, name)| one != name && is_same(one, name));
        others.map(|(_, name)| name).collect()
    }

    /// Paths of the same file in the layers of the overlay that contains it, and in overlays above it.
    fn layers(&self, path: &Path) -> Vec<PathBuf> {
        let mut names = Vec::new();
        if let Some((own, within)) = self.of(path).and_then(|own| Some((own, own.within(path)?))) {
            let rest = within.strip_prefix("/").unwrap_or(&within);
            names.extend(own.layers.iter().map(|layer| joined(layer, rest)));
        }
        for overlay in &self.0 {
            for layer in &overlay.layers {
                let layer = fs::canonicalize(layer).unwrap_or_else(|_| layer.clone());
                let Ok(rest) = path.strip_prefix(&layer) else {
                    continue;
                };
                let shown = Path::new("/").join(rest);
                let rest = shown.strip_prefix(&overlay.root);
                names.extend(rest.ok().map(|rest| joined(&overlay.point, rest)));
            }
        }
        names.retain(|name| name.is_absolute() && name != path && may_exist(name));
        names
    }

    /// Mount points below a path.
    fn below(&self, path: &Path) -> impl Iterator<Item = &Path> {
        let points = self.0.iter().map(|mount| mount.point.as_path());
        points.filter(move |point| *point != path && point.starts_with(path))
    }

    /// Mounts that may expose the file in a way that cannot be determined.
    fn unknown(&self, path: &Path) -> Vec<String> {
        let own = self.of(path);
        let mut ways = Vec::new();
        for mount in &self.0 {
            let is_other = own.is_none_or(|own| own.device != mount.device);
            if is_other && !SHOW_THEIR_OWN.contains(&&*mount.kind) {
                let (kind, point) = (&mount.kind, mount.point.display());
                ways.push(format!(
                    "the file system {kind} at {point} may show it under another name"
                ));
            }
            if mount.layers.iter().any(|layer| layer.is_relative()) {
                let point = mount.point.display();
                ways.push(format!(
                    "layers of the overlay at {point} have no absolute path"
                ));
            }
        }
        ways
    }

    /// Mounts that together cover a whole file system: those that no other mount of it contains.
    fn searched(&self, device: &[u8]) -> Vec<&Mount> {
        let mut own: Vec<&Mount> = self
            .0
            .iter()
            .filter(|mount| mount.device == device)
            .collect();
        own.sort_by_key(|mount| mount.root.as_os_str().len());
        let mut chosen: Vec<&Mount> = Vec::new();
        for mount in own {
            let is_visible = self.of(&mount.point).is_some_and(|top| top == mount);
            let is_within = chosen
                .iter()
                .any(|known| mount.root.starts_with(&known.root));
            if is_visible && !is_within {
                chosen.push(mount);
            }
        }
        chosen
    }
}

/// A mount namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    pid: u32,
    mounts: Mounts,
}

/// The other mount namespaces, each through one of its processes. Namespaces without a process are missing,
/// and the list is empty if this process may not inspect others.
pub(crate) fn other_namespaces() -> Vec<Namespace> {
    let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let mut known: BTreeSet<PathBuf> = of("self").into_iter().collect();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let (Ok(pid), Ok(namespace)) = (name.parse(), of(&name)) else {
            continue;
        };
        if known.contains(&namespace) {
            continue;
        }
        // The process may have ended.
        if let Ok(table) = fs::read(format!("/proc/{name}/mountinfo")) {
            known.insert(namespace);
            let mounts = Mounts::new(&String::from_utf8_lossy(&table));
            found.push(Namespace { pid, mounts });
        }
    }
    found
}

impl Namespace {
    /// The path of the file in this namespace, if rules on folders above it there may belong to other folders
    /// here.
    fn name_of(&self, own: &Mounts, path: &Path) -> Option<PathBuf> {
        let mount = own.of(path)?;
        let within = mount.within(path)?;
        let same = self
            .mounts
            .0
            .iter()
            .filter(|other| other.device == mount.device);
        let mut names = same.filter_map(|other| {
            let rest = within.strip_prefix(&other.root).ok()?;
            let is_safe = self.is_above(&other.point, &mount.device, &within);
            (!is_safe).then(|| joined(&other.point, rest))
        });
        names.next()
    }

    /// Returns true if every folder above a mount point is above the file as well, so that no grant applies
    /// there.
    fn is_above(&self, point: &Path, device: &[u8], within: &Path) -> bool {
        let mut point = point.to_owned();
        while let (Some(parent), Some(name)) = (point.parent(), point.file_name()) {
            let Some(mount) = self.mounts.of(parent) else {
                return true;
            };
            let place = mount.within(&parent.join(name));
            let is_shared = place.is_some_and(|place| within.starts_with(place));
            if mount.device != device || !is_shared {
                return false;
            }
            point = mount.point.clone();
        }
        true
    }
}

impl Mount {
    fn new(line: &MountLine<'_>) -> Self {
        let path = |text: &[u8]| PathBuf::from(OsString::from_vec(unescape(text).into_owned()));
        let kind = String::from_utf8_lossy(line.fs_type).into_owned();
        let layers = match kind.as_str() {
            "overlay" => layers_of(line.super_options),
            _ => Vec::new(),
        };
        let root = line.root.strip_suffix(b"//deleted").unwrap_or(line.root);
        Self {
            device: line.device.to_vec(),
            root: path(root),
            point: path(line.mount_point),
            kind,
            layers,
        }
    }

    /// The path within the file system of a path below the mount.
    fn within(&self, path: &Path) -> Option<PathBuf> {
        let rest = path.strip_prefix(&self.point).ok()?;
        Some(joined(&self.root, rest))
    }
}

/// Parses the layers of an overlay: `lowerdir=A:B,upperdir=C`, or `lowerdir+=A,lowerdir+=B`. The kernel
/// writes separators within names in octal, older kernels write a colon as `\134:`.
fn layers_of(options: &[u8]) -> Vec<PathBuf> {
    let plain =
        |text: &str| PathBuf::from(OsString::from_vec(unescape(text.as_bytes()).into_owned()));
    let text = String::from_utf8_lossy(options).replace("\\134:", "\\072");
    let mut layers = Vec::new();
    for option in text.split(',') {
        match option.split_once('=') {
            Some(("lowerdir", values)) => layers.extend(values.split(':').map(plain)),
            Some(("upperdir" | "lowerdir+" | "datadir+", value)) => layers.push(plain(value)),
            _ => {}
        }
    }
    // In `A::B`, the second part contains data only.
    layers.retain(|layer| !layer.as_os_str().is_empty());
    layers
}

/// Joins two paths without the trailing slash of an empty second part.
fn joined(folder: &Path, rest: &Path) -> PathBuf {
    match rest.as_os_str().is_empty() {
        true => folder.to_owned(),
        false => folder.join(rest),
    }
}

/// Returns true if two names lead to the same file, or if that cannot be determined.
fn is_same(one: &Path, other: &Path) -> bool {
    match (fs::symlink_metadata(one), fs::symlink_metadata(other)) {
        (Ok(one), Ok(other)) => inode(&one) == inode(&other),
        (Ok(_), Err(error)) => error.kind() != ErrorKind::NotFound,
        (Err(_), _) => true,
    }
}

fn may_exist(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    }
}

/// The device and inode of a file.
pub(crate) fn inode(data: &Metadata) -> Inode {
    (data.dev(), data.ino())
}

/// Adds every further name that can be found to the withheld paths.
pub(crate) fn find(given: Vec<(String, DeniedPath)>, mounts: &Mounts) -> Names {
    let mut names = Names::default();
    for (rule, denied) in &given {
        for way in mounts.unknown(Path::new(&denied.path)) {
            names.note(rule, NameKind::Unknown, way);
        }
    }
    names.add_mounted(given, mounts);
    let linked = names.linked(mounts);
    let found = names.search(linked, mounts);
    names.add_mounted(found, mounts);
    names
}

impl Names {
    /// Records the paths of withheld files in other mount namespaces.
    pub(crate) fn look_elsewhere(&mut self, own: &Mounts, others: &[Namespace]) {
        for (rule, denied) in self.denied.clone() {
            for other in others {
                if let Some(name) = other.name_of(own, Path::new(&denied.path)) {
                    let what = NameKind::Namespace.of(&denied.path);
                    let text = format!(
                        "{} is {what} (of process {}), which CAP_SYS_ADMIN enters; add disable-cap-sys-admin",
                        name.display(),
                        other.pid
                    );
                    self.note(&rule, NameKind::Namespace, text);
                }
            }
        }
    }

    fn note(&mut self, rule: &str, kind: NameKind, text: String) {
        let of_rule = self.others.entry(rule.to_owned()).or_default();
        of_rule.insert(OtherName { kind, text });
    }

    /// Adds names, and the names that mounts and overlays derive from them, until there are no new ones.
    fn add_mounted(&mut self, given: Vec<(String, DeniedPath)>, mounts: &Mounts) {
        // A rule withholds several rights from one path, each by an entry of its own.
        let mut known: BTreeSet<(String, PathBuf, u64)> = BTreeSet::new();
        let mut open = given;
        while let Some((rule, denied)) = open.pop() {
            let path = PathBuf::from(&denied.path);
            if !known.insert((rule.clone(), path.clone(), denied.rights)) {
                continue;
            }
            let mut others: Vec<(NameKind, PathBuf)> = Vec::new();
            let by_mounts = mounts.second_mounts(&path).into_iter();
            others.extend(by_mounts.map(|name| (NameKind::Mount, name)));
            let by_layers = mounts.layers(&path).into_iter();
            others.extend(by_layers.map(|name| (NameKind::Layer, name)));
            for point in mounts.below(&path) {
                let again = mounts.second_mounts(point).into_iter();
                others.extend(again.map(|name| (NameKind::Mount, name)));
            }
            for (kind, name) in others {
                let Some(text) = name.to_str() else {
                    let way = format!("{} is another name of it, and no text", name.display());
                    self.note(&rule, NameKind::Unknown, way);
                    continue;
                };
                // Paths below a withheld path are withheld with it.
                if !name.starts_with(&path) {
                    self.note(&rule, kind, format!("{text} is {}", kind.of(&denied.path)));
                    let rights = denied.rights;
                    let path = text.to_owned();
                    open.push((rule.clone(), DeniedPath { path, rights }));
                }
            }
            self.denied.push((rule, denied));
        }
    }

    /// The withheld files that have several names.
    fn linked(&mut self, mounts: &Mounts) -> BTreeMap<Inode, HardLinkedFile> {
        let mut linked: BTreeMap<Inode, HardLinkedFile> = BTreeMap::new();
        let mut left = FILES_LIMIT;
        for (rule, denied) in self.denied.clone() {
            let mut open = vec![PathBuf::from(&denied.path)];
            while let Some(path) = open.pop() {
                let Ok(data) = fs::symlink_metadata(&path) else {
                    continue;
                };
                if left == 0 {
                    let way = format!(
                        "did not search for hard links below {}: more than {FILES_LIMIT} files",
                        denied.path
                    );
                    self.note(&rule, NameKind::Unknown, way);
                    break;
                }
                left -= 1;
                if data.is_dir() {
                    let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                    open.extend(entries.map(|entry| entry.path()));
                } else if data.nlink() > 1 {
                    let entry = linked
                        .entry(inode(&data))
                        .or_insert_with(|| HardLinkedFile {
                            path: path.display().to_string(),
                            links: data.nlink(),
                            by: Vec::new(),
                            names: BTreeSet::new(),
                        });
                    entry.by.push((rule.clone(), denied.rights));
                    let within = mounts.of(&path).and_then(|mount| mount.within(&path));
                    entry.names.extend(within);
                }
            }
        }
        linked
    }

    /// Searches for the other names of files, and returns them with their rules.
    fn search(
        &mut self,
        mut linked: BTreeMap<Inode, HardLinkedFile>,
        mounts: &Mounts,
    ) -> Vec<(String, DeniedPath)> {
        let mut found = Vec::new();
        let mut left = ENTRIES_LIMIT;
        let devices: BTreeSet<Vec<u8>> = linked
            .values()
            .filter_map(|file| mounts.of(Path::new(&file.path)))
            .map(|mount| mount.device.clone())
            .collect();
        for mount in devices.iter().flat_map(|device| mounts.searched(device)) {
            found.extend(self.search_mount(&mut linked, mounts, mount, &mut left));
        }
        for file in linked.values().filter(|file| !file.is_complete()) {
            let way = format!(
                "{} has {} names (hard links), of which {} were found",
                file.path,
                file.links,
                file.names.len()
            );
            for (rule, _) in &file.by {
                self.note(rule, NameKind::Unknown, way.clone());
            }
        }
        found
    }

    /// Searches one mount, without descending into mounts below it. `left` is the remaining number of entries
    /// to read.
    fn search_mount(
        &mut self,
        linked: &mut BTreeMap<Inode, HardLinkedFile>,
        mounts: &Mounts,
        mount: &Mount,
        left: &mut usize,
    ) -> Vec<(String, DeniedPath)> {
        let numbers: BTreeSet<u64> = linked.keys().map(|(_, number)| *number).collect();
        let points: BTreeSet<&Path> = mounts.0.iter().map(|mount| mount.point.as_path()).collect();
        let mut found = Vec::new();
        let mut open = vec![mount.point.clone()];
        // Most links are beside the file, so its folder comes first. The search ends when all names are found.
        let paths = linked.values().map(|file| Path::new(&file.path));
        let here = paths.filter(|path| mounts.of(path).is_some_and(|of| of.point == mount.point));
        let folders: BTreeSet<&Path> = here.filter_map(Path::parent).collect();
        open.extend(folders.into_iter().map(Path::to_owned));
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                if *left == 0 || linked.values().all(HardLinkedFile::is_complete) {
                    return found;
                }
                *left -= 1;
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    if !points.contains(path.as_path()) {
                        open.push(path);
                    }
                    continue;
                }
                // The directories of an overlay list other inode numbers than its files have.
                if mount.kind != "overlay" && !numbers.contains(&entry.ino()) {
                    continue;
                }
                let data = fs::symlink_metadata(&path).ok();
                let file = data.and_then(|data| linked.get_mut(&inode(&data)));
                let name = mount.within(&path);
                if let (Some(file), Some(name)) = (file, name)
                    && file.names.insert(name)
                {
                    found.extend(self.note_link(file, &path));
                }
            }
        }
        found
    }

    /// Records a found name of a withheld file, and returns the paths that it adds, each with its rule.
    fn note_link(&mut self, file: &HardLinkedFile, path: &Path) -> Vec<(String, DeniedPath)> {
        let Some(text) = path.to_str() else {
            let way = format!("{} is a hard link of it", path.display());
            for (rule, _) in &file.by {
                self.note(rule, NameKind::Unknown, way.clone());
            }
            return Vec::new();
        };
        let way = format!("{text} is {}", NameKind::Link.of(&file.path));
        for (rule, _) in &file.by {
            self.note(rule, NameKind::Link, way.clone());
        }
        let denied = |(rule, rights): &(String, u64)| {
            let (path, rights) = (text.to_owned(), *rights);
            (rule.clone(), DeniedPath { path, rights })
        };
        file.by.iter().map(denied).collect()
    }
}

impl HardLinkedFile {
    fn is_complete(&self) -> bool {
        u64::try_from(self.names.len()).is_ok_and(|names| names >= self.links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "1 0 8:1 / / rw - ext4 a rw\n";

    fn denied(path: &Path) -> (String, DeniedPath) {
        let hole = DeniedPath {
            path: path.display().to_string(),
            rights: 4,
        };
        ("rule".to_owned(), hole)
    }

    /// The withheld names besides the first, relative to a folder, and the undetermined places.
    fn found(folder: &Path, hole: &str, table: &str) -> (Vec<String>, Vec<String>) {
        let names = find(vec![denied(&folder.join(hole))], &Mounts::new(table));
        let prefix = format!("{}/", folder.display());
        let paths = names
            .denied
            .iter()
            .map(|(_, hole)| hole.path.replace(&prefix, ""));
        let mut paths: Vec<String> = paths.filter(|path| path != hole).collect();
        paths.sort();
        let others = names.others.into_values().flatten();
        let unknown = others.filter(|name| name.kind == NameKind::Unknown);
        (paths, unknown.map(|name| name.text).collect())
    }

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap();
        for folder in ["etc/deep", "other/deeper"] {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
        fs::write(path.join("etc/shadow"), "x").unwrap();
        fs::write(path.join("etc/group"), "x").unwrap();
        (dir, path)
    }

    #[test]
    fn hard_links_are_found_wherever_they_are_and_a_missing_one_is_said() {
        let (_dir, path) = folder();
        let table = format!("{ROOT}2 1 0:9 / {0} rw - tmpfs t rw\n", path.display());
        assert_eq!(found(&path, "etc/shadow", &table), (vec![], vec![]));
        let link = |name: &str| fs::hard_link(path.join("etc/shadow"), path.join(name)).unwrap();
        link("etc/linked");
        link("other/deeper/far");
        let names = vec!["etc/linked".to_owned(), "other/deeper/far".to_owned()];
        assert_eq!(found(&path, "etc/shadow", &table), (names, vec![]));
        assert_eq!(found(&path, "etc/group", &table), (vec![], vec![]));
        // Applies below a withheld folder too.
        let (paths, unknown) = found(&path, "etc", &table);
        assert_eq!(
            (paths, unknown),
            (vec!["other/deeper/far".to_owned()], vec![])
        );
        // A name that another mount covers cannot be seen.
        let hidden = format!(
            "{table}3 2 0:7 / {}/other rw - tmpfs t rw\n",
            path.display()
        );
        let (paths, unknown) = found(&path, "etc/shadow", &hidden);
        assert_eq!(paths, ["etc/linked"]);
        assert!(
            unknown[0].ends_with("has 3 names (hard links), of which 2 were found"),
            "{unknown:?}"
        );
    }

    #[test]
    fn two_rights_that_one_rule_withholds_from_a_path_are_both_kept() {
        let denied = |rights| {
            let path = "/x".to_owned();
            ("rule".to_owned(), DeniedPath { path, rights })
        };
        let names = find(vec![denied(1), denied(4), denied(4)], &Mounts::new(ROOT));
        assert_eq!(names.denied, [denied(4), denied(1)]);
    }

    #[test]
    fn what_is_mounted_twice_has_two_names_if_both_lead_there() {
        let mounts = Mounts::new(&format!(
            "{ROOT}2 1 8:1 /x/y /absent rw - ext4 a rw\n3 1 8:1 / /gone rw - ext4 a rw\n\
             4 1 8:2 / /disk rw - ext4 a rw\n"
        ));
        let names = |path: &str| mounts.second_mounts(Path::new(path));
        assert_eq!(
            names("/x/y/z"),
            [Path::new("/absent/z"), Path::new("/gone/x/y/z")]
        );
        assert_eq!(names("/x"), [Path::new("/absent"), Path::new("/gone/x")]);
        assert_eq!(
            names("/absent/z/a"),
            [Path::new("/x/y/z/a"), Path::new("/gone/x/y/z/a")]
        );
        assert!(names("/disk/z").is_empty());
        // A path that exists, and that is absent at the other place.
        assert!(names("/proc").is_empty());
    }

    #[test]
    fn layers_of_overlays_are_read_in_both_notations() {
        let texts = |options: &str| -> Vec<String> {
            let layers = layers_of(options.as_bytes()).into_iter();
            layers.map(|layer| layer.display().to_string()).collect()
        };
        let both = "rw,lowerdir=/a:/b\\134:c::/d,upperdir=/u\\040v,workdir=/w";
        assert_eq!(texts(both), ["/a", "/b:c", "/d", "/u v"]);
        assert_eq!(
            texts("lowerdir+=/a,lowerdir+=/b,datadir+=/c"),
            ["/a", "/b", "/c"]
        );
        assert_eq!(texts("rw,relatime"), [""; 0]);
    }

    #[test]
    fn an_overlay_and_its_layers_are_names_of_each_other() {
        let (_dir, path) = folder();
        let base = path.display();
        let table = format!(
            "{ROOT}2 1 0:9 / {base}/other rw - overlay o rw,lowerdir={base}/etc:relative,upperdir={base}/u\n"
        );
        fs::write(path.join("other/shadow"), "x").unwrap();
        let (paths, unknown) = found(&path, "etc/shadow", &table);
        assert_eq!(paths, ["other/shadow"]);
        assert!(unknown[0].contains("have no absolute path"), "{unknown:?}");
        assert_eq!(found(&path, "other/shadow", &table).0, ["etc/shadow"]);
    }

    #[test]
    fn another_namespace_is_a_way_if_it_has_the_file_below_another_directory() {
        let own = Mounts::new(ROOT);
        let in_namespace = |rest: &str| {
            let mounts = Mounts::new(&format!("{ROOT}{rest}"));
            let other = Namespace { pid: 7, mounts };
            other.name_of(&own, Path::new("/etc/shadow"))
        };
        assert_eq!(in_namespace(""), None);
        // Services have this: the same place, protected.
        assert_eq!(in_namespace("2 1 8:1 /etc /etc ro - ext4 a rw\n"), None);
        assert_eq!(in_namespace("2 1 8:1 /srv /mnt rw - ext4 a rw\n"), None);
        let there = in_namespace("2 1 8:1 /etc /mnt rw - ext4 a rw\n");
        assert_eq!(there, Some(PathBuf::from("/mnt/shadow")));
        let container = "1 0 0:9 / / rw - tmpfs a rw\n2 1 8:1 /etc /etc rw - ext4 a rw\n";
        let mounts = Mounts::new(container);
        let found = Namespace { pid: 7, mounts }.name_of(&own, Path::new("/etc/shadow"));
        assert_eq!(found, Some(PathBuf::from("/etc/shadow")));
        let mounts = Mounts::new("1 0 8:1 / / rw - ext4 a rw\n");
        assert_eq!(
            Namespace { pid: 7, mounts }.name_of(&own, Path::new("/etc/shadow")),
            None
        );
    }

    #[test]
    fn a_file_system_that_may_show_others_is_said() {
        let table = format!("{ROOT}2 1 0:9 / /srv/x rw - fuse.bindfs /etc rw\n");
        let (_, unknown) = found(Path::new("/"), "absent", &table);
        assert_eq!(
            unknown,
            ["the file system fuse.bindfs at /srv/x may show it under another name"]
        );
        let (_, own) = found(Path::new("/"), "srv/x/absent", &table);
        assert_eq!(own, [""; 0]);
    }

    /// Includes an unknown type.
    #[test]
    fn only_file_systems_that_show_their_own_files_are_passed_over() {
        let ways = |kind: &str| {
            let table = format!("{ROOT}2 1 0:9 / /srv/x rw - {kind} x rw\n");
            found(Path::new("/"), "absent", &table).1.len()
        };
        for kind in SHOW_THEIR_OWN {
            assert_eq!(ways(kind), 0, "{kind}");
        }
        let others = [
            "9p",
            "ceph",
            "cifs",
            "fuse",
            "fuse.sshfs",
            "fuseblk",
            "lustre",
            "nfs4",
            "vboxsf",
            "virtiofs",
            "unheard",
        ];
        for kind in others {
            assert_eq!(ways(kind), 1, "{kind}");
        }
    }
}
