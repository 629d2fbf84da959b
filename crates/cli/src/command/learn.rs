//! `tollgate learn`: records what a command does, and writes a policy from it.

use agent::learn_command::{self, LearnOptions};
use diagnostics::failure::Outcome;

use crate::args::Learn;

/// Runs the verb.
pub(crate) fn execute(args: Learn) -> Outcome {
    learn_command::execute(LearnOptions {
        output: args.output,
        model: args.model,
        runs: args.runs,
        duration: args.duration,
        enforcers: args.enforcer,
        stream: args.stream.beside_command(),
        quiet: args.quiet,
        command: args.command,
    })
}
