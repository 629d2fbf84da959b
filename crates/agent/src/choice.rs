//! Selection of the engine that watches a command, and the options that it does not support.

use std::path::Path;

use config::{IoUring, OnAgentDeath, Verify};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::terminal;
use event::EngineKind;
use supervisor::ChosenEngine;

use crate::spec::AgentSpec;

/// Returns the engine for the command. A child process tests what works.
pub(super) fn choose(spec: &AgentSpec) -> Result<ChosenEngine, Failure> {
    let kind = match spec.interception.engine {
        // The previous agent had a listener.
        _ if spec.takes_over.is_some() => EngineKind::Notify,
        Some(kind @ (EngineKind::Notify | EngineKind::Ptrace | EngineKind::Ebpf)) => kind,
        Some(other) => {
            let message = format!("the engine {} cannot watch a command", other.name());
            return Err(Failure::new(Exit::BadInput, message)
                .help("use --engine notify, ptrace or ebpf, or leave the option out"));
        }
        // No engine works without `/proc`, which is reported where it is opened.
        None if !Path::new("/proc/self").exists() => EngineKind::Notify,
        None => match probe::why_not_notify() {
            None => EngineKind::Notify,
            Some(why) => {
                if !spec.detection.quiet {
                    terminal::complain(&format!(
                        "tollgate: warning: the engine is ptrace, which costs more, because notify \
                         does not work here: {why}\n"
                    ));
                }
                EngineKind::Ptrace
            }
        },
    };
    let filtered = match kind {
        EngineKind::Ptrace => !spec.interception.every_call && !probe::has_listener(),
        _ => true,
    };
    Ok(ChosenEngine { kind, filtered })
}

/// Rejects options that the engine cannot honour.
pub(super) fn can_be_promised(spec: &AgentSpec, engine: EngineKind) -> Result<(), Failure> {
    let asked = &spec.interception;
    let has_listener = matches!(engine, EngineKind::Notify | EngineKind::Gvisor);
    let only_looks = engine == EngineKind::Ebpf;
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
            let message = format!("{option} is not supported by the engine {}", engine.name());
            Err(Failure::new(Exit::BadInput, message)
                .help("leave the option out, or use --engine notify"))
        }
    }
}
