//! The table of loads.

use std::io::Write;

use crate::Error;
use crate::load::{
    close_dup, connect_refused, fork_exec, fork_exit_wait, getppid, open_close, opens_storm, pipe,
    read, shell_tree, stat, syscall_overhead, umask, write,
};
use crate::measure::{self, Batch, Measured, Setup};

/// One load generator.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// What `tollgate workload` calls it.
    pub name: &'static str,
    /// What one operation is, in a line.
    pub summary: &'static str,
    /// One operation, in a word or two.
    pub unit: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Repeats an operation; the clock is read once in so many.
    Loop {
        batch: u64,
        prepare: fn(&Setup) -> Result<Batch, Error>,
    },
    /// Times itself.
    Once {
        run: fn(&Setup) -> Result<Measured, Error>,
    },
}

/// A batch of a call that takes 100 ns is 100 us: reading the clock adds 0.05 %, and twenty
/// windows fit even into a run of some milliseconds.
const CALLS: u64 = 1000;

/// Operations of several microseconds.
const FILES: u64 = 50;

const fn repeat(
    name: &'static str,
    unit: &'static str,
    batch: u64,
    prepare: fn(&Setup) -> Result<Batch, Error>,
    summary: &'static str,
) -> Workload {
    Workload {
        name,
        summary,
        unit,
        kind: Kind::Loop { batch, prepare },
    }
}

/// All loads.
#[rustfmt::skip]
pub const WORKLOADS: &[Workload] = &[
    repeat("getppid", "call", CALLS, getppid::prepare, "ask for the parent's process id"),
    repeat("read", "call", CALLS, read::prepare, "read one byte of /dev/zero"),
    repeat("write", "call", CALLS, write::prepare, "write one byte to /dev/null"),
    repeat("close_dup", "pair", CALLS, close_dup::prepare, "duplicate a descriptor and close it"),
    repeat("umask", "call", CALLS, umask::prepare, "set the file mode mask"),
    repeat("syscall_overhead", "loop", CALLS, syscall_overhead::prepare, "five calls: dup, close, getpid, getuid, umask (UnixBench `syscall`)"),
    repeat("open_close", "pair", FILES, open_close::prepare, "open a file by its absolute path and close it"),
    repeat("open_close_relative", "pair", FILES, open_close::prepare_relative, "open a file in the current folder and close it"),
    repeat("stat", "call", FILES, stat::prepare, "ask for the status of a file by its absolute path"),
    repeat("pipe", "round trip", FILES, pipe::prepare, "send a number to another process and get it back (UnixBench `context1`)"),
    repeat("connect_refused", "attempt", FILES, connect_refused::prepare, "connect to a closed port of the loopback address"),
    repeat("fork_exit_wait", "process", 1, fork_exit_wait::prepare, "fork a process that ends at once and wait for it (UnixBench `spawn`)"),
    repeat("fork_exec", "run", 1, fork_exec::prepare, "start /bin/true (or --path) and wait for it"),
    repeat("fork_exec_static", "run", 1, fork_exec::prepare_static, "start a program without dynamic loader (busybox, or --path) and wait for it"),
    repeat("shell_tree", "tree", 1, shell_tree::prepare, "eight shell scripts at once: sort, od, grep, tee, wc (like UnixBench `shell8`), in the C locale"),
    repeat("shell_tree_utf8", "tree", 1, shell_tree::prepare_utf8, "the same in the locale C.UTF-8: every program opens 26 files more"),
    Workload { name: "opens_storm", summary: "opens of every kind from many processes and threads under signals; writes --oracle", unit: "open", kind: Kind::Once { run: opens_storm::run } },
];

/// The load called `name`.
///
/// # Errors
///
/// With the nearest name when there is none.
pub fn find(name: &str) -> Result<&'static Workload, Error> {
    WORKLOADS
        .iter()
        .find(|workload| workload.name == name)
        .ok_or_else(|| {
            let near = WORKLOADS
                .iter()
                .map(|workload| (edit_distance(name, workload.name), workload.name))
                .min()
                .filter(|(distance, near)| *distance <= near.len() / 3);
            let hint = near.map_or_else(
                || "`list` shows all".to_owned(),
                |(_, near)| format!("did you mean `{near}`?"),
            );
            Error::UnknownName { hint }
        })
}

/// Prints the table.
pub(crate) fn list(out: &mut dyn Write) -> Result<(), Error> {
    let width = WORKLOADS
        .iter()
        .map(|workload| workload.name.len())
        .max()
        .unwrap_or(0);
    WORKLOADS
        .iter()
        .try_for_each(|Workload { name, summary, .. }| writeln!(out, "{name:width$}  {summary}"))
        .map_err(|source| Error::Print { source })
}

impl Workload {
    pub(crate) fn measure(&self, setup: &Setup) -> Result<Measured, Error> {
        match self.kind {
            Kind::Loop { batch, prepare } => measure::repeat(setup, batch, prepare),
            Kind::Once { run } => run(setup),
        }
    }
}

/// How many letters to insert, remove or change (Levenshtein).
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct() {
        let names: std::collections::BTreeSet<_> = WORKLOADS.iter().map(|w| w.name).collect();
        assert_eq!(names.len(), WORKLOADS.len());
    }

    #[test]
    fn a_slip_of_the_finger_gets_the_right_name() {
        let hint = |name| find(name).unwrap_err().to_string();
        assert!(hint("getpid").ends_with("did you mean `getppid`?"));
        assert!(hint("open-close").ends_with("did you mean `open_close`?"));
        assert!(hint("xyzzy").ends_with("`list` shows all"));
    }

    #[test]
    fn edit_distances() {
        for (a, b, distance) in [("kitten", "sitting", 3), ("", "abc", 3), ("a", "a", 0)] {
            assert_eq!(edit_distance(a, b), distance);
        }
    }
}
