//! `tollgate workload`; implemented in crate `workload`.

use diagnostics::failure::Outcome;

use crate::args::Workload;

/// Runs the verb.
#[cfg(feature = "bench")]
pub(crate) fn execute(args: Workload) -> Outcome {
    use std::io;

    use diagnostics::exit::Exit;
    use diagnostics::lookup::own_program;

    let program = own_program()?;
    Ok(Exit::Command(workload::run(
        &args.into(),
        &program,
        &mut io::stdout().lock(),
    )))
}

/// Refuses: this build makes no load.
#[cfg(not(feature = "bench"))]
pub(crate) fn execute(_args: Workload) -> Outcome {
    Err(super::bench::unsupported("make load"))
}
