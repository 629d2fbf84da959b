//! The thread that writes. It commits what many callers submit in one transaction, because a commit waits for
//! the disk.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::StoreError;

/// Changes that wait at most. A caller with more is told that the store is busy, and keeps them.
const QUEUE: usize = 256;

/// Changes in one transaction at most.
const TRANSACTION: usize = 128;

/// Time after which a transaction takes no more changes: the bound on how long an acknowledgement waits for
/// changes of others.
const TRANSACTION_TIME: Duration = Duration::from_millis(100);

/// One change. It runs within a transaction, or gets the reason why there is none.
pub(super) type Change = Box<dyn FnOnce(Result<&mut State, StoreError>) -> Outcome + Send>;

/// What becomes of a change.
pub(super) struct Outcome {
    /// Undo what it has done so far.
    pub(super) failed: bool,
    /// Runs after the commit, or with the reason why there was none.
    pub(super) done: Box<dyn FnOnce(Result<(), StoreError>)>,
}

/// What the thread knows: the connection, and numbers of rows that it need not look up.
pub(super) struct State {
    connection: Connection,
    pub(super) hosts: HashMap<String, i64>,
    pub(super) groups: HashMap<GroupKey, i64>,
}

/// Rule, severity, program and object pattern.
pub(super) type GroupKey = (String, u8, String, String);

/// Entries of each of the maps of [`State`]. Beyond that they begin anew.
const REMEMBERED: usize = 20_000;

impl State {
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Forgets numbers of rows that may have gone.
    pub(super) fn forget(&mut self) {
        self.hosts.clear();
        self.groups.clear();
    }
}

/// Handle on the thread. Dropping it waits until everything that was submitted is committed.
pub(super) struct Handle {
    changes: Option<SyncSender<Change>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Submits a change; waits while too many wait.
    pub(super) fn submit(&self, change: Change) -> Result<(), StoreError> {
        let changes = self.changes.as_ref().ok_or(StoreError::Stopped)?;
        changes.send(change).map_err(|_unsent| StoreError::Stopped)
    }

    /// Submits a change, or refuses it if too many wait.
    pub(super) fn try_submit(&self, change: Change) -> Result<(), StoreError> {
        let changes = self.changes.as_ref().ok_or(StoreError::Stopped)?;
        changes.try_send(change).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Busy,
            TrySendError::Disconnected(_) => StoreError::Stopped,
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by itself.
            let _ = thread.join();
        }
    }
}

pub(super) fn start(connection: Connection) -> Result<Handle, StoreError> {
    let (sender, receiver) = sync_channel(QUEUE);
    let state = State {
        connection,
        hosts: HashMap::new(),
        groups: HashMap::new(),
    };
    let thread = thread::Builder::new()
        .name("store".to_owned())
        .spawn(move || work(state, &receiver))
        .map_err(|_error| StoreError::Stopped)?;
    Ok(Handle {
        changes: Some(sender),
        thread: Some(thread),
    })
}

fn work(mut state: State, changes: &Receiver<Change>) {
    while let Ok(first) = changes.recv() {
        if state.hosts.len() > REMEMBERED || state.groups.len() > REMEMBERED {
            state.forget();
        }
        let mut done = Vec::new();
        let result = transaction(&mut state, first, changes, &mut done);
        let cause = result.err().map(|error| explain(&error));
        if cause.is_some() {
            state.forget();
        }
        for (done, failed) in done {
            // A change that failed by itself has its own error, and left nothing behind.
            done(match &cause {
                Some(cause) if !failed => Err(StoreError::Commit {
                    cause: cause.clone(),
                }),
                _ => Ok(()),
            });
        }
    }
}

/// Callbacks of a transaction, and whether the change failed by itself.
type Callbacks = Vec<(Box<dyn FnOnce(Result<(), StoreError>)>, bool)>;

fn transaction(
    state: &mut State,
    first: Change,
    changes: &Receiver<Change>,
    done: &mut Callbacks,
) -> Result<(), StoreError> {
    if let Err(error) = state.connection.execute_batch("BEGIN IMMEDIATE") {
        let outcome = first(Err(error.into()));
        done.push((outcome.done, true));
        return Ok(());
    }
    let filled = fill(state, first, changes, done);
    let committed = filled.and_then(|()| Ok(state.connection.execute_batch("COMMIT")?));
    if committed.is_err() && !state.connection.is_autocommit() {
        // If even this fails, the next transaction cannot begin, and its callers hear of it.
        let _ = state.connection.execute_batch("ROLLBACK");
    }
    committed
}

/// Runs changes until none waits, or the transaction is large enough.
fn fill(
    state: &mut State,
    first: Change,
    changes: &Receiver<Change>,
    done: &mut Callbacks,
) -> Result<(), StoreError> {
    let began = Instant::now();
    let mut next = Some(first);
    while let Some(change) = next.take() {
        let saved = state.connection.execute_batch("SAVEPOINT change");
        if let Err(error) = saved {
            let outcome = change(Err(error.into()));
            done.push((outcome.done, true));
            return Err(StoreError::Stopped);
        }
        let outcome = change(Ok(&mut *state));
        done.push((outcome.done, outcome.failed));
        if outcome.failed {
            state.connection.execute_batch("ROLLBACK TO change")?;
            state.forget();
        }
        state.connection.execute_batch("RELEASE change")?;
        if done.len() < TRANSACTION && began.elapsed() < TRANSACTION_TIME {
            next = changes.try_recv().ok();
        }
    }
    Ok(())
}

fn explain(error: &StoreError) -> String {
    match error {
        StoreError::Database(cause) => cause.to_string(),
        error => error.to_string(),
    }
}
