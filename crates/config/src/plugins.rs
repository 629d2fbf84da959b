//! `load_plugins`, `plugins` and `plugin_host`: which plugins are loaded, and by which program.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rules::diagnostic::closest;
use serde_json::{Map, Value as Json};
use yaml::key::Key;
use yaml::settings::{Entry, Node, Problem, Value};

use crate::model::Config;

/// Plugin whose fields are built in.
const BUILTIN: &str = "container";
/// Folder of libraries that are named without a path, as Falco's.
const FOLDER: &str = "/usr/share/falco/plugins";

/// Bounds of `plugin_host.memory`: a runtime such as that of Go does not start with less, and more is no bound for a plugin.
const MIN_MEMORY: u64 = 128;
const MAX_MEMORY: u64 = 1 << 24;

/// `load_plugins`, `plugins` and `plugin_host`.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginSettings {
    /// `load_plugins`: names of the plugins to load; `None` for all that are described.
    pub load: Option<Vec<String>>,
    /// `plugins`: descriptions.
    pub described: Vec<PluginSetting>,
    /// `plugin_host.disabled_sources`: sources that are not opened.
    pub disabled_sources: Vec<String>,
    /// `plugin_host.program`: the program that loads plugins; empty for the one beside this program.
    pub program: PathBuf,
    /// `plugin_host.timeout`: longest time without a sign of life of a plugin, in milliseconds.
    pub timeout_ms: u64,
    /// `plugin_host.memory`: most memory of the plugins of a source, in MiB; 0 for any.
    pub memory_mib: u64,
}

/// One item of `plugins`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginSetting {
    /// Name.
    pub name: String,
    /// Path of the library.
    pub library: PathBuf,
    /// `init_config` as the plugin takes it: text, or JSON.
    pub init_config: String,
    /// `open_params`.
    pub open_params: String,
}

impl Default for PluginSettings {
    fn default() -> Self {
        Self {
            load: None,
            described: Vec::new(),
            disabled_sources: Vec::new(),
            program: PathBuf::new(),
            timeout_ms: 30_000,
            memory_mib: 4096,
        }
    }
}

impl PluginSettings {
    /// Returns the plugins to load, in the order of their descriptions. The built-in one is not among them.
    pub fn loaded(&self) -> impl Iterator<Item = &PluginSetting> {
        self.described.iter().filter(|plugin| {
            let is_named = |names: &Vec<String>| names.contains(&plugin.name);
            plugin.name != BUILTIN && self.load.as_ref().is_none_or(is_named)
        })
    }

    /// Returns the longest time without a sign of life of a plugin.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Returns the most memory of the process of a source in bytes; `None` for any.
    #[must_use]
    pub fn memory(&self) -> Option<u64> {
        (self.memory_mib > 0).then_some(self.memory_mib << 20)
    }
}

/// The keys.
#[rustfmt::skip]
pub(crate) const KEYS: &[Key<Config>] = &[
    Key::other("load_plugins", "array", |config, node| {
        config.plugins.load = match node.value {
            Value::Null => None,
            _ => Some(node.texts()?),
        };
        Ok(())
    }),
    Key::texts("plugin_host.disabled_sources", |config| &mut config.plugins.disabled_sources),
    Key::other("plugin_host.memory", "integer", |config, node| {
        let mib = node.integer()?;
        if !(mib == 0 || (MIN_MEMORY..=MAX_MEMORY).contains(&mib)) {
            let message = format!("{mib} MiB are no memory for plugins");
            let help = format!("name {MIN_MEMORY} to {MAX_MEMORY} MiB, or 0 for no limit");
            return Err(Problem::new(&node.origin, message).help(help));
        }
        config.plugins.memory_mib = mib;
        Ok(())
    }),
    Key::file("plugin_host.program", |config| &mut config.plugins.program),
    Key::other("plugin_host.timeout", "integer", |config, node| {
        let timeout_ms = node.integer()?;
        if timeout_ms < 100 {
            let message = format!("{timeout_ms} ms are too short for a sign of life of a plugin");
            return Err(Problem::new(&node.origin, message).help("name at least 100"));
        }
        config.plugins.timeout_ms = timeout_ms;
        Ok(())
    }),
    Key::other("plugins", "array", |config, node| {
        config.plugins.described = match node.value {
            Value::Null => Vec::new(),
            _ => node.list()?.iter().map(plugin).collect::<Result<_, _>>()?,
        };
        Ok(())
    }),
];

/// Keys of an item of `plugins`.
const ITEM_KEYS: [&str; 4] = ["name", "library_path", "init_config", "open_params"];

fn plugin(node: &Node) -> Result<PluginSetting, Problem> {
    let mut setting = PluginSetting {
        name: String::new(),
        library: PathBuf::new(),
        init_config: String::new(),
        open_params: String::new(),
    };
    for Entry { key, node, origin } in node.group()? {
        match key.as_str() {
            "name" => setting.name = node.text()?.to_owned(),
            "library_path" => setting.library = library(node.text()?),
            "init_config" => setting.init_config = init_config(node)?,
            "open_params" if node.value == Value::Null => {}
            "open_params" => setting.open_params = node.text()?.to_owned(),
            _ => {
                let problem = Problem::new(origin, format!("unknown key `{key}` of a plugin"));
                return Err(problem.help(match closest(key, ITEM_KEYS) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the keys are {}", ITEM_KEYS.join(", ")),
                }));
            }
        }
    }
    let missing = |key: &str| {
        Problem::new(&node.origin, format!("a plugin needs the key `{key}`"))
            .help("write it as `- {name: json, library_path: libjson.so}`")
    };
    if setting.name.is_empty() {
        return Err(missing("name"));
    }
    if setting.library.as_os_str().is_empty() && setting.name != BUILTIN {
        return Err(missing("library_path"));
    }
    Ok(setting)
}

fn library(text: &str) -> PathBuf {
    match text {
        "" => PathBuf::new(),
        // An absolute path replaces the folder.
        _ => Path::new(FOLDER).join(text),
    }
}

/// Returns the configuration as a plugin takes it: a text as it is, anything else as JSON.
fn init_config(node: &Node) -> Result<String, Problem> {
    match &node.value {
        Value::Null => Ok(String::new()),
        Value::Scalar { text, .. } => Ok(text.clone()),
        Value::List(_) | Value::Map(_) => json(node).map(|json| json.to_string()),
    }
}

/// Returns a value as JSON. Texts without quotes that are numbers or booleans become these, as in Falco.
fn json(node: &Node) -> Result<Json, Problem> {
    Ok(match &node.value {
        Value::Null => Json::Null,
        Value::Scalar { text, quoted: true } => Json::from(text.as_str()),
        Value::Scalar { text, .. } => {
            let number = text.parse::<i64>().map(Json::from).ok();
            let float = || {
                text.parse::<f64>()
                    .ok()
                    .and_then(serde_json::Number::from_f64)
            };
            let truth = || node.boolean().ok().map(Json::from);
            let number = number.or_else(|| float().map(Json::from));
            number
                .or_else(truth)
                .unwrap_or_else(|| Json::from(text.as_str()))
        }
        Value::List(items) => Json::Array(items.iter().map(json).collect::<Result<_, _>>()?),
        Value::Map(entries) => {
            let members = entries
                .iter()
                .map(|entry| Ok((entry.key.clone(), json(&entry.node)?)));
            Json::Object(members.collect::<Result<Map<_, _>, Problem>>()?)
        }
    })
}

/// Returns the problem of a plugin that is to be loaded and not described, if there is one.
pub(crate) fn undescribed(config: &Config, root: &Node) -> Option<Problem> {
    let described = || {
        config
            .plugins
            .described
            .iter()
            .map(|plugin| plugin.name.as_str())
    };
    let wanted = root.entry("load_plugins")?.node.list().ok()?;
    let is_missing = |item: &&Node| {
        let name = item.text().ok();
        name.is_some_and(|name| name != BUILTIN && described().all(|known| known != name))
    };
    let item = wanted.iter().find(is_missing)?;
    let name = item.text().ok()?;
    let message = format!("`load_plugins` names `{name}`, which `plugins` does not describe");
    let help = match closest(name, described().chain([BUILTIN])) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("add `- {{name: {name}, library_path: lib{name}.so}}` to `plugins`"),
    };
    Some(Problem::new(&item.origin, message).help(help))
}

#[cfg(test)]
mod tests {
    use super::*;
    use yaml::settings;

    fn described(text: &str) -> Result<Vec<PluginSetting>, Problem> {
        let node = settings::read("c", text).expect("good YAML");
        node.list()?.iter().map(plugin).collect()
    }

    #[test]
    fn a_configuration_is_passed_as_the_plugin_takes_it() {
        let found = described(
            "- {name: a, library_path: liba.so, init_config: {port: 1, on: true, text: '1', list: [x, 1.5]}}\n\
             - {name: b, library_path: /x/b.so, init_config: '{\"a\": 1}', open_params: 'http://:9/x'}\n",
        )
        .expect("they are good");
        assert_eq!(
            found[0].library,
            Path::new("/usr/share/falco/plugins/liba.so")
        );
        let json: Json = serde_json::from_str(&found[0].init_config).expect("JSON");
        let expected = serde_json::json!({"port": 1, "on": true, "text": "1", "list": ["x", 1.5]});
        assert_eq!(json, expected);
        assert_eq!(found[1].library, Path::new("/x/b.so"));
        assert_eq!(found[1].init_config, "{\"a\": 1}");
        assert_eq!(found[1].open_params, "http://:9/x");
    }

    #[test]
    fn items_without_name_or_library_and_unknown_keys_are_refused() {
        for (text, expected) in [
            ("- {library_path: a.so}", "needs the key `name`"),
            ("- {name: a}", "needs the key `library_path`"),
            (
                "- {name: a, library: a.so}",
                "unknown key `library` of a plugin",
            ),
            ("- a", "expected"),
        ] {
            let problem = described(text).expect_err(text);
            assert!(problem.message.contains(expected), "{problem:?}");
        }
        let near = described("- {name: a, library_pat: a.so}").expect_err("a mistake");
        assert_eq!(near.help.as_deref(), Some("did you mean `library_path`?"));
    }
}
