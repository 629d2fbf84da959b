//! Adds this runtime to the configuration of container engines, and removes it: `tollgate runtime install` and
//! `uninstall`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;

use crate::install::{Engine, difference};

/// Default path of this program under the name of a runtime.
pub const PROGRAM: &str = "/usr/local/bin/tollgate-runtime";

/// Options of [`execute`].
#[derive(Debug)]
pub struct InstallOptions {
    /// Names of engines; empty for those whose directory below `/etc` exists.
    pub engines: Vec<String>,
    /// Change the files. Otherwise only print what would change.
    pub yes: bool,
    /// Path of the program that engines call.
    pub program: PathBuf,
    /// Directory that replaces `/`.
    pub prefix: PathBuf,
    /// File name of the underlying runtime, if there is one.
    pub underlying: Option<String>,
}

/// Change to the configuration of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Add this runtime.
    Install,
    /// Remove this runtime.
    Uninstall,
}

/// Adds this runtime to the configuration of engines, or removes it, and prints the differences.
///
/// # Errors
///
/// [`Exit::BadInput`] if there is no engine or no program to install, or a file cannot be changed.
pub fn execute(change: Change, args: &InstallOptions) -> Outcome {
    let engines = engines(args);
    if engines.is_empty() {
        let message = "cannot find a container engine: neither containerd nor docker nor podman";
        return Err(
            Failure::new(Exit::BadInput, message).help("name one, as in `install containerd`")
        );
    }
    if change == Change::Install && args.yes && !within(&args.prefix, &args.program).exists() {
        let program = args.program.display();
        return Err(Failure::new(Exit::BadInput, format!("cannot find {program}")).help(
            "make it with `ln -s $(command -v tollgate) /usr/local/bin/tollgate-runtime`, or name \
             another with --program",
        ));
    }
    let mut text = String::new();
    for engine in engines {
        text.push_str(&one(engine, change, args)?);
    }
    terminal::print(&text)
}

fn engines(args: &InstallOptions) -> Vec<Engine> {
    let is_named = |engine: &Engine| args.engines.iter().any(|name| name == engine.name());
    let folder = |engine: &Engine| match engine {
        Engine::Containerd => "/etc/containerd",
        Engine::Docker => "/etc/docker",
        Engine::Podman => "/etc/containers",
    };
    let is_there = |engine: &Engine| within(&args.prefix, Path::new(folder(engine))).is_dir();
    let all = Engine::ALL.into_iter();
    if args.engines.is_empty() {
        all.filter(is_there).collect()
    } else {
        all.filter(is_named).collect()
    }
}

fn within(prefix: &Path, path: &Path) -> PathBuf {
    prefix.join(path.strip_prefix("/").unwrap_or(path))
}

/// Changes the file of one engine. Returns the message to print.
fn one(engine: Engine, change: Change, args: &InstallOptions) -> Result<String, Failure> {
    let file = within(&args.prefix, Path::new(engine.file()));
    let failed = |verb: &str, cause: std::io::Error| {
        let message = format!("cannot {verb} {}: {cause}", file.display());
        Failure::new(Exit::BadInput, message).help("become root")
    };
    let before = match fs::read_to_string(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        text => Some(text.map_err(|cause| failed("read", cause))?),
    };
    let old = before.as_deref().unwrap_or("");
    let program = args.program.to_string_lossy();
    let changed = match change {
        Change::Install => engine.add(old, &program, args.underlying.as_deref()),
        Change::Uninstall => engine.remove(old),
    };
    let new = changed.map_err(|error| {
        let message = Failure::from_error(Exit::BadInput, &error);
        message.help(format!("look at {}", file.display()))
    })?;
    let name = file.display();
    if new == old {
        return Ok(format!("{name}: nothing to change\n"));
    }
    let shown = format!("--- {name}\n+++ {name}\n{}", difference(old, &new));
    if !args.yes {
        return Ok(format!("{shown}{name}: not changed; --yes changes it\n"));
    }
    if new.trim().is_empty() {
        // The file was created by `install`, or is empty now.
        fs::remove_file(&file).map_err(|cause| failed("remove", cause))?;
    } else {
        replace(&file, &new).map_err(|cause| failed("write", cause))?;
    }
    let next = match (change, engine) {
        // podman reads the file at each start.
        (Change::Uninstall, Engine::Podman) => String::new(),
        _ => format!("; next: {}", engine.next_step()),
    };
    Ok(format!("{shown}{name}: changed{next}\n"))
}

/// Replaces a file atomically and keeps its mode.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let new = tempfile::NamedTempFile::new_in(folder)?;
    fs::write(new.path(), text)?;
    let mode = match fs::metadata(file) {
        Ok(data) => data.permissions(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            std::os::unix::fs::PermissionsExt::from_mode(0o644)
        }
        Err(error) => return Err(error),
    };
    fs::set_permissions(new.path(), mode)?;
    new.persist(file)?;
    Ok(())
}
