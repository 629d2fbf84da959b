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

/// The same for a transaction of batches alone. Nobody looks at a page until they are committed, and the more share a
/// transaction, the fewer rows of sums it changes.
const BATCHES_TIME: Duration = Duration::from_millis(400);

/// Runs within a transaction, or gets the reason why there is none.
pub(crate) type Run<D> = Box<dyn FnOnce(Result<&mut D, StoreError>) -> Outcome + Send>;

/// One change.
pub(crate) struct Change<D> {
    pub(crate) run: Run<D>,
    pub(crate) kind: Kind,
}

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A batch of records.
    Batch,
    /// Something else, for which a caller waits.
    Other,
    /// The same, and it reads or deletes sums of alerts: those of batches before it have to be written.
    NeedsSums,
}

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
    /// Writes the sums of alerts that changes have left for the end of the transaction. They are not part of the change that
    /// runs, so [`Transactions::undo`] does not undo them.
    fn write_sums(&mut self) -> Result<(), StoreError>;
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
    kind: Kind,
    change: impl FnOnce(&mut D) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (sender, receiver) = sync_channel(1);
    let run = Box::new(move |database: Result<&mut D, StoreError>| {
        let changed = database.and_then(change);
        let failed = changed.is_err();
        Outcome {
            failed,
            done: Box::new(move |committed: Result<(), StoreError>| {
                // The caller waits below.
                let _ = sender.send(committed.and(changed));
            }),
        }
    });
    handle.submit(Change { run, kind })?;
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
        let outcome = (first.run)(Err(error));
        done.push((outcome.done, true));
        return Ok(());
    }
    let filled = fill(database, first, changes, done);
    let summed = filled.and_then(|()| database.write_sums());
    let committed = summed.and_then(|()| database.commit());
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
    let (began, mut time) = (Instant::now(), BATCHES_TIME);
    let mut next = Some(first);
    while let Some(change) = next.take() {
        if change.kind != Kind::Batch {
            time = TRANSACTION_TIME;
        }
        let summed = match change.kind {
            Kind::NeedsSums => database.write_sums(),
            Kind::Batch | Kind::Other => Ok(()),
        };
        if let Err(error) = summed.and_then(|()| database.save()) {
            let outcome = (change.run)(Err(error));
            done.push((outcome.done, true));
            return Err(StoreError::Stopped);
        }
        let outcome = (change.run)(Ok(&mut *database));
        done.push((outcome.done, outcome.failed));
        if outcome.failed {
            database.undo()?;
            database.cache().forget();
        }
        database.keep()?;
        if done.len() < TRANSACTION && began.elapsed() < time {
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
