//! The option `--engine`.

use clap::ValueEnum;
use event::EngineKind;

/// The capture engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// The best one that works on this machine
    #[default]
    Auto,
    /// seccomp user notification: no privileges, kernel 5.5
    Notify,
    /// ptrace: for kernels and sandboxes without seccomp notifications
    Ptrace,
    /// eBPF: root, and a kernel with BTF
    Ebpf,
}

impl Engine {
    /// Returns the engine that is named; `None` for automatic choice.
    pub(crate) fn kind(self) -> Option<EngineKind> {
        match self {
            Self::Auto => None,
            Self::Notify => Some(EngineKind::Notify),
            Self::Ptrace => Some(EngineKind::Ptrace),
            Self::Ebpf => Some(EngineKind::Ebpf),
        }
    }
}

/// Parses the name of an engine that has events, a source of recordings included.
///
/// # Errors
///
/// The names that there are.
pub(crate) fn named(text: &str) -> Result<EngineKind, String> {
    EngineKind::from_name(text).ok_or_else(|| {
        let names = EngineKind::WITH_EVENTS.map(EngineKind::name);
        format!("expected one of {}", names.join(", "))
    })
}
