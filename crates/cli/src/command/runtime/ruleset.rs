//! Creation of a Landlock ruleset for a container, on behalf of the agent that watches it.
//!
//! The rules refer to existing files by open descriptors, so a process that sees the container's files has to
//! make them. This process enters the container's mounts with all its privileges, opens and lists files,
//! executes nothing, and ends.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use abi::constant::CLONE_NEWNS;
use agent::confine::{self, PolicyStrictness};
use agent::journal;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use runtime::Spec;

/// Makes the ruleset and sends it to the socket that is the standard input. `words`: a pid, the bundle, the
/// policy, whether it only audits, and rules that may be enforced partially.
pub(super) fn execute(words: &[OsString]) -> Outcome {
    let [pid, bundle, policy, audit, accepted @ ..] = words else {
        return Err(broken("internal command of the monitor of a container"));
    };
    let how = PolicyStrictness {
        audit: audit == "true",
        accept_partial: accepted
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
    };
    // Reads everything of the host first.
    let policy = confine::read(Path::new(policy), &how)?;
    let folder = Path::new("/proc").join(pid);
    let mounts = fs::read_to_string(folder.join("mountinfo")).map_err(cannot("read its mounts"))?;
    // Without it, programs are searched in the usual folders.
    let path = Spec::read(Path::new(bundle))
        .ok()
        .and_then(|spec| spec.variable("PATH").map(OsString::from));
    enter(&folder)?;
    let path: Option<&OsStr> = path.as_deref();
    let ruleset = enforce::ruleset(&policy, &mounts, path).map_err(|error| {
        Failure::from_error(Exit::Unsupported, &error).help("see `tollgate doctor`")
    })?;
    let made = ruleset.ok_or_else(|| broken("the policy changed and has no Landlock rules now"))?;
    let (ruleset, lacks) = made;
    if !lacks.is_empty() {
        journal::warn(&format!(
            "Landlock enforces the policy of the container only partially: {}",
            lacks.join("; ")
        ));
    }
    let sent = sys::socket::send_fd(std::io::stdin().as_fd(), b"R", Some(ruleset.as_fd()));
    sent.map_err(|error| cannot("hand it over")(error.into()))?;
    Ok(Exit::Ok)
}

/// Enters the mount namespace and the root of a process.
fn enter(process: &Path) -> Result<(), Failure> {
    let open = |name: &str| File::open(process.join(name)).map_err(cannot("open its mounts"));
    let (namespace, root) = (open("ns/mnt")?, open("root")?);
    sys::namespace::enter(namespace.as_fd(), CLONE_NEWNS.u32())
        .map_err(|error| cannot("enter its mounts")(error.into()))?;
    rustix::process::fchdir(&root)
        .and_then(|()| rustix::process::chroot("."))
        .map_err(|error| cannot("enter its root")(error.into()))
}

fn cannot(action: &'static str) -> impl FnOnce(std::io::Error) -> Failure {
    move |cause| {
        let message = format!("cannot make the ruleset of a container: cannot {action}: {cause}");
        Failure::new(Exit::Unsupported, message)
            .help("the container may have exited; start it again")
    }
}

fn broken(why: &str) -> Failure {
    let message = format!("cannot make the ruleset of a container: {why}");
    Failure::new(Exit::Internal, message).help("start the container again")
}
