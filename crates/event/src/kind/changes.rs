//! Facts about its caller that a successful call changes.
//!
//! Fields about the caller describe the state after the call, as in Falco. So facts that a call can change
//! about its caller are known only at its exit.

/// Facts about the caller that a call changes when it succeeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Program, arguments, environment.
    pub image: bool,
    /// Command name at exec.
    pub comm: bool,
    /// Current name of the thread.
    pub thread_name: bool,
    /// Thread id: an exec by a thread other than the first takes over the first thread's id.
    pub thread: bool,
    /// User, groups and capabilities.
    pub credentials: bool,
    /// Process group, session, terminal.
    pub session: bool,
    /// Ids inside namespaces, and with them the container.
    pub namespaces: bool,
    /// Working directory.
    pub directory: bool,
}

impl Changes {
    const NONE: Self = Self {
        image: false,
        comm: false,
        thread_name: false,
        thread: false,
        credentials: false,
        session: false,
        namespaces: false,
        directory: false,
    };

    /// Returns the changes made by the call of this event name.
    pub(super) fn of(event: &str) -> Self {
        match event {
            "execve" | "execveat" => Self {
                image: true,
                comm: true,
                thread_name: true,
                thread: true,
                credentials: true,
                ..Self::NONE
            },
            "setuid" | "setgid" | "setreuid" | "setregid" | "setresuid" | "setresgid"
            | "setfsuid" | "setfsgid" | "setgroups" | "capset" => Self {
                credentials: true,
                ..Self::NONE
            },
            // PR_SET_NAME; PR_CAP_AMBIENT and PR_CAPBSET_DROP change capability sets.
            "prctl" => Self {
                thread_name: true,
                credentials: true,
                ..Self::NONE
            },
            "setsid" | "setpgid" => Self {
                session: true,
                ..Self::NONE
            },
            // TIOCSCTTY and TIOCNOTTY change the controlling terminal.
            "ioctl" => Self {
                session: true,
                ..Self::NONE
            },
            // A user namespace gives its first process all capabilities; a mount namespace moves
            // the working directory.
            "setns" | "unshare" => Self {
                credentials: true,
                namespaces: true,
                directory: true,
                ..Self::NONE
            },
            "chdir" | "fchdir" | "pivot_root" => Self {
                directory: true,
                ..Self::NONE
            },
            _ => Self::NONE,
        }
    }
}
