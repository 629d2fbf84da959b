//! Entries for fuzzing: what other agents, and files of a cache, say.

use crate::cache_files;
pub use crate::host::testing::{BUILD, handoff_answer, handoff_request, held_calls, orders};

/// Returns the parts of a cached file, as those of compiled rules; `None` if it is damaged.
#[must_use]
pub fn cached_parts(bytes: &[u8]) -> Option<[&[u8]; 3]> {
    cache_files::parts(bytes)
}

/// Returns the file that has these parts.
#[must_use]
pub fn cache_file(parts: [&[u8]; 3]) -> Vec<u8> {
    cache_files::encode(parts)
}
