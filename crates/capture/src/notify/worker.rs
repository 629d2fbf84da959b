//! Looking at one call: what both the receivers and the tracer do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bumpalo::Bump;
use event::{Comm, Event, Image, Judge, Live, Lookup, Outcome, Process, Stage, Tid, Weight, World};
use sys::time::{Clock, now_ns};

use super::call::Call;
use super::counters::Counters;
use super::decode::{self, Decoded};
use super::obstacle::obstacle;
use super::{Ruling, Shared};

/// One thread's way to the judge.
pub(crate) struct Worker<J: Judge> {
    pub(crate) shared: Arc<Shared<J>>,
    /// The rules that `scratch` belongs to.
    ruling: Arc<Ruling<J>>,
    scratch: J::Scratch,
    /// Stands in for the caller until it is worth looking up.
    unnamed: Process,
}

/// What is known of a call at one stage.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) call: &'a Call,
    pub(crate) time_ns: u64,
    pub(crate) decoded: Decoded<'a>,
    pub(crate) outcome: Outcome,
    pub(crate) live: &'a Live,
    pub(crate) arena: &'a Bump,
}

impl<J: Judge> Worker<J> {
    pub(crate) fn new(shared: Arc<Shared<J>>) -> Self {
        let ruling = shared.ruling.load_full();
        let scratch = ruling.judge.scratch();
        let unnamed = Process::new(
            event::Pid(0),
            event::StartTime(0),
            0,
            None,
            Arc::new(Image::default()),
            Comm::new(b""),
        );
        Self {
            shared,
            ruling,
            scratch,
            unnamed,
        }
    }

    /// Takes over rules that were loaded since. Between two stages of one call, too: each stage
    /// judges by itself.
    fn follow_rules(&mut self) {
        let ruling = self.shared.ruling.load();
        if !Arc::ptr_eq(&ruling, &self.ruling) {
            self.scratch = ruling.judge.scratch();
            self.ruling = Arc::clone(&ruling);
        }
    }

    /// Weighs what the call itself says, before anything about the caller is known.
    pub(crate) fn weigh_unnamed(&mut self, view: &View<'_>, stage: Stage) -> Weight {
        self.follow_rules();
        let image = self.unnamed.image();
        let event = event(&*self.shared.world, view, stage, &self.unnamed, image, 0);
        self.ruling.judge.weigh(&mut self.scratch, &event)
    }

    /// Weighs with the caller known.
    pub(crate) fn weigh_entry(&mut self, view: &View<'_>, process: &Process) -> Weight {
        self.follow_rules();
        let event = event(
            &*self.shared.world,
            view,
            Stage::Entry,
            process,
            process.image(),
            0,
        );
        self.ruling.judge.weigh(&mut self.scratch, &event)
    }

    /// Concludes: matches become alerts. `Entry` if the result was not waited for.
    pub(crate) fn conclude(&mut self, view: &View<'_>, stage: Stage, process: &Process) {
        self.follow_rules();
        let shared = &*self.shared;
        let number = shared.events.fetch_add(1, Ordering::Relaxed) + 1;
        let event = event(
            &*shared.world,
            view,
            stage,
            process,
            process.image(),
            number,
        );
        let undecided = self.ruling.judge.conclude(&mut self.scratch, &event);
        if undecided > 0 {
            shared
                .counters
                .undecided
                .fetch_add(u64::from(undecided), Ordering::Relaxed);
            shared.notices.undecided(&event, undecided);
        }
    }

    /// Concludes a call whose result is known (or known to be unlearnable), with the caller still
    /// held where the result was learnt.
    pub(crate) fn finish(
        &mut self,
        call: &Call,
        time_ns: u64,
        decoded: &Decoded<'_>,
        outcome: Outcome,
        process: &Arc<Process>,
        arena: &Bump,
    ) {
        let live = Live::default();
        if Role::of(call.syscall) == Role::Exec {
            self.exec_returned(decoded, outcome, process, &live);
            let succeeded = outcome == Outcome::Returned(0);
            let lost = self.shared.tracer.exec_returned(process.pid, succeeded);
            self.shared
                .counters
                .gone
                .fetch_add(lost as u64, Ordering::Relaxed);
        }
        let mut decoded = decoded.returned(call, outcome, arena);
        if let Some(descriptor) = decoded.descriptor {
            let result = match outcome {
                Outcome::Returned(result) => Some(result),
                _ => None,
            };
            let resolved = decode::resolve(
                &self.shared.tree.census,
                call,
                descriptor,
                result,
                process.pid,
                arena,
            );
            decoded.descriptor = Some(resolved);
        }
        let view = View {
            call,
            time_ns,
            decoded,
            outcome,
            live: &live,
            arena,
        };
        self.conclude(&view, Stage::Exit, process);
    }

    /// Takes over the new program of a process, while it is held before its first instruction.
    fn exec_returned(
        &self,
        decoded: &Decoded<'_>,
        outcome: Outcome,
        process: &Arc<Process>,
        live: &Live,
    ) {
        let world = &*self.shared.world;
        match outcome {
            Outcome::Returned(0) => {
                // Now, because a child may ask for its parent's program after the parent's end.
                let with_file = self.shared.ruling.load().executable_file;
                let image = world.image_at_exec(process, now_ns(Clock::Real), with_file);
                let comm = live.comm.get_or_init(|| world.comm(process));
                let comm = match comm {
                    Lookup::Found(comm) => *comm,
                    _ => process.last_comm(),
                };
                let is_hidden = image.executable.get().is_none();
                process.exec(Arc::new(image), comm);
                if is_hidden && let Some(obstacle) = obstacle(Tid(process.pid.0)) {
                    // Not to be told again at its first call.
                    self.shared.unreadable.is_new(process);
                    let notices = &self.shared.notices;
                    notices.unreadable(process, "execve", obstacle);
                }
                if let Some(withheld) = self.shared.privileges.withheld(process.pid) {
                    let notices = &self.shared.notices;
                    notices.privileges_withheld(process.pid, &withheld);
                }
            }
            Outcome::Returned(_) => {}
            // Whether it succeeded is not known: describe the program that was asked for.
            _ => process.exec(
                Arc::new(requested_image(decoded)),
                requested_comm(decoded, process),
            ),
        }
    }
}

fn event<'a>(
    world: &'a dyn World,
    view: &View<'a>,
    stage: Stage,
    process: &'a Process,
    image: Arc<Image>,
    number: u64,
) -> Event<'a> {
    Event {
        number,
        time_ns: view.time_ns,
        kind: view.call.kind,
        stage,
        cpu: None,
        tid: view.call.tid,
        process,
        image,
        params: view.decoded.params,
        descriptor: view.decoded.descriptor,
        outcome: view.outcome,
        world,
        live: view.live,
        arena: view.arena,
    }
}

/// The first path and the first argument vector among the parameters of an exec.
fn requested<'a>(decoded: &Decoded<'a>) -> (Option<&'a [u8]>, Option<&'a [&'a [u8]]>) {
    let path = decoded.params.iter().find_map(|param| match param {
        event::Param::Text(path) => Some(*path),
        _ => None,
    });
    let argv = decoded.params.iter().find_map(|param| match param {
        event::Param::Texts(texts) => Some(*texts),
        _ => None,
    });
    (path, argv)
}

fn requested_image(decoded: &Decoded<'_>) -> Image {
    let (path, argv) = requested(decoded);
    let image = Image {
        exec_time_ns: now_ns(Clock::Real),
        ..Image::default()
    };
    if let Some((exe, args)) = argv.and_then(<[_]>::split_first) {
        let command_line = event::CommandLine {
            exe: exe.to_vec(),
            args: args.iter().map(|argument| argument.to_vec()).collect(),
            truncated: false,
        };
        // A fresh cell is empty, so this cannot fail.
        let _ = image.command_line.set(Some(command_line));
    }
    if let Some(path) = path {
        let _ = image.executable.set(Some(path.to_vec()));
    }
    image
}

fn requested_comm(decoded: &Decoded<'_>, process: &Process) -> Comm {
    let base = |path: &[u8]| Comm::new(path.rsplit(|byte| *byte == b'/').next().unwrap_or(path));
    requested(decoded)
        .0
        .map_or_else(|| process.last_comm(), base)
}

/// What a call means for the engine's own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing.
    Plain,
    /// Replaces the program.
    Exec,
}

impl Role {
    pub(crate) fn of(syscall: abi::Syscall) -> Self {
        use abi::Syscall as S;
        match syscall {
            S::EXECVE | S::EXECVEAT => Self::Exec,
            _ => Self::Plain,
        }
    }
}

impl Counters {
    pub(crate) fn note_unreadable(&self, decoded: &Decoded<'_>) {
        if decoded.unreadable {
            Self::add(&self.unreadable);
        }
    }
}
