//! `tollgate top`: shows live processes, calls and alerts in a terminal.

mod feed;

use std::io::{IsTerminal, stdin, stdout};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use agent::journal;
use capture::ebpf;
use config::rule_files::Loaded;
use config::{CompatMode, Effective, Places, Request};
use container::ContainerOptions;
use decoder::system_info::SystemInfoOptions;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use event::Pid;
use rules::Engine;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use top::{Screen, Tally};

use self::feed::{EngineReports, Feed, ThreadSink};
use crate::args::Top;

/// Most threads that evaluate events: more cost more than they help.
const THREADS: usize = 4;

/// Runs the verb.
pub(crate) fn execute(args: &Top) -> Outcome {
    if !stdout().is_terminal() || !stdin().is_terminal() {
        let message = "cannot draw: stdin and stdout have to be a terminal";
        return Err(Failure::new(Exit::BadInput, message).help(
            "`tollgate watch` prints alerts as lines, `tollgate replay` those of a capture",
        ));
    }
    let over = ends()?;
    let tally = Arc::new(Mutex::new(Tally::new(Instant::now())));
    let (engine, loaded) = rules(args)?;
    let feed = Feed::new(engine, loaded.ruleset, Arc::clone(&tally));
    match &args.file {
        Some(path) => show_capture(path, feed, &tally, &over),
        None => watch(args, feed, &tally, &over),
    }
}

/// Returns the rules that `watch` would use.
fn rules(args: &Top) -> Result<(Engine, Loaded), Failure> {
    let places = Places::of_user()?;
    let request = Request {
        fragments: &[],
        layers: &places.files,
        file: args.sources.config.as_deref(),
        options: &args.sources.settings(),
        mode: CompatMode::default(),
    };
    let Effective {
        mut config,
        warnings,
        ..
    } = request.load()?;
    for warning in warnings {
        journal::warn(&format!("warning: {warning}"));
    }
    config.rules_folder = places.rules;
    config.added_rules.clone_from(&args.sources.add_rules);
    if !args.sources.rules.is_empty() {
        config.rules_files.clone_from(&args.sources.rules);
    }
    let mut loaded = config.rule_sources().load();
    loaded.select(&config.rules);
    let (engine, _plan) = loaded.compile(&agent::engine_options(&config, None), ThreadSink);
    loaded.usable()?;
    Ok((engine, loaded))
}

/// Returns a flag that signals set which ask for the end.
fn ends() -> Result<Arc<AtomicBool>, Failure> {
    let over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&over)).map_err(|error| {
            Failure::new(Exit::Internal, format!("cannot handle signals: {error}"))
                .help("report this as a defect")
        })?;
    }
    Ok(over)
}

/// Shows live processes until the user ends it.
fn watch(args: &Top, feed: Feed, tally: &Mutex<Tally>, over: &AtomicBool) -> Outcome {
    let scope = super::watch::places(args.containers.clone(), &[])?;
    let target = match (&scope, &*args.pids) {
        (Some(scope), _) => ebpf::Target::Places(scope.clone()),
        (None, []) => ebpf::Target::Host,
        (None, pids) => ebpf::Target::Processes(pids.iter().copied().map(Pid).collect()),
    };
    let notices = Arc::new(EngineReports::default());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let engine = ebpf::Engine::start(ebpf::Parts {
        plan: feed.plan(),
        paths: feed.paths(),
        evaluator: Arc::new(feed),
        world: SystemInfoOptions::default(),
        notices: Arc::clone(&notices) as _,
        rings: ebpf::RingSizes::default(),
        filters: true,
        hooks: ebpf::Hooks::Auto,
        rule_threads: threads.min(THREADS),
        target,
        transparent: Vec::new(),
    })
    .map_err(|error| unsupported(&error))?;
    let what = watched(args);
    let absent = scope.map(Absent::new);
    let status = || {
        let lost = engine.counters().lost();
        let waits = absent.as_ref().map_or_else(String::new, Absent::words);
        format!("{what} (eBPF)  {lost} lost{waits}{}", notices.trouble())
    };
    let drawn = top::run(&Screen {
        tally,
        status: &status,
        is_over: &|| over.load(Ordering::Relaxed) || engine.has_ended(),
    });
    engine.stop();
    engine.join();
    concluded(drawn)
}

/// Returns what the status line says that is watched.
fn watched(args: &Top) -> String {
    match (&*args.containers, args.pids.len()) {
        ([], 0) => "all processes".to_owned(),
        ([], 1) => "1 process".to_owned(),
        ([], count) => format!("{count} processes"),
        ([name], _) => format!("container {}", top::escaped(name)),
        (names, _) => format!("{} containers", names.len()),
    }
}

/// Watched containers that do not run yet: a mistyped name looks like a quiet container.
struct Absent {
    scope: ebpf::WatchScope,
    last: Mutex<LastLook>,
}

/// What the last look at all processes found.
#[derive(Default)]
struct LastLook {
    when: Option<Instant>,
    /// Names of containers that did not run, escaped.
    names: Vec<String>,
    /// Why the look failed. The names are those of the look before.
    error: Option<String>,
}

impl Absent {
    /// Time between two looks at all processes.
    const INTERVAL: Duration = Duration::from_secs(2);

    fn new(scope: ebpf::WatchScope) -> Self {
        Self {
            scope,
            last: Mutex::default(),
        }
    }

    /// Returns what the status line says about them.
    fn words(&self) -> String {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.words(Instant::now(), || {
            let absent = self.scope.absent(ContainerOptions::default());
            let absent = absent.map_err(|error| error.to_string())?;
            Ok(absent.into_iter().map(top::escaped).collect())
        })
    }
}

impl LastLook {
    /// Returns what the status line says; `look` is called if the last one is too old.
    fn words(
        &mut self,
        now: Instant,
        look: impl FnOnce() -> Result<Vec<String>, String>,
    ) -> String {
        let is_recent = |when: Instant| now.duration_since(when) < Absent::INTERVAL;
        if !self.when.is_some_and(is_recent) {
            self.when = Some(now);
            self.error = match look() {
                Ok(names) => {
                    self.names = names;
                    None
                }
                Err(error) => Some(error),
            };
        }
        let mut words = match self.names.is_empty() {
            true => String::new(),
            false => format!("  waiting for {}", self.names.join(", ")),
        };
        if let Some(error) = &self.error {
            words.push_str(&format!("  cannot list the running containers: {error}"));
        }
        words
    }
}

/// Shows a capture. It is read in a thread of its own.
fn show_capture(path: &Path, feed: Feed, tally: &Mutex<Tally>, over: &AtomicBool) -> Outcome {
    // An unreadable file is an error before the terminal changes.
    std::fs::File::open(path).map_err(|cause| {
        Failure::new(
            Exit::BadInput,
            format!("cannot open {}: {cause}", path.display()),
        )
        .help("name a capture of sysdig or Falco, or one made with -w")
    })?;
    let name = top::escaped(&path.display().to_string());
    let (is_read, broken) = (AtomicBool::new(false), Mutex::new(None));
    let is_stopped = AtomicBool::new(false);
    let drawn = thread::scope(|scope| {
        scope.spawn(|| {
            let read = replay::evaluate_until(path, &feed, &|| is_stopped.load(Ordering::Relaxed));
            if let (Err(failure), Ok(mut kept)) = (read, broken.lock()) {
                *kept = Some(failure);
            }
            is_read.store(true, Ordering::Release);
        });
        let status = || match is_read.load(Ordering::Acquire) {
            false => format!("reading {name}"),
            true if broken.lock().is_ok_and(|kept| kept.is_some()) => format!("{name}: damaged"),
            true => name.clone(),
        };
        let drawn = top::run(&Screen {
            tally,
            status: &status,
            is_over: &|| over.load(Ordering::Relaxed),
        });
        is_stopped.store(true, Ordering::Relaxed);
        drawn
    });
    match broken.into_inner() {
        Ok(Some(failure)) => Err(failure),
        _ => concluded(drawn),
    }
}

fn concluded(drawn: std::io::Result<()>) -> Outcome {
    match drawn {
        Ok(()) => Ok(Exit::Ok),
        Err(error) => Err(Failure::new(
            Exit::Internal,
            format!("cannot draw in the terminal: {error}"),
        )
        .help("`tollgate watch` prints alerts as lines")),
    }
}

fn unsupported(error: &ebpf::Error) -> Failure {
    if let ebpf::Error::Gone { .. } = error {
        return Failure::from_error(Exit::BadInput, error)
            .help("find its PID in this PID namespace, for example with `ps -e`");
    }
    let help = match rustix::process::geteuid().is_root() {
        false => {
            "live processes need root: `sudo tollgate top`; a capture does not: `tollgate top FILE`"
        }
        true => "`tollgate doctor` shows what eBPF lacks here; `tollgate top FILE` shows a capture",
    };
    Failure::from_error(Exit::Unsupported, error).help(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_look_keeps_what_was_known_and_is_not_repeated_for_each_frame() {
        let mut last = LastLook::default();
        let start = Instant::now();
        let web = || Ok(vec!["web".to_owned()]);
        assert_eq!(last.words(start, web), "  waiting for web");
        let later = start + Absent::INTERVAL;
        let failed = "  waiting for web  cannot list the running containers: no /proc";
        assert_eq!(last.words(later, || Err("no /proc".to_owned())), failed);
        let never = || -> Result<Vec<String>, String> { panic!("the look is recent") };
        assert_eq!(
            last.words(later + Duration::from_millis(250), never),
            failed
        );
        assert_eq!(last.words(later + Absent::INTERVAL, || Ok(Vec::new())), "");
    }
}
