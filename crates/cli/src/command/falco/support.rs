//! `--support`: data for a bug report.

use agent::version;
use config::Config;
use config::rule_files::Loaded;
use serde_json::{Value, json};

use super::args::Falco;

/// Returns the object that Falco prints.
pub(super) fn support(config: &Config, loaded: &Loaded, args: &Falco) -> Value {
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let words: Vec<_> = std::env::args_os().collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let rules = loaded.files.iter().map(|file| {
        // A file that could not be read has already stopped the start.
        let content = file.text.as_deref().unwrap_or_default();
        json!({ "name": &*file.name, "variants": [{ "content": content }] })
    });
    let files = config.files.iter().map(|file| {
        let content = std::fs::read_to_string(file);
        json!({
            "name": file.display().to_string(),
            "content": content.unwrap_or_else(|error| format!("cannot read it: {error}")),
        })
    });
    json!({
        "cmdline": words.join(" "),
        "config": { "files": files.collect::<Vec<_>>(), "options": args.options },
        "engine_info": version::versions(),
        "rules_files": rules.collect::<Vec<_>>(),
        "system_info": {
            "machine": text(system.machine()),
            "nodename": text(system.nodename()),
            "release": text(system.release()),
            "sysname": text(system.sysname()),
            "version": text(system.version()),
        },
        "version": version::FALCO_VERSION,
    })
}
