//! Forks processes that end at once (UnixBench `spawn`).

use fork::Fork;

use crate::Error;
use crate::measure::{Batch, Setup};

/// Checks that the process has one thread. The child may take locks while it ends, which are sure to be free
/// only in a process without other threads (fork(2)).
pub(crate) fn one_thread(setup: &Setup) -> Result<(), Error> {
    if setup.options.threads == 1 {
        return Ok(());
    }
    Err(Error::Unexpected {
        expected: "--threads 1, because a forked copy has one thread".to_owned(),
        got: setup.options.threads.to_string(),
    })
}

pub(crate) fn prepare(setup: &Setup) -> Result<Batch, Error> {
    one_thread(setup)?;
    Ok(Box::new(|times| {
        for _ in 0..times {
            match fork::fork().map_err(Error::call("fork"))? {
                Fork::Child => std::process::exit(0),
                Fork::Parent(pid) => {
                    let status = fork::waitpid(pid).map_err(Error::call("wait for the child"))?;
                    super::expect_count("as wait status", 0, usize::try_from(status).unwrap_or(1))?;
                }
            }
        }
        Ok(())
    }))
}
