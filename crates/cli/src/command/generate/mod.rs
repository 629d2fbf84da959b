//! `tollgate generate`: performs actions that rules detect, and checks that a detector alerts on them.

pub(crate) mod args;
#[cfg(feature = "bench")]
mod detector;
#[cfg(feature = "bench")]
mod execute;
#[cfg(feature = "bench")]
mod options;

#[cfg(feature = "bench")]
pub(crate) use execute::execute;

/// Refuses: this build plays nothing.
#[cfg(not(feature = "bench"))]
pub(crate) fn execute(_verb: args::Generate) -> diagnostics::failure::Outcome {
    Err(super::bench::unsupported("perform actions"))
}
