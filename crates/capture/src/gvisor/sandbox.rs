//! Turns one sandbox's messages into events and evaluates them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::Arch;
use bumpalo::Bump;
use event::{
    Absence, Container, Evaluator, Event, EventKind, Image, LiveProcess, Lookup, Outcome, Param,
    ParamSource, Process, Stage, SystemInfo, Tid,
};

use super::calls;
use super::message::{Context, Kind, Message, split};
use super::processes::{Processes, executed, started};
use super::system_info::SandboxWorld;
use super::wire::Malformed;
use super::{Counters, Shared};
use crate::notify::is_disguise;
use crate::notify::names::report_name;
use container::KnownContainer;
use decoder::call::Call;
use decoder::decode::{self, SocketView};
use process_info::memory::Memory;
use process_info::sockets::ResolvedDescriptor;

/// Number of bytes of one event's memory kept for the next.
const ARENA_KEEP: usize = 256 * 1024;
/// Maximum number of `execve` calls whose outcome is unknown; each is settled by its task's next message.
const EXECS: usize = 32;
/// Maximum number of containers remembered for a sandbox; a pod has a few.
const CONTAINERS: usize = 64;

/// State of one sandbox.
pub(super) struct Sandbox<J: Evaluator> {
    shared: Arc<Shared<J>>,
    evaluator: Arc<J>,
    scratch: J::Scratch,
    processes: Processes,
    containers: Vec<(Vec<u8>, Arc<Container>)>,
    memory: Memory,
    arena: Bump,
    /// Number of messages lost, as the sandbox last reported it.
    dropped: Option<u32>,
    /// Messages of `execve` whose outcome is unknown, by process and task: gVisor reports no error there, and
    /// an executed program by a further message.
    execs: Vec<(i32, i32, Vec<u8>)>,
}

impl<J: Evaluator> Sandbox<J> {
    pub(super) fn new(shared: Arc<Shared<J>>) -> Self {
        let evaluator = shared.evaluator.load_full();
        Self {
            scratch: evaluator.scratch(),
            evaluator,
            shared,
            processes: Processes::default(),
            containers: Vec::new(),
            memory: Memory::captured(),
            arena: Bump::with_capacity(16 * 1024),
            dropped: None,
            execs: Vec::new(),
        }
    }

    /// Handles one datagram.
    pub(super) fn receive(&mut self, datagram: &[u8]) {
        let counters = &Arc::clone(&self.shared).counters;
        Counters::add(&counters.messages, 1);
        if self.look(datagram).is_err() {
            Counters::add(&counters.malformed, 1);
        }
        if self.arena.allocated_bytes() > ARENA_KEEP {
            self.arena = Bump::with_capacity(16 * 1024);
        } else {
            self.arena.reset();
        }
    }

    fn look(&mut self, datagram: &[u8]) -> Result<(), Malformed> {
        let (header, payload) = split(datagram)?;
        self.note_losses(header.dropped);
        let Some(kind) = header.kind else {
            Counters::add(&self.shared.counters.unknown_messages, 1);
            return Ok(());
        };
        let message = Message::parse(kind, payload)?;
        let evaluator = self.shared.evaluator.load();
        if !Arc::ptr_eq(&evaluator, &self.evaluator) {
            self.scratch = evaluator.scratch();
            self.evaluator = Arc::clone(&evaluator);
        }
        let by = self.settle(kind, message.context.pid, message.context.tid)?;
        let process = self.processes.of(&message.context);
        match kind {
            // The entry says less than the exit.
            Kind::RawSyscall | Kind::Syscall
                if is_exec(kind, &message) && message.result.is_none() => {}
            Kind::RawSyscall | Kind::Syscall
                if is_exec(kind, &message) && message.result == Some(0) =>
            {
                // The program itself says more, and has a message of its own.
                if self.execs.len() == EXECS {
                    let (.., earliest) = self.execs.remove(0);
                    self.fails(&earliest)?;
                }
                let context = &message.context;
                self.execs
                    .push((context.pid, context.tid, datagram.to_vec()));
            }
            Kind::Clone => self.processes.cloned(&process, &message),
            Kind::Execve => {
                let (image, path) = executed(&message);
                self.executes(&message, &process, by, (image, path));
            }
            Kind::ContainerStart => {
                let first = started(&message);
                self.executes(&message, &process, abi::Syscall::EXECVE, first);
            }
            Kind::TaskExit => self.ends(&message, &process),
            Kind::RawSyscall | Kind::Syscall => self.calls(kind, &message, &process, true),
            // The end of the last task says the same; mappings are reported as calls.
            Kind::ExitNotifyParent | Kind::MmapInfo => {}
        }
        Ok(())
    }

    /// Notes losses. The number counts up from the sandbox's start and wraps.
    fn note_losses(&mut self, dropped: u32) {
        let before = self.dropped.replace(dropped);
        let lost = dropped.wrapping_sub(before.unwrap_or(0));
        Counters::add(&self.shared.counters.dropped, u64::from(lost));
    }

    /// Handles a program that was executed, by a call or as the container's first.
    fn executes(
        &mut self,
        message: &Message<'_>,
        process: &Arc<Process>,
        by: abi::Syscall,
        (image, path): (Image, &[u8]),
    ) {
        self.processes.executed(process, image, path);
        let kind = EventKind::of_syscall(by);
        let arena = std::mem::take(&mut self.arena);
        let path = &*arena.alloc_slice_copy(path);
        let params = kind.spec().params.iter().map(|param| match param.source {
            ParamSource::Result => Param::Int(0),
            ParamSource::Path { .. } => Param::Text(path),
            source => Absence::of_source(source).map_or(Param::Unreadable, Param::Absent),
        });
        let account = Account {
            params: arena.alloc_slice_fill_iter(params),
            ..Account::of(kind, Outcome::Returned(0))
        };
        self.conclude(&message.context, process, account, &arena);
        self.arena = arena;
    }

    /// Handles the end of a task; the last one of a process, or its first, ends the process.
    fn ends(&mut self, message: &Message<'_>, process: &Arc<Process>) {
        if message.context.tid != message.context.pid {
            return;
        }
        let kind = EventKind::from_name("procexit").expect("the table has it");
        let arena = std::mem::take(&mut self.arena);
        let params = kind
            .spec()
            .params
            .iter()
            .map(|_| Param::Absent(Absence::recorded()));
        let account = Account {
            params: arena.alloc_slice_fill_iter(params),
            ..Account::of(kind, Outcome::None)
        };
        self.conclude(&message.context, process, account, &arena);
        self.arena = arena;
        self.processes.ended(process);
    }

    /// Settles a pending `execve`. If the task goes on, the call has failed, with an unknown error. Otherwise
    /// returns the call by which a program was executed.
    fn settle(&mut self, kind: Kind, pid: i32, tid: i32) -> Result<abi::Syscall, Malformed> {
        let is_by_task = kind != Kind::Execve;
        let ends = |(of, task, _): &(i32, i32, _)| *of == pid && (!is_by_task || *task == tid);
        let Some(at) = self.execs.iter().position(ends) else {
            return Ok(abi::Syscall::EXECVE);
        };
        let (.., datagram) = self.execs.swap_remove(at);
        if is_by_task {
            self.fails(&datagram)?;
        }
        let (header, payload) = split(&datagram)?;
        let kind = header.kind.unwrap_or(Kind::Syscall);
        let call = named(kind, &Message::parse(kind, payload)?);
        Ok(call.map_or(abi::Syscall::EXECVE, |(_, call)| call))
    }

    fn fails(&mut self, datagram: &[u8]) -> Result<(), Malformed> {
        let (header, payload) = split(datagram)?;
        let kind = header.kind.unwrap_or(Kind::Syscall);
        let message = Message::parse(kind, payload)?;
        let process = self.processes.of(&message.context);
        self.calls(kind, &message, &process, false);
        Ok(())
    }

    fn calls(
        &mut self,
        kind: Kind,
        message: &Message<'_>,
        process: &Arc<Process>,
        has_result: bool,
    ) {
        let Some((arch, syscall)) = named(kind, message) else {
            return Counters::add(&self.shared.counters.unknown_calls, 1);
        };
        let mut arguments = calls::Arguments::default();
        self.memory.capture(|captured| {
            arguments = calls::arguments(kind, syscall, message, captured);
        });
        let call = Call {
            id: 0,
            tid: Tid(message.context.tid),
            arch,
            syscall,
            kind: EventKind::of_syscall(syscall),
            ip: 0,
            args: arguments.registers,
            is_unread: false,
        };
        let arena = std::mem::take(&mut self.arena);
        let outcome = match message.result.filter(|_| has_result) {
            Some(result) => Outcome::Returned(result),
            None if has_result => Outcome::Pending,
            None => Outcome::Unlearnt,
        };
        let mut decoded =
            decode::decode(&call, &self.memory, &arena).returned(&call, outcome, &arena);
        if decoded.unreadable {
            Counters::add(&self.shared.counters.unreadable, 1);
        }
        if let (Some(descriptor), Some((number, path))) = (decoded.descriptor, arguments.descriptor)
            && descriptor.number == event::Known::Yes(i64::from(number))
        {
            let found = resolved(path);
            decoded.descriptor = Some(decode::merge(
                descriptor,
                &found,
                SocketView::default(),
                &arena,
            ));
        }
        let account = Account {
            params: decoded.params,
            descriptor: decoded.descriptor,
            of_descriptor: arguments.descriptor,
            ..Account::of(call.kind, outcome)
        };
        self.conclude(&message.context, process, account, &arena);
        self.arena = arena;
    }

    fn conclude(
        &mut self,
        context: &Context<'_>,
        process: &Arc<Process>,
        account: Account<'_>,
        arena: &Bump,
    ) {
        let container = self.container(context.container);
        let shared = &self.shared;
        let world = SandboxWorld {
            context,
            processes: &self.processes,
            container: &container,
            descriptor: account.of_descriptor,
            host_name: &shared.host_name,
        };
        let live = LiveProcess::default();
        // A fresh cell is empty, so this cannot fail.
        let _ = live.comm.set(Lookup::Found(process.exec_name()));
        let present = process.last_comm();
        if is_disguise(&shared.names.load(), process.name(), present) {
            report_name(&*shared.notices, process, present);
        }
        let event = Event {
            number: shared.events.fetch_add(1, Ordering::Relaxed) + 1,
            time_ns: context.time_ns,
            kind: account.kind,
            stage: Stage::Exit,
            cpu: None,
            tid: Tid(context.tid),
            process,
            image: process.image(),
            params: account.params,
            descriptor: account.descriptor,
            // A call that does not return has no result to wait for.
            outcome: match account.outcome {
                Outcome::Pending => Outcome::Unlearnt,
                outcome => outcome,
            },
            world: &world as &dyn SystemInfo,
            live: &live,
            arena,
        };
        Counters::add(&shared.counters.evaluated, 1);
        let undecided = self.evaluator.evaluate(&mut self.scratch, &event);
        if !undecided.is_empty() {
            Counters::add(&shared.counters.undecided, undecided.len() as u64);
            shared.notices.undecided(&event, &undecided);
        }
    }

    fn container(&mut self, id: &[u8]) -> Arc<Container> {
        if let Some((_, container)) = self.containers.iter().find(|(known, _)| known == id) {
            return Arc::clone(container);
        }
        let container = Arc::new(match std::str::from_utf8(id) {
            Ok("") | Err(_) => Container::unknown(),
            Ok(id) => KnownContainer::by_id(id, &self.shared.state_root),
        });
        if self.containers.len() >= CONTAINERS {
            self.containers.clear();
        }
        self.containers
            .push((id.to_owned(), Arc::clone(&container)));
        container
    }
}

/// Returns the call that a message is about.
fn named(kind: Kind, message: &Message<'_>) -> Option<(Arch, abi::Syscall)> {
    let number = u32::try_from(calls::number(kind, message)).ok()?;
    let (arch, syscall) = abi::arch::decode(Arch::native()?.audit(), number)?;
    Some((arch, syscall?))
}

fn is_exec(kind: Kind, message: &Message<'_>) -> bool {
    let call = named(kind, message).map(|(_, call)| call);
    matches!(call, Some(abi::Syscall::EXECVE | abi::Syscall::EXECVEAT))
}

/// Parts of an event from a message.
struct Account<'a> {
    kind: EventKind,
    params: &'a [Param<'a>],
    descriptor: Option<event::Descriptor<'a>>,
    of_descriptor: Option<(i32, &'a [u8])>,
    outcome: Outcome,
}

impl Account<'_> {
    fn of(kind: EventKind, outcome: Outcome) -> Self {
        Self {
            kind,
            params: &[],
            descriptor: None,
            of_descriptor: None,
            outcome,
        }
    }
}

/// Resolves an open descriptor by gVisor's name for it: files by their path, others as in `/proc/PID/fd`.
fn resolved(path: &[u8]) -> ResolvedDescriptor {
    use event::DescriptorKind as Is;
    let begins = |prefix: &str| path.starts_with(prefix.as_bytes());
    let kind = if begins("/") {
        Is::File
    } else if begins("socket:") {
        Is::OtherSocket
    } else if begins("pipe:") || begins("host:[pipe") {
        Is::Pipe
    } else {
        Is::Other
    };
    ResolvedDescriptor {
        kind,
        name: path.to_vec(),
        device: None,
        inode: None,
        socket: None,
    }
}

#[cfg(test)]
mod tests;
