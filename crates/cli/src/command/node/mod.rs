//! `tollgate node`: the agent of a Kubernetes node.

#[cfg(feature = "kubernetes")]
mod agent;
pub(crate) mod args;
#[cfg(feature = "kubernetes")]
mod behavior;
#[cfg(feature = "kubernetes")]
mod detect;
#[cfg(feature = "kubernetes")]
mod events;
#[cfg(feature = "kubernetes")]
mod groups;
#[cfg(feature = "kubernetes")]
mod kernel;

#[cfg(feature = "kubernetes")]
pub(crate) use agent::execute;

/// Refuses: this build lacks the agent.
#[cfg(not(feature = "kubernetes"))]
pub(crate) fn execute(_args: args::Node) -> diagnostics::failure::Outcome {
    use diagnostics::exit::Exit;
    use diagnostics::failure::Failure;
    let message = "cannot be the agent of a node: this build knows no Kubernetes";
    Err(Failure::new(Exit::Unsupported, message).help("build with the feature `kubernetes`"))
}
