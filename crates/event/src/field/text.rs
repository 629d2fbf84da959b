//! Text built in an event's arena.

use std::fmt;

use bumpalo::Bump;
use bumpalo::collections::Vec;

use crate::Value;

/// A text builder.
pub(super) struct Text<'a>(Vec<'a, u8>);

impl<'a> Text<'a> {
    pub(super) fn new(arena: &'a Bump) -> Self {
        Self(Vec::new_in(arena))
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a displayable value.
    pub(super) fn show(&mut self, what: impl fmt::Display) {
        fmt::write(self, format_args!("{what}")).expect("an arena can be written to");
    }

    /// Appends `parts`, separated by spaces.
    pub(super) fn join<'b>(&mut self, parts: impl IntoIterator<Item = &'b [u8]>) {
        for (position, part) in parts.into_iter().enumerate() {
            if position > 0 {
                self.push(b" ");
            }
            self.push(part);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        self.0.into_bump_slice()
    }

    pub(super) fn value(self) -> Value<'a> {
        Value::Text(self.bytes())
    }
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Copies bytes into the arena.
pub(super) fn copied<'a>(arena: &'a Bump, bytes: &[u8]) -> Value<'a> {
    Value::Text(arena.alloc_slice_copy(bytes))
}

/// Formats a displayable value as text in the arena.
pub(super) fn shown(arena: &Bump, what: impl fmt::Display) -> Value<'_> {
    let mut text = Text::new(arena);
    text.show(what);
    text.value()
}
