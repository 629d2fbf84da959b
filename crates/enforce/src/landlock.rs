//! Construction of kernel rulesets from Landlock profiles.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use policy::Policy;
use policy::compile::landlock::{
    DeniedPath, EXECUTE, Entry, Grant, LISTING, Profile, SCOPES, grants, grants_below,
};
use policy::compile::{MachineFeatures, NameKind, OtherName};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::names::{self, Mounts};
use crate::tree::{MountedFileSystems, resolved};

/// A ruleset and its gaps.
#[derive(Debug)]
pub(crate) struct BuiltRuleset {
    pub(crate) ruleset: OwnedFd,
    /// Number of rules.
    pub(crate) rules: usize,
    /// Features that this kernel's Landlock version lacks.
    pub(crate) lacks: Vec<String>,
    /// Withheld rights, each with its rule.
    pub(crate) denied: Vec<(String, DeniedPath)>,
    /// Granted rights.
    pub(crate) granted: Vec<Grant>,
}

/// The reason why a ruleset cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// The kernel has no Landlock.
    #[error("Landlock is not available")]
    Unavailable,
    /// The Landlock version of the kernel cannot be read.
    #[error("cannot get its version")]
    Version(#[from] sys::SyscallError),
    /// The kernel refused the ruleset or a rule.
    #[error("cannot build it")]
    Ruleset(#[from] RulesetError),
    /// The kernel refused to put the ruleset in force.
    #[error("cannot put it in force")]
    Restrict(#[source] sys::SyscallError),
    /// The mount table or a path cannot be read.
    #[error("cannot read the metadata of {path}")]
    Path {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
}

/// First ABI version with rights on TCP ports.
pub(crate) const PORTS: i32 = 4;

/// Creates the ruleset of a profile; `None` if the profile denies nothing.
pub(crate) fn make(profile: &Profile) -> Result<Option<BuiltRuleset>, LandlockError> {
    make_for(profile, &own_mounts()?, std::env::var_os("PATH").as_deref())
}

fn own_mounts() -> Result<String, LandlockError> {
    const TABLE: &str = "/proc/self/mountinfo";
    let text = std::fs::read(TABLE).map_err(|cause| LandlockError::Path {
        path: TABLE.to_owned(),
        cause,
    })?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Further names of the files that a policy names by path, by rule. Matches of patterns are not searched.
///
/// # Errors
/// Fails if the mount table cannot be read.
pub fn other_names(
    policy: &Policy,
    machine: &MachineFeatures,
) -> Result<BTreeMap<String, BTreeSet<OtherName>>, LandlockError> {
    let named = policy.rules.iter().flat_map(|rule| {
        let lowered = policy::compile::landlock::lower(policy, rule, machine);
        let entries = lowered.entries.into_iter();
        entries.filter(|entry| match entry {
            Entry::Hole { path, .. } => path.literal().or_else(|| path.subtree()).is_some(),
            _ => false,
        })
    });
    let profile = Profile {
        handled: 0,
        entries: named.collect(),
    };
    if profile.entries.is_empty() {
        return Ok(BTreeMap::new());
    }
    let table = own_mounts()?;
    let given = holes(&profile, &MountedFileSystems::of(&table), None);
    let mounts = Mounts::new(&table);
    let mut found = names::find(given, &mounts);
    found.look_elsewhere(&mounts, &names::other_namespaces());
    for (rule, name) in listable(&profile) {
        found.others.entry(rule).or_default().insert(name);
    }
    Ok(found.others)
}

/// The folders that a rule names without a pattern and whose listing it denies: they can be listed.
fn listable(profile: &Profile) -> impl Iterator<Item = (String, OtherName)> {
    profile.entries.iter().filter_map(|entry| {
        let Entry::Hole {
            path,
            listing: true,
            rule,
            ..
        } = entry
        else {
            return None;
        };
        let path = path.literal()?;
        // A missing path has no names to list.
        let is_folder = std::fs::metadata(path).is_ok_and(|data| data.is_dir());
        let kind = NameKind::Listing;
        let text = format!("{} can still be listed", kind.of(path));
        is_folder.then(|| (rule.clone(), OtherName { kind, text }))
    })
}

/// Creates a ruleset as [`make`] does, for a process with the mounts `/proc/PID/mountinfo`, which are those
/// of the calling process, and with programs in `path`.
pub(crate) fn make_for(
    profile: &Profile,
    mounts: &str,
    path: Option<&OsStr>,
) -> Result<Option<BuiltRuleset>, LandlockError> {
    if profile.entries.is_empty() {
        return Ok(None);
    }
    let tree = &MountedFileSystems::of(mounts);
    let mut lacks = Vec::new();
    let Handled {
        mut ruleset,
        rights,
        ports,
    } = handle(profile, &mut lacks)?;
    let mut rules = 0;
    let (mut named, mut granted) = (Vec::new(), Vec::new());
    if !rights.is_empty() {
        let found = names::find(holes(profile, tree, path), &Mounts::new(mounts));
        let others = found.others.into_values().flatten();
        let unknown = others.filter(|name| name.kind == NameKind::Unknown);
        let listable = listable(profile).map(|(_, name)| name.text);
        lacks.extend(
            unknown
                .map(|name| name.text)
                .chain(listable)
                .collect::<BTreeSet<_>>(),
        );
        named = found.denied;
        let denied: Vec<DeniedPath> = named.iter().map(|(_, hole)| hole.clone()).collect();
        granted = match roots(profile) {
            roots if roots.is_empty() => grants(&denied, tree),
            roots => grants_below(roots, &denied, tree),
        };
        rules += grant_paths(&mut ruleset, &granted, &denied, rights)?;
    }
    if !ports.is_empty() {
        rules += grant_ports(&mut ruleset, &ports)?;
    }
    let fd: Option<OwnedFd> = ruleset.into();
    let ruleset = fd.ok_or(LandlockError::Unavailable)?;
    Ok(Some(BuiltRuleset {
        ruleset,
        rules,
        lacks,
        denied: named,
        granted,
    }))
}

/// A ruleset without rules, and the rights that it denies until rules grant them.
struct Handled {
    ruleset: RulesetCreated,
    rights: BitFlags<AccessFs>,
    ports: Vec<(u16, u16)>,
}

/// Creates a ruleset that handles what a profile denies, as far as this kernel supports it; unsupported
/// features are added to `lacks`.
fn handle(profile: &Profile, lacks: &mut Vec<String>) -> Result<Handled, LandlockError> {
    let version = sys::landlock::version()?;
    let abi = ABI::from(version);
    let mut wanted = profile.handled;
    let is_domain = profile.entries.contains(&Entry::Domain);
    if is_domain && wanted == 0 && version < SCOPES {
        // A domain needs a ruleset that handles at least one right.
        wanted = policy::compile::landlock::ALL_RIGHTS;
    }
    let rights = BitFlags::<AccessFs>::from_bits_truncate(wanted) & AccessFs::from_all(abi);
    if rights.bits() != wanted {
        lacks.push(format!(
            "version {version} does not know the rights {:#x}",
            wanted & !rights.bits()
        ));
    }
    let mut ports = withheld_ports(profile);
    if !ports.is_empty() && version < PORTS {
        lacks.push(format!("version {version} does not know ports"));
        ports.clear();
    }
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    if !rights.is_empty() {
        ruleset = ruleset.handle_access(rights)?;
    }
    if !ports.is_empty() {
        ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
    }
    if profile.entries.contains(&Entry::AbstractSockets) {
        match version < SCOPES {
            true => lacks.push(format!("version {version} does not know abstract sockets")),
            false => ruleset = ruleset.scope(Scope::AbstractUnixSocket)?,
        }
    }
    // The kernel refuses a ruleset that handles nothing. Signals to outside processes are what a workload
    // needs least.
    if is_domain && rights.is_empty() {
        ruleset = ruleset.scope(Scope::Signal)?;
    }
    Ok(Handled {
        ruleset: ruleset.create()?,
        rights,
        ports,
    })
}

fn withheld_ports(profile: &Profile) -> Vec<(u16, u16)> {
    let ports = profile.entries.iter().filter_map(|entry| match entry {
        Entry::ConnectPorts { first, last, .. } => Some((*first, *last)),
        Entry::Hole { .. }
        | Entry::Only { .. }
        | Entry::Own { .. }
        | Entry::AnyRuleset
        | Entry::Domain
        | Entry::AbstractSockets => None,
    });
    ports.collect()
}

fn grant_paths(
    created: &mut RulesetCreated,
    grants: &[Grant],
    denied: &[DeniedPath],
    rights: BitFlags<AccessFs>,
) -> Result<usize, LandlockError> {
    let mut rules = 0;
    let withheld = by_inode(denied);
    let shortcuts = shortcuts(grants, &busy_folders());
    for grant in grants.iter().chain(&shortcuts) {
        let given = BitFlags::<AccessFs>::from_bits_truncate(grant.rights) & rights;
        if given.is_empty() {
            continue;
        }
        // Never follow a link: the target is granted, or not, under its own name.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::open(grant.path.as_str(), flags, Mode::empty()) {
            Ok(file) => file,
            // The file was removed or this user cannot reach it: there is nothing to grant.
            Err(Errno::NOENT | Errno::ACCESS | Errno::NOTDIR) => continue,
            Err(cause) => {
                return Err(LandlockError::Path {
                    path: grant.path.clone(),
                    cause: cause.into(),
                });
            }
        };
        // The file may be withheld under another name: a rule applies to all names of a file.
        let data = rustix::fs::fstat(&file).map_err(|cause| LandlockError::Path {
            path: grant.path.clone(),
            cause: cause.into(),
        })?;
        let taken = withheld.get(&(data.st_dev, data.st_ino));
        let given = given & !BitFlags::from_bits_truncate(taken.copied().unwrap_or(0));
        if given.is_empty() {
            continue;
        }
        created.add_rule(PathBeneath::new(file, given))?;
        rules += 1;
    }
    Ok(rules)
}

/// The rights that are withheld from existing files, by device and inode.
fn by_inode(denied: &[DeniedPath]) -> BTreeMap<(u64, u64), u64> {
    let mut rights = BTreeMap::new();
    for hole in denied {
        // A missing file has no other name.
        if let Ok(data) = std::fs::symlink_metadata(&hole.path) {
            *rights.entry(names::inode(&data)).or_default() |= hole.rights;
        }
    }
    rights
}

/// The resolved paths that stay accessible where no others are. A folder that is named without a pattern can
/// be listed, and its contents cannot be used.
fn roots(profile: &Profile) -> Vec<(String, u64, bool)> {
    let root = |entry: &Entry| {
        let Entry::Only { path, rights, .. } = entry else {
            return None;
        };
        let whole = path.subtree();
        let path = resolved(Path::new(whole.or_else(|| path.literal())?));
        // A missing file cannot be granted, but a folder in which to create it can.
        let is_folder = std::fs::metadata(&path).ok()?.is_dir();
        let rights = match is_folder && whole.is_none() {
            true => rights & LISTING,
            false => *rights,
        };
        Some((path, rights, is_folder))
    };
    profile.entries.iter().filter_map(root).collect()
}

/// Folders with most of the files that programs open, besides those in PATH and the current folder.
const BUSY_FOLDERS: [&str; 14] = [
    "/dev",
    "/dev/shm",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/tmp",
    "/usr/lib",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/locale",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/share",
    "/var/lib",
    "/var/tmp",
];

fn busy_folders() -> BTreeSet<PathBuf> {
    let mut folders: BTreeSet<PathBuf> = BUSY_FOLDERS.iter().map(PathBuf::from).collect();
    let path = std::env::var_os("PATH");
    folders.extend(path.iter().flat_map(std::env::split_paths));
    folders.extend(std::env::var_os("TMPDIR").map(PathBuf::from));
    // A removed folder does not stay the current folder for long.
    folders.extend(std::env::current_dir());
    let resolved = folders.iter().map(std::fs::canonicalize);
    // Most hosts lack some of these folders.
    resolved.filter_map(Result::ok).collect()
}

/// Explicit rules for rights that these folders inherit from folders above: the kernel walks up from a file
/// until all requested rights are granted, so an open in such a folder ends after one step.
fn shortcuts(grants: &[Grant], folders: &BTreeSet<PathBuf>) -> Vec<Grant> {
    let shortcut = |folder: &PathBuf| {
        let path = folder.to_str().filter(|path| *path != "/")?;
        let above = grants.iter().filter(|grant| {
            let rest = path.strip_prefix(grant.path.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        let rights = above.fold(0, |rights, grant| rights | grant.rights);
        (rights != 0).then(|| Grant {
            path: path.to_owned(),
            rights,
        })
    };
    folders.iter().filter_map(shortcut).collect()
}

/// The paths from which rights are withheld, each with its rule.
fn holes(
    profile: &Profile,
    tree: &MountedFileSystems,
    variable: Option<&OsStr>,
) -> Vec<(String, DeniedPath)> {
    let mut denied = Vec::new();
    let mut add = |rule: &str, paths: BTreeSet<String>, rights| {
        let hole = |path: String| DeniedPath { path, rights };
        denied.extend(paths.into_iter().map(|path| (rule.to_owned(), hole(path))));
    };
    let mut others = Vec::new();
    for entry in &profile.entries {
        let Entry::Hole {
            path, rights, rule, ..
        } = entry
        else {
            continue;
        };
        let programs = (*rights == EXECUTE).then(|| MountedFileSystems::programs(path, variable));
        match programs.flatten() {
            Some(paths) => add(rule, paths, *rights),
            None => others.push((path, *rights, rule)),
        }
    }
    let patterns: Vec<_> = others.iter().map(|(path, ..)| *path).collect();
    for (paths, (_, rights, rule)) in tree.expand(&patterns).into_iter().zip(&others) {
        add(rule, paths, *rights);
    }
    denied
}

/// Grants every port that is not withheld.
fn grant_ports(
    created: &mut RulesetCreated,
    withheld: &[(u16, u16)],
) -> Result<usize, LandlockError> {
    let mut rules = 0;
    for port in 0..=u16::MAX {
        if withheld
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&port))
        {
            continue;
        }
        created.add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
        rules += 1;
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortcut_gives_what_is_granted_there_anyway() {
        let grant = |path: &str, rights| Grant {
            path: path.to_owned(),
            rights,
        };
        let grants = [grant("/", 0b1), grant("/usr", 0b110), grant("/us", 0b1000)];
        let folders = ["/", "/usr/lib", "/etc"].map(PathBuf::from);
        let found = shortcuts(&grants, &BTreeSet::from(folders));
        assert_eq!(found, [grant("/etc", 0b1), grant("/usr/lib", 0b111)]);
    }
}
