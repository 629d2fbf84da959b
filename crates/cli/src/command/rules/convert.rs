//! The command line of `tollgate rules convert`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use diagnostics::failure::Outcome;
use rule_tools::convert::{self, ConvertOptions};

/// `tollgate rules convert`.
#[derive(Args, Debug)]
#[command(after_help = "\
The rule file goes to standard output; what a rule loses, and which rules are refused and why, to standard error. \
Exit status 3 if a rule is refused.")]
pub(crate) struct Convert {
    /// Sigma rules, or folders of them
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Language of the rules
    #[arg(long, value_name = "sigma", value_enum)]
    from: Language,
    /// Exit with 0 although rules are refused
    #[arg(long)]
    accept_partial: bool,
    /// Print JSON: each rule, its text, what it loses and why it is refused
    #[arg(long)]
    json: bool,
}

/// A language that rules are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    Sigma,
}

/// Runs the verb.
pub(super) fn execute(args: Convert) -> Outcome {
    match args.from {
        Language::Sigma => convert::execute(&ConvertOptions {
            files: args.files,
            accept_partial: args.accept_partial,
            json: args.json,
        }),
    }
}
