//! The loads, one per file.

pub(crate) mod attempt;
pub(crate) mod close_dup;
pub(crate) mod connect_refused;
pub(crate) mod container;
pub(crate) mod fork_exec;
pub(crate) mod fork_exit_wait;
pub(crate) mod getppid;
pub(crate) mod open_close;
pub(crate) mod opens_storm;
pub(crate) mod pipe;
pub(crate) mod pread;
pub(crate) mod raw_call;
pub(crate) mod read;
pub(crate) mod shell_tree;
pub(crate) mod stat;
pub(crate) mod study;
pub(crate) mod syscall_overhead;
pub(crate) mod umask;
pub(crate) mod write;

use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::{Error, LoadOptions};

/// Plays the role of a process that a load has started from the same program.
pub(crate) fn play(role: &str, options: &LoadOptions, out: &mut dyn Write) -> Result<(), Error> {
    match role {
        pipe::ECHO => pipe::echo(),
        opens_storm::OPENER => opens_storm::open_all(options, out),
        _ => Err(Error::UnknownRole {
            role: role.to_owned(),
        }),
    }
}

/// Converts a path to the kernel's form, before the clock runs.
fn kernel_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|source| Error::File {
        action: "use",
        path: path.into(),
        source: source.into(),
    })
}

/// Compares a count with the expected one.
///
/// # Errors
///
/// [`Error::Unexpected`] if they differ.
pub fn expect_count(what: &str, expected: usize, got: usize) -> Result<(), Error> {
    if expected == got {
        return Ok(());
    }
    Err(Error::Unexpected {
        expected: format!("{expected} {what}"),
        got: got.to_string(),
    })
}
