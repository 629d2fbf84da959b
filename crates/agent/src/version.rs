//! Version numbers, for `--version` and other places.

use rules::load::{BUILTIN_PLUGINS, ENGINE_VERSION};
use serde_json::{Map, Value, json};

/// Falco version with which command line, configuration and rules are compatible.
pub const FALCO_VERSION: &str = "0.44.1";
/// Versions of Falco's parts, which tools use to select rules and plugins.
const LIBS_VERSION: &str = "0.25.4";
const PLUGIN_API_VERSION: &str = "3.12.0";
const DRIVER_API_VERSION: &str = "10.1.0";
/// Schema version of the events of Falco's drivers.
pub const DRIVER_SCHEMA_VERSION: &str = "4.5.1";
const DRIVER_VERSION: &str = "10.1.0+driver";

/// Returns Falco's object for `/versions` and `--version -o json_output=true`, with our own
/// version.
pub fn versions() -> Value {
    let plugins: Map<_, _> = BUILTIN_PLUGINS
        .iter()
        .map(|(name, version)| ((*name).to_owned(), Value::from(version.to_string())))
        .collect();
    json!({
        "default_driver_version": DRIVER_VERSION,
        "driver_api_version": DRIVER_API_VERSION,
        "driver_schema_version": DRIVER_SCHEMA_VERSION,
        // The number that older tools compare.
        "engine_version": ENGINE_VERSION.minor.to_string(),
        "engine_version_semver": ENGINE_VERSION.to_string(),
        "falco_version": FALCO_VERSION,
        "libs_version": LIBS_VERSION,
        "plugin_api_version": PLUGIN_API_VERSION,
        "plugin_versions": plugins,
        "tollgate_version": env!("CARGO_PKG_VERSION"),
    })
}

/// Returns Falco's output of `--version`, with our own version.
pub fn text() -> String {
    format!(
        "Falco version: {FALCO_VERSION}\nLibs version:  {LIBS_VERSION}\n\
         Plugin API:    {PLUGIN_API_VERSION}\nEngine:        {ENGINE_VERSION}\nDriver:\n  \
         API version:    {DRIVER_API_VERSION}\n  Schema version: {DRIVER_SCHEMA_VERSION}\n  \
         Default driver: {DRIVER_VERSION}\nTollgate:      {}\n",
        env!("CARGO_PKG_VERSION")
    )
}
