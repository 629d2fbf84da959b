//! Answers that missed their deadline: the runtime goes on with what it is told instead.
//!
//! A container of a policy whose fail mode is open goes on, and is reported as unprotected, or as late when the check that was
//! waited for has found after the start that it is confined. Every other container of a policy is refused.

use std::sync::{MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use kinds::annotations::FailMode;
use nri::message::{Container, PodSandbox};
use nri::{Answer, Event};

use crate::agent::Agent;
use crate::index::Entry;
use crate::state::{Seen, State};
use crate::store::Way;

/// How often the state is asked for before the answer is given without it, and the pause between.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Why a container that was created without an answer in time is not confined.
const CREATED: &str =
    "the agent answered too late, and the container was created without its policy";
/// Why it is not known whether a container that was started without an answer in time is confined.
const STARTED: &str = "the agent answered too late to check that the container is confined";
/// Why a container counts as late.
pub(crate) const CHECKED: &str =
    "the agent has found only after the container had begun that it is confined";

impl Agent {
    /// The answer to an event whose handler has missed its deadline. It waits for nothing but a moment for the state.
    pub(crate) fn answer_late(&self, event: &Event) -> Answer {
        let (both, reason) = match event {
            Event::CreateContainer(both) => (both, CREATED),
            Event::StartContainer(both) => (both, STARTED),
            _ => return Answer::Accept,
        };
        let (pod, container) = (&both.0, &both.1);
        let refusal = || Answer::Refuse("tollgate: the agent of the node is overloaded".to_owned());
        let Some(mut state) = self.try_state() else {
            return refusal();
        };
        let found = state.find(pod, &container.name);
        let opened = match found {
            Ok(None) => None,
            Ok(Some(entry)) if entry.fail_mode == FailMode::Open => Some(entry),
            Ok(Some(_)) | Err(_) => {
                state.counters.refused += 1;
                return refusal();
            }
        };
        if let Some(entry) = &opened {
            note_opened(&mut state, entry, container, reason);
        }
        if matches!(event, Event::StartContainer(_)) {
            let seen = Seen::of(pod, container);
            state.seen.insert(container.id.clone(), seen);
            state.is_changed = true;
        }
        drop(state);
        if let Some(entry) = opened {
            self.tell_opened(&entry, pod, container, reason);
        }
        Answer::Accept
    }

    /// The state, if nothing holds it for long.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        for _ in 0..ATTEMPTS {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
            }
        }
        None
    }

    fn tell_opened(&self, entry: &Entry, pod: &PodSandbox, container: &Container, reason: &str) {
        let (name, key) = (&container.name, &entry.key);
        let note = format!("{name} runs without {key}, whose fail mode is open: {reason}");
        self.note_unenforced(pod, key, &note);
        self.say(note);
    }

    /// Takes what a handler answered after its deadline.
    pub(crate) fn take_late(&self, event: &Event, answer: &Answer) {
        let mut state = self.state();
        state.counters.too_late += 1;
        let (both, is_start) = match event {
            Event::CreateContainer(both) => (both, false),
            Event::StartContainer(both) => (both, true),
            _ => return,
        };
        let id = &both.1.id;
        // What the handler wanted at the creation is not what the runtime was told.
        state.expected.remove(id);
        if !state.opened_late.contains_key(id) {
            // The runtime was told to go no further, or no policy is for the container.
            let was_recorded = state.records.remove(id).is_some();
            if was_recorded || !matches!(answer, Answer::Accept) {
                state.seen.remove(id);
            }
            drop(state);
            if was_recorded && let Err(error) = self.store.remove_record(id) {
                self.say(crate::chain(&error));
            }
            return;
        }
        // The kernel confines the programs that begin from now on, and the first has begun before.
        let record = state.records.get(id);
        let has_begun_confined = record.is_some_and(|record| record.way != Way::Kernel);
        let is_confined = is_start && *answer == Answer::Accept && has_begun_confined;
        if !is_confined {
            // An agent that comes after this one must not take it for confined.
            let was_recorded = state.records.remove(id).is_some();
            drop(state);
            if was_recorded && let Err(error) = self.store.remove_record(id) {
                self.say(crate::chain(&error));
            }
            return;
        }
        state.opened_late.remove(id);
        state.is_changed = true;
        let Some(record) = state.records.get_mut(id) else {
            return;
        };
        record.is_late = true;
        let record = record.clone();
        drop(state);
        if let Err(error) = self.store.write_record(id, &record) {
            self.say(crate::chain(&error));
        }
    }
}

fn note_opened(state: &mut State, entry: &Entry, container: &Container, reason: &'static str) {
    state.counters.opened += 1;
    let id = container.id.clone();
    if entry.is_modeled() {
        state.unobserved.insert(id, reason.to_owned());
    } else {
        state.opened_late.insert(id, reason);
    }
}
