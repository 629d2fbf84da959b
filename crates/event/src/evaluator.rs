//! Interface between an engine and the evaluator of its events.

use std::sync::Arc;

use crate::{Event, EventKind, ImpossibleOpen, Opening};

/// Remaining relevance of an event at its present stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relevance {
    /// No rule can match, whatever becomes known later: let the call proceed.
    Reject,
    /// At least one rule is undecided, or the output of a matching rule needs a value that is not known yet.
    Undecided,
    /// Some rule matches, and no more data is needed.
    Settled,
}

/// Evaluates events. All receiver threads share one evaluator; each thread has its own scratch.
pub trait Evaluator: Send + Sync {
    /// Per-thread working memory, reused so that events that match nothing allocate nothing.
    type Scratch: Send;

    /// Creates the working memory of one thread.
    fn scratch(&self) -> Self::Scratch;

    /// Returns true if events of this kind can be anything but rejected. An engine need not show the
    /// evaluator events of other kinds.
    fn concerns(&self, kind: EventKind) -> bool {
        let _ = kind;
        true
    }

    /// Returns a proof, known from earlier events, that no rule can match an opening, whichever process makes
    /// it. The engine then need not evaluate this event or any later one of such an opening.
    fn has_ruled_out(
        &self,
        scratch: &mut Self::Scratch,
        opening: &Opening<'_>,
    ) -> Option<ImpossibleOpen> {
        let _ = (scratch, opening);
        None
    }

    /// Evaluates an event at its present stage, without side effects.
    fn prefilter(&self, scratch: &mut Self::Scratch, event: &Event<'_>) -> Relevance;

    /// Evaluates an event finally: called at most once for an event, with the most complete data available.
    /// Matches become alerts. Returns the names of the rules that stayed undecided because data about the
    /// event was unavailable.
    fn evaluate(&self, scratch: &mut Self::Scratch, event: &Event<'_>) -> Vec<Arc<str>>;
}
