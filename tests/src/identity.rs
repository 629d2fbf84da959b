//! As whom the program and its workload run.

/// What Docker gives to root in a container, in words of setpriv(1).
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
    /// The same with `CAP_SYS_PTRACE`.
    DockerTracing,
    /// User 1000 without any capability.
    User,
}

impl Identity {
    /// Those among which what an agent may read differs.
    pub const READERS: &'static [Identity] = &[
        Identity::Root,
        Identity::Docker,
        Identity::DockerTracing,
        Identity::User,
    ];

    /// Those that rules may tell apart.
    pub const ALL: &'static [Identity] = &[Identity::Root, Identity::Docker, Identity::User];

    /// The command line to put before a program.
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

    /// The user's number.
    pub fn uid(self) -> i64 {
        match self {
            Identity::Root | Identity::Docker | Identity::DockerTracing => 0,
            Identity::User => 1000,
        }
    }

    /// The user's name inside the containers of these tests.
    pub fn name_in_container(self) -> &'static str {
        match self {
            Identity::Root | Identity::Docker | Identity::DockerTracing => "root",
            Identity::User => "app",
        }
    }
}
