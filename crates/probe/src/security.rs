//! Probes of privileges and security modules.

use std::fs;
use std::io::ErrorKind;

use abi::constant::{CAP_SYS_ADMIN, CAP_SYS_PTRACE};
use landlock::{AccessFs, LandlockStatus, Ruleset, RulesetAttr, RulesetError};
use sys::clone::CloneFlags;
use sys::credential;
use sys::namespace::unshare;

use super::Support;
use super::attempt::in_child;

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
        "2" => Support::partial_with_fix(
            "ptrace_scope 2: only with CAP_SYS_PTRACE",
            "sysctl kernel.yama.ptrace_scope=1",
        ),
        "3" => Support::partial_with_fix(
            "ptrace_scope 3: ptrace is disabled until the next boot",
            "boot with kernel.yama.ptrace_scope=1 in /etc/sysctl.d",
        ),
        other => Support::partial(format!("ptrace_scope has the unknown value {other}")),
    }
}

pub(super) fn capabilities() -> Support {
    let set = match credential::capabilities(0) {
        Ok(sets) => sets.effective,
        Err(error) => return Support::no(error.to_string(), "allow capget(2)"),
    };
    let has = |number| set.contains(number);
    match (has(CAP_SYS_PTRACE.u8()), has(CAP_SYS_ADMIN.u8())) {
        (true, true) => Support::yes("CAP_SYS_ADMIN and CAP_SYS_PTRACE present"),
        (true, false) => Support::partial(
            "only CAP_SYS_PTRACE present: set-uid programs lose their privileges under `run`",
        ),
        (false, true) => Support::partial_with_fix(
            "only CAP_SYS_ADMIN present: processes of other users and non-dumpable processes cannot be read",
            "add CAP_SYS_PTRACE if the workload changes its user or runs such programs",
        ),
        (false, false) => Support::partial_with_fix(
            "CAP_SYS_ADMIN and CAP_SYS_PTRACE absent: processes of other users and non-dumpable processes \
            cannot be read; rules about them are reported as not evaluated",
            "add CAP_SYS_PTRACE if the workload changes its user or runs such programs",
        ),
    }
}

pub(super) fn user_namespace() -> Support {
    in_child(|| match unshare(CloneFlags::NEWUSER.0) {
        Ok(()) => Support::yes("works: created a user namespace"),
        Err(error) => Support::no(
            error.to_string(),
            "sysctl user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1 \
             kernel.apparmor_restrict_unprivileged_userns=0, as far as they exist",
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
        Ok(LandlockStatus::NotEnabled) => Support::no(
            "disabled: the kernel was booted without it",
            "boot with lsm=landlock,... before the other modules; policies need it for files",
        ),
        Ok(LandlockStatus::NotImplemented) => Support::no(
            "missing in this kernel, or hidden by a seccomp filter",
            "Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK; policies need it for files",
        ),
        Err(error) => Support::no(
            format!("cannot confine a child process: {error}"),
            "allow landlock_create_ruleset, landlock_restrict_self and prctl to this program",
        ),
    })
}

fn confine() -> Result<LandlockStatus, RulesetError> {
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::ReadFile)?
        .create()?;
    Ok(ruleset.restrict_self()?.landlock)
}
