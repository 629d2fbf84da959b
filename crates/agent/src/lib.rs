//! What a running detector or enforcer is: engine, rules, outputs, servers, metrics and recordings.
//!
//! Everything that can fail and needs no thread happens in the agent before the command is forked:
//! rules, configuration, files, the filter. What needs threads is made after that, by the closure
//! that [`supervisor`] calls then. An agent that takes over from another does the same, but for the
//! command.

mod announcer;
mod channels;
pub mod confine;
mod denials;
mod drops;
mod early;
mod engines;
mod failure;
mod first;
mod host;
pub mod journal;
pub mod learn;
mod mechanism;
mod metrics;
pub mod options;
mod orders;
pub mod pidfile;
pub mod policy_files;
pub mod program;
mod recording;
mod reload;
mod reports;
mod servers;
mod services;
mod settings;
pub mod sink;
mod status_line;
mod subscribers;
pub mod totals;
pub mod version;
mod violations;
mod watched_files;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use capture::notify::{AnswerThread, VerifyOptions};
use config::rule_files;
use config::{CompatMode, Config};
use container::KnownContainer;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use enforce::{Confinement, DeferredConfinement, LoadedPolicy, Target};
use outputs::StatsFile;
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::seccomp::Profile;
use rules::EngineOptions;
use seccomp::{Denials, FilterProgram};
use serve::grpc::GrpcChannel;
use supervisor::handover_state;
use supervisor::{Mechanism, OnAgentDeath, Policy};

use self::early::{Kept, KeptRules, Key, Sources};
use self::failure::failure;
pub use self::failure::not_executed;
use self::first::First;
pub use self::first::RULESET;
use self::mechanism::{can_be_promised, mechanism, without_listener};
use self::pidfile::Pidfile;
use self::servers::Servers;
use self::services::{Blueprint, Rules, TheirContainer};
use self::settings::{compile, configuration, record_options, verify_options};
pub use self::settings::{engine_options, outputs, unknown_machine, warn};
use self::sink::DeferredSink;
use crate::options::{Detection, Interception, Refusal, Run};
use crate::recording::Recordings;

/// Runs a command under the watch. Where `args` says so, takes over from another agent or becomes the agent of a host.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// If options contradict each other, what the agent needs cannot be read or opened, or the command does not run.
pub fn execute(args: Run, stay: supervisor::Stay) -> Outcome {
    if let Some(base) = args.host_agent.clone() {
        return host::execute(args, &base);
    }
    let words = stay.words.clone();
    let mechanism = mechanism(&args)?;
    can_be_promised(&args, mechanism)?;
    let policy = policy(&args);
    let order = args.resume.clone();
    let is_in_place = mechanism == Mechanism::Listener && stay.tenure.ends_at_once();
    if order.is_none() && is_in_place && !supervisor::sees_descendants_only() {
        let prepared = prepare(args, &words, mechanism, None)?;
        let Err(error) = supervisor::run_in_place(policy, stay, prepared);
        return Err(failure(error));
    }
    let name = program::name(&args.command).to_owned();
    let pidfile = args.detection.pidfile.clone();
    let prepare: supervisor::Prepare = Box::new(move |memo| prepare(args, &words, mechanism, memo));
    let status = match order {
        None => {
            let status = supervisor::run(&name, mechanism, policy, stay, prepare);
            // An agent that was killed has not.
            pidfile
                .as_deref()
                .inspect(|path| Pidfile::remove_stale(path));
            status
        }
        Some(order) => supervisor::resume(&order, prepare),
    };
    match status {
        // The agent has said why.
        Err(supervisor::Failure::Refused(status)) => Ok(exit(status)),
        status => status.map(exit).map_err(failure),
    }
}

/// Does in a child what may become a command there; answers with how that ended.
pub fn execute_below(act: impl FnOnce() -> Exit) -> Outcome {
    let status = supervisor::run_below(|| i32::from(act().code()));
    status.map(exit).map_err(failure)
}

fn policy(args: &Run) -> Policy {
    Policy {
        on_agent_death: match args.on_agent_death {
            config::OnAgentDeath::Continue => OnAgentDeath::Continue,
            config::OnAgentDeath::Deny => OnAgentDeath::Deny,
            config::OnAgentDeath::Kill => OnAgentDeath::Kill,
        },
        limit: Duration::from_millis(args.agent_timeout),
    }
}

fn prepare(
    args: Run,
    words: &[OsString],
    mechanism: Mechanism,
    memo: Option<&[u8]>,
) -> Result<supervisor::Prepared, Failure> {
    if let Some((folder, container)) = args.told_session.clone().zip(their_container(&args)) {
        let command = program::command(&args.command, memo.is_some())?;
        let words = words.to_vec();
        let alone =
            move |memo: Option<Vec<u8>>| prepare_own(args, &words, mechanism, memo.as_deref());
        return host::prepare_session(command, &folder, container, memo, alone);
    }
    let door = args.told_door.clone().filter(|_| memo.is_none());
    let prepared = prepare_own(args, words, mechanism, memo)?;
    Ok(match door {
        None => prepared,
        Some(folder) => leaving_filter(prepared, folder),
    })
}

/// Leaves the filter to exec sessions. They can come when the command, which makes the container, has ended.
fn leaving_filter(prepared: supervisor::Prepared, folder: PathBuf) -> supervisor::Prepared {
    let kept = Kept {
        program: prepared.program.clone(),
        memo: prepared.memo.clone(),
    };
    let start = prepared.start;
    supervisor::Prepared {
        start: Box::new(move |listening, meanwhile| {
            // Without it each session says that it has an agent of its own.
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

fn their_container(args: &Run) -> Option<TheirContainer> {
    let told = args.told_container.clone().zip(args.told_bundle.clone());
    told.map(|(id, bundle)| TheirContainer {
        told: KnownContainer { id, bundle },
        has_mounts: !args.told_host_mounts,
    })
}

/// Readies an agent that is no exec session's, or does its work itself.
fn prepare_own(
    args: Run,
    words: &[OsString],
    mechanism: Mechanism,
    memo: Option<&[u8]>,
) -> Result<supervisor::Prepared, Failure> {
    let command = program::command(&args.command, memo.is_some())?;
    let their_container = their_container(&args);
    let place = match their_container {
        Some(_) => Target::Elsewhere,
        None => Target::Here,
    };
    // What an agent finds in force that takes over, its memo says.
    let confinement = match memo {
        None => args.confine.prepare(args.detection.quiet, place)?,
        Some(_) => None,
    };
    // As the policy is now: nothing is denied by it, and what it denies is the kernel's.
    let witness = match memo {
        // Without a policy nothing is denied.
        None => confinement
            .as_ref()
            .map_or_else(DenialClassifier::default, |made| made.witness.clone()),
        Some(_) => args.confine.witness(place),
    };
    let elsewhere = match memo {
        None => confinement.as_ref().and_then(Confinement::elsewhere),
        Some(memo) => handover_state::decode_first(memo)?,
    };
    let restricts_first = elsewhere.is_some();
    let mut first = first_program(elsewhere.clone(), &args.confine, their_container.as_ref());
    if let (Some(confinement), Some(engine)) = (&confinement, without_listener(mechanism)) {
        confine::needs_listener(confinement, engine)?;
    }
    let profile = match &args.detection.learner {
        Some(_) => Some(policy::Model::recorder()),
        None => confinement.as_ref().map(|made| made.calls.clone()),
    };
    let in_force = InForce {
        // Without a policy no call is denied.
        profile: profile.unwrap_or_default(),
        denials: match place {
            Target::Here => Denials::InKernel,
            Target::Elsewhere => Denials::Held,
        },
    };
    // Without a policy nothing is left in the kernel; an agent that takes over learns it from its memo.
    let resident = confinement.as_ref().map(Confinement::resident);
    // A profile of AppArmor has a name of its own each time, which the memo says.
    let is_own = elsewhere
        .as_ref()
        .is_some_and(|made| made.profile.is_some());
    let plans = args.told_plans.filter(|_| memo.is_none() && !is_own);
    let sources = match &plans {
        Some(_) => {
            let (config, _) = configuration(&args.detection, &args.interception)?;
            Some(Sources::read(config))
        }
        None => None,
    };
    let key = sources.as_ref().and_then(|sources| {
        let policy = format!(
            "{:?} {:?} {elsewhere:?} {resident:?}",
            in_force.profile, in_force.denials
        );
        Key::new(sources, &policy)
    });
    let kept = key.as_ref().zip(plans.as_deref());
    let kept = kept.and_then(|(key, plans)| key.look_up(plans));
    // A runtime is not restricted itself.
    let mut confinement = confinement;
    if let Some(first) = &mut first {
        first.kept = confinement.take();
    }
    let confinement = confinement.filter(|_| place == Target::Here);
    if let Some((folder, container)) = args.told_agent.as_ref().zip(their_container.clone()) {
        let kept = match (memo, kept) {
            (Some(memo), _) => Kept {
                // It has been installed.
                program: compile(
                    &event::Plan::default(),
                    &Profile::default(),
                    mechanism,
                    Denials::InKernel,
                    &configuration(&args.detection, &args.interception)?.0,
                )?,
                memo: memo.to_vec(),
            },
            (None, Some(kept)) => kept,
            (None, None) => {
                let sources = match sources {
                    Some(sources) => sources,
                    None => Sources::read(configuration(&args.detection, &args.interception)?.0),
                };
                let resident = resident.clone().unwrap_or_default();
                let made =
                    filter_alone(&sources, in_force, mechanism, elsewhere.as_ref(), &resident)?;
                if let Some((key, plans)) = key.as_ref().zip(plans.as_deref()) {
                    key.keep(plans, &made);
                }
                made
            }
        };
        let rules = key.map(|key| key.rules);
        let confinement = first.and_then(|first| first.kept);
        let memo = kept.memo.clone();
        let errand = host::Errand::of_container(folder, words, memo, container, rules, confinement);
        let errand = errand.map_err(|cause| {
            let message = format!("cannot find the agent of the host: {cause}");
            Failure::new(Exit::Unsupported, message).help("use --agent container")
        })?;
        return Ok(supervisor::Prepared {
            command,
            program: kept.program,
            confinement: None,
            restricts_first,
            memo: kept.memo,
            start: Box::new(move |listening, meanwhile| errand.start(listening, meanwhile)),
        });
    }
    if let Some(Kept { program, memo }) = kept {
        let expected = program.clone();
        let rules = key.zip(plans).zip(sources);
        let rules =
            rules.map(|((key, plans), sources)| key.rules_of(plans, program.clone(), sources));
        let make = move || {
            let (detection, interception) = (args.detection, args.interception);
            let origin = rules.as_ref().map_or(Origin::Files, Origin::Kept);
            let told = their_container;
            let mut blueprint =
                blueprint(detection, interception, mechanism, in_force, origin, told)?;
            blueprint.door = args.told_door;
            blueprint.policy = args.confine.policy;
            blueprint.witness = witness;
            blueprint.resident = resident.unwrap_or_default();
            Ok(blueprint)
        };
        return Ok(supervisor::Prepared {
            command,
            program,
            confinement: None,
            restricts_first,
            memo,
            start: Box::new(move |listening, meanwhile| {
                start_beside(listening, meanwhile, make, first, &expected)
            }),
        });
    }
    let (detection, interception) = (args.detection, args.interception);
    let origin = match (memo, &sources) {
        (Some(memo), _) => Origin::Memo(memo),
        (None, Some(sources)) => Origin::Read(sources),
        (None, None) => Origin::Files,
    };
    let told = their_container;
    let mut blueprint = blueprint(detection, interception, mechanism, in_force, origin, told)?;
    blueprint.door = args.told_door;
    blueprint.first = first;
    blueprint.policy = args.confine.policy;
    blueprint.witness = witness;
    if let Some(resident) = resident {
        blueprint.resident = resident;
    }
    let memo = handover_state::encode(
        &blueprint.rules.installed,
        &blueprint.profile,
        elsewhere.as_ref(),
        &blueprint.resident,
    );
    if let Some(((key, plans), sources)) = key.zip(plans).zip(sources) {
        let (program, memo) = (blueprint.program.clone(), memo.clone());
        key.keep(&plans, &Kept { program, memo });
        let rules = &blueprint.rules;
        key.rules_of(plans, blueprint.program.clone(), sources)
            .keep(&rules.judge, &rules.plan);
    }
    Ok(supervisor::Prepared {
        command,
        program: blueprint.program.clone(),
        confinement,
        restricts_first,
        memo,
        start: blueprint.into_start(),
    })
}

/// Loads the rules while the command, a container runtime, works already. Its calls are looked at only when it has
/// ended or begins a program in the container. The calling process has one thread, and has one again afterwards.
fn start_beside(
    mut listening: supervisor::Listening,
    meanwhile: Option<supervisor::Meanwhile<'_>>,
    make: impl FnOnce() -> Result<Blueprint, Failure> + Send,
    first: Option<First>,
    expected: &FilterProgram,
) -> anyhow::Result<Box<dyn supervisor::Services>> {
    let answering = let_work(&listening)?;
    let (is_made, made) = sys::fd::pipe(O_CLOEXEC).context("cannot let the runtime work")?;
    let blueprint = std::thread::scope(|scope| {
        let loader = scope.spawn(move || {
            let blueprint = make();
            // Closed, it tells the other thread.
            drop(made);
            blueprint
        });
        if let Some(meanwhile) = meanwhile {
            // Also when the rules are there: to answer everything is cheaper than to look at it.
            meanwhile(&[is_made.as_fd(), answering.held()]);
        }
        loader.join()
    });
    let blueprint = match blueprint {
        Ok(blueprint) => blueprint,
        // The panic hook has said why.
        Err(_panic) => anyhow::bail!("cannot load the rules"),
    };
    let mut blueprint =
        blueprint.map_err(|failure| anyhow::anyhow!("{}", failure.render().trim()))?;
    blueprint.first = first;
    if blueprint.program != *expected {
        anyhow::bail!("cannot watch: the rules come to another filter than the one that was kept");
    }
    listening.held = Some(supervisor::Held::Answered(answering));
    Ok(Box::new(blueprint.start(listening)?))
}

/// Has the calls of a container runtime answered while nobody knows the rules yet.
fn let_work(listening: &supervisor::Listening) -> anyhow::Result<AnswerThread> {
    let supervisor::Source::Listener(listener) = &listening.source else {
        anyhow::bail!("cannot let a runtime work without a listener");
    };
    let pulse = listening.board.pulse(listening.generation);
    AnswerThread::start(listener, pulse).context("cannot let the runtime work")
}

/// The filter that rules come to, for an agent that does not judge by them itself.
fn filter_alone(
    sources: &Sources,
    in_force: InForce,
    mechanism: Mechanism,
    elsewhere: Option<&DeferredConfinement>,
    resident: &LoadedPolicy,
) -> Result<Kept, Failure> {
    let InForce { profile, denials } = in_force;
    let config = &sources.config;
    let mut loaded = rule_files::load_read(sources.files.clone());
    // Selections that select nothing are told by the agent that judges.
    loaded.select(&config.rules);
    let (sink, verify) = (DeferredSink::default(), verify_options(config, mechanism));
    let rules = Rules::first(&mut loaded, &engine_options(config, None), &sink, &verify)?;
    Ok(Kept {
        program: compile(&rules.installed, &profile, mechanism, denials, config)?,
        memo: handover_state::encode(&rules.installed, &profile, elsewhere, resident),
    })
}

/// What a policy says of calls, and who refuses what it denies.
struct InForce {
    profile: Profile,
    denials: Denials,
}

impl InForce {
    fn nothing() -> Self {
        Self {
            profile: Profile::default(),
            denials: Denials::InKernel,
        }
    }
}

fn first_program(
    elsewhere: Option<DeferredConfinement>,
    confine: &confine::Optional,
    container: Option<&TheirContainer>,
) -> Option<First> {
    let told = &container?.told;
    Some(First {
        elsewhere: elsewhere?,
        policy: confine.policy.clone()?,
        how: confine.how.clone(),
        container: told.id.clone(),
        bundle: told.bundle.clone(),
        kept: None,
    })
}

/// What watches processes that run already.
pub fn services(detection: Detection, mechanism: Mechanism) -> Result<supervisor::Start, Failure> {
    let interception = Interception::default();
    let (in_force, origin) = (InForce::nothing(), Origin::Files);
    let made = blueprint(detection, interception, mechanism, in_force, origin, None)?;
    Ok(made.into_start())
}

/// What watches sandboxes of gVisor that connect to `endpoint`, and the session that they have to be
/// begun with.
pub fn sandbox_services(
    detection: Detection,
    endpoint: &Path,
) -> Result<(supervisor::Start, serde_json::Value), Failure> {
    let interception = Interception::default();
    let (in_force, origin) = (InForce::nothing(), Origin::Files);
    let mechanism = Mechanism::Sandbox;
    let blueprint = blueprint(detection, interception, mechanism, in_force, origin, None)?;
    let session = capture::gvisor::configuration(&blueprint.rules.installed, endpoint);
    Ok((blueprint.into_start(), session))
}

/// Where the rules of an agent come from.
#[derive(Clone, Copy)]
enum Origin<'a> {
    Files,
    /// The same, and what the first agent left to one that takes over.
    Memo(&'a [u8]),
    /// Files that have been read.
    Read(&'a Sources),
    /// The same, unless their rules are kept. Warnings about those are not repeated.
    Kept(&'a KeptRules),
}

impl<'a> Origin<'a> {
    fn sources(self) -> Option<&'a Sources> {
        match self {
            Self::Files | Self::Memo(_) => None,
            Self::Read(sources) => Some(sources),
            Self::Kept(kept) => Some(&kept.sources),
        }
    }
}

/// Reads rules and configuration and opens files. `told`: the container of which the agent is told.
fn blueprint(
    detection: Detection,
    interception: Interception,
    mechanism: Mechanism,
    in_force: InForce,
    origin: Origin<'_>,
    told: Option<TheirContainer>,
) -> Result<Blueprint, Failure> {
    let InForce { profile, denials } = in_force;
    let is_resumed = matches!(origin, Origin::Memo(_));
    let (config, warnings) = match origin.sources() {
        Some(sources) => (sources.config.clone(), Vec::new()),
        None => configuration(&detection, &interception)?,
    };
    journal::open(config.log, detection.manner, config.time_format_iso_8601);
    if !detection.quiet && detection.manner != CompatMode::Falco {
        // The personality has read the configuration itself.
        for warning in warnings {
            journal::warn(&format!("warning: {warning}"));
        }
    }
    let sink = DeferredSink::default();
    let (recordings, unstarted) = Recordings::open(
        record_options(&detection).as_ref(),
        &config.capture,
        is_resumed,
    )?;
    let recorder = recordings.recorder();
    let options = engine_options(&config, recorder.clone());
    let verify = verify_options(&config, mechanism);
    let kept = match origin {
        Origin::Kept(kept) => kept.read(&options, &sink).zip(Some(kept)),
        Origin::Files | Origin::Memo(_) | Origin::Read(_) => None,
    };
    let (rules, program, profile, resident) = match kept {
        Some(((judge, plan), kept)) => {
            let rules = Rules::of(judge, plan, &verify);
            (
                rules,
                kept.program.clone(),
                profile,
                LoadedPolicy::default(),
            )
        }
        None => {
            let (rules, left) = load(origin, &config, &detection, &options, &sink, &verify)?;
            let (profile, resident) = left.unwrap_or((profile, LoadedPolicy::default()));
            let program = compile(&rules.installed, &profile, mechanism, denials, &config)?;
            if let Origin::Kept(kept) = origin
                && kept.program == program
            {
                kept.keep(&rules.judge, &rules.plan);
            }
            (rules, program, profile, resident)
        }
    };
    let servers = Servers::open(&config, is_resumed, GrpcChannel::default())?;
    let open = if is_resumed {
        StatsFile::append
    } else {
        StatsFile::create
    };
    if detection.stats.as_deref() == Some(Path::new("-")) {
        let message = "cannot write stats to `-`: it stands for no file here";
        return Err(Failure::new(Exit::BadInput, message).help(
            "use -s /dev/stdout for the standard output, or -s ./- for a file of that name",
        ));
    }
    let stats = detection.stats.as_deref().map(open).transpose();
    let stats = stats.map_err(|error| {
        Failure::from_error(Exit::BadInput, &error).help("name a writable file after -s")
    })?;
    Ok(Blueprint {
        verify,
        mechanism,
        program,
        // Processes that enter are not the command's.
        entered: match told {
            // Who enters that does so by its runtime, and is watched from there.
            Some(_) => None,
            None => Some(compile(
                &rules.installed,
                &Profile::default(),
                Mechanism::Tracer { filtered: true },
                Denials::InKernel,
                &config,
            )?),
        },
        profile,
        witness: DenialClassifier::default(),
        first: None,
        later: None,
        door: None,
        resident,
        policy: None,
        learner: detection.learner.clone(),
        sink,
        recorder,
        recordings: unstarted,
        outputs: outputs(
            &config,
            detection.quiet,
            servers::channel(&config, &servers.alerts()),
        )?,
        servers,
        stats,
        stats_interval: Duration::from_millis(detection.stats_interval),
        pidfile: match detection.pidfile.as_deref() {
            None => None,
            Some(path) if is_resumed => Pidfile::take_over(path),
            Some(path) => Some(Pidfile::create(path)?),
        },
        container_id: detection.container_id.clone(),
        told,
        rules,
        refuse_non_dumpable: interception.refuse.contains(&Refusal::NonDumpable),
        tuning: engines::Tuning {
            filters: !detection.unfiltered,
            ring_kib: detection.ring_kib.unwrap_or(config.engine.ring_kib()),
            hooks: detection.hooks,
            judges: detection.judges,
        },
        drops: config.drops.clone(),
        manner: detection.manner,
        output_timeout: channels::timeout(&config),
        quiet: detection.quiet,
        settings: config,
        config: Box::new(move || {
            configuration(&detection, &interception).map(|(config, _)| config)
        }),
    })
}

/// Loads rules; with a memo also says what else it tells.
fn load(
    origin: Origin<'_>,
    config: &Config,
    detection: &Detection,
    options: &EngineOptions,
    sink: &DeferredSink,
    verify: &VerifyOptions,
) -> Result<(Rules, Option<(Profile, LoadedPolicy)>), Failure> {
    let mut loaded = match origin.sources() {
        Some(sources) => rule_files::load_read(sources.files.clone()),
        None => rule_files::load(&config.rules_files),
    };
    let idle = loaded.select(&config.rules);
    if !detection.quiet {
        for selection in idle {
            journal::warn(&format!("warning: {}", selection.complaint()));
        }
    }
    let (rules, left) = match origin {
        Origin::Memo(memo) => {
            let (installed, profile, resident) = handover_state::decode(memo)?;
            let rules = Rules::later(&mut loaded, options, sink, installed)?;
            (rules, Some((profile, resident)))
        }
        Origin::Files | Origin::Read(_) | Origin::Kept(_) => {
            (Rules::first(&mut loaded, options, sink, verify)?, None)
        }
    };
    if !detection.quiet {
        warn(&loaded);
        let wants_rules = !detection.without_rules && options.recorder.is_none();
        if left.is_none() && wants_rules && rules.judge.matches().next().is_none() {
            journal::warn(
                "warning: no rule is in force, so there will be no alert; look at -r and at the \
                 configuration's keys rules and priority",
            );
        }
    }
    Ok((rules, left))
}

fn exit(status: i32) -> Exit {
    Exit::Command(u8::try_from(status & 0xff).expect("eight bits fit"))
}

const O_CLOEXEC: i32 = 0o2_000_000;
