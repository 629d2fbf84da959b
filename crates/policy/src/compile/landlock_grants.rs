//! The paths to allow so that everything except the holes is allowed.

use std::collections::BTreeSet;

use super::landlock_rights::{ALL_RIGHTS, ON_FILES};

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Name of the entry.
    pub name: String,
    /// Set for folders. Symbolic links are omitted: only their targets matter.
    pub is_folder: bool,
}

/// The file system as the planner reads it.
pub trait Tree {
    /// The entries of a folder.
    fn entries(&self, folder: &str) -> Vec<DirectoryEntry>;
}

/// A path from which rights are withheld, including everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedPath {
    /// The path, without wildcards.
    pub path: String,
    /// `LANDLOCK_ACCESS_FS_*`.
    pub rights: u64,
}

/// A path to which rights are granted, including everything below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// The path.
    pub path: String,
    /// `LANDLOCK_ACCESS_FS_*`.
    pub rights: u64,
}

/// Computes the grants that give every path all rights except the denied ones. Folders above a hole lack the
/// denied rights too, since a right on such a folder would extend into the hole.
#[must_use]
pub fn grants(denied: &[DeniedPath], tree: &dyn Tree) -> Vec<Grant> {
    grants_below(vec![("/".to_owned(), ALL_RIGHTS, true)], denied, tree)
}

/// Computes [`grants`] within the given roots: each root has the given rights and no other path has any. The
/// last element is true for a folder.
#[must_use]
pub fn grants_below(
    mut open: Vec<(String, u64, bool)>,
    denied: &[DeniedPath],
    tree: &dyn Tree,
) -> Vec<Grant> {
    let mut found = BTreeSet::new();
    while let Some((path, wanted, is_folder)) = open.pop() {
        let at_or_above = denied.iter().filter(|hole| is_below(&path, &hole.path));
        let wanted = at_or_above.fold(wanted, |rights, hole| rights & !hole.rights);
        let wanted = if is_folder { wanted } else { wanted & ON_FILES };
        let beneath = denied.iter().filter(|hole| is_below(&hole.path, &path));
        let later = beneath.fold(0, |rights, hole| rights | hole.rights) & wanted;
        let now = wanted & !later;
        if now != 0 {
            found.insert(Grant {
                path: path.clone(),
                rights: now,
            });
        }
        if later != 0 && is_folder {
            let parent = path.trim_end_matches('/');
            let entries = tree.entries(&path).into_iter();
            open.extend(entries.map(|e| (format!("{parent}/{}", e.name), later, e.is_folder)));
        }
    }
    found.into_iter().collect()
}

/// Returns true if `path` is `folder` or lies below it.
pub(in super::super) fn is_below(path: &str, folder: &str) -> bool {
    let rest = path.strip_prefix(folder.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
