//! Which engine watches a command, and what it cannot be asked for.

use std::path::Path;

use capture::probe;
use config::{IoUring, OnAgentDeath, Verify};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::terminal;
use supervisor::Mechanism;

use crate::options::Engine;
use crate::spec::AgentSpec;

/// How the command is to be watched. To see what works, that is tried in a child.
pub(super) fn mechanism(spec: &AgentSpec) -> Result<Mechanism, Failure> {
    let tracer = || Mechanism::Tracer {
        filtered: !spec.interception.every_call && !probe::has_listener(),
    };
    match spec.interception.engine {
        // The agent that this one takes over from had a listener.
        _ if spec.takes_over.is_some() => Ok(Mechanism::Listener),
        Engine::Notify => Ok(Mechanism::Listener),
        Engine::Ptrace => Ok(tracer()),
        // No engine works without it, which is said where it is opened.
        Engine::Auto if !Path::new("/proc/self").exists() => Ok(Mechanism::Listener),
        Engine::Auto => Ok(match probe::why_not_notify() {
            None => Mechanism::Listener,
            Some(why) => {
                if !spec.detection.quiet {
                    terminal::complain(&format!(
                        "tollgate: warning: the engine is ptrace, which costs more, because notify \
                         does not work here: {why}\n"
                    ));
                }
                tracer()
            }
        }),
        Engine::Ebpf => Ok(Mechanism::Kernel),
    }
}

/// Refuses options that ask of an engine for what it cannot give.
pub(super) fn can_be_promised(spec: &AgentSpec, mechanism: Mechanism) -> Result<(), Failure> {
    let asked = &spec.interception;
    let has_listener = matches!(mechanism, Mechanism::Listener | Mechanism::Sandbox);
    let only_looks = mechanism == Mechanism::Kernel;
    let promises = [
        (
            "--on-agent-death deny",
            spec.on_agent_death == OnAgentDeath::Deny && !has_listener,
        ),
        (
            "--io-uring deny",
            asked.io_uring == Some(IoUring::Deny) && only_looks,
        ),
        ("--refuse", !asked.refuse.is_empty() && only_looks),
        (
            "--verify",
            asked.verify.is_some_and(|verify| verify != Verify::Off) && only_looks,
        ),
    ];
    match promises.iter().find(|(_, is_in_vain)| *is_in_vain) {
        None => Ok(()),
        Some((option, _)) => {
            let engine = if only_looks { "ebpf" } else { "ptrace" };
            let message = format!("the engine {engine} cannot give what {option} asks for");
            Err(Failure::new(Exit::BadInput, message)
                .help("leave the option out, or use --engine notify"))
        }
    }
}

/// The engine, if it has no listener.
pub(super) fn without_listener(mechanism: Mechanism) -> Option<&'static str> {
    match mechanism {
        Mechanism::Listener => None,
        Mechanism::Tracer { .. } => Some("ptrace"),
        Mechanism::Kernel => Some("ebpf"),
        Mechanism::Sandbox => Some("gvisor"),
        Mechanism::Nothing => Some("nodriver"),
    }
}
