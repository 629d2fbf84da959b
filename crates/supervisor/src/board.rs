//! The memory that all processes of `run` share, so that none of them is needed to know what
//! another one did before it was killed.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abi::{Arch, Capabilities, Syscall};
use capture::notify::ReceiverStatus;
use outputs::LineOutput;
use sys::notify::Slot;
use sys::shared::SharedWords;

use super::message::Message;

/// Where each word is. A newer program that takes over must lay them out as this one does.
pub(super) mod word {
    /// Version of this layout.
    pub(super) const LAYOUT: usize = 0;
    pub(crate) const KEEPER_PID: usize = 1;
    /// The keeper has ended on purpose.
    pub(crate) const KEEPER_DONE: usize = 2;
    /// Keepers that replaced a dead one.
    pub(crate) const KEEPERS_REPLACED: usize = 3;
    pub(crate) const WAITER_PID: usize = 4;
    pub(crate) const FRONT_PID: usize = 9;
    pub(crate) const COMMAND_PID: usize = 5;
    /// What the command ended with.
    pub(super) const END: usize = 6;
    /// Whether the front has been told.
    pub(crate) const END_TOLD: usize = 7;
    /// Number of the agent whose turn it is; its parity chooses among the pairs below.
    pub(crate) const GENERATION: usize = 8;
    pub(super) const AGENT_PID: [usize; 2] = [10, 11];
    pub(super) const STATE: [usize; 2] = [12, 13];
    pub(super) const ORDER: [usize; 2] = [14, 15];
    /// Agents that took over from a living one.
    pub(crate) const UPGRADES: usize = 16;
    /// The last of them.
    pub(crate) const UPGRADED_TO: usize = 18;
    /// Agents that were to take over and did not.
    pub(crate) const UPGRADES_FAILED: usize = 17;
    pub(crate) const GAPS_BEGUN: usize = 20;
    pub(crate) const GAPS_ENDED: usize = 21;
    pub(crate) const GAPS_REPORTED: usize = 22;
    /// Of the last gap: why, and a signal or status.
    pub(crate) const GAP_CAUSE: usize = 23;
    pub(crate) const GAP_DETAIL: usize = 24;
    /// When it began.
    pub(crate) const GAP_BEGAN: usize = 25;
    /// How long the gaps that are not reported yet lasted.
    pub(crate) const GAP_LASTED: usize = 26;
    /// Alerts that agents took with them, not reported yet.
    pub(super) const GAP_ALERTS: usize = 27;
    /// Processes of the workload outlived the command, and are watched on.
    pub(crate) const OUTLIVED: usize = 28;
    /// Signals that asked for an upgrade and were no operator's.
    pub(crate) const ORDERS_REFUSED: usize = 29;
    /// Calls that passed unwatched, by cause.
    pub(crate) const PASSED: usize = 30;
    /// Calls that were refused because nobody watched.
    pub(crate) const DENIED: usize = 38;
    /// Alerts that an agent has queued, one for each output, and those that it need not deliver any more.
    pub(super) const ALERTS_QUEUED: [usize; 2] = [40, 41];
    pub(super) const ALERTS_SETTLED: [usize; 2] = [42, 43];
    /// Alerts that agents took with them.
    pub(super) const ALERTS_LOST: usize = 44;
    /// Outputs to which an agent is writing lines, as bits.
    pub(super) const WRITING: [usize; 2] = [19, 39];
    /// Outputs whose last line lacks its end because an agent died, as bits.
    pub(super) const TORN: usize = 37;
    /// Set while a container's first program has to be restricted before it begins.
    pub(crate) const FIRST_WAITS: usize = 45;
    /// The number of the policy that BPF carries for it.
    pub(super) const TENANT: usize = 46;
    /// Capabilities that a policy drops and a container's first program would not have had.
    pub(super) const LACKED: usize = 47;
    /// What the keeper has received.
    pub(super) const KEEPERS_CALL: usize = 48;
    /// Calls in the gaps that are not reported yet: by number, then foreign ones, then those of
    /// which only the id was known.
    pub(crate) const CALLS: usize = 64;
    /// Ids of calls that dead agents may hold, and that are still to be looked up.
    pub(crate) const UNSWEPT: usize = 580;
    /// The call that the keeper is answering: its id, or 0; where it is counted by number; which total it is part
    /// of; and that total before.
    pub(crate) const ANSWERING: usize = 592;
    /// Alerts that an agent of the host took with it, which no other one has been told of yet, and outputs whose last
    /// line lacks its end because of that, as bits.
    pub(super) const HOST_ALERTS: usize = 596;
    pub(super) const HOST_TORN: usize = 597;
    pub(super) const DENY_TABLE: usize = 640;
    pub(super) const PULSES: usize = 800;
}

const LAYOUT: u64 = 5;
/// Native calls are counted one by one below this number.
pub(super) const NATIVE_CALLS: usize = 512;
/// Index of calls of another architecture or with a higher number.
pub(super) const FOREIGN: usize = NATIVE_CALLS;
/// Index of calls whose number is not known.
pub(super) const UNNAMED: usize = NATIVE_CALLS + 1;
/// Counters of calls.
pub(super) const CALL_COUNTERS: usize = NATIVE_CALLS + 2;
/// Entries of the deny table.
const DENY_LIMIT: usize = 64;
/// How long a keeper may take to end a gap that need not last.
const GAP_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks for that.
const GAP_POLL: Duration = Duration::from_millis(2);
const _: () = assert!(word::CALLS + CALL_COUNTERS <= word::UNSWEPT);
const _: () = assert!(word::UNSWEPT + super::unswept::WORDS <= word::ANSWERING);
const WORDS: usize = word::PULSES + 3 * ReceiverStatus::WORDS;

/// How far an agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum State {
    /// It loads rules.
    Starting = 0,
    /// It waits for its turn.
    Prepared = 1,
    /// It receives.
    Ready = 2,
    /// It has stopped receiving, and holds no call.
    HandedOver = 3,
    /// It ends because there is nothing left to do.
    Finished = 4,
}

/// What an agent is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Order {
    /// What it does.
    None = 0,
    /// Receive.
    Start = 1,
    /// Stop receiving.
    HandOver = 2,
}

/// Why nobody watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Cause {
    /// A signal killed the agent.
    Killed = 0,
    /// It ended by itself.
    Exited = 1,
    /// It was stopped, and then killed by the keeper.
    Stopped = 2,
    /// It got no processor, or was held in another way.
    Starved = 3,
    /// It ended and nobody could learn how.
    Gone = 4,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Killed,
        Self::Exited,
        Self::Stopped,
        Self::Starved,
        Self::Gone,
    ];

    fn from_word(word: u64) -> Self {
        Self::ALL
            .into_iter()
            .find(|cause| *cause as u64 == word)
            .unwrap_or(Self::Gone)
    }
}

/// The gaps since the last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gaps {
    /// How many were told before.
    pub told_before: u64,
    /// How many.
    pub count: u64,
    /// Why the last one began.
    pub cause: Cause,
    /// Its signal or exit status.
    pub detail: u64,
    /// How long they lasted.
    pub lasted_ns: u64,
    /// Alerts that were queued when an agent died: each output's. Some may have been delivered.
    pub lost_alerts: u64,
    /// Native calls by number, then the index `FOREIGN` and `UNNAMED`.
    pub calls: Vec<(usize, u64)>,
}

impl Gaps {
    /// The name of a call.
    pub fn name(&self, call: usize) -> String {
        let native = || {
            let (arch, number) = (abi::Arch::native()?, u32::try_from(call).ok()?);
            abi::arch::decode(arch.audit(), number)?.1
        };
        match call {
            FOREIGN => "foreign".to_owned(),
            UNNAMED => "unknown".to_owned(),
            call => native().map_or_else(|| call.to_string(), |call| call.name().to_owned()),
        }
    }
}

/// The board.
#[derive(Debug)]
pub struct Board {
    words: Arc<SharedWords>,
    pulses: [Arc<ReceiverStatus>; 2],
    /// Totals of the agents that have ended.
    past: ReceiverStatus,
}

impl Board {
    /// An empty one and its file.
    pub(super) fn create() -> sys::Result<(Self, OwnedFd)> {
        let (words, file) = SharedWords::create(WORDS)?;
        let board = Self::on(words);
        board.set(word::LAYOUT, LAYOUT);
        Ok((board, file))
    }

    /// The one in a file. `None` if another version of the program laid it out.
    pub fn open(file: BorrowedFd<'_>) -> sys::Result<Option<Self>> {
        let board = Self::on(SharedWords::open(file, WORDS)?);
        Ok((board.load(word::LAYOUT) == LAYOUT).then_some(board))
    }

    fn on(words: SharedWords) -> Self {
        let words = Arc::new(words);
        let pulse = |index| {
            ReceiverStatus::new(
                Arc::clone(&words),
                word::PULSES + index * ReceiverStatus::WORDS,
            )
        };
        Self {
            pulses: [Arc::new(pulse(0)), Arc::new(pulse(1))],
            past: pulse(2),
            words,
        }
    }

    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        &self.words.words()[index]
    }

    pub(super) fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    pub(super) fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    pub(super) fn add(&self, index: usize, value: u64) {
        self.word(index).fetch_add(value, Ordering::AcqRel);
    }

    /// Whether a container's first program is still to be restricted, and so may not begin by itself.
    pub fn first_waits(&self) -> bool {
        self.load(word::FIRST_WAITS) != 0
    }

    /// It is restricted.
    pub fn first_begins(&self) {
        self.set(word::FIRST_WAITS, 0);
    }

    /// The number of the policy that BPF carries for a container, once it does.
    pub fn tenant(&self) -> Option<u32> {
        let number = u32::try_from(self.load(word::TENANT)).ok();
        number.filter(|number| *number != 0)
    }

    /// BPF carries it.
    pub fn set_tenant(&self, number: u32) {
        self.set(word::TENANT, u64::from(number));
    }

    /// Capabilities that a policy drops and that the command would not have without it; none of those that
    /// were compared when the policy was compiled.
    pub fn lacked(&self) -> Capabilities {
        Capabilities(self.load(word::LACKED))
    }

    /// What a container's first program lacks.
    pub fn set_lacked(&self, set: Capabilities) {
        self.set(word::LACKED, set.0);
    }

    /// Where the kernel writes what the keeper receives, for a keeper that comes after it.
    pub(super) fn keepers_call(&self) -> Slot<'_> {
        Slot::new(&self.words.words()[word::KEEPERS_CALL..])
    }

    /// A pid; 0 if it is not known.
    pub(super) fn pid(&self, index: usize) -> i32 {
        i32::try_from(self.load(index)).unwrap_or(0)
    }

    pub(super) fn set_pid(&self, index: usize, pid: i32) {
        self.set(index, u64::try_from(pid).unwrap_or(0));
    }

    /// Number of the agent whose turn it is.
    pub(super) fn generation(&self) -> u64 {
        self.load(word::GENERATION)
    }

    pub(super) fn agent_pid(&self, generation: u64) -> i32 {
        self.pid(word::AGENT_PID[parity(generation)])
    }

    pub(super) fn set_agent_pid(&self, generation: u64, pid: i32) {
        self.set_pid(word::AGENT_PID[parity(generation)], pid);
    }

    pub(super) fn state(&self, generation: u64) -> State {
        let word = self.load(word::STATE[parity(generation)]);
        let all = [
            State::Prepared,
            State::Ready,
            State::HandedOver,
            State::Finished,
        ];
        let found = all.into_iter().find(|state| *state as u64 == word);
        found.unwrap_or(State::Starting)
    }

    pub(super) fn set_state(&self, generation: u64, state: State) {
        self.set(word::STATE[parity(generation)], state as u64);
    }

    pub(super) fn order(&self, generation: u64) -> Order {
        match self.load(word::ORDER[parity(generation)]) {
            word if word == Order::Start as u64 => Order::Start,
            word if word == Order::HandOver as u64 => Order::HandOver,
            _ => Order::None,
        }
    }

    pub(super) fn set_order(&self, generation: u64, order: Order) {
        self.set(word::ORDER[parity(generation)], order as u64);
    }

    /// What the agent shows of its work.
    pub fn pulse(&self, generation: u64) -> &Arc<ReceiverStatus> {
        &self.pulses[parity(generation)]
    }

    /// Totals of the agents that have ended.
    pub fn past(&self) -> decoder::counters::CounterSnapshot {
        self.past.totals()
    }

    /// An agent's work is over: its totals become part of the past.
    pub(super) fn bury(&self, generation: u64) {
        self.past.bury(self.pulse(generation));
    }

    /// Readies an agent's words.
    pub(super) fn invite(&self, generation: u64) {
        self.pulse(generation).reset();
        // Of one of the same words that died while it handed over.
        self.note_torn_lines(generation);
        self.set(word::ALERTS_QUEUED[parity(generation)], 0);
        self.set(word::ALERTS_SETTLED[parity(generation)], 0);
        self.set_order(generation, Order::None);
        self.set_state(generation, State::Starting);
    }

    /// What the command ended with.
    pub(super) fn end(&self) -> Option<Message> {
        Message::from_word(self.load(word::END))
    }

    pub(super) fn set_end(&self, end: Message) {
        self.set(word::END, end.to_word());
    }

    /// Calls that passed unwatched for this cause.
    pub fn passed(&self, cause: Cause) -> u64 {
        self.load(word::PASSED + index(cause as u64))
    }

    /// Calls that were refused because nobody watched.
    pub fn denied(&self) -> u64 {
        self.load(word::DENIED)
    }

    /// An agent has to deliver an alert.
    pub fn alert_queued(&self, generation: u64) {
        self.add(word::ALERTS_QUEUED[parity(generation)], 1);
    }

    /// It has, or has counted them as lost.
    pub fn alerts_settled(&self, generation: u64, alerts: u64) {
        self.add(word::ALERTS_SETTLED[parity(generation)], alerts);
    }

    /// An agent begins to write lines. Returns whether one that died may have left a line without its end there.
    pub fn lines_begin(&self, generation: u64, output: LineOutput) -> bool {
        let bit = line_bit(output);
        self.word(word::WRITING[parity(generation)])
            .fetch_or(bit, Ordering::AcqRel);
        self.word(word::TORN).fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// All lines of an agent have their end.
    pub fn lines_end(&self, generation: u64, output: LineOutput) {
        self.word(word::WRITING[parity(generation)])
            .fetch_and(!line_bit(output), Ordering::AcqRel);
    }

    /// Lines that an agent had begun will not be ended by it.
    fn note_torn_lines(&self, generation: u64) {
        let writing = self.word(word::WRITING[parity(generation)]);
        let torn = writing.swap(0, Ordering::AcqRel);
        self.word(word::TORN).fetch_or(torn, Ordering::AcqRel);
    }

    /// An agent is dead: what it had not settled is lost, but for what it was just about to settle.
    pub(super) fn count_lost_alerts(&self, generation: u64) {
        self.note_torn_lines(generation);
        let take = |words: [usize; 2]| {
            self.word(words[parity(generation)])
                .swap(0, Ordering::AcqRel)
        };
        let lost = take(word::ALERTS_QUEUED).saturating_sub(take(word::ALERTS_SETTLED));
        self.add(word::GAP_ALERTS, lost);
        self.add(word::ALERTS_LOST, lost);
    }

    /// Alerts that agents took with them.
    pub fn lost_alerts(&self) -> u64 {
        self.load(word::ALERTS_LOST)
    }

    /// Notes here what an agent of the host took with it that is dead, for the next one. `its`: that agent's board, on
    /// which each loss is found by one process alone.
    pub fn note_losses_of_host(&self, its: &Self) {
        its.count_lost_alerts(0);
        let take = |index| its.word(index).swap(0, Ordering::AcqRel);
        self.add(word::HOST_ALERTS, take(word::GAP_ALERTS));
        self.word(word::HOST_TORN)
            .fetch_or(take(word::TORN), Ordering::AcqRel);
    }

    /// What is noted of that: alerts, and outputs as bits.
    pub fn losses_of_host(&self) -> (u64, u64) {
        (self.load(word::HOST_ALERTS), self.load(word::HOST_TORN))
    }

    /// Another agent of the host has been told of them.
    pub fn losses_of_host_told(&self, (alerts, torn): (u64, u64)) {
        self.subtract(word::HOST_ALERTS, alerts);
        self.word(word::HOST_TORN)
            .fetch_and(!torn, Ordering::AcqRel);
    }

    /// As the agent of the host: these outputs have a last line without its end.
    pub fn lines_are_torn(&self, outputs: u64) {
        self.word(word::TORN).fetch_or(outputs, Ordering::AcqRel);
    }

    /// Says how many have not been reported, and takes them.
    pub(super) fn lost_alerts_to_say(&self) -> Option<String> {
        let lost = self.word(word::GAP_ALERTS).swap(0, Ordering::AcqRel);
        (lost > 0).then(|| format!("the agent took {lost} queued alerts with it"))
    }

    /// How often nobody watched.
    pub fn gaps(&self) -> u64 {
        self.load(word::GAPS_BEGUN)
    }

    /// What has not been told yet, once the last gap is over. It stays on the board until it is
    /// [told](Self::gaps_told), so that it does not die with an agent that was about to tell it.
    pub fn gaps_to_tell(&self) -> Option<Gaps> {
        let told = self.load(word::GAPS_REPORTED);
        let ended = self.load(word::GAPS_ENDED);
        if ended <= told || ended < self.load(word::GAPS_BEGUN) {
            return None;
        }
        let calls = (0..CALL_COUNTERS).filter_map(|call| {
            let count = self.load(word::CALLS + call);
            (count > 0).then_some((call, count))
        });
        Some(Gaps {
            told_before: told,
            count: ended - told,
            cause: Cause::from_word(self.load(word::GAP_CAUSE)),
            detail: self.load(word::GAP_DETAIL),
            lasted_ns: self.load(word::GAP_LASTED),
            lost_alerts: self.load(word::GAP_ALERTS),
            calls: calls.collect(),
        })
    }

    /// Waits until the keeper does not stand in any more, before the last report: a gap is told when it is
    /// over. A keeper that was killed while it stood in ends none, so that this does.
    pub(super) fn await_end_of_gap(&self) {
        let deadline = Instant::now() + GAP_PATIENCE;
        let begun = self.load(word::GAPS_BEGUN);
        while self.load(word::GAPS_ENDED) < begun {
            if Instant::now() > deadline {
                self.set(word::GAPS_ENDED, begun);
            }
            std::thread::sleep(GAP_POLL);
        }
    }

    /// Their alert is delivered. Of two agents that told the same gaps only the first one's counts.
    pub fn gaps_told(&self, gaps: &Gaps) {
        let told = self.word(word::GAPS_REPORTED);
        let (before, now) = (gaps.told_before, gaps.told_before + gaps.count);
        let exchanged = told.compare_exchange(before, now, Ordering::AcqRel, Ordering::Acquire);
        if exchanged.is_err() {
            return;
        }
        self.subtract(word::GAP_LASTED, gaps.lasted_ns);
        self.subtract(word::GAP_ALERTS, gaps.lost_alerts);
        for (call, count) in &gaps.calls {
            self.subtract(word::CALLS + call, *count);
        }
    }

    /// Whether gaps up to this number are told.
    pub(super) fn are_told(&self, gaps: u64) -> bool {
        self.load(word::GAPS_REPORTED) >= gaps
    }

    fn subtract(&self, index: usize, value: u64) {
        let less = |word: u64| Some(word.saturating_sub(value));
        let updated = self
            .word(index)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        debug_assert!(updated.is_ok(), "there is always a difference");
    }

    /// What is to be refused while nobody watches.
    pub fn deny_table(&self) -> DenyTable<'_> {
        DenyTable(self)
    }
}

fn line_bit(output: LineOutput) -> u64 {
    match output {
        LineOutput::Stdout => 1,
        LineOutput::File => 2,
    }
}

fn parity(generation: u64) -> usize {
    usize::from(generation % 2 == 1)
}

fn index(word: u64) -> usize {
    usize::try_from(word).expect("words hold small numbers here")
}

/// Calls that the filter hands over in order to have them refused. The keeper goes on refusing them
/// while nobody watches.
#[derive(Clone, Copy, Debug)]
pub struct DenyTable<'a>(&'a Board);

impl DenyTable<'_> {
    /// Has a call refused with an error number, in every architecture of the audit number. False:
    /// the table is full.
    pub fn refuse(&self, audit: u32, nr: u32, errno: u16) -> bool {
        let entry = pack(audit, nr);
        for slot in 0..DENY_LIMIT {
            let at = word::DENY_TABLE + 2 * slot;
            if [0, entry].contains(&self.0.load(at)) {
                // The number first: an entry counts when its key is there.
                self.0.set(at + 1, u64::from(errno));
                self.0.set(at, entry);
                return true;
            }
        }
        false
    }

    /// Has a call refused by whatever number it can be made.
    pub fn refuse_everywhere(&self, call: Syscall, errno: u16) -> bool {
        Arch::ALL.into_iter().all(|arch| {
            let number = call.number(arch);
            number.is_none_or(|number| self.refuse(arch.audit(), arch.raw_number(number), errno))
        })
    }

    /// The error number that a call is refused with.
    pub(super) fn refusal(&self, audit: u32, nr: u32) -> Option<i32> {
        let entry = pack(audit, nr);
        let slots = (0..DENY_LIMIT).map(|slot| word::DENY_TABLE + 2 * slot);
        let mut filled = slots.take_while(|at| self.0.load(*at) != 0);
        let found = filled.find(|at| self.0.load(*at) == entry)?;
        i32::try_from(self.0.load(found + 1)).ok()
    }
}

fn pack(audit: u32, nr: u32) -> u64 {
    u64::from(audit) << 32 | u64::from(nr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_finds_the_same_board() {
        let (board, file) = Board::create().expect("memory");
        board.set_agent_pid(3, 42);
        board.set_state(3, State::Ready);
        board.set_order(2, Order::HandOver);
        board.set_end(Message::Ended(137));
        let file = std::os::fd::AsFd::as_fd(&file);
        let again = Board::open(file).expect("memory").expect("this layout");
        assert_eq!((again.agent_pid(1), again.agent_pid(2)), (42, 0));
        assert_eq!(
            (again.state(3), again.order(2)),
            (State::Ready, Order::HandOver)
        );
        assert_eq!(again.end(), Some(Message::Ended(137)));
        board.set(word::LAYOUT, LAYOUT + 1);
        assert!(Board::open(file).expect("memory").is_none());
    }

    #[test]
    fn gaps_are_told_when_they_are_over_and_until_that_is_done() {
        let (board, _file) = Board::create().expect("memory");
        assert_eq!(board.gaps_to_tell(), None);
        board.set(word::GAPS_BEGUN, 1);
        board.set(word::GAP_CAUSE, Cause::Stopped as u64);
        board.add(word::CALLS + 257, 2);
        board.add(word::CALLS + UNNAMED, 1);
        assert_eq!(board.gaps_to_tell(), None);
        board.set(word::GAPS_ENDED, 1);
        let first = board.gaps_to_tell().expect("one is over");
        assert_eq!((first.count, first.cause), (1, Cause::Stopped));
        assert_eq!(first.calls, [(257, 2), (UNNAMED, 1)]);
        // Who was about to tell it is killed; so is the next one, that told both.
        board.set(word::GAPS_BEGUN, 2);
        board.add(word::CALLS + 257, 3);
        board.set(word::GAPS_ENDED, 2);
        let both = board.gaps_to_tell().expect("two are over");
        assert_eq!(
            (both.count, &both.calls[..]),
            (2, &[(257, 5), (UNNAMED, 1)][..])
        );
        board.gaps_told(&first);
        board.gaps_told(&both);
        assert!(board.are_told(1) && !board.are_told(2));
        let second = board.gaps_to_tell().expect("one is left");
        assert_eq!((second.count, &second.calls[..]), (1, &[(257, 3)][..]));
        board.gaps_told(&second);
        assert_eq!(board.gaps_to_tell(), None);
    }

    #[test]
    fn the_last_report_waits_for_a_keeper_that_stands_in_and_not_for_one_that_is_dead() {
        let (board, _file) = Board::create().expect("memory");
        board.await_end_of_gap();
        assert_eq!(board.gaps_to_tell(), None);
        board.set(word::GAPS_BEGUN, 1);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                board.set(word::GAPS_ENDED, 1);
            });
            board.await_end_of_gap();
        });
        assert_eq!(board.gaps_to_tell().map(|gaps| gaps.count), Some(1));
        board.set(word::GAPS_BEGUN, 2);
        board.await_end_of_gap();
        assert_eq!(board.gaps_to_tell().map(|gaps| gaps.count), Some(2));
    }

    #[test]
    fn what_a_dead_agent_had_not_delivered_is_told_once() {
        let (board, _file) = Board::create().expect("memory");
        for _ in 0..5 {
            board.alert_queued(3);
        }
        board.alerts_settled(3, 2);
        board.alert_queued(4);
        board.count_lost_alerts(3);
        assert_eq!(board.lost_alerts(), 3);
        board.set(word::GAPS_BEGUN, 1);
        board.set(word::GAPS_ENDED, 1);
        let gaps = board.gaps_to_tell().expect("one is over");
        assert_eq!(gaps.lost_alerts, 3);
        board.gaps_told(&gaps);
        assert_eq!(board.lost_alerts_to_say(), None);
        // The one of the same words begins anew; another one's account stands.
        board.count_lost_alerts(5);
        board.count_lost_alerts(4);
        assert_eq!(board.lost_alerts(), 4);
        let said = board.lost_alerts_to_say();
        assert_eq!(
            said.as_deref(),
            Some("the agent took 1 queued alerts with it")
        );
    }

    #[test]
    fn what_an_agent_of_the_host_took_with_it_is_noted_by_one_and_told_once() {
        let board = || Board::create().expect("memory").0;
        let (host, one, other) = (board(), board(), board());
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
        let told = one.losses_of_host();
        one.losses_of_host_told(told);
        assert_eq!(one.losses_of_host(), (0, 0));
        let next = board();
        next.lines_are_torn(told.1);
        assert!(next.lines_begin(0, LineOutput::File));
        assert!(!next.lines_begin(0, LineOutput::Stdout));
    }

    #[test]
    fn a_line_that_a_dead_agent_had_begun_is_ended_once() {
        let (board, _file) = Board::create().expect("memory");
        assert!(!board.lines_begin(1, LineOutput::File));
        assert!(!board.lines_begin(1, LineOutput::Stdout));
        board.lines_end(1, LineOutput::Stdout);
        // Both write while one takes over from the other.
        assert!(!board.lines_begin(2, LineOutput::File));
        board.lines_end(2, LineOutput::File);
        board.count_lost_alerts(1);
        assert!(!board.lines_begin(2, LineOutput::Stdout));
        assert!(board.lines_begin(2, LineOutput::File));
        assert!(!board.lines_begin(2, LineOutput::File));
    }

    #[test]
    fn a_call_is_refused_by_all_its_numbers() {
        let (board, _file) = Board::create().expect("memory");
        let table = board.deny_table();
        assert!(table.refuse_everywhere(Syscall::IO_URING_SETUP, 38));
        for arch in Arch::ALL {
            let refusal = |number| table.refusal(arch.audit(), arch.raw_number(number));
            assert_eq!(refusal(425), Some(38), "{arch:?}");
            assert_eq!(refusal(426), None, "{arch:?}");
        }
    }

    #[test]
    fn only_what_is_in_the_deny_table_is_refused() {
        let (board, _file) = Board::create().expect("memory");
        let table = board.deny_table();
        assert_eq!(table.refusal(1, 2), None);
        assert!(table.refuse(1, 2, 13));
        assert!(table.refuse(1, 3, 1));
        assert_eq!(
            (table.refusal(1, 2), table.refusal(1, 3)),
            (Some(13), Some(1))
        );
        assert_eq!(table.refusal(2, 2), None);
        let mut numbers = 0..;
        let mut next = || numbers.next().expect("endless");
        assert!((2..DENY_LIMIT).all(|_| table.refuse(9, next(), 1)));
        assert!(!table.refuse(10, 0, 1));
    }
}
