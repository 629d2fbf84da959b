//! `tollgate replay`: reads captures, and alerts on their events or prints them.

use config::{CompatMode, Places};
use diagnostics::failure::Outcome;
use replay::ReplayOptions;

use crate::args::Replay;

/// Runs the verb.
pub(crate) fn execute(args: Replay) -> Outcome {
    let options = args.sources.settings();
    replay::execute(&ReplayOptions {
        files: args.files,
        rules: args.sources.rules,
        add_rules: args.sources.add_rules,
        config: args.sources.config,
        options,
        json: args.json,
        stream: args.stream.into(),
        fields: args.fields,
        filter: args.filter,
        stats: args.stats,
        quiet: args.quiet,
        seconds: None,
        manner: CompatMode::Tollgate,
        places: Places::of_user()?,
        plugins: None,
    })
}
