//! Replay under rules: evaluates the events and sends alerts to the channels.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use agent::journal;
use agent::plugins::{Plugins, SourceEngines};
use agent::sink::DeferredSink;
use agent::totals;
use config::{CompatMode, Config, Effective, Request};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use outputs::Dispatcher;
use rules::{Alert, AlertSink, Engine};

use crate::{ReplayOptions, play};

/// Number of alerts sent before waiting for the channels. A recorded event has no deadline, so no alert need be
/// lost, neither to full queues nor to the memory limit, which large alerts reach first.
const WAVE: usize = outputs::QUEUE_CAPACITY.alerts / 16;

/// A sink that waits for the channels at intervals.
#[derive(Clone)]
struct PatientSink(Arc<Patient>);

struct Patient {
    sink: DeferredSink,
    dispatcher: OnceLock<Dispatcher>,
    timeout: Duration,
    wave: u64,
    /// Number of alerts since the last wait for the channels.
    waiting: AtomicU64,
}

impl PatientSink {
    fn new(config: &Config) -> Self {
        let room = config.queue_capacity.unwrap_or(WAVE);
        Self(Arc::new(Patient {
            sink: DeferredSink::default(),
            dispatcher: OnceLock::new(),
            timeout: Duration::from_millis(config.output_timeout_ms),
            wave: u64::try_from(room.min(WAVE)).unwrap_or(u64::MAX),
            waiting: AtomicU64::new(0),
        }))
    }

    fn connect(&self, dispatcher: &Dispatcher) {
        self.0.sink.connect(dispatcher.clone());
        // A second call would be a bug; the first dispatcher remains.
        let _ = self.0.dispatcher.set(dispatcher.clone());
    }
}

impl AlertSink for PatientSink {
    fn emit(&self, alert: Alert) {
        let Self(patient) = self;
        patient.sink.emit(alert);
        if patient.waiting.fetch_add(1, Ordering::Relaxed) + 1 < patient.wave {
            return;
        }
        patient.waiting.store(0, Ordering::Relaxed);
        if let Some(dispatcher) = patient.dispatcher.get() {
            dispatcher.flush(Instant::now() + patient.timeout);
        }
    }
}

pub(super) fn raise(args: &ReplayOptions) -> Outcome {
    let request = Request {
        fragments: &[],
        layers: &args.places.files,
        file: args.config.as_deref(),
        options: &args.options,
        mode: args.manner,
    };
    let Effective {
        mut config,
        warnings,
        ..
    } = request.load()?;
    config.rules_folder.clone_from(&args.places.rules);
    config.added_rules.clone_from(&args.add_rules);
    journal::open(config.log, args.manner, config.time_format_iso_8601);
    let stream = args.stream.clone();
    config.json_output |= args.json || stream.is_json();
    stream.apply(&mut config.outputs.stdout, args.manner);
    if !args.rules.is_empty() {
        config.rules_files.clone_from(&args.rules);
    }
    let plugins = match &args.plugins {
        Some(plugins) => plugins.clone(),
        None => Plugins::load(&config)?,
    };
    let rules = Rules::load(args, &config, &plugins, &warnings)?;
    let dispatcher = agent::outputs(&config, args.quiet, None)?
        .start()
        .map_err(|error| {
            Failure::from_error(Exit::Internal, &error)
                .help("check the limit on processes (ulimit -u)")
        })?;
    rules.sink.connect(&dispatcher);
    let mut of_plugins = plugins.recorded(&rules.sources)?;
    let engines = rules.engines();
    let played = play(args, &engines, Some(&mut of_plugins), || Ok(true))?;
    let lost = finish(&dispatcher, Duration::from_millis(config.output_timeout_ms));
    if args.manner == CompatMode::Falco {
        let mut totals = Vec::new();
        engines
            .iter()
            .for_each(|engine| totals::add(&mut totals, engine));
        // Events missing from a capture were lost when it was recorded.
        terminal::complain(&totals::of_losses(0, 0));
        terminal::print(&totals::of_rules(&totals))?;
    }
    // Errors of the captures are reported first.
    played.end(args)?;
    of_plugins.complete()?;
    match lost {
        None => Ok(Exit::Ok),
        Some(lost) => Err(Failure::new(Exit::BadInput, lost)
            .help("the message above shows the reason; free disk space, or choose another output")),
    }
}

/// Compiled rules of a replay.
struct Rules {
    sink: PatientSink,
    /// Those of system calls.
    engine: Engine,
    /// Those of the sources of plugins.
    sources: SourceEngines,
}

impl Rules {
    /// Loads and compiles the rules, and prints the warnings about them and about the configuration.
    fn load(
        args: &ReplayOptions,
        config: &Config,
        plugins: &Plugins,
        warnings: &[String],
    ) -> Result<Self, Failure> {
        let mut loaded = config.rule_sources().load_with(&plugins.environment());
        let idle = loaded.select(&config.rules);
        if !args.quiet {
            let idle: Vec<_> = idle.iter().map(|selection| selection.complaint()).collect();
            // The falco personality has read the configuration itself.
            let is_falco = args.manner == CompatMode::Falco;
            let warnings = warnings.iter().filter(|_| !is_falco);
            for warning in warnings.chain(&idle) {
                journal::warn(&format!("warning: {warning}"));
            }
        }
        let sink = PatientSink::new(config);
        let options = agent::engine_options(config, None);
        let (engine, _plan) = loaded.compile(&options, sink.clone());
        let sources = plugins.compile(&mut loaded, &options, &sink);
        loaded.usable()?;
        if !args.quiet {
            agent::warn(&loaded, config, &engine);
        }
        Ok(Self {
            sink,
            engine,
            sources,
        })
    }

    fn engines(&self) -> Vec<&Engine> {
        let of_plugins = self.sources.iter().map(|(_, engine)| &**engine);
        std::iter::once(&self.engine).chain(of_plugins).collect()
    }
}

/// Waits for the channels. Returns a message about lost alerts. A reader that closed its pipe lost nothing.
fn finish(dispatcher: &Dispatcher, timeout: Duration) -> Option<String> {
    dispatcher.flush(Instant::now() + timeout);
    let lost = dispatcher
        .counters()
        .channels
        .into_iter()
        .filter_map(|channel| {
            let lost = channel.lost();
            let is_whole = lost == 0 && channel.pending == 0;
            if is_whole || (channel.channel == "stdout" && terminal::has_no_reader()) {
                return None;
            }
            Some(format!(
                "{}: {lost} alerts lost, {} not delivered",
                channel.channel, channel.pending
            ))
        });
    let lost: Vec<String> = lost.collect();
    dispatcher.close(timeout);
    (!lost.is_empty()).then(|| format!("cannot deliver all alerts: {}", lost.join("; ")))
}
