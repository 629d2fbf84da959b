//! Layout of the memory that front, keeper and agent share, as one structure.

use std::mem::{align_of, offset_of};
use std::sync::atomic::AtomicU64;

use capture::notify::ReceiverStatus;
use sys::notify::Slot;

use super::cell::{SharedBits, SharedFlag, SharedNumber, SharedPid};

/// Version of [`Layout`] and of the meaning of its values. Increment it with every change of
/// either.
pub(super) const VERSION: u64 = 8;
/// Native calls with numbers below this have counters of their own.
pub(crate) const NATIVE_CALLS: usize = 512;
/// Index of calls of another architecture or with a higher number.
pub(crate) const FOREIGN: usize = NATIVE_CALLS;
/// Index of calls with an unknown number.
pub(crate) const UNNAMED: usize = NATIVE_CALLS + 1;
/// Number of call counters.
pub(super) const CALL_COUNTERS: usize = NATIVE_CALLS + 2;
/// Number of agents whose calls may be looked up at once; more share an entry.
pub(super) const UNSWEPT_RANGES: usize = 4;
/// Capacity of the deny table.
pub(super) const DENY_LIMIT: usize = 64;

sys::shared_layout! {
    /// The shared state. The first two fields keep their positions in every version.
    #[derive(Debug)]
    pub struct Layout {
        /// [`VERSION`] of the build that created the state.
        pub(super) version: SharedNumber,
        /// Size in bytes.
        pub(super) size: SharedNumber,
        pub(crate) front_pid: SharedPid,
        pub(crate) keeper_pid: SharedPid,
        pub(crate) waiter_pid: SharedPid,
        pub(crate) command_pid: SharedPid,
        /// Agent of the host that receives calls for the agent; 0 for none so far.
        pub(crate) host_agent_pid: SharedPid,
        /// The keeper has ended on purpose.
        pub(crate) keeper_done: SharedFlag,
        /// Number of keepers that replaced a dead one.
        pub(crate) keepers_replaced: SharedNumber,
        /// End of the command, as a [`Message`](crate::message::Message).
        pub(super) command_end: SharedNumber,
        /// The end was reported to the front.
        pub(crate) command_end_reported: SharedFlag,
        /// Processes of the workload outlived the command and are still watched.
        pub(crate) outlived: SharedFlag,
        /// Generation of the agent whose turn it is.
        pub(crate) generation: SharedNumber,
        /// Agents of even and odd generation.
        pub(super) agents: [AgentFields; 2],
        /// Number of agents that took over from a living one.
        pub(crate) upgrades: SharedNumber,
        /// Generation of the last such agent.
        pub(crate) upgraded_to: SharedNumber,
        /// Number of agents that failed to take over.
        pub(crate) upgrades_failed: SharedNumber,
        /// Number of signals that requested an upgrade and did not come from an operator.
        pub(crate) orders_refused: SharedNumber,
        pub(crate) gap: GapFields,
        /// Number of alerts lost with agents.
        pub(super) alerts_lost: SharedNumber,
        /// Outputs whose last line is incomplete because an agent died.
        pub(super) torn_lines: SharedBits,
        /// A container's first program has to be restricted before it begins.
        pub(super) first_waits: SharedFlag,
        /// Number of the BPF policy that enforces for the container; 0 if none is loaded yet.
        pub(super) tenant: SharedNumber,
        /// Capabilities that a policy drops and a container's first program would not have had.
        pub(super) lacked: SharedNumber,
        /// Alerts lost with a host agent, which no other host agent has been informed of yet.
        pub(super) host_alerts: SharedNumber,
        /// Outputs whose last line is incomplete because of that.
        pub(super) host_torn_lines: SharedBits,
        /// The call that the keeper is answering.
        pub(crate) answering: AnsweringFields,
        /// The alerts that the keeper is counting as lost.
        pub(super) losing: LosingFields,
        /// Ids of calls that dead agents may hold and that must still be looked up.
        pub(super) unswept: [UnsweptFields; UNSWEPT_RANGES],
        /// Calls refused during unwatched intervals.
        pub(super) deny_table: [DenyFields; DENY_LIMIT],
        /// The notification that the keeper has received.
        pub(super) keepers_call: SlotFields,
        /// Receivers of agents of even and odd generation, and totals of those that have ended.
        pub(super) pulses: [PulseFields; 3],
    }
}

sys::shared_layout! {
    /// Fields of an agent.
    #[derive(Debug)]
    pub(crate) struct AgentFields {
        pub(super) pid: SharedPid,
        /// State of the agent, as a [`State`](super::State).
        pub(super) state: SharedNumber,
        /// Order to the agent, as an [`Order`](super::Order).
        pub(super) order: SharedNumber,
        /// Number of queued alerts, counted once per output.
        pub(super) alerts_queued: SharedNumber,
        /// Number of alerts that were delivered or counted as lost.
        pub(super) alerts_settled: SharedNumber,
        /// Outputs to which the agent is writing lines.
        pub(super) writing: SharedBits,
    }
}

sys::shared_layout! {
    /// Fields of unwatched intervals. Totals only grow: one keeper at a time writes them, and sets them
    /// to what it has determined, so that the next one can do so again. Agents write what is reported.
    #[derive(Debug)]
    pub(crate) struct GapFields {
        pub(crate) begun: SharedNumber,
        pub(crate) ended: SharedNumber,
        pub(super) reported: SharedNumber,
        /// Cause of the last one, as a [`Cause`](super::Cause).
        pub(super) cause: SharedNumber,
        /// Signal or exit status of the cause.
        pub(crate) detail: SharedNumber,
        /// Start of the interval in nanoseconds.
        pub(crate) began_ns: SharedNumber,
        /// Total duration of intervals in nanoseconds.
        pub(crate) lasted_ns: SharedNumber,
        /// That duration when the interval began.
        pub(crate) lasted_before_ns: SharedNumber,
        /// The part of that duration that is reported.
        pub(super) lasted_reported_ns: SharedNumber,
        /// Alerts lost with agents that are reported.
        pub(super) alerts_reported: SharedNumber,
        /// Number of calls that passed unwatched, by cause.
        pub(crate) passed: [SharedNumber; 5],
        /// Number of calls refused because no agent watched.
        pub(crate) denied: SharedNumber,
        /// Calls in intervals: by number, then foreign ones, then those of which only the id was
        /// known.
        pub(crate) calls: [SharedNumber; CALL_COUNTERS],
        /// Those that are reported.
        pub(super) calls_reported: [SharedNumber; CALL_COUNTERS],
    }
}

sys::shared_layout! {
    /// Fields of a call that the keeper is answering.
    #[derive(Debug)]
    pub(crate) struct AnsweringFields {
        /// Id of the call; 0 for none. The other fields are valid while it is not 0.
        pub(crate) id: SharedNumber,
        /// Index of the counter by number.
        pub(crate) call: SharedNumber,
        /// Value of that counter before.
        pub(crate) calls_before: SharedNumber,
        /// Result of the call, as an [`Unwatched`](super::Unwatched). Until the kernel has the answer, the one
        /// to be counted if the keeper is killed then.
        pub(crate) result: SharedNumber,
        /// Totals of calls that passed for this cause, and of refused ones, before.
        pub(crate) passed_before: SharedNumber,
        pub(crate) denied_before: SharedNumber,
    }
}

sys::shared_layout! {
    /// Alerts of a dead agent that are being counted as lost.
    #[derive(Debug)]
    pub(crate) struct LosingFields {
        /// Generation of the agent, plus 1; 0 for none. The other fields are valid while it is not 0.
        pub(super) agent: SharedNumber,
        /// Number of alerts lost afterwards.
        pub(super) after: SharedNumber,
    }
}

sys::shared_layout! {
    /// A range of ids to look up.
    #[derive(Debug)]
    pub(crate) struct UnsweptFields {
        pub(super) first: SharedNumber,
        pub(super) left: SharedNumber,
    }
}

sys::shared_layout! {
    /// A call to refuse.
    #[derive(Debug)]
    pub(crate) struct DenyFields {
        /// Architecture and number of the call; 0 for none.
        pub(super) call: SharedNumber,
        pub(super) errno: SharedNumber,
    }
}

sys::shared_layout! {
    /// Buffer to which the kernel writes a notification.
    #[repr(align(64))]
    #[derive(Debug)]
    pub(crate) struct SlotFields {
        pub(super) words: [AtomicU64; Slot::WORDS],
    }
}

sys::shared_layout! {
    /// Fields of [`ReceiverStatus`], in cache lines of their own.
    #[repr(align(64))]
    #[derive(Debug)]
    pub(crate) struct PulseFields {
        words: [AtomicU64; ReceiverStatus::WORDS],
    }
}

const WORD: usize = size_of::<AtomicU64>();
/// Size of the structure in words.
pub(super) const WORDS: usize = size_of::<Layout>() / WORD;
/// Size in words of the fields that every version has.
pub(super) const HEADER_WORDS: usize = offset_of!(Layout, front_pid) / WORD;
/// The smallest page size of all supported architectures; mappings are aligned to it.
const PAGE: usize = 4096;
const _: () = assert!(align_of::<Layout>() <= PAGE);

/// Returns the offset of a receiver status in words.
pub(super) fn pulse(index: usize) -> usize {
    (offset_of!(Layout, pulses) + index * size_of::<PulseFields>()) / WORD
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use sys::shared::SharedWords;

    use super::*;

    /// Returns every field with its words; fields of a part follow the part.
    fn fields() -> Vec<(String, std::ops::Range<usize>)> {
        let mut found = Vec::new();
        let mut list = |prefix: &str, base: usize, all: &[(&str, usize)], size: usize| {
            let ends = all.iter().skip(1).map(|(_, at)| *at).chain([size]);
            for ((name, at), end) in all.iter().zip(ends) {
                let words = (base + at) / WORD..(base + end) / WORD;
                found.push((format!("{prefix}{name}"), words));
            }
        };
        list("", 0, Layout::FIELDS, size_of::<Layout>());
        let gap = offset_of!(Layout, gap);
        list("gap.", gap, GapFields::FIELDS, size_of::<GapFields>());
        let answering = offset_of!(Layout, answering);
        let size = size_of::<AnsweringFields>();
        list("answering.", answering, AnsweringFields::FIELDS, size);
        let losing = offset_of!(Layout, losing);
        let size = size_of::<LosingFields>();
        list("losing.", losing, LosingFields::FIELDS, size);
        for index in 0..2 {
            let size = size_of::<AgentFields>();
            let base = offset_of!(Layout, agents) + index * size;
            list(&format!("agents{index}."), base, AgentFields::FIELDS, size);
        }
        found
    }

    #[test]
    fn a_changed_layout_has_a_new_version() {
        // FNV-1a over names and places: where this fails, raise `VERSION` and note the new number.
        let text: String = fields()
            .into_iter()
            .map(|(name, words)| format!("{name}:{words:?};"))
            .collect();
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!((VERSION, hash), (8, 0x6f40_6402_d832_bbfc), "{text}");
    }

    #[test]
    fn the_version_comes_first_and_cache_lines_are_whole() {
        assert_eq!(offset_of!(Layout, version), 0);
        assert_eq!(HEADER_WORDS, 2);
        for at in [offset_of!(Layout, keepers_call), pulse(1) * WORD] {
            assert_eq!(at % 64, 0);
        }
    }

    /// Writes a field by its accessor: only its own words change.
    #[test]
    fn every_field_is_independent() {
        let words = Arc::new(SharedWords::create(WORDS).expect("memory").0);
        let layout: &Layout = words.view(0);
        let fields = fields();
        let write = writers(layout);
        let names: Vec<_> = write.iter().map(|(name, _)| *name).collect();
        let parts = ["gap", "answering", "losing", "agents"];
        for (name, range) in &fields {
            if parts.contains(&name.as_str()) {
                continue;
            }
            let (_, write) = &write[names.iter().position(|known| known == name).expect(name)];
            words
                .words()
                .iter()
                .for_each(|word| word.store(0, Ordering::Release));
            write();
            let written = words.words().iter().enumerate();
            let written = written.filter(|(_, word)| word.load(Ordering::Acquire) != 0);
            let written: Vec<_> = written.map(|(index, _)| index).collect();
            assert!(
                !written.is_empty() && written.iter().all(|index| range.contains(index)),
                "{name} is {range:?} and wrote {written:?}"
            );
        }
        assert_eq!(names.len(), fields.len() - parts.len());
    }

    type Writer<'a> = (&'static str, Box<dyn Fn() + 'a>);

    /// Returns a writer for each field.
    fn writers(layout: &Layout) -> Vec<Writer<'_>> {
        macro_rules! writers {
            ($($name:literal: $write:expr,)+) => {
                vec![$(($name, Box::new(move || $write) as Box<dyn Fn()>),)+]
            };
        }
        let (gap, answering, losing) = (&layout.gap, &layout.answering, &layout.losing);
        let [even, odd] = &layout.agents;
        writers! {
            "version": layout.version.set(7),
            "size": layout.size.set(7),
            "front_pid": layout.front_pid.set(7),
            "keeper_pid": layout.keeper_pid.set(7),
            "waiter_pid": layout.waiter_pid.set(7),
            "host_agent_pid": layout.host_agent_pid.set(7),
            "command_pid": layout.command_pid.set(7),
            "keeper_done": layout.keeper_done.set(true),
            "keepers_replaced": layout.keepers_replaced.set(7),
            "command_end": layout.command_end.set(7),
            "command_end_reported": layout.command_end_reported.set(true),
            "outlived": layout.outlived.set(true),
            "generation": layout.generation.set(7),
            "upgrades": layout.upgrades.set(7),
            "upgraded_to": layout.upgraded_to.set(7),
            "upgrades_failed": layout.upgrades_failed.set(7),
            "orders_refused": layout.orders_refused.set(7),
            "alerts_lost": layout.alerts_lost.set(7),
            "torn_lines": layout.torn_lines.insert(7),
            "first_waits": layout.first_waits.set(true),
            "tenant": layout.tenant.set(7),
            "lacked": layout.lacked.set(7),
            "host_alerts": layout.host_alerts.set(7),
            "host_torn_lines": layout.host_torn_lines.insert(7),
            "unswept": layout.unswept[UNSWEPT_RANGES - 1].left.set(7),
            "deny_table": layout.deny_table[DENY_LIMIT - 1].errno.set(7),
            "keepers_call": layout.keepers_call.words[Slot::WORDS - 1].store(7, Ordering::Release),
            "pulses": layout.pulses[2].words[ReceiverStatus::WORDS - 1].store(7, Ordering::Release),
            "gap.begun": gap.begun.set(7),
            "gap.ended": gap.ended.set(7),
            "gap.reported": gap.reported.set(7),
            "gap.cause": gap.cause.set(7),
            "gap.detail": gap.detail.set(7),
            "gap.began_ns": gap.began_ns.set(7),
            "gap.lasted_ns": gap.lasted_ns.set(7),
            "gap.lasted_before_ns": gap.lasted_before_ns.set(7),
            "gap.lasted_reported_ns": gap.lasted_reported_ns.set(7),
            "gap.alerts_reported": gap.alerts_reported.set(7),
            "gap.passed": gap.passed.iter().for_each(|number| number.set(7)),
            "gap.denied": gap.denied.set(7),
            "gap.calls": gap.calls.iter().for_each(|number| number.set(7)),
            "gap.calls_reported": gap.calls_reported.iter().for_each(|number| number.set(7)),
            "answering.id": answering.id.set(7),
            "answering.call": answering.call.set(7),
            "answering.calls_before": answering.calls_before.set(7),
            "answering.result": answering.result.set(7),
            "answering.passed_before": answering.passed_before.set(7),
            "answering.denied_before": answering.denied_before.set(7),
            "losing.agent": losing.agent.set(7),
            "losing.after": losing.after.set(7),
            "agents0.pid": even.pid.set(7),
            "agents0.state": even.state.set(7),
            "agents0.order": even.order.set(7),
            "agents0.alerts_queued": even.alerts_queued.set(7),
            "agents0.alerts_settled": even.alerts_settled.set(7),
            "agents0.writing": even.writing.insert(7),
            "agents1.pid": odd.pid.set(7),
            "agents1.state": odd.state.set(7),
            "agents1.order": odd.order.set(7),
            "agents1.alerts_queued": odd.alerts_queued.set(7),
            "agents1.alerts_settled": odd.alerts_settled.set(7),
            "agents1.writing": odd.writing.insert(7),
        }
    }
}
