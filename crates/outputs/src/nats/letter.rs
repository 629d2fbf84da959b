//! An alert on its way to the server.

/// An alert being published.
pub(super) struct Letter {
    pub(super) subject: String,
    /// Identifier by which a stream recognizes an alert that it has stored already.
    pub(super) id: String,
    /// The stream that must store it; `None` for any.
    pub(super) stream: Option<String>,
    pub(super) payload: Vec<u8>,
    pub(super) state: State,
}

/// What became of an alert.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The server has not answered yet.
    Waiting,
    Delivered,
    /// No stream has stored the alert; a retry may succeed.
    Untaken(String),
    /// The server rejects the alert.
    Refused(String),
}

impl Letter {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Waiting | State::Untaken(_))
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.state == State::Waiting
    }
}
