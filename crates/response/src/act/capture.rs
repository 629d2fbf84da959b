//! `host:capture`: records the events of some seconds to a file.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rules::Alert;

use crate::outcome::{Outcome, Status};
use crate::parameters::CaptureOptions;

/// Records events of an engine.
pub trait EventCapture: Send + Sync {
    /// Begins a capture that keeps at most this many bytes, and returns its number.
    fn begin(&self, max_bytes: usize) -> u64;

    /// Ends a capture and returns it.
    fn end(&self, number: u64) -> CapturedEvents;
}

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedEvents {
    /// A file in the format of sysdig and Falco.
    pub bytes: Vec<u8>,
    /// Events in it.
    pub events: u64,
    /// Events that came later and did not fit.
    pub lost: u64,
}

/// Tells captures that run when nothing is left to record.
#[derive(Default)]
pub(crate) struct Ending {
    is_ending: Mutex<bool>,
    changed: Condvar,
}

impl Ending {
    /// Ends all captures that run, and those to come at once.
    pub(crate) fn end(&self) {
        *self
            .is_ending
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for this time, or until nothing is left to record. Returns true if that came first.
    fn wait(&self, duration: Duration) -> bool {
        let is_ending = self
            .is_ending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let goes_on = |is_ending: &mut bool| !*is_ending;
        let waited = self
            .changed
            .wait_timeout_while(is_ending, duration, goes_on);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Records until the time is over, and writes the file.
pub(crate) fn run(
    options: &CaptureOptions,
    capture: &Arc<dyn EventCapture>,
    ending: &Ending,
    alert: &Alert,
) -> Outcome {
    let path = path(&options.folder, alert);
    // First: events that nobody can keep need not be recorded.
    let mut file = match create(&path) {
        Ok(file) => file,
        Err(error) => return cannot(&path, &error),
    };
    let number = capture.begin(options.max_bytes());
    let has_ended = ending.wait(options.duration);
    let captured = capture.end(number);
    let written = file.write_all(&captured.bytes).and_then(|()| file.flush());
    if let Err(error) = written {
        return cannot(&path, &error);
    }
    let (events, lost) = (captured.events, captured.lost);
    let bytes = captured.bytes.len();
    let mut text = format!(
        "recorded {events} events in {bytes} bytes to {}",
        path.display()
    );
    if has_ended {
        text += "; the program ended before the time was over";
    }
    if lost > 0 {
        text += &format!("; {lost} events after these did not fit `max_mib`");
    }
    Outcome::new(Status::Done, text)
}

/// Says what would have been recorded.
pub(crate) fn dry_run(options: &CaptureOptions) -> Outcome {
    let (seconds, folder) = (options.duration.as_secs(), options.folder.display());
    let text = format!("would have recorded events for {seconds} s to a file in {folder}");
    Outcome::new(Status::DryRun, text)
}

/// Returns the file of a capture: named by the alert, of which two may have one time.
fn path(folder: &Path, alert: &Alert) -> PathBuf {
    folder.join(format!("tollgate_{}.scap", alert.id()))
}

fn create(path: &Path) -> io::Result<std::fs::File> {
    // Only the user may read what programs did. A link that somebody has put there is not followed.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

fn cannot(path: &Path, error: &io::Error) -> Outcome {
    let text = format!("cannot write {}: {error}", path.display());
    Outcome::new(Status::Failed, text)
}
