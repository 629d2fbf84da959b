//! The detector that `--watched` starts: `tollgate run`, whose standard output is read.

use clap::ValueEnum;
use config::rule_files;
use diagnostics::failure::Failure;
use generator::detector::{Detector, write_rules};

use super::args::Source;

/// Builds the command line of `tollgate run` and lists the rules that it loads.
pub(super) fn detector(source: &Source) -> Result<Detector, Failure> {
    let (files, builtin) = if source.rules.is_empty() {
        let (files, folder) = write_rules([rule_files::BUILTIN, rule_files::MORE])?;
        (files, Some(folder))
    } else {
        (source.rules.clone(), None)
    };
    let loaded = rule_files::load(&files);
    let rules = loaded.ruleset.rules.iter();
    let rules = rules.map(|rule| rule.name.to_string()).collect();
    let engine = source.engine.to_possible_value();
    let engine = engine.map_or_else(String::new, |value| value.get_name().to_owned());
    Detector::tollgate_run(&engine, &files, rules, builtin)
}
