//! Live processes, calls and alerts in a terminal.
//!
//! [`Tally`] counts what a feed reports, within fixed bounds; [`State`] is what the user chose; [`draw`] draws both.
//! The crate knows no engine. Whatever a workload controls is escaped where it enters ([`escaped`]).

mod alerts;
mod draw;
mod state;
mod tally;
mod terminal;

pub use alerts::{AlertRow, Alerts};
pub use draw::draw;
pub use state::{Key, Sort, State, Tab};
pub use tally::{Caller, Costs, Seen, Tally};
pub use terminal::{Live, run};

/// Longest text that is kept of one value, in characters.
const LONGEST: usize = 400;

/// Escapes what a terminal would interpret or hide: controls, marks of writing direction, combining characters
/// without a base. Cuts long texts.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(LONGEST) {
        match c {
            '"' | '\'' | '\\' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(LONGEST).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_interprets_is_left() {
        assert_eq!(escaped("plain 'text' \"ü\""), "plain 'text' \"ü\"");
        assert_eq!(escaped("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(escaped("\u{202e}x\u{200b}\u{9b}"), "\\u{202e}x\\u{200b}\\u{9b}");
        assert_eq!(escaped(&"x".repeat(1000)).chars().count(), LONGEST + 1);
    }
}
