//! Response files: which alerts start which actions.

use config::Config;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use event::EngineKind;
use response::{Limits, Prepared, Settings, load};
use rules::Engine;

use crate::journal;

/// Reads the response files of a configuration and opens what their actions need. `None` without files. `is_silent`:
/// warnings were shown before, or are not wanted.
///
/// # Errors
///
/// A file has an error, or an action cannot be used.
pub(super) fn prepare(
    config: &Config,
    engine: EngineKind,
    rules: &Engine,
    is_silent: bool,
) -> Result<Option<Prepared>, Failure> {
    let wanted = &config.responses;
    if wanted.files.is_empty() {
        return Ok(None);
    }
    let files = load::read_files(&wanted.files);
    let mut loaded = load::load(files, &wanted.accept_partial);
    let names: Vec<_> = rules.matches().map(|(name, _)| name).collect();
    loaded.check_rules(&names);
    loaded.usable()?;
    let text = loaded.render();
    if !is_silent && !text.is_empty() {
        journal::warn(text.trim_end());
    }
    let settings = Settings {
        dry_run: wanted.dry_run,
        limits: Limits {
            total: wanted.total,
            each: wanted.each,
        },
        caller_waits: matches!(engine, EngineKind::Notify | EngineKind::Ptrace),
        has_local_pids: matches!(
            engine,
            EngineKind::Notify | EngineKind::Ptrace | EngineKind::Ebpf
        ),
    };
    let prepared = Prepared::new(loaded.responses, settings);
    prepared.map(Some).map_err(|error| {
        Failure::from_error(Exit::BadInput, &error)
            .help("correct the response file, or take it out of --responses and responses_files")
    })
}
