//! The texts of a rule set, by name.

use yaml::{Location, SourceText};

use crate::condition::ast::{SourceId, Span};

/// The condition and output texts of a rule set, for turning a [`Span`] into a [`Location`].
#[derive(Debug, Clone, Default)]
pub struct Sources(Vec<SourceText>);

impl Sources {
    /// Where a span starts. For a span of another rule set the answer is meaningless.
    #[must_use]
    pub fn locate(&self, span: Span) -> Location {
        let offset = usize::try_from(span.start).unwrap_or(usize::MAX);
        self.text(span.source).map_or_else(
            || Location {
                file: "".into(),
                line: 0,
                column: 0,
            },
            |text| text.locate(offset),
        )
    }

    /// The text with this name.
    #[must_use]
    pub fn text(&self, id: SourceId) -> Option<&SourceText> {
        self.0.get(usize::try_from(id.0).ok()?)
    }

    /// Keeps a text and names it.
    pub fn add(&mut self, text: SourceText) -> SourceId {
        let id =
            u32::try_from(self.0.len()).expect("the limits on file sizes keep this below 2^32");
        self.0.push(text);
        SourceId(id)
    }
}
