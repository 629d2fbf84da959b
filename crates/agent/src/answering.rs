//! Answers the calls of a container runtime before there is an agent that evaluates them.

use anyhow::Context;
use capture::notify::AnswerThread;

/// Answers the calls of a container runtime while the rules are not loaded yet.
pub(super) fn let_work(listening: &supervisor::AgentStart) -> anyhow::Result<AnswerThread> {
    let supervisor::Source::Listener(listener) = &listening.source else {
        anyhow::bail!("cannot let a runtime work without a listener");
    };
    let pulse = listening.shared_state.pulse(listening.generation);
    AnswerThread::start(listener, pulse, listening.runtime).context("cannot let the runtime work")
}
