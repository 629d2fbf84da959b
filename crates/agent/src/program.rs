//! The command to run.

use std::env;
use std::ffi::{CString, NulError, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::lookup;
use supervisor::Command;
use sys::exec::StringArray;

/// Looks up the command and prepares its arguments and environment for exec. A running command is
/// not looked up, since its file may be gone.
pub fn command(
    words: &[OsString],
    added: Option<&str>,
    runs_already: bool,
) -> Result<Command, Failure> {
    let name = name(words);
    let file = if runs_already {
        name.into()
    } else {
        lookup::resolve(name, env::var_os("PATH").as_deref())?
    };
    let strings = |error: NulError| {
        // Neither arguments nor environment can contain a NUL, so only a test can get here.
        Failure::new(Exit::BadInput, format!("cannot run the command: {error}"))
    };
    let argv: Result<Vec<_>, _> = words.iter().map(|word| c_string(word)).collect();
    // A variable that is set already keeps its value: the C library reads the first.
    let environment: Result<Vec<_>, _> = env::vars_os()
        .map(|(name, value)| {
            let mut entry = name;
            entry.push("=");
            entry.push(value);
            c_string(&entry)
        })
        .chain(added.map(|entry| c_string(OsStr::new(entry))))
        .collect();
    Ok(Command {
        path: c_string(file.as_os_str()).map_err(strings)?,
        argv: StringArray::new(argv.map_err(strings)?),
        environment: StringArray::new(environment.map_err(strings)?),
    })
}

/// Returns the first word of a command.
pub fn name(words: &[OsString]) -> &OsStr {
    words
        .first()
        .expect("the command line has at least the command")
}

fn c_string(text: &OsStr) -> Result<CString, NulError> {
    CString::new(text.as_bytes())
}
