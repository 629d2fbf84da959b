//! `tollgate rules`: checks, lists, explains and tests rules.

pub(super) mod check;
pub(crate) mod cost;
pub(super) mod event;
mod events;
mod explain;
mod fields;
mod given;
mod lint;
mod list;
mod test;
pub(super) mod words;

use diagnostics::failure::Outcome;

use crate::args::Rules;

/// Runs the verb.
pub(crate) fn execute(verb: Rules) -> Outcome {
    match verb {
        Rules::Check(args) => check::execute(&args),
        Rules::List(args) => list::execute(&args),
        Rules::Fields(args) => fields::execute(&args),
        Rules::Events(args) => events::execute(&args),
        Rules::Explain(args) => explain::execute(&args),
        Rules::Test(args) => test::execute(&args),
        Rules::Lint(args) => lint::execute(&args),
        Rules::Cost(args) => cost::execute(&args),
    }
}
