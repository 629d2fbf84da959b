//! A container in the host agent, from connection to end.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use capture::notify::ClaimOffer;
use container::KnownContainer;
use event::Pid;
use outputs::Dispatcher;
use supervisor::{AgentStart, Asked, HeldRuntimeCalls, Report, SharedState, Source};
use sys::notify::Listener;

use super::super::engines::Holding;
use super::super::kernel_reports::KernelReports;
use super::super::reports;
use super::super::services::{RuntimeContainer, note_refusals};
use super::handoff_request::{self, HandedDescriptors, HandoffRequest, HostAgentCommand};
use super::{Host, WatchedContainer};
use crate::identity;
use crate::journal;
use crate::policy_files;

/// Accepts containers for the lifetime of the process.
pub(super) fn admit(listener: &UnixListener, host: &Arc<Host>) {
    let own = rustix::process::geteuid().as_raw();
    let mut has_failed = false;
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open descriptors for now; each container that ends releases some.
                if !has_failed {
                    journal::warn(&format!("containers wait to be watched: {error}"));
                }
                has_failed = true;
                std::thread::sleep(std::time::Duration::from_millis(10));
                continue;
            }
        };
        has_failed = false;
        let is_own =
            sys::socket::peer_credentials(stream.as_fd()).is_ok_and(|(_, uid, _)| uid == own);
        if !is_own {
            continue;
        }
        let Some(number) = host.begin(&stream) else {
            continue;
        };
        let served = Arc::clone(host);
        let thread = std::thread::Builder::new().name("container".to_owned());
        let spawned = thread.spawn(move || {
            serve(&stream, &served);
            served.end(number);
        });
        if let Err(error) = spawned {
            journal::warn(&format!("cannot watch a container: {error}"));
            host.end(number);
        }
    }
}

impl Host {
    /// Registers a connection and returns its number. Returns `None` if this agent is about to end.
    fn begin(&self, stream: &UnixStream) -> Option<u64> {
        let stream = stream.try_clone().ok()?;
        let mut state = self.state();
        if state.is_ending {
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.open.insert(number, stream);
        Some(number)
    }

    fn end(&self, number: u64) {
        let mut state = self.state();
        state.open.remove(&number);
        state.idle_since = Instant::now();
        self.left.notify_all();
    }
}

/// Watches a container until its last process or its own agent has ended.
fn serve(stream: &UnixStream, host: &Arc<Host>) {
    let shown = host.account.as_ref().map(|account| account.file.as_fd());
    let Some(handed) = received(stream, shown, identity::build()) else {
        return;
    };
    let member = match Member::new(handed, stream, host) {
        Ok(member) => member,
        Err(error) => {
            let why = format!("{error:#}");
            // The other side reports the error; one that has closed the connection does not need
            // it.
            let _ = handoff_request::answer(stream, Err(&why));
            return;
        }
    };
    if handoff_request::answer(stream, Ok(())).is_ok() {
        member.follow(stream);
    }
    member.leave();
}

/// Greets the other side, and receives its container. Answers a request that cannot be used. `own`: the build of this agent.
fn received(
    stream: &UnixStream,
    shown: Option<BorrowedFd<'_>>,
    own: io::Result<String>,
) -> Option<HandedDescriptors> {
    let received =
        handoff_request::greet(stream, shown).and_then(|()| handoff_request::receive(stream, own));
    let error = match received {
        // `None`: the other side only tested whether this agent exists.
        Ok(handed) => return handed,
        Err(error) => error,
    };
    match error.kind() {
        // Nobody is there to be answered.
        ErrorKind::BrokenPipe => return None,
        // The other side reports it.
        ErrorKind::InvalidData => {}
        _ => journal::warn(&format!("cannot watch a container: {error}")),
    }
    // Otherwise the other side would ask again until its time is up.
    let _ = handoff_request::answer(stream, Err(&error.to_string()));
    None
}

struct Member<'a> {
    host: &'a Arc<Host>,
    number: u64,
    shared_state: Arc<SharedState>,
    dispatcher: Dispatcher,
    /// The engine; taken when it must stop receiving.
    engine: std::cell::Cell<Option<Holding>>,
    /// Taken together with the engine.
    kernel_reports: std::cell::Cell<Option<KernelReports>>,
}

/// Returns what the engine of a container starts from. `asking`: the connection, to ask for held calls.
fn agent_start(
    hail: HandoffRequest,
    listener: OwnedFd,
    shared_state: &Arc<SharedState>,
    asking: UnixStream,
) -> AgentStart {
    let asked: Asked = Box::new(move || handoff_request::ask_calls(&asking));
    AgentStart {
        source: Source::Listener(Listener::new(listener)),
        transparent: hail.transparent.into_iter().map(Pid).collect(),
        shared_state: Arc::clone(shared_state),
        generation: hail.generation,
        is_resumed: hail.is_resumed,
        held: hail.is_answered.then_some(HeldRuntimeCalls::Asked(asked)),
        shared_state_file: None,
        runtime: None,
        ticket: Some(ClaimOffer(hail.ticket)),
    }
}

impl<'a> Member<'a> {
    fn new(
        handed: HandedDescriptors,
        stream: &UnixStream,
        host: &'a Arc<Host>,
    ) -> anyhow::Result<Self> {
        let HandedDescriptors {
            hail,
            shared_state,
            listener,
        } = handed;
        let shared_state = SharedState::open(shared_state.as_fd());
        let shared_state = Arc::new(shared_state.context("cannot watch for its agent")?);
        shared_state.set_host_agent(Pid(std::process::id().cast_signed()));
        note_refusals(&host.common.verify, &shared_state);
        host.take_losses(hail.losses);
        host.see_rules(hail.rules);
        let in_force = host.rules.in_force();
        let told = RuntimeContainer {
            told: KnownContainer {
                id: hail.container.clone(),
                bundle: hail.bundle.clone(),
            },
            has_mounts: hail.has_mounts,
        };
        let id = told.told.id.clone();
        let dispatcher = host.common.dispatcher.about(told.fields());
        let asking = stream.try_clone().context("cannot keep the connection")?;
        let listening = agent_start(hail, listener, &shared_state, asking);
        let engine = super::engine(host, listening, told, &in_force, dispatcher.clone())?;
        // If the file was edited or removed, denials have the name of the loaded profile.
        let policy = || {
            policy_files::read(host.lasting.policy.as_deref()?)
                .policies
                .pop()
        };
        let kernel_reports = KernelReports::follow(
            &host.lasting.resident,
            &policy,
            dispatcher.clone(),
            &shared_state,
            Some(&id),
        )?;
        let number = host.rules.join(engine.rulings(), &in_force);
        let live = WatchedContainer {
            counters: engine.counter_source(),
            shared_state: Arc::clone(&shared_state),
            protect: engine.protector(),
        };
        host.state().live.insert(number, live);
        Ok(Self {
            host,
            number,
            shared_state,
            dispatcher,
            engine: std::cell::Cell::new(Some(engine)),
            kernel_reports: std::cell::Cell::new(Some(kernel_reports)),
        })
    }

    /// Executes orders until the other side closes the connection.
    fn follow(&self, stream: &UnixStream) {
        while let Some(order) = handoff_request::next_order(stream) {
            let answer = self.carry_out(order);
            handoff_request::obey(stream, answer);
        }
    }

    fn carry_out(&self, order: HostAgentCommand) -> bool {
        match order {
            HostAgentCommand::HasEnded => return self.has_ended(),
            HostAgentCommand::Flush => {
                let reports = self.kernel_reports.take();
                if let Some(reports) = &reports {
                    reports.flush();
                }
                self.kernel_reports.set(reports);
                let deadline = Instant::now() + self.host.lasting.output_timeout;
                self.dispatcher.flush(deadline);
            }
            HostAgentCommand::Gaps => self.tell_gaps(),
            HostAgentCommand::Upgraded => self.report(&Report::Upgraded),
            HostAgentCommand::UpgradeFailed => self.report(&Report::UpgradeFailed),
            HostAgentCommand::SignalRefused => self.report(&Report::OrderRefused),
            HostAgentCommand::KeeperGone => self.report(&Report::KeeperGone),
            HostAgentCommand::KeeperReplaced(pid) => {
                if let Some(live) = self.host.state().live.get(&self.number) {
                    (live.protect)(Pid(pid));
                }
                self.report(&Report::KeeperReplaced { pid });
            }
            HostAgentCommand::HandOver => self.stop(),
        }
        true
    }

    fn has_ended(&self) -> bool {
        let engine = self.engine.take();
        let has_ended = engine.as_ref().is_none_or(Holding::has_ended);
        self.engine.set(engine);
        has_ended
    }

    /// Reports unwatched intervals. Until the alert is delivered, a successor still reports them if
    /// this agent is killed.
    fn tell_gaps(&self) {
        let Some(gaps) = self.shared_state.gaps_to_tell() else {
            return;
        };
        let internal = reports::internal(&Report::Gaps(gaps.clone()));
        let shared_state = Arc::clone(&self.shared_state);
        let told = Box::new(move || shared_state.gaps_reported(&gaps));
        self.dispatcher.emit_internal_then(internal, told);
    }

    fn report(&self, report: &Report) {
        self.dispatcher.emit_internal(reports::internal(report));
    }

    /// Stops receiving and concludes the received calls.
    fn stop(&self) {
        if let Some(engine) = self.engine.take() {
            engine.hand_over();
            engine.join();
        }
        if let Some(reports) = self.kernel_reports.take() {
            reports.end();
        }
    }

    fn leave(self) {
        let has_ended = self.has_ended();
        self.stop();
        self.host.rules.leave(self.number);
        let mut state = self.host.state();
        let live = state.live.remove(&self.number);
        // The counters of an agent that takes over start from this value in its shared state.
        if let Some(live) = live.filter(|_| has_ended) {
            let (counters, losses) = live.totals();
            state.past = state.past.plus(&counters);
            state.past_losses = state.past_losses.plus(&losses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::handoff_request::{await_greeting, hear, send};

    #[test]
    fn an_agent_that_cannot_read_its_build_answers_the_request() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let file = std::fs::File::open("/dev/null").expect("a device");
        send(
            &ours,
            &handoff_request::tests::hail(),
            file.as_fd(),
            file.as_fd(),
        )
        .expect("sent");
        let unknown = Err(io::Error::from(ErrorKind::PermissionDenied));
        assert!(received(&theirs, None, unknown).is_none());
        drop(theirs);
        await_greeting(&ours).expect("the agent greets");
        let mut none = || Err(io::Error::other("they are not wanted"));
        let why = hear(&ours, &mut none)
            .expect("an answer")
            .expect_err("a refusal");
        assert!(why.contains("cannot read its own build"), "{why}");
    }
}
