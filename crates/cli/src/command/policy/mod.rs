//! `tollgate policy`: checks, lists and explains policies.

mod advise;
pub(crate) mod args;
mod check;
mod convert;
mod explain;
mod init;
mod list;
mod loaded;
mod replace;

use std::path::Path;

use ::policy::compile::MachineFeatures;
use agent::policy_files::{Loaded, checked, read};
use diagnostics::failure::Outcome;

use self::args::Policy;

/// Runs the verb.
pub(crate) fn execute(verb: &Policy) -> Outcome {
    match verb {
        Policy::Init(args) => init::execute(args),
        Policy::List(args) => list::execute(args),
        Policy::Check(args) => check::execute(args),
        Policy::Explain(args) => explain::execute(args),
        Policy::Convert(args) => convert::execute(args),
        Policy::Advise(args) => advise::execute(args),
        Policy::Loaded(args) => loaded::execute(args),
        Policy::Replace(args) => replace::execute(args),
    }
}

/// Reads a file, and checks what its enforcers support.
fn load(path: &Path, accepted: &[String], machine: &MachineFeatures) -> Loaded {
    checked(read(path), accepted, machine)
}
