//! Entry for fuzzing: messages between our processes.

use crate::message::Message;

/// Reads a message from a word of the shared state. Returns whether it is one.
///
/// # Panics
///
/// If a message that was read is not read again from the word that it is written to.
#[must_use]
pub fn message(word: u64) -> bool {
    let message = Message::from_word(word);
    if let Some(message) = message {
        assert_eq!(Message::from_word(message.to_word()), Some(message));
    }
    message.is_some()
}
