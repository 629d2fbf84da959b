//! What happened to every call that reached the listener, by cause.

use std::sync::atomic::{AtomicU64, Ordering};

use super::decode::Decoded;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Running totals, written by the receivers and read by anyone.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)+ }

        /// The totals at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterSnapshot { $($(#[$doc])* pub $name: u64,)+ }

        impl Counters {
            /// The totals now.
            pub fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }

        impl CounterSnapshot {
            /// The totals in a fixed order.
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$name,)+]
            }

            /// The totals from that order.
            pub fn from_values(value: impl Fn(usize) -> u64) -> Self {
                let mut values = (0..).map(value);
                Self { $($name: values.next().unwrap_or(0),)+ }
            }

            /// These and those of another supervisor of the same workload.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($name: self.$name + other.$name,)+ }
            }
        }
    };
}

counters! {
    /// Calls that reached the listener.
    trapped,
    /// Of these: wanted only for state keeping or the floor, by no rule.
    unjudged,
    /// Let go because no rule can match what the registers and strings say.
    rejected_at_strings,
    /// Let go because no rule can match the descriptor that the call is about.
    rejected_at_descriptor,
    /// Let go because no rule can match the caller.
    rejected_at_entry,
    /// Concluded without waiting for the result.
    concluded_at_entry,
    /// Results learnt by stopping the caller once.
    escalated,
    /// Results that could not be learnt: the caller is traced by someone else or may not be traced.
    escalation_refused,
    /// Results learnt by following a call that blocks.
    followed,
    /// Strings or structures in the caller's memory that could not be read.
    unreadable,
    /// Reads of the caller's memory that missed the deadline.
    read_timeouts,
    /// Attempts to attach to a caller that missed it.
    attach_timeouts,
    /// Rules that stayed undecided because something could not be learnt.
    undecided,
    /// Callers that were gone before their call was looked at (killed while parked).
    gone,
    /// Callers of which nothing could be learnt; their calls were judged without.
    unknown_callers,
    /// Receivers that ended by a defect of ours and were replaced.
    receiver_panics,
    /// Numbers that are no known call of their architecture.
    unknown_calls,
    /// Processes whose parent could not be told for certain.
    guessed_parents,
    /// Processes watched closely because one of descriptors 0..2 was closed.
    stdio_watches,
    /// Threads of such processes that could not be watched.
    stdio_watches_refused,
    /// Calls aimed at the processes that watch.
    intrusions,
    /// Failed answers to the kernel that were not explained by the caller's end.
    answer_errors,
    /// Calls that a signal withdrew while they were looked at, and that came again (before 5.19).
    withdrawn,
    /// Processes whose memory somebody else could write from some moment on.
    racy_processes,
    /// Calls of such processes that were compared with what the kernel did.
    verified,
    /// Of these: it did something else than what had been read.
    arguments_changed,
    /// Of these: the kernel could not be asked.
    verify_failed,
    /// Processes that another program traces.
    traced_by_others,
    /// Calls that ask for an io_uring.
    rings,
    /// Files and folders that the file system tells about.
    tripwire_watches,
    /// Such that could not be had: the limit of the user is used up, or access was refused.
    tripwire_refused,
    /// Opens of such files that the file system told of.
    tripwire_opens,
    /// Of these: past the engine, while some process of the workload could have done that.
    tripwire_unseen,
    /// Of these: past the engine, while no process of the workload could have done that.
    tripwire_foreign,
    /// Calls of a container runtime that set the container up, which are not judged.
    of_runtime,
    /// Calls that a policy wants to be told of, refused or not.
    violations,
    /// Calls let go without their results, because their callers repeated them in vain.
    no_progress,
}

impl Counters {
    /// One more.
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the call if something could not be read.
    pub fn note_unreadable(&self, decoded: &Decoded<'_>) {
        if decoded.unreadable {
            Self::add(&self.unreadable);
        }
    }
}
