//! The day, by which a usual run chooses what it tries of a list that takes too long as a whole.

use std::time::{SystemTime, UNIX_EPOCH};

/// Sets the day, so that a failure of another day can be repeated.
const VARIABLE: &str = "TOLLGATE_TEST_DAY";

/// Returns the number of the day (UTC), by which tests choose what they try, and prints it.
///
/// # Panics
///
/// Panics if `TOLLGATE_TEST_DAY` is no number.
#[must_use]
pub fn day() -> usize {
    let day = std::env::var(VARIABLE).map_or_else(|_unset| today(), |text| number(&text));
    println!("what is tried is that of {VARIABLE}={day}");
    day
}

fn today() -> usize {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.expect("the clock is set").as_secs();
    usize::try_from(seconds / (24 * 60 * 60)).expect("it is small")
}

fn number(text: &str) -> usize {
    let number = text.parse();
    number.unwrap_or_else(|_error| panic!("{VARIABLE} is {text}, which is no number"))
}
