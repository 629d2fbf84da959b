//! `tollgate workload`; implemented in crate `workload`.

use std::io;

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};

/// Runs the verb.
pub(crate) fn execute(options: &workload::LoadOptions) -> Outcome {
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(
            Exit::Internal,
            format!("cannot find the running program: {error}"),
        )
        .help("mount /proc")
    })?;
    Ok(Exit::Command(workload::run(
        options,
        &program,
        &mut io::stdout().lock(),
    )))
}
