//! Errors of starting a command, with exit code and next step.

use abi::Errno;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::lookup;

/// Error of installing a second listener on a thread.
const EBUSY: i32 = Errno::EBUSY.0;
const EFBIG: i32 = Errno::EFBIG.0;

/// Creates the error for a command that cannot be executed.
pub fn not_executed(path: &str, cause: std::io::Error) -> Failure {
    let path = path.to_owned();
    failure(supervisor::Failure::Exec { path, cause })
}

pub(super) fn failure(failure: supervisor::Failure) -> Failure {
    use supervisor::Failure as Cause;
    match &failure {
        // Like a shell, distinguish a missing file from one that cannot be executed. A file that
        // vanished after the lookup is missing.
        Cause::Exec { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {
            Failure::from_error(Exit::NotFound, &failure)
                .help("check that the file, its interpreter and its loader exist")
        }
        Cause::Exec { cause, .. } if cause.kind() == std::io::ErrorKind::PermissionDenied => {
            Failure::from_error(Exit::NotExecutable, &failure).help(
                "check its permissions, and whether a policy in force denies executing it",
            )
        }
        Cause::Exec { path, .. } if lookup::lacks_interpreter(path) => {
            Failure::from_error(Exit::NotExecutable, &failure)
                .help(format!("it has no #! line: run it as `sh {path}`"))
        }
        Cause::Exec { .. } => Failure::from_error(Exit::NotExecutable, &failure)
            .help("check that it is a program for this architecture, or a script with a first line such \
            as #!/bin/sh"),
        Cause::Unconfined { .. } => Failure::from_error(Exit::Unsupported, &failure)
            .help("`tollgate doctor` shows which enforcers work here"),
        Cause::Filter { cause } if cause.raw_os_error() == Some(EBUSY) => {
            Failure::from_error(Exit::Unsupported, &failure).help(
                "a seccomp listener already watches this process, perhaps of another tollgate, and the \
                kernel allows only one; start tollgate outside of it",
            )
        }
        Cause::Filter { .. } => Failure::from_error(Exit::Unsupported, &failure)
            .help("`tollgate doctor` shows what is missing and how to fix it"),
        Cause::Services => Failure::from_error(Exit::Unsupported, &failure)
            .help("the message above shows the reason; `tollgate doctor` shows what works here"),
        Cause::Refused(_) => Failure::from_error(Exit::BadInput, &failure)
            .help("the message above shows the reason"),
        Cause::TakeOver { cause: supervisor::OpenError::Layout { .. } } => Failure::from_error(Exit::BadInput, &failure)
            .help("the agent that began goes on; start the command again to have this build watch it"),
        Cause::TakeOver { .. } => Failure::from_error(Exit::Internal, &failure)
            .help("the agent that began goes on; check the limit on open files (ulimit -n)"),
        Cause::Gone { .. } => Failure::from_error(Exit::Internal, &failure).help(
            "CMD was killed with it; check `dmesg` for the out-of-memory killer",
        ),
        Cause::Proc { .. } => Failure::from_error(Exit::Unsupported, &failure).help(
            "mount a new /proc with `mount -t proc proc /proc`, as container runtimes and `unshare \
            --mount-proc` do",
        ),
        Cause::Process { cause, .. } if cause.raw_os_error() == Some(EFBIG) => {
            Failure::from_error(Exit::Unsupported, &failure).help(
                "raise the file size limit (ulimit -f) to 64 KiB or more: the kernel applies it to shared \
                memory",
            )
        }
        Cause::Process { .. } => Failure::from_error(Exit::Internal, &failure)
            .help("check the limits on processes (ulimit -u) and open files (ulimit -n)"),
    }
}
