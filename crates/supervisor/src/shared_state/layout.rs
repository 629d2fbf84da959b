//! The memory that front, keeper and agent share, as one structure.

use std::mem::{align_of, offset_of};
use std::sync::atomic::AtomicU64;

use capture::notify::ReceiverStatus;
use sys::notify::Slot;

use super::cell::{SharedBits, SharedFlag, SharedNumber, SharedPid};

/// Version of [`Layout`], and of what its values mean: raise it with every change of either.
pub(super) const VERSION: u64 = 6;
/// Native calls are counted one by one below this number.
pub(crate) const NATIVE_CALLS: usize = 512;
/// Index of calls of another architecture or with a higher number.
pub(crate) const FOREIGN: usize = NATIVE_CALLS;
/// Index of calls whose number is not known.
pub(crate) const UNNAMED: usize = NATIVE_CALLS + 1;
/// Counters of calls.
pub(super) const CALL_COUNTERS: usize = NATIVE_CALLS + 2;
/// Agents whose calls may be looked for at once; more share an entry.
pub(super) const UNSWEPT_RANGES: usize = 4;
/// Entries of the deny table.
pub(super) const DENY_LIMIT: usize = 64;

sys::shared_layout! {
    /// All of it. The first two fields stay where they are in every version.
    #[derive(Debug)]
    pub struct Layout {
        /// [`VERSION`] of the build that made it.
        pub(super) version: SharedNumber,
        /// How long it is, in bytes.
        pub(super) size: SharedNumber,
        pub(crate) front_pid: SharedPid,
        pub(crate) keeper_pid: SharedPid,
        pub(crate) waiter_pid: SharedPid,
        pub(crate) command_pid: SharedPid,
        /// The keeper has ended on purpose.
        pub(crate) keeper_done: SharedFlag,
        /// Keepers that replaced a dead one.
        pub(crate) keepers_replaced: SharedNumber,
        /// What the command ended with, as a [`Message`](crate::message::Message).
        pub(super) command_end: SharedNumber,
        /// Whether the front has been told.
        pub(crate) command_end_told: SharedFlag,
        /// Processes of the workload outlived the command, and are watched on.
        pub(crate) outlived: SharedFlag,
        /// Number of the agent whose turn it is.
        pub(crate) generation: SharedNumber,
        /// Agents of even and of odd generation.
        pub(super) agents: [AgentFields; 2],
        /// Agents that took over from a living one.
        pub(crate) upgrades: SharedNumber,
        /// Generation of the last of them.
        pub(crate) upgraded_to: SharedNumber,
        /// Agents that were to take over and did not.
        pub(crate) upgrades_failed: SharedNumber,
        /// Signals that asked for an upgrade and were no operator's.
        pub(crate) orders_refused: SharedNumber,
        pub(crate) gap: GapFields,
        /// Alerts that agents took with them.
        pub(super) alerts_lost: SharedNumber,
        /// Outputs whose last line lacks its end because an agent died.
        pub(super) torn_lines: SharedBits,
        /// A container's first program has to be restricted before it begins.
        pub(super) first_waits: SharedFlag,
        /// The number of the policy that BPF carries for it; 0: none yet.
        pub(super) tenant: SharedNumber,
        /// Capabilities that a policy drops and a container's first program would not have had.
        pub(super) lacked: SharedNumber,
        /// Alerts that a host agent took with it, which no other one has been told of yet.
        pub(super) host_alerts: SharedNumber,
        /// Outputs whose last line lacks its end because of that.
        pub(super) host_torn_lines: SharedBits,
        /// The call that the keeper is answering.
        pub(crate) answering: AnsweringFields,
        /// Ids of calls that dead agents may hold, and that are still to be looked up.
        pub(super) unswept: [UnsweptFields; UNSWEPT_RANGES],
        /// Calls to refuse while nobody watches.
        pub(super) deny_table: [DenyFields; DENY_LIMIT],
        /// What the keeper has received.
        pub(super) keepers_call: SlotFields,
        /// Receivers of agents of even and of odd generation, and totals of those that have ended.
        pub(super) pulses: [PulseFields; 3],
    }
}

sys::shared_layout! {
    /// An agent.
    #[derive(Debug)]
    pub(crate) struct AgentFields {
        pub(super) pid: SharedPid,
        /// How far it is, as a [`State`](super::State).
        pub(super) state: SharedNumber,
        /// What it is to do, as an [`Order`](super::Order).
        pub(super) order: SharedNumber,
        /// Alerts that it has queued, one for each output.
        pub(super) alerts_queued: SharedNumber,
        /// Those that it need not deliver any more.
        pub(super) alerts_settled: SharedNumber,
        /// Outputs to which it is writing lines.
        pub(super) writing: SharedBits,
    }
}

sys::shared_layout! {
    /// Times in which nobody watched.
    #[derive(Debug)]
    pub(crate) struct GapFields {
        pub(crate) begun: SharedNumber,
        pub(crate) ended: SharedNumber,
        pub(super) reported: SharedNumber,
        /// Why the last one began, as a [`Cause`](super::Cause).
        pub(super) cause: SharedNumber,
        /// Its signal or exit status.
        pub(crate) detail: SharedNumber,
        /// When it began.
        pub(crate) began_ns: SharedNumber,
        /// How long those that are not reported yet lasted.
        pub(crate) lasted_ns: SharedNumber,
        /// Alerts that agents took with them, not reported yet.
        pub(super) alerts: SharedNumber,
        /// Calls that passed unwatched, by cause.
        pub(crate) passed: [SharedNumber; 5],
        /// Calls that were refused because nobody watched.
        pub(crate) denied: SharedNumber,
        /// Calls in those that are not reported yet: by number, then foreign ones, then those of which only the id was
        /// known.
        pub(crate) calls: [SharedNumber; CALL_COUNTERS],
    }
}

sys::shared_layout! {
    /// A call that the keeper is answering.
    #[derive(Debug)]
    pub(crate) struct AnsweringFields {
        /// Its id, or 0: it answers none. The rest counts while it is not 0.
        pub(crate) id: SharedNumber,
        /// Where it is counted by number.
        pub(crate) call: SharedNumber,
        /// Which total it is part of.
        pub(crate) total: SharedNumber,
        /// That total before.
        pub(crate) before: SharedNumber,
    }
}

sys::shared_layout! {
    /// Ids to look up.
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
        /// Its architecture and number; 0: none.
        pub(super) call: SharedNumber,
        pub(super) errno: SharedNumber,
    }
}

sys::shared_layout! {
    /// Where the kernel writes a notification.
    #[repr(align(64))]
    #[derive(Debug)]
    pub(crate) struct SlotFields {
        pub(super) words: [AtomicU64; Slot::WORDS],
    }
}

sys::shared_layout! {
    /// What [`ReceiverStatus`] lays out, in cache lines of its own.
    #[repr(align(64))]
    #[derive(Debug)]
    pub(crate) struct PulseFields {
        words: [AtomicU64; ReceiverStatus::WORDS],
    }
}

const WORD: usize = size_of::<AtomicU64>();
/// Words of the whole.
pub(super) const WORDS: usize = size_of::<Layout>() / WORD;
/// Those of the fields that every version has.
pub(super) const HEADER_WORDS: usize = offset_of!(Layout, front_pid) / WORD;
/// The smallest page of every architecture here, at which a mapping begins.
const PAGE: usize = 4096;
const _: () = assert!(align_of::<Layout>() <= PAGE);

/// Where the words of a pulse begin.
pub(super) fn pulse(index: usize) -> usize {
    (offset_of!(Layout, pulses) + index * size_of::<PulseFields>()) / WORD
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use sys::shared::SharedWords;

    use super::*;

    /// Every field, those of parts after the part: its name and its words.
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
        assert_eq!((VERSION, hash), (6, 0xc834_0dda_63ae_de54), "{text}");
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
        let parts = ["gap", "answering", "agents"];
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

    /// How each field is written.
    fn writers(layout: &Layout) -> Vec<Writer<'_>> {
        macro_rules! writers {
            ($($name:literal: $write:expr,)+) => {
                vec![$(($name, Box::new(move || $write) as Box<dyn Fn()>),)+]
            };
        }
        let (gap, answering) = (&layout.gap, &layout.answering);
        let [even, odd] = &layout.agents;
        writers! {
            "version": layout.version.set(7),
            "size": layout.size.set(7),
            "front_pid": layout.front_pid.set(7),
            "keeper_pid": layout.keeper_pid.set(7),
            "waiter_pid": layout.waiter_pid.set(7),
            "command_pid": layout.command_pid.set(7),
            "keeper_done": layout.keeper_done.set(true),
            "keepers_replaced": layout.keepers_replaced.set(7),
            "command_end": layout.command_end.set(7),
            "command_end_told": layout.command_end_told.set(true),
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
            "gap.alerts": gap.alerts.set(7),
            "gap.passed": gap.passed.iter().for_each(|number| number.set(7)),
            "gap.denied": gap.denied.set(7),
            "gap.calls": gap.calls.iter().for_each(|number| number.set(7)),
            "answering.id": answering.id.set(7),
            "answering.call": answering.call.set(7),
            "answering.total": answering.total.set(7),
            "answering.before": answering.before.set(7),
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
