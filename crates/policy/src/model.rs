//! The behaviour model of a workload, and advice on the rules that the workload tolerates.

mod action;
mod classes;
mod exchange;

pub use self::action::WorkloadAction;
pub use self::exchange::{Unrecorded, WILDCARDS};

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::LazyLock;

use abi::{Arch, Capabilities, Errno, Syscall};

use crate::builtin::{self, Builtin, Class};
use crate::compile::seccomp::{Action, CallRule, Profile, lower};
use crate::compile::{Grade, MachineFeatures, accept_list, alone, assess, process_files};
use crate::enforcer::{EnforcerKind, Enforcers};
use crate::pattern::Pattern;
use crate::restriction::{
    Destination, PortRange, Restriction, socket_domain, socket_domain_name, socket_type_name,
};

/// The recorded behaviour of a workload. Runs of the same workload are merged into one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Names of the system calls that the workload made.
    pub calls: BTreeSet<String>,
    /// Values of the selecting argument, for the calls of [`DECIDING`].
    pub values: BTreeMap<String, BTreeSet<u64>>,
    /// Built-in rules that the workload would have violated, each with one example, such as `reads
    /// /etc/shadow`.
    pub violated: BTreeMap<String, String>,
    /// Files that the workload opened, inspected or listed, with variable parts generalised.
    pub reads: BTreeSet<String>,
    /// Files that the workload changed in any way.
    pub writes: BTreeSet<String>,
    /// Folders in which the workload created, removed or renamed entries.
    pub makes: BTreeSet<String>,
    /// Programs that the workload executed, and their interpreters.
    pub programs: BTreeSet<String>,
    /// Sockets that the workload created: family, type without flags, protocol.
    pub sockets: BTreeSet<(u64, u64, u64)>,
    /// Addresses that the workload connected or sent to, as `ADDRESS PORT`, and paths of Unix sockets.
    pub peers: BTreeSet<String>,
    /// Capabilities that the workload used.
    pub capabilities: Capabilities,
    /// Set if a process held capabilities and their use could not be observed.
    pub had_capabilities: bool,
}

/// Advice whether a workload tolerates a built-in rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Name of the rule.
    pub rule: &'static str,
    /// The list of a policy that the rule belongs to.
    pub class: Class,
    /// The reason against the rule; `None` if the workload tolerates it.
    pub against: Option<String>,
}

/// Calls that every program makes, or that the C library, a signal or the loader may make at any time. They
/// are not recorded, and never denied by number.
pub(crate) const ALWAYS: [Syscall; 36] = [
    Syscall::BRK,
    Syscall::CLONE,
    Syscall::CLONE3,
    Syscall::CLOSE,
    Syscall::EXIT,
    Syscall::EXIT_GROUP,
    Syscall::FORK,
    Syscall::FSTAT,
    Syscall::FUTEX,
    Syscall::GETPID,
    Syscall::GETRANDOM,
    Syscall::GETTID,
    Syscall::LSEEK,
    Syscall::MADVISE,
    Syscall::MMAP,
    Syscall::MPROTECT,
    Syscall::MREMAP,
    Syscall::MUNMAP,
    Syscall::NANOSLEEP,
    Syscall::CLOCK_NANOSLEEP,
    Syscall::CLOCK_GETTIME,
    Syscall::READ,
    Syscall::RESTART_SYSCALL,
    Syscall::RSEQ,
    Syscall::RT_SIGACTION,
    Syscall::RT_SIGPROCMASK,
    Syscall::RT_SIGRETURN,
    Syscall::SCHED_YIELD,
    Syscall::SET_ROBUST_LIST,
    Syscall::SET_TID_ADDRESS,
    Syscall::SIGALTSTACK,
    Syscall::TGKILL,
    Syscall::VFORK,
    Syscall::WAIT4,
    Syscall::WRITE,
    Syscall::WRITEV,
];

/// Multiplexed calls, each with the index of the argument that selects the operation.
pub const DECIDING: [(Syscall, usize); 7] = [
    (Syscall::ARCH_PRCTL, 0),
    (Syscall::BPF, 0),
    (Syscall::IOCTL, 1),
    (Syscall::KEYCTL, 0),
    (Syscall::PERSONALITY, 0),
    (Syscall::PRCTL, 0),
    (Syscall::SECCOMP, 0),
];

/// Paths that every program may use, with the rights to read, write and execute. Loaders are requested by
/// programs, not by calls.
const EVERYBODYS: [(&str, [bool; 3]); 15] = [
    ("/dev/full", [true, true, false]),
    ("/dev/null", [true, true, false]),
    ("/dev/random", [true, false, false]),
    ("/dev/tty", [true, true, false]),
    ("/dev/urandom", [true, false, false]),
    ("/dev/zero", [true, false, false]),
    ("/lib/ld-linux-aarch64.so.1", [true, false, true]),
    ("/lib/ld-linux.so.2", [true, false, true]),
    ("/lib/ld-musl-x86_64.so.1", [true, false, true]),
    ("/lib64/ld-linux-x86-64.so.2", [true, false, true]),
    // The C library counts processors and memory.
    ("/proc/cpuinfo", [true, false, false]),
    ("/proc/meminfo", [true, false, false]),
    ("/proc/stat", [true, false, false]),
    ("/proc/sys/vm/overcommit_memory", [true, false, false]),
    ("/sys/devices/system/cpu/online", [true, false, false]),
];

/// Maximum number of values from which a rule is generated: each value costs an instruction at each such
/// call.
const MOST_VALUES: usize = 32;

/// Socket types (include/linux/net.h): the values of the bits of an argument that hold the type.
const SOCKET_TYPES: [u16; 7] = [1, 2, 3, 4, 5, 6, 10];
const SOCKET_TYPE: u64 = 0xf;

/// Maximum number of recorded files per folder; more are recorded as `FOLDER/*`.
const MOST_FILES: usize = 32;

/// Clone flags that create namespaces and the like: forks with one of these flags are recorded.
const NAMESPACES: u64 = 0x7e02_0080;

/// Call rules of the built-in rules, by call.
static CATALOGUE: LazyLock<Vec<CallRule>> = LazyLock::new(|| {
    let of = |builtin: &'static Builtin| {
        let (policy, rule) = alone(builtin, Enforcers::default().with(EnforcerKind::Seccomp));
        lower(&policy, &rule).entries
    };
    // A call that is refused only to divert the caller to another call is no violation.
    let is_meant = |rule: &CallRule| rule.action != Action::Refuse(Errno::ENOSYS);
    builtin::all()
        .iter()
        .flat_map(of)
        .filter(is_meant)
        .collect()
});

impl Model {
    /// The seccomp profile that reports what a model needs: every call that not all programs make.
    #[must_use]
    pub fn recorder() -> Profile {
        let report = |call, when| CallRule {
            rule: "learn".to_owned(),
            call,
            when,
            action: Action::Report,
        };
        let calls = Syscall::all().filter(|call| !ALWAYS.contains(call));
        let mut rules: Vec<_> = calls.map(|call| report(call, Vec::new())).collect();
        let flags = abi::RegisterTest::low(0, abi::TestOp::AnyBit, NAMESPACES);
        rules.push(report(Syscall::CLONE, vec![flags]));
        Profile {
            rules,
            refuse_foreign: false,
            peers: None,
        }
    }

    /// Records a system call.
    pub fn note_call(&mut self, call: Syscall, args: &[u64; 6]) {
        self.calls.insert(call.name().to_owned());
        if let Some((_, at)) = DECIDING.iter().find(|(known, _)| *known == call) {
            let values = self.values.entry(call.name().to_owned());
            values.or_default().insert(args[*at]);
        }
        if call == Syscall::SOCKET {
            let [domain, kind, protocol, ..] = *args;
            self.sockets.insert((domain, kind & SOCKET_TYPE, protocol));
        }
        let rules = CATALOGUE.iter().filter(|rule| rule.call == call);
        for rule in rules.filter(|rule| rule.when.iter().all(|test| test.holds(args))) {
            let violated = self.violated.entry(rule.rule.clone());
            violated.or_insert_with(|| format!("calls {} in this way", call.name()));
        }
    }

    /// Records a file that was opened or listed.
    pub fn note_read(&mut self, file: &str) {
        self.refuse_read(file);
        put(&mut self.reads, generalised(file));
    }

    /// Records a file whose name, kind or link was looked at, and that was not opened.
    pub fn note_look(&mut self, file: &str) {
        self.refuse_read(file);
        if !file.starts_with("/proc/") {
            put(&mut self.reads, generalised(file));
        }
    }

    fn refuse_read(&mut self, file: &str) {
        self.refuse("reads", file, |restriction| match restriction {
            Restriction::File { path, access } => access.read && path.matches(file),
            Restriction::Disk { access } => access.read && is_disk(file),
            _ => false,
        });
    }

    /// Records a file that was changed in any way.
    pub fn note_write(&mut self, file: &str) {
        self.refuse("changes", file, |restriction| match restriction {
            Restriction::File { path, access } => {
                (access.write || access.append) && path.matches(file)
            }
            Restriction::Disk { access } => access.write && is_disk(file),
            _ => false,
        });
        put(&mut self.writes, generalised(file));
    }

    /// Records a file that was created, removed or renamed.
    pub fn note_make(&mut self, file: &str) {
        if let Some((folder, _)) = file
            .rsplit_once('/')
            .filter(|(folder, _)| !folder.is_empty())
        {
            put(&mut self.makes, generalised(folder));
        }
    }

    /// Records a program that was executed.
    pub fn note_program(&mut self, file: &str) {
        self.refuse("executes", file, |restriction| match restriction {
            Restriction::Exec { path } => path.matches(file),
            _ => false,
        });
        put(&mut self.programs, generalised(file));
    }

    /// Records an address that was connected or sent to.
    pub fn note_peer(&mut self, address: IpAddr, port: u16) {
        let name = format!("{address} {port}");
        let own = address.to_canonical();
        self.refuse("contacts", &name, |restriction| match restriction {
            Restriction::Egress {
                to: Destination::Network(network),
                ports,
            } => {
                let is_in = |range: &PortRange| (range.first..=range.last).contains(&port);
                network.contains(&own) && (ports.is_empty() || ports.iter().any(is_in))
            }
            _ => false,
        });
        self.peers.insert(name);
    }

    /// Records a Unix socket that was connected or sent to.
    pub fn note_local_peer(&mut self, file: &str) {
        self.refuse("contacts", file, |restriction| match restriction {
            Restriction::Connect { path } => path.matches(file),
            _ => false,
        });
        self.peers.insert(generalised(&without_temporary(file)));
    }

    /// Records a violation of every built-in rule that has a matching restriction.
    fn refuse(&mut self, verb: &str, what: &str, is_meant: impl Fn(&Restriction) -> bool) {
        for builtin in builtin::all() {
            if !self.violated.contains_key(&builtin.name)
                && builtin.restrictions.iter().any(&is_meant)
            {
                let case = format!("{verb} {what}");
                self.violated.insert(builtin.name.clone(), case);
            }
        }
    }

    /// Merges the behaviour of another run into this model. Any order of merges gives the same model.
    pub fn merge(&mut self, other: Self) {
        self.calls.extend(other.calls);
        for (call, values) in other.values {
            self.values.entry(call).or_default().extend(values);
        }
        for (rule, case) in other.violated {
            // The least example, so that the order of merges does not matter.
            let example = self.violated.entry(rule).or_insert_with(|| case.clone());
            if case < *example {
                *example = case;
            }
        }
        for (files, more) in [
            (&mut self.reads, other.reads),
            (&mut self.writes, other.writes),
            (&mut self.makes, other.makes),
            (&mut self.programs, other.programs),
        ] {
            let own = std::mem::take(files);
            own.into_iter()
                .chain(more)
                .for_each(|file| put(files, file));
        }
        self.sockets.extend(other.sockets);
        self.peers.extend(other.peers);
        self.capabilities.0 |= other.capabilities.0;
        self.had_capabilities |= other.had_capabilities;
    }

    /// What the policy of this model allows and that of an earlier one does not, in words; empty if nothing is new.
    #[must_use]
    pub fn news(&self, earlier: &Self) -> Vec<String> {
        let denied: BTreeSet<&str> = earlier.unmade().into_iter().collect();
        let now: BTreeSet<&str> = self.unmade().into_iter().collect();
        let calls: Vec<String> = denied
            .difference(&now)
            .map(|name| (*name).to_owned())
            .collect();
        let known = earlier.allowed_files();
        let files = self.allowed_files().into_iter();
        let files = files.filter(|(file, kinds)| known.get(file) != Some(kinds));
        let files: Vec<String> = files.map(|(file, _)| file).collect();
        let used = classes::capabilities(self.capabilities).0;
        let more = Capabilities(used & !classes::capabilities(earlier.capabilities).0).to_string();
        let more: Vec<String> = more.split_whitespace().map(str::to_owned).collect();
        let counted = [
            ("call", "calls", calls),
            ("capability", "capabilities", more),
            ("file", "files", files),
        ];
        let counted = counted.into_iter().filter(|(.., what)| !what.is_empty());
        counted
            .map(|(one, many, what)| in_words(one, many, &what))
            .collect()
    }

    /// Returns the folder, with all in it, that holds a program which the workload makes itself.
    fn built(&self, program: &str) -> Option<String> {
        let whole = without_temporary(program);
        let is_made_in = |folder| self.makes.contains(folder);
        match whole.strip_suffix("/**").is_some_and(is_made_in) {
            true => Some(whole),
            false => self.made_below(program).map(|top| format!("{top}/**")),
        }
    }

    /// Returns the outermost of the folders above a file that the workload makes inside of each other, if it makes the
    /// file. Landlock ties a rule to a folder that exists: one that is made anew has only the rules of those above.
    fn made_below<'f>(&self, file: &'f str) -> Option<&'f str> {
        let folder_of = |path: &'f str| path.rsplit_once('/').map(|(folder, _)| folder);
        let makes = |folder: &&str| !folder.is_empty() && self.makes.contains(*folder);
        let mut top = folder_of(file).filter(makes)?;
        while let Some(above) = folder_of(top).filter(makes) {
            top = above;
        }
        Some(top)
    }

    /// The enforcers whose mere presence does not stop recorded behaviour: any Landlock ruleset forbids
    /// mounts.
    #[must_use]
    pub fn bearable(&self, enforcers: Enforcers) -> Enforcers {
        let mounts = ["mount", "move_mount", "pivot_root", "umount", "umount2"];
        let is_mounting = mounts.iter().any(|call| self.calls.contains(*call));
        enforcers
            .iter()
            .filter(|enforcer| *enforcer != EnforcerKind::Landlock || !is_mounting)
            .fold(Enforcers::default(), Enforcers::with)
    }

    /// Advice on each built-in rule if `enforcers` are to enforce it.
    #[must_use]
    pub fn advise(&self, enforcers: Enforcers, machine: &MachineFeatures) -> Vec<Advice> {
        let advice = |builtin: &'static Builtin| Advice {
            rule: &builtin.name,
            class: builtin.class,
            against: self.against(builtin, enforcers, machine),
        };
        builtin::all().iter().map(advice).collect()
    }

    fn against(
        &self,
        builtin: &'static Builtin,
        enforcers: Enforcers,
        machine: &MachineFeatures,
    ) -> Option<String> {
        let (policy, rule) = alone(builtin, enforcers);
        let carries = |enforcer| assess(&policy, &rule, enforcer, machine).grade > Grade::None;
        if !enforcers.iter().any(carries) {
            return Some(format!("{enforcers} cannot enforce it"));
        }
        if let Some(case) = self.violated.get(&builtin.name) {
            return Some(format!("the workload {case}"));
        }
        let mut each = builtin.restrictions.iter();
        each.find_map(|restriction| self.against_one(restriction, enforcers))
    }

    fn against_one(&self, restriction: &Restriction, enforcers: Enforcers) -> Option<String> {
        match restriction {
            // Only Landlock turns existing files into holes.
            Restriction::File { .. } if !enforcers.contains(EnforcerKind::Landlock) => None,
            Restriction::File { path, .. } => {
                if path.literal().or_else(|| path.subtree()).is_none() {
                    return Some("it has names without a folder".to_owned());
                }
                let above = self.writes.iter().find(|file| is_beside(file, path.text()));
                above.map(|file| {
                    format!("the workload makes files in a folder above, such as {file}")
                })
            }
            Restriction::Ptrace { .. } => {
                let looks = [
                    "ptrace",
                    "process_vm_readv",
                    "process_vm_writev",
                    "pidfd_getfd",
                ];
                let call = looks.into_iter().find(|call| self.calls.contains(*call));
                call.map(|call| format!("the workload calls {call}"))
            }
            Restriction::Capabilities(set) => self.against_capabilities(*set),
            Restriction::Operation(operation) => {
                let needs = self.had_capabilities && operation.capabilities.0 != 0;
                let calls = &operation.calls;
                let mut made = calls.iter().filter(|entry| entry.tests.is_empty());
                let made = made.find(|entry| self.calls.contains(entry.call.name()));
                made.filter(|_| needs)
                    .map(|entry| format!("the workload calls {}", entry.call))
            }
            // Recorded as a violation when it happened.
            Restriction::Exec { .. }
            | Restriction::Disk { .. }
            | Restriction::Connect { .. }
            | Restriction::Socket(_)
            | Restriction::Egress { .. }
            | Restriction::Mount(_)
            | Restriction::Mode { .. }
            | Restriction::Syscall(_)
            | Restriction::OnlyFiles(_)
            | Restriction::OnlyPeers(_)
            | Restriction::InsideConnections
            | Restriction::AppArmorText(_) => None,
        }
    }

    fn against_capabilities(&self, set: Capabilities) -> Option<String> {
        if self.had_capabilities {
            return Some("which capabilities are used could not be recorded".to_owned());
        }
        let used = Capabilities(set.0 & self.capabilities.0);
        if used.0 != 0 {
            return Some(format!("the workload uses {used}"));
        }
        let needed = Capabilities(set.0 & classes::capabilities(self.capabilities).0);
        if needed.0 != 0 {
            return Some(format!(
                "what the workload uses needs {needed} in another run"
            ));
        }
        let spaces = self.violated.get("disallow-create-user-ns");
        spaces.map(|_| "the workload makes user namespaces, which such a rule forbids".to_owned())
    }

    /// Generates a policy that the workload passes: the rules that it tolerates, and a denial of every call
    /// that it did not make. Each denial is reported. `accepted`: rules that are enforced only partially.
    #[must_use]
    pub fn policy(
        &self,
        name: &str,
        enforcers: Enforcers,
        machine: &MachineFeatures,
        accepted: &BTreeSet<String>,
    ) -> String {
        let names = enforcers.joined();
        let mut text = format!(
            "# Made by `tollgate learn` from what a workload did.\n\
             apiVersion: crd.varmor.org/v1beta1\nkind: VarmorPolicy\nmetadata: {{name: {name}}}\nspec:\n  \
             target: {{kind: Pod, name: {name}}}\n  policy:\n    enforcer: {names}\n    \
             mode: EnhanceProtect\n"
        );
        if !accepted.is_empty() {
            text.push_str(&format!(
                "    # Enforced only partially; `tollgate policy explain --long` shows the gaps.\n    \
                 acceptPartial: {}\n",
                accept_list(accepted)
            ));
        }
        text.push_str(
            "    enhanceProtect:\n      privileged: true\n      # Without it no denial is reported.\n      \
             auditViolations: true\n",
        );
        push_builtin_rules(&mut text, &self.advise(enforcers, machine));
        if enforcers.contains(EnforcerKind::Landlock) {
            self.push_files(&mut text);
        }
        if enforcers.contains(EnforcerKind::Seccomp) {
            self.push_calls(&mut text);
        }
        text
    }

    /// Appends a denial of all files but those that the workload used.
    fn push_files(&self, text: &mut String) {
        text.push_str(
            "      # No other files, as far as they can be opened, executed, made or removed.\n      \
             landlockRawRules:\n        only:\n",
        );
        for (path, permissions) in self.allowed_files() {
            text.push_str(&format!(
                "        - {{pattern: \"{path}\", permissions: [{permissions}]}}\n"
            ));
        }
    }

    /// Appends denials of sockets, calls and arguments that the workload did not use.
    fn push_calls(&self, text: &mut String) {
        let sockets = self.socket_rules();
        if !sockets.is_empty() {
            text.push_str("      bpfRawRules:\n        network:\n          sockets:\n");
        }
        for rule in sockets {
            text.push_str(&format!("          - {rule}\n"));
        }
        text.push_str("      syscallRawRules:\n");
        let denied = self.unmade().join(", ");
        if !denied.is_empty() {
            text.push_str(&format!(
                "      # All other system calls of this architecture.\n      - names: [{denied}]\n        \
                 action: SCMP_ACT_ERRNO\n"
            ));
        }
        for rule in self.argument_rules() {
            text.push_str(&format!("{rule}\n"));
        }
    }

    /// Returns whether the policy lets the workload read all of `/proc`, because it read files of processes there that no
    /// agent opens for it.
    #[must_use]
    pub fn reads_all_of_proc(&self) -> bool {
        self.allowed_files().contains_key(ALL_OF_PROC)
    }

    /// Files that the workload used, and those that every program may use.
    fn allowed_files(&self) -> BTreeMap<String, String> {
        let mut allowed: BTreeMap<String, [bool; 3]> = BTreeMap::new();
        let mut allow = |file: &str, kinds: [bool; 3]| {
            let known = allowed.entry(allowable(file, kinds)).or_default();
            for (known, more) in known.iter_mut().zip(kinds) {
                *known |= more;
            }
        };
        for (file, kinds) in EVERYBODYS {
            allow(file, kinds);
        }
        self.reads
            .iter()
            .for_each(|file| allow(file, [true, false, false]));
        classes::folders(&self.reads)
            .iter()
            .for_each(|folder| allow(folder, [true, false, false]));
        self.writes
            .iter()
            .for_each(|file| allow(file, [true, true, false]));
        classes::folders(&self.writes)
            .iter()
            .for_each(|folder| allow(folder, [true, true, false]));
        self.programs
            .iter()
            .for_each(|file| allow(file, [true, false, true]));
        // Programs that it makes itself have other names in each run.
        let built = self
            .programs
            .iter()
            .filter_map(|program| self.built(program));
        built.for_each(|folder| allow(&folder, [true, false, true]));
        let folder = |folder: &String| format!("{}/**", folder.trim_end_matches("/**"));
        let makes = self.makes.iter().map(folder);
        makes.for_each(|file| allow(&file, [true, true, false]));
        let words = |kinds: [bool; 3]| {
            let words = ["read", "write", "exec"].into_iter().zip(kinds);
            let words = words.filter_map(|(word, is_set)| is_set.then_some(word));
            words.collect::<Vec<_>>().join(", ")
        };
        // Rights that an enclosing folder grants already.
        let is_covered = |file: &str, kinds: &[bool; 3]| {
            let mut folders = file
                .match_indices('/')
                .map(|(at, _)| format!("{}/**", &file[..at]));
            folders.any(|folder| {
                let above = allowed.get(&folder).filter(|_| folder != file);
                above
                    .is_some_and(|above| above.iter().zip(kinds).all(|(has, wants)| *has || !wants))
            })
        };
        let left = allowed
            .iter()
            .filter(|(file, kinds)| !is_covered(file, kinds));
        left.map(|(file, kinds)| (file.clone(), words(*kinds)))
            .collect()
    }

    /// Denials of calls that the workload made, with argument values that it did not use.
    fn argument_rules(&self) -> Vec<String> {
        let rule = |call: &str, args: Vec<String>| {
            let args = args.join(",\n          ");
            format!(
                "      - names: [{call}]\n        action: SCMP_ACT_ERRNO\n        argsMatch: all\n        \
                 args: [\n          {args}]"
            )
        };
        let none_of = |index: usize, values: &BTreeSet<u64>| -> Vec<String> {
            let test = |value| format!("{{index: {index}, value: {value}, op: SCMP_CMP_NE}}");
            values.iter().map(test).collect()
        };
        let mut rules = Vec::new();
        for (call, at) in DECIDING {
            let values = self.allowed_values(call);
            if !values.is_empty() {
                rules.push(rule(call.name(), none_of(at, &values)));
            }
        }
        let domains: BTreeSet<u64> = self.sockets.iter().map(|socket| socket.0).collect();
        if !domains.is_empty() {
            rules.push(rule("socket", none_of(0, &domains)));
        }
        rules
    }

    /// Denials of socket types that the workload did not use, within families that it used.
    fn socket_rules(&self) -> Vec<String> {
        let mut made: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for (domain, kind, _) in &self.sockets {
            made.entry(*domain).or_default().insert(*kind);
        }
        let rule = |(domain, made): (u64, BTreeSet<u64>)| {
            let domain = socket_domain_name(u16::try_from(domain).ok()?);
            // A family without a name is left to the rule on families.
            socket_domain(&domain)?;
            let others = SOCKET_TYPES
                .iter()
                .filter(|kind| !made.contains(&u64::from(**kind)));
            let names: Vec<_> = others.map(|kind| socket_type_name(*kind)).collect();
            Some(format!(
                "{{qualifiers: [deny], domains: [{domain}], types: [{}]}}",
                names.join(", ")
            ))
        };
        made.into_iter().filter_map(rule).collect()
    }

    /// Calls that the workload did not make and does not need.
    fn unmade(&self) -> Vec<&'static str> {
        let native = Arch::native().unwrap_or(Arch::X86_64);
        let here = |call: &Syscall| call.number(native).is_some();
        let needed = classes::calls(&self.calls);
        Syscall::all()
            .filter(here)
            .filter(|call| !ALWAYS.contains(call) && !needed.contains(call.name()))
            .map(Syscall::name)
            .collect()
    }
}

/// Formats a number of things and the first of them.
fn in_words(one: &str, many: &str, what: &[String]) -> String {
    const SHOWN: usize = 3;
    let names = what
        .iter()
        .take(SHOWN)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    let rest = if what.len() > SHOWN { ", ..." } else { "" };
    let noun = if what.len() == 1 { one } else { many };
    format!("{} {noun} ({names}{rest})", what.len())
}

/// Lists the built-in rules that the workload tolerates.
fn push_builtin_rules(text: &mut String, advice: &[Advice]) {
    let list = |class: Class| {
        let fits = advice.iter();
        let fits = fits.filter(|rule| rule.class == class && rule.against.is_none());
        let names: Vec<_> = fits.map(|rule| rule.rule).collect();
        names.join(", ")
    };
    let mut add = |key: &str, list: &str| {
        if !list.is_empty() {
            text.push_str(&format!("      {key}: {list}\n"));
        }
    };
    add("hardeningRules", &bracketed(&list(Class::Hardening)));
    let attack = list(Class::Attack);
    if !attack.is_empty() {
        add("attackProtectionRules", &format!("[{{rules: [{attack}]}}]"));
    }
    add(
        "vulMitigationRules",
        &bracketed(&list(Class::Vulnerability)),
    );
}

fn bracketed(list: &str) -> String {
    match list {
        "" => String::new(),
        list => format!("[{list}]"),
    }
}

/// A temporary file as everything in its folder: sockets and built programs have other names there in each run.
fn without_temporary(file: &str) -> String {
    for folder in ["/tmp", "/var/tmp", "/dev/shm"] {
        if file
            .strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
        {
            return format!("{folder}/**");
        }
    }
    file.to_owned()
}

/// Generalises the parts of a path that change from run to run: process ids and drawn names. Temporary files that a
/// workload makes itself are known by the folder in which it makes them.
fn generalised(file: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_numbered = file.starts_with("/proc/") || file.starts_with("/dev/pts/");
    let part = |part: &str| match (is_numbered && is_number(part)) || is_drawn(part) {
        true => "*".to_owned(),
        false => part.to_owned(),
    };
    let parts: Vec<String> = file.split('/').map(part).collect();
    parts.join("/")
}

const ALL_OF_PROC: &str = "/proc/**";

/// A path of the model as a policy expresses it: the path itself, or everything below the folder in which it
/// varies. All of `/proc` stands for reading a file of a process that no agent opens.
fn allowable(file: &str, kinds: [bool; 3]) -> String {
    let pattern = Pattern::parse(file).ok();
    if let Some(pattern) = pattern.filter(process_files::is_of_processes) {
        let example = file.replace('*', "1");
        return match process_files::is_served_for(&example, kinds[1]) && !kinds[2] {
            true => pattern.text().to_owned(),
            // Nobody opens it for the process: named alone, it stays denied. All of /proc is too much to write to.
            false if kinds[1] || kinds[2] => pattern.text().to_owned(),
            false => ALL_OF_PROC.to_owned(),
        };
    }
    let is_fit = |file: &str| Pattern::parse(file).is_ok_and(|pattern| pattern.literal().is_some());
    if is_fit(file) {
        return file.to_owned();
    }
    let mut folder = &file[..file.find('*').unwrap_or(file.len())];
    while let Some((above, _)) = folder.rsplit_once('/') {
        if is_fit(above) {
            return format!("{above}/**");
        }
        folder = above;
    }
    "/**".to_owned()
}

/// Returns true if a name is random or a digest: at least twelve hexadecimal digits, optionally with dashes.
fn is_drawn(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name);
    let digits = stem.bytes().filter(u8::is_ascii_hexdigit).count();
    let has_both = stem.bytes().any(|byte| byte.is_ascii_digit())
        && stem.bytes().any(|byte| byte.is_ascii_alphabetic());
    let is_all = stem
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_all && has_both && digits >= 12
}

/// Adds a file; collapses many files of one folder into `FOLDER/*`, which takes the place of its files.
fn put(files: &mut BTreeSet<String>, file: String) {
    let parent = |file: &str| file.rsplit_once('/').map_or(0, |(folder, _)| folder.len());
    let folder = file[..parent(&file)].to_owned();
    let all = format!("{folder}/*");
    let is_all = file == all;
    if files.contains(&all) || !files.insert(file) {
        return;
    }
    let inside = format!("{folder}/");
    let below = files
        .range(inside.clone()..)
        .take_while(|known| known.starts_with(&inside));
    let count = below.filter(|known| parent(known) == folder.len()).count();
    if is_all || (count > MOST_FILES && !folder.is_empty()) {
        files.retain(|known| !known.starts_with(&inside) || parent(known) != folder.len());
        files.insert(all);
    }
}

/// Returns true if `file` lies in a folder above `path`, where new files lack the right that is withheld
/// there.
fn is_beside(file: &str, path: &str) -> bool {
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let rest = path.strip_prefix(folder);
    file != path && rest.is_some_and(|rest| rest.starts_with('/'))
}

/// Returns true for the usual names of disk devices.
fn is_disk(file: &str) -> bool {
    let Some(name) = file.strip_prefix("/dev/") else {
        return false;
    };
    ["sd", "vd", "nvme", "xvd", "dm-", "loop", "mapper/"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enforcers() -> Enforcers {
        Enforcers::default()
            .with(EnforcerKind::Seccomp)
            .with(EnforcerKind::Landlock)
    }

    fn against(model: &Model, rule: &str) -> Option<String> {
        let advice = model.advise(enforcers(), &MachineFeatures::default());
        let found = advice.into_iter().find(|advice| advice.rule == rule);
        found.expect("it is built in").against
    }

    #[test]
    fn a_rule_is_advised_against_by_what_was_done() {
        let mut model = Model::default();
        for rule in [
            "disable-udp",
            "disable-access-shadow",
            "disable-shell",
            "disallow-mount",
        ] {
            assert_eq!(against(&model, rule), None, "{rule}");
        }
        model.note_call(Syscall::SOCKET, &[2, 2, 0, 0, 0, 0]);
        model.note_call(Syscall::MOUNT, &[0; 6]);
        model.note_read("/etc/shadow");
        model.note_program("/usr/bin/dash");
        for (rule, why) in [
            ("disable-udp", "the workload calls socket in this way"),
            ("disable-network", "the workload calls socket in this way"),
            ("disable-access-shadow", "the workload reads /etc/shadow"),
            ("disable-shell", "the workload executes /usr/bin/dash"),
            ("disallow-mount", "the workload calls mount in this way"),
            (
                "disallow-access-kallsyms",
                "Seccomp, Landlock cannot enforce it",
            ),
        ] {
            assert_eq!(against(&model, rule).as_deref(), Some(why));
        }
        assert_eq!(against(&model, "disable-tcp"), None);
    }

    #[test]
    fn new_files_beside_a_denied_one_are_a_reason_against_it() {
        let mut model = Model::default();
        model.note_write("/etc/new");
        let why = against(&model, "disable-access-shadow").expect("it would be unreadable");
        assert!(why.contains("/etc/new"), "{why}");
        assert!(against(&model, "mitigate-sa-leak").is_none());
    }

    #[test]
    fn the_policy_of_a_model_loads_and_passes_what_was_recorded() {
        let mut model = Model::default();
        for call in [Syscall::OPENAT, Syscall::EXECVE, Syscall::SOCKET] {
            model.note_call(call, &[1, 1, 0, 0, 0, 0]);
        }
        let none = BTreeSet::new();
        let text = model.policy("web", enforcers(), &MachineFeatures::default(), &none);
        let (policies, problems) = crate::load("web.yaml", &text);
        assert!(problems.is_empty(), "{problems:?}\n{text}");
        let profile = Profile::compile(&policies[0]);
        let decide = |call, args| profile.decide(call, &args).map(|rule| rule.rule.clone());
        assert_eq!(decide(Syscall::OPENAT, [0; 6]), None);
        assert_eq!(decide(Syscall::SOCKET, [1, 1, 0, 0, 0, 0]), None);
        assert_eq!(decide(Syscall::READ, [0; 6]), None);
        assert!(decide(Syscall::SOCKET, [2, 1, 0, 0, 0, 0]).is_some());
        assert!(decide(Syscall::PTRACE, [0; 6]).is_some());
    }

    #[test]
    fn arguments_that_were_not_seen_are_denied() {
        let mut model = Model::default();
        model.note_call(Syscall::PRCTL, &[15, 0, 0, 0, 0, 0]);
        model.note_call(Syscall::PRCTL, &[16, 0, 0, 0, 0, 0]);
        model.note_call(Syscall::SOCKET, &[1, 0x8_0001, 0, 0, 0, 0]);
        model.note_call(Syscall::SOCKET, &[2, 2, 17, 0, 0, 0]);
        let none = BTreeSet::new();
        let text = model.policy("web", enforcers(), &MachineFeatures::default(), &none);
        let (policies, problems) = crate::load("web.yaml", &text);
        assert!(problems.is_empty(), "{problems:?}\n{text}");
        let profile = Profile::compile(&policies[0]);
        let passes = |call, first, second| {
            let args = [first, second, 0, 0, 0, 0];
            profile.decide(call, &args).is_none()
        };
        for (call, first, second, expected) in [
            (Syscall::PRCTL, 15, 0, true),
            (Syscall::PRCTL, 16, 0, true),
            (Syscall::PRCTL, 38, 0, false),
            (Syscall::SOCKET, 1, 1, true),
            (Syscall::SOCKET, 1, 2, false),
            (Syscall::SOCKET, 2, 0x802, true),
            (Syscall::SOCKET, 2, 3, false),
            (Syscall::SOCKET, 16, 3, false),
        ] {
            assert_eq!(
                passes(call, first, second),
                expected,
                "{call} {first} {second}"
            );
        }
    }

    #[test]
    fn capabilities_that_were_used_are_kept() {
        let all = Enforcers::ALL;
        let mut model = Model {
            capabilities: Capabilities(1 << 10),
            ..Model::default()
        };
        let against = |model: &Model, rule: &str| {
            let advice = model.advise(all, &MachineFeatures::default());
            advice
                .into_iter()
                .find(|a| a.rule == rule)
                .expect("built in")
                .against
        };
        let kept = against(&model, "disable-cap-net-bind-service");
        assert_eq!(
            kept.as_deref(),
            Some("the workload uses CAP_NET_BIND_SERVICE")
        );
        assert!(against(&model, "disable-cap-all").is_some());
        assert_eq!(
            against(&model, "disable-cap-all-except-net-bind-service"),
            None
        );
        model.had_capabilities = true;
        assert!(against(&model, "disable-cap-sys-admin").is_some());
    }

    #[test]
    fn addresses_are_a_reason_against_rules_about_them() {
        let mut model = Model::default();
        model.note_peer("::ffff:169.254.169.254".parse().expect("an address"), 80);
        model.note_local_peer("/run/docker.sock");
        let advice = model.advise(Enforcers::ALL, &MachineFeatures::default());
        let against = |rule: &str| {
            let found = advice.iter().find(|a| a.rule == rule);
            found.expect("built in").against.clone()
        };
        assert!(against("block-access-to-aws-metadata-service").is_some());
        assert!(against("block-access-to-container-runtime").is_some());
        assert_eq!(against("block-access-to-oci-metadata-service"), None);
    }

    #[test]
    fn what_changes_from_run_to_run_is_left_out_of_paths() {
        for (file, expected) in [
            ("/proc/417/task/418/stat", "/proc/*/task/*/stat"),
            ("/dev/pts/3", "/dev/pts/*"),
            ("/tmp/name", "/tmp/name"),
            ("/var/cache/0123456789abcdef.bin", "/var/cache/*"),
            ("/run/9f1b7c1e-aaaa-4bbb-8ccc-0123456789ab/x", "/run/*/x"),
            ("/usr/lib/deadbeefcafe", "/usr/lib/deadbeefcafe"),
            ("/etc/hosts", "/etc/hosts"),
        ] {
            assert_eq!(generalised(file), expected);
        }
        let mut model = Model::default();
        for number in 0..40 {
            model.note_read(&format!("/srv/data/file-{number}"));
        }
        model.note_read("/srv/other");
        let found: Vec<_> = model.reads.iter().map(String::as_str).collect();
        assert_eq!(found, ["/srv/data/*", "/srv/other"]);
        let mut model = Model::default();
        model.note_program("/tmp/go-build1/exe");
        assert!(!model.allowed_files().contains_key("/tmp/**"));
        model.note_make("/tmp/go-build1");
        assert_eq!(model.allowed_files()["/tmp/**"], "read, write, exec");
    }

    #[test]
    fn a_program_in_a_folder_that_is_made_anew_runs_by_the_right_of_the_folder_above() {
        let mut model = Model::default();
        model.note_program("/srv/build/made/program");
        model.note_program("/usr/bin/cc");
        model.note_make("/srv/build/made");
        assert_eq!(model.allowed_files()["/srv/build/**"], "read, write");
        model.note_make("/srv/build/made/program");
        let allowed = model.allowed_files();
        assert_eq!(allowed["/srv/build/**"], "read, write, exec");
        assert!(!allowed.contains_key("/srv/**") && !allowed.contains_key("/**"));
        assert_eq!(allowed["/usr/bin/cc"], "read, exec");
    }

    /// What other users keep in shared folders is not readable because a workload read one file there.
    #[test]
    fn shared_folders_are_not_allowed_as_a_whole_unless_files_are_made_in_them() {
        let mut model = Model::default();
        for file in ["/tmp/input", "/etc/hosts", "/etc/services", "/proc/meminfo"] {
            model.note_read(file);
        }
        let allowed = model.allowed_files();
        for all in ["/**", "/tmp/**", "/etc/**", "/proc/**", "/etc/passwd"] {
            assert!(!allowed.contains_key(all), "{all}: {allowed:?}");
        }
        assert!(allowed.contains_key("/tmp/input"));
        model.note_make("/tmp/made-by-it");
        let allowed = model.allowed_files();
        assert!(allowed.contains_key("/tmp/**") && !allowed.contains_key("/proc/**"));
    }

    #[test]
    fn files_of_processes_are_allowed_by_kind_as_far_as_an_agent_opens_them() {
        let mut model = Model::default();
        for file in [
            "/proc/self/smaps",
            "/proc/self/task/418/stat",
            "/proc/12/status",
        ] {
            model.note_read(file);
        }
        model.note_write("/proc/self/oom_score_adj");
        // Nobody opens it for writing, and all of /proc would be too much.
        model.note_write("/proc/self/uid_map");
        model.note_look("/proc/12/exe");
        let allowed = model.allowed_files();
        assert_eq!(allowed["/proc/self/smaps"], "read");
        assert_eq!(allowed["/proc/self/task/*/stat"], "read");
        assert_eq!(allowed["/proc/self/oom_score_adj"], "read, write");
        assert_eq!(allowed["/proc/*/status"], "read");
        assert!(allowed.contains_key("/proc/self/uid_map"));
        assert!(!allowed.contains_key("/proc/**"), "{allowed:?}");
        assert!(!model.reads_all_of_proc());
        model.note_read("/proc/12/environ");
        let allowed = model.allowed_files();
        assert!(allowed.contains_key("/proc/**") && !allowed.contains_key("/proc/*/environ"));
    }

    #[test]
    fn what_a_run_did_for_the_first_time_is_counted() {
        let mut earlier = Model::default();
        earlier.note_read("/srv/site/a.txt");
        earlier.note_call(Syscall::OPEN, &[0; 6]);
        let mut later = earlier.clone();
        assert_eq!(later.news(&earlier), [""; 0]);
        // Of a class that is allowed already: nothing new for the policy.
        later.note_call(Syscall::OPENAT, &[0; 6]);
        assert_eq!(later.news(&earlier), [""; 0]);
        later.note_read("/srv/site/b.txt");
        later.note_call(Syscall::PTRACE, &[0; 6]);
        assert_eq!(
            later.news(&earlier),
            ["1 call (ptrace)", "1 file (/srv/site/**)"]
        );
    }

    #[test]
    fn runs_are_merged() {
        let mut one = Model::default();
        one.note_call(Syscall::PTRACE, &[0; 6]);
        let mut other = Model::default();
        other.note_call(Syscall::MOUNT, &[0; 6]);
        other.had_capabilities = true;
        one.merge(other.clone());
        assert_eq!(one.calls.len(), 2);
        assert!(one.had_capabilities && one.violated.contains_key("disallow-mount"));
        let before = one.clone();
        one.merge(other);
        assert_eq!(one, before);
    }
}
