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
    /// Loads each plugin in a process of its own, and asks what it is. No source is opened.
    ///
    /// # Errors
    ///
    /// Names the plugin that cannot be loaded, or that needs what this program does not have.
    pub fn load(configured: &[PluginConfig], limits: &Limits) -> Result<Self, CatalogueError> {
        let mut plugins: Vec<LoadedPlugin> = Vec::new();
        for config in configured {
            let description = describe(config, limits)?;
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
                cause: "it takes fields from events of sources that no loaded plugin has; fields of system calls \
                        are built in and cannot be extended"
                    .to_owned(),
            });
        }
        Ok(catalogue)
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

    /// Returns the plugin that is a source, then those that take fields from its events.
    #[must_use]
    pub fn plugins_of(&self, source: &str) -> Vec<&LoadedPlugin> {
        let is_source = |plugin: &&LoadedPlugin| plugin.description.source == source;
        let Some(first) = self.plugins.iter().find(is_source) else {
            return Vec::new();
        };
        let others = self.plugins.iter().filter(|plugin| {
            plugin.description.source != source && plugin.description.extracts(source)
        });
        std::iter::once(first).chain(others).collect()
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
        let table = |source: &String| {
            let fields = self.plugins_of(source).into_iter().map(|plugin| {
                let fields = plugin.description.fields.iter().map(plugin_field);
                (plugin.description.name.clone(), fields.collect())
            });
            let fields: Vec<_> = fields.collect();
            (source.clone(), Arc::new(SourceFields::new(source, &fields)))
        };
        sources.map(table).collect()
    }

    /// Returns true if a plugin serves no source.
    fn is_idle(&self, plugin: &LoadedPlugin) -> bool {
        let description = &plugin.description;
        description.source.is_empty()
            && !self
                .sources
                .keys()
                .any(|source| description.extracts(source))
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

fn describe(config: &PluginConfig, limits: &Limits) -> Result<Description, CatalogueError> {
    let described = Helper::start(limits).and_then(|mut helper| {
        let mut all = helper.load(std::slice::from_ref(&config.spec))?;
        // `load` has compared their number.
        Ok(all.remove(0))
    });
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
    if can.sourcing && plugin.source.is_empty() || plugin.source == SYSCALL_SOURCE {
        return Some("it makes system calls; these are captured by the engine alone".to_owned());
    }
    if !can.sourcing && !can.extraction {
        let unsupported = "it neither is an event source nor takes fields from events; parsing of events, events of \
                           plugins in other sources and listening to captures are not supported without";
        return Some(unsupported.to_owned());
    }
    if can.parsing || can.async_events || can.listening {
        let unsupported = "it parses events, adds events to other sources, or listens to captures, which is not \
                           supported";
        return Some(unsupported.to_owned());
    }
    None
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
