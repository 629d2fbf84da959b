//! What works on this machine, found out by doing it.
//!
//! Kernel versions and configuration files say what should work; a container's seccomp profile, a
//! security module or a backport decides what does. So each probe does the real thing, in a child
//! process where it leaves something behind (a filter, a namespace, a tracee).

mod attempt;
mod container;
mod kernel;
mod memory;
mod privileged;
mod seccomp;
mod security;
mod tracing;
mod tripwire;

pub use attempt::in_child;

/// Whether something works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It works.
    Yes {
        /// What was seen.
        seen: String,
    },
    /// It works, but not wholly, or only under a condition.
    Partial {
        /// What is missing.
        why: String,
        /// What would change it, if anything would.
        fix: Option<String>,
    },
    /// It does not work.
    No {
        /// Why.
        why: String,
        /// What to do.
        fix: String,
    },
}

impl Support {
    /// It works; what was seen.
    pub fn yes(seen: impl Into<String>) -> Self {
        Self::Yes { seen: seen.into() }
    }

    /// It works, but not wholly: what is missing.
    pub fn partial(why: impl Into<String>) -> Self {
        Self::Partial {
            why: why.into(),
            fix: None,
        }
    }

    fn partial_with_fix(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Partial {
            why: why.into(),
            fix: Some(fix.into()),
        }
    }

    /// It does not work: why, and what to do.
    pub fn no(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::No {
            why: why.into(),
            fix: fix.into(),
        }
    }

    /// Whether it works at least in part.
    pub fn is_usable(&self) -> bool {
        !matches!(self, Self::No { .. })
    }
}

/// A row of the table.
struct Probe {
    /// Stable name.
    name: &'static str,
    /// What it is good for.
    purpose: &'static str,
    /// Whether the engine `notify` cannot do without it.
    notify_needs_it: bool,
    run: fn() -> Support,
}

/// What one probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable name of the probe.
    pub name: &'static str,
    /// What it is good for.
    pub purpose: &'static str,
    /// Whether the engine `notify` cannot do without it.
    pub notify_needs_it: bool,
    /// What was found.
    pub support: Support,
}

/// The probe that decides about the engine `ptrace`.
const PTRACE: &str = "ptrace-engine";

/// The rows in the order in which they are shown.
fn probes(ebpf: fn() -> Support) -> [Probe; 19] {
    [
        Probe {
            name: "kernel",
            purpose: "levels 5.5 (notify), 5.11, 5.19 and 6.6 (faster, safer)",
            notify_needs_it: true,
            run: kernel::version,
        },
        Probe {
            name: "seccomp-filter",
            purpose: "drops what no rule needs inside the kernel",
            notify_needs_it: true,
            run: seccomp::filter,
        },
        Probe {
            name: "notify-listener",
            purpose: "sees calls without privileges",
            notify_needs_it: true,
            run: seccomp::listener,
        },
        Probe {
            name: "notify-continue",
            purpose: "continues a call after it was inspected",
            notify_needs_it: true,
            run: seccomp::continue_call,
        },
        Probe {
            name: "wait-killable",
            purpose: "signals do not repeat a trapped call",
            notify_needs_it: false,
            run: seccomp::wait_killable,
        },
        Probe {
            name: "sync-wake-up",
            purpose: "faster switch to and from the monitor",
            notify_needs_it: false,
            run: seccomp::sync_wake_up,
        },
        Probe {
            name: "no-new-privs",
            purpose: "set-uid programs keep their privileges under a filter",
            notify_needs_it: false,
            run: seccomp::no_new_privs,
        },
        Probe {
            name: "process-memory",
            purpose: "reads paths and arguments of a watched program",
            notify_needs_it: true,
            run: memory::read,
        },
        Probe {
            name: "pidfd-getfd",
            purpose: "reads sockets of a watched program",
            notify_needs_it: false,
            run: memory::pidfd_getfd,
        },
        Probe {
            name: "ptrace-seize",
            purpose: "reads call results",
            notify_needs_it: false,
            run: memory::seize,
        },
        Probe {
            name: PTRACE,
            purpose: "the engine ptrace: where notify does not work, and for running processes",
            notify_needs_it: false,
            run: tracing::engine,
        },
        Probe {
            name: "inotify",
            purpose: "reports sensitive files that are opened without a call that the engine saw",
            notify_needs_it: false,
            run: tripwire::inotify,
        },
        Probe {
            name: "yama",
            purpose: "which processes can be read",
            notify_needs_it: false,
            run: security::yama,
        },
        Probe {
            name: "capabilities",
            purpose: "SYS_PTRACE and SYS_ADMIN",
            notify_needs_it: false,
            run: security::capabilities,
        },
        Probe {
            name: "user-namespace",
            purpose: "root in a namespace for unprivileged users",
            notify_needs_it: false,
            run: security::user_namespace,
        },
        Probe {
            name: "landlock",
            purpose: "confines without privileges",
            notify_needs_it: false,
            run: security::landlock,
        },
        Probe {
            name: "ebpf",
            purpose: "watches a whole host",
            notify_needs_it: false,
            run: ebpf,
        },
        Probe {
            name: "cgroup",
            purpose: "identifies containers",
            notify_needs_it: false,
            run: container::cgroup,
        },
        Probe {
            name: "container-identity",
            purpose: "container.id and rules that use it",
            notify_needs_it: false,
            run: container::identity,
        },
    ]
}

/// Whether a process can restrict itself by Landlock, tried in a child. The calling process must have
/// one thread.
#[must_use]
pub fn landlock() -> Support {
    security::landlock()
}

/// Whether a filter can be installed, tried in a child. The calling process must have one thread.
#[must_use]
pub fn seccomp_filter() -> Support {
    seccomp::filter()
}

/// Whether one of the findings is that the engine `ptrace` works.
pub fn ptrace_works(findings: &[Finding]) -> bool {
    let is_usable = |finding: &Finding| finding.name == PTRACE && finding.support.is_usable();
    findings.iter().any(is_usable)
}

/// Whether a filter of this process has a listener already. Its answers go before those that a
/// filter gives to a tracer. The calling process must have one thread, because this forks.
pub fn has_listener() -> bool {
    matches!(seccomp::listener(), Support::No { why, .. } if why == seccomp::BUSY)
}

/// Why the engine `notify` does not work here, if it does not: the quick probes alone. The calling
/// process must have one thread, because some fork.
pub fn why_not_notify() -> Option<String> {
    let decisive: [fn() -> Support; 2] = [kernel::version, seccomp::listener];
    decisive.into_iter().find_map(|probe| match probe() {
        Support::No { why, .. } => Some(why),
        Support::Yes { .. } | Support::Partial { .. } => None,
    })
}

/// Runs all probes; `ebpf` is the one of that engine, whose programs are not known here. The calling
/// process must have one thread, because some fork.
pub fn all(ebpf: fn() -> Support) -> Vec<Finding> {
    probes(ebpf)
        .iter()
        .map(|probe| Finding {
            name: probe.name,
            purpose: probe.purpose,
            notify_needs_it: probe.notify_needs_it,
            support: (probe.run)(),
        })
        .collect()
}
