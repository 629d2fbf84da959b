//! Where events come from: capture engines, kernel filters and their drop counters.
