//! The table of loads.

use std::io::Write;

use strsim::osa_distance;

use crate::Error;
use crate::load::{
    attempt, close_dup, connect_refused, container, fork_exec, fork_exit_wait, getppid, open_close,
    opens_storm, pipe, pread, raw_call, read, shell_tree, stat, study, syscall_overhead, umask,
    write,
};
use crate::measure::{self, Batch, LoadResult, Setup};
use crate::osbench;
use crate::unixbench::{copy, dhrystone, execl, shell, spawn, whetstone};

/// One load generator.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Name on the command line of `tollgate workload`.
    pub name: &'static str,
    /// Description of one operation, on one line.
    pub summary: &'static str,
    /// Unit: one operation, in a word or two.
    pub unit: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Repeats an operation. The clock is read once per batch of this many.
    Loop {
        batch: u64,
        prepare: fn(&Setup) -> Result<Batch, Error>,
    },
    /// A load that times itself.
    Once {
        run: fn(&Setup) -> Result<LoadResult, Error>,
    },
}

/// Batch size for system calls. A batch of a call that takes 100 ns is 100 us: reading the clock adds 0.05 %,
/// and twenty windows fit even into a run of some milliseconds.
const CALLS: u64 = 1000;

/// Batch size for operations of several microseconds.
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
    repeat("attempt_open", "call", FILES, attempt::open, "open /etc/shadow (or --path), be it allowed or denied"),
    repeat("attempt_socket", "call", FILES, attempt::socket, "make a socket for datagrams, be it allowed or denied"),
    repeat("attempt_chroot", "call", FILES, attempt::chroot, "change the root to itself, be it allowed or denied"),
    repeat("fork_exit_wait", "process", 1, fork_exit_wait::prepare, "fork a process that ends at once and wait for it (UnixBench `spawn`)"),
    repeat("fork_exec", "run", 1, fork_exec::prepare, "start /bin/true (or --path) and wait for it"),
    repeat("fork_exec_static", "run", 1, fork_exec::prepare_static, "start a program without dynamic loader (busybox, or --path) and wait for it"),
    repeat("shell_tree", "tree", 1, shell_tree::prepare, "eight shell scripts at once: sort, od, grep, tee, wc (like UnixBench `shell8`), in the C locale"),
    repeat("shell_tree_utf8", "tree", 1, shell_tree::prepare_utf8, "the same in the locale C.UTF-8: every program opens 26 files more"),
    repeat("ub_dhry2reg", "loop", 1000, dhrystone::prepare, "Dhrystone 2.1 (UnixBench `dhry2reg`)"),
    repeat("ub_whetstone", "pass", 1, whetstone::prepare, "ten million Whetstone instructions in double precision (UnixBench `whetstone-double`)"),
    repeat("ub_execl", "exec", 200, execl::prepare, "a small program replaces itself by itself (UnixBench `execl`)"),
    repeat("ub_fstime", "block", FILES, copy::prepare_time, "copy a file in blocks of 1024 bytes (UnixBench `fstime`)"),
    repeat("ub_fsbuffer", "block", FILES, copy::prepare_buffer, "copy a file in blocks of 256 bytes (UnixBench `fsbuffer`)"),
    repeat("ub_fsdisk", "block", FILES, copy::prepare_disk, "copy a file in blocks of 4096 bytes (UnixBench `fsdisk`)"),
    repeat("ub_pipe", "loop", CALLS, crate::unixbench::pipe::prepare, "512 bytes into a pipe and out of it (UnixBench `pipe`)"),
    repeat("ub_context1", "round trip", FILES, pipe::prepare, "send a number to another process and get it back (UnixBench `context1`)"),
    repeat("ub_spawn", "process", 500, spawn::prepare, "a small program forks a child that ends at once (UnixBench `spawn`)"),
    repeat("ub_shell1", "run", 1, shell::prepare_one, "a shell script of small tools (UnixBench `shell1`)"),
    repeat("ub_shell8", "run", 1, shell::prepare_eight, "eight of them at once (UnixBench `shell8`)"),
    repeat("ub_syscall", "loop", CALLS, syscall_overhead::prepare, "five calls: dup, close, getpid, getuid, umask (UnixBench `syscall`)"),
    repeat("os_create_files", "file", osbench::FILES, osbench::create_files, "files of 32 bytes, made and removed (OSBench)"),
    repeat("os_create_threads", "thread", osbench::CROWD, osbench::create_threads, "a hundred threads, started and joined (OSBench)"),
    repeat("os_create_processes", "process", osbench::CROWD, osbench::create_processes, "a hundred forks, then waits (OSBench)"),
    repeat("os_launch_programs", "program", osbench::CROWD, osbench::launch_programs, "a hundred programs that end at once (OSBench)"),
    repeat("os_mem_alloc", "chunk", osbench::CHUNKS, osbench::mem_alloc, "a million small chunks of memory, taken and freed (OSBench)"),
    repeat("raw_gettimeofday", "call", CALLS, raw_call::gettimeofday, "gettimeofday by the kernel"),
    repeat("raw_getuid", "call", CALLS, raw_call::getuid, "getuid"),
    repeat("raw_getpid", "call", CALLS, raw_call::getpid, "getpid by the kernel"),
    repeat("raw_getppid", "call", CALLS, raw_call::getppid, "getppid"),
    repeat("raw_times", "call", CALLS, raw_call::times, "times"),
    repeat("pread_4k", "read", CALLS, pread::prepare, "read 4 KiB at changing places of a file in memory"),
    Workload { name: "container", summary: "create, start, ask, enter, kill and delete containers (--runtime, --program)", unit: "life", kind: Kind::Once { run: container::run } },
    Workload { name: "study", summary: "one of the raw calls (--call), in a process timed from outside and inside", unit: "call", kind: Kind::Once { run: study::run } },
    Workload { name: "opens_storm", summary: "opens of every kind from many processes and threads under signals; writes --oracle", unit: "open", kind: Kind::Once { run: opens_storm::run } },
];

/// Returns the load called `name`.
///
/// # Errors
///
/// If there is no such load. The error names the nearest one.
pub fn find(name: &str) -> Result<&'static Workload, Error> {
    WORKLOADS
        .iter()
        .find(|workload| workload.name == name)
        .ok_or_else(|| {
            let near = nearest(name, WORKLOADS.iter().map(|workload| workload.name));
            let hint = near.map_or_else(
                || "`list` shows all".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            Error::UnknownName { hint }
        })
}

/// Prints the table of loads.
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
    pub(crate) fn measure(&self, setup: &Setup) -> Result<LoadResult, Error> {
        match self.kind {
            Kind::Loop { batch, prepare } => measure::repeat(setup, batch, prepare),
            Kind::Once { run } => run(setup),
        }
    }
}

/// Returns the name that is closest to what was typed, if one is close.
pub fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|name| (osa_distance(typed, name), name))
        .min()
        .filter(|(distance, name)| *distance <= (name.len() / 3).max(1))
        .map(|(_, name)| name)
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
}
