//! The seam between an engine and whatever evaluates events.

use std::sync::Arc;

use crate::{Event, EventKind, ImpossibleOpen, Opening};

/// How much an event still matters at the stage it has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relevance {
    /// No rule can match, whatever is learnt later: let the call go.
    Reject,
    /// At least one rule is undecided, or a matching one prints what is not known yet.
    Undecided,
    /// Some rule matches and nothing more is needed.
    Settled,
}

/// Evaluates events. One judge serves all receiver threads; each thread has its own scratch.
pub trait Evaluator: Send + Sync {
    /// Per-thread working memory, reused so that events that match nothing allocate nothing.
    type Scratch: Send;

    /// Working memory for one thread.
    fn scratch(&self) -> Self::Scratch;

    /// Whether events of a kind can be anything but rejected. What does not concern the judge need
    /// not be shown to it.
    fn concerns(&self, kind: EventKind) -> bool {
        let _ = kind;
        true
    }

    /// What is known from earlier events if nothing can come of an opening, whoever makes it. Then its
    /// event need not be concluded, nor any later one of such an opening.
    fn has_ruled_out(
        &self,
        scratch: &mut Self::Scratch,
        opening: &Opening<'_>,
    ) -> Option<ImpossibleOpen> {
        let _ = (scratch, opening);
        None
    }

    /// Weighs an event at its present stage. No side effect.
    fn prefilter(&self, scratch: &mut Self::Scratch, event: &Event<'_>) -> Relevance;

    /// Concludes: called at most once for an event, in the most complete state that could be had.
    /// Matches become alerts. Returns the names of the rules that stayed undecided because something
    /// about the event could not be learnt.
    fn evaluate(&self, scratch: &mut Self::Scratch, event: &Event<'_>) -> Vec<Arc<str>>;
}
