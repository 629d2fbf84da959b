//! The thread that writes. It commits what many callers submit in one transaction, because a commit waits for
//! the disk.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::intake::Cache;

/// Changes that wait at most. A caller with more is told that the store is busy, and keeps them.
const QUEUE: usize = 256;

/// Changes in one transaction at most.
const TRANSACTION: usize = 128;

/// Time after which a transaction takes no more changes: the bound on how long an acknowledgement waits for
/// changes of others.
const TRANSACTION_TIME: Duration = Duration::from_millis(100);

/// One change. It runs within a transaction, or gets the reason why there is none.
pub(crate) type Change<D> = Box<dyn FnOnce(Result<&mut D, StoreError>) -> Outcome + Send>;

/// What becomes of a change.
pub(crate) struct Outcome {
    /// Undo what it has done so far.
    pub(crate) failed: bool,
    /// Runs after the commit, or with the reason why there was none.
    pub(crate) done: Box<dyn FnOnce(Result<(), StoreError>)>,
}

/// A database as the thread that writes sees it.
pub(crate) trait Transactions: Send + 'static {
    /// Begins a transaction.
    fn begin(&mut self) -> Result<(), StoreError>;
    /// Marks the beginning of a change.
    fn save(&mut self) -> Result<(), StoreError>;
    /// Undoes the change.
    fn undo(&mut self) -> Result<(), StoreError>;
    /// Ends the change.
    fn keep(&mut self) -> Result<(), StoreError>;
    /// Commits the transaction.
    fn commit(&mut self) -> Result<(), StoreError>;
    /// Ends a transaction that was not committed.
    fn abandon(&mut self);
    /// Numbers of rows that are remembered.
    fn cache(&mut self) -> &mut Cache;
}

/// Handle on the thread. Dropping it waits until everything that was submitted is committed.
pub(crate) struct Handle<D> {
    changes: Option<SyncSender<Change<D>>>,
    thread: Option<JoinHandle<()>>,
}

impl<D> fmt::Debug for Handle<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl<D> Handle<D> {
    /// Submits a change; waits while too many wait.
    pub(crate) fn submit(&self, change: Change<D>) -> Result<(), StoreError> {
        let changes = self.changes.as_ref().ok_or(StoreError::Stopped)?;
        changes.send(change).map_err(|_unsent| StoreError::Stopped)
    }

    /// Submits a change, or refuses it if too many wait.
    pub(crate) fn try_submit(&self, change: Change<D>) -> Result<(), StoreError> {
        let changes = self.changes.as_ref().ok_or(StoreError::Stopped)?;
        changes.try_send(change).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Busy,
            TrySendError::Disconnected(_) => StoreError::Stopped,
        })
    }
}

impl<D> Drop for Handle<D> {
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by itself.
            let _ = thread.join();
        }
    }
}

/// Runs `change` in the next transaction and returns its value after the commit.
pub(crate) fn run<D, T: Send + 'static>(
    handle: &Handle<D>,
    change: impl FnOnce(&mut D) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (sender, receiver) = sync_channel(1);
    handle.submit(Box::new(move |database| {
        let changed = database.and_then(change);
        let failed = changed.is_err();
        Outcome {
            failed,
            done: Box::new(move |committed| {
                // The caller waits below.
                let _ = sender.send(committed.and(changed));
            }),
        }
    }))?;
    receiver.recv().unwrap_or(Err(StoreError::Stopped))
}

pub(crate) fn start<D: Transactions>(database: D) -> Result<Handle<D>, StoreError> {
    let (sender, receiver) = sync_channel(QUEUE);
    let thread = thread::Builder::new()
        .name("store".to_owned())
        .spawn(move || work(database, &receiver))
        .map_err(|_error| StoreError::Stopped)?;
    Ok(Handle {
        changes: Some(sender),
        thread: Some(thread),
    })
}

fn work<D: Transactions>(mut database: D, changes: &Receiver<Change<D>>) {
    while let Ok(first) = changes.recv() {
        database.cache().trim();
        let mut done = Vec::new();
        let result = transaction(&mut database, first, changes, &mut done);
        let cause = result.err().map(|error| explain(&error));
        if cause.is_some() {
            database.cache().forget();
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

fn transaction<D: Transactions>(
    database: &mut D,
    first: Change<D>,
    changes: &Receiver<Change<D>>,
    done: &mut Callbacks,
) -> Result<(), StoreError> {
    if let Err(error) = database.begin() {
        let outcome = first(Err(error));
        done.push((outcome.done, true));
        return Ok(());
    }
    let filled = fill(database, first, changes, done);
    let committed = filled.and_then(|()| database.commit());
    if committed.is_err() {
        database.abandon();
    }
    committed
}

/// Runs changes until none waits, or the transaction is large enough.
fn fill<D: Transactions>(
    database: &mut D,
    first: Change<D>,
    changes: &Receiver<Change<D>>,
    done: &mut Callbacks,
) -> Result<(), StoreError> {
    let began = Instant::now();
    let mut next = Some(first);
    while let Some(change) = next.take() {
        if let Err(error) = database.save() {
            let outcome = change(Err(error));
            done.push((outcome.done, true));
            return Err(StoreError::Stopped);
        }
        let outcome = change(Ok(&mut *database));
        done.push((outcome.done, outcome.failed));
        if outcome.failed {
            database.undo()?;
            database.cache().forget();
        }
        database.keep()?;
        if done.len() < TRANSACTION && began.elapsed() < TRANSACTION_TIME {
            next = changes.try_recv().ok();
        }
    }
    Ok(())
}

/// Returns an error with its causes, for those who share it.
fn explain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
