//! Options that several tools have: rule files, and the form of lists.

use std::path::PathBuf;

use agent::plugins::{Plugins, SourceEngines};
use agent::sink::DeferredSink;
use config::rule_files::{Environment, Loaded, RuleSources};
use config::{Config, Effective, Places, Request, Selection};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use rules::load::{BUILTIN_PLUGINS, LEFT_OUT};
use rules::ruleset::PluginRequirement;
use rules::{AlertSink, Code, EngineOptions, Level};

/// The rule files of a tool.
#[derive(Clone, Debug, Default)]
pub struct RuleFiles {
    /// Rule files and directories of them; empty for those that `tollgate run` loads by default.
    pub named: Vec<PathBuf>,
    /// Rule files and directories that are loaded after the others.
    pub added: Vec<PathBuf>,
    /// Highest level of the rules that are on; by default that of the configuration.
    pub level: Option<Level>,
    /// A configuration that goes before those of the machine and of the user.
    pub config: Option<PathBuf>,
    /// Settings that go before all configurations, as `KEY=VALUE`.
    pub settings: Vec<String>,
}

/// Rules, and the plugins whose sources and versions they ask for.
#[derive(Debug)]
pub(crate) struct RulesWithPlugins {
    /// The rules.
    pub(crate) loaded: Loaded,
    /// The plugins of the configuration; `None` if no rule asks for one.
    pub(crate) plugins: Option<Plugins>,
}

/// The form of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListFormat {
    /// Lines for people.
    Text,
    /// One JSON object.
    Json,
    /// A table in Markdown.
    Markdown,
}

impl RuleFiles {
    /// Returns the files that the rules come from.
    ///
    /// # Errors
    ///
    /// No files are named, and the configuration cannot be read.
    pub(crate) fn sources(&self) -> Result<RuleSources, Failure> {
        Ok(self.resolved()?.0)
    }

    /// Returns the files that the rules come from, and the configuration's selection among the rules. Named files come
    /// without a configuration.
    ///
    /// # Errors
    ///
    /// As [`RuleFiles::sources`].
    pub(crate) fn resolved(&self) -> Result<(RuleSources, Vec<Selection>), Failure> {
        let added = self.added.clone();
        if !self.named.is_empty() {
            let sources = RuleSources {
                named: self.named.clone(),
                folder: None,
                bundled: Vec::new(),
                given: Vec::new(),
                added,
                // Without `--level`, as `tollgate run` without a configuration.
                level: self.level.unwrap_or_default(),
                enables_hunting: false,
                as_falco: false,
            };
            return Ok((sources, Vec::new()));
        }
        let mut config = self.configuration()?;
        config.added_rules = added;
        config.level = self.level.unwrap_or(config.level);
        let sources = config.rule_sources();
        Ok((sources, config.rules))
    }

    /// Returns the files and directories that the rules and their configuration are read from, which need not exist; for
    /// a sandbox around what reads them.
    ///
    /// # Errors
    ///
    /// No files are named, and the configuration cannot be read.
    pub fn paths(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut paths: Vec<PathBuf> = self.sources()?.paths().cloned().collect();
        if self.named.is_empty() {
            let config = self.configuration()?;
            paths.extend(config.layers.into_iter().chain(config.files));
            paths.extend(config.folders);
        }
        Ok(paths)
    }

    /// Loads the rules. Plugins of the configuration are loaded if a rule asks for what is not built in.
    ///
    /// # Errors
    ///
    /// As [`RuleFiles::sources`]; or a plugin that is needed cannot be loaded.
    pub(crate) fn load(&self) -> Result<RulesWithPlugins, Failure> {
        self.load_from(&self.sources()?)
    }

    /// As [`RuleFiles::load`], for these files in place of its own.
    ///
    /// # Errors
    ///
    /// A plugin that is needed cannot be loaded.
    pub(crate) fn load_from(&self, sources: &RuleSources) -> Result<RulesWithPlugins, Failure> {
        let loaded = sources.load();
        let without = |loaded| RulesWithPlugins {
            loaded,
            plugins: None,
        };
        if !asks_for_plugins(&loaded) {
            return Ok(without(loaded));
        }
        let config = self.configuration()?;
        if config.plugins.loaded().next().is_none() {
            return Ok(without(loaded));
        }
        let plugins = Plugins::load(&config)?;
        Ok(RulesWithPlugins {
            loaded: sources.load_with(&plugins.environment()),
            plugins: Some(plugins),
        })
    }

    /// Loads the rules of all sources without any plugin, to show them. Their conditions cannot be compiled.
    ///
    /// # Errors
    ///
    /// As [`RuleFiles::sources`].
    pub(crate) fn load_to_show(&self) -> Result<Loaded, Failure> {
        let sources = self.sources()?;
        let known = sources.load();
        let mut problems = known.diagnostics.iter();
        if !asks_for_plugins(&known) && problems.all(|problem| problem.code != Code::UnknownSource)
        {
            return Ok(known);
        }
        Ok(sources.load_with(&as_required(&known)))
    }

    fn configuration(&self) -> Result<Config, Failure> {
        let places = Places::of_user()?;
        let request = Request {
            layers: &places.files,
            file: self.config.as_deref(),
            options: &self.settings,
            ..Request::default()
        };
        let Effective { mut config, .. } = request.load()?;
        config.rules_folder = places.rules;
        Ok(config)
    }
}

/// Returns an environment that has all sources and plugins that rules ask for.
fn as_required(loaded: &Loaded) -> Environment {
    let unknown = loaded.diagnostics.iter();
    let unknown = unknown.filter(|problem| problem.code == Code::UnknownSource);
    // The message quotes the name, and nothing before it.
    let sources = unknown.filter_map(|problem| problem.message.split('`').nth(1));
    let required = loaded.ruleset.required_plugins.iter();
    let plugins = required.flat_map(|required| required.alternatives.iter().cloned());
    Environment {
        sources: sources.map(str::to_owned).collect(),
        plugins: plugins.collect(),
    }
}

/// Returns true if rules have a source, or need a plugin, that is not built in.
fn asks_for_plugins(loaded: &Loaded) -> bool {
    let is_builtin = |name: &str| BUILTIN_PLUGINS.iter().any(|(known, _)| *known == name);
    let mut needed = loaded.ruleset.required_plugins.iter();
    let is_other = |needed: &PluginRequirement| {
        let mut names = needed.alternatives.iter().map(|(name, _)| name.as_str());
        !names.any(is_builtin)
    };
    let mut problems = loaded.diagnostics.iter();
    needed.any(is_other) || problems.any(|problem| problem.code == Code::UnknownSource)
}

impl RulesWithPlugins {
    /// Refuses rules of sources that no loaded plugin has. `verb` is what cannot be done with them.
    ///
    /// # Errors
    ///
    /// There is such a rule.
    pub(crate) fn refuse_unknown_sources(&self, verb: &str) -> Result<(), Failure> {
        let mut problems = self.loaded.diagnostics.iter();
        let Some(unknown) = problems.find(|problem| problem.code == Code::UnknownSource) else {
            return Ok(());
        };
        let cause = unknown.message.strip_suffix(LEFT_OUT);
        let message = format!(
            "cannot {verb} {}: {}: {}",
            unknown.context,
            unknown.location,
            cause.unwrap_or(&unknown.message)
        );
        // Such a warning has a help.
        let known = unknown.help.as_deref().unwrap_or_default();
        Err(Failure::new(Exit::BadInput, message)
            .help(format!("{known}, and `-c FILE` names the configuration")))
    }

    /// Compiles the rules of the sources of plugins, and adds the problems found to the diagnostics. Returns the engines
    /// with the names of their sources.
    pub(crate) fn compile_sources(&mut self) -> SourceEngines {
        self.compile_sources_with(&EngineOptions::default(), &DeferredSink::default())
    }

    /// As [`RulesWithPlugins::compile_sources`], with options and a sink for alerts.
    pub(crate) fn compile_sources_with(
        &mut self,
        options: &EngineOptions,
        sink: &(impl AlertSink + Clone + 'static),
    ) -> SourceEngines {
        let plugins = self.plugins.as_ref();
        plugins.map_or_else(Vec::new, |plugins| {
            plugins.compile(&mut self.loaded, options, sink)
        })
    }
}
