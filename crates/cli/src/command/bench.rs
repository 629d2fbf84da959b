//! `tollgate bench`; implemented in crate `bench`.

use std::io;

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::lookup::own_program;

/// Runs the verb.
pub(crate) fn execute(verb: &bench::options::Verb) -> Outcome {
    let program = own_program()?;
    match bench::command::execute(verb, &program, &mut io::stdout().lock()) {
        Ok(code) => Ok(Exit::Command(code)),
        Err(error) => Err(Failure::from_error(
            Exit::Command(error.exit_code()),
            &error,
        )),
    }
}
