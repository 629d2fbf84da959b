//! Why a command did not run, with the exit code and the next step.

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::lookup;

/// A filter of this thread has a listener already.
const EBUSY: i32 = 16;
const EFBIG: i32 = 27;

/// The command could not be executed.
pub fn not_executed(path: &str, cause: std::io::Error) -> Failure {
    let path = path.to_owned();
    failure(supervisor::Failure::Exec { path, cause })
}

pub(super) fn failure(failure: supervisor::Failure) -> Failure {
    use supervisor::Failure as Cause;
    match &failure {
        // A shell distinguishes what is not there from what cannot be executed; that the file
        // vanished after it was found is the first.
        Cause::Exec { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {
            Failure::from_error(Exit::NotFound, &failure)
                .help("the file, its interpreter or its loader does not exist")
        }
        Cause::Exec { cause, .. } if cause.kind() == std::io::ErrorKind::PermissionDenied => {
            Failure::from_error(Exit::NotExecutable, &failure).help(
                "check its permissions; a policy in force denies it to be executed, perhaps",
            )
        }
        Cause::Exec { path, .. } if lookup::lacks_interpreter(path) => {
            Failure::from_error(Exit::NotExecutable, &failure)
                .help(format!("it has no #! line: run it as `sh {path}`"))
        }
        Cause::Exec { .. } => Failure::from_error(Exit::NotExecutable, &failure)
            .help("check that it is a program for this machine, or a script with a first line like #!/bin/sh"),
        Cause::Unconfined { .. } => Failure::from_error(Exit::Unsupported, &failure)
            .help("`tollgate doctor` shows which enforcers work here"),
        Cause::Filter { cause } if cause.raw_os_error() == Some(EBUSY) => {
            Failure::from_error(Exit::Unsupported, &failure).help(
                "this program is watched by a seccomp listener already, perhaps of another \
                 tollgate, and the kernel allows one; start it outside",
            )
        }
        Cause::Filter { .. } => Failure::from_error(Exit::Unsupported, &failure)
            .help("`tollgate doctor` shows what is missing and how to get it"),
        Cause::Services => Failure::from_error(Exit::Unsupported, &failure)
            .help("the message above says why; `tollgate doctor` shows what works here"),
        Cause::Refused(_) => Failure::from_error(Exit::BadInput, &failure)
            .help("the message above says why"),
        Cause::TakeOver { cause: supervisor::OpenError::Layout { .. } } => Failure::from_error(Exit::BadInput, &failure)
            .help("the agent that began goes on; start the command again to have this build watch it"),
        Cause::TakeOver { .. } => Failure::from_error(Exit::Internal, &failure)
            .help("the agent that began goes on; look at the limit on open files (ulimit -n)"),
        Cause::Gone { .. } => Failure::from_error(Exit::Internal, &failure).help(
            "CMD was killed with it; if nobody did that on purpose, look for the out-of-memory \
             killer in `dmesg`",
        ),
        Cause::Proc { .. } => Failure::from_error(Exit::Unsupported, &failure).help(
            "mount a fresh one with `mount -t proc proc /proc`; container runtimes do it, and so does \
             `unshare --mount-proc`",
        ),
        Cause::Process { cause, .. } if cause.raw_os_error() == Some(EFBIG) => {
            Failure::from_error(Exit::Unsupported, &failure).help(
                "raise the limit on the size of files (ulimit -f) to 64 KiB or more: the kernel \
                 applies it to memory that processes share",
            )
        }
        Cause::Process { .. } => Failure::from_error(Exit::Internal, &failure)
            .help("look at the limits on processes (ulimit -u) and open files (ulimit -n)"),
    }
}
