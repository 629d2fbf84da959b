//! Changes of a database, as the thread that writes runs them.

use std::sync::mpsc::SyncSender;

use crate::OnCommitted;
use crate::error::StoreError;
use crate::intake::Hole;
use crate::model::{Batch, Receipt};

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

/// One change, which shares its transaction with others.
pub(crate) trait Change<D>: Send {
    fn kind(&self) -> Kind;
    /// Runs within a transaction, or gets the reason why there is none. Returns false if what it has done has to be undone.
    fn run(&mut self, database: Result<&mut D, StoreError>) -> bool;
    /// Returns true if it has not run yet, or can run again after its transaction was undone.
    fn can_run(&self) -> bool;
    /// Hands its result over, after the commit or with the reason why there was none.
    fn done(self: Box<Self>, committed: Result<(), StoreError>);
}

/// Stores a batch in a database.
type Append<D> = fn(&mut D, &mut Batch, Hole) -> Result<Receipt, StoreError>;

/// A batch that somebody has submitted. It is kept until it is committed: another one in its transaction can be the reason
/// why it has to run again.
pub(crate) struct Submitted<D> {
    append: Append<D>,
    batch: Batch,
    hole: Hole,
    appended: Result<Receipt, StoreError>,
    done: OnCommitted,
}

impl<D> Submitted<D> {
    pub(crate) fn new(append: Append<D>, (batch, hole): (Batch, Hole), done: OnCommitted) -> Self {
        Self {
            append,
            batch,
            hole,
            appended: Err(StoreError::Stopped),
            done,
        }
    }
}

impl<D> Change<D> for Submitted<D> {
    fn kind(&self) -> Kind {
        Kind::Batch
    }

    fn run(&mut self, database: Result<&mut D, StoreError>) -> bool {
        let append = self.append;
        self.appended = database.and_then(|database| append(database, &mut self.batch, self.hole));
        self.appended.is_ok()
    }

    fn can_run(&self) -> bool {
        true
    }

    fn done(self: Box<Self>, committed: Result<(), StoreError>) {
        (self.done)(committed.and(self.appended));
    }
}

/// A change for which a caller waits. It runs once.
pub(crate) struct Awaited<F, T> {
    pub(crate) kind: Kind,
    pub(crate) change: Option<F>,
    pub(crate) changed: Result<T, StoreError>,
    pub(crate) caller: SyncSender<Result<T, StoreError>>,
}

impl<D, F, T> Change<D> for Awaited<F, T>
where
    F: FnOnce(&mut D) -> Result<T, StoreError> + Send,
    T: Send,
{
    fn kind(&self) -> Kind {
        self.kind
    }

    fn run(&mut self, database: Result<&mut D, StoreError>) -> bool {
        let change = self.change.take().ok_or(StoreError::Stopped);
        self.changed = change.and_then(|change| change(database?));
        self.changed.is_ok()
    }

    fn can_run(&self) -> bool {
        self.change.is_some()
    }

    fn done(self: Box<Self>, committed: Result<(), StoreError>) {
        // The caller waits.
        let _ = self.caller.send(committed.and(self.changed));
    }
}
