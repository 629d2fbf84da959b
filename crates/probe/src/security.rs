//! Probes of privileges and security modules.

use std::fs;
use std::io::ErrorKind;

use abi::constant::{CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_PTRACE};
use landlock::{AccessFs, LandlockStatus, Ruleset, RulesetAttr, RulesetError};
use sys::clone::CloneFlags;
use sys::credential;
use sys::namespace::unshare;

use super::Support;
use super::attempt::in_child;
use super::fix::{self, Parameter};

pub(super) fn yama() -> Support {
    let file = "/proc/sys/kernel/yama/ptrace_scope";
    let Ok(text) = fs::read_to_string(file) else {
        return Support::yes("no Yama in this kernel: a user can read all own processes");
    };
    match text.trim() {
        "0" => Support::yes("ptrace_scope 0: a user can read all own processes"),
        "1" => Support::yes(
            "ptrace_scope 1: a user can read own descendants only, which is enough for `run`",
        ),
        "2" => Support::partial_unless_fixed(
            "ptrace_scope 2: only with CAP_SYS_PTRACE",
            fix::sysctl(&[fix::READABLE]),
        ),
        "3" => Support::partial_with_fix(
            "ptrace_scope 3: ptrace is disabled until the next boot",
            fix::READABLE_AFTER_BOOT,
        ),
        other => Support::partial(format!("ptrace_scope has the unknown value {other}")),
    }
}

pub(super) fn reads_every_file() -> bool {
    let sets = credential::capabilities(0);
    sets.is_ok_and(|sets| {
        let mut enough = [CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE].into_iter();
        enough.any(|capability| sets.effective.contains(capability.u8()))
    })
}

pub(super) fn capabilities() -> Support {
    let set = match credential::capabilities(0) {
        Ok(sets) => sets.effective,
        Err(error) => return Support::no(error.to_string(), fix::allow_calls("capget(2)")),
    };
    let has = |number| set.contains(number);
    match (has(CAP_SYS_PTRACE.u8()), has(CAP_SYS_ADMIN.u8())) {
        (true, true) => Support::yes("CAP_SYS_ADMIN and CAP_SYS_PTRACE present"),
        (true, false) => Support::partial(
            "only CAP_SYS_PTRACE present: set-uid programs lose their privileges under `run`",
        ),
        (false, true) => Support::partial_with_fix(
            "only CAP_SYS_ADMIN present: processes of other users and non-dumpable processes cannot be read",
            fix::with_capability("SYS_PTRACE", "tollgate run -- CMD"),
        ),
        (false, false) => Support::partial_with_fix(
            "CAP_SYS_ADMIN and CAP_SYS_PTRACE absent: processes of other users and non-dumpable processes \
            cannot be read; rules about them are reported as not evaluated",
            fix::with_capability("SYS_PTRACE", "tollgate run -- CMD"),
        ),
    }
}

/// The parameters that forbid user namespaces; the last two are of Debian and Ubuntu.
const NAMESPACE_PARAMETERS: [Parameter; 3] = [
    Parameter {
        name: "user.max_user_namespaces",
        value: 10_000,
        is_enough: |count| count > 0,
    },
    Parameter {
        name: "kernel.unprivileged_userns_clone",
        value: 1,
        is_enough: |allowed| allowed == 1,
    },
    Parameter {
        name: "kernel.apparmor_restrict_unprivileged_userns",
        value: 0,
        is_enough: |restricted| restricted == 0,
    },
];

pub(super) fn user_namespace() -> Support {
    in_child(|| match unshare(CloneFlags::NEWUSER.0) {
        Ok(()) => Support::yes("works: created a user namespace"),
        Err(error) => Support::no_unless_fixed(
            error.to_string(),
            match fix::is_built_with("USER_NS") {
                Some(false) => None,
                _ => fix::sysctl(&NAMESPACE_PARAMETERS),
            },
        ),
    })
}

/// Has a child drop its right to read files and attempt to read one.
pub(super) fn landlock() -> Support {
    in_child(|| match confine() {
        Ok(LandlockStatus::Available {
            effective_abi,
            kernel_abi,
        }) => {
            let version = kernel_abi.unwrap_or(effective_abi as i32);
            match fs::read("/proc/self/status") {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    Support::yes(format!("works: ABI version {version}"))
                }
                outcome => Support::no(
                    format!(
                        "ABI version {version} did not deny a child process access to a file: {outcome:?}"
                    ),
                    "report this as a defect",
                ),
            }
        }
        Ok(LandlockStatus::NotEnabled) => Support::no_unless_fixed(
            "disabled: the kernel was booted without it",
            fix::boot_with_module("SECURITY_LANDLOCK"),
        ),
        Ok(LandlockStatus::NotImplemented) => Support::no(
            "missing in this kernel, or hidden by a seccomp filter",
            match fix::is_built_with("SECURITY_LANDLOCK") {
                Some(true) => fix::allow_calls("landlock_create_ruleset(2)"),
                Some(false) => "boot a kernel with CONFIG_SECURITY_LANDLOCK".to_owned(),
                None => fix::newer_kernel("5.13"),
            },
        ),
        Err(error) => Support::no(
            format!("cannot confine a child process: {error}"),
            fix::allow_calls("landlock_create_ruleset(2), landlock_restrict_self(2) and prctl(2)"),
        ),
    })
}

fn confine() -> Result<LandlockStatus, RulesetError> {
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::ReadFile)?
        .create()?;
    Ok(ruleset.restrict_self()?.landlock)
}
