//! Reads configuration and rules, and opens the files of an agent.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use capture::notify::VerifyOptions;
use config::rule_files::{self, RuleFile};
use config::{CompatMode, Config};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use enforce::{Confinement, Target};
use event::EngineKind;
use outputs::{Prepared, StatsError, StatsFile};
use policy::compile::seccomp::Profile;
use rules::{Engine, EngineOptions, Recorder};
use seccomp::{Denials, FilterProgram};
use serve::grpc::GrpcChannel;
use supervisor::handover_state::{self, PolicyInForce};

use crate::bundle_policies::PolicyTaker;
use crate::bundles::{BundleRecord, ConfigWith};
use crate::filter_cache::Sources;
use crate::observer::AlertObserver;
use crate::options::{Detection, Interception, Refusal};
use crate::pidfile::Pidfile;
use crate::plugins::Plugins;
use crate::recording::{
    CollectorCapture, Recordings, ResponseCapture, UnstartedRecording, for_responses,
};
use crate::reload::ConfigSource;
use crate::rules_cache::{self, RulesCache};
use crate::servers::{self, Servers};
use crate::services::{AgentConfig, Rules, RuntimeContainer};
use crate::settings::{
    compile, configuration, configuration_with, engine_options, level_warnings, outputs,
    record_options, summary_of_warnings, unsent_forensic, verify_options,
};
use crate::sink::DeferredSink;
use crate::spec::AgentSpec;
use crate::{channels, digest, engines, journal, responses};

/// The policy's decisions on calls, and who refuses denied calls.
pub(super) struct InForce {
    pub(super) profile: Profile,
    pub(super) denials: Denials,
    /// How the command takes policies of bundles.
    pub(super) taker: PolicyTaker,
}

impl InForce {
    /// The state without a policy. `verb` is that of a command that takes none from bundles.
    pub(super) fn nothing(verb: &'static str) -> Self {
        Self {
            profile: Profile::default(),
            denials: Denials::InKernel,
            taker: PolicyTaker::Not(verb),
        }
    }

    /// Returns the state for the policy of a command or container, if there is one. An agent that
    /// learns a policy gets every call reported.
    pub(super) fn of(
        spec: &AgentSpec,
        confinement: Option<&Confinement>,
        place: Target,
        taker: PolicyTaker,
    ) -> Self {
        let profile = match &spec.detection.learner {
            Some(_) => Some(policy::Model::recorder()),
            None => confinement.map(|made| made.calls.clone()),
        };
        Self {
            // Without a policy no call is denied.
            profile: profile.unwrap_or_default(),
            denials: match place {
                Target::Here => Denials::InKernel,
                Target::Elsewhere => Denials::Held,
            },
            taker,
        }
    }
}

/// Source of an agent's rules.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    /// The rule files. An agent that starts once need not start quickly, and what it detects must not depend on who
    /// can write compiled rules.
    Files,
    /// The rule files of a command, unless their compiled rules are cached.
    CachedFiles,
    /// The rule files, and the handover state that the first agent left to its successors.
    Handover(&'a [u8]),
    /// Files that have already been read, and the directory of compiled rules.
    Read(&'a Sources, &'a Path),
    /// The files of a cached filter. Warnings about cached rules are not repeated for each container.
    Kept(&'a Sources, &'a Path),
}

impl<'a> Origin<'a> {
    fn sources(self) -> Option<&'a Sources> {
        match self {
            Self::Files | Self::CachedFiles | Self::Handover(_) => None,
            Self::Read(sources, _) | Self::Kept(sources, _) => Some(sources),
        }
    }
}

/// Reads rules and configuration and opens files. `told` is the container named in the
/// specification.
pub(super) fn blueprint(
    detection: Detection,
    interception: Interception,
    engine: EngineKind,
    in_force: InForce,
    origin: Origin<'_>,
    told: Option<RuntimeContainer>,
) -> Result<AgentConfig, Failure> {
    let is_resumed = matches!(origin, Origin::Handover(_));
    let config = settings(&detection, &interception, origin)?;
    let read = read(&detection, &config, engine, in_force, origin, told.as_ref())?;
    let (made, taker) = (read.made, read.taker);
    let servers = Servers::open(&config, is_resumed, GrpcChannel::default())?;
    Ok(AgentConfig {
        verify: read.verify,
        engine,
        program: made.program,
        entered: filter_of_entering(told.as_ref(), &made.rules, &config)?,
        profile: made.in_force.profile,
        classifier: made.in_force.classifier,
        policy_record: made.in_force.record,
        rules_digest: made.digest,
        first: None,
        later: None,
        door: None,
        resident: made.in_force.loaded,
        policy: None,
        guard: None,
        learner: detection.learner.clone(),
        sink: read.sink,
        responses: made.responses,
        recorder: read.recorder,
        recordings: read.recordings,
        for_collector: read.for_collector,
        outputs: Some(prepared_outputs(&config, &detection, &servers)?),
        servers,
        stats: stats_file(&detection, is_resumed)?,
        stats_interval: Duration::from_millis(detection.stats_interval),
        pidfile: pidfile(&detection, is_resumed)?,
        container_id: detection.container_id.clone(),
        containers: detection.containers.clone(),
        observer: detection.observer.clone(),
        told,
        rules: made.rules,
        plugins: Some((read.plugins, made.sources)),
        refuse_non_dumpable: interception.refuse.contains(&Refusal::NonDumpable),
        tuning: tuning(&detection, &config),
        drops: config.drops.clone(),
        manner: detection.manner,
        output_timeout: channels::timeout(&config),
        quiet: detection.quiet,
        has_rules: !detection.without_rules,
        bundle: bundle_record(&config, &detection, &interception, taker.clone()),
        taker,
        settings: config,
        config_with: source_with_bundle(detection.clone(), interception.clone()),
        config: source_of_config(detection, interception),
    })
}

/// What the files of an agent give.
struct Read {
    sink: DeferredSink,
    verify: VerifyOptions,
    recorder: Option<Arc<dyn Recorder>>,
    recordings: Vec<UnstartedRecording>,
    for_collector: Option<Arc<CollectorCapture>>,
    plugins: Plugins,
    made: Loaded,
    taker: PolicyTaker,
}

/// Reads rules, opens recordings and asks plugins what they are.
fn read(
    detection: &Detection,
    config: &Config,
    engine: EngineKind,
    in_force: InForce,
    origin: Origin<'_>,
    told: Option<&RuntimeContainer>,
) -> Result<Read, Failure> {
    let is_resumed = matches!(origin, Origin::Handover(_));
    let sink = DeferredSink::default();
    let for_collector = CollectorCapture::of(config);
    let (recorder, recordings) = recordings(detection, config, is_resumed, for_collector.clone())?;
    let (recorder, capture) = for_responses(config, recorder);
    let verify = verify_options(config, engine);
    let options = engine_options(config, recorder.clone());
    let is_watch = matches!(origin, Origin::Files) && told.is_none();
    let plugins = Plugins::of_agent(config, engine, is_watch)?;
    let taker = in_force.taker.clone();
    let judging = Judging {
        options,
        records_files: !recordings.is_empty(),
        sink: &sink,
        verify: &verify,
        capture,
        engine,
        plugins: &plugins,
    };
    let made = judging.load(origin, config, detection, in_force)?;
    let taker = match is_resumed {
        true => taker.after_handover(made.in_force.record.as_ref(), config)?,
        false => taker,
    };
    Ok(Read {
        sink,
        verify,
        recorder,
        recordings,
        for_collector,
        plugins,
        made,
        taker,
    })
}

/// Opens the outputs, those of servers included.
fn prepared_outputs(
    config: &Config,
    detection: &Detection,
    servers: &Servers,
) -> Result<Prepared, Failure> {
    let further = servers::channel(config, &servers.alerts());
    let observer = detection.observer.as_ref().map(AlertObserver::channel);
    let further = further.into_iter().chain(observer);
    outputs(config, detection.quiet, further)
}

/// What records for the rules, and recordings that are not started.
type OpenedRecordings = (Option<Arc<dyn Recorder>>, Vec<UnstartedRecording>);

/// Opens the recordings.
fn recordings(
    detection: &Detection,
    config: &Config,
    is_resumed: bool,
    for_collector: Option<Arc<CollectorCapture>>,
) -> Result<OpenedRecordings, Failure> {
    let options = record_options(detection);
    let (recordings, unstarted) = Recordings::open(options.as_ref(), &config.capture, is_resumed)?;
    Ok((recordings.also(for_collector).recorder(), unstarted))
}

/// Returns the configuration; reads it if needed. Opens the journal accordingly.
fn settings(
    detection: &Detection,
    interception: &Interception,
    origin: Origin<'_>,
) -> Result<Config, Failure> {
    let (config, warnings) = match origin.sources() {
        Some(sources) => (sources.config.clone(), Vec::new()),
        None => configuration(detection, interception)?,
    };
    journal::open(config.log, detection.manner, config.time_format_iso_8601);
    if !detection.quiet && detection.manner != CompatMode::Falco {
        // The `falco` command has read the configuration itself.
        for warning in warnings {
            journal::warn(&format!("warning: {warning}"));
        }
    }
    Ok(config)
}

/// Compiles the filter for processes that enter, which do not belong to the command.
fn filter_of_entering(
    told: Option<&RuntimeContainer>,
    rules: &Rules,
    config: &Config,
) -> Result<Option<FilterProgram>, Failure> {
    if told.is_some() {
        // Processes enter through the runtime, and are watched from there.
        return Ok(None);
    }
    let (no_policy, engine) = (Profile::default(), EngineKind::Ptrace);
    let installed = &rules.installed;
    compile(installed, &no_policy, engine, Denials::InKernel, config).map(Some)
}

/// Returns a closure that reads the configuration again.
fn source_of_config(detection: Detection, interception: Interception) -> ConfigSource {
    Box::new(move || configuration(&detection, &interception).map(|(config, _)| config))
}

/// Returns a closure that reads the configuration with what a bundle says.
fn source_with_bundle(detection: Detection, interception: Interception) -> ConfigWith {
    Box::new(move |bundle| {
        configuration_with(&detection, &interception, Some(bundle)).map(|(config, _)| config)
    })
}

fn bundle_record(
    config: &Config,
    detection: &Detection,
    interception: &Interception,
    taker: PolicyTaker,
) -> BundleRecord {
    let with = source_with_bundle(detection.clone(), interception.clone());
    BundleRecord::of(config, with, taker)
}

fn tuning(detection: &Detection, config: &Config) -> engines::Tuning {
    engines::Tuning {
        filters: !detection.unfiltered,
        ring_kib: detection.ring_kib.unwrap_or(config.engine.ring_kib()),
        hooks: detection.hooks,
        rule_threads: detection.rule_threads,
    }
}

fn pidfile(detection: &Detection, is_resumed: bool) -> Result<Option<Pidfile>, Failure> {
    Ok(match detection.pidfile.as_deref() {
        None => None,
        Some(path) if is_resumed => Pidfile::take_over(path),
        Some(path) => Some(Pidfile::create(path)?),
    })
}

fn stats_file(detection: &Detection, is_resumed: bool) -> Result<Option<StatsFile>, Failure> {
    let path = detection.stats.as_deref();
    if path == Some(Path::new("-")) {
        let message = "cannot write stats to `-`: standard output is not supported";
        return Err(Failure::new(Exit::BadInput, message).help(
            "use -s /dev/stdout for the standard output, or -s ./- for a file of that name",
        ));
    }
    let failure = |error: &StatsError| Failure::from_error(Exit::BadInput, error);
    if is_resumed {
        // The command runs, and would run unwatched.
        let complain = |error: &StatsError| journal::warn(failure(error).message());
        return Ok(path.and_then(|path| StatsFile::take_over(path, complain)));
    }
    let stats = path.map(StatsFile::create).transpose();
    stats.map_err(|error| {
        failure(&error).help("name a writable file after -s; a FIFO needs a reader")
    })
}

/// Options for compiling rules.
struct Judging<'a> {
    options: EngineOptions,
    /// Events go to files; what a collector may ask for does not count.
    records_files: bool,
    sink: &'a DeferredSink,
    verify: &'a VerifyOptions,
    /// Records events for responses.
    capture: Option<Arc<ResponseCapture>>,
    engine: EngineKind,
    plugins: &'a Plugins,
}

/// Rules, those of the sources of plugins, and the policy of a handover state.
type LoadedRules = (Rules, Vec<(String, Arc<Engine>)>, Option<PolicyInForce>);

/// Loaded rules.
struct Loaded {
    rules: Rules,
    /// Rules of the sources of plugins.
    sources: Vec<(String, Arc<Engine>)>,
    program: FilterProgram,
    in_force: PolicyInForce,
    /// Responses to the alerts of the rules; `None` without response files.
    responses: Option<response::Prepared>,
    /// Digest of the rules.
    digest: String,
}

impl Judging<'_> {
    /// Returns the rules and their filter, from the cache if possible.
    fn load(
        &self,
        origin: Origin<'_>,
        config: &Config,
        detection: &Detection,
        in_force: InForce,
    ) -> Result<Loaded, Failure> {
        let InForce {
            profile, denials, ..
        } = in_force;
        let own = |profile| PolicyInForce {
            profile,
            ..PolicyInForce::default()
        };
        let files = match origin.sources() {
            Some(sources) => sources.files.clone(),
            None => config.rule_sources().read(),
        };
        let digest = digest::of_rules(&files, &config.rules);
        let (rules, sources, left) = self.rules(origin, files, config, detection)?;
        // Not repeated for each container, nor by successors. Recordings take forensic matches, too.
        let is_later = matches!(origin, Origin::Kept(..) | Origin::Handover(_));
        if !detection.quiet && !is_later && !self.records_files {
            let warning = unsent_forensic(config, &rules.evaluator);
            warning.iter().for_each(|warning| journal::warn(warning));
        }
        let is_silent = detection.quiet || is_later;
        let responses = {
            let means = (self.engine, self.capture.clone());
            responses::prepare(config, means, &rules.evaluator, is_silent)?
        };
        let in_force = left.unwrap_or_else(|| own(profile));
        let profile = &in_force.profile;
        let program = compile(&rules.installed, profile, self.engine, denials, config)?;
        Ok(Loaded {
            rules,
            sources,
            program,
            in_force,
            responses,
            digest,
        })
    }

    /// Loads rules, from the cache if possible. With a handover state, also returns its policy.
    fn rules(
        &self,
        origin: Origin<'_>,
        files: Vec<RuleFile>,
        config: &Config,
        detection: &Detection,
    ) -> Result<LoadedRules, Failure> {
        if let Origin::Handover(handover) = origin {
            let (installed, in_force) = handover_state::decode(handover)?;
            let mut loaded = rule_files::load_read(files);
            let mut warnings = idle_selections(&mut loaded, config);
            let rules = Rules::later(&mut loaded, &self.options, self.sink, installed)?;
            warnings.extend(summary_of_warnings(&loaded));
            self.report(&warnings, &rules, detection, true);
            return Ok((rules, Vec::new(), Some(in_force)));
        }
        let folder = match origin {
            Origin::Kept(_, folder) | Origin::Read(_, folder) => Some(folder.to_owned()),
            Origin::CachedFiles => rules_cache::folder(),
            Origin::Files | Origin::Handover(_) => None,
        };
        let cache =
            folder.and_then(|folder| RulesCache::of(&folder, &files, config, &self.options));
        let cached = cache
            .as_ref()
            .and_then(|cache| cache.read(&self.options, self.sink));
        if let Some(cached) = cached {
            let rules = Rules::of(cached.evaluator, cached.plan, self.verify);
            if !matches!(origin, Origin::Kept(..)) {
                self.report(&cached.warnings, &rules, detection, false);
            }
            return Ok((rules, Vec::new(), None));
        }
        let mut loaded = rule_files::load_read_with(files, &self.plugins.environment());
        let mut warnings = idle_selections(&mut loaded, config);
        warnings.extend(level_warnings(&loaded, config));
        let rules = Rules::first(&mut loaded, &self.options, self.sink, self.verify)?;
        let sources = self.plugins.compile(&mut loaded, &self.options, self.sink);
        loaded.usable()?;
        warnings.extend(summary_of_warnings(&loaded));
        if let Some(cache) = cache {
            cache.keep(&rules.evaluator, &rules.plan, &warnings);
        }
        self.report(&warnings, &rules, detection, false);
        Ok((rules, sources, None))
    }

    /// Prints the warnings of loading the rules, and warns if there are none.
    fn report(&self, warnings: &[String], rules: &Rules, detection: &Detection, is_resumed: bool) {
        if detection.quiet {
            return;
        }
        for warning in warnings {
            journal::warn(warning);
        }
        let wants_rules = !detection.without_rules && !self.records_files;
        let has_sources = !self.plugins.environment().sources.is_empty();
        let has_none = rules.evaluator.matches().next().is_none() && !has_sources;
        if !is_resumed && wants_rules && has_none {
            journal::warn(
                "warning: no rule is enabled, so there will be no alerts; check -r and the configuration \
                 keys rules and priority",
            );
        }
    }
}

/// Enables and disables rules, and returns warnings about selections that concern none.
fn idle_selections(loaded: &mut rule_files::Loaded, config: &Config) -> Vec<String> {
    let idle = loaded.select(&config.rules);
    idle.iter()
        .map(|selection| format!("warning: {}", selection.complaint()))
        .collect()
}
