//! Messages to the caller of the runtime, in the log that it names or on the standard error.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use diagnostics::failure::Failure;
use diagnostics::terminal;

use crate::CommandLine;

/// Writes a failure to the log of the caller, if it names one. The failure also ends the command.
pub fn report(line: &CommandLine, failure: &Failure) {
    if let Some(log) = &line.log {
        note_in_log(log, line.log_is_json, "error", &failure.render());
    }
}

/// Writes a failure to a log, as one line of text or JSON.
pub fn report_to(log: &Path, is_json: bool, message: &str) {
    note_in_log(log, is_json, "error", message);
}

/// Writes a warning to the log of the caller, or to the standard error if it names none.
pub fn warn(line: &CommandLine, message: &str) {
    match &line.log {
        Some(log) => note_in_log(log, line.log_is_json, "warning", message),
        None => terminal::complain(&format!("tollgate: {message}\n")),
    }
}

/// Appends a line to the log that callers read for the runtime's message: one JSON object, or
/// `level=... msg=...`. A log that cannot be written is ignored.
pub fn note_in_log(log: &Path, is_json: bool, level: &str, message: &str) {
    let message = message.trim_end();
    let line = if is_json {
        format!("{}\n", serde_json::json!({"level": level, "msg": message}))
    } else {
        format!("level={level} msg={}\n", serde_json::json!(message))
    };
    let opened = OpenOptions::new().append(true).create(true).open(log);
    // A failure is also written to the standard error, and a warning to the container's log.
    let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
}
