//! The agent process: from the listener to the last event.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abi::Errno;
use abi::constant::{O_NONBLOCK, RLIMIT_NOFILE};
use diagnostics::terminal;
use event::{EngineKind, Pid};
use sys::notify::Listener;
use sys::poll::{self, PollFd};
use sys::resource::{self, Limit};
use sys::shared::SharedPage;
use sys::signal::SignalSet;
use sys::wait;

use super::command::slot;
use super::inherited::{
    EventFdNotifier, InheritedDescriptors, PrivateEnds, has_hung_up, is_readable,
};
use super::message::{Message, Receiver};
use super::relay::{Relay, tell};
use super::shared_state::{FIRST, Order, SharedNumber, SharedState, State};
use super::signals::SIGKILL;
use super::{
    AgentPlan, AgentPreparer, AgentStart, ChosenEngine, Detach, ErrorReporter, Launch, Report,
    RuntimeWait, Services, Source, Start, orphans, signals, waiter,
};

/// Time limit for the command from fork to filter, which takes a fork and two calls.
const LISTENER_DEADLINE: Duration = Duration::from_secs(5);
/// Interval of checks of the shared page: the child cannot call a futex under its own filter.
pub(super) const LISTENER_POLL: Duration = Duration::from_micros(20);
/// Time by which the end of the whole workload may lag behind the command's own: the kernel
/// releases a filter when its last task has been reaped.
const END_GRACE: Duration = Duration::from_millis(50);
/// Interval of checks for the end of descendants that outlive the command.
const DESCENDANTS_POLL: Duration = Duration::from_millis(20);
/// Like [`DESCENDANTS_POLL`], for a container, which runs for long and whose end no process waits
/// for.
const DETACHED_POLL: Duration = Duration::from_millis(200);
/// Interval of checks for the end of the services when the workload has ended.
const END_POLL: Duration = Duration::from_millis(2);
/// Interval of checks whether unwatched intervals are reported for which others wait.
const TELLING_POLL: Duration = Duration::from_millis(100);
/// Interval of checks for the end of the workload before an agent's turn.
const TURN_POLL: Duration = Duration::from_millis(250);

/// Parameters of the first agent.
pub(super) struct FirstAgentSetup<'a> {
    pub(super) inherited: &'a InheritedDescriptors,
    pub(super) ends: &'a PrivateEnds,
    pub(super) callers_mask: SignalSet,
    pub(super) engine: ChosenEngine,
    /// Sockets through which the front and the keeper receive the listener.
    pub(super) listener_to: [&'a OwnedFd; 2],
    pub(super) prepare: AgentPreparer,
}

/// Runs the first agent, which starts the command, to its end. Returns an exit status that only the
/// keeper sees.
pub(super) fn first(first: FirstAgentSetup<'_>) -> i32 {
    let inherited = first.inherited;
    let outcome = supervise(first);
    orphans::see_off(inherited.shared_state.waiter_pid.get());
    if let Err(message) = outcome {
        tell(inherited, message);
    }
    // After a handover these fields belong to another agent, or soon will.
    if !matches!(outcome, Ok(AgentExit::HandedOver | AgentExit::Lost)) {
        inherited.shared_state.set_state(FIRST, State::Finished);
    }
    i32::from(!matches!(
        outcome,
        Ok(AgentExit::ToTheEnd | AgentExit::HandedOver)
    ))
}

/// Runs the first agent for a command that replaces the called process. Returns an exit status like
/// [`first`].
pub(super) fn beside(
    inherited: &InheritedDescriptors,
    listener_from: &OwnedFd,
    start: Start,
    command: i32,
    complain: ErrorReporter,
) -> i32 {
    let shared_state = &inherited.shared_state;
    shared_state.set_agent_pid(FIRST, std::process::id().cast_signed());
    let served = match await_listener(inherited, listener_from) {
        // The command has not started, and has reported the reason.
        Ok(None) => AgentExit::ToTheEnd,
        Ok(Some(listener)) => {
            // No process waits for this one, so it may detect by itself that no work is left.
            let watched = listener.try_clone().ok();
            match self::start(
                inherited,
                FIRST,
                Source::Listener(listener),
                Some(Pid(command)),
                start,
            ) {
                Ok(started) => serve(inherited, FIRST, started, watched.as_ref()),
                Err(why) => {
                    let said = format!("cannot start watching: {why}");
                    eprintln!("tollgate: {said}");
                    // This process has released the caller's standard error; the command still has
                    // it.
                    tell_command(command, &format!("tollgate: {said}\n"));
                    complain(&said);
                    // Fails only if it has ended.
                    let _ = sys::pidfd::send_signal(inherited.front.as_fd(), SIGKILL);
                    AgentExit::ToTheEnd
                }
            }
        }
        Err(error) => {
            eprintln!("tollgate: cannot make the processes that watch: {error}");
            AgentExit::ToTheEnd
        }
    };
    if served == AgentExit::ToTheEnd {
        shared_state.set_state(FIRST, State::Finished);
    }
    i32::from(served == AgentExit::Lost)
}

/// Writes to the standard error of the command, which its caller reads.
fn tell_command(command: i32, text: &str) {
    // Do not wait for a caller that does not read.
    let opened = OpenOptions::new()
        .append(true)
        .custom_flags(O_NONBLOCK.i32())
        .open(format!("/proc/{command}/fd/2"));
    // What cannot be opened, such as a socket, gets no message; the log has it.
    let _ = opened.and_then(|mut file| file.write_all(text.as_bytes()));
}

/// Receives the listener from the command.
fn await_listener(
    inherited: &InheritedDescriptors,
    from: &OwnedFd,
) -> std::io::Result<Option<Listener>> {
    if end_with_keeper(&inherited.shared_state).is_err() {
        return Ok(None);
    }
    signals::outlive_command()?;
    raise_descriptor_limit()?;
    inherited.tenure.leave()?;
    let (_, listener) = sys::socket::receive_fd(from.as_fd(), &mut [0])?;
    sys::prctl::set_parent_death_signal(0)?;
    Ok(listener.map(Listener::new))
}

/// Like [`first`], without a keeper: this process takes its place.
pub(super) fn alone(first: FirstAgentSetup<'_>) -> i32 {
    let shared_state = &first.inherited.shared_state;
    shared_state
        .keeper_pid
        .set(std::process::id().cast_signed());
    shared_state.keeper_done.set(true);
    self::first(first)
}

fn supervise(first: FirstAgentSetup<'_>) -> Result<AgentExit, Message> {
    let not_ready = |error: sys::SyscallError| Message::NotReady(error.errno());
    let inherited = first.inherited;
    let shared_state = &inherited.shared_state;
    let own_pid = std::process::id().cast_signed();
    shared_state.set_agent_pid(FIRST, own_pid);
    if first.engine.kind == EngineKind::Notify {
        end_with_keeper(shared_state)?;
    }
    let prepared = (first.prepare)(None).map_err(|failure| {
        terminal::complain(&failure.render());
        Message::Refused(i32::from(failure.exit.code()))
    })?;
    tell(inherited, Message::Prepared);
    let written = inherited.handover.write(&prepared.handover);
    written.map_err(|error| Message::NotReady(error.raw_os_error().unwrap_or(Errno::EIO.0)))?;
    shared_state.set_first_waits(prepared.restricts_first);
    let page = SharedPage::new().map_err(not_ready)?;
    let launch = Launch {
        command: &prepared.command,
        program: &prepared.program,
        confinement: prepared.confinement.as_ref(),
        engine: first.engine,
        callers_mask: first.callers_mask,
    };
    let ends = first.ends;
    let waiter = sys::clone::clone_child(orphans::flags_for_waiter(), || {
        waiter::run(launch, &page, inherited, ends)
    })
    .map_err(not_ready)?;
    shared_state.waiter_pid.set(waiter);
    let served = attend(first.engine, first.listener_to, inherited, prepared, &page);
    if served.is_err() {
        // The command waits for this process, or would run unwatched. A pid of 0 means there is
        // none.
        let command = page.int(slot::PID).load(Ordering::Acquire);
        let _ = sys::pidfd::open(command)
            .and_then(|command| sys::pidfd::send_signal(command.as_fd(), SIGKILL));
    }
    served
}

/// Has this process killed when the keeper dies. For the first agent: until the keeper has the
/// listener, nothing can continue without it, and the front, which then reports its death, may not
/// know this process yet.
fn end_with_keeper(shared_state: &SharedState) -> Result<(), Message> {
    sys::prctl::set_parent_death_signal(SIGKILL)
        .map_err(|error| Message::NotReady(error.errno()))?;
    let parent = std::os::unix::process::parent_id().cast_signed();
    match parent == shared_state.keeper_pid.get() {
        true => Ok(()),
        // The keeper died before the signal was requested.
        false => Err(Message::AgentGone),
    }
}

/// Watches the command, whose parent exists already, to its end.
fn attend(
    engine: ChosenEngine,
    listener_to: [&OwnedFd; 2],
    inherited: &InheritedDescriptors,
    prepared: AgentPlan,
    page: &SharedPage,
) -> Result<AgentExit, Message> {
    let not_ready = |error: sys::SyscallError| Message::NotReady(error.errno());
    let shared_state = &inherited.shared_state;
    let waiter = shared_state.waiter_pid.get();
    signals::outlive_command().map_err(not_ready)?;
    let waiter_process = sys::pidfd::open(waiter).map_err(|error| match error.errno() {
        // The process has ended and was reaped by its parent.
        ESRCH => last_words(&inherited.from_waiter),
        errno => Message::NotReady(errno),
    })?;
    raise_descriptor_limit().map_err(not_ready)?;
    let begun = |slot| begun(page, slot, &waiter_process, &inherited.from_waiter);
    let source = match engine.kind {
        EngineKind::Notify => {
            let number = begun(slot::LISTENER)? - 1;
            // The command may have ended since; until exec it shares this process's table.
            let listener = sys::fd::duplicate_number(number).map_err(not_ready)?;
            for socket in listener_to {
                let sent = sys::socket::send_fd(socket.as_fd(), b"L", Some(listener.as_fd()));
                sent.map_err(not_ready)?;
            }
            // From now on the front can start another keeper.
            sys::prctl::set_parent_death_signal(0).map_err(not_ready)?;
            Source::Listener(Listener::new(listener))
        }
        EngineKind::Ptrace
        | EngineKind::Ebpf
        | EngineKind::Gvisor
        | EngineKind::Scap
        | EngineKind::Nodriver => {
            begun(slot::READY)?;
            Source::Command(Pid(begun(slot::PID)?))
        }
    };
    let left = inherited.tenure.leave();
    left.map_err(|error| Message::NotReady(error.raw_os_error().unwrap_or(Errno::EIO.0)))?;
    let command = page.int(slot::PID).load(Ordering::Acquire);
    shared_state.command_pid.set(command);
    inherited.keeper_bell.ring();
    // Before any slow work: from now on the front forwards signals.
    tell(inherited, Message::Waiter(waiter));
    tell(inherited, Message::Started(command));
    let started = start(inherited, FIRST, source, Some(Pid(command)), prepared.start);
    let started = started.map_err(|why| {
        eprintln!("tollgate: {why}");
        Message::ServicesFailed
    })?;
    page.int(slot::TRACED).store(1, Ordering::Release);
    Ok(serve(inherited, FIRST, started, None))
}

/// Runs an agent that takes over from another. Returns the program's exit status.
pub(super) fn resumed(
    inherited: &InheritedDescriptors,
    generation: u64,
    listener: Listener,
    prepare: AgentPreparer,
) -> i32 {
    let shared_state = &inherited.shared_state;
    // A keeper that replaces a killed one starts an agent of its own. Two agents of one generation
    // would write to the same fields. Where this process was the keeper, the keeper is its child.
    let keeper = shared_state.keeper_pid.get();
    if wait::peek_end_of(keeper).is_err() && end_with_keeper(shared_state).is_err() {
        return 1;
    }
    shared_state.set_agent_pid(generation, std::process::id().cast_signed());
    // An agent whose limit is too low reports so itself.
    let _ = signals::outlive_command().and_then(|()| raise_descriptor_limit());
    let _ = sys::prctl::set_name(c"tollgate-agent");
    // Without the handover state, which is reported where it is read, no rule is known to be covered.
    let handover = inherited.handover.read().unwrap_or_default();
    let prepared = match prepare(Some(&handover)) {
        Ok(prepared) => prepared,
        Err(failure) => {
            terminal::complain(&failure.render());
            return i32::from(failure.exit.code());
        }
    };
    shared_state.set_state(generation, State::Prepared);
    inherited.keeper_bell.ring();
    if let Err(status) = await_order(inherited, generation, keeper, &listener) {
        return status;
    }
    // No reason for a failure is known. If a keeper is killed earlier, its successor starts another
    // agent.
    let _ = sys::prctl::set_parent_death_signal(0);
    let source = Source::Listener(listener);
    let started = match start(inherited, generation, source, None, prepared.start) {
        Ok(started) => started,
        Err(why) => {
            eprintln!("tollgate: {why}");
            return 1;
        }
    };
    match serve(inherited, generation, started, None) {
        AgentExit::ToTheEnd => shared_state.set_state(generation, State::Finished),
        AgentExit::HandedOver => {}
        AgentExit::Lost => return 1,
    }
    0
}

/// Waits until the keeper orders this agent to start. An error is the exit status if it is not needed.
fn await_order(
    inherited: &InheritedDescriptors,
    generation: u64,
    keeper: i32,
    listener: &Listener,
) -> Result<(), i32> {
    let keeper = sys::pidfd::open(keeper);
    let is_forgotten = || {
        let has_ended = |keeper: &OwnedFd| is_readable(keeper.as_fd(), Duration::ZERO);
        keeper.as_ref().map_or(true, has_ended)
    };
    while inherited.shared_state.order(generation) != Order::Start {
        // While there is a keeper, it decides whether this agent is needed, for example to report
        // an unwatched interval.
        if is_forgotten() {
            return Err(i32::from(!has_hung_up(listener)));
        }
        is_readable(inherited.agent_bell(generation).as_fd(), TURN_POLL);
        inherited.agent_bell(generation).hush();
    }
    // The order may be meant for another agent of the same generation.
    if is_forgotten() {
        return Err(1);
    }
    Ok(())
}

/// Started services, and the news of the command received before.
struct Started {
    services: Box<dyn Services>,
    is_stopped: bool,
}

fn start(
    inherited: &InheritedDescriptors,
    generation: u64,
    source: Source,
    runtime: Option<Pid>,
    services: Start,
) -> Result<Started, String> {
    let shared_state = &inherited.shared_state;
    let ours = [
        inherited.front_pid,
        shared_state.keeper_pid.get(),
        shared_state.agent_pid(generation),
        shared_state.waiter_pid.get(),
    ];
    let file = inherited.shared_state_file.as_fd();
    let own_shared_state =
        SharedState::open(file).map_err(|error| format!("the keeper: {error}"))?;
    let listening = AgentStart {
        source,
        transparent: ours.into_iter().filter(|pid| *pid > 0).map(Pid).collect(),
        shared_state: std::sync::Arc::new(own_shared_state),
        generation,
        is_resumed: generation != FIRST,
        held: None,
        shared_state_file: file.try_clone_to_owned().ok(),
        runtime,
        ticket: None,
    };
    let lock = inherited.tenure.lock_log();
    let is_stopped = Cell::new(false);
    let pass_on = |until: &[BorrowedFd<'_>]| match inherited.has_front() {
        true => is_stopped.set(pass_on_early(inherited, until)),
        false => await_end_or(inherited.front.as_fd(), until),
    };
    let meanwhile = (generation == FIRST).then(|| Box::new(pass_on) as RuntimeWait<'_>);
    let started = services(listening, meanwhile);
    match started {
        Ok(services) => {
            shared_state.set_state(generation, State::Ready);
            inherited.keeper_bell.ring();
            drop(lock);
            Ok(Started {
                services,
                is_stopped: is_stopped.get(),
            })
        }
        Err(error) => Err(format!("{error:#}")),
    }
}

/// Forwards news of the command before this agent's services run. A successful end is reported to
/// the front if no process waits for what the command has created, whose calls are held. Any other
/// end is reported once services can report its cause. Returns true if the command is stopped.
fn pass_on_early(inherited: &InheritedDescriptors, until: &[BorrowedFd<'_>]) -> bool {
    let mut relay = Relay::new(inherited);
    loop {
        let is_awaited = |fd: &BorrowedFd<'_>| !is_readable(*fd, Duration::ZERO);
        let awaited: Vec<_> = until.iter().copied().filter(is_awaited).collect();
        if awaited.is_empty() {
            return relay.is_stopped();
        }
        // Before the first wait: a waiter that was killed before this process started wakes no
        // process.
        let Some(news) = relay.next() else {
            let mut polled = relay.polled();
            polled.extend(awaited.iter().map(|fd| PollFd::new(*fd, poll::IN)));
            // The reason for waking does not matter; everything is checked.
            let _ = poll::poll(&mut polled, None);
            continue;
        };
        match relay.pass_on(news) {
            None => {}
            Some(end @ Message::Ended(0)) if inherited.tenure.ends_at_once() => {
                inherited.shared_state.outlived.set(true);
                relay.tell_end(end);
                return false;
            }
            // The end is in the shared state, where `serve` finds it.
            Some(_) => return relay.is_stopped(),
        }
    }
}

/// Waits until this process has ended or all descriptors are readable.
fn await_end_or(process: BorrowedFd<'_>, until: &[BorrowedFd<'_>]) {
    let is_awaited = |fd: &BorrowedFd<'_>| !is_readable(*fd, Duration::ZERO);
    while is_awaited(&process) {
        let awaited = until.iter().copied().filter(is_awaited);
        let mut polled: Vec<_> = awaited.map(|fd| PollFd::new(fd, poll::IN)).collect();
        if polled.is_empty() {
            return;
        }
        polled.push(PollFd::new(process, poll::IN));
        // The reason for waking does not matter; everything is checked.
        let _ = poll::poll(&mut polled, None);
    }
}

/// Raises the limit on open descriptors for the agent. The command keeps the caller's limit.
pub(super) fn raise_descriptor_limit() -> sys::Result<()> {
    let hard = resource::limit(0, RLIMIT_NOFILE.u32())?.hard;
    resource::set_limit(0, RLIMIT_NOFILE.u32(), Limit { soft: hard, hard })
}

/// Waits until the command has filled the slot: its process runs, or it has installed its filter.
fn begun(
    page: &SharedPage,
    slot: usize,
    waiter: &OwnedFd,
    messages: &Receiver,
) -> Result<i32, Message> {
    let deadline = Instant::now() + LISTENER_DEADLINE;
    loop {
        // Checked first, so that what the waiter left behind when it ended is seen below.
        let is_waiter_gone = is_readable(waiter.as_fd(), LISTENER_POLL);
        let number = page.int(slot).load(Ordering::Acquire);
        if number > 0 {
            return Ok(number);
        }
        let errno = page.int(slot::FILTER_ERROR).load(Ordering::Acquire);
        if errno != 0 {
            return Err(Message::FilterFailed(errno));
        }
        if let Some(failure) = waiter::confine_failure(page) {
            return Err(failure);
        }
        if is_waiter_gone {
            return Err(last_words(messages));
        }
        if Instant::now() > deadline {
            return Err(Message::FilterFailed(Errno::ETIMEDOUT.0));
        }
    }
}

/// Returns the reason for the end of a waiter.
fn last_words(waiter: &Receiver) -> Message {
    let mut last = Message::WaiterGone;
    while waiter.is_ready() {
        match waiter.receive() {
            Ok(Some(message)) => last = message,
            Ok(None) | Err(_) => break,
        }
    }
    last
}

/// Reason for the end of an agent's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentExit {
    /// The whole workload has ended.
    ToTheEnd,
    /// Another agent continues.
    HandedOver,
    /// The process that watched for this one has died.
    Lost,
}

/// `watched` is the listener that shows the end of the workload.
fn serve(
    inherited: &InheritedDescriptors,
    generation: u64,
    started: Started,
    watched: Option<&Listener>,
) -> AgentExit {
    let (services, is_stopped) = (started.services, started.is_stopped);
    let shared_state = &inherited.shared_state;
    let bell = inherited.agent_bell(generation);
    let waits_for_end = !shared_state.command_end_reported.get();
    let mut relay = waits_for_end.then(|| Relay::after(inherited, is_stopped));
    // News received before the services ran.
    let mut heard = shared_state.end().filter(|_| generation == FIRST);
    let mut reporter = Reporter::new(shared_state, generation);
    loop {
        bell.hush();
        if services.are_lost() {
            return AgentExit::Lost;
        }
        reporter.report(services.as_ref());
        if shared_state.order(generation) == Order::HandOver {
            return hand_over(inherited, generation, services);
        }
        if let Some(listening) = &mut relay {
            let heard = heard.take().map(Some);
            let next = || listening.next().map(|news| listening.pass_on(news));
            if let Some(end) = heard.or_else(next) {
                if let Some(end) = end {
                    if !is_settled_at_end(inherited, services.as_ref(), &mut reporter) {
                        // The end is in the shared state, for the agent that reports it.
                        return AgentExit::Lost;
                    }
                    listening.tell_end(end);
                    relay = None;
                }
                continue;
            }
        } else if services.has_ended() {
            break;
        }
        if relay.is_none() {
            // The waiter has ended with the command, and may be this process's child.
            orphans::reap_waiter(shared_state.waiter_pid.get());
        }
        let waiting = Waiting {
            bell,
            relay: relay.as_ref(),
            reporter: &reporter,
            services: services.as_ref(),
            watched,
        };
        waiting.until_something_happens(&inherited.tenure);
    }
    shared_state.await_end_of_gap();
    report_the_rest(&mut reporter, services.as_ref());
    services.finish();
    AgentExit::ToTheEnd
}

/// Delivers all alerts of a command that has ended. Returns false if another agent must do so.
fn is_settled_at_end(
    inherited: &InheritedDescriptors,
    services: &dyn Services,
    reporter: &mut Reporter<'_>,
) -> bool {
    let shared_state = &inherited.shared_state;
    deliver(services, &inherited.tenure);
    shared_state.await_end_of_gap();
    if reporter.tell_gaps(services) {
        services.flush();
    }
    if services.are_lost() {
        return false;
    }
    services.conclude();
    shared_state.outlived.set(!services.has_ended());
    true
}

/// Reports what there is to report before the services end.
fn report_the_rest(reporter: &mut Reporter<'_>, services: &dyn Services) {
    reporter.report(services);
    if reporter.has_more() {
        // There is no later opportunity.
        services.flush();
        reporter.telling = None;
        reporter.tell_gaps(services);
    }
}

/// Hands over to another agent.
fn hand_over(
    inherited: &InheritedDescriptors,
    generation: u64,
    mut services: Box<dyn Services>,
) -> AgentExit {
    services.hand_over();
    if services.are_lost() {
        // The other process has not concluded its calls: the keeper must answer them.
        return AgentExit::Lost;
    }
    inherited
        .shared_state
        .set_state(generation, State::HandedOver);
    inherited.keeper_bell.ring();
    services.finish();
    AgentExit::HandedOver
}

/// Events that wake a serving agent.
struct Waiting<'a> {
    bell: &'a EventFdNotifier,
    /// `None` once the command's end is reported.
    relay: Option<&'a Relay<'a>>,
    reporter: &'a Reporter<'a>,
    services: &'a dyn Services,
    /// A listener whose end is not reported otherwise.
    watched: Option<&'a Listener>,
}

impl Waiting<'_> {
    fn until_something_happens(&self, tenure: &Detach) {
        let mut polled = self.relay.map(Relay::polled).unwrap_or_default();
        polled.push(PollFd::new(self.bell.as_fd(), poll::IN));
        polled.extend(self.reporter.polled());
        polled.extend(self.services.link().map(|link| PollFd::new(link, poll::IN)));
        let is_over = self.watched.is_some_and(has_hung_up);
        let watched = self.watched.filter(|_| !is_over);
        polled.extend(watched.map(|listener| PollFd::new(listener.as_fd(), 0)));
        let pause = if is_over {
            END_POLL
        } else if tenure.ends_at_once() {
            DETACHED_POLL
        } else {
            DESCENDANTS_POLL
        };
        let patience = match (self.relay, self.reporter.has_more()) {
            (None, _) => Some(pause),
            (Some(_), true) => Some(TELLING_POLL),
            (Some(_), false) => None,
        };
        // The reason for waking does not matter; everything is checked.
        let _ = poll::poll(&mut polled, patience);
    }
}

/// Delivers everything that the command caused before its end is reported.
fn deliver(services: &dyn Services, tenure: &Detach) {
    services.flush();
    if tenure.ends_at_once() {
        return;
    }
    let grace = Instant::now() + END_GRACE;
    while !services.has_ended() && Instant::now() < grace {
        std::thread::sleep(Duration::from_micros(200));
    }
    services.flush();
}

/// Reports state changes of our other processes.
struct Reporter<'a> {
    shared_state: &'a SharedState,
    /// `None` once the keeper is known to have ended.
    keeper: Option<OwnedFd>,
    /// Number of the last unwatched interval in the current report. The next report waits, so that
    /// each interval is reported once.
    telling: Option<u64>,
    replaced: u64,
    upgrades: u64,
    failed_upgrades: u64,
    refused_orders: u64,
}

impl<'a> Reporter<'a> {
    fn new(shared_state: &'a SharedState, generation: u64) -> Self {
        // An agent that took over from a living one reports itself.
        let is_upgrade = generation != FIRST && shared_state.upgraded_to.get() == generation;
        Self {
            shared_state,
            keeper: sys::pidfd::open(shared_state.keeper_pid.get()).ok(),
            telling: None,
            replaced: shared_state.keepers_replaced.get(),
            upgrades: shared_state.upgrades.get() - u64::from(is_upgrade),
            failed_upgrades: shared_state.upgrades_failed.get(),
            refused_orders: shared_state.orders_refused.get(),
        }
    }

    fn polled(&self) -> Option<PollFd<'_>> {
        let keeper = self.keeper.as_ref()?;
        Some(PollFd::new(keeper.as_fd(), poll::IN))
    }

    /// Returns true if unwatched intervals wait for another report, of which no notification comes.
    fn has_more(&self) -> bool {
        let ended = self.shared_state.gap.ended.get();
        self.telling.is_some_and(|last| ended > last)
    }

    /// Reports unwatched intervals, unless a report is in progress. Returns true if it reported
    /// some.
    fn tell_gaps(&mut self, services: &dyn Services) -> bool {
        if self
            .telling
            .is_some_and(|last| !self.shared_state.are_reported(last))
        {
            return false;
        }
        self.telling = None;
        let Some(gaps) = self.shared_state.gaps_to_tell() else {
            return false;
        };
        self.telling = Some(gaps.totals.count);
        services.report(&Report::Gaps(gaps));
        true
    }

    fn report(&mut self, services: &dyn Services) {
        self.tell_gaps(services);
        let state = self.shared_state;
        let news = |counter: &SharedNumber, seen: &mut u64| {
            let now = counter.get();
            std::mem::replace(seen, now) != now
        };
        if news(&state.upgrades, &mut self.upgrades) {
            services.report(&Report::Upgraded);
        }
        if news(&state.upgrades_failed, &mut self.failed_upgrades) {
            services.report(&Report::UpgradeFailed);
        }
        if news(&state.orders_refused, &mut self.refused_orders) {
            services.report(&Report::OrderRefused);
        }
        let is_replaced = news(&state.keepers_replaced, &mut self.replaced);
        let has_ended = |keeper: &OwnedFd| is_readable(keeper.as_fd(), Duration::ZERO);
        if is_replaced {
            let pid = self.shared_state.keeper_pid.get();
            self.keeper = sys::pidfd::open(pid).ok();
            services.report(&Report::KeeperReplaced { pid });
        } else if self.keeper.as_ref().is_some_and(has_ended) {
            self.keeper = None;
            services.report(&Report::KeeperGone);
        }
    }
}

const ESRCH: i32 = Errno::ESRCH.0;

#[cfg(test)]
mod tests {
    use super::super::respawn::Respawn;
    use super::*;

    /// Services of another process that dies during a handover.
    struct DyingAgentServices {
        dies: bool,
        is_lost: Cell<bool>,
    }

    impl Services for DyingAgentServices {
        fn has_ended(&self) -> bool {
            false
        }
        fn flush(&self) {}
        fn report(&self, _report: &Report) {}
        fn hand_over(&mut self) {
            self.is_lost.set(self.dies);
        }
        fn let_go(&self) {}
        fn finish(self: Box<Self>) {}
        fn are_lost(&self) -> bool {
            self.is_lost.get()
        }
    }

    fn hands_over(dies: bool) -> (AgentExit, State) {
        let respawn = Respawn {
            spec: Box::new(|_take_over| Vec::new()),
            label: Vec::new(),
        };
        let inherited =
            InheritedDescriptors::create_alone(respawn, Detach::WithCommand).expect("memory");
        inherited.shared_state.set_state(FIRST, State::Ready);
        inherited.shared_state.set_order(FIRST, Order::HandOver);
        let services = Box::new(DyingAgentServices {
            dies,
            is_lost: Cell::new(false),
        });
        let started = Started {
            services,
            is_stopped: false,
        };
        let served = serve(&inherited, FIRST, started, None);
        (served, inherited.shared_state.state(FIRST))
    }

    #[test]
    fn who_dies_while_it_hands_over_has_not_handed_over() {
        assert_eq!(hands_over(true), (AgentExit::Lost, State::Ready));
        assert_eq!(
            hands_over(false),
            (AgentExit::HandedOver, State::HandedOver)
        );
    }
}
