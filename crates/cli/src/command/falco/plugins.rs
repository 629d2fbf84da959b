//! Options about plugins and event sources.

use agent::journal;
use agent::plugins::{Plugins, is_syscall};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use plugin::LoadedPlugin;
use rules::Priority;
use rules::diagnostic::closest;
use rules::load::{BUILTIN_PLUGINS, SYSCALL_SOURCE, Version};

use super::args::Falco;
use super::list;

/// Returns true if an option asks for the plugins of the configuration.
pub(super) fn are_asked_for(args: &Falco) -> bool {
    args.list_plugins || args.plugin_info.is_some() || args.list.is_some()
}

/// Executes `--list-plugins`, `--plugin-info` and `--list`.
pub(super) fn execute(args: &Falco, plugins: &Plugins) -> Outcome {
    if let Some(name) = &args.plugin_info {
        return terminal::print(&info(name, plugins)?);
    }
    if args.list_plugins {
        return terminal::print(&all(plugins));
    }
    match args.list.as_deref() {
        None => Ok(Exit::Ok),
        Some(source) => fields(source, args, plugins),
    }
}

fn builtin((name, version): (&str, Version)) -> String {
    format!(
        "Name: {name}\nDescription: fields of containers and pods, built in\nVersion: {version}\n\
         Capabilities: \n  - Field Extraction\n"
    )
}

fn info(name: &str, plugins: &Plugins) -> Result<String, Failure> {
    // Plugins have a name, and the name of the library in which Falco has them.
    let is_meant = |known: &str| known == name || *name == format!("lib{known}.so");
    if let Some(plugin) = BUILTIN_PLUGINS
        .into_iter()
        .find(|(known, _)| is_meant(known))
    {
        let schema = "\nInit config schema type: Not available: the plugin is built in and has no init_config\n\n";
        return Ok(builtin(plugin) + schema);
    }
    let loaded = plugins.catalogue().plugins();
    let is_meant = |plugin: &&LoadedPlugin| {
        is_meant(&plugin.description.name)
            || plugin.config.spec.name == name
            || plugin.config.spec.library == name
    };
    if let Some(plugin) = loaded.iter().find(is_meant) {
        return Ok(plugin::plugin_info(plugin, true) + "\n");
    }
    let known = loaded.iter().map(|plugin| plugin.description.name.as_str());
    let known = known.chain(BUILTIN_PLUGINS.map(|(name, _)| name));
    let message = format!("cannot show plugin `{name}`: it is not loaded");
    Err(
        Failure::new(Exit::BadInput, message).help(match closest(name, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "--list-plugins shows those that are; load_plugins and plugins load others"
                .to_owned(),
        }),
    )
}

fn all(plugins: &Plugins) -> String {
    let loaded = plugins.catalogue().plugins();
    let count = BUILTIN_PLUGINS.len() + loaded.len();
    let mut text = format!("{count} Plugins Loaded:\n\n");
    for plugin in BUILTIN_PLUGINS {
        text.push_str(&builtin(plugin));
        text.push('\n');
    }
    for plugin in loaded {
        text.push_str(&plugin::plugin_info(plugin, false));
        text.push('\n');
    }
    text
}

fn fields(source: &str, args: &Falco, plugins: &Plugins) -> Outcome {
    let wanted = |name: &str| source.is_empty() || source == name;
    let mut groups = Vec::new();
    if wanted(SYSCALL_SOURCE) {
        groups.extend(list::of_syscalls());
    }
    for (name, fields) in plugins.catalogue().sources() {
        if wanted(name) {
            groups.extend(list::of_plugins(name, fields));
        }
    }
    if groups.is_empty() {
        let message = format!("cannot list the fields of `{source}`: no such source");
        return Err(Failure::new(Exit::BadInput, message).help(known(source, plugins)));
    }
    let text = list::fields(&groups, super::form(args), args.names_only, args.verbose);
    terminal::print(&text)
}

/// Returns a hint at the existing sources.
fn known(source: &str, plugins: &Plugins) -> String {
    let names = plugins.catalogue().sources().map(|(name, _)| name);
    let names: Vec<_> = std::iter::once(SYSCALL_SOURCE).chain(names).collect();
    match closest(source, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if names.len() == 1 => "the only one is syscall; plugins add others".to_owned(),
        None => format!("the sources are {}", names.join(", ")),
    }
}

/// Checks the event sources that options switch, and returns the settings that the options stand for.
pub(super) fn switched(args: &Falco, plugins: &Plugins) -> Result<Vec<String>, Failure> {
    let names = plugins.catalogue().sources().map(|(name, _)| name);
    let names: Vec<_> = std::iter::once(SYSCALL_SOURCE).chain(names).collect();
    let mut switched = args.enable_source.iter().chain(&args.disable_source);
    if let Some(source) = switched.find(|source| !names.contains(&source.as_str())) {
        let message = format!("cannot switch event source `{source}`: it is unknown");
        return Err(Failure::new(Exit::BadInput, message).help(known(source, plugins)));
    }
    let is_listed = |list: &[String], name: &str| list.iter().any(|source| source == name);
    let is_off = |name: &&str| match args.enable_source.is_empty() {
        true => is_listed(&args.disable_source, name),
        false => !is_listed(&args.enable_source, name),
    };
    let (off, on): (Vec<&str>, Vec<&str>) = names.into_iter().partition(is_off);
    if on.is_empty() {
        let message = "cannot disable all event sources";
        return Err(Failure::new(Exit::BadInput, message).help("leave one --disable-source out"));
    }
    let mut assignments = Vec::new();
    let of_plugins = off.iter().filter(|name| !is_syscall(name));
    let of_plugins: Vec<_> = of_plugins.map(|name| format!("'{name}'")).collect();
    if !of_plugins.is_empty() {
        let list = of_plugins.join(", ");
        assignments.push(format!("plugin_host.disabled_sources=[{list}]"));
    }
    if off.iter().any(|name| is_syscall(name)) {
        assignments.push("engine.kind=nodriver".to_owned());
    }
    Ok(assignments)
}

/// Prints which sources there are, and which are opened.
pub(super) fn announce(plugins: &Plugins, is_syscall_open: bool, disabled: &[String]) {
    let names = plugins.catalogue().sources().map(|(name, _)| name);
    let all: Vec<_> = std::iter::once(SYSCALL_SOURCE).chain(names).collect();
    let is_open = |name: &&str| match is_syscall(name) {
        true => is_syscall_open,
        false => !disabled.iter().any(|disabled| disabled == name),
    };
    let open: Vec<_> = all.iter().copied().filter(is_open).collect();
    for (what, names) in [("Loaded", all), ("Enabled", open)] {
        let text = format!("{what} event sources: {}", names.join(", "));
        journal::say(Priority::Informational, &text);
    }
}
