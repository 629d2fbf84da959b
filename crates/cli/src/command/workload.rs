//! `tollgate workload`; implemented in crate `workload`.

use std::io;

use diagnostics::exit::Exit;
use diagnostics::failure::Outcome;
use diagnostics::lookup::own_program;

/// Runs the verb.
pub(crate) fn execute(options: &workload::LoadOptions) -> Outcome {
    let program = own_program()?;
    Ok(Exit::Command(workload::run(
        options,
        &program,
        &mut io::stdout().lock(),
    )))
}
