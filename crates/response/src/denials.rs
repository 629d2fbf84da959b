//! Whoever can withhold calls from processes: the engines of this agent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use abi::Deniable;
use event::{Denial, DenialId, Pid, ProcessDenier, StartTime};
use sys::time::{Clock, now_ns};

use crate::parameters::Operation;

/// The engines. Clones share them.
#[derive(Clone, Default)]
pub struct Denials(Arc<Mutex<Vec<Arc<dyn ProcessDenier>>>>);

impl std::fmt::Debug for Denials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Denials").finish_non_exhaustive()
    }
}

/// Why nothing is withheld from a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotDenied {
    /// It is none of the processes that an engine watches, or it has ended.
    #[error("no engine of tollgate watches the process any more")]
    Unwatched,
    /// The engines have ended, and with them what they watched.
    #[error("what tollgate watched has ended")]
    Ended,
    /// The engine that watches it cannot.
    #[error("not supported here: {0}")]
    Unsupported(String),
}

/// What is withheld, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WithheldCalls<'a> {
    pub(crate) calls: &'a [Deniable],
    pub(crate) duration: Option<Duration>,
}

impl<'a> WithheldCalls<'a> {
    /// Returns what an action withholds, if it is one that does.
    pub(crate) fn of(act: &'a Operation) -> Option<Self> {
        match act {
            Operation::Deny {
                calls, duration, ..
            } => Some(Self {
                calls,
                duration: *duration,
            }),
            _ => None,
        }
    }
}

impl Denials {
    /// Adds an engine.
    pub fn add(&self, denier: Arc<dyn ProcessDenier>) {
        let mut deniers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        deniers.retain(|denier| denier.is_alive());
        deniers.push(denier);
    }

    /// Withholds calls from a process, which may just have ended, and its descendants, those to come included.
    pub(crate) fn deny(
        &self,
        process: (Pid, StartTime),
        id: DenialId,
        withheld: WithheldCalls<'_>,
    ) -> Result<(), NotDenied> {
        let until_ns = withheld
            .duration
            .map(|duration| now_ns(Clock::Monotonic).saturating_add(nanoseconds(duration)));
        let denial = Denial {
            id,
            calls: withheld.calls.to_vec(),
            until_ns,
        };
        let mut last = NotDenied::Ended;
        for denier in self.deniers() {
            match denier.deny(process, denial.clone()) {
                Ok(true) => return Ok(()),
                Ok(false) if denier.is_alive() => last = NotDenied::Unwatched,
                Ok(false) => {}
                Err(why) => return Err(NotDenied::Unsupported(why)),
            }
        }
        Err(last)
    }

    /// Returns whether a denial is in force for a process, by itself or an ancestor.
    pub(crate) fn is_denied(&self, process: (Pid, StartTime), id: DenialId) -> bool {
        let deniers = self.deniers();
        deniers.iter().any(|denier| denier.is_denied(process, id))
    }

    /// Returns the descendants of a process that engines have seen and for which a denial is in force, parents first.
    pub(crate) fn descendants(
        &self,
        process: (Pid, StartTime),
        id: DenialId,
    ) -> Vec<(Pid, StartTime)> {
        let deniers = self.deniers();
        let found = deniers
            .iter()
            .flat_map(|denier| denier.denied_descendants(process, id));
        found.collect()
    }

    /// Leaves a process and its descendants out of the denial of an ancestor.
    pub(crate) fn spare(&self, process: (Pid, StartTime), id: DenialId) {
        for denier in self.deniers() {
            if denier.spare(process, id) {
                return;
            }
        }
    }

    fn deniers(&self) -> Vec<Arc<dyn ProcessDenier>> {
        let deniers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        deniers.clone()
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The names of what can be withheld, in files and messages.
pub(crate) const CALLS: [(&str, Deniable); 3] = [
    ("exec", Deniable::Exec),
    ("connect", Deniable::Connect),
    ("open_for_write", Deniable::OpenForWrite),
];

/// Names what is withheld: `exec, connect`.
pub(crate) fn names(calls: &[Deniable]) -> String {
    let named = CALLS.iter().filter(|(_, call)| calls.contains(call));
    named.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
