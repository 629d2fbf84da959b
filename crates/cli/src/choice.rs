//! A parser for options whose values are the words of a setting.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use config::Choice;

/// Returns a parser for the words of a setting that is also an option.
pub(crate) fn choice<T: Choice + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let words = T::CHOICES.iter();
    let words = words.map(|(_, word, description)| PossibleValue::new(*word).help(*description));
    PossibleValuesParser::new(words)
        .map(|word| T::from_word(&word).expect("the parser takes no other word"))
}
