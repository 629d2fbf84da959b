//! Response files: which alerts start which actions.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{Config, IoUring};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use event::EngineKind;
use response::{Limits, Means, Network, Prepared, Quarantiner, Responses, Settings, load};
use rules::Engine;

use crate::journal;
use crate::recording::ResponseCapture;

/// Reads the response files of a configuration and opens what their actions need. `None` without files. `is_silent`:
/// warnings were shown before, or are not wanted. `capture`: records events for them.
///
/// # Errors
///
/// A file has an error, or an action cannot be used.
pub(super) fn prepare(
    config: &Config,
    (engine, capture): (EngineKind, Option<Arc<ResponseCapture>>),
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
    let means = means(&loaded.responses, capture);
    let prepared = Prepared::new(loaded.responses, settings, means);
    prepared.map(Some).map_err(|error| {
        Failure::from_error(Exit::BadInput, &error)
            .help("correct the response file, or take it out of --responses and responses_files")
    })
}

/// Returns true if the engine holds a caller while its call is evaluated, and can refuse the call.
pub(super) fn holds_callers(engine: EngineKind) -> bool {
    matches!(engine, EngineKind::Notify | EngineKind::Ptrace)
}

/// Returns whether an action of the response files withholds calls from processes, and whether one records events. Errors in
/// the files are reported when they are used ([`prepare`]).
pub(super) fn needs(config: &Config) -> (bool, bool) {
    let wanted = &config.responses;
    if wanted.files.is_empty() {
        return (false, false);
    }
    let files = load::read_files(&wanted.files);
    let responses = load::load(files, &wanted.accept_partial).responses;
    (responses.deny(), responses.capture())
}

/// Cuts control groups off by BPF programs.
struct Programs;

impl Quarantiner for Programs {
    fn begin(&self, group: &File, allowed: &[Network]) -> Result<(PathBuf, bool), String> {
        enforce::quarantine(group, allowed).map_err(|error| text_of(&error))
    }

    fn end(&self, folder: &Path) -> Result<(), String> {
        enforce::end_quarantine(folder)
            .map(drop)
            .map_err(|error| text_of(&error))
    }
}

/// Returns an error with its causes.
fn text_of(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Returns what actions are done with. Programs are tried only if an action needs them.
fn means(responses: &Responses, capture: Option<Arc<ResponseCapture>>) -> Means {
    let tried = match responses.quarantine() {
        true => enforce::try_quarantine().map_err(|error| text_of(&error)),
        false => Err("no action needs it".to_owned()),
    };
    Means {
        capture: match capture {
            Some(capture) => Ok(capture),
            None => Err("this run records no events"),
        },
        quarantine: tried.map(|()| Arc::new(Programs) as Arc<dyn Quarantiner>),
    }
}
