//! What an agent has to ask the API server for. The queue is bounded: whoever may create pods fills it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use kinds::ObjectKey;

/// Maximum number of questions that wait. A node has some hundred containers.
const MAX: usize = 4096;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wanted {
    /// The policy of a profile.
    Profile(ObjectKey),
    /// Whether the policy exists whose profile a pod is marked with.
    Mark(Mark),
}

/// A mark of a pod whose profile is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    /// The pod, by namespace, name and unique id.
    pub(crate) pod: (String, String, String),
    /// The profile.
    pub(crate) profile: String,
}

/// Questions in the order in which they came, each once.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    order: VecDeque<Wanted>,
    known: BTreeSet<Wanted>,
    /// A question was turned away.
    has_overflowed: bool,
}

impl Queue {
    /// The state. A thread that panicked left it whole.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a question that does not wait already; false if the queue is full.
    pub(crate) fn push(&self, wanted: Wanted) -> bool {
        let mut waiting = self.waiting();
        if waiting.known.contains(&wanted) {
            return true;
        }
        if waiting.order.len() >= MAX {
            waiting.has_overflowed = true;
            return false;
        }
        waiting.known.insert(wanted.clone());
        // Policies of containers go before marks, of which whoever creates pods makes many.
        let is_mark = |one: &Wanted| matches!(one, Wanted::Mark(_));
        let place = match is_mark(&wanted) {
            true => None,
            false => waiting.order.iter().position(is_mark),
        };
        match place {
            Some(place) => waiting.order.insert(place, wanted),
            None => waiting.order.push_back(wanted),
        }
        self.changed.notify_one();
        true
    }

    /// Waits for a question. The second value is true if others were turned away, and there is room for them now.
    pub(crate) fn take(&self) -> (Wanted, bool) {
        let mut waiting = self.waiting();
        loop {
            if let Some(first) = waiting.order.pop_front() {
                waiting.known.remove(&first);
                let has_room = waiting.order.is_empty() && waiting.has_overflowed;
                if has_room {
                    waiting.has_overflowed = false;
                }
                return (first, has_room);
            }
            let waited = self.changed.wait(waiting);
            waiting = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(number: usize) -> Wanted {
        Wanted::Profile(ObjectKey {
            namespace: "demo".to_owned(),
            name: number.to_string(),
        })
    }

    #[test]
    fn a_queue_has_each_question_once_and_a_bound() {
        let queue = Queue::default();
        for number in 0..MAX {
            assert!(queue.push(profile(number)) && queue.push(profile(number)));
        }
        assert!(!queue.push(profile(MAX)));
        for number in 0..MAX {
            // Only who takes the last one hears that others were turned away.
            assert_eq!(queue.take(), (profile(number), number == MAX - 1));
        }
        assert!(queue.push(profile(MAX)));
        assert_eq!(queue.take(), (profile(MAX), false));
    }

    #[test]
    fn policies_of_containers_go_before_marks() {
        let mark = |number: usize| {
            Wanted::Mark(Mark {
                pod: ("demo".to_owned(), "pod".to_owned(), "uid".to_owned()),
                profile: number.to_string(),
            })
        };
        let queue = Queue::default();
        for wanted in [mark(0), mark(1), profile(0), profile(1), mark(2)] {
            assert!(queue.push(wanted));
        }
        for expected in [profile(0), profile(1), mark(0), mark(1), mark(2)] {
            assert_eq!(queue.take().0, expected);
        }
    }
}
