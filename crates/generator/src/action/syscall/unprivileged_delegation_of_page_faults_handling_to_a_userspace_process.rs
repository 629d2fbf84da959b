//! Creates a userfaultfd: a process that handles page faults can stop the kernel at a chosen moment.

use abi::Errno;
use workload::Error;

use super::super::{Action, ActionEnvironment, Stop, passwd};

/// UFFD_USER_MODE_ONLY (Linux 5.11), which every user may use.
const USER_FAULTS_ONLY: u32 = 1;
/// Without it, on older kernels, where every user may ask for all faults unless `vm.unprivileged_userfaultfd` is 0.
const ALL_FAULTS: u32 = 0;

pub(super) const ACTION: Action = Action::new(
    "syscall.UnprivilegedDelegationOfPageFaultsHandlingToAUserspaceProcess",
    "`userfaultfd` as a user that is not root",
    play,
)
.optional_rule("Unprivileged Delegation of Page Faults Handling to a Userspace Process")
.also(&["Unprivileged userfaultfd"]);

fn play(scene: &ActionEnvironment) -> Result<(), Stop> {
    if !scene.is_spawned() {
        return scene.spawn_as("child", ACTION.name);
    }
    if rustix::process::geteuid().is_root() {
        passwd::set_all(passwd::user(passwd::SYSTEM_USER)?.uid)?;
    }
    let asked = match sys::attempt::userfaultfd(USER_FAULTS_ONLY) {
        Err(error) if error.is(Errno::EINVAL) => sys::attempt::userfaultfd(ALL_FAULTS),
        asked => asked,
    };
    asked.map_err(Error::call("ask for page faults"))?;
    Ok(())
}
