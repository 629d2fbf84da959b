//! Prepares an agent in each start mode.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi::constant::O_CLOEXEC;
use anyhow::Context;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use enforce::{Confinement, DeferredConfinement, LoadedPolicy, Target};
use event::EngineKind;
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::seccomp::Profile;
use seccomp::{Denials, FilterProgram};
use supervisor::AgentPlan;
use supervisor::handover_state::{self, PolicyInForce, PolicyRecord};

use crate::blueprint::{InForce, Origin, blueprint};
use crate::bundle_policies::{self, PolicyTaker};
use crate::filter_cache::{CachedFilter, Key, Sources};
use crate::first::InitProcessPolicy;
use crate::guard::DenialReporter;
use crate::services::{AgentConfig, Rules, RuntimeContainer};
use crate::settings::{compile, configuration, engine_options, verify_options};
use crate::sink::DeferredSink;
use crate::spec::{AgentSpec, StartMode};
use crate::{confine, host, journal, program};

/// Prepares an agent. `handover` is what the first agent left for an agent that takes over.
pub(super) fn prepare(
    spec: AgentSpec,
    engine: EngineKind,
    handover: Option<&[u8]>,
) -> Result<AgentPlan, Failure> {
    match spec.mode.clone() {
        StartMode::Command | StartMode::Learn => own(spec, engine, handover),
        StartMode::Container { sessions, .. } => {
            let prepared = own(spec, engine, handover)?;
            Ok(match sessions.filter(|_| handover.is_none()) {
                None => prepared,
                Some(folder) => leaving_filter(prepared, folder),
            })
        }
        StartMode::ContainerOfHost { agents, .. } => of_host(spec, &agents, engine, handover),
        StartMode::Session { agent, .. } => session(spec, &agent, engine, handover),
        StartMode::Host { .. } => Err(Failure::new(
            Exit::Internal,
            "cannot run a command with the specification of a host agent",
        )
        .help("`agent` is an internal verb")),
    }
}

/// Adds a step that leaves the filter to exec sessions, which can start once the command, which
/// creates the container, has ended.
fn leaving_filter(prepared: AgentPlan, folder: PathBuf) -> AgentPlan {
    let kept = CachedFilter {
        program: prepared.program.clone(),
        handover: prepared.handover.clone(),
    };
    let start = prepared.start;
    AgentPlan {
        start: Box::new(move |listening, meanwhile| {
            // Without the filter, each session reports that it has an agent of its own.
            if let Err(error) = kept.leave_in(&folder) {
                journal::warn(&format!(
                    "cannot leave the filter to exec sessions: {error}"
                ));
            }
            start(listening, meanwhile)
        }),
        ..prepared
    }
}

/// Prepares the handover of an exec session to the agent of its container.
fn session(
    spec: AgentSpec,
    folder: &Path,
    engine: EngineKind,
    handover: Option<&[u8]>,
) -> Result<AgentPlan, Failure> {
    let command = program::command(&spec.command, None, handover.is_some())?;
    let container = their_container(&spec).ok_or_else(|| {
        Failure::new(Exit::Internal, "cannot watch a session of no container")
            .help("`agent` is an internal verb")
    })?;
    let alone = move |handover: Option<Vec<u8>>| own(spec, engine, handover.as_deref());
    host::prepare_session(command, folder, container, handover, alone)
}

/// Prepares the handover of a container to the host agent.
fn of_host(
    spec: AgentSpec,
    folder: &Path,
    engine: EngineKind,
    handover: Option<&[u8]>,
) -> Result<AgentPlan, Failure> {
    let command = program::command(&spec.command, None, handover.is_some())?;
    let enforced = Enforced::prepare(&spec, engine, handover)?;
    let restricts_first = enforced.elsewhere.is_some();
    let cache = Cache::open(&spec, &enforced, handover)?;
    let kept = match handover {
        Some(handover) => CachedFilter {
            program: installed_already(&spec, engine)?,
            handover: handover.to_vec(),
        },
        None => kept_or_made(&spec, engine, cache.as_ref(), &enforced)?,
    };
    let rules = cache.and_then(|cache| cache.key).map(|key| key.rules);
    let confinement = enforced.first.and_then(|first| first.kept);
    let container = their_container(&spec);
    let container = container.expect("this mode has a container");
    let errand = host::Errand::of_container(
        folder,
        &spec,
        kept.handover.clone(),
        container,
        rules,
        confinement,
    );
    let errand = errand.map_err(|cause| {
        let message = format!("cannot find the host agent: {cause}");
        Failure::new(Exit::Unsupported, message).help("use --agent container")
    })?;
    Ok(AgentPlan {
        command,
        program: kept.program,
        confinement: None,
        restricts_first,
        handover: kept.handover,
        start: Box::new(move |listening, meanwhile| errand.start(listening, meanwhile)),
    })
}

/// Returns a filter without rules, for an agent that takes over: the filter is installed, and
/// another agent evaluates.
fn installed_already(spec: &AgentSpec, engine: EngineKind) -> Result<FilterProgram, Failure> {
    compile(
        &event::Plan::default(),
        &Profile::default(),
        engine,
        Denials::InKernel,
        &configuration(&spec.detection, &spec.interception)?.0,
    )
}

/// Returns the filter of the rules, for an agent that does not evaluate them itself.
fn kept_or_made(
    spec: &AgentSpec,
    engine: EngineKind,
    cache: Option<&Cache>,
    enforced: &Enforced,
) -> Result<CachedFilter, Failure> {
    if let Some(kept) = cache.and_then(Cache::look_up) {
        return Ok(kept);
    }
    let read;
    let sources = match cache {
        Some(cache) => &cache.sources,
        None => {
            read = Sources::read(configuration(&spec.detection, &spec.interception)?.0);
            &read
        }
    };
    let made = filter_alone(sources, enforced, engine)?;
    if let Some((cache, key)) = cache.and_then(|cache| Some((cache, cache.key.as_ref()?))) {
        key.keep(&cache.folder, &made);
    }
    Ok(made)
}

fn filter_alone(
    sources: &Sources,
    enforced: &Enforced,
    engine: EngineKind,
) -> Result<CachedFilter, Failure> {
    let InForce {
        profile, denials, ..
    } = &enforced.in_force;
    let config = &sources.config;
    let mut loaded = config::rule_files::load_read(sources.files.clone());
    // The evaluating agent reports selections without effect.
    loaded.select(&config.rules);
    let (sink, verify) = (DeferredSink::default(), verify_options(config, engine));
    let rules = Rules::first(&mut loaded, &engine_options(config, None), &sink, &verify)?;
    // Without a policy the kernel holds none of it, so nothing there is listened to.
    let resident = enforced.resident.clone().unwrap_or_default();
    Ok(CachedFilter {
        program: compile(&rules.installed, profile, engine, *denials, config)?,
        handover: handover_state::encode(
            &rules.installed,
            &PolicyInForce {
                profile: profile.clone(),
                classifier: enforced.classifier.clone().unwrap_or_default(),
                loaded: resident,
                record: enforced.record.clone(),
            },
            enforced.elsewhere.as_ref(),
        ),
    })
}

/// Prepares an agent that watches by itself.
fn own(spec: AgentSpec, engine: EngineKind, handover: Option<&[u8]>) -> Result<AgentPlan, Failure> {
    let guard = spec.confine.guard.as_ref();
    let added = guard.and_then(|guard| guard.environment.as_deref());
    let command = program::command(&spec.command, added, handover.is_some())?;
    let enforced = Enforced::prepare(&spec, engine, handover)?;
    let cache = Cache::open(&spec, &enforced, handover)?;
    match cache.as_ref().and_then(Cache::look_up) {
        Some(kept) => Ok(by_kept_filter(spec, command, engine, enforced, cache, kept)),
        None => by_loaded_rules(spec, command, engine, enforced, cache, handover),
    }
}

/// Lets the command start with a cached filter while rules are loaded.
fn by_kept_filter(
    spec: AgentSpec,
    command: supervisor::Command,
    engine: EngineKind,
    mut enforced: Enforced,
    cache: Option<Cache>,
    kept: CachedFilter,
) -> AgentPlan {
    let CachedFilter { program, handover } = kept;
    let expected = program.clone();
    let restricts_first = enforced.elsewhere.is_some();
    let first = enforced.first.take();
    let make = move || {
        let origin = cache.as_ref().map_or(Origin::CachedFiles, |cache| {
            Origin::Kept(&cache.sources, &cache.folder)
        });
        let mut blueprint = enforced.blueprint(spec, engine, origin)?;
        blueprint.resident = enforced.resident.unwrap_or_default();
        Ok(blueprint)
    };
    AgentPlan {
        command,
        program,
        confinement: None,
        restricts_first,
        handover,
        start: Box::new(move |listening, meanwhile| {
            start_beside(listening, meanwhile, make, first, &expected)
        }),
    }
}

/// Loads rules before the command starts.
fn by_loaded_rules(
    spec: AgentSpec,
    command: supervisor::Command,
    engine: EngineKind,
    mut enforced: Enforced,
    cache: Option<Cache>,
    handover: Option<&[u8]>,
) -> Result<AgentPlan, Failure> {
    let origin = match (handover, &cache) {
        (Some(handover), _) => Origin::Handover(handover),
        (None, Some(cache)) => Origin::Read(&cache.sources, &cache.folder),
        (None, None) => Origin::CachedFiles,
    };
    let mut blueprint = enforced.blueprint(spec, engine, origin)?;
    blueprint.first = enforced.first;
    if let Some(resident) = enforced.resident {
        blueprint.resident = resident;
    }
    let handover = handover_state::encode(
        &blueprint.rules.installed,
        &PolicyInForce {
            profile: blueprint.profile.clone(),
            classifier: blueprint.classifier.clone(),
            loaded: blueprint.resident.clone(),
            record: blueprint.policy_record.clone(),
        },
        enforced.elsewhere.as_ref(),
    );
    let program = blueprint.program.clone();
    if let Some(cache) = cache {
        cache.keep(&program, &handover);
    }
    Ok(AgentPlan {
        command,
        program,
        confinement: enforced.confinement,
        restricts_first: enforced.elsewhere.is_some(),
        handover,
        start: blueprint.into_start(),
    })
}

/// Result of preparing a policy.
struct Enforced {
    /// Confinement that the command applies to itself.
    confinement: Option<Confinement>,
    /// `None` without a policy, and for an agent that takes over, which gets it with its handover.
    classifier: Option<DenialClassifier>,
    /// What is reported about the policy; `None` as for `classifier`.
    record: Option<PolicyRecord>,
    /// Restriction of a container's first program.
    elsewhere: Option<DeferredConfinement>,
    /// Policy in the kernel; `None` if this agent has loaded none.
    resident: Option<LoadedPolicy>,
    in_force: InForce,
    first: Option<InitProcessPolicy>,
}

impl Enforced {
    /// Applies the policy as far as this process must. For an agent that takes over, the handover state
    /// describes what is applied.
    fn prepare(
        spec: &AgentSpec,
        engine: EngineKind,
        handover: Option<&[u8]>,
    ) -> Result<Self, Failure> {
        let place = match spec.mode.container() {
            Some(_) => Target::Elsewhere,
            None => Target::Here,
        };
        let (confinement, taker) = match handover {
            None => bundle_policies::prepare(spec, engine, place)?,
            Some(_) => (None, PolicyTaker::of(spec)),
        };
        let (confinement, record) = confinement.unzip();
        if let Some(confinement) = confinement
            .as_ref()
            .filter(|_| engine != EngineKind::Notify)
        {
            confine::needs_listener(confinement, engine.name())?;
        }
        let classifier = confinement.as_ref().map(|made| made.classifier.clone());
        let elsewhere = match handover {
            None => confinement.as_ref().and_then(Confinement::elsewhere),
            Some(handover) => handover_state::decode_first(handover)?,
        };
        let in_force = InForce::of(spec, confinement.as_ref(), place, taker);
        // An agent that takes over learns it from its handover.
        let resident = confinement.as_ref().map(Confinement::resident);
        let mut first = InitProcessPolicy::of_spec(spec, elsewhere.clone());
        let mut confinement = confinement; // A runtime itself is not restricted.
        if let Some(first) = &mut first {
            first.kept = confinement.take();
        }
        Ok(Self {
            confinement: confinement.filter(|_| place == Target::Here),
            classifier,
            record,
            elsewhere,
            resident,
            in_force,
            first,
        })
    }

    /// Reads rules and configuration, given the prepared policy.
    fn blueprint(
        &mut self,
        spec: AgentSpec,
        engine: EngineKind,
        origin: Origin<'_>,
    ) -> Result<AgentConfig, Failure> {
        let told = their_container(&spec);
        let in_force = std::mem::replace(&mut self.in_force, InForce::nothing("agent"));
        let (detection, interception) = (spec.detection, spec.interception);
        let mut blueprint = blueprint(detection, interception, engine, in_force, origin, told)?;
        blueprint.door = match spec.mode {
            StartMode::Container { sessions, .. } => sessions,
            _ => None,
        };
        blueprint.policy = spec.confine.policy;
        if let Some(guard) = &spec.confine.guard {
            let reporter = DenialReporter::new(guard).map_err(|error| {
                let message = format!("cannot use the descriptor of --report-fd: {error}");
                Failure::new(Exit::BadInput, message).help("open it before: 3>denials.jsonl")
            })?;
            blueprint.guard = Some(Arc::new(reporter));
        }
        blueprint.policy_record = self.record.take().or(blueprint.policy_record);
        if let Some(classifier) = self.classifier.take() {
            blueprint.classifier = classifier;
        }
        Ok(blueprint)
    }
}

/// Rules and configuration, read once, with the cache of compiled filters.
struct Cache {
    folder: PathBuf,
    sources: Sources,
    /// `None` if some input of the filter cannot be read.
    key: Option<Key>,
}

impl Cache {
    /// Opens the cache. Returns `None` if nothing is to be cached.
    fn open(
        spec: &AgentSpec,
        enforced: &Enforced,
        handover: Option<&[u8]>,
    ) -> Result<Option<Self>, Failure> {
        let Enforced {
            in_force,
            elsewhere,
            resident,
            classifier,
            record,
            ..
        } = enforced;
        // An AppArmor profile has a new name each time, which the handover state contains.
        let is_own = elsewhere.as_ref().is_some_and(|made| !made.is_repeatable());
        let plans = spec.mode.container().and_then(|told| told.plans.clone());
        let Some(folder) = plans.filter(|_| handover.is_none() && !is_own) else {
            return Ok(None);
        };
        let (config, _) = configuration(&spec.detection, &spec.interception)?;
        let sources = Sources::read(config);
        let InForce {
            profile, denials, ..
        } = in_force;
        let policy =
            format!("{profile:?} {denials:?} {elsewhere:?} {resident:?} {classifier:?} {record:?}");
        Ok(Some(Self {
            key: Key::new(&sources, &policy),
            folder,
            sources,
        }))
    }

    fn look_up(&self) -> Option<CachedFilter> {
        self.key.as_ref()?.look_up(&self.folder)
    }

    /// Caches the compiled filter.
    fn keep(self, program: &FilterProgram, handover: &[u8]) {
        if let Some(key) = &self.key {
            let kept = CachedFilter {
                program: program.clone(),
                handover: handover.to_vec(),
            };
            key.keep(&self.folder, &kept);
        }
    }
}

fn their_container(spec: &AgentSpec) -> Option<RuntimeContainer> {
    let container = spec.mode.container()?;
    Some(RuntimeContainer {
        told: container::KnownContainer {
            id: container.id.clone(),
            bundle: container.bundle.clone(),
        },
        has_mounts: container.has_mounts,
    })
}

/// Loads the rules while the command, a container runtime, runs. Its calls are evaluated only later.
///
/// Preconditions: the process has one thread, and has one again afterwards.
fn start_beside(
    mut listening: supervisor::AgentStart,
    meanwhile: Option<supervisor::RuntimeWait<'_>>,
    make: impl FnOnce() -> Result<AgentConfig, Failure> + Send,
    first: Option<InitProcessPolicy>,
    expected: &FilterProgram,
) -> anyhow::Result<Box<dyn supervisor::Services>> {
    let answering = crate::answering::let_work(&listening)?;
    let (is_made, made) = sys::fd::pipe(O_CLOEXEC.i32()).context("cannot let the runtime work")?;
    let blueprint = std::thread::scope(|scope| {
        let loader = scope.spawn(move || {
            let blueprint = make();
            // Closing it notifies the other thread.
            drop(made);
            blueprint
        });
        if let Some(meanwhile) = meanwhile {
            // Also when the rules are loaded: answering everything is cheaper than evaluating it.
            meanwhile(&[is_made.as_fd(), answering.held()]);
        }
        loader.join()
    });
    // The panic hook has reported the reason.
    let blueprint = blueprint.map_err(|_panic| anyhow::anyhow!("cannot load the rules"))?;
    let mut blueprint =
        blueprint.map_err(|failure| anyhow::anyhow!("{}", failure.render().trim()))?;
    blueprint.first = first;
    if blueprint.program != *expected {
        anyhow::bail!("cannot watch: the rules compile to another filter than the cached one");
    }
    listening.held = Some(supervisor::HeldRuntimeCalls::Answered(answering));
    Ok(Box::new(blueprint.start(listening)?))
}
