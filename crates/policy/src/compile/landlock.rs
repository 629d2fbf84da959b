//! Rule compiler for `Landlock`: rulesets.
//!
//! Landlock only allows and never denies: a denial is a hole in the allowed set. [`grants`] computes the
//! paths to allow so that everything except the holes is allowed.

use std::fmt;

use abi::{Arch, capability, flags};
use serde_json::{Value, json};

use super::compiler::{Request, RuleCompiler, lines, strings};
pub(super) use super::landlock_grants::is_below;
pub use super::landlock_grants::{DeniedPath, DirectoryEntry, Grant, Tree, grants, grants_below};
pub use super::landlock_rights::{ALL_RIGHTS, EXECUTE, LISTING, READ_FILE};
use super::landlock_rights::{IOCTL, REFER, WRITE};
pub(super) use super::landlock_rights::{
    MAKE, MAKE_FILE, MAKE_FOLDER, MAKE_LINK, MAKE_SOCKET, READ, REMOVE, TRUNCATE, WRITE_FILE,
};
pub use super::machine::LANDLOCK_SCOPES as SCOPES;
use super::part::{Assessment, CompiledPart, lower_rule};
use super::{MachineFeatures, NameKind, caps, process_files};
use crate::enforcer::EnforcerKind;
use crate::operation::{Coverage, Operation};
use crate::pattern::Pattern;
use crate::policy::{Policy, Rule};
use crate::restriction::{
    AllowedFile, Destination, FileAccess, PortRange, PtraceAccess, PtraceScope, Restriction,
};

/// Rule compiler for `Landlock`.
pub(super) struct Compiler;

impl RuleCompiler for Compiler {
    fn assess(&self, request: &Request<'_>, names: Vec<String>) -> Assessment {
        lower(request.policy, request.rule, request.machine).assess(names, ToString::to_string)
    }

    /// The ruleset covers all names that were found.
    fn covers(&self, kind: NameKind) -> bool {
        matches!(kind, NameKind::Mount | NameKind::Layer | NameKind::Link)
    }

    fn text(&self, policy: &Policy, machine: &MachineFeatures) -> String {
        let profile = Profile::compile(policy, machine);
        let entries = lines(&profile.entries);
        format!("handles {:#x}\n{entries}", profile.handled)
    }

    fn json(&self, policy: &Policy, machine: &MachineFeatures) -> Value {
        let profile = Profile::compile(policy, machine);
        let entries = strings(&profile.entries);
        json!({ "handled_access_fs": profile.handled, "entries": entries })
    }
}

/// An entry of a ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Rights withheld from paths. A pattern stands for the files that exist when the ruleset is built.
    Hole {
        /// Id of the rule.
        rule: String,
        /// The paths.
        path: Pattern,
        /// `LANDLOCK_ACCESS_FS_*`.
        rights: u64,
        /// Set if the rule denies listing folders too, which no ruleset does.
        listing: bool,
    },
    /// A path that stays accessible where no other path is.
    Only {
        /// Id of the rule.
        rule: String,
        /// A path, or everything below a folder.
        path: Pattern,
        /// `LANDLOCK_ACCESS_FS_*`.
        rights: u64,
    },
    /// Files of processes below `/proc`, which the agent opens ([`process_files`]).
    Own {
        /// Id of the rule.
        rule: String,
        /// Below `/proc/self` or `/proc/*`.
        path: Pattern,
        /// `LANDLOCK_ACCESS_FS_*`.
        rights: u64,
    },
    /// Requires only that a ruleset on files exists.
    AnyRuleset,
    /// Requires only that a domain exists: processes outside of it are out of reach.
    Domain,
    /// Requires that abstract Unix sockets outside of the domain are out of reach.
    AbstractSockets,
    /// TCP ports to which connections are denied.
    ConnectPorts {
        /// Id of the rule.
        rule: String,
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
    },
}

/// The ruleset of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Handled rights on files: those that are withheld somewhere. The kernel checks each handled right at
    /// each open, so a right that no rule withholds is not handled. If the policy denies mounts, all rights
    /// are handled: an unhandled right would be allowed in file systems that were created but never mounted.
    pub handled: u64,
    /// The entries.
    pub entries: Vec<Entry>,
}

impl Profile {
    /// Compiles a policy.
    #[must_use]
    pub fn compile(policy: &Policy, machine: &MachineFeatures) -> Self {
        let lowered = policy.rules.iter().map(|rule| lower(policy, rule, machine));
        let entries: Vec<_> = lowered.flat_map(|lowered| lowered.entries).collect();
        let handled = entries.iter().fold(0, |sum, entry| match entry {
            Entry::Hole { rights, .. } => sum | rights | REFER,
            Entry::AnyRuleset | Entry::Only { .. } | Entry::Own { .. } => ALL_RIGHTS,
            Entry::Domain | Entry::AbstractSockets | Entry::ConnectPorts { .. } => sum,
        });
        Self { handled, entries }
    }

    /// Returns true if a domain is needed and nothing handles rights on files.
    pub(super) fn is_domain_alone(&self) -> bool {
        self.handled == 0 && self.entries.contains(&Entry::Domain)
    }
}

impl Entry {
    /// Returns true if the entry needs a ruleset that handles rights on files.
    fn is_on_files(&self) -> bool {
        match self {
            Self::Hole { .. } | Self::Only { .. } | Self::Own { .. } | Self::AnyRuleset => true,
            Self::Domain | Self::AbstractSockets | Self::ConnectPorts { .. } => false,
        }
    }
}

/// Returns true if a rule makes the ruleset of its policy handle rights on files.
pub(super) fn handles_files(policy: &Policy, rule: &Rule, machine: &MachineFeatures) -> bool {
    let lowered = lower_rule(rule, EnforcerKind::Landlock, |restriction| {
        match restriction {
            // Never on files, and its lowering asks for the other rules.
            Restriction::Ptrace { .. } => CompiledPart::default(),
            _ => lower_one(policy, rule, restriction, machine),
        }
    });
    rule.verdict.denies() && lowered.entries.iter().any(Entry::is_on_files)
}

/// Lowers a rule.
#[must_use]
pub fn lower(policy: &Policy, rule: &Rule, machine: &MachineFeatures) -> CompiledPart<Entry> {
    let mut lowered = lower_rule(rule, EnforcerKind::Landlock, |restriction| {
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
            .gap("denials are not reported: Landlock writes only to the kernel's audit log");
    }
    if lowered.entries.contains(&Entry::Domain) {
        lowered = lowered.gap("denials in /proc/PID are reported only for open and readlink");
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
        Restriction::File { path, access } => lower_file(rule, path, *access, machine),
        Restriction::Exec { path } => hole(rule, path, EXECUTE, false).gap(
            "a copy of the program, one outside PATH and the folders of programs, one in memory \
                 (memfd), and `ld.so PROGRAM` still run",
        ),
        Restriction::Disk { access } => lower_disks(rule, *access, machine),
        Restriction::Operation(operation) => lower_operation(operation),
        Restriction::Ptrace {
            scope: PtraceScope::Outside,
            access,
        } if access.trace || access.read => lower_processes(policy, *access, machine),
        Restriction::Egress {
            to: Destination::Network(network),
            ports,
        } if network.prefix_len() == 0 && !ports.is_empty() => lower_ports(rule, ports),
        Restriction::Egress { .. } => {
            CompiledPart::missing("Landlock supports ports, not addresses")
        }
        Restriction::Connect { .. } => {
            CompiledPart::missing("Landlock does not mediate connecting to a socket by path")
        }
        Restriction::Mount(_) => {
            CompiledPart::missing("Landlock denies all mounts or none; disallow-mount denies all")
        }
        Restriction::OnlyFiles(files) => lower_only_files(rule, files, machine),
        Restriction::InsideConnections => CompiledPart::missing(super::part::NEEDS_PROXY),
        Restriction::OnlyPeers(_) if rule.verdict.denies() => lower_peers(rule),
        Restriction::OnlyPeers(_) => {
            CompiledPart::missing("connections outside of a list cannot be reported only")
        }
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

/// Denies all files but these.
fn lower_only_files(
    rule: &Rule,
    files: &[AllowedFile],
    machine: &MachineFeatures,
) -> CompiledPart<Entry> {
    let allowed = process_files::lower_allowed(rule, files, machine);
    any_ruleset_breaks(allowed, ALL_RIGHTS)
        .gap("mode, owner, times and extended attributes can still be changed")
}

/// Lowers a rule on processes outside.
fn lower_processes(
    policy: &Policy,
    access: PtraceAccess,
    machine: &MachineFeatures,
) -> CompiledPart<Entry> {
    let mut lowered = CompiledPart::one(Entry::Domain);
    let mut rules = policy.rules.iter();
    if !rules.any(|rule| handles_files(policy, rule, machine)) {
        lowered = match machine.scopes_signals() {
            true => lowered.breaks("signals to processes outside"),
            // A domain needs a ruleset that handles something, and before scopes that is files.
            false => files_breaks(lowered, ALL_RIGHTS),
        };
    }
    if !(access.trace && access.read) {
        lowered = lowered.breaks(OUTSIDE_BREAKS);
    }
    match drops_sys_admin(policy) {
        true => lowered,
        false => lowered.gap(
            "/proc/PID/environ of others can be read with CAP_PERFMON, which Caps drops, and \
                     with CAP_SYS_ADMIN; add disable-cap-sys-admin",
        ),
    }
}

fn lower_ports(rule: &Rule, ports: &[PortRange]) -> CompiledPart<Entry> {
    CompiledPart::many(ports.iter().map(|range| Entry::ConnectPorts {
        rule: rule.id.clone(),
        first: range.first,
        last: range.last,
    }))
    .gap("UDP, multipath TCP and TCP fast open are not covered")
    .breaks("connections to these ports at any address")
}

/// Denies whatever a process could connect to by itself: allowed peers are connected for it.
fn lower_peers(rule: &Rule) -> CompiledPart<Entry> {
    let ports = Entry::ConnectPorts {
        rule: rule.id.clone(),
        first: 0,
        last: u16::MAX,
    };
    CompiledPart::many([ports, Entry::AbstractSockets]).gap(
        "UDP, multipath TCP, TCP fast open and Unix sockets with a path are not covered; Seccomp refuses them",
    )
}

/// Hooks at which any ruleset on files denies every request: changes of the mount tree
/// (security/landlock/fs.c).
const HOOKS: [&str; 5] = [
    "move_mount",
    "sb_mount",
    "sb_pivotroot",
    "sb_remount",
    "sb_umount",
];

/// The part of an operation that any ruleset denies.
pub(super) fn coverage(operation: &Operation) -> Coverage {
    operation.coverage(|hook| HOOKS.contains(&hook))
}

fn lower_operation(operation: &Operation) -> CompiledPart<Entry> {
    let coverage = coverage(operation);
    match coverage.calls.is_empty() {
        true => CompiledPart::missing("Landlock has no right for it"),
        false => {
            let lowered = CompiledPart {
                gaps: coverage.gaps,
                ..CompiledPart::one(Entry::AnyRuleset)
            };
            any_ruleset_breaks(lowered, ALL_RIGHTS)
        }
    }
}

/// Returns true if the policy drops CAP_SYS_ADMIN, and with it everything that CAP_PERFMON allows.
fn drops_sys_admin(policy: &Policy) -> bool {
    let number = capability::from_name("sys_admin");
    let dropped = caps::Profile::compile(policy).dropped;
    let is_dropped = number.is_some_and(|number| dropped.contains(number));
    policy.enforcers.contains(EnforcerKind::Caps) && is_dropped
}

fn hole(rule: &Rule, path: &Pattern, rights: u64, listing: bool) -> CompiledPart<Entry> {
    let lowered = CompiledPart::one(Entry::Hole {
        rule: rule.id.clone(),
        path: path.clone(),
        rights,
        listing,
    });
    let mut lowered = any_ruleset_breaks(lowered, rights);
    for text in hole_breaks(rights) {
        lowered = lowered.breaks(text);
    }
    match path.literal().or_else(|| path.subtree()) {
        Some(_) => lowered,
        // The planner searches for these files and skips file systems that the kernel generates.
        None if path.fixed_prefix() == "/" => lowered.gap(
            "files of that name that are created later, or are in /proc, /sys or another view of the \
             kernel but those of control groups",
        ),
        None => lowered.gap("files of that name that are created later"),
    }
}

/// Adds what a ruleset that handles these rights on files stops, whatever it grants.
fn any_ruleset_breaks(part: CompiledPart<Entry>, rights: u64) -> CompiledPart<Entry> {
    files_breaks(part, rights).breaks(OUTSIDE_BREAKS)
}

/// Adds what handling these rights on files stops.
fn files_breaks(part: CompiledPart<Entry>, rights: u64) -> CompiledPart<Entry> {
    let part = part.breaks("mounting and unmounting anything");
    // The file system of message queues is mounted nowhere: no path to it can be granted.
    match rights & (READ | WRITE) {
        0 => part,
        _ => part.breaks("POSIX message queues (mq_open)"),
    }
}

/// What any domain stops.
const OUTSIDE_BREAKS: &str = "tracing and inspecting processes outside of the policy";

/// What withholding these rights from a path stops besides. The folders above a hole have no grant, because
/// it would extend into the hole: what is made in them later gets none either.
fn hole_breaks(rights: u64) -> impl Iterator<Item = &'static str> {
    let table = [
        (
            READ,
            "reading files that are made later directly in a folder above what is denied",
        ),
        (
            IOCTL,
            "ioctl(2) of devices that are made later directly in a folder above what is denied",
        ),
        (
            WRITE,
            "making, removing and renaming files directly in a folder above what is denied",
        ),
        (
            EXECUTE,
            "executing files that are made later directly in a folder above what is denied",
        ),
    ];
    let withheld = table.into_iter().filter(move |(of, _)| rights & of != 0);
    withheld.map(|(_, text)| text)
}

/// The gap of a rule that denies listing folders, if it may be about one. A path without wildcards is looked up
/// where the files of the process are known ([`NameKind::Listing`]); built-in rules name folders by `/**`.
fn listing_gap(rule: &Rule, path: &Pattern, machine: &MachineFeatures) -> Option<String> {
    let why = "without that right, the folders above could not be listed either";
    match path.literal() {
        None if path.subtree().is_some() => Some(format!("folders can still be listed: {why}")),
        None => Some(format!("folders of that name can still be listed: {why}")),
        Some(path) if machine.is_elsewhere && rule.builtin().is_none() => Some(format!(
            "{path} can still be listed if it is a folder: {why}"
        )),
        Some(_) => None,
    }
}

fn lower_file(
    rule: &Rule,
    path: &Pattern,
    access: FileAccess,
    machine: &MachineFeatures,
) -> CompiledPart<Entry> {
    let prefix = path.fixed_prefix();
    if prefix.starts_with("/proc/") {
        return CompiledPart::missing(
            "an exception in /proc would deny /proc/PID of every later process",
        );
    }
    let names_are_public = rule.builtin().is_some_and(|rule| rule.names_are_public);
    let listing = access.read && !names_are_public;
    let mut lowered = hole(rule, path, withheld(access), listing);
    let gap = listing_gap(rule, path, machine).filter(|_| listing);
    lowered.gaps.extend(gap);
    match access.write || access.append {
        false => lowered,
        true => lowered.gap("mode, owner, times and extended attributes can still be changed"),
    }
}

/// The Landlock rights of a kind of access.
pub(super) fn rights(access: FileAccess) -> u64 {
    let mut rights = 0;
    if access.read {
        rights |= READ;
    }
    if access.contents {
        rights |= READ_FILE;
    }
    if access.write || access.append {
        rights |= WRITE;
    }
    rights
}

/// The rights to withhold for a kind of access. Listing is never withheld: the folders above a hole lack what
/// the hole lacks, and programs list those (`ls /`).
fn withheld(access: FileAccess) -> u64 {
    rights(access) & !LISTING
}

fn lower_disks(rule: &Rule, access: FileAccess, machine: &MachineFeatures) -> CompiledPart<Entry> {
    let rights = IOCTL | withheld(access);
    let paths = machine
        .disks
        .iter()
        .filter_map(|name| Pattern::parse(&format!("/dev/{name}")).ok());
    let mut lowered = CompiledPart::default();
    for path in paths {
        lowered.add(hole(rule, &path, rights, false));
    }
    match lowered.entries.is_empty() {
        true => CompiledPart::missing("no disk found on this machine"),
        false => lowered.gap(
            "device files with other names; add disable-cap-mknod, which denies creating them",
        ),
    }
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
            Self::Own { path, rights, .. } => {
                write!(f, "the agent opens {path} ({})", names(*rights))
            }
            Self::AnyRuleset => f.write_str("a ruleset that handles files, and allows all"),
            Self::Domain => f.write_str("a domain of its own"),
            Self::AbstractSockets => f.write_str("no abstract Unix sockets of others"),
            Self::ConnectPorts { first, last, .. } => {
                write!(f, "withhold connecting to TCP ports {first} to {last}")
            }
        }
    }
}
