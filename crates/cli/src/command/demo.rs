//! `tollgate demo`: runs real programs under watch and shows alerts live.

use diagnostics::failure::Outcome;
use generator::demo;

use crate::args::{Demo, DemoStage};

/// Runs the verb.
pub(crate) fn execute(args: &Demo) -> Outcome {
    match args.stage {
        Some(stage) => demo::stage(match stage {
            DemoStage::Container => demo::Stage::Container,
            DemoStage::User => demo::Stage::User,
            DemoStage::UserNamespace => demo::Stage::UserNamespace,
        }),
        None => demo::execute(args.json),
    }
}
