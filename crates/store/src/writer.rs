//! The thread that writes. It commits what many callers submit in one transaction, because a commit waits for
//! the disk.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::change::{Awaited, Change, Kind};
use crate::error::{Fault, StoreError};
use crate::intake::Cache;

/// Changes that wait at most. A caller with more is told that the store is busy, and keeps them.
const QUEUE: usize = 256;

/// Changes in one transaction at most.
const TRANSACTION: usize = 128;

/// Time after which a transaction takes no more changes: the bound on how long an acknowledgement waits for
/// changes of others.
const TRANSACTION_TIME: Duration = Duration::from_millis(if cfg!(test) { LONG_MS } else { 100 });

/// The same for a transaction of batches alone. Nobody looks at a page until they are committed, and the more share a
/// transaction, the fewer rows of sums it changes.
const BATCHES_TIME: Duration = Duration::from_millis(if cfg!(test) { LONG_MS } else { 400 });

/// What tests put together shares a transaction on a busy machine, too.
const LONG_MS: u64 = 60_000;

type BoxedChange<D> = Box<dyn Change<D>>;

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
    changes: Option<SyncSender<BoxedChange<D>>>,
    thread: Option<JoinHandle<()>>,
}

impl<D> fmt::Debug for Handle<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl<D> Handle<D> {
    /// Submits a change; waits while too many wait.
    pub(crate) fn submit(&self, change: BoxedChange<D>) -> Result<(), StoreError> {
        let changes = self.changes.as_ref().ok_or(StoreError::Stopped)?;
        changes.send(change).map_err(|_unsent| StoreError::Stopped)
    }

    /// Submits a change, or refuses it if too many wait.
    pub(crate) fn try_submit(&self, change: BoxedChange<D>) -> Result<(), StoreError> {
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
    let (caller, receiver) = sync_channel(1);
    handle.submit(Box::new(Awaited {
        kind,
        change: Some(change),
        changed: Err(StoreError::Stopped),
        caller,
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

fn work<D: Transactions>(mut database: D, changes: &Receiver<BoxedChange<D>>) {
    while let Ok(first) = changes.recv() {
        database.cache().trim();
        let again = transaction(&mut database, first, || changes.try_recv().ok());
        for change in again {
            // Alone it has its own error, and none runs again.
            transaction(&mut database, change, || None);
        }
    }
}

/// A change of a transaction that was begun.
struct Ran<D> {
    change: BoxedChange<D>,
    /// It failed by itself, and was undone.
    failed: bool,
}

/// Runs changes in one transaction and answers them. Returns those that have to run again, each in a transaction of its own.
fn transaction<D: Transactions>(
    database: &mut D,
    mut first: BoxedChange<D>,
    next: impl FnMut() -> Option<BoxedChange<D>>,
) -> Vec<BoxedChange<D>> {
    if let Err(error) = database.begin() {
        first.run(Err(error));
        first.done(Ok(()));
        return Vec::new();
    }
    let mut ran = Vec::new();
    let filled = fill(database, (first, next), &mut ran);
    let summed = filled.and_then(|()| database.write_sums());
    let Err(error) = summed.and_then(|()| database.commit()) else {
        for it in ran {
            it.change.done(Ok(()));
        }
        return Vec::new();
    };
    database.abandon();
    database.cache().forget();
    refuse(ran, error)
}

/// Answers changes whose transaction was not committed. If the values of one of them are the reason, nobody can tell which one it
/// is: returns those that have to run again, so that the others do not fail with it for ever.
fn refuse<D>(mut ran: Vec<Ran<D>>, error: StoreError) -> Vec<BoxedChange<D>> {
    let is_alone = ran.len() == 1;
    let is_of_values = error.fault() == Fault::Values;
    if is_of_values && let Some(only) = ran.pop_if(|it| is_alone && !it.failed) {
        only.change.done(Err(error));
        return Vec::new();
    }
    let cause = explain(&error);
    let mut again = Vec::new();
    for it in ran {
        if it.failed {
            // It has its own error, and left nothing behind.
            it.change.done(Ok(()));
        } else if is_of_values && it.change.can_run() {
            again.push(it.change);
        } else {
            let cause = cause.clone();
            it.change.done(Err(StoreError::Commit { cause }));
        }
    }
    again
}

/// Runs changes until none waits, or the transaction is large enough. If it fails, the last change has not run, or has to be
/// undone with the transaction.
fn fill<D: Transactions>(
    database: &mut D,
    (first, mut next): (BoxedChange<D>, impl FnMut() -> Option<BoxedChange<D>>),
    ran: &mut Vec<Ran<D>>,
) -> Result<(), StoreError> {
    let (began, mut time) = (Instant::now(), BATCHES_TIME);
    let mut waiting = Some(first);
    while let Some(mut change) = waiting.take() {
        let kind = change.kind();
        if kind != Kind::Batch {
            time = TRANSACTION_TIME;
        }
        let summed = match kind {
            Kind::NeedsSums => database.write_sums(),
            Kind::Batch | Kind::Other => Ok(()),
        };
        let ready = summed.and_then(|()| database.save());
        let failed = ready.is_ok() && !change.run(Ok(&mut *database));
        ran.push(Ran { change, failed });
        ready?;
        if failed {
            database.undo()?;
            database.cache().forget();
        }
        database.keep()?;
        if ran.len() < TRANSACTION && began.elapsed() < time {
            waiting = next();
        }
    }
    Ok(())
}

/// Returns an error with its causes, for those who share it.
pub(crate) fn explain(error: &StoreError) -> String {
    if let StoreError::Commit { cause } = error {
        return cause.clone();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
