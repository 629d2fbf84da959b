//! The plugins that a configuration loads.

use std::collections::BTreeMap;
use std::sync::Arc;

use event::ValueType;
use event::field::{ArgumentKind, PluginField, SourceFields};
use rules::load::{SYSCALL_SOURCE, Version};

use crate::host_process::{Helper, HelperError, Limits};
use crate::protocol::{ArgumentDescription, Description, FieldType, PluginSpec};
use crate::source::SourcePlan;

/// A plugin as the configuration has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    /// Name and library, `init_config` as the plugin takes it, and `open_params`.
    pub spec: PluginSpec,
}

/// A plugin with what it says about itself.
#[derive(Clone, Debug)]
pub struct LoadedPlugin {
    /// As configured.
    pub config: PluginConfig,
    /// As it describes itself.
    pub description: Description,
    /// Its version.
    pub version: Version,
}

/// All plugins of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    plugins: Vec<LoadedPlugin>,
    sources: BTreeMap<String, Arc<SourceFields>>,
}

/// Why plugins cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// A plugin cannot be loaded.
    #[error("cannot load plugin `{name}` from {library}: {cause}")]
    Load {
        /// Its name in the configuration.
        name: String,
        /// Its library.
        library: String,
        /// Why.
        cause: HelperError,
    },
    /// A plugin is not what the configuration or another plugin says, or needs what is not there.
    #[error("cannot use plugin `{name}`: {cause}")]
    Unfit {
        /// Its name in the configuration.
        name: String,
        /// Why.
        cause: String,
    },
}

impl Catalogue {
    /// Loads each plugin in a process of its own, and asks what it is. Then loads the plugins of each source together, as they
    /// are when it is opened. No source is opened.
    ///
    /// # Errors
    ///
    /// Names the plugin that cannot be loaded, or that needs what this program does not have.
    pub fn load(configured: &[PluginConfig], limits: &Limits) -> Result<Self, CatalogueError> {
        let mut plugins: Vec<LoadedPlugin> = Vec::new();
        let mut needs_others = Vec::new();
        for config in configured {
            let before: Vec<_> = plugins.iter().map(|plugin| &plugin.config.spec).collect();
            let (description, is_alone) = describe(config, &before, limits)?;
            if !is_alone {
                needs_others.push(description.source.clone());
            }
            let unfit = |cause: String| CatalogueError::Unfit {
                name: config.spec.name.clone(),
                cause,
            };
            let version = Version::parse(&description.version)
                .ok_or_else(|| unfit(format!("`{}` is not a version", description.version)))?;
            refuse(&description, &plugins).map_or(Ok(()), |cause| Err(unfit(cause)))?;
            plugins.push(LoadedPlugin {
                config: config.clone(),
                description,
                version,
            });
        }
        let mut catalogue = Self {
            plugins,
            sources: BTreeMap::new(),
        };
        catalogue.sources = catalogue.tables();
        if let Some(idle) = catalogue
            .plugins
            .iter()
            .find(|plugin| catalogue.is_idle(plugin))
        {
            return Err(CatalogueError::Unfit {
                name: idle.config.spec.name.clone(),
                cause: catalogue.idle_cause(idle),
            });
        }
        catalogue.try_sources(&needs_others, limits)?;
        Ok(catalogue)
    }

    /// Loads the plugins of each source as they are when it is opened. A plugin was described beside all plugins before it, and
    /// may need one that does not serve the source. `needs_others`: sources whose plugin does not load alone.
    fn try_sources(&self, needs_others: &[String], limits: &Limits) -> Result<(), CatalogueError> {
        for source in self.sources.keys() {
            let plugins = self.plugins_of(source);
            let specs = plugins.iter().map(|plugin| plugin.config.spec.clone());
            let specs: Vec<_> = specs.collect();
            // What one plugin does alone is known.
            if specs.len() < 2 && !needs_others.contains(source) {
                continue;
            }
            let tried = Helper::start(limits).and_then(|mut helper| helper.load(&specs));
            if let Err(error) = tried {
                let own = plugins.iter().find(|plugin| plugin.is_source(source));
                let names: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
                return Err(CatalogueError::Unfit {
                    name: own.map_or_else(String::new, |own| own.config.spec.name.clone()),
                    cause: format!(
                        "its source `{source}` cannot start: a source has only the plugins that add events to it, take fields \
                         from them or parse them, here {}: {error}",
                        names.join(", ")
                    ),
                });
            }
        }
        Ok(())
    }

    /// Returns the plugins, in the order of the configuration.
    #[must_use]
    pub fn plugins(&self) -> &[LoadedPlugin] {
        &self.plugins
    }

    /// Returns the sources with their fields, by name.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &Arc<SourceFields>)> {
        self.sources
            .iter()
            .map(|(name, fields)| (name.as_str(), fields))
    }

    /// Returns the fields of a source, if a plugin is that source.
    #[must_use]
    pub fn fields(&self, source: &str) -> Option<&Arc<SourceFields>> {
        self.sources.get(source)
    }

    /// Returns the plugin that is a source, and those that add events to it, take fields from them or parse them, in the order
    /// of the configuration: a plugin may need tables of those before it. Empty if no plugin is that source.
    #[must_use]
    pub fn plugins_of(&self, source: &str) -> Vec<&LoadedPlugin> {
        if !self.plugins.iter().any(|plugin| plugin.is_source(source)) {
            return Vec::new();
        }
        let serves = |plugin: &&LoadedPlugin| {
            let description = &plugin.description;
            plugin.is_source(source)
                || description.extracts(source)
                || description.parses(source)
                || description.adds_to(source)
        };
        self.plugins.iter().filter(serves).collect()
    }

    /// Returns how a source is run; `None` if there is none of this name.
    #[must_use]
    pub fn plan(&self, source: &str, limits: &Limits) -> Option<SourcePlan> {
        let plugins = self.plugins_of(source);
        plugins.first()?;
        Some(SourcePlan {
            source: source.to_owned(),
            plugins: plugins
                .iter()
                .map(|plugin| plugin.config.spec.clone())
                .collect(),
            limits: limits.clone(),
        })
    }

    fn tables(&self) -> BTreeMap<String, Arc<SourceFields>> {
        let sources = self.plugins.iter().map(|plugin| &plugin.description.source);
        let sources = sources.filter(|source| !source.is_empty());
        // As in Falco a rule may name asynchronous events of any loaded plugin.
        let types = self.plugins.iter();
        let types = types.flat_map(|plugin| plugin.description.async_events.iter().cloned());
        let types: Vec<_> = types.collect();
        let table = |source: &String| {
            let plugins = self.plugins_of(source).into_iter();
            let plugins = plugins.filter(|plugin| plugin.description.extracts(source));
            let fields = plugins.map(|plugin| {
                let fields = plugin.description.fields.iter().map(plugin_field);
                (plugin.description.name.clone(), fields.collect())
            });
            let fields: Vec<_> = fields.collect();
            let fields = SourceFields::new(source, &fields).with_types(&types);
            (source.clone(), Arc::new(fields))
        };
        sources.map(table).collect()
    }

    /// Returns true if a plugin adds events to sources that no loaded plugin has.
    fn adds_nowhere(&self, plugin: &LoadedPlugin) -> bool {
        let mut sources = self.sources.keys();
        let adds_none = !sources.any(|source| plugin.description.adds_to(source));
        plugin.description.capabilities.async_events && adds_none
    }

    /// Returns why a plugin serves no source.
    fn idle_cause(&self, plugin: &LoadedPlugin) -> String {
        let description = &plugin.description;
        if !self.adds_nowhere(plugin) {
            return "it takes fields from events of sources that no loaded plugin has, or parses them; fields of system calls are \
                    built in and cannot be extended"
                .to_owned();
        }
        if description.adds_to(SYSCALL_SOURCE) {
            return "it adds events to system calls, which is not supported, and to no source of a loaded plugin".to_owned();
        }
        format!(
            "it adds events to sources that no loaded plugin has: {}",
            description.adds_to.join(", ")
        )
    }

    /// Returns true if a plugin has a capability that serves no source.
    fn is_idle(&self, plugin: &LoadedPlugin) -> bool {
        let description = &plugin.description;
        let can = description.capabilities;
        let mut sources = self.sources.keys();
        let takes_none = !sources.any(|source| description.extracts(source));
        let mut sources = self.sources.keys();
        let parses_none = !sources.any(|source| description.parses(source));
        self.adds_nowhere(plugin)
            || description.source.is_empty()
                && (can.extraction && takes_none || can.parsing && parses_none)
    }
}

impl LoadedPlugin {
    /// Returns true if the plugin makes the events of this source.
    pub(crate) fn is_source(&self, source: &str) -> bool {
        self.description.source == source
    }
}

impl Description {
    /// Returns true if the plugin takes fields from events of this source.
    #[must_use]
    pub fn extracts(&self, source: &str) -> bool {
        let from = &self.extracts_from;
        self.capabilities.extraction
            && (from.is_empty() || from.iter().any(|known| known == source))
    }
}

impl Description {
    /// Returns true if the plugin parses events of this source.
    #[must_use]
    pub fn parses(&self, source: &str) -> bool {
        let from = &self.parses_from;
        self.capabilities.parsing && (from.is_empty() || from.iter().any(|known| known == source))
    }
}

impl Description {
    /// Returns true if the plugin adds asynchronous events to this source.
    #[must_use]
    pub fn adds_to(&self, source: &str) -> bool {
        let to = &self.adds_to;
        self.capabilities.async_events && (to.is_empty() || to.iter().any(|known| known == source))
    }
}

/// Asks a plugin what it is. One that does not work alone may need tables of plugins `before` it. Returns whether it works alone.
fn describe(
    config: &PluginConfig,
    before: &[&PluginSpec],
    limits: &Limits,
) -> Result<(Description, bool), CatalogueError> {
    let last = |plugins: &[PluginSpec]| {
        let mut helper = Helper::start(limits)?;
        let mut all = helper.load(plugins)?;
        // `load` has compared their number, which is not 0.
        Ok(all.remove(plugins.len() - 1))
    };
    let alone = last(std::slice::from_ref(&config.spec));
    let is_alone = alone.is_ok();
    let described = match alone {
        Err(HelperError::Plugin(_)) if !before.is_empty() => {
            let before = before.iter().map(|spec| (*spec).clone());
            let all: Vec<_> = before.chain([config.spec.clone()]).collect();
            last(&all)
        }
        alone => alone,
    };
    let described = described.map(|description| (description, is_alone));
    described.map_err(|cause| CatalogueError::Load {
        name: config.spec.name.clone(),
        library: config.spec.library.clone(),
        cause,
    })
}

/// Returns why a plugin cannot be used beside those before it, if so.
fn refuse(plugin: &Description, before: &[LoadedPlugin]) -> Option<String> {
    let can = plugin.capabilities;
    if let Some(same) = before
        .iter()
        .find(|other| other.description.name == plugin.name)
    {
        return Some(format!(
            "it has the name of plugin `{}`",
            same.config.spec.name
        ));
    }
    let is_source = |other: &&LoadedPlugin| {
        !plugin.source.is_empty() && other.description.source == plugin.source
    };
    if let Some(same) = before.iter().find(is_source) {
        let other = &same.config.spec.name;
        return Some(format!(
            "plugin `{other}` is the source `{}` already",
            plugin.source
        ));
    }
    let has_number = |other: &&LoadedPlugin| {
        let other = &other.description;
        !plugin.source.is_empty() && !other.source.is_empty() && other.id == plugin.id
    };
    // Events have the number alone, so that those of a capture would go to one of both.
    if let Some(same) = before.iter().find(has_number) {
        return Some(format!(
            "its events have the plugin ID {}, as those of plugin `{}` have",
            plugin.id, same.config.spec.name
        ));
    }
    if can.sourcing && plugin.source.is_empty() || plugin.source == SYSCALL_SOURCE {
        return Some("it makes system calls; these are captured by the engine alone".to_owned());
    }
    if can.listening {
        return Some("it listens to captures, which is not supported".to_owned());
    }
    if plugin.parses_system_calls {
        return Some("it parses system calls, which is not supported".to_owned());
    }
    let does_nothing = !can.sourcing && !can.extraction && !can.parsing && !can.async_events;
    does_nothing.then(|| {
        "it is no event source, takes no fields from events, parses none and adds none".to_owned()
    })
}

fn plugin_field(field: &crate::protocol::FieldDescription) -> PluginField {
    PluginField {
        name: field.name.clone(),
        ty: match field.ty {
            FieldType::Text => ValueType::Text,
            FieldType::Uint => ValueType::Uint,
            FieldType::Bool => ValueType::Bool,
            FieldType::RelTime => ValueType::RelTime,
            FieldType::AbsTime => ValueType::AbsTime,
            FieldType::Ip => ValueType::Ip,
            FieldType::Net => ValueType::Net,
        },
        multi: field.is_list,
        argument: argument(field.argument),
        description: field.description.clone(),
    }
}

fn argument(argument: ArgumentDescription) -> ArgumentKind {
    let required = argument.is_required;
    match (argument.is_index, argument.is_key) {
        (false, false) => ArgumentKind::None,
        (true, false) => ArgumentKind::Index { required },
        (false, true) => ArgumentKind::Name { required },
        (true, true) => ArgumentKind::IndexOrName { required },
    }
}
