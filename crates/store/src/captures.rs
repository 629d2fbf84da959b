//! Captures that people ask agents for, and those that agents record around alerts.

use crate::error::StoreError;
use crate::model::AgentId;

/// Number of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureId(pub i64);

/// Largest capture in bytes.
pub const MAX_CAPTURE: u64 = 16 << 20;

/// Time in seconds that a capture takes at most.
pub const MAX_CAPTURE_SECONDS: u32 = 300;

/// Captures that are kept, the latest ones. An older one that is over goes with its data when another is asked for. At most as
/// many are open at the same time.
pub(crate) const KEPT: i64 = 20;

/// Captures around alerts that are kept: in all, and of one agent. Beyond all, the agent that has the most loses its oldest, so that
/// no agent takes those of others away that have no more than it.
pub(crate) const KEPT_OF_ALERTS: i64 = 100;
pub(crate) const KEPT_OF_AGENT: i64 = 10;

/// Time in which an agent may begin [`KEPT_OF_AGENT`] captures around alerts: one that was taken over fills neither the disk nor the
/// audit log.
pub(crate) const CROWDED_NS: i64 = 600_000_000_000;

/// Time after the end of a capture in which it has to arrive; then it has failed.
pub(crate) const PATIENCE_NS: i64 = 600_000_000_000;

/// A capture is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCapture {
    /// The agent that is to record.
    pub agent: AgentId,
    /// For how long.
    pub seconds: u32,
    /// Who asks.
    pub actor: String,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureAsked {
    /// The agent will be asked at its next sign of life.
    Added(CaptureId),
    /// The store has no such agent, or it cannot record.
    UnknownAgent,
    /// The agent has this capture to record or to send first; `None`: as many captures as the store keeps are open.
    Busy(Option<CaptureId>),
}

/// The alert around which an agent has recorded, and how much of that time the capture has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedAlert {
    /// Its rule.
    pub rule: String,
    /// Its time.
    pub time_ns: i64,
    /// Milliseconds before the alert.
    pub before_ms: u32,
    /// Milliseconds after it.
    pub after_ms: u32,
}

/// An agent has recorded a capture around an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAlertCapture {
    /// The agent.
    pub agent: AgentId,
    /// The alert.
    pub alert: CapturedAlert,
}

/// What became of the announcement of a capture around an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertCaptureBegun {
    /// The agent is to send it, from this part on: more than 0 if it has begun before.
    Expected(CaptureId, u64),
    /// It was sent before, and is over.
    Known(CaptureId),
    /// The agent has begun too many in a short time, or too many of others are still to arrive.
    Busy,
    /// The store has no such agent, or it cannot record.
    UnknownAgent,
}

/// What the data of a capture is for; the audit log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureUse {
    /// Someone downloads it.
    Download,
    /// Someone looks at its events.
    Browse,
}

impl CaptureUse {
    pub(crate) fn action(self) -> &'static str {
        match self {
            Self::Download => "download capture",
            Self::Browse => "browse capture",
        }
    }
}

/// What a complete capture consists of. It does not change any more, but it can be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureParts {
    /// Number of parts.
    pub parts: u64,
    /// Size of all parts in bytes.
    pub bytes: u64,
}

/// How far a capture is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureState {
    /// The agent has not sent anything of it yet.
    Requested,
    /// A part has arrived.
    Arriving,
    /// All of it has arrived.
    Complete,
    /// It will not arrive.
    Failed,
}

impl CaptureState {
    const ALL: [Self; 4] = [
        Self::Requested,
        Self::Arriving,
        Self::Complete,
        Self::Failed,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Arriving => "arriving",
            Self::Complete => "complete",
            Self::Failed => "failed",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns true if nothing more is expected.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Complete | Self::Failed)
    }
}

/// A capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Number.
    pub id: CaptureId,
    /// The agent.
    pub agent: AgentId,
    /// For how long it records, around an alert in whole seconds.
    pub seconds: u32,
    /// When someone asked for it, or its agent announced it.
    pub requested_ns: i64,
    /// Who asked for it; `agent N` for one around an alert.
    pub actor: String,
    /// How far it is.
    pub state: CaptureState,
    /// Parts that have arrived.
    pub chunks: u64,
    /// Size of them.
    pub bytes: u64,
    /// Events in it, as the agent says.
    pub events: u64,
    /// Events that are not in it, because it had reached its size.
    pub lost: u64,
    /// Why it failed; empty without a reason.
    pub reason: String,
    /// The alert around which the agent recorded it by itself; `None` if someone asked for it.
    pub alert: Option<CapturedAlert>,
}

/// Why a capture has failed in whose place its agent sends another one.
pub(crate) const REPLACED: &str = "the agent has begun another capture around an alert";

/// Why a capture has failed that did not arrive.
pub(crate) const OVERDUE: &str = "it has not arrived in time";

impl Capture {
    /// Returns the capture as it is at a time: one that is overdue has failed.
    pub(crate) fn at(self, now_ns: i64) -> Self {
        let seconds = i64::from(self.seconds).saturating_mul(1_000_000_000);
        let end = self.requested_ns.saturating_add(seconds);
        if self.state.is_over() || end.saturating_add(PATIENCE_NS) > now_ns {
            return self;
        }
        Self {
            state: CaptureState::Failed,
            reason: OVERDUE.to_owned(),
            ..self
        }
    }
}

/// What an agent says at the end of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureEnd {
    /// Parts that it sent.
    pub chunks: u64,
    /// Events in it.
    pub events: u64,
    /// Events that are not in it, because it had reached its size.
    pub lost: u64,
    /// Why there is none.
    pub failure: Option<String>,
}

/// What the store keeps about captures. All methods block.
pub trait Captures {
    /// Asks an agent for a capture.
    ///
    /// # Errors
    ///
    /// The database fails; so for all methods of this trait.
    fn request_capture(&self, capture: NewCapture) -> Result<CaptureAsked, StoreError>;

    /// Begins a capture around an alert that its agent is about to send. The same alert of the same rule has one capture.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn begin_alert_capture(
        &self,
        capture: NewAlertCapture,
    ) -> Result<AlertCaptureBegun, StoreError>;

    /// Returns all captures that are kept, the newest first.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn captures(&self) -> Result<Vec<Capture>, StoreError>;

    /// Returns the capture that an agent is to record or to send because someone asked for it.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn capture_of(&self, agent: AgentId) -> Result<Option<Capture>, StoreError>;

    /// Keeps a part of a capture, numbered from 0 on. Returns the number of the part that is expected then; a part of another
    /// number changes nothing. `None` if the agent has no such capture that is not over. A part beyond [`MAX_CAPTURE`] ends the
    /// capture as failed.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn add_chunk(
        &self,
        agent: AgentId,
        capture: CaptureId,
        number: u64,
        data: Vec<u8>,
    ) -> Result<Option<u64>, StoreError>;

    /// Ends a capture: complete if all parts have arrived that the agent names, else failed. Returns false if the agent has no
    /// such capture that is not over.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn end_capture(
        &self,
        agent: AgentId,
        capture: CaptureId,
        end: CaptureEnd,
    ) -> Result<bool, StoreError>;

    /// Records who is about to read the data of a complete capture, and for what. Returns what [`Captures::capture_part`] has to
    /// read; `None` if there is no such capture, or it is not complete.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn open_capture(
        &self,
        capture: CaptureId,
        actor: &str,
        used: CaptureUse,
    ) -> Result<Option<CaptureParts>, StoreError>;

    /// Returns a part of a complete capture, numbered from 0 on. Reads beside the thread that writes, so that no sender waits for a
    /// reader. `None` if the capture has no such part, or was deleted since it was opened.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn capture_part(&self, capture: CaptureId, number: u64) -> Result<Option<Vec<u8>>, StoreError>;
}

/// Returns what the audit log says of a capture.
pub(crate) fn named(id: i64, agent: AgentId) -> String {
    format!("capture {id} of agent {}", agent.0)
}

/// Returns the seconds that a capture around an alert spans, as those that someone asks for have them.
pub(crate) fn seconds(alert: &CapturedAlert) -> u32 {
    let span_ms = alert.before_ms.saturating_add(alert.after_ms);
    span_ms.div_ceil(1000)
}

/// Returns the state and the reason at the end of a capture with this number of parts.
pub(crate) fn ended(end: &CaptureEnd, arrived: u64) -> (CaptureState, String) {
    match &end.failure {
        Some(why) => (CaptureState::Failed, why.clone()),
        None if end.chunks == arrived && arrived > 0 => (CaptureState::Complete, String::new()),
        None => {
            let why = format!("{arrived} of {} parts have arrived", end.chunks);
            (CaptureState::Failed, why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_that_has_not_arrived_in_time_has_failed() {
        let of = |state, now_ns| {
            let capture = Capture {
                id: CaptureId(1),
                agent: AgentId(1),
                seconds: 2,
                requested_ns: 5,
                actor: String::new(),
                state,
                chunks: 0,
                bytes: 0,
                events: 0,
                lost: 0,
                reason: String::new(),
                alert: None,
            };
            capture.at(now_ns).state
        };
        let late = 5 + 2_000_000_000 + PATIENCE_NS;
        assert_eq!(of(CaptureState::Arriving, late - 1), CaptureState::Arriving);
        assert_eq!(of(CaptureState::Arriving, late), CaptureState::Failed);
        assert_eq!(of(CaptureState::Requested, late), CaptureState::Failed);
        assert_eq!(of(CaptureState::Complete, late), CaptureState::Complete);
    }
}
