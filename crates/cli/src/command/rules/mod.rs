//! `tollgate rules`.

pub(super) mod check;
mod events;
mod explain;
mod fields;
mod list;
pub(super) mod words;

use crate::args::Rules;
use crate::failure::Outcome;

/// Runs the verb.
pub(crate) fn execute(verb: Rules) -> Outcome {
    match verb {
        Rules::Check(args) => check::execute(&args),
        Rules::List(args) => list::execute(&args),
        Rules::Fields(args) => fields::execute(&args),
        Rules::Events(args) => events::execute(&args),
        Rules::Explain(args) => explain::execute(&args),
    }
}
