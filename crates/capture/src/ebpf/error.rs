//! Errors that keep the engine from starting, or end it.

use abi::constant::{CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, Constant};

use super::programs;
use process_info::procfs::ProcError;

/// Error of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a program or a map.
    #[error("cannot load the programs of the engine ebpf{}", reason(.said))]
    Load {
        /// Message of libbpf.
        said: String,
        /// Error of libbpf.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// The process lacks the privileges that every program needs.
    #[error(
        "cannot load the programs of the engine ebpf: that needs root, or the capabilities BPF and PERFMON"
    )]
    Unprivileged,
    /// A program cannot be attached.
    #[error("cannot attach the program {name}")]
    Attach {
        /// Name of the program.
        name: &'static str,
        /// Cause.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// A map cannot be used.
    #[error("cannot write a table of the engine ebpf")]
    Map {
        /// Cause.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// The hooks that were requested by name do not work on this host.
    #[error("cannot see calls by {hooks}: {why}")]
    Hooks {
        /// The hooks.
        hooks: &'static str,
        /// Reason.
        why: String,
    },
    /// The compiled object lacks a program or map.
    #[error("cannot find {name} in the programs of the engine ebpf")]
    Missing {
        /// Name of the program or map.
        name: &'static str,
    },
    /// The rules ask for more calls than the tables hold.
    #[error("cannot put {rows} calls into a table of {limit}")]
    TooManyCalls {
        /// Number of rows that the rules need.
        rows: usize,
        /// Number of rows that fit.
        limit: usize,
    },
    /// More records were lost than is allowed.
    #[error("cannot go on: more events were lost than is allowed")]
    TooManyLost,
    /// The thread that evaluates events has a defect.
    #[error(
        "cannot go on: the thread of the engine ebpf panicked; please report this with its message"
    )]
    Panicked,
    /// A process that is to be watched has ended, or never existed.
    #[error("cannot watch process {pid}: no such process")]
    Gone {
        /// Pid of the process.
        pid: i32,
    },
    /// `/proc` cannot be read.
    #[error("cannot read the running processes")]
    Proc(#[from] ProcError),
    /// A file system did not return in time the files that rules name.
    #[error(
        "cannot resolve the files that rules name below the root of process {pid}: a file system does not \
        respond; until it does, they are matched by path only"
    )]
    UnknownFiles {
        /// Pid of the process whose root it is.
        pid: i32,
    },
    /// A thread could not be started.
    #[error("cannot start the engine's threads")]
    Thread(#[source] std::io::Error),
}

impl Error {
    pub(super) fn load(cause: libbpf_rs::Error) -> Self {
        // What libbpf says then is about a limit of memory, and misleads.
        let said = programs::said();
        match is_unprivileged() {
            true => Self::Unprivileged,
            false => Self::Load { said, cause },
        }
    }

    pub(super) fn map(cause: libbpf_rs::Error) -> Self {
        Self::Map { cause }
    }
}

/// Returns true if the process has none of the capabilities with which programs can be loaded.
fn is_unprivileged() -> bool {
    let has_none = |sets: sys::credential::CapabilitySets| {
        let has = |capability: Constant| sets.effective.contains(capability.u8());
        !(has(CAP_SYS_ADMIN) || has(CAP_BPF) && has(CAP_PERFMON))
    };
    sys::credential::capabilities(0).is_ok_and(has_none)
}

/// Shortens what libbpf said to the verdict: its first line, and of a log of the verifier the last lines, where the
/// instruction and the reason stand.
fn reason(said: &str) -> String {
    const LAST_LINES: usize = 4;
    const LIMIT: usize = 600;
    let verdict = match said.split_once(LOG_BEGINS) {
        None => said.to_owned(),
        Some((before, log)) => {
            let log = log.split(LOG_ENDS).next().unwrap_or(log);
            let lines = log.lines().map(str::trim);
            let lines = lines.filter(|line| !line.is_empty() && !is_statistic(line));
            let mut last: Vec<_> = lines.rev().take(LAST_LINES).collect();
            last.reverse();
            let first = before.lines().next().unwrap_or(before);
            format!("{first}: {}", last.join("; "))
        }
    };
    let verdict = verdict.replace('\n', " ");
    match verdict.is_empty() {
        true => String::new(),
        false => format!(" ({})", verdict.chars().take(LIMIT).collect::<String>()),
    }
}

const LOG_BEGINS: &str = "-- BEGIN PROG LOAD LOG --";
const LOG_ENDS: &str = "-- END PROG LOAD LOG --";

/// Returns true for the lines with which each log of the verifier ends.
fn is_statistic(line: &str) -> bool {
    line.starts_with("processed ")
        || line.starts_with("verification time ")
        || line.starts_with("stack depth ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_log_the_last_lines_are_shown() {
        let mut log =
            String::from("libbpf: prog 'x': BPF program load failed: -EACCES; libbpf: prog 'x': ");
        log += LOG_BEGINS;
        for number in 0..1000 {
            log += &format!("\n{number}: (bf) r6 = r1");
        }
        log += "\nR2 invalid mem access 'scalar'\nprocessed 1000 insns (limit 1000000)\n";
        log += LOG_ENDS;
        log += "\nlibbpf: failed to load";
        let said = reason(&log);
        assert!(said.contains("load failed: -EACCES"), "{said}");
        assert!(
            said.ends_with("999: (bf) r6 = r1; R2 invalid mem access 'scalar')"),
            "{said}"
        );
        assert_eq!(reason(""), "");
        assert_eq!(reason("no log"), " (no log)");
    }
}
