//! `tollgate bench`; implemented in crate `bench`.

use diagnostics::failure::Outcome;

use crate::args::Bench;

/// Runs the verb.
#[cfg(feature = "bench")]
pub(crate) fn execute(args: Bench) -> Outcome {
    use std::io;

    use diagnostics::exit::Exit;
    use diagnostics::failure::Failure;
    use diagnostics::lookup::own_program;

    let program = own_program()?;
    match bench::command::execute(&args.into(), &program, &mut io::stdout().lock()) {
        Ok(code) => Ok(Exit::Command(code)),
        Err(error) => Err(Failure::from_error(
            Exit::Command(error.exit_code()),
            &error,
        )),
    }
}

/// Refuses: this build measures nothing.
#[cfg(not(feature = "bench"))]
pub(crate) fn execute(_args: Bench) -> Outcome {
    Err(unsupported("measure"))
}

/// Returns the error of a verb that needs the feature `bench`.
#[cfg(not(feature = "bench"))]
pub(crate) fn unsupported(what: &str) -> diagnostics::failure::Failure {
    use diagnostics::exit::Exit;
    use diagnostics::failure::Failure;
    let message = format!("cannot {what}: this build has no load and event generator");
    Failure::new(Exit::Unsupported, message).help("build with the feature `bench`")
}
