//! What someone asks who looks into a capture, and what is found. The collector's page asks, and `replay` looks: neither uses the other.

use std::time::Duration;

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct BrowseQuery<'a> {
    /// Condition of the events, in the language of rules; empty for all.
    pub filter: &'a str,
    /// Events from behind the one of this number on.
    pub after: u64,
    /// Number of events at most.
    pub events: usize,
    /// Number of processes at most.
    pub processes: usize,
    /// Events that are looked at, at most.
    pub scanned: u64,
    /// Time that this takes at most.
    pub time: Duration,
}

/// A selected event, its values as alerts print them. Every text is hostile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrowsedEvent {
    /// Its number in the capture.
    pub number: u64,
    /// Time of day in UTC.
    pub time: String,
    /// Name of the process.
    pub process: String,
    /// Number of the thread.
    pub thread: String,
    /// The system call.
    pub call: String,
    /// Its arguments.
    pub arguments: String,
}

/// A process with an event, or an ancestor of one. Every text is hostile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrowsedProcess {
    /// Its number.
    pub pid: i32,
    /// Place of its parent in the list, before its own.
    pub parent: Option<usize>,
    /// Its name at its last event.
    pub name: String,
    /// Its command line then.
    pub command: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Browsed {
    /// The selected events.
    pub events: Vec<BrowsedEvent>,
    /// There are more of them.
    pub has_more: bool,
    /// Events that were looked at.
    pub scanned: u64,
    /// Why the rest of the capture was not looked at.
    pub stopped: Option<String>,
    /// Processes.
    pub processes: Vec<BrowsedProcess>,
    /// There are more of them.
    pub has_more_processes: bool,
}

/// A condition that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// What is wrong.
    pub message: String,
    /// Number of characters before the mistake, if it has a place.
    pub at: Option<usize>,
    /// What to write instead.
    pub help: Option<String>,
}
