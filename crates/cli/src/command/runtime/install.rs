//! `tollgate runtime install` and `uninstall`: shows the changes to the configuration of engines, and makes
//! them with --yes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use runtime::installer::{self, Change, InstallOptions, PROGRAM};
use runtime::{CommandLine, Settings};

/// Name in help texts.
const NAME: &str = "tollgate runtime install|uninstall";

/// Register this runtime with container engines as `tollgate`, or remove it
///
/// Shows the changes; --yes makes them. The default engines are those with a folder in /etc.
#[derive(Debug, Parser)]
#[command(name = NAME, no_binary_name = true)]
struct Args {
    /// Engines to change: containerd, docker, podman [default: those with a folder in /etc]
    #[arg(value_name = "ENGINE", value_parser = ["containerd", "docker", "podman"])]
    engines: Vec<String>,
    /// Make the changes instead of showing them
    #[arg(long)]
    yes: bool,
    /// Program that the engines call
    #[arg(long, value_name = "PATH", default_value = PROGRAM)]
    program: PathBuf,
    /// Root folder that holds /etc
    #[arg(long, value_name = "DIR", default_value = "/")]
    prefix: PathBuf,
}

/// Executes the command with the words after its name.
pub(super) fn execute(change: Change, words: &[OsString]) -> Outcome {
    let args = match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(error) if !error.use_stderr() => return terminal::print(&error.render().to_string()),
        Err(error) => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
            return Err(Failure::new(Exit::BadInput, text));
        }
    };
    let underlying = match change {
        Change::Install => underlying()?,
        Change::Uninstall => None,
    };
    installer::execute(
        change,
        &InstallOptions {
            engines: args.engines,
            yes: args.yes,
            program: args.program,
            prefix: args.prefix,
            underlying,
        },
    )
}

/// Returns the file name of the runtime that containers get by the configuration.
fn underlying() -> Result<Option<String>, Failure> {
    let settings = Settings::load(None)?;
    // Without one, `create` says what is missing.
    let runtime = super::runtime(&CommandLine::default(), &settings, None).ok();
    let path = runtime.map(|runtime| runtime.identity());
    Ok(path.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())))
}
