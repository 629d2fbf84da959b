//! Probes of the features of this host.
//!
//! Kernel versions and configuration files say what should work; a container's seccomp profile, a security
//! module or a backport determines what does. Each probe therefore uses the feature, in a child process if it
//! leaves something behind (a filter, a namespace, a tracee).

mod attempt;
mod container;
pub mod fix;
mod kernel;
mod memory;
mod privileged;
mod seccomp;
mod security;
mod tracing;
mod tripwire;

pub use attempt::in_child;

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// The feature works.
    Yes {
        /// The observation.
        seen: String,
    },
    /// The feature works in part, or under a condition.
    Partial {
        /// The missing part.
        why: String,
        /// A remedy, if there is one.
        fix: Option<String>,
    },
    /// The feature does not work.
    No {
        /// The reason.
        why: String,
        /// A remedy, if one can help on this machine.
        fix: Option<String>,
    },
}

impl Support {
    /// A result for a feature that works, with the observation.
    pub fn yes(seen: impl Into<String>) -> Self {
        Self::Yes { seen: seen.into() }
    }

    /// A result for a feature that works in part, with the missing part.
    pub fn partial(why: impl Into<String>) -> Self {
        Self::Partial {
            why: why.into(),
            fix: None,
        }
    }

    fn partial_with_fix(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::partial_unless_fixed(why, Some(fix.into()))
    }

    /// A result for a feature that works in part, with the missing part, and a remedy if one can help here.
    pub fn partial_unless_fixed(why: impl Into<String>, fix: Option<String>) -> Self {
        Self::Partial {
            why: why.into(),
            fix,
        }
    }

    /// A result for a feature that does not work, with reason and remedy.
    pub fn no(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::no_unless_fixed(why, Some(fix.into()))
    }

    /// A result for a feature that does not work, with the reason, and a remedy if one can help here.
    pub fn no_unless_fixed(why: impl Into<String>, fix: Option<String>) -> Self {
        Self::No {
            why: why.into(),
            fix,
        }
    }

    /// Returns true if the feature works at least in part.
    pub fn is_usable(&self) -> bool {
        !matches!(self, Self::No { .. })
    }
}

/// A row of the table of probes.
struct Probe {
    /// Stable name.
    name: &'static str,
    /// Purpose of the feature.
    purpose: &'static str,
    /// Set if the engine `notify` needs the feature.
    notify_needs_it: bool,
    run: Run,
}

/// Where the function of a probe is.
enum Run {
    /// In this crate.
    Here(fn() -> Support),
    /// With the eBPF engine, whose programs are not known to this crate.
    Engine,
}

/// The result of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable name of the probe.
    pub name: &'static str,
    /// Purpose of the feature.
    pub purpose: &'static str,
    /// Set if the engine `notify` needs the feature.
    pub notify_needs_it: bool,
    /// The result.
    pub support: Support,
}

/// Name of the probe of the engine `ptrace`.
const PTRACE: &str = "ptrace-engine";

/// The probes in the order of display.
const PROBES: [Probe; 19] = [
    Probe {
        name: "kernel",
        purpose: "levels 5.5 (notify), 5.11, 5.19 and 6.6 (faster, safer)",
        notify_needs_it: true,
        run: Run::Here(kernel::version),
    },
    Probe {
        name: "seccomp-filter",
        purpose: "drops what no rule needs inside the kernel",
        notify_needs_it: true,
        run: Run::Here(seccomp::filter),
    },
    Probe {
        name: "notify-listener",
        purpose: "sees calls without privileges",
        notify_needs_it: true,
        run: Run::Here(seccomp::listener),
    },
    Probe {
        name: "notify-continue",
        purpose: "continues a call after it was inspected",
        notify_needs_it: true,
        run: Run::Here(seccomp::continue_call),
    },
    Probe {
        name: "wait-killable",
        purpose: "signals do not repeat a trapped call",
        notify_needs_it: false,
        run: Run::Here(seccomp::wait_killable),
    },
    Probe {
        name: "sync-wake-up",
        purpose: "faster switch to and from the monitor",
        notify_needs_it: false,
        run: Run::Here(seccomp::sync_wake_up),
    },
    Probe {
        name: "no-new-privs",
        purpose: "set-uid programs keep their privileges under a filter",
        notify_needs_it: false,
        run: Run::Here(seccomp::no_new_privs),
    },
    Probe {
        name: "process-memory",
        purpose: "reads paths and arguments of a watched program",
        notify_needs_it: true,
        run: Run::Here(memory::read),
    },
    Probe {
        name: "pidfd-getfd",
        purpose: "reads sockets of a watched program",
        notify_needs_it: false,
        run: Run::Here(memory::pidfd_getfd),
    },
    Probe {
        name: "ptrace-seize",
        purpose: "reads call results",
        notify_needs_it: false,
        run: Run::Here(memory::seize),
    },
    Probe {
        name: PTRACE,
        purpose: "the engine ptrace: where notify does not work, and for running processes",
        notify_needs_it: false,
        run: Run::Here(tracing::engine),
    },
    Probe {
        name: "inotify",
        purpose: "reports sensitive files that are opened without a call that the engine saw",
        notify_needs_it: false,
        run: Run::Here(tripwire::inotify),
    },
    Probe {
        name: "yama",
        purpose: "which processes can be read",
        notify_needs_it: false,
        run: Run::Here(security::yama),
    },
    Probe {
        name: "capabilities",
        purpose: "SYS_PTRACE and SYS_ADMIN",
        notify_needs_it: false,
        run: Run::Here(security::capabilities),
    },
    Probe {
        name: "user-namespace",
        purpose: "root in a namespace for unprivileged users",
        notify_needs_it: false,
        run: Run::Here(security::user_namespace),
    },
    Probe {
        name: "landlock",
        purpose: "confines without privileges",
        notify_needs_it: false,
        run: Run::Here(security::landlock),
    },
    Probe {
        name: "ebpf",
        purpose: "watches a whole host",
        notify_needs_it: false,
        run: Run::Engine,
    },
    Probe {
        name: "cgroup",
        purpose: "identifies containers",
        notify_needs_it: false,
        run: Run::Here(container::cgroup),
    },
    Probe {
        name: "container-identity",
        purpose: "container.id and rules that use it",
        notify_needs_it: false,
        run: Run::Here(container::identity),
    },
];

/// Probes in a child whether a process can restrict itself with Landlock. The calling process must have one
/// thread.
#[must_use]
pub fn landlock() -> Support {
    security::landlock()
}

/// Probes in a child whether a seccomp filter can be installed. The calling process must have one thread.
#[must_use]
pub fn seccomp_filter() -> Support {
    seccomp::filter()
}

/// Returns true if the findings include a working engine `ptrace`.
pub fn ptrace_works(findings: &[Finding]) -> bool {
    let is_usable = |finding: &Finding| finding.name == PTRACE && finding.support.is_usable();
    findings.iter().any(is_usable)
}

/// Returns true if file permissions do not restrict what this process reads. False if that cannot be known.
pub fn reads_every_file() -> bool {
    security::reads_every_file()
}

/// Returns true if a filter of this process already has a listener, whose answers take precedence over a
/// filter that returns to a tracer. The calling process must have one thread, because the function forks.
pub fn has_listener() -> bool {
    matches!(seccomp::listener(), Support::No { why, .. } if why == seccomp::BUSY)
}

/// The reason why the engine `notify` does not work here, from the quick probes alone; `None` if it works.
/// The calling process must have one thread, because some probes fork.
pub fn why_not_notify() -> Option<String> {
    let decisive: [fn() -> Support; 2] = [kernel::version, seccomp::listener];
    decisive.into_iter().find_map(|probe| match probe() {
        Support::No { why, .. } => Some(why),
        Support::Yes { .. } | Support::Partial { .. } => None,
    })
}

/// Runs all probes. `ebpf` probes the eBPF engine, whose programs are not known to this crate. The calling
/// process must have one thread, because some probes fork.
pub fn all(ebpf: fn() -> Support) -> Vec<Finding> {
    PROBES
        .iter()
        .map(|probe| Finding {
            name: probe.name,
            purpose: probe.purpose,
            notify_needs_it: probe.notify_needs_it,
            support: match probe.run {
                Run::Here(run) => run(),
                Run::Engine => ebpf(),
            },
        })
        .collect()
}
