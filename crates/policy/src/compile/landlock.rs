//! Rules as a Landlock ruleset.
//!
//! Landlock allows and never denies: a denial is a hole in what is allowed. [`grants`] finds the
//! paths that have to be allowed so that all is except the holes.

use std::collections::BTreeSet;
use std::fmt;

use abi::{Arch, capability, flags};

use super::{CompiledPart, MachineFeatures, caps, lower_rule};
use crate::operation::{Coverage, Operation};
use crate::pattern::Pattern;
use crate::policy::{Enforcer, Policy, Rule};
use crate::restriction::{Destination, FileAccess, PtraceScope, Restriction};

/// Every right on files that ABI 7 has.
pub const ALL_RIGHTS: u64 = 0xffff;

/// The right to move between folders, which every ruleset takes away that does not give it.
const REFER: u64 = 0x2000;

/// The right to execute a file.
pub const EXECUTE: u64 = 1;
pub(super) const READ: u64 = 0b1100;
/// The right to list a folder.
pub const LISTING: u64 = 0b1000;
/// Writing, removing, making anything, moving between folders, truncating.
const WRITE: u64 = WRITE_FILE | REMOVE | MAKE | REFER | TRUNCATE;
/// Parts of it.
pub(super) const WRITE_FILE: u64 = 0x2;
pub(super) const REMOVE: u64 = 0x30;
pub(super) const MAKE: u64 = 0x1fc0;
pub(super) const MAKE_FOLDER: u64 = 0x80;
pub(super) const MAKE_FILE: u64 = 0x100;
pub(super) const MAKE_SOCKET: u64 = 0x200;
pub(super) const MAKE_LINK: u64 = 0x1000;
pub(super) const TRUNCATE: u64 = 0x4000;
const IOCTL: u64 = 0x8000;
/// Rights that a file can have; the others are of folders.
const ON_FILES: u64 = 0xc007;

/// What a rule compiles to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Paths that rights are withheld from. A pattern stands for what exists when the ruleset is made.
    Hole {
        /// The rule.
        rule: String,
        /// Which paths.
        path: Pattern,
        /// `LANDLOCK_ACCESS_FS_*`.
        rights: u64,
    },
    /// What may be used where nothing else may be.
    Only {
        /// The rule.
        rule: String,
        /// A path, or everything below a folder.
        path: Pattern,
        /// `LANDLOCK_ACCESS_FS_*`.
        rights: u64,
    },
    /// Nothing but that there is a ruleset on files.
    AnyRuleset,
    /// Nothing but that there is a domain: processes outside of it are out of reach.
    Domain,
    /// TCP ports that cannot be connected to.
    ConnectPorts {
        /// The rule.
        rule: String,
        /// The first.
        first: u16,
        /// The last.
        last: u16,
    },
}

/// The ruleset of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Rights on files that are handled: those that are withheld somewhere. The kernel looks for each
    /// handled right at each open, so a right that nobody is denied is not handled. If mounts are to be
    /// impossible it is all of them: what is not handled would be allowed in file systems that were made
    /// but never mounted.
    pub handled: u64,
    /// What is withheld.
    pub entries: Vec<Entry>,
}

impl Profile {
    /// The ruleset of a policy.
    #[must_use]
    pub fn compile(policy: &Policy, machine: &MachineFeatures) -> Self {
        let lowered = policy.rules.iter().map(|rule| lower(policy, rule, machine));
        let entries: Vec<_> = lowered.flat_map(|lowered| lowered.entries).collect();
        let handled = entries.iter().fold(0, |sum, entry| match entry {
            Entry::Hole { rights, .. } => sum | rights | REFER,
            Entry::AnyRuleset | Entry::Only { .. } => ALL_RIGHTS,
            Entry::Domain | Entry::ConnectPorts { .. } => sum,
        });
        Self { handled, entries }
    }
}

/// What a rule compiles to.
#[must_use]
pub fn lower(policy: &Policy, rule: &Rule, machine: &MachineFeatures) -> CompiledPart<Entry> {
    let mut lowered = lower_rule(rule, Enforcer::Landlock, |restriction| {
        lower_one(policy, rule, restriction, machine)
    });
    if !lowered.entries.is_empty() && !rule.verdict.denies() {
        return CompiledPart::missing("Landlock cannot allow something and report it");
    }
    if lowered.entries.is_empty() || !rule.verdict.audits() {
        return lowered;
    }
    if !machine.watches {
        return lowered
            .gap("a denial is not reported: Landlock tells nobody but the kernel's audit log");
    }
    if lowered.entries.contains(&Entry::Domain) {
        lowered = lowered
            .gap("a denial is not reported of looks into /proc/PID by other calls than open and readlink");
    }
    lowered.breaks("io_uring, whose calls could not be reported")
}

fn lower_one(
    policy: &Policy,
    rule: &Rule,
    restriction: &Restriction,
    machine: &MachineFeatures,
) -> CompiledPart<Entry> {
    match restriction {
        Restriction::File { path, access } => lower_file(rule, path, *access),
        Restriction::Exec { path } => hole(rule, path, EXECUTE).gap(
            "a copy of the program, one outside PATH and the folders of programs, one in memory \
                 (memfd), and `ld.so PROGRAM` still run",
        ),
        Restriction::Disk { access } => lower_disks(rule, *access, machine),
        Restriction::Operation(operation) => lower_operation(operation),
        Restriction::Ptrace {
            scope: PtraceScope::Outside,
            access,
        } if access.trace || access.read => {
            let lowered = CompiledPart::one(Entry::Domain);
            match drops_sys_admin(policy) {
                true => lowered,
                false => lowered.gap(
                    "/proc/PID/environ of others can be read with CAP_PERFMON, which Caps drops, and \
                     with CAP_SYS_ADMIN; add disable-cap-sys-admin",
                ),
            }
        }
        Restriction::Egress {
            to: Destination::Network(network),
            ports,
        } if network.prefix_len() == 0 && !ports.is_empty() => {
            CompiledPart::many(ports.iter().map(|range| Entry::ConnectPorts {
                rule: rule.id.clone(),
                first: range.first,
                last: range.last,
            }))
            .gap("UDP, multipath TCP and TCP fast open are not covered")
            .breaks("connections to these ports at any address")
        }
        Restriction::Egress { .. } => CompiledPart::missing("Landlock knows ports, not addresses"),
        Restriction::Connect { .. } => {
            CompiledPart::missing("Landlock does not mediate connecting to a socket by path")
        }
        Restriction::Mount(_) => {
            CompiledPart::missing("Landlock denies all mounts or none; disallow-mount denies all")
        }
        Restriction::OnlyFiles(files) => CompiledPart::many(files.iter().map(|file| Entry::Only {
            rule: rule.id.clone(),
            path: file.path.clone(),
            // Of a device that may be used all of it may be used.
            rights: IOCTL | rights(file.access) | if file.exec { EXECUTE } else { 0 },
        }))
        .gap("mode, owner, times and extended attributes can still be changed")
        .breaks("mounting anything"),
        Restriction::AppArmorText(_) => {
            CompiledPart::missing("the rule is in the language of AppArmor")
        }
        Restriction::Socket(_)
        | Restriction::Ptrace { .. }
        | Restriction::Capabilities(_)
        | Restriction::Mode { .. }
        | Restriction::Syscall(_) => CompiledPart::missing("Landlock has no right for it"),
    }
}

/// Hooks at which a process under any ruleset on files is denied whatever it asks for: changes of the tree of
/// mounts (security/landlock/fs.c).
const HOOKS: [&str; 5] = [
    "move_mount",
    "sb_mount",
    "sb_pivotroot",
    "sb_remount",
    "sb_umount",
];

/// What of an operation any ruleset denies.
pub(super) fn coverage(operation: &Operation) -> Coverage {
    operation.coverage(|hook| HOOKS.contains(&hook))
}

fn lower_operation(operation: &Operation) -> CompiledPart<Entry> {
    let coverage = coverage(operation);
    match coverage.calls.is_empty() {
        true => CompiledPart::missing("Landlock has no right for it"),
        false => CompiledPart {
            gaps: coverage.gaps,
            ..CompiledPart::one(Entry::AnyRuleset)
        },
    }
}

/// Whether CAP_SYS_ADMIN, and with it whatever CAP_PERFMON allows, is taken from the workload.
fn drops_sys_admin(policy: &Policy) -> bool {
    let number = capability::from_name("sys_admin");
    let dropped = caps::Profile::compile(policy).dropped;
    let is_dropped = number.is_some_and(|number| dropped.contains(number));
    policy.enforcers.contains(Enforcer::Caps) && is_dropped
}

fn hole(rule: &Rule, path: &Pattern, rights: u64) -> CompiledPart<Entry> {
    let lowered = CompiledPart::one(Entry::Hole {
        rule: rule.id.clone(),
        path: path.clone(),
        rights,
    })
    .breaks("mounting anything, and making new files in the folders above what is denied");
    match path.literal().or_else(|| path.subtree()) {
        Some(_) => lowered,
        // The planner looks for them, and does not go through what the kernel makes up.
        None if path.fixed_prefix() == "/" => lowered.gap(
            "files of that name that are made later, or are in /proc, /sys or another view of the \
             kernel but those of control groups",
        ),
        None => lowered.gap("files of that name that are made later"),
    }
}

fn lower_file(rule: &Rule, path: &Pattern, access: FileAccess) -> CompiledPart<Entry> {
    let prefix = path.fixed_prefix();
    if prefix.starts_with("/proc/") {
        return CompiledPart::missing(
            "a hole in /proc would take away /proc/PID of every process that starts later",
        );
    }
    let lowered = hole(rule, path, rights(access));
    match access.write || access.append {
        false => lowered,
        true => lowered.gap("mode, owner, times and extended attributes can still be changed"),
    }
}

/// What an access takes.
fn rights(access: FileAccess) -> u64 {
    let mut rights = 0;
    if access.read {
        rights |= READ;
    }
    if access.write || access.append {
        rights |= WRITE;
    }
    rights
}

fn lower_disks(rule: &Rule, access: FileAccess, machine: &MachineFeatures) -> CompiledPart<Entry> {
    let rights = IOCTL | rights(access);
    let paths = machine
        .disks
        .iter()
        .filter_map(|name| Pattern::parse(&format!("/dev/{name}")).ok());
    let mut lowered = CompiledPart::default();
    for path in paths {
        lowered.add(hole(rule, &path, rights));
    }
    match lowered.entries.is_empty() {
        true => CompiledPart::missing("no disk was found on this machine"),
        false => lowered
            .gap("device files of another name; disable-cap-mknod keeps them from being made"),
    }
}

/// What a folder holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its name.
    pub name: String,
    /// Whether it is a folder. Symbolic links are left out: their targets are what counts.
    pub is_folder: bool,
}

/// The file system as the planner sees it.
pub trait Tree {
    /// What a folder holds.
    fn entries(&self, folder: &str) -> Vec<DirectoryEntry>;
}

/// A path that rights are withheld from, with all that is below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedPath {
    /// Without wildcards.
    pub path: String,
    /// `LANDLOCK_ACCESS_FS_*`.
    pub rights: u64,
}

/// A path that rights are given to, with all that is below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// The path.
    pub path: String,
    /// `LANDLOCK_ACCESS_FS_*`.
    pub rights: u64,
}

/// What to grant so that every path has all rights but the denied ones. Folders above a hole lack
/// the denied rights too, since a right on them would reach into the hole.
#[must_use]
pub fn grants(denied: &[DeniedPath], tree: &dyn Tree) -> Vec<Grant> {
    grants_below(vec![("/".to_owned(), ALL_RIGHTS, true)], denied, tree)
}

/// As [`grants`], where these paths have these rights and no others have any; the last says whether it is a
/// folder.
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

/// Whether `path` is `folder` or below it.
pub(super) fn is_below(path: &str, folder: &str) -> bool {
    let rest = path.strip_prefix(folder.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn names(rights: u64) -> String {
    let mut names = String::new();
    if let Some(set) = flags::FlagSet::from_name("landlock_access_fs") {
        set.format(Arch::X86_64, rights, &mut names);
    }
    names.replace("LANDLOCK_ACCESS_FS_", "").to_lowercase()
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hole { path, rights, .. } => {
                write!(f, "withhold {} on {path}", names(*rights))
            }
            Self::Only { path, rights, .. } => write!(f, "grant {} on {path}", names(*rights)),
            Self::AnyRuleset => f.write_str("a ruleset that handles files, and allows all"),
            Self::Domain => f.write_str("a domain of its own"),
            Self::ConnectPorts { first, last, .. } => {
                write!(f, "withhold connecting to TCP ports {first} to {last}")
            }
        }
    }
}
