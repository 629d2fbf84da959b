//! Inspection of one call, shared by the receivers and the tracer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bumpalo::Bump;
use event::{
    Comm, Evaluator, Event, Image, LiveProcess, Lookup, Name, Outcome, Process, Relevance, Stage,
    SystemInfo, Tid,
};
use sys::time::{Clock, now_ns};

use super::active_rules::ActiveRules;
use super::argument_check::{self, ArgumentComparison, CallObject};
use super::confine::Violation;
use super::denial_paths::Denial;
use super::obstacle::obstacle;
use super::{ArgumentChange, Shared, denial_paths, verify, writers};
use crate::tripwire::{self, Tripwire};
use decoder::call::Call;
use decoder::counters::Counters;
use decoder::decode::{self, Decoded};
use decoder::initial_stack::InitialStack;
use decoder::names::ResolvedName;
use process_info::memory::{Access, Memory};

/// Evaluates calls for one thread.
pub(crate) struct CallEvaluator<J: Evaluator> {
    pub(crate) shared: Arc<Shared<J>>,
    /// The rules that `scratch` belongs to.
    ruling: Arc<ActiveRules<J>>,
    scratch: J::Scratch,
    /// Stand-in for the caller until the evaluation needs to look it up.
    unnamed: Process,
    /// Reads arguments once more after a call, from resident pages only, so that a hostile page does not block.
    pub(super) again: Memory,
}

/// Everything known about a call at one stage.
#[derive(Clone, Copy)]
pub(crate) struct CallView<'a> {
    pub(crate) call: &'a Call,
    pub(crate) time_ns: u64,
    pub(crate) decoded: Decoded<'a>,
    pub(crate) outcome: Outcome,
    pub(crate) live: &'a LiveProcess,
    pub(crate) arena: &'a Bump,
}

impl<'a> CallView<'a> {
    /// Returns what is known before the call has returned.
    pub(crate) fn at_entry(
        call: &'a Call,
        time_ns: u64,
        decoded: Decoded<'a>,
        live: &'a LiveProcess,
        arena: &'a Bump,
    ) -> Self {
        Self {
            call,
            time_ns,
            decoded,
            outcome: Outcome::Pending,
            live,
            arena,
        }
    }

    /// Returns the same call with its outcome.
    pub(crate) fn returned(self, outcome: Outcome) -> Self {
        Self { outcome, ..self }
    }
}

impl<J: Evaluator> CallEvaluator<J> {
    pub(crate) fn new(shared: Arc<Shared<J>>) -> Self {
        let ruling = shared.ruling.load_full();
        let scratch = ruling.evaluator.scratch();
        let unnamed = Process::new(
            event::Pid(0),
            event::StartTime(0),
            0,
            None,
            Arc::new(Image::default()),
            Comm::new(b""),
        );
        let again = Memory::new(Arc::default());
        again.allow(Access::Resident);
        Self {
            shared,
            ruling,
            scratch,
            unnamed,
            again,
        }
    }

    /// Switches to newly loaded rules, between two stages of one call, too: each stage is evaluated by itself.
    fn follow_rules(&mut self) {
        let ruling = self.shared.ruling.load();
        if !Arc::ptr_eq(&ruling, &self.ruling) {
            self.scratch = ruling.evaluator.scratch();
            self.ruling = Arc::clone(&ruling);
        }
    }

    /// Prefilters by the call itself, before anything about the caller is known.
    pub(crate) fn weigh_unnamed(&mut self, view: &CallView<'_>, stage: Stage) -> Relevance {
        self.follow_rules();
        let image = self.unnamed.image();
        let event = event(&*self.shared.world, view, stage, &self.unnamed, image, 0);
        self.ruling.evaluator.prefilter(&mut self.scratch, &event)
    }

    /// Prefilters with the caller known.
    pub(crate) fn weigh_entry(&mut self, view: &CallView<'_>, process: &Process) -> Relevance {
        if process.sets_up() {
            return Relevance::Reject;
        }
        self.weigh(view, Stage::Entry, process)
    }

    fn weigh(&mut self, view: &CallView<'_>, stage: Stage, process: &Process) -> Relevance {
        self.follow_rules();
        let event = event(
            &*self.shared.world,
            view,
            stage,
            process,
            process.image(),
            0,
        );
        self.ruling.evaluator.prefilter(&mut self.scratch, &event)
    }

    /// Evaluates the event: matches become alerts. `Entry` if the result was not waited for. A call that
    /// sends messages to several addresses is one event for each.
    pub(crate) fn conclude(&mut self, view: &CallView<'_>, stage: Stage, process: &Process) {
        if view.decoded.messages.is_empty() {
            self.conclude_one(view, stage, process);
        }
        let result = match view.outcome {
            Outcome::Returned(result) => Some(result),
            _ => None,
        };
        for message in view.decoded.messages {
            let shared = Arc::clone(&self.shared);
            let (inspector, pid) = (&shared.tree.inspector, process.pid);
            let resolved = decode::resolve(inspector, view.call, *message, result, pid, view.arena);
            let mut view = *view;
            view.decoded.descriptor = Some(resolved);
            self.conclude_one(&view, stage, process);
        }
    }

    fn conclude_one(&mut self, view: &CallView<'_>, stage: Stage, process: &Process) {
        self.follow_rules();
        let shared = &*self.shared;
        if process.sets_up() {
            Counters::add(&shared.counters.of_runtime);
            return;
        }
        let number = shared.events.fetch_add(1, Ordering::Relaxed) + 1;
        let event = event(
            &*shared.world,
            view,
            stage,
            process,
            process.image(),
            number,
        );
        let undecided = self.ruling.evaluator.evaluate(&mut self.scratch, &event);
        if !undecided.is_empty() {
            shared
                .counters
                .undecided
                .fetch_add(undecided.len() as u64, Ordering::Relaxed);
            shared.notices.undecided(&event, &undecided);
        }
    }

    /// Reports a call that violates the policy.
    pub(crate) fn tell_violation(
        &self,
        view: &CallView<'_>,
        process: &Process,
        violation: &Violation<'_>,
    ) {
        let shared = &*self.shared;
        let stage = match view.outcome {
            Outcome::Returned(_) => Stage::Exit,
            _ => Stage::Entry,
        };
        let number = shared.events.fetch_add(1, Ordering::Relaxed) + 1;
        let image = process.image();
        let event = event(&*shared.world, view, stage, process, image, number);
        shared.notices.violation(&event, violation);
    }

    /// Reports a call that an enforcer other than the filter denied, and that nothing else reports.
    fn tell_denial(&self, view: &CallView<'_>, process: &Process) {
        let shared = &*self.shared;
        let (call, confiner) = (view.call, &shared.confiner);
        if process.sets_up() || !confiner.watches(call) {
            return;
        }
        let (decoded, outcome) = (&view.decoded, view.outcome);
        let inspector = &shared.tree.inspector;
        let lacked = (shared.lacked)();
        let found = denial_paths::blame(
            confiner.classifier(),
            call,
            decoded,
            outcome,
            inspector,
            lacked,
        );
        let Some(Denial {
            cause: blame,
            errno,
            object,
        }) = found
        else {
            return;
        };
        let object = object.as_ref();
        Counters::add(&shared.counters.violations);
        let violation = Violation {
            rule: blame.rule,
            enforcer: blame.enforcer,
            errno: Some(errno),
            call: call.syscall,
            args: call.args,
            object: object.map(|object| object.path.as_str()),
            access: object.map(|object| object.access),
            note: None,
        };
        self.tell_violation(view, process, &violation);
    }

    /// Evaluates a call whose result is known (or known to be unavailable), with the caller still held where
    /// the result was learned. `seen`: the call as it was read at its entry, with its outcome; facts about the
    /// caller are learned anew.
    pub(crate) fn finish(&mut self, seen: &CallView<'_>, process: &Arc<Process>) {
        let live = LiveProcess::default();
        let mut view = CallView {
            live: &live,
            ..*seen
        };
        let (call, outcome, arena) = (view.call, view.outcome, view.arena);
        // By the flags that were read: those that the kernel used may lead the same name to the file of another.
        let truth = self.truth(&view, process);
        let (decoded, other_fields) = self.with_used_fields(&view, process);
        view.decoded = decoded;
        if let Some(tripwire) = &self.shared.tripwire {
            self.settle_account(tripwire, &view, &seen.decoded, &truth);
        }
        self.look_at_opened(&view, process);
        if outcome == Outcome::Returned(0) {
            self.shared.mediator.bound(&self.shared, call);
        }
        if Role::of(call) == Role::Exec {
            self.finish_exec(&view, process);
        }
        view.decoded = view.decoded.returned(call, outcome, arena);
        if let ArgumentComparison::Changed(what) = &truth {
            view.decoded = argument_check::correct(view.decoded, call, what, arena);
        }
        view.decoded = self.name_opened(&view, process);
        if let Some(descriptor) = view.decoded.descriptor {
            let result = match outcome {
                Outcome::Returned(result) => Some(result),
                _ => None,
            };
            let (inspector, pid) = (&self.shared.tree.inspector, process.pid);
            let resolved = decode::resolve(inspector, call, descriptor, result, pid, arena);
            view.decoded.descriptor = Some(resolved);
        }
        if let Some(fields) = other_fields
            && self.weigh(&view, Stage::Exit, process) == Relevance::Reject
        {
            // Dropping it loses nothing, and the values that were read may be the wrong ones.
            view.decoded = fields.put(&view.decoded, arena);
        }
        if let ArgumentComparison::Unclear(what) = &truth
            && self.weigh(&view, Stage::Exit, process) == Relevance::Reject
        {
            // As above: the name that was read may be the wrong one.
            view.decoded = match what {
                CallObject::Arguments(again, _) => {
                    again.borrow(arena).returned(call, outcome, arena)
                }
                what => argument_check::correct(view.decoded, call, what, arena),
            };
        }
        self.tell_denial(&view, process);
        self.conclude(&view, Stage::Exit, process);
    }

    /// Notes the end of an exec: the new program, if there is one, and what waited for it.
    fn finish_exec(&self, view: &CallView<'_>, process: &Arc<Process>) {
        let shared = &self.shared;
        let outcome = view.outcome;
        process_info::memory::note_exec();
        self.exec_returned(view, process);
        let succeeded = outcome == Outcome::Returned(0);
        // A call whose result is not learned may go on for any time.
        if outcome != Outcome::Unlearnt
            || shared.tree.inspector.thread_count(process.pid) == Some(1)
        {
            let lost = shared.tracer.exec_returned(process.pid, succeeded);
            let gone = &shared.counters.gone;
            gone.fetch_add(lost as u64, Ordering::Relaxed);
        }
        if succeeded {
            shared.verifier.exec(process);
        }
        // Unless it certainly failed.
        if !matches!(outcome, Outcome::Returned(result) if result < 0) {
            shared.tree.executed(process);
        }
    }

    /// Under [`super::Verify::Always`], finds arguments that another process may change, and calls that may
    /// open the memory of a process, while the caller's memory may be read.
    pub(crate) fn doubt(&self, call: &Call, decoded: &mut Decoded<'_>, memory: &Memory) {
        let verifier = &self.shared.verifier;
        if verifier.is_strict() && verifier.compares(call) {
            decoded.is_shared = !writers::is_in_private_pages(call, decoded, memory);
        }
    }

    /// Returns whether the effect of a call must be inspected, whatever rules match and whoever the caller is.
    pub(crate) fn is_doubtful(&self, call: &Call, decoded: &Decoded<'_>) -> bool {
        let verifier = &self.shared.verifier;
        decoded.is_shared
            || verifier.looks_at(call) && writers::may_open_memory(call, decoded)
            // The name that was found decides that the object is inspected; the object decides the rest.
            || verifier.is_on() && writers::is_named_like_memory(call, decoded)
    }

    /// Checks whether an open has given its caller, who waits, write access to the memory of a process.
    fn look_at_opened(&self, view: &CallView<'_>, process: &Arc<Process>) {
        let shared = &*self.shared;
        let (call, decoded) = (view.call, &view.decoded);
        let is_strict = shared.verifier.is_strict();
        // The flags of openat2 may differ from those that were read.
        let is_openat2 = call.syscall == abi::Syscall::OPENAT2;
        if !is_openat2 && !writers::may_open_memory(call, decoded) || !writers::opens_file(call) {
            return;
        }
        let inspector = &shared.tree.inspector;
        let may_be_memory = match view.outcome {
            Outcome::Returned(result) => match i32::try_from(result) {
                // A descriptor that is gone may have been passed on.
                Ok(number) if number >= 0 => {
                    let found = inspector.is_memory_file(call.tid, number);
                    found.unwrap_or(is_strict)
                }
                _ => false,
            },
            // Unknown, unless no process is left that has the descriptor.
            _ => is_strict && shared.tree.is_alive(process) != Some(false),
        };
        if may_be_memory && !process.sets_up() {
            self.note_memory_file(call);
        }
    }

    /// Notes that a process has, or gets, write access to the memory of a process.
    pub(crate) fn note_memory_file(&self, call: &Call) {
        let shared = &*self.shared;
        let added = shared.verifier.note_memory_file(call.tid, &shared.tree);
        shared
            .counters
            .racy_processes
            .fetch_add(added, Ordering::Relaxed);
        if let (Some(tripwire), 1..) = (&shared.tripwire, added) {
            tripwire.arm(call.tid, &shared.tree.inspector);
        }
    }

    /// Sets the name of the file that a call is about to open.
    pub(crate) fn name_file(&mut self, view: &mut CallView<'_>) {
        self.follow_rules();
        let call = view.call;
        if !writers::opens_file(call) || !self.ruling.strings[call.syscall.index()] {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let inspector = &shared.tree.inspector;
        match shared
            .names
            .find(call, &view.decoded, inspector, view.arena)
        {
            ResolvedName::None => {}
            ResolvedName::Names([name]) if passed(&view.decoded) == Some(name) => {}
            ResolvedName::Names(names) => {
                let plain = *view;
                let (name, _) = self.choose(&plain.decoded, names, |worker, decoded| {
                    let view = CallView { decoded, ..plain };
                    worker.weigh_unnamed(&view, Stage::Strings)
                });
                view.decoded = plain.decoded.named(name);
            }
            ResolvedName::Unknown => {
                if self.weigh_unnamed(view, Stage::Strings) == Relevance::Reject
                    && let Some(raw) = passed(&view.decoded)
                {
                    view.decoded = view.decoded.named(Name::Unresolved { raw });
                }
            }
        }
    }

    /// Returns the first name that a rule may match, or else the path of the file; and whether there is such
    /// a rule. The name that was passed goes last: rules may name a link.
    fn choose<'a>(
        &mut self,
        decoded: &Decoded<'a>,
        names: &[&'a [u8]],
        mut weigh: impl FnMut(&mut Self, Decoded<'a>) -> Relevance,
    ) -> (Name<'a>, bool) {
        let raw = passed(decoded);
        let opened = |path: &'a [u8]| match raw {
            Some(raw) => Name::Opened { raw, path },
            None => Name::Resolved(path),
        };
        let given = decoded.descriptor.map_or(Name::None, |known| known.name);
        // Text alone does not say where `..` leads behind a link.
        let has_dots = |raw: &[u8]| raw.split(|byte| *byte == b'/').any(|name| name == b"..");
        let is_text = matches!(given, Name::Passed { raw, .. } if !has_dots(raw));
        let found = names.iter().map(|path| opened(path));
        for name in found.chain(is_text.then_some(given)) {
            if weigh(self, decoded.named(name)) != Relevance::Reject {
                return (name, true);
            }
        }
        (names.last().map_or(given, |path| opened(path)), false)
    }

    /// Gives an open that has been made, and whose name could not be learned before, the name of its descriptor.
    fn name_opened<'a>(&mut self, view: &CallView<'a>, process: &Arc<Process>) -> Decoded<'a> {
        let (call, decoded) = (view.call, view.decoded);
        let Some(descriptor) = decoded.descriptor.filter(|_| writers::opens_file(call)) else {
            return decoded;
        };
        let Outcome::Returned(result) = view.outcome else {
            return decoded;
        };
        let number = match (descriptor.name, i32::try_from(result)) {
            // The call opened no file.
            (Name::Unresolved { raw }, _) if result < 0 => {
                let base = decode::base(call);
                return decoded.named(Name::Passed { raw, base });
            }
            (Name::Unreadable | Name::Unresolved { .. } | Name::Resolved(_), Ok(number)) => number,
            _ => return decoded,
        };
        if number < 0 {
            return decoded;
        }
        let shared = Arc::clone(&self.shared);
        let found = shared
            .names
            .find_opened(call.tid, number, &shared.tree.inspector, view.arena);
        let ResolvedName::Names(names) = found else {
            return decoded;
        };
        let live = LiveProcess::default();
        let (name, is_matched) = self.choose(&decoded, names, |worker, decoded| {
            let view = CallView {
                decoded,
                live: &live,
                ..*view
            };
            worker.weigh(&view, Stage::Exit, process)
        });
        // Another thread may have replaced the descriptor.
        let may_be_replaced = || {
            let verifier = &shared.verifier;
            verifier.is_active() && verifier.is_racy(process, &shared.tree)
        };
        match is_matched || !may_be_replaced() {
            true => decoded.named(name),
            false => decoded,
        }
    }

    /// Returns whether a rule may match an open of this path, whatever the caller is.
    pub(crate) fn is_sensitive(&mut self, path: &[u8], writes: bool) -> bool {
        let arena = Bump::new();
        let (call, decoded) = decode::imagined_open(path, writes, &arena);
        let live = LiveProcess::default();
        let view = CallView::at_entry(&call, 0, decoded, &live, &arena);
        self.weigh_unnamed(&view, Stage::Strings) != Relevance::Reject
    }

    /// Notifies the tripwire of an open that is about to be made.
    pub(crate) fn account(&self, tripwire: &Tripwire, call: &Call, decoded: &Decoded<'_>) {
        if !tripwire.is_idle()
            && let Some((path, writes)) = self.opened(call, decoded)
        {
            tripwire.saw(&path, writes);
        }
    }

    /// Notifies the tripwire of an open's outcome, if it differs from what was `read`.
    fn settle_account(
        &self,
        tripwire: &Tripwire,
        view: &CallView<'_>,
        read: &Decoded<'_>,
        truth: &ArgumentComparison,
    ) {
        let (call, decoded) = (view.call, &view.decoded);
        let failed = matches!(view.outcome, Outcome::Returned(result) if result < 0);
        let other = match truth {
            ArgumentComparison::Changed(argument_check::CallObject::Path(path)) => Some(path),
            _ => None,
        };
        let is_other =
            other.is_some() || opens_to_write(call, decoded) != opens_to_write(call, read);
        if !failed && !is_other || tripwire.is_idle() {
            return;
        }
        let Some((path, writes)) = self.opened(call, decoded) else {
            return;
        };
        tripwire.unsaw(&path);
        if is_other {
            tripwire.saw(other.unwrap_or(&path), writes);
        }
    }

    fn opened(&self, call: &Call, decoded: &Decoded<'_>) -> Option<(Vec<u8>, bool)> {
        let writes = opens_to_write(call, decoded)?;
        let path = tripwire::absolute(&decoded.descriptor?, call.tid, &self.shared.tree.inspector)?;
        Some((path, writes))
    }

    /// Returns whether a call is compared with the state after it: its caller is racy.
    pub(super) fn is_compared(
        &self,
        call: &Call,
        decoded: &Decoded<'_>,
        process: &Arc<Process>,
    ) -> bool {
        let verifier = &self.shared.verifier;
        !process.sets_up()
            && verifier.compares(call)
            && (decoded.is_shared
                || verifier.is_active() && verifier.is_racy(process, &self.shared.tree))
    }

    /// Returns what a call of a racy caller really did. Reports a difference from what was read.
    fn truth(&self, view: &CallView<'_>, process: &Arc<Process>) -> ArgumentComparison {
        let (call, decoded, outcome) = (view.call, &view.decoded, view.outcome);
        let shared = &*self.shared;
        let verifier = &shared.verifier;
        if !self.is_compared(call, decoded, process) {
            return ArgumentComparison::Same;
        }
        Counters::add(&shared.counters.verified);
        let truth = match verify::is_verifiable(call) {
            true => {
                argument_check::compare(call, decoded, outcome, process.pid, &shared.tree.inspector)
            }
            false if matches!(outcome, Outcome::Returned(_)) => {
                argument_check::read_again(call, decoded, &self.again, &Bump::new())
            }
            false => ArgumentComparison::Same,
        };
        let changed = |given: Option<String>, what: &CallObject| {
            Counters::add(&shared.counters.arguments_changed);
            verifier.caught(process);
            shared.notices.arguments_changed(&ArgumentChange {
                process,
                tid: call.tid,
                kind: call.kind,
                given,
                truth: what.to_string(),
            });
        };
        match &truth {
            // Memory that could not be read, and so did not change either.
            ArgumentComparison::Changed(_)
                if decoded.unreadable && argument_check::given(decoded).is_none() => {}
            ArgumentComparison::Changed(what) => {
                changed(
                    argument_check::given(decoded).map(|what| what.to_string()),
                    what,
                );
            }
            ArgumentComparison::Unlearnt => {
                Counters::add(&shared.counters.verify_failed);
                verifier.caught(process);
            }
            ArgumentComparison::Unclear(what @ CallObject::Arguments(..)) => {
                changed(Some(argument_check::names(call, decoded)), what);
            }
            ArgumentComparison::Same | ArgumentComparison::Unclear(_) => {}
        }
        truth
    }

    /// Sets up the new program of a process, while it is held before its first instruction.
    fn exec_returned(&self, view: &CallView<'_>, process: &Arc<Process>) {
        match view.outcome {
            Outcome::Returned(0) => self.set_up_program(view, process),
            Outcome::Returned(_) => {}
            // The outcome is unknown: describe the program that was asked for.
            _ => process.exec_after_forks(
                Arc::new(requested_image(&view.decoded)),
                requested_comm(&view.decoded, process),
            ),
        }
    }

    fn set_up_program(&self, view: &CallView<'_>, process: &Arc<Process>) {
        let world = &*self.shared.world;
        // Read now, because a child may ask for its parent's program after the parent's end.
        let with_file = self.shared.ruling.load().executable_file;
        let image = Image {
            exec_time_ns: now_ns(Clock::Real),
            ..Image::default()
        };
        let mut stack = InitialStack::read(process.pid);
        if let Some(stack) = &mut stack {
            let line = std::mem::take(&mut stack.command_line);
            let _ = image.command_line.set(Some(line));
        }
        world.describe_at_exec(process, &image, with_file);
        let comm = view.live.comm.get_or_init(|| {
            let path = image.executable.get().and_then(Option::as_deref);
            let comm = stack.zip(path).and_then(|(stack, path)| stack.comm(path));
            let present = || world.thread_name(process, Tid(process.pid.0));
            comm.map_or_else(present, Lookup::Found)
        });
        let comm = match comm {
            Lookup::Found(comm) => *comm,
            _ => requested_comm(&view.decoded, process),
        };
        let is_hidden = image.executable.get().is_none();
        process.exec_after_forks(Arc::new(image), comm);
        if process.sets_up() {
            return;
        }
        let notices = &self.shared.notices;
        if is_hidden && let Some(obstacle) = obstacle(Tid(process.pid.0)) {
            // Not to be reported again at its first call.
            self.shared.unreadable.is_new(process);
            notices.unreadable(process, "execve", obstacle);
        }
        if let Some(withheld) = self.shared.privileges.withheld(process.pid) {
            notices.privileges_withheld(process.pid, &withheld);
        }
    }
}

fn event<'a>(
    world: &'a dyn SystemInfo,
    view: &CallView<'a>,
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

/// Returns the first path and the first argument vector among the parameters of an exec.
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
        .map_or_else(|| process.exec_name(), base)
}

/// Effect of a call on the engine's own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// No effect.
    Plain,
    /// Replaces the program.
    Exec,
}

impl Role {
    pub(crate) fn of(call: &Call) -> Self {
        if call.replaces_program() {
            Self::Exec
        } else {
            Self::Plain
        }
    }
}

/// Returns the name that was passed to a call that opens a file.
fn passed<'a>(decoded: &Decoded<'a>) -> Option<&'a [u8]> {
    match decoded.descriptor?.name {
        Name::Passed { raw, .. } | Name::Unresolved { raw } | Name::Opened { raw, .. } => Some(raw),
        _ => None,
    }
}

/// `O_WRONLY` and `O_RDWR`.
const WRITES: u64 = 3;

/// Returns whether a call opens a file for writing, as far as that is known; `None` if it opens none.
fn opens_to_write(call: &Call, decoded: &Decoded<'_>) -> Option<bool> {
    let event::DescriptorSource::Opened { flags, .. } = call.kind.spec().descriptor else {
        return None;
    };
    let flags = decoded.params.get(usize::from(flags));
    let reads = matches!(flags, Some(event::Param::Uint(flags)) if flags & WRITES == 0);
    Some(!reads || call.syscall == abi::Syscall::CREAT)
}
