//! Counters of trapped calls, by outcome and cause.

use std::sync::atomic::{AtomicU64, Ordering};

use super::decode::Decoded;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Running totals. The receivers write them; any thread may read them.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)+ }

        /// Copy of the totals at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterSnapshot { $($(#[$doc])* pub $name: u64,)+ }

        impl Counters {
            /// Copies the current totals.
            pub fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }

        impl CounterSnapshot {
            /// Returns the totals in a fixed order.
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$name,)+]
            }

            /// Builds totals from values in the order of [`CounterSnapshot::values`].
            pub fn from_values(value: impl Fn(usize) -> u64) -> Self {
                let mut values = (0..).map(value);
                Self { $($name: values.next().unwrap_or(0),)+ }
            }

            /// Returns the sum of these totals and those of another supervisor of the same workload.
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
    /// Trapped calls that no rule asks for: they only keep state or are always trapped.
    unevaluated,
    /// Calls let go because no rule can match their registers and strings.
    rejected_at_strings,
    /// Calls let go because no rule can match their descriptor.
    rejected_at_descriptor,
    /// Calls let go because no rule can match their caller.
    rejected_at_entry,
    /// Calls whose evaluation ended without waiting for the result.
    decided_at_entry,
    /// Results learned by stopping the caller once.
    escalated,
    /// Results not learned because another process traces the caller or the caller may not be traced.
    escalation_refused,
    /// Results learned by following a call that blocks.
    followed,
    /// Strings or structures in the caller's memory that could not be read.
    unreadable,
    /// Reads of the caller's memory that missed the deadline.
    read_timeouts,
    /// Attempts to attach to a caller that missed the deadline.
    attach_timeouts,
    /// Rules left undecided because data was unavailable.
    undecided,
    /// Callers that were gone before their call was inspected (killed while parked).
    gone,
    /// Callers about which nothing could be read; their calls were evaluated without that data.
    unknown_callers,
    /// Receivers that panicked and were replaced.
    receiver_panics,
    /// Call numbers that their architecture does not have.
    unknown_calls,
    /// Processes whose parent is a guess.
    guessed_parents,
    /// Processes watched closely because one of descriptors 0..2 was closed.
    stdio_watches,
    /// Threads of such processes that could not be watched closely.
    stdio_watches_refused,
    /// Calls aimed at the monitor's processes.
    intrusions,
    /// Failed answers to the kernel that the caller's end does not explain.
    answer_errors,
    /// Calls that a signal withdrew during inspection and that were made again (before 5.19).
    withdrawn,
    /// Processes whose memory another process could write at some time.
    racy_processes,
    /// Calls of such processes that were compared with what the kernel did.
    verified,
    /// Verified calls in which the kernel did something else than the arguments had said.
    arguments_changed,
    /// Verified calls about which the kernel could not be asked.
    verify_failed,
    /// Processes that another program traces.
    traced_by_others,
    /// Calls that set up an io_uring.
    rings,
    /// Files and folders with a file system watch.
    tripwire_watches,
    /// File system watches that failed: the user's limit is used up, or access was refused.
    tripwire_refused,
    /// Opens of such files that the file system reported.
    tripwire_opens,
    /// Reported opens that bypassed the engine while some process of the workload could have made them.
    tripwire_unseen,
    /// Reported opens that bypassed the engine while no process of the workload could have made them.
    tripwire_foreign,
    /// Calls of a container runtime that sets up the container; they are not evaluated.
    of_runtime,
    /// Calls that a policy reports, refused or not.
    violations,
    /// Calls let go without their results because their callers repeated them without progress.
    no_progress,
}

impl Counters {
    /// Adds one to a counter.
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the call if part of its data could not be read.
    pub fn note_unreadable(&self, decoded: &Decoded<'_>) {
        if decoded.unreadable {
            Self::add(&self.unreadable);
        }
    }
}
