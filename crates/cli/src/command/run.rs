//! `tollgate run`.

use agent::options;
use diagnostics::failure::Outcome;
use supervisor::{Stay, Tenure};

use crate::args::Run;

/// Runs the verb.
pub(crate) fn execute(args: Run) -> Outcome {
    start(args.into())
}

/// Runs the verb as another one asks for it.
pub(super) fn start(run: options::Run) -> Outcome {
    let stay = Stay {
        words: std::env::args_os().collect(),
        tenure: Tenure::WithCommand,
        complain: Box::new(|_why| ()),
    };
    agent::execute(run, stay)
}
