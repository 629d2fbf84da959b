//! Users and capabilities of the program and its workload.

/// Capabilities that Docker gives to root in a container, in the syntax of setpriv(1).
const DOCKER: &str = "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,\
                      +setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write";
const DOCKER_TRACING: &str = "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,\
                              +setuid,+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,\
                              +audit_write,+sys_ptrace";

/// A user with capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Root with all capabilities.
    Root,
    /// Root with the capabilities that Docker leaves.
    Docker,
    /// Root with the capabilities that Docker leaves, and `CAP_SYS_PTRACE`.
    DockerTracing,
    /// User 1000 without any capability.
    User,
}

impl Identity {
    /// Users who differ in what an agent may read.
    pub const READERS: &'static [Identity] = &[
        Identity::Root,
        Identity::Docker,
        Identity::DockerTracing,
        Identity::User,
    ];

    /// Users who differ for rules.
    pub const ALL: &'static [Identity] = &[Identity::Root, Identity::Docker, Identity::User];

    /// Returns the command line to put before a program.
    pub(crate) fn prefix(self) -> Vec<String> {
        let words: &[&str] = match self {
            Identity::Root => &[],
            // Root's permitted set is cut down to the bounding set at exec (capabilities(7)).
            Identity::Docker => &["setpriv", "--inh-caps=-all", "--bounding-set", DOCKER, "--"],
            Identity::DockerTracing => &[
                "setpriv",
                "--inh-caps=-all",
                "--bounding-set",
                DOCKER_TRACING,
                "--",
            ],
            Identity::User => &[
                "setpriv",
                "--inh-caps=-all",
                "--bounding-set=-all",
                "--reuid=1000",
                "--regid=1000",
                "--clear-groups",
                "--",
            ],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// Returns the user's number.
    pub fn uid(self) -> i64 {
        match self {
            Identity::Root | Identity::Docker | Identity::DockerTracing => 0,
            Identity::User => 1000,
        }
    }

    /// Returns the user's name inside the containers of these tests.
    pub fn name_in_container(self) -> &'static str {
        match self {
            Identity::Root | Identity::Docker | Identity::DockerTracing => "root",
            Identity::User => "app",
        }
    }
}
