//! `tollgate demo`: runs real programs under watch and shows alerts live.

use diagnostics::failure::Outcome;

use crate::args::Demo;

/// Runs the verb.
#[cfg(feature = "bench")]
pub(crate) fn execute(args: &Demo) -> Outcome {
    use generator::demo;

    use crate::args::DemoStage;

    match args.stage {
        Some(stage) => demo::stage(match stage {
            DemoStage::Container => demo::Stage::Container,
            DemoStage::User => demo::Stage::User,
            DemoStage::UserNamespace => demo::Stage::UserNamespace,
        }),
        None => demo::execute(args.json),
    }
}

/// Refuses: this build plays nothing.
#[cfg(not(feature = "bench"))]
pub(crate) fn execute(_args: &Demo) -> Outcome {
    Err(super::bench::unsupported("give the tour"))
}
