//! Starts programs that do nothing, one after the other.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;
use crate::measure::{Batch, Setup};

/// Debian's static busybox, the one program without dynamic loader that is easy to get.
const STATIC: &str = "/bin/busybox";

pub(crate) fn prepare(setup: &Setup) -> Result<Batch, Error> {
    let program = setup
        .options
        .path
        .clone()
        .unwrap_or_else(|| PathBuf::from("/bin/true"));
    Ok(repeat(program, &[]))
}

pub(crate) fn prepare_static(setup: &Setup) -> Result<Batch, Error> {
    let Some(program) = setup.options.path.clone() else {
        if !Path::new(STATIC).exists() {
            return Err(Error::File {
                action: "find (install busybox-static, or give a static program with --path)",
                path: STATIC.into(),
                source: std::io::ErrorKind::NotFound.into(),
            });
        }
        return Ok(repeat(STATIC.into(), &["true"]));
    };
    Ok(repeat(program, &[]))
}

/// Starts the program repeatedly. Rust's standard library starts programs through posix_spawn(3), that is by
/// clone(2) with CLONE_VFORK, execve(2) and a wait.
fn repeat(program: PathBuf, arguments: &'static [&'static str]) -> Batch {
    Box::new(move |times| {
        for _ in 0..times {
            let status = Command::new(&program)
                .args(arguments)
                .stdin(Stdio::null())
                .status()
                .map_err(|source| Error::File {
                    action: "start",
                    path: program.clone(),
                    source,
                })?;
            if !status.success() {
                let expected = "exit status 0".to_owned();
                return Err(Error::Unexpected {
                    expected,
                    got: status.to_string(),
                });
            }
        }
        Ok(())
    })
}
