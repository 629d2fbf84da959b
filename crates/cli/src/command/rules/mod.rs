//! `tollgate rules`: checks, lists, explains and tests rules.

pub(super) mod check;
pub(crate) mod cost;
mod event;
mod events;
mod explain;
mod fields;
mod given;
mod lint;
mod list;
pub(crate) mod silence;
mod test;
pub(super) mod words;

use std::path::PathBuf;

use config::rule_files::RuleSources;
use config::{Effective, Places, Request};
use diagnostics::failure::{Failure, Outcome};

use crate::args::{AddedRules, Rules};

/// Runs the verb.
pub(crate) fn execute(verb: Rules) -> Outcome {
    match verb {
        Rules::Check(args) => check::execute(&args),
        Rules::List(args) => list::execute(&args),
        Rules::Fields(args) => fields::execute(&args),
        Rules::Events(args) => events::execute(&args),
        Rules::Explain(args) => explain::execute(&args),
        Rules::Test(args) => test::execute(&args),
        Rules::Silence(args) => silence::execute(&args),
        Rules::Lint(args) => lint::execute(&args),
        Rules::Cost(args) => cost::execute(&args),
    }
}

/// Returns the files that a verb's rules come from: the named ones, else those that `tollgate run` loads by default.
fn sources(named: &[PathBuf], added: &AddedRules) -> Result<RuleSources, Failure> {
    let added = added.add_rules.clone();
    if !named.is_empty() {
        return Ok(RuleSources {
            named: named.to_vec(),
            folder: None,
            added,
        });
    }
    let places = Places::of_user()?;
    let request = Request {
        layers: &places.files,
        ..Request::default()
    };
    let Effective { mut config, .. } = request.load()?;
    config.rules_folder = places.rules;
    config.added_rules = added;
    Ok(config.rule_sources())
}
