//! Event sources of plugins beside the engine.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use config::rule_files::{Environment, Loaded};
use config::{Config, PluginSettings};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use event::EngineKind;
use outputs::{Dispatcher, Internal};
use plugin::protocol::PluginSpec;
use plugin::{
    Catalogue, CatalogueError, Counters, HelperError, Incident, IncidentKind, Limits, Observer,
    PROGRAM, PluginConfig, RecordedSources, Source, SourceEvaluator, SourcePlan,
};
use rules::load::SYSCALL_SOURCE;
use rules::{AlertSink, AlertValue, Engine, EngineOptions, Priority};

use crate::recorded_plugins::RecordedPlugins;
use crate::sink::DeferredSink;
use crate::{journal, summary};

/// Compiled rules of event sources of plugins, by the name of the source.
pub type SourceEngines = Vec<(String, Arc<Engine>)>;

/// Plugins whose sources are not open yet, and the rules of each source.
pub(crate) type UnopenedSources = (Plugins, SourceEngines);

/// The plugins of a configuration, as they describe themselves.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    catalogue: Catalogue,
    limits: Limits,
    /// Sources that are not opened.
    disabled: Vec<String>,
}

impl Plugins {
    /// Asks each plugin that the configuration loads what it is, in a process of its own.
    ///
    /// # Errors
    ///
    /// [`Exit::Unsupported`] if the program that loads plugins is missing; [`Exit::BadInput`] if a plugin cannot be loaded,
    /// or needs what this program does not have.
    pub fn load(config: &Config) -> Result<Self, Failure> {
        let limits = limits(&config.plugins)?;
        let configured: Vec<_> = config.plugins.loaded().map(plugin_config).collect();
        let catalogue = Catalogue::load(&configured, &limits).map_err(|error| failure(&error))?;
        Ok(Self {
            catalogue,
            limits,
            disabled: config.plugins.disabled_sources.clone(),
        })
    }

    /// As [`Plugins::load`] for an agent, of which only one that watches the host for itself may have plugins.
    pub(crate) fn of_agent(
        config: &Config,
        engine: EngineKind,
        is_watch: bool,
    ) -> Result<Self, Failure> {
        let sees_host = matches!(
            engine,
            EngineKind::Ebpf | EngineKind::Nodriver | EngineKind::Gvisor
        );
        if !sees_host || !is_watch {
            refuse(config, "an agent of a command or container")?;
        }
        Self::load(config)
    }

    /// Returns the plugins.
    #[must_use]
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Returns what rules may refer to.
    #[must_use]
    pub fn environment(&self) -> Environment {
        let plugins = self.catalogue.plugins().iter();
        Environment {
            sources: self
                .catalogue
                .sources()
                .map(|(name, _)| name.to_owned())
                .collect(),
            plugins: plugins
                .map(|plugin| (plugin.description.name.clone(), plugin.version))
                .collect(),
        }
    }

    /// Compiles the rules of each source that is opened. Problems of rules become diagnostics.
    pub fn compile(
        &self,
        loaded: &mut Loaded,
        options: &EngineOptions,
        sink: &(impl AlertSink + Clone + 'static),
    ) -> SourceEngines {
        let mut compiled = Vec::new();
        for (name, fields) in self.catalogue.sources() {
            let options = EngineOptions {
                source: Some(Arc::clone(fields)),
                ..options.clone()
            };
            let engine = loaded.compile_source(&options, sink.clone());
            if !self.disabled.iter().any(|disabled| disabled == name) {
                compiled.push((name.to_owned(), Arc::new(engine)));
            }
        }
        compiled
    }

    /// Returns true if a source is opened.
    #[must_use]
    pub fn has_open_sources(&self) -> bool {
        let is_open = |name: &str| !self.disabled.iter().any(|disabled| disabled == name);
        self.catalogue.sources().any(|(name, _)| is_open(name))
    }

    /// Returns the sources for events that are in captures, with their compiled rules. No process is started before the first event.
    ///
    /// # Errors
    ///
    /// The rules were compiled with other plugins.
    pub fn recorded(&self, engines: &SourceEngines) -> Result<RecordedPlugins, Failure> {
        let host_name = decoder::host::host_name();
        let mut sources = RecordedSources::default();
        for (name, engine) in engines {
            let source = self.source(name, engine, &host_name);
            let (evaluator, plan) =
                source.map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
            sources.add(plan, evaluator);
        }
        Ok(RecordedPlugins::new(sources))
    }

    fn source(
        &self,
        name: &str,
        engine: &Arc<Engine>,
        host_name: &str,
    ) -> anyhow::Result<(SourceEvaluator, SourcePlan)> {
        let engine = Arc::clone(engine);
        let evaluator = SourceEvaluator::new(&self.catalogue, name, engine, host_name);
        let both = evaluator.zip(self.catalogue.plan(name, &self.limits));
        both.ok_or_else(|| {
            anyhow::anyhow!("the rules of source {name} ask for what its plugins do not have")
        })
    }

    /// Opens the sources. `records`: the rules were compiled with what records events.
    pub(crate) fn start(
        self,
        engines: SourceEngines,
        records: bool,
        dispatcher: &Dispatcher,
    ) -> anyhow::Result<Running> {
        let host_name = decoder::host::host_name();
        let observer: Arc<dyn Observer> = Arc::new(Announcements(dispatcher.clone()));
        let mut sources = Vec::new();
        for (name, engine) in engines {
            let (evaluator, plan) = self.source(&name, &engine, &host_name)?;
            let evaluator = evaluator.with_data(records);
            let source = Source::start(plan, evaluator, Arc::clone(&observer));
            sources.push(source.context("cannot open a plugin's source")?);
        }
        Ok(Running {
            plugins: self,
            records,
            sources,
            host_name,
        })
    }
}

/// Open sources of plugins.
pub(crate) struct Running {
    plugins: Plugins,
    /// Events may be recorded, and carry their bytes for that.
    records: bool,
    sources: Vec<Source>,
    host_name: String,
}

impl Running {
    /// Returns what rules may refer to.
    pub(crate) fn environment(&self) -> Environment {
        self.plugins.environment()
    }

    /// Compiles the rules of each source.
    pub(crate) fn compile(
        &self,
        loaded: &mut Loaded,
        options: &EngineOptions,
        sink: &DeferredSink,
    ) -> SourceEngines {
        self.plugins.compile(loaded, options, sink)
    }

    /// Puts other rules into force.
    pub(crate) fn replace(&self, engines: SourceEngines) {
        for (name, engine) in engines {
            let evaluator =
                SourceEvaluator::new(&self.plugins.catalogue, &name, engine, &self.host_name);
            let source = self.sources.iter().find(|source| source.name() == name);
            if let Some((source, evaluator)) = source.zip(evaluator) {
                source.replace(evaluator.with_data(self.records));
            }
        }
    }

    /// Returns true if there are sources, and none has more events.
    pub(crate) fn has_ended(&self) -> bool {
        !self.sources.is_empty() && self.sources.iter().all(Source::has_ended)
    }

    /// Ends all sources, and prints what became of them.
    pub(crate) fn stop(&self, quiet: bool) {
        for source in &self.sources {
            source.stop();
            if !quiet {
                journal::say(
                    Priority::Informational,
                    &totals(source.name(), source.counters()),
                );
            }
        }
    }
}

fn totals(name: &str, counters: &Counters) -> String {
    let plugin::Totals {
        events,
        restarts,
        crashes,
        hangs,
        garbage,
        failures,
        undecided,
        unparsed,
        async_lost,
        async_refused,
    } = counters.totals();
    format!(
        "plugin source {name}: {} shown to rules, {} ({crashes} crashes, {hangs} hangs, {garbage} times garbage, \
         {failures} failures), {undecided} rules undecided, {async_lost} asynchronous events lost and {async_refused} \
         refused, {unparsed} not parsed",
        summary::plural(events, "event"),
        summary::plural(restarts, "restart"),
    )
}

/// Turns incidents into internal alerts. Back-off bounds their rate.
struct Announcements(Dispatcher);

impl Observer for Announcements {
    fn happened(&self, incident: Incident) {
        let Incident {
            source,
            kind,
            message,
            restarts,
        } = incident;
        let (rule, priority) = match kind {
            IncidentKind::Opened => ("Tollgate internal: plugin source open", Priority::Notice),
            IncidentKind::Restarting => {
                ("Tollgate internal: plugin source failed", Priority::Error)
            }
            IncidentKind::Ended => ("Tollgate internal: plugin source ended", Priority::Notice),
        };
        self.0.emit_internal_once(Internal {
            rule,
            priority,
            message: format!("source {source}: {message}"),
            fields: vec![
                ("tollgate.source", AlertValue::Text(source)),
                ("tollgate.cause", AlertValue::Text(message)),
                ("tollgate.restarts", AlertValue::Uint(restarts)),
            ],
        });
    }
}

fn limits(settings: &PluginSettings) -> Result<Limits, Failure> {
    let is_named = !settings.program.as_os_str().is_empty();
    // Without a plugin the program is never started, and where it is cannot be told without /proc.
    let program = match is_named || settings.loaded().next().is_none() {
        true => settings.program.clone(),
        false => beside_this_program()?,
    };
    Ok(Limits {
        program,
        deadline: settings.timeout(),
        memory: settings.memory(),
    })
}

fn beside_this_program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|error| {
        let message = format!("cannot find the folder of this program: {error}");
        Failure::new(Exit::Internal, message).help("set plugin_host.program")
    })?;
    Ok(own.with_file_name(PROGRAM))
}

fn plugin_config(setting: &config::PluginSetting) -> PluginConfig {
    PluginConfig {
        spec: PluginSpec {
            name: setting.name.clone(),
            library: setting.library.display().to_string(),
            init_config: setting.init_config.clone(),
            open_params: setting.open_params.clone(),
        },
    }
}

fn failure(error: &CatalogueError) -> Failure {
    let (exit, help) = match error {
        CatalogueError::Load {
            cause: HelperError::Missing(_) | HelperError::Start { .. },
            ..
        } => (
            Exit::Unsupported,
            "install it beside this program, or name it by plugin_host.program",
        ),
        CatalogueError::Load { .. } => (
            Exit::BadInput,
            "check library_path and init_config of the plugin, or leave it out of load_plugins",
        ),
        CatalogueError::Unfit { .. } => (Exit::BadInput, "leave it out of load_plugins"),
    };
    Failure::from_error(exit, error).help(help)
}

/// Refuses plugins where nothing opens their sources.
///
/// # Errors
///
/// The configuration loads a plugin.
pub fn refuse(config: &Config, verb: &str) -> Result<(), Failure> {
    let Some(first) = config.plugins.loaded().next() else {
        return Ok(());
    };
    let message = format!(
        "cannot load plugin `{}` (load_plugins, plugins): {verb} opens no event source of a plugin",
        first.name
    );
    Err(Failure::new(Exit::BadInput, message)
        .help("use `tollgate falco` or `tollgate watch`, or set `load_plugins: []`"))
}

/// Returns true if this is the source of system calls.
#[must_use]
pub fn is_syscall(source: &str) -> bool {
    source == SYSCALL_SOURCE
}
