//! Classifier for denials that the kernel does not report: those of Landlock, and those for lack of a
//! capability.
//!
//! Three conditions together identify a denied call: a rule of this kind can affect it, so that the filter
//! traps it ([`DenialClassifier::calls`]); it failed with an error of such a denial; and a rule withholds
//! what it requested ([`DenialClassifier::classify`]). The kernel makes the call and decides, not the
//! observer: reports can be incomplete, denials cannot.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use abi::{Capabilities, Errno, RegisterTest, Syscall, TestOp};

use super::landlock::{
    self, DeniedPath, EXECUTE, Entry, Grant, LISTING, MAKE, MAKE_FILE, MAKE_FOLDER, MAKE_LINK,
    MAKE_SOCKET, READ, REMOVE, TRUNCATE, WRITE_FILE, is_below,
};
use super::seccomp::{Action, CallRule, without_rings};
use super::{MachineFeatures, caps, process_files};
use crate::enforcer::EnforcerKind;
use crate::operation::{OperationCall, read_call, read_capabilities};
use crate::pattern::Pattern;
use crate::policy::{Policy, Rule, RuleAction};
use crate::restriction::Restriction;

/// A failed system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt<'a> {
    /// The system call.
    pub call: Syscall,
    /// Register arguments, in the order of x86-64.
    pub args: [u64; 6],
    /// The error of the call.
    pub errno: Errno,
    /// The files that the call names, resolved; for an exec, then the interpreters of a script and the loader.
    pub paths: &'a [NamedFile],
    /// The TCP port of a connection attempt.
    pub port: Option<u16>,
    /// Set if the caller is the user whose processes hold capabilities.
    pub is_root: bool,
    /// Capabilities that the caller would lack without the policy too.
    pub lacked: Capabilities,
    /// For a move or link: whether both names are on one mount. `None` if that is unknown.
    pub is_one_mount: Option<bool>,
}

/// A file that a call names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Absolute path, with links followed as the call follows them.
    pub path: String,
    /// The kind of file at the path.
    pub is: PathKind,
}

/// The kind of file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// No file exists.
    Missing,
    /// A folder.
    Folder,
    /// Any other file.
    File,
    /// The kind could not be determined.
    Unknown,
}

/// The file that a denied call was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedObject {
    /// Absolute path.
    pub path: String,
    /// What was wanted of it: `read`, `write` or `exec`.
    pub access: &'static str,
}

/// The rule and enforcer that denied a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenialCause<'a> {
    /// The rule.
    pub rule: &'a str,
    /// The enforcer.
    pub enforcer: EnforcerKind,
}

/// Classifies failed calls as denials by rules that request reports, for enforcers that do not report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DenialClassifier {
    pub(super) holes: Vec<(String, Pattern, u64)>,
    pub(super) only: Vec<(String, Pattern, u64)>,
    /// Files of processes that the agent opens.
    pub(super) own: Vec<(String, Pattern, u64)>,
    pub(super) ports: Vec<(String, u16, u16)>,
    /// Mount and unmount calls by rule. `any_ruleset` is the first rule on files, under which both fail too.
    pub(super) mounts: Vec<(String, Syscall)>,
    pub(super) any_ruleset: Option<String>,
    pub(super) domains: Vec<String>,
    pub(super) capabilities: Vec<(String, Capabilities)>,
    /// Set if processes of any user hold the capabilities.
    pub(super) of_any_user: bool,
    pub(super) handled: u64,
    pub(super) ruleset: Option<Ruleset>,
}

/// The ruleset that was actually loaded into the kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ruleset {
    pub(super) denied: Vec<(String, DeniedPath)>,
    pub(super) granted: BTreeMap<String, u64>,
}

const EPERM: Errno = Errno(1);
const EACCES: Errno = Errno(13);
/// Landlock refuses moves to another folder as if it were another file system.
const EXDEV: Errno = Errno(18);

/// What a call on files does with the files that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileAction {
    /// Opens; the index of the argument with the flags.
    Open(u8),
    /// Opens as a structure in memory specifies.
    OpenSomehow,
    Create,
    Execute,
    Truncate,
    Remove,
    Make(u64),
    /// Moves or links from the first to the second.
    Move,
    /// Reads a link.
    Follow,
}

const DEEDS: [(Syscall, FileAction); 25] = [
    (Syscall::OPEN, FileAction::Open(1)),
    (Syscall::OPENAT, FileAction::Open(2)),
    (Syscall::OPENAT2, FileAction::OpenSomehow),
    (Syscall::CREAT, FileAction::Create),
    (Syscall::EXECVE, FileAction::Execute),
    (Syscall::EXECVEAT, FileAction::Execute),
    (Syscall::TRUNCATE, FileAction::Truncate),
    (Syscall::UNLINK, FileAction::Remove),
    (Syscall::UNLINKAT, FileAction::Remove),
    (Syscall::RMDIR, FileAction::Remove),
    (Syscall::MKDIR, FileAction::Make(MAKE_FOLDER)),
    (Syscall::MKDIRAT, FileAction::Make(MAKE_FOLDER)),
    (Syscall::MKNOD, FileAction::Make(MAKE)),
    (Syscall::MKNODAT, FileAction::Make(MAKE)),
    (Syscall::SYMLINK, FileAction::Make(MAKE_LINK)),
    (Syscall::SYMLINKAT, FileAction::Make(MAKE_LINK)),
    (Syscall::BIND, FileAction::Make(MAKE_SOCKET)),
    (Syscall::LINK, FileAction::Move),
    (Syscall::LINKAT, FileAction::Move),
    (Syscall::RENAME, FileAction::Move),
    (Syscall::RENAMEAT, FileAction::Move),
    (Syscall::RENAMEAT2, FileAction::Move),
    (Syscall::READLINK, FileAction::Follow),
    (Syscall::READLINKAT, FileAction::Follow),
    // Variants with the same effect (`truncate64`) are found by this entry.
    (Syscall::USELIB, FileAction::Execute),
];

/// Flags of open(2) (include/uapi/asm-generic/fcntl.h).
const ACCESS_MODE: u64 = 3;
const READ_ONLY: u64 = 0;
const WRITE_ONLY: u64 = 1;
const CREATES: u64 = 0o100;
const EXCLUSIVE: u64 = 0o200;
const TRUNCATES: u64 = 0o1000;
/// `O_TMPFILE` with the `O_DIRECTORY` in it.
const NAMELESS: u64 = 0o20_200_000;
const PATH_ONLY: u64 = 0o10_000_000;
/// `RENAME_EXCHANGE` of renameat2(2).
const EXCHANGES: u64 = 2;

/// Calls that inspect another process.
const LOOKS: [Syscall; 5] = [
    Syscall::PTRACE,
    Syscall::PROCESS_VM_READV,
    Syscall::PROCESS_VM_WRITEV,
    Syscall::PIDFD_GETFD,
    Syscall::KCMP,
];

impl DenialClassifier {
    /// Builds the classifier for a policy with the choice of its enforcers; empty if the host cannot observe failed calls.
    pub(super) fn compile(policy: &Policy, machine: &MachineFeatures) -> Self {
        let mut found = Self {
            of_any_user: !machine.is_root,
            ..Self::default()
        };
        if !machine.watches {
            return found;
        }
        let has = |enforcer| policy.enforcers.contains(enforcer);
        let rules = policy.rules.iter();
        for rule in rules.filter(|rule| rule.verdict == RuleAction::DenyAudit) {
            if has(EnforcerKind::Landlock) {
                found.add_landlock(policy, rule, machine);
            }
            if let (true, Some(held)) = (has(EnforcerKind::Caps), machine.held) {
                let dropped = caps::lower(policy, rule, machine).entries.into_iter();
                let dropped = dropped.fold(0, |sum, caps::Drop(set)| sum | set.0);
                let lost = Capabilities(dropped & held.0);
                if lost.0 != 0 {
                    found.capabilities.push((rule.id.clone(), lost));
                }
            }
        }
        if has(EnforcerKind::Landlock) {
            found.handled = landlock::Profile::compile(policy, machine).handled;
        }
        found
    }

    fn add_landlock(&mut self, policy: &Policy, rule: &Rule, machine: &MachineFeatures) {
        for entry in landlock::lower(policy, rule, machine).entries {
            match entry {
                Entry::Hole {
                    rule, path, rights, ..
                } => self.holes.push((rule, path, rights)),
                Entry::Only { rule, path, rights } => self.only.push((rule, path, rights)),
                Entry::Own { rule, path, rights } => self.own.push((rule, path, rights)),
                Entry::ConnectPorts { rule, first, last } => self.ports.push((rule, first, last)),
                Entry::Domain => self.domains.push(rule.id.clone()),
                Entry::AnyRuleset => self.add_mounts(rule),
                // Whoever holds the call decides and reports.
                Entry::AbstractSockets => {}
            }
        }
        let on_files = !self.holes.is_empty() || !self.only.is_empty();
        if on_files && self.any_ruleset.is_none() {
            self.any_ruleset = Some(rule.id.clone());
        }
    }

    fn add_mounts(&mut self, rule: &Rule) {
        for restriction in &rule.restrictions {
            if let Restriction::Operation(operation) = restriction {
                let calls = landlock::coverage(operation).calls.into_iter();
                self.mounts
                    .extend(calls.map(|call| (rule.id.clone(), call)));
            }
        }
    }

    /// Adds the loaded ruleset: withheld rights by rule, and granted rights. Without it, only files that a
    /// rule names are classified, and not those that lose rights as a side effect.
    #[must_use]
    pub fn with_ruleset(mut self, denied: Vec<(String, DeniedPath)>, granted: &[Grant]) -> Self {
        let mut ruleset = Ruleset {
            denied,
            granted: BTreeMap::new(),
        };
        for grant in granted {
            *ruleset.granted.entry(grant.path.clone()).or_default() |= grant.rights;
        }
        self.ruleset = Some(ruleset);
        self
    }

    /// Returns true if no denial can be classified.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rights() == 0
            && self.ports.is_empty()
            && self.mounts.is_empty()
            && self.domains.is_empty()
            && self.capabilities.is_empty()
    }

    /// The union of the rights that rules withhold.
    fn rights(&self) -> u64 {
        match self.only.is_empty() {
            true => self.holes.iter().fold(0, |sum, (.., rights)| sum | rights),
            false => landlock::ALL_RIGHTS,
        }
    }

    /// The calls to trap and to inspect after they return. io_uring would hide some of them, and is refused.
    #[must_use]
    pub fn calls(&self) -> Vec<CallRule> {
        let mut found: Vec<CallRule> = Vec::new();
        let mut add = |rule: &str, call: Syscall, when: Vec<RegisterTest>| {
            let is_there = found
                .iter()
                .any(|other| other.call == call && (other.when.is_empty() || other.when == when));
            if !is_there {
                if when.is_empty() {
                    found.retain(|other| other.call != call);
                }
                found.push(CallRule {
                    rule: rule.to_owned(),
                    call,
                    when,
                    action: Action::Watch,
                });
            }
        };
        self.file_calls(&mut add);
        for (rule, ..) in &self.ports {
            add(rule, Syscall::CONNECT, Vec::new());
        }
        for (rule, call) in &self.mounts {
            add(rule, *call, Vec::new());
        }
        for rule in &self.domains {
            LOOKS.iter().for_each(|call| add(rule, *call, Vec::new()));
            for (call, deed) in &DEEDS {
                match deed {
                    FileAction::Open(flags) => add(rule, *call, vec![not_by_path_alone(*flags)]),
                    FileAction::OpenSomehow | FileAction::Follow => add(rule, *call, Vec::new()),
                    _ => {}
                }
            }
        }
        for (rule, set) in &self.capabilities {
            for asked in CAPABLE.iter().filter(|entry| entry.set.0 & set.0 != 0) {
                for entry in &asked.calls {
                    add(rule, entry.call, entry.tests.clone());
                }
            }
        }
        let variants: Vec<_> = found.iter().flat_map(variants).collect();
        found.extend(variants);
        self.guard(&mut found);
        found
    }

    fn file_calls(&self, add: &mut dyn FnMut(&str, Syscall, Vec<RegisterTest>)) {
        let rights = self.rights();
        let first = self.holes.first().or(self.only.first());
        let Some((rule, ..)) = first else {
            return;
        };
        for (call, deed) in DEEDS {
            match deed {
                FileAction::Open(flags) if rights & READ != 0 => {
                    add(rule, call, vec![not_by_path_alone(flags)]);
                }
                FileAction::Open(flags) if rights & (WRITE_FILE | TRUNCATE | MAKE_FILE) != 0 => {
                    let changes = ACCESS_MODE | CREATES | TRUNCATES;
                    let changes = RegisterTest::low(flags, TestOp::AnyBit, changes);
                    add(rule, call, vec![changes, not_by_path_alone(flags)]);
                }
                FileAction::Follow => {}
                deed if deed.rights([0; 6], PathKind::Unknown) & rights != 0
                    || deed == FileAction::Move =>
                {
                    add(rule, call, Vec::new());
                }
                _ => {}
            }
        }
        if let Some(rule) = &self.any_ruleset {
            for call in [
                Syscall::MOUNT,
                Syscall::UMOUNT2,
                Syscall::MOVE_MOUNT,
                Syscall::PIVOT_ROOT,
            ] {
                add(rule, call, Vec::new());
            }
        }
    }

    fn guard(&self, found: &mut Vec<CallRule>) {
        let Some(rule) = found.first().map(|rule| rule.rule.clone()) else {
            return;
        };
        found.extend(without_rings(&rule));
    }

    /// Returns true if a call that failed with `errno` may have been denied.
    #[must_use]
    pub fn may_be(&self, errno: Errno) -> bool {
        matches!(errno, EPERM | EACCES | EXDEV)
    }

    /// The rule that denied a failed call, if any.
    #[must_use]
    pub fn classify(&self, attempt: &Attempt<'_>) -> Option<DenialCause<'_>> {
        if !self.may_be(attempt.errno) {
            return None;
        }
        let by = |enforcer| move |rule| DenialCause { rule, enforcer };
        let landlock = self
            .mount(attempt)
            .or_else(|| self.connection(attempt))
            .or_else(|| self.look(attempt))
            .or_else(|| self.file(attempt));
        landlock
            .map(by(EnforcerKind::Landlock))
            .or_else(|| self.capability(attempt).map(by(EnforcerKind::Caps)))
    }

    /// Returns true if the policy may allow files that the agent opens for a caller.
    #[must_use]
    pub fn opens_files(&self) -> bool {
        !self.own.is_empty() || !self.only.is_empty()
    }

    /// Returns true if a nameless file (`O_TMPFILE`) may be made in a folder, as a call asks for it: the policy names the
    /// folder itself for writing. Landlock would need a rule that is for all files in it.
    #[must_use]
    pub fn makes_nameless(&self, call: Syscall, args: [u64; 6], folder: &str) -> bool {
        let Some(deed @ FileAction::Open(flags)) = deed(call.base()) else {
            return false;
        };
        let is_nameless = args[usize::from(flags)] & NAMELESS == NAMELESS;
        let rights = deed.rights(args, PathKind::File);
        let is_allowed = |(_, pattern, allowed): &(String, Pattern, u64)| {
            rights & !allowed == 0 && pattern.literal() == Some(folder)
        };
        let inside = format!("{folder}/.");
        let is_denied = [folder, &inside]
            .iter()
            .any(|path| self.hole(path, rights).is_some());
        is_nameless && !is_denied && self.only.iter().any(is_allowed)
    }

    /// Returns true if the agent opens `/proc/self/...` or `/proc/NUMBER/...`, as a call asks for it.
    #[must_use]
    pub fn opens_own_file(&self, call: Syscall, args: [u64; 6], named: &NamedFile) -> bool {
        let Some(deed @ FileAction::Open(flags)) = deed(call.base()) else {
            return false;
        };
        let rights = deed.rights(args, named.is);
        let is_plain = args[usize::from(flags)] & (EXCLUSIVE | PATH_ONLY) == 0;
        let is_allowed = |(_, pattern, allowed): &(String, Pattern, u64)| {
            rights & !allowed == 0 && pattern.matches(&named.path)
        };
        // A denial may name the caller's own files by a number.
        let numbered = named.path.replacen("/proc/self/", "/proc/1/", 1);
        let is_denied = [&named.path, &numbered]
            .iter()
            .any(|path| self.hole(path, rights).is_some());
        is_plain
            && !is_denied
            && process_files::is_served(&named.path, rights)
            && self.own.iter().any(is_allowed)
    }

    fn mount(&self, attempt: &Attempt<'_>) -> Option<&str> {
        if attempt.errno != EPERM {
            return None;
        }
        let call = attempt.call.base();
        let own = self.mounts.iter().find(|(_, own)| own.base() == call);
        let is_one = matches!(
            call,
            Syscall::MOUNT | Syscall::UMOUNT2 | Syscall::MOVE_MOUNT | Syscall::PIVOT_ROOT
        );
        let aside = || {
            let rule = self.any_ruleset.as_deref();
            rule.filter(|_| is_one && (attempt.is_root || self.of_any_user))
        };
        own.map(|(rule, _)| rule.as_str()).or_else(aside)
    }

    fn connection(&self, attempt: &Attempt<'_>) -> Option<&str> {
        if attempt.errno != EACCES || attempt.call.base() != Syscall::CONNECT {
            return None;
        }
        let port = attempt.port?;
        let mut ports = self.ports.iter();
        let found = ports.find(|(_, first, last)| (*first..=*last).contains(&port));
        found.map(|(rule, ..)| rule.as_str())
    }

    /// Classifies an attempt to inspect a process outside.
    fn look(&self, attempt: &Attempt<'_>) -> Option<&str> {
        let rule = self.domains.first()?;
        let call = attempt.call.base();
        let by_call = attempt.errno == EPERM && LOOKS.iter().any(|own| own.base() == call);
        let opens = deed(call).is_some_and(|deed| {
            matches!(
                deed,
                FileAction::Open(_) | FileAction::OpenSomehow | FileAction::Follow
            )
        });
        let mut paths = attempt.paths.iter();
        let by_path = opens && paths.any(|named| is_of_a_process(&named.path));
        (by_call || by_path).then_some(rule.as_str())
    }

    fn file(&self, attempt: &Attempt<'_>) -> Option<&str> {
        let deed = deed(attempt.call.base())?;
        if attempt.errno == EPERM {
            return None;
        }
        if attempt.errno == EXDEV {
            return self
                .reparenting(attempt)
                .filter(|_| deed == FileAction::Move);
        }
        let mut named = attempt.paths.iter();
        named.find_map(|named| self.withholding(named, self.wanted(deed, attempt, named)))
    }

    fn wanted(&self, deed: FileAction, attempt: &Attempt<'_>, named: &NamedFile) -> u64 {
        deed.rights(attempt.args, named.is) & self.handled
    }

    /// The rule that withholds one of the `wanted` rights at a file.
    fn withholding(&self, named: &NamedFile, wanted: u64) -> Option<&str> {
        self.hole(&named.path, wanted)
            .or_else(|| self.outside(&named.path, wanted))
            .or_else(|| self.aside(named, wanted))
    }

    /// Returns true if the rule is a list of the only files, and names none that it denies.
    #[must_use]
    pub fn is_list(&self, rule: &str) -> bool {
        self.only.iter().any(|(own, ..)| own == rule)
    }

    /// The file that a denied call was about: the first of which something is withheld.
    #[must_use]
    pub fn object(&self, attempt: &Attempt<'_>) -> Option<DeniedObject> {
        let deed = deed(attempt.call.base())?;
        let mut each = attempt.paths.iter().filter_map(|named| {
            let wanted = self.wanted(deed, attempt, named);
            let mut kinds = [("exec", EXECUTE), ("write", WRITES), ("read", READ)];
            if matches!(deed, FileAction::OpenSomehow) {
                // It may have wanted all: the least that is withheld is what it certainly lacked.
                kinds.reverse();
            }
            let mut kinds = kinds.into_iter().filter(|(_, rights)| wanted & rights != 0);
            let found =
                kinds.find(|(_, rights)| self.withholding(named, wanted & rights).is_some());
            found.map(|(access, _)| DeniedObject {
                path: named.path.clone(),
                access,
            })
        });
        let whole = || {
            attempt.paths.first().map(|named| DeniedObject {
                path: named.path.clone(),
                access: deed.access(attempt.args),
            })
        };
        each.next().or_else(whole)
    }

    /// A rule that withholds one of the `wanted` rights at a path.
    fn hole(&self, path: &str, wanted: u64) -> Option<&str> {
        let mut holes = self.holes.iter();
        let found =
            holes.find(|(_, pattern, rights)| rights & wanted != 0 && covers(pattern, path));
        found.map(|(rule, ..)| rule.as_str())
    }

    /// A rule that grants less than `wanted` at a path, if only some files are accessible.
    fn outside(&self, path: &str, wanted: u64) -> Option<&str> {
        let (rule, ..) = self.only.first().filter(|_| wanted != 0)?;
        let mut only = self.only.iter();
        let is_granted =
            only.any(|(_, pattern, rights)| rights & wanted == wanted && covers(pattern, path));
        (!is_granted).then_some(rule.as_str())
    }

    /// The rule that denied a move or link to another folder. Between mounts the kernel answers the same error before it asks
    /// Landlock.
    fn reparenting(&self, attempt: &Attempt<'_>) -> Option<&str> {
        if attempt.is_one_mount == Some(false) {
            return None;
        }
        // A move must not give access that is withheld at one of its paths.
        let mut paths = attempt.paths.iter();
        let hole = paths.find_map(|named| self.hole(&named.path, u64::MAX));
        let list = || {
            // No option for files would help against another mount.
            let is_by_list = attempt.is_one_mount == Some(true) && self.gains(attempt);
            let (rule, ..) = self.only.first().filter(|_| is_by_list)?;
            Some(rule.as_str())
        };
        hole.or_else(list)
    }

    /// Returns true if a move or link would give a file more rights than it has.
    fn gains(&self, attempt: &Attempt<'_>) -> bool {
        let [from, to] = attempt.paths else {
            return false;
        };
        let exchanges =
            attempt.call.base() == Syscall::RENAMEAT2 && attempt.args[4] & EXCHANGES != 0;
        // Another name in the same folder changes no right.
        parent(&from.path) != parent(&to.path)
            && (self.gains_at(from, &to.path) || exchanges && self.gains_at(to, &from.path))
    }

    /// Returns true if a file would have more rights at another path.
    fn gains_at(&self, file: &NamedFile, path: &str) -> bool {
        let counted = match file.is {
            // Rights on what is in a folder are nothing to a file.
            PathKind::File => ON_ITSELF & !LISTING,
            PathKind::Folder | PathKind::Missing | PathKind::Unknown => u64::MAX,
        };
        // What is granted to a file that has the new name now goes with that file: the folder decides.
        self.granted(parent(path)) & !self.granted(&file.path) & counted != 0
    }

    /// The rights that lists of the only files grant at a path.
    fn granted(&self, path: &str) -> u64 {
        let only = self.only.iter();
        let at_path = only.filter(|(_, pattern, _)| covers(pattern, path));
        at_path.fold(0, |sum, (.., rights)| sum | rights)
    }

    /// A rule for whose sake the folder has fewer grants, because a withheld path lies below it.
    fn aside(&self, named: &NamedFile, wanted: u64) -> Option<&str> {
        let ruleset = self.ruleset.as_ref()?;
        let parent = parent(&named.path);
        let is_in_folder = wanted & !(ON_ITSELF) != 0 && named.is != PathKind::Folder;
        let place = if is_in_folder { parent } else { &named.path };
        let missing = wanted & !ruleset.granted_at(place);
        let mut denied = ruleset.denied.iter();
        let (rule, _) =
            denied.find(|(_, hole)| hole.rights & missing != 0 && is_below(&hole.path, parent))?;
        let mut holes = self.holes.iter();
        holes.any(|(own, ..)| own == rule).then_some(rule.as_str())
    }

    fn capability(&self, attempt: &Attempt<'_>) -> Option<&str> {
        if attempt.errno == EXDEV || !(attempt.is_root || self.of_any_user) {
            return None;
        }
        let asks = |set: &Capabilities| {
            CAPABLE.iter().any(|entry| {
                entry.set.0 & set.0 & !attempt.lacked.0 != 0
                    && entry.calls.iter().any(|call| is_meant(call, attempt))
            })
        };
        let mut own = self.capabilities.iter();
        own.find(|(_, set)| asks(set))
            .map(|(rule, _)| rule.as_str())
    }
}

impl Ruleset {
    /// The rights granted at a path, by rules on the path and on folders above.
    fn granted_at(&self, path: &str) -> u64 {
        let above = std::iter::successors(Some(path), |path| (*path != "/").then(|| parent(path)));
        above.fold(0, |rights, path| {
            rights | self.granted.get(path).copied().unwrap_or(0)
        })
    }
}

/// Rights that change something.
const WRITES: u64 = WRITE_FILE | TRUNCATE | MAKE | REMOVE;

/// Rights that are checked at the file itself; all others are checked at its folder.
const ON_ITSELF: u64 = EXECUTE | READ | WRITE_FILE | TRUNCATE;

impl FileAction {
    /// What a call wants of a file, if no rule says more.
    fn access(self, args: [u64; 6]) -> &'static str {
        match self {
            Self::Execute => "exec",
            Self::Follow => "read",
            Self::Open(position) if args[usize::from(position)] & ACCESS_MODE == READ_ONLY => {
                "read"
            }
            _ => "write",
        }
    }

    /// The rights that a call requests for a file of this kind.
    fn rights(self, args: [u64; 6], is: PathKind) -> u64 {
        let read = match is {
            PathKind::Folder => LISTING,
            PathKind::File => READ & !LISTING,
            PathKind::Missing | PathKind::Unknown => READ,
        };
        let made = match is {
            PathKind::Missing | PathKind::Unknown => MAKE_FILE,
            PathKind::Folder | PathKind::File => 0,
        };
        match self {
            Self::Open(position) => {
                let flags = args[usize::from(position)];
                let mut rights = match flags & ACCESS_MODE {
                    READ_ONLY => read,
                    WRITE_ONLY => WRITE_FILE,
                    _ => read | WRITE_FILE,
                };
                if flags & CREATES != 0 {
                    rights |= made;
                }
                if flags & TRUNCATES != 0 {
                    rights |= TRUNCATE;
                }
                rights
            }
            Self::OpenSomehow => read | WRITE_FILE | TRUNCATE | made,
            Self::Create => WRITE_FILE | TRUNCATE | made,
            Self::Execute => EXECUTE,
            Self::Truncate => TRUNCATE,
            Self::Remove => REMOVE,
            Self::Make(rights) => rights,
            Self::Move => REMOVE | MAKE,
            Self::Follow => 0,
        }
    }
}

fn deed(call: Syscall) -> Option<FileAction> {
    let mut deeds = DEEDS.iter();
    deeds.find(|(own, _)| *own == call).map(|(_, deed)| *deed)
}

/// Excludes `O_PATH`: a descriptor that only stands for a path requests no right.
fn not_by_path_alone(flags: u8) -> RegisterTest {
    RegisterTest::low(flags, TestOp::NoBit, PATH_ONLY)
}

/// The rule for all calls with the same effect (`truncate64`).
fn variants(rule: &CallRule) -> impl Iterator<Item = CallRule> {
    let own = rule.call;
    let others = Syscall::all().filter(move |call| call.alias_of() == Some(own));
    others.map(|call| CallRule {
        call,
        ..rule.clone()
    })
}

/// Returns true if a pattern matches a path or a folder above it.
fn covers(pattern: &Pattern, path: &str) -> bool {
    let above = std::iter::successors(Some(path), |path| (*path != "/").then(|| parent(path)));
    let whole = pattern.subtree().is_some_and(|folder| folder == path);
    whole || above.into_iter().any(|path| pattern.matches(path))
}

fn parent(path: &str) -> &str {
    match path.rfind('/') {
        None | Some(0) => "/",
        Some(end) => &path[..end],
    }
}

/// Returns true for `/proc/NUMBER/...`.
fn is_of_a_process(path: &str) -> bool {
    let rest = path
        .strip_prefix("/proc/")
        .and_then(|rest| rest.split_once('/'));
    rest.is_some_and(|(number, _)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// A call that requests a capability.
#[derive(Debug, Default, PartialEq)]
struct CapabilityUse {
    set: Capabilities,
    calls: Vec<OperationCall>,
    misses: Vec<String>,
}

static CAPABLE: LazyLock<Vec<CapabilityUse>> = LazyLock::new(|| {
    read(include_str!("../../data/capable.txt")).expect("a unit test reads the same file")
});

/// Descriptions of denials for lack of these capabilities that are not reported.
pub(super) fn misses(set: Capabilities) -> BTreeSet<&'static str> {
    let entries = CAPABLE.iter();
    let meant = entries.filter(|entry| entry.set.0 & set.0 != 0);
    meant
        .flat_map(|entry| &entry.misses)
        .map(String::as_str)
        .collect()
}

fn is_meant(asked: &OperationCall, attempt: &Attempt<'_>) -> bool {
    asked.call.base() == attempt.call.base()
        && asked.tests.iter().all(|test| test.holds(&attempt.args))
}

fn read(text: &str) -> Result<Vec<CapabilityUse>, String> {
    let mut table: Vec<CapabilityUse> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        let wrong = |problem: String| format!("line {}: {problem}", number + 1);
        match (key, table.last_mut()) {
            ("capability", _) => {
                let words: Vec<&str> = value.split(' ').collect();
                table.push(CapabilityUse {
                    set: read_capabilities(&words).map_err(wrong)?,
                    ..CapabilityUse::default()
                });
            }
            ("call", Some(entry)) => entry.calls.push(read_call(value).map_err(wrong)?),
            ("misses", Some(entry)) => entry.misses.push(value.to_owned()),
            _ => return Err(wrong(format!("`{key}` is unknown here"))),
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
