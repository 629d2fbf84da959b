//! Response files: which alerts start which actions.

use config::{Config, IoUring};
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
        caller_waits: holds_callers(engine),
        has_local_pids: matches!(
            engine,
            EngineKind::Notify | EngineKind::Ptrace | EngineKind::Ebpf
        ),
        cannot_deny: (!holds_callers(engine)).then_some(
            "this engine sees a call when it has been made; use `--engine notify` or `ptrace`, or `process:freeze`",
        ),
    };
    if settings.cannot_deny.is_none() && loaded.responses.deny() && config.io_uring != IoUring::Deny
    {
        let message = "cannot use `process:deny` with `io_uring: allow`: a ring opens files and connects without a call";
        return Err(Failure::new(Exit::BadInput, message)
            .help("set `io_uring: deny`, which is the default, or take the action out"));
    }
    let prepared = Prepared::new(loaded.responses, settings);
    prepared.map(Some).map_err(|error| {
        Failure::from_error(Exit::BadInput, &error)
            .help("correct the response file, or take it out of --responses and responses_files")
    })
}

/// Returns true if the engine holds a caller while its call is evaluated, and can refuse the call.
pub(super) fn holds_callers(engine: EngineKind) -> bool {
    matches!(engine, EngineKind::Notify | EngineKind::Ptrace)
}

/// Returns true if an action of the response files withholds calls from processes. Errors in the files are reported when they
/// are used ([`prepare`]).
pub(super) fn may_deny(config: &Config) -> bool {
    let wanted = &config.responses;
    if wanted.files.is_empty() {
        return false;
    }
    let files = load::read_files(&wanted.files);
    load::load(files, &wanted.accept_partial).responses.deny()
}
