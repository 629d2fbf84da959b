//! Progress of a replay.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on standard error, if that is a terminal and the work takes longer than [`MOMENT`].
pub(super) struct Progress {
    started: Instant,
    name: String,
    size: Option<u64>,
    is_wanted: bool,
    bar: Option<ProgressBar>,
}

/// Time before a bar is shown.
const MOMENT: Duration = Duration::from_secs(1);

impl Progress {
    pub(super) fn new(path: &Path, size: Option<u64>, quiet: bool) -> Self {
        Self {
            started: Instant::now(),
            name: path.display().to_string(),
            size,
            is_wanted: !quiet && io::stderr().is_terminal(),
            bar: None,
        }
    }

    /// Shows the number of bytes and events read.
    pub(super) fn at(&mut self, bytes: u64, events: u64) {
        if !self.is_wanted || self.bar.is_none() && self.started.elapsed() < MOMENT {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| bar(self.size, &self.name));
        bar.set_message(format!("{events} events"));
        bar.set_position(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(size: Option<u64>, name: &str) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => (
            ProgressBar::new(size),
            "{prefix} {bar:30} {percent}% {msg}, {eta} left",
        ),
        None => (
            ProgressBar::no_length(),
            "{prefix} {bytes} {msg}, {elapsed}",
        ),
    };
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_invalid| ProgressStyle::default_bar()));
    bar.set_prefix(name.to_owned());
    bar
}
