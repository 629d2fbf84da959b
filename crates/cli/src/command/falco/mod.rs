//! The falco personality: Falco's command line, configuration and exit codes.
//!
//! The module calls the same code as other verbs: `watch`, `replay`, `rules check`. Options are evaluated in
//! Falco's order.

pub(crate) mod args;
mod compat;
mod describe;
mod list;
mod options;
mod plugins;
mod support;
mod validate;

use std::path::{Path, PathBuf};

use agent::pidfile::Pidfile;
use agent::plugins::Plugins;
use agent::sink::DeferredSink;
use agent::{journal, version};
use config::rule_files::{self, Loaded, NoSink};
use config::{self, CompatMode, Config, FalcoEngine, Places};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use replay::ReplayOptions;
use rules::{EngineOptions, Priority};

use self::args::{Falco, Format};
use self::validate::Describe;
use crate::args::{AlertStream, Detection, RuleSources, Watch, WatchEngine};
use crate::command::watch;

/// Falco's default configuration file.
const CONFIG: &str = "/etc/falco/falco.yaml";

/// Runs the personality. A failure is printed as Falco prints it, and has exit status 1.
pub(crate) fn execute(args: Falco) -> Outcome {
    match falco(args) {
        Ok(exit) => Ok(exit),
        Err(failure) => {
            terminal::complain(&failure.render_as("Error: "));
            Ok(Exit::Failed)
        }
    }
}

fn falco(mut args: Falco) -> Outcome {
    if let Some(text) = without_configuration(&args) {
        return terminal::print(&text);
    }
    options::refuse(&args)?;
    if args.config.is_none() && Path::new(CONFIG).exists() {
        args.config = Some(PathBuf::from(CONFIG));
    }
    let mut assignments = options::assignments(&args);
    let (mut config, warnings) =
        config::load(args.config.as_deref(), &assignments, CompatMode::Falco)?;
    journal::open(config.log, CompatMode::Falco, config.time_format_iso_8601);
    announce(&args, &config);
    if args.version {
        return terminal::print(&if config.json_output {
            format!("{}\n", version::versions())
        } else {
            version::text()
        });
    }
    if let Some(outcome) = without_rules(&args) {
        return outcome;
    }
    if plugins::are_asked_for(&args) {
        return plugins::execute(&args, &Plugins::load(&config)?);
    }
    if args.config.is_none() {
        let message = format!("cannot read the configuration: no such file: {CONFIG}");
        return Err(Failure::new(Exit::BadInput, message).help("name one with -c"));
    }
    for warning in options::warnings(&args).iter().chain(&warnings) {
        journal::warn(&format!("warning: {warning}"));
    }
    let plugins = Plugins::load(&config)?;
    // As in Falco a replay has all sources.
    if config.engine.kind != FalcoEngine::Replay {
        assignments.extend(plugins::switched(&args, &plugins)?);
        // Its warnings are those above.
        (config, _) = config::load(args.config.as_deref(), &assignments, CompatMode::Falco)?;
    }
    let options = agent::engine_options(&config, None);
    if !args.validate.is_empty() {
        let how = (config.json_output, &to_describe(&args));
        return validate::run(&args.validate, &options, &plugins, how);
    }
    let loaded = rules_of(&args, &config, &options, &plugins)?;
    if args.describe_all || args.describe.is_some() {
        return print_descriptions(&args, &config, &options, (&loaded, &plugins));
    }
    if args.support {
        return terminal::print(&format!("{}\n", support::support(&config, &loaded, &args)));
    }
    watch_or_replay(args, assignments, &config, &options, (loaded, &plugins))
}

/// Executes `-L` and `-l`.
fn print_descriptions(
    args: &Falco,
    config: &Config,
    options: &EngineOptions,
    (loaded, plugins): (&Loaded, &Plugins),
) -> Outcome {
    let only = args.describe.as_deref();
    let described = describe::describe(&loaded.ruleset, options, plugins.catalogue(), only)?;
    terminal::print(&if config.json_output {
        format!("{described}\n")
    } else {
        describe::text_table(&described)
    })
}

fn to_describe(args: &Falco) -> Describe<'_> {
    match (&args.describe, args.describe_all) {
        (Some(rule), _) => Describe::One(rule),
        (None, true) => Describe::All,
        (None, false) => Describe::Nothing,
    }
}

/// Executes options that need no rules, if any are given.
fn without_rules(args: &Falco) -> Option<Outcome> {
    if args.page_size {
        let size = rustix::param::page_size();
        let text = format!("Your system page size is: {size} bytes");
        journal::say(Priority::Informational, &text);
        return Some(Ok(Exit::Ok));
    }
    None
}

/// Loads the rules and executes what needs them.
fn watch_or_replay(
    args: Falco,
    assignments: Vec<String>,
    config: &Config,
    options: &EngineOptions,
    (mut loaded, plugins): (Loaded, &Plugins),
) -> Outcome {
    ready(config)?;
    if args.dry_run {
        journal::say(Priority::Informational, "Dry run: no events are processed");
        return Ok(Exit::Ok);
    }
    if let Some(socket) = &args.old.gvisor_generate_config {
        let (_, plan) = loaded.compile(options, NoSink);
        let session = capture::gvisor::configuration(&plan, socket);
        return terminal::print(&format!("{session:#}\n"));
    }
    start(args, assignments, config, plugins)
}

/// Returns the output of options that need no configuration.
fn without_configuration(args: &Falco) -> Option<String> {
    if args.compat {
        Some(compat::page())
    } else if args.config_schema {
        Some(format!("{:#}", config::schema()))
    } else if args.rule_schema {
        Some(format!("{:#}", validate::rule_schema()))
    } else if args.ignored {
        // Falco ignores reads and writes by default; here a call is captured exactly if a rule needs it.
        Some("Ignored syscall(s):\n\n".to_owned())
    } else if args.list_events {
        Some(list::events(form(args)))
    } else {
        None
    }
}

fn form(args: &Falco) -> Format {
    let old = args.markdown.then_some(Format::Markdown);
    args.format.or(old).unwrap_or_default()
}

/// Prints the first lines of Falco's log.
fn announce(args: &Falco, config: &Config) {
    let info = |text: &str| journal::say(Priority::Informational, text);
    info(&format!(
        "Falco version: {} ({}) by tollgate {}",
        version::FALCO_VERSION,
        std::env::consts::ARCH,
        env!("CARGO_PKG_VERSION")
    ));
    if !config.files.is_empty() {
        info("Falco initialized with configuration files:");
        for file in &config.files {
            // Each reason is printed as a warning of its own.
            let verdict = schema_verdict(!config.files_with_unknown_keys.contains(file));
            info(&format!(
                "   {} | schema validation: {verdict}",
                file.display()
            ));
        }
    }
    if config.engine.kind.watches_the_host()
        && let Ok(system) = std::fs::read_to_string("/proc/version")
    {
        info(&format!("System info: {}", system.trim_end()));
    }
    if args.verbose {
        let words: Vec<_> = std::env::args_os().collect();
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        journal::say(Priority::Debug, &format!("CLI args: {}", words.join(" ")));
    }
}

fn schema_verdict(is_valid: bool) -> &'static str {
    if is_valid { "ok" } else { "failed" }
}

/// Checks the conditions for processing events, also with `--dry-run`.
fn ready(config: &Config) -> Result<(), Failure> {
    let has_output = config.outputs.enabled().next().is_some();
    let has_grpc = config.grpc.enabled && config.grpc.output;
    if !(has_output || has_grpc) {
        journal::warn(
            "no output is enabled, so nobody gets alerts; enable one, as with -o stdout_output.enabled=true",
        );
    }
    let metrics = &config.metrics;
    let has_output = metrics.output_rule
        || !metrics.output_file.as_os_str().is_empty()
        || config.webserver.metrics;
    if metrics.enabled && !has_output {
        let message =
            "cannot report metrics: metrics.enabled is true, but no destination is enabled";
        return Err(Failure::new(Exit::BadInput, message).help(
            "set metrics.output_rule, metrics.output_file or webserver.prometheus_metrics_enabled",
        ));
    }
    Ok(())
}

/// Loads the rules, and prints their files and warnings.
fn rules_of(
    args: &Falco,
    config: &Config,
    options: &EngineOptions,
    plugins: &Plugins,
) -> Result<Loaded, Failure> {
    let files = if args.rules.is_empty() {
        &config.rules_files
    } else {
        &args.rules
    };
    if files.is_empty() {
        let message = "cannot start: no rule file found";
        return Err(Failure::new(Exit::BadInput, message)
            .help("name one with -r, or an existing one in rules_files"));
    }
    for path in rule_files::passed_over(files) {
        let path = path.display();
        journal::warn(&format!(
            "warning: {path} is no rule file, and is not loaded"
        ));
    }
    let files = rule_files::read_as_falco(files);
    let mut loaded = rule_files::load_read_with(files, &plugins.environment());
    loaded.select(&config.rules);
    let info = |text: &str| journal::say(Priority::Informational, text);
    info("Loading rules from:");
    loaded.compile(options, NoSink);
    for result in validate::results(&loaded.files, options, plugins) {
        let verdict = schema_verdict(result.schema_warnings.is_empty());
        info(&format!(
            "   {} | schema validation: {verdict}",
            result.name
        ));
        if !result.is_successful() {
            return Err(Failure::new(Exit::BadInput, result.text().trim_end()));
        }
        if !result.warnings.is_empty() {
            journal::warn(result.text().trim_end());
        }
    }
    plugins.compile(&mut loaded, options, &DeferredSink::default());
    for selection in &config.rules {
        let verb = if selection.enable {
            "Enabling"
        } else {
            "Disabling"
        };
        for (what, name) in [("name", &selection.rule), ("tag", &selection.tag)] {
            if let Some(name) = name {
                info(&format!("{verb} rules with {what}: {name}"));
            }
        }
    }
    Ok(loaded)
}

/// Watches or replays.
fn start(args: Falco, options: Vec<String>, config: &Config, plugins: &Plugins) -> Outcome {
    let info = |text: &str| journal::say(Priority::Informational, text);
    let has_syscalls = config.engine.kind != FalcoEngine::Nodriver;
    plugins::announce(plugins, has_syscalls, &config.plugins.disabled_sources);
    if config.engine.kind == FalcoEngine::Replay {
        return replay_capture(args, options, config, plugins);
    }
    match config.engine.kind {
        FalcoEngine::Kmod => info("The engine ebpf does what the kernel module does"),
        FalcoEngine::Nodriver if plugins.has_open_sources() => {}
        FalcoEngine::Nodriver => {
            journal::warn("warning: engine.kind nodriver: no event ever comes");
        }
        FalcoEngine::ModernEbpf | FalcoEngine::Replay | FalcoEngine::Gvisor => {}
    }
    let gvisor = match config.engine.kind {
        FalcoEngine::Gvisor => Some(trace_session(&config.engine.gvisor_session)?),
        _ => None,
    };
    let (gvisor, gvisor_given) = gvisor.unzip();
    info(match config.engine.kind {
        FalcoEngine::Gvisor => "Opening 'syscall' source with gVisor",
        FalcoEngine::Nodriver => "Opening 'syscall' source with no driver",
        _ => "Opening 'syscall' source with modern BPF probe.",
    });
    let is_idle = config.engine.kind == FalcoEngine::Nodriver;
    let args = Watch {
        gvisor,
        gvisor_session: None,
        gvisor_given,
        pids: Vec::new(),
        containers: Vec::new(),
        cgroups: Vec::new(),
        engine: WatchEngine::Ebpf,
        seconds: (args.seconds > 0).then_some(args.seconds),
        detection: Detection {
            sources: RuleSources {
                rules: args.rules,
                config: args.config,
                options,
                ..RuleSources::default()
            },
            stream: AlertStream::default(),
            stats: args.stats,
            stats_interval: args.stats_interval,
            pidfile: args.pidfile,
            manner: CompatMode::Falco,
            // It reads none of the machine's files.
            places: Places::default(),
            ..Detection::default()
        },
    };
    if is_idle {
        watch::idle(args)
    } else {
        watch::watch(args)
    }
}

/// Replays the capture file of the configuration.
fn replay_capture(
    args: Falco,
    options: Vec<String>,
    config: &Config,
    plugins: &Plugins,
) -> Outcome {
    let capture = config.engine.capture_file.clone();
    let text = format!("Replaying {}", capture.display());
    journal::say(Priority::Informational, &text);
    let mut pidfile = args.pidfile.as_deref().map(Pidfile::create).transpose()?;
    if let Some(pidfile) = &mut pidfile {
        pidfile.write().map_err(|error| {
            let message = format!("cannot write the pid file: {error}");
            Failure::new(Exit::BadInput, message).help("name a writable file after -P")
        })?;
    }
    let outcome = replay::execute(&ReplayOptions {
        files: vec![capture],
        rules: args.rules,
        add_rules: Vec::new(),
        config: args.config,
        options,
        json: false,
        stream: AlertStream::default().into(),
        fields: None,
        filter: None,
        stats: args.verbose,
        quiet: false,
        seconds: (args.seconds > 0).then_some(args.seconds),
        manner: CompatMode::Falco,
        places: Places::default(),
        plugins: Some(plugins.clone()),
    });
    if let Some(pidfile) = pidfile {
        pidfile.remove();
    }
    outcome
}

/// Reads a trace session. Returns the socket of its sink, and the session.
fn trace_session(file: &Path) -> Result<(PathBuf, serde_json::Value), Failure> {
    let cannot = |cause: &dyn std::fmt::Display| {
        let message = format!("cannot use the trace session {}: {cause}", file.display());
        Failure::new(Exit::BadInput, message)
            .help("`falco --gvisor-generate-config` prints one for the loaded rules")
    };
    let text = std::fs::read_to_string(file).map_err(|error| cannot(&error))?;
    let session: serde_json::Value = serde_json::from_str(&text).map_err(|error| cannot(&error))?;
    let sinks = session["trace_session"]["sinks"].as_array();
    let endpoint = sinks.into_iter().flatten().find_map(|sink| {
        let is_remote = sink["name"] == "remote";
        is_remote
            .then(|| sink["config"]["endpoint"].as_str())
            .flatten()
    });
    let endpoint = endpoint.ok_or_else(|| cannot(&"it has no sink `remote` with an endpoint"))?;
    Ok((PathBuf::from(endpoint), session))
}
