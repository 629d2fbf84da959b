//! Waiting for what another process does.

use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine, and shorter than the patience of who runs the tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something holds.
///
/// # Panics
/// If it does not within two minutes. `what` says what it is.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a file is there.
///
/// # Panics
/// If it is not within two minutes.
#[track_caller]
pub fn wait_for(file: &Path) {
    until(&format!("{} appears", file.display()), || file.exists());
}
