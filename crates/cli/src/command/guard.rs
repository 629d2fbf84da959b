//! `tollgate guard`: runs a coding agent, build or package install in a box, and reports every denial.

pub(crate) mod args;

use diagnostics::failure::Outcome;
use guard::options;

use self::args::{Action, Guard};

/// Runs the verb.
pub(crate) fn execute(args: Guard) -> Outcome {
    match args.action {
        Some(Action::Explain(explain)) => guard::explain(&options::Explain {
            options: explain.options.into(),
            policy: explain.policy,
            json: explain.json,
            command: explain.command,
        }),
        Some(Action::Learn(learn)) => guard::learn(options::Learn {
            command: learn.command,
        }),
        None => guard::execute(options::Guard {
            options: args.options.into(),
            ask: args.ask,
            report_fd: args.report_fd,
            command: args.command,
        }),
    }
}
