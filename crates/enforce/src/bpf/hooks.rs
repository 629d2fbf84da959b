//! Loading: which programs a policy needs, and how they are attached.
//!
//! Programs are checked by the kernel when they are loaded, which takes seconds on a slow machine. Meanwhile other policies are
//! entered: loading has a lock of its own, which is taken before that of the tables.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;
use libbpf_rs::{Object, ObjectBuilder, OpenObject};
use policy::compile::bpf::Profile;
use rustix::fs::FlockOperation;

use super::Error;
use super::programs::{KernelPrograms, MAPS, OBJECT, check_file_system, folder, lock, make_folder};

/// Hooks whose programs every policy needs: they pass the policy on, count the confined tasks, and protect
/// the programs from confined processes.
pub(super) const ALWAYS: [&str; 8] = [
    "task_alloc",
    "task_free",
    EXEC,
    "bpf",
    "path_unlink",
    "path_rmdir",
    "path_rename",
    "sb_umount",
];

/// The only tracepoint; all others are hooks of a security module.
const EXEC: &str = "sched_process_exec";

/// Hooks whose absence is harmless where a kernel lacks them: without this one, access-control lists are extended
/// attributes.
const HARMLESS: [&str; 1] = ["inode_set_acl"];

/// The folder that is locked while programs are loaded. It stays: who waits for it waits for this one.
pub(super) const LOADING: &str = "loading";
/// The folder that an agent has locked: containers may need the programs at any time.
const AGENT: &str = "agent";

impl KernelPrograms {
    /// Attaches the programs of the `wanted` hooks, and waits for the exclusive lock of the tables. Returns the features that
    /// this kernel lacks as well.
    pub(super) fn open_for(wanted: &BTreeSet<&str>) -> Result<(Self, Vec<String>), Error> {
        loop {
            let lacks = attach(wanted)?;
            let kernel = Self::open()?;
            // Another process may have removed them since with the last policy.
            let kernel_lacks = |hook: &str| lacks.iter().any(|lack| *lack == lack_of(hook));
            let is_there = |hook: &&str| link(&folder(), hook).exists() || kernel_lacks(hook);
            let is_needed = |hook: &&&str| !HARMLESS.contains(*hook);
            if wanted.iter().filter(is_needed).all(is_there) {
                return Ok((kernel, lacks));
            }
        }
    }

    /// Holds off those who load programs; `None` if one does, or if an agent has use for them.
    pub(super) fn without_loading(&self) -> Result<Option<OwnedFd>, Error> {
        for (name, is_kept) in [(AGENT, false), (LOADING, true)] {
            let folder = self.folder.join(name);
            match lock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(lock) if is_kept => return Ok(Some(lock)),
                Ok(_) => {}
                Err(Error::Path { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(Error::Path { cause, .. }) if cause.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Keeps programs attached without a policy, as long as the descriptor is open.
    pub(super) fn keep_programs(&self) -> Result<OwnedFd, Error> {
        let folder = self.folder.join(AGENT);
        make_folder(&folder)?;
        lock(&folder, FlockOperation::NonBlockingLockShared)
    }
}

fn link(folder: &Path, hook: &str) -> PathBuf {
    folder.join(format!("link-{hook}"))
}

fn lack_of(hook: &str) -> String {
    format!("this kernel has no hook {hook}")
}

/// Attaches the programs of the `wanted` hooks that are not attached. Returns the features that this kernel lacks. The lock of
/// the tables must not be held.
pub(super) fn attach(wanted: &BTreeSet<&str>) -> Result<Vec<String>, Error> {
    check_file_system()?;
    let folder = folder();
    make_folder(&folder)?;
    let missing = || {
        let missing = wanted.iter().copied();
        missing
            .filter(|hook| !link(&folder, hook).exists())
            .collect::<BTreeSet<&str>>()
    };
    if missing().is_empty() {
        return Ok(Vec::new());
    }
    let loading = folder.join(LOADING);
    make_folder(&loading)?;
    let _lock = lock(&loading, FlockOperation::LockExclusive)?;
    // Another process may have attached some meanwhile.
    let mut missing = missing();
    let kernel = KernelHooks::read();
    // Every policy needs some hooks: without one of those, attaching fails.
    let absent: Vec<&str> = missing
        .iter()
        .copied()
        .filter(|hook| !ALWAYS.contains(hook) && !kernel.has(hook))
        .collect();
    missing.retain(|hook| !absent.contains(hook));
    let lacks = absent.into_iter().filter(|hook| !HARMLESS.contains(hook));
    let lacks = lacks.map(lack_of).collect();
    if missing.is_empty() {
        return Ok(lacks);
    }
    make_maps(&folder)?;
    let mut object = load(&folder, |hook| missing.contains(hook))?;
    missing
        .into_iter()
        .try_for_each(|hook| attach_one(&mut object, &folder, hook))?;
    Ok(lacks)
}

/// Makes the tables, of which others must not see some alone.
fn make_maps(folder: &Path) -> Result<(), Error> {
    let kernel = KernelPrograms::open()?;
    if MAPS.iter().all(|name| kernel.map_path(name).exists()) {
        return Ok(());
    }
    load(folder, |_hook| false).map(drop)
}

/// Loads the programs of some hooks, with the tables that are there.
fn load(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Object, Error> {
    let mut object = open_object()?;
    for mut program in object.progs_mut() {
        let is_wanted = is_wanted(hook_of(program.section()));
        program.set_autoload(is_wanted);
    }
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if MAPS.contains(&name.as_str()) {
            // Reuses a pinned map if there is one, and pins a new one otherwise.
            map.set_pin_path(folder.join(format!("map-{name}")))
                .map_err(Error::load)?;
        }
    }
    object.load().map_err(Error::load)
}

fn attach_one(object: &mut Object, folder: &Path, hook: &str) -> Result<(), Error> {
    let mut programs = object.progs_mut();
    let program = programs.find(|program| hook_of(program.section()) == hook);
    let program = program.ok_or_else(|| Error::Unknown {
        what: "hook",
        name: hook.to_owned(),
    })?;
    let failed = |cause| Error::Attach {
        hook: hook.to_owned(),
        cause,
    };
    let mut attached = match hook {
        EXEC => program.attach().map_err(failed)?,
        _ => program.attach_lsm().map_err(failed)?,
    };
    attached.pin(link(folder, hook)).map_err(failed)
}

/// Opens the object with all programs and maps set not to load.
pub(super) fn open_object() -> Result<OpenObject, Error> {
    ObjectBuilder::default()
        .open_memory(OBJECT)
        .map_err(Error::load)
}

/// Loads what every policy needs, and drops it: an older kernel may have hooks and lack a kind of map.
pub(super) fn try_load() -> Result<(), Error> {
    let mut object = open_object()?;
    for mut program in object.progs_mut() {
        let is_needed = ALWAYS.contains(&hook_of(program.section()));
        program.set_autoload(is_needed);
    }
    object.load().map(drop).map_err(Error::load)
}

/// Hooks whose programs a policy needs.
pub(super) fn hooks(profile: &Profile) -> BTreeSet<&str> {
    ALWAYS.into_iter().chain(profile.hooks()).collect()
}

/// The hook or tracepoint of a program, from its section: `lsm/HOOK` or `tp_btf/TRACEPOINT`.
fn hook_of(section: &OsStr) -> &str {
    let text = section.to_str().unwrap_or("");
    text.split_once('/').map_or(text, |(_, hook)| hook)
}

/// The hooks of this kernel, as its type information names them. Without that information no program can be
/// attached to any.
struct KernelHooks(Option<Btf<'static>>);

impl KernelHooks {
    fn read() -> Self {
        Self(Btf::from_vmlinux().ok())
    }

    fn has(&self, hook: &str) -> bool {
        let wanted = format!("bpf_lsm_{hook}");
        let btf = self.0.as_ref();
        btf.is_some_and(|btf| btf.type_by_name::<Func<'_>>(&wanted).is_some())
    }
}

/// The hooks that a profile needs and that this kernel lacks. Empty if the kernel has none at all: no policy is
/// enforced there, and the probe says why.
pub(super) fn missing_hooks(profile: &Profile) -> BTreeSet<String> {
    let kernel = KernelHooks::read();
    if !kernel.has("file_open") {
        return BTreeSet::new();
    }
    let hooks = profile.hooks().into_iter();
    let missing = hooks.filter(|hook| !HARMLESS.contains(hook) && !kernel.has(hook));
    missing.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use policy::builtin::{self, Class};
    use policy::compile::MachineFeatures;

    use super::*;

    /// A profile with all built-in rules and some raw ones.
    fn everything() -> Profile {
        let names = |class| {
            let own = builtin::all().iter().filter(|rule| rule.class == class);
            let names: Vec<&str> = own.map(|rule| rule.name.as_str()).collect();
            names.join(", ")
        };
        let text = format!(
            "policy:\n  enforcer: BPF\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    \
             hardeningRules: [{}]\n    vulMitigationRules: [{}]\n    attackProtectionRules: [{{rules: [{}]}}]\n    \
             bpfRawRules: {{ptrace: {{qualifiers: [deny], permissions: [all]}}}}\n",
            names(Class::Hardening),
            names(Class::Vulnerability),
            names(Class::Attack)
        );
        let (policies, problems) = policy::load("p.yaml", &text);
        assert!(problems.is_empty(), "{problems:?}");
        Profile::compile(&policies[0], &MachineFeatures::default())
    }

    #[test]
    fn each_hook_that_rules_name_has_a_program_and_each_program_a_rule() {
        let mut object = open_object().unwrap();
        let sections: Vec<_> = object
            .progs_mut()
            .map(|program| program.section())
            .collect();
        let programs: BTreeSet<&str> = sections.iter().map(|section| hook_of(section)).collect();
        assert_eq!(programs.len(), sections.len(), "one for each hook");
        let profile = everything();
        let mut wanted = hooks(&profile);
        // The hook of the probe.
        wanted.insert("task_getsid");
        assert_eq!(wanted, programs);
    }
}
