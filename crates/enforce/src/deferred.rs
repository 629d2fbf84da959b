//! Restricting a process that sees other files than this one: a container's first program.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use abi::{Capabilities, Syscall};
use capture::notify::Caller;
use policy::Policy;
use policy::compile::{MachineFeatures, bpf as hooks, caps, landlock as holes};
use sys::credential::{self, CapabilitySets};

use crate::bpf::BpfPolicyHandle;
use crate::{ApplyError, Error, Step, apparmor, landlock};

/// What has to be done to it, beside what becomes of its calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredConfinement {
    /// Capabilities that it loses.
    pub caps: caps::Profile,
    /// Whether [`ruleset`] has to be made for it, there.
    pub needs_ruleset: bool,
    /// Whether a [`DeferredBpfPolicy`] has to be loaded for it.
    pub needs_tenant: bool,
    /// The profile of AppArmor that it takes, which is loaded.
    pub profile: Option<String>,
}

/// What BPF carries of a policy, loaded for a process that is not confined yet.
#[derive(Debug)]
pub struct DeferredBpfPolicy(BpfPolicyHandle);

impl DeferredBpfPolicy {
    /// Loads it, for the mounts that the process has (`/proc/PID/mountinfo`).
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn load(policy: &Policy, mounts: &str) -> Result<Self, Error> {
        let profile = hooks::Profile::compile(policy);
        Ok(Self(BpfPolicyHandle::load_for(
            &profile,
            &policy.name,
            mounts,
        )?))
    }

    /// The number by which its violations are found.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.number()
    }

    /// Removes it again: nobody is confined by it.
    pub fn discard(self) {
        self.0.discard();
    }
}

/// Makes the Landlock ruleset of a policy for the root that this process has, which sees no `/proc` of
/// its own perhaps: `mounts` is the table of mounts, `path` where programs lie.
///
/// # Errors
/// If it cannot be made.
///
/// Answers with the ruleset and what it lacks, ways past its rules that were found there among it.
pub fn ruleset(
    policy: &Policy,
    machine: &MachineFeatures,
    mounts: &str,
    path: Option<&OsStr>,
) -> Result<Option<(OwnedFd, Vec<String>)>, Error> {
    let profile = holes::Profile::compile(policy, machine);
    let made = landlock::make_for(&profile, mounts, path)?;
    Ok(made.map(|made| (made.ruleset, made.lacks)))
}

impl DeferredConfinement {
    /// Has the process restrict itself, and restricts it. `ruleset`: its number of the descriptor. Answers
    /// with the capabilities among those to be dropped that it would not have had anyway.
    ///
    /// # Errors
    /// The step that failed. What was done before stays.
    pub fn apply(
        &self,
        caller: &Caller,
        ruleset: Option<i32>,
        tenant: Option<&DeferredBpfPolicy>,
    ) -> Result<Capabilities, ApplyError> {
        let failed = |step| move |cause| ApplyError { step, cause };
        // Both hold from its exec on, which it makes next.
        match tenant {
            Some(DeferredBpfPolicy(tenancy)) => {
                confine(caller, tenancy).map_err(failed(Step::Bpf))?
            }
            None if self.needs_tenant => return Err(failed(Step::Bpf)(missing("bpf"))),
            None => {}
        }
        if let Some(profile) = &self.profile {
            take(caller, profile).map_err(failed(Step::AppArmor))?;
        }
        let lacked = self.drop(caller).map_err(failed(Step::Capabilities))?;
        match ruleset {
            Some(number) => restrict(caller, number).map_err(failed(Step::Landlock))?,
            None if self.needs_ruleset => {
                return Err(failed(Step::Landlock)(missing("landlock_restrict_self")));
            }
            None => {}
        }
        Ok(lacked)
    }

    /// As `caps::drop` does for the own process. What of it the process lacks.
    fn drop(&self, caller: &Caller) -> sys::Result<Capabilities> {
        let profile = self.caps;
        if profile.no_new_privs {
            no_new_privs(caller)?;
        }
        if profile.dropped.0 == 0 {
            return Ok(Capabilities::default());
        }
        let gained = self.gained(caller)?;
        caller.call(
            Syscall::PRCTL,
            [PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0],
        )?;
        let own = credential::capabilities(caller.tid())?;
        if own.effective.contains(CAP_SETPCAP) {
            for number in (0..64).filter(|number| profile.dropped.contains(*number)) {
                let args = [PR_CAPBSET_DROP, u64::from(number), 0, 0, 0, 0];
                match caller.call(Syscall::PRCTL, args) {
                    // This kernel has none of this number, nor of a higher one.
                    Err(error) if error.is(EINVAL) => break,
                    outcome => drop(outcome?),
                }
            }
        }
        let without = |set: Capabilities| Capabilities(set.0 & !profile.dropped.0);
        let bytes = credential::capset_arguments(CapabilitySets {
            effective: without(own.effective),
            permitted: without(own.permitted),
            inheritable: without(own.inheritable),
        });
        caller.call_with(Syscall::CAPSET, &bytes, |address| {
            let sets = address + credential::CAPSET_HEADER as u64;
            [address, sets, 0, 0, 0, 0]
        })?;
        Ok(Capabilities(profile.dropped.0 & !gained.0))
    }

    /// Those to be dropped that programs of root's would have by an exec.
    fn gained(&self, caller: &Caller) -> sys::Result<Capabilities> {
        let own = credential::capabilities(caller.tid())?;
        let mut gained = own.inheritable.0;
        for number in (0..64).filter(|number| self.caps.dropped.contains(*number)) {
            let args = [PR_CAPBSET_READ, u64::from(number), 0, 0, 0, 0];
            match caller.call(Syscall::PRCTL, args) {
                // This kernel has none of this number, nor of a higher one.
                Err(error) if error.is(EINVAL) => break,
                outcome => gained |= outcome? << number,
            }
        }
        Ok(Capabilities(gained))
    }
}

/// What was to be handed over was not.
fn missing(call: &'static str) -> sys::SyscallError {
    sys::SyscallError {
        call,
        errno: abi::Errno(EBADF),
    }
}

/// The task that makes the exec is the one that is confined; of a process with several threads only the
/// first one can be named to every kernel.
fn confine(caller: &Caller, tenancy: &BpfPolicyHandle) -> sys::Result<()> {
    match caller.is_leader() {
        true => tenancy.confine_process(caller.tid()),
        false => Err(missing("bpf")),
    }
}

/// The process asks for the profile, in addition to one that its runtime gives it.
fn take(caller: &Caller, profile: &str) -> sys::Result<()> {
    let (file, order) = apparmor::order_for(caller.tid(), profile);
    let path = [file.as_bytes(), b"\0"].concat();
    let opened = caller.call_with(Syscall::OPENAT, &path, |address| {
        [AT_FDCWD, address, O_WRONLY_CLOEXEC, 0, 0, 0]
    })?;
    let length = u64::try_from(order.len()).unwrap_or(u64::MAX);
    let written = caller.call_with(Syscall::WRITE, order.as_bytes(), |address| {
        [opened, address, length, 0, 0, 0]
    });
    caller.call(Syscall::CLOSE, [opened, 0, 0, 0, 0, 0])?;
    written.map(drop)
}

/// Without CAP_SYS_ADMIN, which containers do not have as a rule, that takes `no_new_privs`.
fn restrict(caller: &Caller, ruleset: i32) -> sys::Result<()> {
    let number = u64::try_from(ruleset).unwrap_or(u64::MAX);
    let restrict = || caller.call(Syscall::LANDLOCK_RESTRICT_SELF, [number, 0, 0, 0, 0, 0]);
    match restrict() {
        Err(error) if error.is(EPERM) => {
            no_new_privs(caller)?;
            restrict()?;
        }
        outcome => drop(outcome?),
    }
    Ok(())
}

fn no_new_privs(caller: &Caller) -> sys::Result<()> {
    caller.call(Syscall::PRCTL, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0])?;
    Ok(())
}

/// Operations of prctl(2) (include/uapi/linux/prctl.h).
const PR_CAPBSET_READ: u64 = 23;
const PR_CAPBSET_DROP: u64 = 24;
const PR_SET_NO_NEW_PRIVS: u64 = 38;
const PR_CAP_AMBIENT: u64 = 47;
const PR_CAP_AMBIENT_CLEAR_ALL: u64 = 4;
const CAP_SETPCAP: u8 = 8;
/// `AT_FDCWD` as a register holds it.
const AT_FDCWD: u64 = 0xffff_ffff_ffff_ff9c;
const O_WRONLY_CLOEXEC: u64 = 0o2_000_001;
const EPERM: i32 = 1;
const EBADF: i32 = 9;
const EINVAL: i32 = 22;
