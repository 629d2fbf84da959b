//! What a workload was seen to do, and which rules it can live with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::LazyLock;

use abi::{Arch, Errno, Syscall};

use crate::builtin::{self, Builtin, Class};
use crate::compile::seccomp::{Action, CallRule, Profile, lower};
use crate::compile::{Grade, Machine, alone, assess};
use crate::policy::{Enforcer, Enforcers};
use crate::restriction::Restriction;

/// A behaviour. Runs of the same workload are merged into one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Names of calls that were made.
    pub calls: BTreeSet<String>,
    /// Built-in rules that a call would have violated, with one such call.
    pub violated: BTreeMap<String, String>,
    /// Files that were opened, looked at or listed.
    pub reads: BTreeSet<String>,
    /// Files that were changed in any way.
    pub writes: BTreeSet<String>,
    /// Programs that were executed.
    pub programs: BTreeSet<String>,
    /// Set if a process had capabilities, of which nothing tells whether they were needed.
    pub had_capabilities: bool,
}

/// Whether a workload can live with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The rule.
    pub rule: &'static str,
    /// Its list in a policy.
    pub class: Class,
    /// Why not.
    pub against: Option<String>,
}

/// Calls that every program makes, or that the C library, a signal or the loader may make at any time. They
/// are not recorded, and never denied by number.
const ALWAYS: [Syscall; 36] = [
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

/// New namespaces and the like: forks with one of these flags are recorded.
const NAMESPACES: u64 = 0x7e02_0080;

/// What a rule of the catalogue refuses, by call.
static CATALOGUE: LazyLock<Vec<CallRule>> = LazyLock::new(|| {
    let of = |builtin: &'static Builtin| {
        let (policy, rule) = alone(builtin, Enforcers::default().with(Enforcer::Seccomp));
        lower(&policy, &rule).entries
    };
    // A call that is refused only for another one to be made is no violation.
    let is_meant = |rule: &CallRule| rule.action != Action::Refuse(Errno::ENOSYS);
    builtin::all()
        .iter()
        .flat_map(of)
        .filter(is_meant)
        .collect()
});

impl Model {
    /// What has to be reported for a model to be made: every call that a program need not make.
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
        }
    }

    /// A call was made.
    pub fn note_call(&mut self, call: Syscall, args: &[u64; 6]) {
        self.calls.insert(call.name().to_owned());
        let rules = CATALOGUE.iter().filter(|rule| rule.call == call);
        for rule in rules.filter(|rule| rule.when.iter().all(|test| test.holds(args))) {
            let violated = self.violated.entry(rule.rule.clone());
            violated.or_insert_with(|| call.name().to_owned());
        }
    }

    /// Adds what another run did.
    pub fn merge(&mut self, other: Self) {
        self.calls.extend(other.calls);
        for (rule, call) in other.violated {
            self.violated.entry(rule).or_insert(call);
        }
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
        self.programs.extend(other.programs);
        self.had_capabilities |= other.had_capabilities;
    }

    /// The enforcers that do not stop what was done by being there: any ruleset of Landlock forbids mounts.
    #[must_use]
    pub fn bearable(&self, enforcers: Enforcers) -> Enforcers {
        let mounts = ["mount", "move_mount", "pivot_root", "umount", "umount2"];
        let is_mounting = mounts.iter().any(|call| self.calls.contains(*call));
        enforcers
            .iter()
            .filter(|enforcer| *enforcer != Enforcer::Landlock || !is_mounting)
            .fold(Enforcers::default(), Enforcers::with)
    }

    /// What is to be thought of each built-in rule, if these enforcers are to carry it.
    #[must_use]
    pub fn advise(&self, enforcers: Enforcers, machine: &Machine) -> Vec<Advice> {
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
        machine: &Machine,
    ) -> Option<String> {
        let (policy, rule) = alone(builtin, enforcers);
        let carries = |enforcer| assess(&policy, &rule, enforcer, machine).grade > Grade::None;
        if !enforcers.iter().any(carries) {
            return Some(format!("{enforcers} cannot carry it"));
        }
        if let Some(call) = self.violated.get(&builtin.name) {
            return Some(format!("the workload calls {call} in this way"));
        }
        let mut each = builtin.restrictions.iter();
        each.find_map(|restriction| self.against_one(restriction))
    }

    fn against_one(&self, restriction: &Restriction) -> Option<String> {
        match restriction {
            Restriction::File { path, access } => {
                if path.literal().or_else(|| path.subtree()).is_none() {
                    return Some("it is about names that may be anywhere".to_owned());
                }
                let is_denied = |file: &&String| path.matches(file);
                let read = self.reads.iter().filter(|_| access.read).find(is_denied);
                let changes = access.write || access.append;
                let written = self.writes.iter().filter(|_| changes).find(is_denied);
                let above = self.writes.iter().find(|file| is_beside(file, path.text()));
                let told = |verb: &str, file: &String| format!("the workload {verb} {file}");
                read.map(|file| told("reads", file))
                    .or_else(|| written.map(|file| told("changes", file)))
                    .or_else(|| {
                        above.map(|file| told("makes files in a folder above, such as", file))
                    })
            }
            Restriction::Exec { path } => {
                let program = self.programs.iter().find(|program| path.matches(program));
                program.map(|program| format!("the workload executes {program}"))
            }
            Restriction::Disk { .. } => {
                let mut all = self.reads.iter().chain(&self.writes);
                let disk = all.find(|file| file.starts_with("/dev/") && is_disk(file));
                disk.map(|disk| format!("the workload opens {disk}"))
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
            Restriction::Capabilities(_) => self
                .had_capabilities
                .then(|| "which capabilities are needed is not recorded".to_owned()),
            Restriction::Operation(operation) => {
                let needs = self.had_capabilities && operation.capabilities.0 != 0;
                let calls = &operation.calls;
                let mut made = calls.iter().filter(|entry| entry.tests.is_empty());
                let made = made.find(|entry| self.calls.contains(entry.call.name()));
                made.filter(|_| needs)
                    .map(|entry| format!("the workload calls {}", entry.call))
            }
            Restriction::Connect { .. }
            | Restriction::Socket(_)
            | Restriction::Egress { .. }
            | Restriction::Mount(_)
            | Restriction::Mode { .. }
            | Restriction::Syscall(_)
            | Restriction::AppArmorText(_) => None,
        }
    }

    /// A policy that the workload passes: the rules that it can live with, and a denial of every call that it
    /// did not make.
    #[must_use]
    pub fn policy(&self, name: &str, enforcers: Enforcers, machine: &Machine) -> String {
        let advice = self.advise(enforcers, machine);
        let list = |class: Class| {
            let fits = advice
                .iter()
                .filter(|a| a.class == class && a.against.is_none());
            fits.map(|advice| advice.rule)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let names: String = enforcers.iter().map(|enforcer| enforcer.name()).collect();
        let mut text = format!(
            "# Made by `tollgate learn` from what a workload did.\n\
             apiVersion: crd.varmor.org/v1beta1\nkind: VarmorPolicy\nmetadata: {{name: {name}}}\nspec:\n  \
             target: {{kind: Pod, name: {name}}}\n  policy:\n    enforcer: {names}\n    \
             mode: EnhanceProtect\n    enhanceProtect:\n      privileged: true\n"
        );
        let mut add = |key: &str, list: &str| {
            if !list.is_empty() {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "      {key}: {list}");
            }
        };
        let of = |class| list(class);
        add("hardeningRules", &bracketed(&of(Class::Hardening)));
        let attack = of(Class::Attack);
        if !attack.is_empty() {
            add("attackProtectionRules", &format!("[{{rules: [{attack}]}}]"));
        }
        add("vulMitigationRules", &bracketed(&of(Class::Vulnerability)));
        let denied = self.unmade().join(", ");
        if !denied.is_empty() {
            let _ = writeln!(
                text,
                "      # Every other call that this machine knows.\n      syscallRawRules:\n      \
                 - names: [{denied}]\n        action: SCMP_ACT_ERRNO\n        errnoRet: 1"
            );
        }
        text
    }

    /// Calls that were not made and need not be.
    fn unmade(&self) -> Vec<&'static str> {
        let here = |call: &Syscall| call.number(Arch::X86_64).is_some();
        Syscall::all()
            .filter(here)
            .filter(|call| !ALWAYS.contains(call) && !self.calls.contains(call.name()))
            .map(Syscall::name)
            .collect()
    }
}

fn bracketed(list: &str) -> String {
    match list {
        "" => String::new(),
        list => format!("[{list}]"),
    }
}

/// Whether a file lies in a folder above a path, where new files lack the right that is withheld there.
fn is_beside(file: &str, path: &str) -> bool {
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let rest = path.strip_prefix(folder);
    file != path && rest.is_some_and(|rest| rest.starts_with('/'))
}

/// The usual names of disks.
fn is_disk(file: &str) -> bool {
    let name = &file["/dev/".len()..];
    ["sd", "vd", "nvme", "xvd", "dm-", "loop", "mapper/"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enforcers() -> Enforcers {
        Enforcers::default()
            .with(Enforcer::Seccomp)
            .with(Enforcer::Landlock)
    }

    fn against(model: &Model, rule: &str) -> Option<String> {
        let advice = model.advise(enforcers(), &Machine::default());
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
        model.reads.insert("/etc/shadow".to_owned());
        model.programs.insert("/usr/bin/dash".to_owned());
        for (rule, why) in [
            ("disable-udp", "the workload calls socket in this way"),
            ("disable-network", "the workload calls socket in this way"),
            ("disable-access-shadow", "the workload reads /etc/shadow"),
            ("disable-shell", "the workload executes /usr/bin/dash"),
            ("disallow-mount", "the workload calls mount in this way"),
            (
                "disallow-access-kallsyms",
                "Seccomp, Landlock cannot carry it",
            ),
        ] {
            assert_eq!(against(&model, rule).as_deref(), Some(why));
        }
        assert_eq!(against(&model, "disable-tcp"), None);
    }

    #[test]
    fn new_files_beside_a_denied_one_are_a_reason_against_it() {
        let mut model = Model::default();
        model.writes.insert("/etc/new".to_owned());
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
        let text = model.policy("web", enforcers(), &Machine::default());
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
