//! The memory that all processes of `run` share, so that the actions of a killed process are known
//! without it.

mod cell;
mod deny_table;
mod gaps;
mod layout;
mod leftover_search;

use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use abi::Capabilities;
use capture::notify::ReceiverStatus;
use decoder::counters::CounterSnapshot;
use event::Pid;
use outputs::LineOutput;
use sys::notify::Slot;
use sys::shared::SharedWords;

pub(crate) use self::cell::{SharedNumber, SharedPid};
pub(crate) use self::gaps::Unwatched;
pub use self::gaps::{Cause, GapTotals, Gaps};
use self::layout::{AgentFields, HEADER_WORDS, Layout, VERSION, WORDS};
pub(crate) use self::layout::{FOREIGN, NATIVE_CALLS, UNNAMED};
use super::message::Message;

/// Generation of the first agent.
pub(super) const FIRST: u64 = 0;

/// State of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum State {
    /// The agent loads rules.
    Starting = 0,
    /// The agent waits for its turn.
    Prepared = 1,
    /// The agent receives calls.
    Ready = 2,
    /// The agent has stopped receiving, and holds no call.
    HandedOver = 3,
    /// The agent ends because no work is left.
    Finished = 4,
}

/// Order to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Order {
    /// Continue.
    None = 0,
    /// Start receiving.
    Start = 1,
    /// Stop receiving.
    HandOver = 2,
}

/// The shared state, mapped. Its fields are those of `Layout`.
#[derive(Debug)]
pub struct SharedState {
    words: Arc<SharedWords>,
    /// Receivers of the agents of even and odd generation.
    live: [Arc<ReceiverStatus>; 2],
    /// Totals of the agents that have ended.
    past: ReceiverStatus,
}

/// The shared state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another build created it with a different layout.
    #[error("its shared state has layout {found}, and this build knows layout {VERSION} alone")]
    Layout {
        /// Version of its layout.
        found: u64,
    },
    /// A descriptor is missing, or the memory cannot be mapped.
    #[error("what it shares cannot be used")]
    Map(#[from] sys::SyscallError),
}

impl Deref for SharedState {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        self.words.view(0)
    }
}

impl SharedState {
    /// Creates an empty state and its file.
    pub(super) fn create() -> sys::Result<(Self, OwnedFd)> {
        let (words, file) = SharedWords::create(WORDS)?;
        let shared_state = Self::on(words);
        shared_state.version.set(VERSION);
        shared_state.size.set(size());
        Ok((shared_state, file))
    }

    /// Maps the state in a file.
    ///
    /// # Errors
    ///
    /// Another build created it with a different layout, or it cannot be mapped.
    pub fn open(file: BorrowedFd<'_>) -> Result<Self, OpenError> {
        let header = SharedWords::open(file, HEADER_WORDS)?;
        let [found, found_size]: &[SharedNumber; HEADER_WORDS] = header.view(0);
        // The version alone would suffice if it were always incremented.
        if found.get() != VERSION || found_size.get() != size() {
            return Err(OpenError::Layout { found: found.get() });
        }
        Ok(Self::on(SharedWords::open(file, WORDS)?))
    }

    fn on(words: SharedWords) -> Self {
        let words = Arc::new(words);
        let pulse = |index| ReceiverStatus::new(Arc::clone(&words), layout::pulse(index));
        Self {
            live: [Arc::new(pulse(0)), Arc::new(pulse(1))],
            past: pulse(2),
            words,
        }
    }

    /// Returns true if a container's first program must still be restricted and may not start
    /// before.
    pub fn first_waits(&self) -> bool {
        self.first_waits.get()
    }

    /// Sets whether the first program must still be restricted.
    pub(super) fn set_first_waits(&self, waits: bool) {
        self.first_waits.set(waits);
    }

    /// Records that the first program is restricted.
    pub fn first_begins(&self) {
        self.first_waits.set(false);
    }

    /// Returns the number of the BPF policy that enforces for a container, once it is loaded.
    pub fn tenant(&self) -> Option<u32> {
        let number = u32::try_from(self.tenant.get()).ok();
        number.filter(|number| *number != 0)
    }

    /// Records the number of the loaded BPF policy.
    pub fn set_tenant(&self, number: u32) {
        self.tenant.set(u64::from(number));
    }

    /// Returns capabilities that a policy drops and that the command would not have without it.
    /// Does not include those compared when the policy was compiled.
    pub fn lacked(&self) -> Capabilities {
        Capabilities(self.lacked.get())
    }

    /// Sets the capabilities that a container's first program lacks.
    pub fn set_lacked(&self, set: Capabilities) {
        self.lacked.set(set.0);
    }

    /// Returns the buffer to which the kernel writes what the keeper receives, for the next keeper.
    pub(super) fn keepers_call(&self) -> Slot<'_> {
        Slot::new(&self.keepers_call.words)
    }

    fn agent(&self, generation: u64) -> &AgentFields {
        &self.agents[parity(generation)]
    }

    pub(super) fn agent_pid(&self, generation: u64) -> i32 {
        self.agent(generation).pid.get()
    }

    /// Returns the processes of the monitor, as far as they are known: the agent whose turn it is, and the one that is
    /// to follow it.
    pub(super) fn own_processes(&self) -> Vec<Pid> {
        let generation = self.generation.get();
        // Its fields may be those of an agent that has long ended, whose number is used again.
        let next = Some(generation + 1)
            .filter(|next| matches!(self.state(*next), State::Starting | State::Prepared));
        let pids = [
            self.front_pid.get(),
            self.keeper_pid.get(),
            self.waiter_pid.get(),
            self.host_agent_pid.get(),
            self.agent_pid(generation),
            next.map_or(0, |next| self.agent_pid(next)),
        ];
        pids.into_iter().filter(|pid| *pid > 0).map(Pid).collect()
    }

    /// Names the agent of the host that receives calls for the agent.
    pub fn set_host_agent(&self, pid: Pid) {
        self.host_agent_pid.set(pid.0);
    }

    pub(super) fn set_agent_pid(&self, generation: u64, pid: i32) {
        self.agent(generation).pid.set(pid);
    }

    pub(super) fn state(&self, generation: u64) -> State {
        let number = self.agent(generation).state.get();
        let all = [
            State::Prepared,
            State::Ready,
            State::HandedOver,
            State::Finished,
        ];
        let found = all.into_iter().find(|state| *state as u64 == number);
        found.unwrap_or(State::Starting)
    }

    pub(super) fn set_state(&self, generation: u64, state: State) {
        self.agent(generation).state.set(state as u64);
    }

    pub(super) fn order(&self, generation: u64) -> Order {
        match self.agent(generation).order.get() {
            number if number == Order::Start as u64 => Order::Start,
            number if number == Order::HandOver as u64 => Order::HandOver,
            _ => Order::None,
        }
    }

    pub(super) fn set_order(&self, generation: u64, order: Order) {
        self.agent(generation).order.set(order as u64);
    }

    /// Returns the receiver status of an agent.
    pub fn pulse(&self, generation: u64) -> &Arc<ReceiverStatus> {
        &self.live[parity(generation)]
    }

    /// Returns the totals of agents that have ended.
    pub fn past(&self) -> CounterSnapshot {
        self.past.totals()
    }

    /// Adds an ended agent's totals to those of the past.
    pub(super) fn bury(&self, generation: u64) {
        self.past.bury(self.pulse(generation));
    }

    /// Initializes the fields of an agent.
    pub(super) fn invite(&self, generation: u64) {
        self.pulse(generation).reset();
        // Lines of an agent with the same fields that died while it handed over.
        self.note_torn_lines(generation);
        let agent = self.agent(generation);
        agent.pid.set(0);
        agent.alerts_queued.set(0);
        agent.alerts_settled.set(0);
        self.set_order(generation, Order::None);
        self.set_state(generation, State::Starting);
    }

    /// Returns the end of the command.
    pub(super) fn end(&self) -> Option<Message> {
        Message::from_word(self.command_end.get())
    }

    pub(super) fn set_end(&self, end: Message) {
        self.command_end.set(end.to_word());
    }

    /// Counts an alert that an agent must deliver.
    pub fn alert_queued(&self, generation: u64) {
        self.agent(generation).alerts_queued.add(1);
    }

    /// Counts alerts that an agent has delivered or counted as lost.
    pub fn alerts_settled(&self, generation: u64, alerts: u64) {
        self.agent(generation).alerts_settled.add(alerts);
    }

    /// Records that an agent begins to write lines. Returns true if one that died may have left an
    /// incomplete line.
    pub fn lines_begin(&self, generation: u64, output: LineOutput) -> bool {
        let bit = line_bit(output);
        self.agent(generation).writing.insert(bit);
        self.torn_lines.remove(bit) != 0
    }

    /// Records that all lines of an agent are complete.
    pub fn lines_end(&self, generation: u64, output: LineOutput) {
        self.agent(generation).writing.remove(line_bit(output));
    }

    /// Records that the lines begun by an agent will not be completed by it.
    fn note_torn_lines(&self, generation: u64) {
        let writing = &self.agent(generation).writing;
        let bits = writing.get();
        self.torn_lines.insert(bits);
        writing.remove(bits);
    }

    /// Counts the unsettled alerts of a dead agent as lost, except those that it was just about to
    /// settle. Only one process at a time may do so; if it is killed, the next one concludes it.
    pub(super) fn count_lost_alerts(&self, generation: u64) {
        self.conclude_losing();
        self.note_torn_lines(generation);
        let agent = self.agent(generation);
        let lost = agent.alerts_queued.above(&agent.alerts_settled);
        self.losing.after.set(self.alerts_lost.get() + lost);
        self.losing.agent.set(generation + 1);
        self.conclude_losing();
    }

    fn conclude_losing(&self) {
        let agent = self.losing.agent.get();
        let Some(generation) = agent.checked_sub(1) else {
            return;
        };
        self.alerts_lost.set(self.losing.after.get());
        let agent = self.agent(generation);
        agent.pid.set(0);
        agent.alerts_queued.set(0);
        agent.alerts_settled.set(0);
        self.losing.agent.set(0);
    }

    /// Returns the number of lost alerts that are not reported, to one of the processes that ask.
    fn take_unreported_alerts(&self) -> u64 {
        loop {
            let reported = self.gap.alerts_reported.get();
            let lost = self.alerts_lost.get();
            if lost <= reported {
                return 0;
            }
            if self.gap.alerts_reported.replace(reported, lost) {
                return lost - reported;
            }
        }
    }

    /// Returns the number of alerts lost with agents.
    pub fn lost_alerts(&self) -> u64 {
        self.alerts_lost.get()
    }

    /// Records the losses of a dead host agent for the next one. `its` is that agent's shared
    /// state, in which each loss is found by one process only.
    pub fn note_losses_of_host(&self, its: &Self) {
        its.note_torn_lines(0);
        let agent = its.agent(0);
        let queued = agent.alerts_queued.take();
        let lost = queued.saturating_sub(agent.alerts_settled.take());
        its.alerts_lost.add(lost);
        self.host_alerts.add(its.take_unreported_alerts());
        self.host_torn_lines.insert(its.torn_lines.take());
    }

    /// Returns these losses: alerts, and outputs as bits.
    pub fn losses_of_host(&self) -> (u64, u64) {
        (self.host_alerts.get(), self.host_torn_lines.get())
    }

    /// Removes losses of which another host agent has been informed.
    pub fn losses_of_host_reported(&self, (alerts, torn): (u64, u64)) {
        self.host_alerts.subtract(alerts);
        self.host_torn_lines.remove(torn);
    }

    /// Records, in the host agent, outputs with an incomplete last line.
    pub fn lines_are_torn(&self, outputs: u64) {
        self.torn_lines.insert(outputs);
    }
}

fn size() -> u64 {
    u64::try_from(size_of::<Layout>()).expect("some kilobytes")
}

fn line_bit(output: LineOutput) -> u64 {
    match output {
        LineOutput::Stream => 1,
        LineOutput::File => 2,
    }
}

fn parity(generation: u64) -> usize {
    usize::from(generation % 2 == 1)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn another_program_finds_the_same_state() {
        let (shared_state, file) = SharedState::create().expect("memory");
        shared_state.set_agent_pid(3, 42);
        shared_state.set_state(3, State::Ready);
        shared_state.set_order(2, Order::HandOver);
        shared_state.set_end(Message::Ended(137));
        let again = SharedState::open(file.as_fd()).expect("this layout");
        assert_eq!((again.agent_pid(1), again.agent_pid(2)), (42, 0));
        assert_eq!(
            (again.state(3), again.order(2)),
            (State::Ready, Order::HandOver)
        );
        assert_eq!(again.end(), Some(Message::Ended(137)));
    }

    #[test]
    fn another_layout_is_refused_by_its_number() {
        let (shared_state, file) = SharedState::create().expect("memory");
        let refusal = || SharedState::open(file.as_fd()).map_err(|error| error.to_string());
        assert!(refusal().is_ok());
        shared_state.version.set(VERSION + 1);
        let refused = format!(
            "its shared state has layout {}, and this build knows layout {VERSION} alone",
            VERSION + 1
        );
        assert_eq!(refusal().err(), Some(refused));
        shared_state.version.set(VERSION);
        shared_state.size.add(8);
        assert!(refusal().is_err(), "it is longer");
        shared_state.size.subtract(8);
        assert!(refusal().is_ok());
    }

    #[test]
    fn an_older_and_shorter_layout_is_refused_by_its_number() {
        let (words, file) = SharedWords::create(WORDS / 2).expect("memory");
        words.words()[0].store(5, std::sync::atomic::Ordering::Release);
        let opened = SharedState::open(file.as_fd());
        assert!(matches!(opened, Err(OpenError::Layout { found: 5 })));
    }

    #[test]
    fn what_a_dead_agent_had_not_delivered_is_told_once() {
        let (shared_state, _file) = SharedState::create().expect("memory");
        for _ in 0..5 {
            shared_state.alert_queued(3);
        }
        shared_state.alerts_settled(3, 2);
        shared_state.alert_queued(4);
        shared_state.count_lost_alerts(3);
        assert_eq!(shared_state.lost_alerts(), 3);
        shared_state.gap.begun.set(1);
        shared_state.gap.ended.set(1);
        let gaps = shared_state.gaps_to_tell().expect("one is over");
        assert_eq!(gaps.lost_alerts, 3);
        shared_state.gaps_reported(&gaps);
        assert_eq!(shared_state.lost_alerts_to_say(), None);
        // The one of the same words begins anew; another one's account stands.
        shared_state.count_lost_alerts(5);
        shared_state.count_lost_alerts(4);
        assert_eq!(shared_state.lost_alerts(), 4);
        let said = shared_state.lost_alerts_to_say();
        assert_eq!(said.as_deref(), Some("1 queued alerts were lost"));
    }

    #[test]
    fn what_an_agent_of_the_host_took_with_it_is_noted_by_one_and_told_once() {
        let shared_state = || SharedState::create().expect("memory").0;
        let (host, one, other) = (shared_state(), shared_state(), shared_state());
        for _ in 0..3 {
            host.alert_queued(0);
        }
        host.alerts_settled(0, 1);
        host.lines_begin(0, LineOutput::File);
        one.note_losses_of_host(&host);
        other.note_losses_of_host(&host);
        assert_eq!(one.losses_of_host(), (2, 2));
        assert_eq!(other.losses_of_host(), (0, 0));
        // The next agent of the host dies before the container is told that it is watched: told again.
        let losses = one.losses_of_host();
        one.losses_of_host_reported(losses);
        assert_eq!(one.losses_of_host(), (0, 0));
        let next = shared_state();
        next.lines_are_torn(losses.1);
        assert!(next.lines_begin(0, LineOutput::File));
        assert!(!next.lines_begin(0, LineOutput::Stream));
    }

    #[test]
    fn a_line_that_a_dead_agent_had_begun_is_ended_once() {
        let (shared_state, _file) = SharedState::create().expect("memory");
        assert!(!shared_state.lines_begin(1, LineOutput::File));
        assert!(!shared_state.lines_begin(1, LineOutput::Stream));
        shared_state.lines_end(1, LineOutput::Stream);
        // Both write while one takes over from the other.
        assert!(!shared_state.lines_begin(2, LineOutput::File));
        shared_state.lines_end(2, LineOutput::File);
        shared_state.count_lost_alerts(1);
        assert!(!shared_state.lines_begin(2, LineOutput::Stream));
        assert!(shared_state.lines_begin(2, LineOutput::File));
        assert!(!shared_state.lines_begin(2, LineOutput::File));
    }
}
