//! `tollgate policy advise`: shows which built-in rules a recorded workload does not break.

use std::fmt::Write as _;

use agent::learn;
use agent::policy_files::machine;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use serde_json::json;

use super::args::Advise;

/// Runs the verb.
pub(crate) fn execute(args: &Advise) -> Outcome {
    let Some(model) = learn::read(&args.model)? else {
        let message = format!("cannot read {}: no such file", args.model.display());
        return Err(Failure::new(Exit::BadInput, message)
            .help("`tollgate learn -o POLICY.yaml --model FILE -- CMD` writes one"));
    };
    let enforcers = model.bearable(args.enforcer);
    let advice = model.advise(enforcers, &machine());
    if args.json {
        let rows: Vec<_> = advice
            .iter()
            .map(|advice| {
                json!({
                    "rule": advice.rule,
                    "list": advice.class.key(),
                    "fits": advice.against.is_none(),
                    "against": advice.against,
                })
            })
            .collect();
        return terminal::print(&format!("{}\n", json!(rows)));
    }
    let mut text = String::new();
    for advice in advice {
        let (word, why) = match &advice.against {
            None => ("yes", ""),
            Some(why) => ("no", why.as_str()),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}",
            format!("{:<42} {word:<4} {why}", advice.rule).trim_end()
        );
    }
    terminal::print(&text)
}
