//! The texts of a rule set, by id.

use yaml::{Location, SourceText};

use crate::condition::ast::{SourceId, Span};

/// Condition and output texts of a rule set, which map a [`Span`] to a [`Location`].
#[derive(Debug, Clone, Default)]
pub struct Sources(Vec<SourceText>);

impl Sources {
    /// Returns the start of a span. The result is meaningless for a span of another rule set.
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

    /// Returns the text with this id.
    #[must_use]
    pub fn text(&self, id: SourceId) -> Option<&SourceText> {
        self.0.get(usize::try_from(id.0).ok()?)
    }

    /// Stores a text and returns its id.
    pub fn add(&mut self, text: SourceText) -> SourceId {
        let id =
            u32::try_from(self.0.len()).expect("the limits on file sizes keep this below 2^32");
        self.0.push(text);
        SourceId(id)
    }
}
