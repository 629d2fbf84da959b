//! A small program that executes itself again (UnixBench `execl`).

use std::process::{Command, Stdio};

use super::tiny::{self, Part};
use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(setup: &Setup) -> Result<Batch, Error> {
    start(setup, Part::Execl)
}

/// Makes batches. A batch is one process of the tiny program; its argument is the number of executions.
pub(super) fn start(setup: &Setup, part: Part) -> Result<Batch, Error> {
    let folder = tempfile::tempdir_in(setup.scratch()).map_err(Error::call("make a folder"))?;
    let path = folder.path().join("tiny");
    tiny::write(&path, part)?;
    Ok(Box::new(move |times| {
        // Keeps the folder until the last batch is done.
        let path = folder.path().join("tiny");
        let status = Command::new(&path)
            .arg(tiny::count(times))
            .stdin(Stdio::null())
            .status()
            .map_err(Error::file("start", &path))?;
        if status.success() {
            return Ok(());
        }
        Err(Error::Unexpected {
            expected: format!("{times} times {part:?}"),
            got: format!("{status} (the number is that of the call's error)"),
        })
    }))
}

#[cfg(test)]
mod tests {
    use crate::registry::find;
    use crate::{LoadOptions, measure::Setup};

    #[test]
    fn both_parts_do_what_they_are_told() {
        for name in ["ub_execl", "ub_spawn"] {
            let options = LoadOptions {
                operations: Some(700),
                ..LoadOptions::new(name)
            };
            let setup = Setup::new(&options, std::path::Path::new("/nowhere")).unwrap();
            let measured = find(name).unwrap().measure(&setup).unwrap();
            assert_eq!(measured.operations, 700, "{name}");
        }
    }
}
