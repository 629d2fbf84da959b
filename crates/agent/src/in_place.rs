//! Restricts this process by a policy, without a monitor, and executes a command in its place.

use std::ffi::OsString;

use abi::Arch;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use enforce::Confinement;
use event::Plan;
use seccomp::FilterOptions;

use crate::program;

/// Restricts this process and executes the command in place, if no monitor is needed. Returns only if that
/// fails.
///
/// # Errors
///
/// The command is not found, the policy cannot be put in force, or the command cannot be executed.
pub fn become_command(command: &[OsString], confinement: &Confinement) -> Outcome {
    let command = program::command(command, None, false)?;
    restrict(confinement)?;
    let error = sys::exec::execve(&command.path, &command.argv, &command.environment);
    Err(crate::not_executed(
        &command.path.to_string_lossy(),
        error.into(),
    ))
}

/// Restricts this process, which has one thread, for good; threads that it starts later are restricted, too.
///
/// # Errors
///
/// The policy cannot be put in force. What was applied before the failing step stays in force.
pub fn restrict(confinement: &Confinement) -> Result<(), Failure> {
    let program = match confinement.calls.is_empty() {
        true => None,
        false => Some(program(confinement)?),
    };
    let unconfined = |error: &dyn std::error::Error| {
        Failure::from_error(Exit::Unsupported, error)
            .help("`tollgate doctor` shows which enforcers work here")
    };
    confinement.apply().map_err(|error| unconfined(&error))?;
    if let Some(program) = &program {
        supervisor::install_alone(program).map_err(|error| unconfined(&error))?;
    }
    Ok(())
}

fn program(confinement: &Confinement) -> Result<seccomp::FilterProgram, Failure> {
    let native = Arch::native().ok_or_else(crate::unknown_machine)?;
    let options = FilterOptions::confine(native);
    seccomp::compile_with(&Plan::default(), &confinement.calls, &options)
        .map_err(|error| Failure::from_error(Exit::BadInput, &error).help("simplify the policy"))
}
