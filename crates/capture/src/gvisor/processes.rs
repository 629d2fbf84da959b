//! Processes of one sandbox, from its messages. Pids are those of the sandbox.

use std::collections::HashMap;
use std::sync::Arc;

use event::{Comm, CommandLine, ExecutableFile, ExecutableFlags, Image, Pid, Process, StartTime};

use super::message::{Context, Message, small};

/// Maximum number of processes; beyond it the table is cleared, because a sandbox may invent them.
const LIMIT: usize = 16_384;
/// Fields of `ExecveInfo`.
mod exec {
    pub(super) const PATH: u32 = 2;
    pub(super) const ARGUMENTS: u32 = 3;
    pub(super) const ENVIRONMENT: u32 = 4;
    pub(super) const UPPER: u32 = 9;
    pub(super) const INODE: u32 = 10;
    pub(super) const CHANGED: u32 = 11;
    pub(super) const LOWER: u32 = 15;
    pub(super) const FILE: u32 = 17;
    pub(super) const MEMFD: u32 = 20;
}
/// Fields of `Start`.
mod start {
    pub(super) const ARGUMENTS: u32 = 4;
    pub(super) const ENVIRONMENT: u32 = 5;
}
/// Fields of `CloneInfo`.
mod clone {
    pub(super) const TASK: u32 = 3;
    pub(super) const PROCESS: u32 = 4;
    pub(super) const START: u32 = 5;
}

/// Table of processes.
#[derive(Debug, Default)]
pub(super) struct Processes {
    there: HashMap<Pid, Arc<Process>>,
    names: HashMap<Pid, Names>,
}

/// Names of a process after an exec: gVisor takes the first argument, Linux the file that was asked for.
/// Rules mean Linux's.
#[derive(Clone, Copy, Debug)]
struct Names {
    of_gvisor: Comm,
    of_linux: Comm,
}

impl Processes {
    /// Returns the process that a message is about.
    pub(super) fn of(&mut self, context: &Context<'_>) -> Arc<Process> {
        let pid = Pid(context.pid);
        let is_same = |process: &&Arc<Process>| {
            // Not every message contains the start time.
            context.start_ns == 0 || process.start_ns == 0 || process.start_ns == context.start_ns
        };
        let process = match self.there.get(&pid).filter(is_same) {
            Some(process) => Arc::clone(process),
            None => self.insert(
                pid,
                context.start_ns,
                Pid(context.parent),
                None,
                context.comm(),
            ),
        };
        if !context.name.is_empty() && context.tid == context.pid {
            process.set_last_comm(self.present_name(context));
        }
        process
    }

    /// Returns the present name of the thread. The name given at exec counts as the one that Linux would have given.
    pub(super) fn present_name(&self, context: &Context<'_>) -> Comm {
        let given = context.comm();
        let names = self.names.get(&Pid(context.pid));
        let of_linux = names.filter(|names| names.of_gvisor == given);
        of_linux.map_or(given, |names| names.of_linux)
    }

    /// Notes that a program was executed, under this requested path.
    pub(super) fn executed(&mut self, process: &Process, image: Image, path: &[u8]) {
        let last = |path: &[u8]| path.rsplit(|byte| *byte == b'/').next().map(Comm::new);
        let line = image.command_line.get().and_then(Option::as_ref);
        let of_gvisor = line.and_then(|line| last(&line.exe));
        let of_gvisor = of_gvisor.unwrap_or_else(|| process.exec_name());
        // A program that executes itself by another name chooses its own name: shells of busybox do that.
        let is_named = !path.is_empty() && !path.starts_with(b"/proc/");
        let of_linux = last(path).filter(|_| is_named).unwrap_or(of_gvisor);
        let names = Names {
            of_gvisor,
            of_linux,
        };
        self.names.insert(process.pid, names);
        process.exec(Arc::new(image), of_linux);
    }

    pub(super) fn find(&self, pid: Pid) -> Option<Arc<Process>> {
        self.there.get(&pid).cloned()
    }

    /// Notes that a task was created; one that is not a thread is a process.
    pub(super) fn cloned(&mut self, parent: &Arc<Process>, message: &Message<'_>) {
        let pid = small(message.number(clone::PROCESS));
        if pid != small(message.number(clone::TASK)) || pid <= 0 {
            return;
        }
        let started = message.number(clone::START);
        let (image, comm) = (parent.image(), parent.last_comm());
        self.insert(Pid(pid), started, parent.pid, Some(image), comm);
    }

    fn insert(
        &mut self,
        pid: Pid,
        start_ns: u64,
        parent: Pid,
        image: Option<Arc<Image>>,
        comm: Comm,
    ) -> Arc<Process> {
        if self.there.len() >= LIMIT {
            self.there.clear();
            self.names.clear();
        }
        match self.names.get(&parent).copied() {
            Some(names) => self.names.insert(pid, names),
            None => self.names.remove(&pid),
        };
        let parent = self.find(parent).filter(|parent| parent.pid != pid);
        // Only used to distinguish processes, so its unit does not matter.
        let start = StartTime(start_ns);
        // A process that was only named runs a program that no message has reported.
        let image = image.unwrap_or_default();
        let process = Arc::new(Process::new(pid, start, start_ns, parent, image, comm));
        // Fails if the image is the parent's, which has a name.
        process.set_name(comm);
        self.there.insert(pid, Arc::clone(&process));
        process
    }

    /// Notes that a process has ended.
    pub(super) fn ended(&mut self, process: &Process) {
        process.set_exited();
        self.there.remove(&process.pid);
        self.names.remove(&process.pid);
    }
}

/// Returns the program that a message reports as executed, and the path that was asked for.
pub(super) fn executed<'m>(message: &Message<'m>) -> (Image, &'m [u8]) {
    let image = image(message, exec::ARGUMENTS, exec::ENVIRONMENT);
    let path = message.text(exec::PATH);
    // Fresh cells are empty, so none of this can fail.
    let _ = image.executable.set(Some(path.to_vec()));
    let changed = timespec(message.text(exec::CHANGED));
    let is_memfd = message.number(exec::MEMFD) != 0;
    let (upper, lower) = (
        message.number(exec::UPPER) != 0,
        message.number(exec::LOWER) != 0,
    );
    let _ = image.executable_file.set(Some(ExecutableFile {
        flags: ExecutableFlags {
            upper_layer: Some(upper),
            lower_layer: Some(lower),
            from_memfd: is_memfd,
        },
        inode: message.number(exec::INODE),
        ctime_ns: changed,
        // gVisor does not report it. A file that was changed was written or had its mode set.
        mtime_ns: changed,
    }));
    (image, message.text(exec::FILE))
}

/// Returns the first program of a container. Its file is known only if it was asked for by an absolute path.
pub(super) fn started<'m>(message: &Message<'m>) -> (Image, &'m [u8]) {
    let image = image(message, start::ARGUMENTS, start::ENVIRONMENT);
    let path = message.texts(start::ARGUMENTS).next().unwrap_or_default();
    if path.starts_with(b"/") {
        let _ = image.executable.set(Some(path.to_vec()));
    }
    (image, path)
}

fn image(message: &Message<'_>, arguments: u32, environment: u32) -> Image {
    let mut words = message.texts(arguments).map(<[u8]>::to_vec);
    let line = CommandLine {
        exe: words.next().unwrap_or_default(),
        args: words.collect(),
        truncated: false,
    };
    let image = Image {
        exec_time_ns: message.context.time_ns,
        ..Image::default()
    };
    let mut entries = Vec::new();
    for entry in message.texts(environment) {
        entries.extend_from_slice(entry);
        entries.push(0);
    }
    let _ = image.command_line.set(Some(line));
    let _ = image.environment.set(Some(entries));
    image
}

/// Converts a `Timespec` to nanoseconds.
fn timespec(bytes: &[u8]) -> u64 {
    let mut total = 0_u64;
    for field in super::wire::Fields::of(bytes).flatten() {
        let super::wire::Value::Number(number) = field.1 else {
            continue;
        };
        let part = match field.0 {
            1 => number.saturating_mul(1_000_000_000),
            2 => number,
            _ => 0,
        };
        total = total.saturating_add(part);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::super::message::testing::datagram;
    use super::super::message::{Kind, split};
    use super::super::wire::testing::{bytes, number};
    use super::*;

    fn message(datagram: &[u8]) -> Message<'_> {
        let (header, payload) = split(datagram).unwrap();
        Message::parse(header.kind.unwrap_or(Kind::Syscall), payload).unwrap()
    }

    #[test]
    fn children_know_their_parents_and_threads_are_none() {
        let mut processes = Processes::default();
        let datagram = datagram(2, |out| {
            number(out, 3, 9);
            number(out, 4, 9);
            number(out, 5, 700);
        });
        let parent = processes.of(&message(&datagram).context);
        processes.cloned(&parent, &message(&datagram));
        let child = processes.find(Pid(9)).unwrap();
        assert_eq!((child.parent().unwrap().pid, child.start_ns), (Pid(7), 700));
        let thread = super::super::message::testing::datagram(2, |out| {
            number(out, 3, 10);
            number(out, 4, 7);
        });
        processes.cloned(&parent, &message(&thread));
        assert!(processes.find(Pid(10)).is_none());
        processes.ended(&child);
        assert!(child.has_exited() && processes.find(Pid(9)).is_none());
    }

    #[test]
    fn a_process_is_called_by_its_file_until_it_takes_another_name() {
        let named = |pid: i32, name: &str| {
            let name = name.to_owned();
            move |processes: &mut Processes| {
                let context = Context {
                    pid,
                    tid: pid,
                    name: name.as_bytes(),
                    ..Context::default()
                };
                processes.of(&context).last_comm().as_bytes().to_vec()
            }
        };
        let mut processes = Processes::default();
        assert_eq!(named(7, "sh")(&mut processes), b"sh");
        let process = processes.find(Pid(7)).unwrap();
        let image = Image::default();
        let line = CommandLine {
            exe: b"innocent".to_vec(),
            ..CommandLine::default()
        };
        let _ = image.command_line.set(Some(line));
        processes.executed(&process, image, b"/bin/nc");
        assert_eq!(process.last_comm().as_bytes(), b"nc");
        assert_eq!(named(7, "innocent")(&mut processes), b"nc");
        assert_eq!(named(7, "sshd")(&mut processes), b"sshd");
        assert_eq!(
            process.exec_name().as_bytes(),
            b"nc",
            "rules go by this one"
        );
        assert_eq!(named(7, "innocent")(&mut processes), b"nc");
        let image = Image::default();
        let line = CommandLine {
            exe: b"cat".to_vec(),
            ..CommandLine::default()
        };
        let _ = image.command_line.set(Some(line));
        processes.executed(&process, image, b"/proc/self/exe");
        assert_eq!(process.last_comm().as_bytes(), b"cat");
    }

    #[test]
    fn a_program_is_described_by_its_message() {
        let datagram = datagram(3, |out| {
            bytes(out, 2, b"/bin/busybox");
            bytes(out, 3, b"/bin/cat");
            bytes(out, 3, b"x");
            bytes(out, 4, b"A=b");
            number(out, 10, 12);
            let mut changed = Vec::new();
            number(&mut changed, 1, 2);
            number(&mut changed, 2, 5);
            bytes(out, 11, &changed);
            number(out, 15, 1);
            bytes(out, 17, b"/bin/cat");
        });
        let message = message(&datagram);
        let (image, file) = executed(&message);
        assert_eq!(file, b"/bin/cat");
        assert_eq!(
            image.executable.get().unwrap().as_deref(),
            Some(&b"/bin/busybox"[..])
        );
        assert_eq!(
            image.environment.get().unwrap().as_deref(),
            Some(&b"A=b\0"[..])
        );
        let file = image.executable_file.get().unwrap().unwrap();
        assert_eq!((file.inode, file.ctime_ns), (12, 2_000_000_005));
        assert_eq!(file.flags.lower_layer, Some(true));
    }

    #[test]
    fn a_sandbox_that_invents_processes_fills_no_memory() {
        let mut processes = Processes::default();
        for pid in 1..40_000 {
            let context = Context {
                pid,
                ..Context::default()
            };
            processes.of(&context);
        }
        assert!(processes.there.len() <= LIMIT);
    }
}
