//! The process of a container runtime that starts a session, recorded while it waits in a call.
//!
//! A runtime may have ended when the session's first program begins, and `/proc` then names another parent and
//! says nothing about the runtime.

use std::sync::OnceLock;

use event::{Comm, CommandLine, Image, Pid, StartTime};
use process_info::procfs::Proc;
use serde::{Deserialize, Serialize};

use super::lineage;
use super::process_inspector::Identity;
use super::system_info::executable_path;

/// A runtime's process and its program.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RuntimeProcess {
    pid: i32,
    parent: i32,
    session: i32,
    start: u64,
    name: Vec<u8>,
    executable: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    /// The mark that its children inherit, if it could be given one.
    mark: Option<u64>,
}

impl RuntimeProcess {
    /// Reads what is known about a process, and marks it for its children. The process must wait in a call, so
    /// that it executes nothing meanwhile. Returns `None` if something cannot be read.
    pub fn of_caller(proc: &Proc, pid: Pid) -> Option<Self> {
        let stat = proc.stat(pid.0).ok()?;
        let line = proc.command_line(pid.0).ok()?;
        if line.truncated || line.exe.is_empty() {
            return None;
        }
        Some(Self {
            pid: pid.0,
            parent: stat.stat.ppid.0,
            session: stat.stat.sid,
            start: stat.start.0,
            name: stat.comm.as_bytes().to_vec(),
            executable: executable_path(proc, pid.0).ok()?,
            arguments: std::iter::once(line.exe).chain(line.args).collect(),
            mark: lineage::give_mark(pid, proc),
        })
    }

    /// Returns the mark that children of the process inherit.
    pub(super) fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// Returns the identity of the process.
    pub(super) fn identity(&self) -> Identity {
        Identity {
            pid: Pid(self.pid),
            ppid: Pid(self.parent),
            session: Pid(self.session),
            start: StartTime(self.start),
            comm: Comm::new(&self.name),
        }
    }

    /// Returns the program of the process, which it began before the monitoring.
    pub(super) fn image(&self) -> Image {
        let mut arguments = self.arguments.iter().cloned();
        let command_line = CommandLine {
            exe: arguments.next().unwrap_or_default(),
            args: arguments.collect(),
            truncated: false,
        };
        Image {
            name: OnceLock::from(Comm::new(&self.name)),
            command_line: OnceLock::from(Some(command_line)),
            executable: OnceLock::from(Some(self.executable.clone())),
            ..Image::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;

    use super::*;
    use crate::counters::Counters;
    use crate::tree::{InitProgramState, Setup, Tree};

    #[test]
    fn the_first_program_of_a_session_has_its_ended_runtime_for_a_parent() {
        let proc = Proc::open().unwrap();
        // The runtime ends at once, and its child, whose pid it prints, is an orphan.
        let script = "read go; (sleep 5 & echo $!); read end";
        let spawned = Command::new("sh")
            .args(["-c", script, "runc", "exec"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn();
        let mut runtime = spawned.unwrap();
        let pid = Pid(runtime.id().cast_signed());
        // As the shell waits, which is only certain once it has executed.
        let found = std::iter::repeat_with(|| RuntimeProcess::of_caller(&proc, pid))
            .find(|found| found.as_ref().is_some_and(|it| it.name == b"sh"))
            .unwrap()
            .unwrap();
        use std::io::{BufRead, Write};
        let mut input = runtime.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        let mut line = String::new();
        let output = runtime.stdout.take().unwrap();
        std::io::BufReader::new(output)
            .read_line(&mut line)
            .unwrap();
        let orphan = Pid(line.trim().parse().unwrap());
        drop(input);
        runtime.wait().unwrap();

        let mount_namespace = proc.namespace(pid_of_test(), "ns/mnt").unwrap();
        let tree = Tree::new(Vec::new()).unwrap().with_marks();
        let tree = tree.with_setup(Setup { mount_namespace });
        tree.adopt(InitProgramState::No);
        tree.begin_with(&found);
        let counters = Counters::default();
        let first = tree.of_thread(event::Tid(orphan.0), &counters).unwrap();
        let parent = first.parent().unwrap();
        assert_eq!((parent.pid, parent.start), (pid, StartTime(found.start)));
        let image = Arc::clone(&parent.image());
        assert_eq!(
            image.executable.get(),
            Some(&Some(found.executable.clone()))
        );
        let line = image.command_line.get().unwrap().clone().unwrap();
        assert_eq!((&line.exe[..], line.args.len()), (&b"sh"[..], 4));
        assert_eq!(parent.parent().unwrap().pid, Pid(pid_of_test()));
        let snapshot = counters.snapshot();
        assert_eq!(snapshot.guessed_parents, 0, "{snapshot:?}");
        let orphan = rustix::process::Pid::from_raw(orphan.0).unwrap();
        rustix::process::kill_process(orphan, rustix::process::Signal::KILL).unwrap();
    }

    fn pid_of_test() -> i32 {
        std::process::id().cast_signed()
    }
}
