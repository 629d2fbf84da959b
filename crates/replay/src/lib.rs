//! Reads captures, and alerts on their events, prints them, or passes them to an evaluator: `tollgate replay`, and
//! the tools that take a capture.

mod alerts;
mod browse;
mod events;
mod options;
mod progress;
mod source;
mod statistics;

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use agent::recorded_plugins::RecordedPlugins;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use event::Evaluator;
use rules::Engine;
use scap::read::Reader;

pub use self::browse::browse;
pub use self::options::ReplayOptions;
use self::progress::Progress;
use self::source::Count;
use self::statistics::Statistics;

/// Number of events between two checks of the clock and the channels.
const BATCH: u64 = 1024;

/// Alerts on the events of captures, or prints them.
///
/// # Errors
///
/// The configuration or the rules cannot be used, a capture is broken, or alerts could not be delivered.
pub fn execute(args: &ReplayOptions) -> Outcome {
    if let Some(capture) = args.rules.iter().find(|path| source::is_capture(path)) {
        let message = format!("cannot use {} as rules: it is a capture", capture.display());
        return Err(Failure::new(Exit::BadInput, message)
            .help("captures are named without an option; -r names rules"));
    }
    if args.fields.is_some() || args.filter.is_some() {
        events::print(args)
    } else {
        alerts::raise(args)
    }
}

/// Passes the events of one capture to an evaluator, except those of plugins, and prints a warning about these.
///
/// # Errors
///
/// The capture cannot be read to its end. The events before the error were evaluated.
pub fn evaluate<J: Evaluator>(path: &Path, evaluator: &J) -> Result<(), Failure> {
    let of_plugins = evaluate_until(path, evaluator, &|| false)?;
    if let Some(warning) = left_out(path, of_plugins) {
        terminal::complain(&warning);
    }
    Ok(())
}

/// Returns a warning about events of plugins that were not evaluated, if there are any: whoever reads the result cannot
/// know that it leaves them out.
fn left_out(path: &Path, events: u64) -> Option<String> {
    (events > 0).then(|| {
        format!(
            "tollgate: warning: {events} events of plugins in {} were not evaluated: without their plugins nothing \
             reads them\n",
            path.display()
        )
    })
}

/// Like [`evaluate`], with the events of plugins.
///
/// # Errors
///
/// As [`evaluate`]. What plugins do not read is counted in `of_plugins`.
pub fn evaluate_with<J: Evaluator>(
    path: &Path,
    evaluator: &J,
    of_plugins: &mut RecordedPlugins,
) -> Result<(), Failure> {
    let replay = scap::replay::Replay::new(evaluator, 0);
    let mut replay = replay.with_plugins(of_plugins);
    match play_one(path, true, &mut replay, &mut || Ok(true)) {
        Ok(_) => Ok(()),
        Err(Problem::Capture(failure) | Problem::Output(failure)) => Err(failure),
    }
}

/// Passes the events of one capture to an evaluator until `is_over` returns true. Returns the number of events of
/// plugins, which are not evaluated.
///
/// # Errors
///
/// As [`evaluate`].
pub fn evaluate_until<J: Evaluator>(
    path: &Path,
    evaluator: &J,
    is_over: &dyn Fn() -> bool,
) -> Result<u64, Failure> {
    let mut replay = scap::replay::Replay::new(evaluator, 0);
    match play_one(path, true, &mut replay, &mut || Ok(!is_over())) {
        Ok(_) => Ok(replay.counts().of_plugins),
        Err(Problem::Capture(failure) | Problem::Output(failure)) => Err(failure),
    }
}

/// Result of reading the captures.
struct ReplayResult {
    statistics: Statistics,
    /// Error that ended a capture early. Events before it were evaluated.
    broken: Option<Failure>,
}

/// Passes the events of all captures to the first engine, and those of plugins to `of_plugins`, which has the other
/// engines. `after_batch` stops the replay by returning `false`.
fn play(
    args: &ReplayOptions,
    engines: &[&Engine],
    mut of_plugins: Option<&mut RecordedPlugins>,
    mut after_batch: impl FnMut() -> Result<bool, Failure>,
) -> Result<ReplayResult, Failure> {
    let started = Instant::now();
    let mut statistics = Statistics::default();
    let mut broken = None;
    for path in &args.files {
        let longest = args.seconds.map_or(Duration::MAX, Duration::from_secs);
        let mut replay = scap::replay::Replay::new(engines[0], 0).until(longest);
        if let Some(of_plugins) = &mut of_plugins {
            replay = replay.with_plugins(&mut **of_plugins);
        }
        let result = play_one(path, args.quiet, &mut replay, &mut after_batch);
        statistics.add(&replay);
        match result {
            Ok(true) => {}
            Ok(false) => break,
            Err(Problem::Capture(failure)) => {
                // The other captures may be intact.
                if let Some(earlier) = broken.replace(failure) {
                    complain(&earlier);
                }
            }
            Err(Problem::Output(failure)) => return Err(failure),
        }
    }
    statistics.finish(started.elapsed(), engines, of_plugins.as_deref());
    Ok(ReplayResult { statistics, broken })
}

/// Cause of a failure: the capture or the reader of the output.
enum Problem {
    Capture(Failure),
    Output(Failure),
}

fn play_one<J: Evaluator>(
    path: &Path,
    quiet: bool,
    replay: &mut scap::replay::Replay<'_, J>,
    after_batch: &mut impl FnMut() -> Result<bool, Failure>,
) -> Result<bool, Problem> {
    // As in Falco, the environment names the host of a recording, too.
    replay.set_host_name(agent::given_host_name());
    let (source, size) = open(path).map_err(Problem::Capture)?;
    let unreadable = |error| Problem::Capture(unreadable(path, error));
    let count = Count::default();
    let source = source::unpack(source, &count);
    let source = source.map_err(|cause| unreadable(scap::Error::Io { offset: 0, cause }))?;
    let mut reader = Reader::new(source).map_err(unreadable)?;
    let mut progress = Progress::new(path, size, quiet);
    loop {
        let more = replay.step(&mut reader, BATCH);
        if !after_batch().map_err(Problem::Output)? {
            return Ok(false);
        }
        if !more.map_err(unreadable)? {
            return Ok(true);
        }
        progress.at(count.bytes(), replay.counts().events);
    }
}

const NAME_A_CAPTURE: &str = "name a capture of sysdig or Falco, or one made with -w";

fn open(path: &Path) -> Result<(Box<dyn Read + Send>, Option<u64>), Failure> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin()), None));
    }
    let cannot = |cause: io::Error| {
        let help = match cause.kind() {
            ErrorKind::NotFound if path.to_string_lossy().contains(['=', ' ']) => {
                "pass a condition with --filter and a format with -p"
            }
            ErrorKind::PermissionDenied => "run this as a user with read permission",
            _ => NAME_A_CAPTURE,
        };
        let message = format!("cannot open {}: {cause}", path.display());
        Failure::new(Exit::BadInput, message).help(help)
    };
    let file = File::open(path).map_err(cannot)?;
    let meta = file.metadata().map_err(cannot)?;
    if meta.is_dir() {
        return Err(cannot(ErrorKind::IsADirectory.into()));
    }
    let size = meta.is_file().then_some(meta.len());
    Ok((Box::new(file), size))
}

fn unreadable(path: &Path, error: scap::Error) -> Failure {
    let help = match &error {
        scap::Error::Foreign { .. } => NAME_A_CAPTURE,
        scap::Error::Empty => "the file is empty: nothing was recorded, or the copy failed",
        scap::Error::Packets { .. } => {
            "network captures are for tcpdump and Wireshark; tollgate reads \
        system calls"
        }
        scap::Error::Version { .. } => "use a newer tollgate",
        scap::Error::Truncated { .. } => {
            "the events before that were replayed; the rest was not written, or the copy is incomplete"
        }
        _ => "the events before that were replayed; if the file is a copy, copy it again",
    };
    let error = Unreplayed {
        path: path.display().to_string(),
        source: error,
    };
    Failure::from_error(Exit::BadInput, &error).help(help)
}

#[derive(Debug, thiserror::Error)]
#[error("cannot replay {path}")]
struct Unreplayed {
    path: String,
    source: scap::Error,
}

fn complain(failure: &Failure) {
    terminal::complain(&failure.render());
}

impl ReplayResult {
    /// Prints the statistics, if requested, and the errors of the captures.
    fn end(self, args: &ReplayOptions) -> Outcome {
        if args.stats {
            let text = if args.json {
                self.statistics.json()
            } else {
                self.statistics.text()
            };
            terminal::complain(&text);
        } else if !args.quiet {
            self.statistics.warn();
        }
        match self.broken {
            Some(failure) => Err(failure),
            None => Ok(Exit::Ok),
        }
    }
}
