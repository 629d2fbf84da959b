//! Numbers as databases keep them, which have no unsigned ones.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time in nanoseconds since 1970.
pub(crate) fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos());
    i64::try_from(now).unwrap_or(i64::MAX)
}

/// A number of rows or a sum, which a database keeps as a signed number and which is never negative.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A count for a database, which has no unsigned numbers.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
