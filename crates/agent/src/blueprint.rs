//! Reads configuration and rules, and opens the files of an agent.

use std::path::Path;
use std::time::Duration;

use capture::notify::VerifyOptions;
use config::rule_files;
use config::{CompatMode, Config};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use enforce::{Confinement, Target};
use event::EngineKind;
use outputs::StatsFile;
use policy::compile::seccomp::Profile;
use rules::EngineOptions;
use seccomp::{Denials, FilterProgram};
use serve::grpc::GrpcChannel;
use supervisor::handover_state::{self, PolicyInForce};

use crate::filter_cache::{KeptRules, Sources};
use crate::options::{Detection, Interception, Refusal};
use crate::pidfile::Pidfile;
use crate::recording::Recordings;
use crate::reload::ConfigSource;
use crate::servers::{self, Servers};
use crate::services::{AgentConfig, Rules, RuntimeContainer};
use crate::settings::{
    compile, configuration, engine_options, outputs, record_options, verify_options, warn,
};
use crate::sink::DeferredSink;
use crate::spec::AgentSpec;
use crate::{channels, digest, engines, journal};

/// The policy's decisions on calls, and who refuses denied calls.
pub(super) struct InForce {
    pub(super) profile: Profile,
    pub(super) denials: Denials,
}

impl InForce {
    /// The state without a policy.
    pub(super) fn nothing() -> Self {
        Self {
            profile: Profile::default(),
            denials: Denials::InKernel,
        }
    }

    /// Returns the state for the policy of a command or container, if there is one. An agent that
    /// learns a policy gets every call reported.
    pub(super) fn of(spec: &AgentSpec, confinement: Option<&Confinement>, place: Target) -> Self {
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
        }
    }
}

/// Source of an agent's rules.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    Files,
    /// The rule files, and the handover state that the first agent left to its successors.
    Handover(&'a [u8]),
    /// Files that have already been read.
    Read(&'a Sources),
    /// Files that have already been read, unless their compiled rules are cached. Warnings about
    /// cached rules are not repeated.
    Kept(&'a KeptRules),
}

impl<'a> Origin<'a> {
    fn sources(self) -> Option<&'a Sources> {
        match self {
            Self::Files | Self::Handover(_) => None,
            Self::Read(sources) => Some(sources),
            Self::Kept(kept) => Some(&kept.sources),
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
    let sink = DeferredSink::default();
    let options = record_options(&detection);
    let (recordings, unstarted) = Recordings::open(options.as_ref(), &config.capture, is_resumed)?;
    let recorder = recordings.recorder();
    let verify = verify_options(&config, engine);
    let options = engine_options(&config, recorder.clone());
    let judging = Judging::new(options, &sink, &verify, engine);
    let made = judging.load(origin, &config, &detection, in_force)?;
    let servers = Servers::open(&config, is_resumed, GrpcChannel::default())?;
    let channel = servers::channel(&config, &servers.alerts());
    Ok(AgentConfig {
        verify,
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
        sink,
        recorder,
        recordings: unstarted,
        outputs: Some(outputs(&config, detection.quiet, channel)?),
        servers,
        stats: stats_file(&detection, is_resumed)?,
        stats_interval: Duration::from_millis(detection.stats_interval),
        pidfile: pidfile(&detection, is_resumed)?,
        container_id: detection.container_id.clone(),
        told,
        rules: made.rules,
        refuse_non_dumpable: interception.refuse.contains(&Refusal::NonDumpable),
        tuning: tuning(&detection, &config),
        drops: config.drops.clone(),
        manner: detection.manner,
        output_timeout: channels::timeout(&config),
        quiet: detection.quiet,
        has_rules: !detection.without_rules,
        settings: config,
        config: source_of_config(detection, interception),
    })
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
    let open = if is_resumed {
        StatsFile::append
    } else {
        StatsFile::create
    };
    if detection.stats.as_deref() == Some(Path::new("-")) {
        let message = "cannot write stats to `-`: standard output is not supported";
        return Err(Failure::new(Exit::BadInput, message).help(
            "use -s /dev/stdout for the standard output, or -s ./- for a file of that name",
        ));
    }
    let stats = detection.stats.as_deref().map(open).transpose();
    stats.map_err(|error| {
        Failure::from_error(Exit::BadInput, &error).help("name a writable file after -s")
    })
}

/// Options for compiling rules.
struct Judging<'a> {
    options: EngineOptions,
    sink: &'a DeferredSink,
    verify: &'a VerifyOptions,
    engine: EngineKind,
}

/// Loaded rules.
struct Loaded {
    rules: Rules,
    program: FilterProgram,
    in_force: PolicyInForce,
    /// Digest of the rules.
    digest: String,
}

impl<'a> Judging<'a> {
    fn new(
        options: EngineOptions,
        sink: &'a DeferredSink,
        verify: &'a VerifyOptions,
        engine: EngineKind,
    ) -> Self {
        Self {
            options,
            sink,
            verify,
            engine,
        }
    }

    /// Returns the rules and their filter, from the cache if possible.
    fn load(
        &self,
        origin: Origin<'_>,
        config: &Config,
        detection: &Detection,
        in_force: InForce,
    ) -> Result<Loaded, Failure> {
        let InForce { profile, denials } = in_force;
        let own = |profile| PolicyInForce {
            profile,
            ..PolicyInForce::default()
        };
        if let Origin::Kept(kept) = origin
            && let Some((evaluator, plan)) = kept.read(&self.options, self.sink)
        {
            return Ok(Loaded {
                rules: Rules::of(evaluator, plan, self.verify),
                program: kept.program.clone(),
                in_force: own(profile),
                digest: digest::of_rules(&kept.sources.files, &config.rules),
            });
        }
        let (rules, left, digest) = self.rules(origin, config, detection)?;
        let in_force = left.unwrap_or_else(|| own(profile));
        let profile = &in_force.profile;
        let program = compile(&rules.installed, profile, self.engine, denials, config)?;
        if let Origin::Kept(kept) = origin
            && kept.program == program
        {
            kept.keep(&rules.evaluator, &rules.plan);
        }
        Ok(Loaded {
            rules,
            program,
            in_force,
            digest,
        })
    }

    /// Loads rules. With a handover state, also returns its policy. Last comes the digest of the rules.
    fn rules(
        &self,
        origin: Origin<'_>,
        config: &Config,
        detection: &Detection,
    ) -> Result<(Rules, Option<PolicyInForce>, String), Failure> {
        let mut loaded = match origin.sources() {
            Some(sources) => rule_files::load_read(sources.files.clone()),
            None => config.rule_sources().load(),
        };
        let idle = loaded.select(&config.rules);
        if !detection.quiet {
            for selection in idle {
                journal::warn(&format!("warning: {}", selection.complaint()));
            }
        }
        let (rules, left) = match origin {
            Origin::Handover(handover) => {
                let (installed, in_force) = handover_state::decode(handover)?;
                let rules = Rules::later(&mut loaded, &self.options, self.sink, installed)?;
                (rules, Some(in_force))
            }
            Origin::Files | Origin::Read(_) | Origin::Kept(_) => (
                Rules::first(&mut loaded, &self.options, self.sink, self.verify)?,
                None,
            ),
        };
        if !detection.quiet {
            warn(&loaded);
            let wants_rules = !detection.without_rules && self.options.recorder.is_none();
            if left.is_none() && wants_rules && rules.evaluator.matches().next().is_none() {
                journal::warn(
                    "warning: no rule is enabled, so there will be no alerts; check -r and the configuration \
                     keys rules and priority",
                );
            }
        }
        let digest = digest::of_rules(&loaded.files, &config.rules);
        Ok((rules, left, digest))
    }
}
