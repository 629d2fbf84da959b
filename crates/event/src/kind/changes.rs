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
    /// Nothing.
    pub(super) const NONE: Self = Self {
        image: false,
        comm: false,
        thread_name: false,
        thread: false,
        credentials: false,
        session: false,
        namespaces: false,
        directory: false,
    };

    /// What an exec changes.
    pub(super) const PROGRAM: Self = Self {
        image: true,
        comm: true,
        thread_name: true,
        thread: true,
        credentials: true,
        ..Self::NONE
    };

    pub(super) const CREDENTIALS: Self = Self {
        credentials: true,
        ..Self::NONE
    };

    /// What prctl changes: PR_SET_NAME the name, PR_CAP_AMBIENT and PR_CAPBSET_DROP capability sets.
    pub(super) const NAME_AND_CAPABILITIES: Self = Self {
        thread_name: true,
        credentials: true,
        ..Self::NONE
    };

    pub(super) const SESSION: Self = Self {
        session: true,
        ..Self::NONE
    };

    /// What another namespace changes: a user namespace gives its first process all capabilities, and a mount
    /// namespace moves the working directory.
    pub(super) const NAMESPACES: Self = Self {
        credentials: true,
        namespaces: true,
        directory: true,
        ..Self::NONE
    };

    pub(super) const DIRECTORY: Self = Self {
        directory: true,
        ..Self::NONE
    };
}
