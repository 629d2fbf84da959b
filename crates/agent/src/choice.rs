//! Which engine watches a command, and what it cannot be asked for.

use std::path::Path;

use config::{IoUring, OnAgentDeath, Verify};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::terminal;
use event::EngineKind;
use supervisor::ChosenEngine;

use crate::options::Run;

/// The engine that is to watch the command. To see what works, that is tried in a child.
pub(super) fn choose(args: &Run) -> Result<ChosenEngine, Failure> {
    let kind = match args.interception.engine {
        // The agent that this one takes over from had a listener.
        _ if args.resume.is_some() => EngineKind::Notify,
        Some(kind @ (EngineKind::Notify | EngineKind::Ptrace | EngineKind::Ebpf)) => kind,
        Some(other) => {
            let message = format!("the engine {} cannot watch a command", other.name());
            return Err(Failure::new(Exit::BadInput, message)
                .help("use --engine notify, ptrace or ebpf, or leave the option out"));
        }
        // No engine works without it, which is said where it is opened.
        None if !Path::new("/proc/self").exists() => EngineKind::Notify,
        None => match probe::why_not_notify() {
            None => EngineKind::Notify,
            Some(why) => {
                if !args.detection.quiet {
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
        EngineKind::Ptrace => !args.interception.every_call && !probe::has_listener(),
        _ => true,
    };
    Ok(ChosenEngine { kind, filtered })
}

/// Refuses options that ask of an engine for what it cannot give.
pub(super) fn can_be_promised(args: &Run, engine: EngineKind) -> Result<(), Failure> {
    let asked = &args.interception;
    let has_listener = matches!(engine, EngineKind::Notify | EngineKind::Gvisor);
    let only_looks = engine == EngineKind::Ebpf;
    let promises = [
        (
            "--on-agent-death deny",
            args.on_agent_death == OnAgentDeath::Deny && !has_listener,
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
