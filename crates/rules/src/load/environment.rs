//! What rules may refer to: event sources and plugins, and what to do about those that are missing.

use super::Config;
use crate::diagnostic::{Code, Diagnostic, closest};
use crate::ruleset::PluginRequirement;
use crate::version::Version;

/// Returns the sources that there are, and what adds one.
pub(super) fn known_sources(wanted: &str, config: &Config) -> String {
    let known = || config.sources.iter().map(String::as_str);
    let near = closest(wanted, known()).map(|near| format!("did you mean `{near}`? "));
    let all: Vec<_> = known().collect();
    format!(
        "{}the known sources are {}; `plugins` and `load_plugins` of the configuration name the plugins that add others",
        near.unwrap_or_default(),
        all.join(", ")
    )
}

pub(super) fn check_plugin(requirement: &PluginRequirement, config: &Config) -> Option<Diagnostic> {
    let loaded = |(name, required): &(String, Version)| {
        config
            .plugins
            .get(name)
            .is_some_and(|have| have.satisfies(*required))
    };
    if requirement.alternatives.iter().any(loaded) {
        return None;
    }
    let wanted: Vec<String> = requirement
        .alternatives
        .iter()
        .map(|(name, version)| match config.plugins.get(name) {
            Some(have) => format!("{name} >= {version} (this is {have})"),
            None => format!("{name} >= {version}"),
        })
        .collect();
    let message = format!("the rules need a missing plugin: {}", wanted.join(" or "));
    let have: Vec<String> = config
        .plugins
        .iter()
        .map(|(n, v)| format!("{n} {v}"))
        .collect();
    let help = format!(
        "name it in `plugins` and `load_plugins` of the configuration, or leave these rules out; there is {}",
        have.join(", ")
    );
    Some(Diagnostic::new(Code::Validate, requirement.location.clone(), message).with_help(help))
}
