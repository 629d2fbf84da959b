//! Time slices.

use std::time::Duration;

/// Time slice of processes and threads that a runtime waits for until they have started: short
/// slices are scheduled sooner where others use all processors.
pub(super) const START_SLICE: Duration = Duration::from_micros(100);

/// Resets this thread's time slice to the default, which the watching processes and their children
/// use.
pub fn take_usual_turns() {
    // A kernel that refuses this has granted no short slice either.
    let _ = sys::schedule::lengthen_turns(START_SLICE);
}
