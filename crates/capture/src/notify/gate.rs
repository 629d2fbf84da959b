//! The gate: receivers wait here for the calls that another process has received until then.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use sys::notify::Notification;

/// Open at first; [`Gate::close`] closes it.
#[derive(Debug)]
pub(super) struct Gate {
    /// Calls that no receiver has taken yet; `None` while the gate is closed.
    calls: Mutex<Option<Vec<Notification>>>,
    opened: Condvar,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            calls: Mutex::new(Some(Vec::new())),
            opened: Condvar::new(),
        }
    }

    fn calls(&self) -> MutexGuard<'_, Option<Vec<Notification>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the gate until [`Gate::open`].
    pub(super) fn close(&self) {
        *self.calls() = None;
    }

    /// Opens the gate; the first thread through gets the calls.
    pub(super) fn open(&self, calls: Vec<Notification>) {
        *self.calls() = Some(calls);
        self.opened.notify_all();
    }

    /// Waits until the gate is open. The thread that gets calls serves them.
    pub(super) fn pass(&self) -> Vec<Notification> {
        let mut calls = self.calls();
        loop {
            if let Some(calls) = calls.as_mut() {
                return std::mem::take(calls);
            }
            calls = self
                .opened
                .wait(calls)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn nobody_passes_a_closed_gate_and_one_gets_the_calls() {
        let gate = Arc::new(Gate::new());
        assert!(gate.pass().is_empty());
        gate.close();
        let others: [_; 2] = std::array::from_fn(|_| {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || gate.pass().len())
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(others.iter().all(|other| !other.is_finished()));
        gate.open(vec![Notification::default()]);
        let got = others.map(|other| other.join().expect("no panic"));
        assert_eq!(got.iter().sum::<usize>(), 1);
        assert!(gate.pass().is_empty());
    }
}
