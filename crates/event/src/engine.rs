//! The engines that capture events.

use serde::{Deserialize, Serialize};

/// Engine that captures events.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum EngineKind {
    /// seccomp user notification: callers wait at a listener, of which a keeper process has a copy.
    Notify,
    /// ptrace: callers wait for their tracer, which no other process can replace.
    Ptrace,
    /// eBPF: programs in the kernel inspect calls, and no caller waits.
    Ebpf,
    /// Messages of the gVisor kernel.
    Gvisor,
    /// Capture files.
    Scap,
    /// No engine: no events arrive.
    Nodriver,
}

use EngineKind::{Ebpf, Gvisor, Nodriver, Notify, Ptrace, Scap};

impl EngineKind {
    /// All engines that deliver events.
    pub const WITH_EVENTS: [Self; 5] = [Notify, Ptrace, Ebpf, Gvisor, Scap];

    /// Returns the engine's name, as used on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Notify => "notify",
            Ptrace => "ptrace",
            Ebpf => "ebpf",
            Gvisor => "gvisor",
            Scap => "scap",
            Nodriver => "nodriver",
        }
    }

    /// Returns the engine's name in metrics: that of the Falco engine with the same mechanism, or our own.
    #[must_use]
    pub fn name_in_metrics(self) -> &'static str {
        match self {
            Ebpf => "modern_bpf",
            Notify | Ptrace | Gvisor | Scap | Nodriver => self.name(),
        }
    }

    /// Returns the engine of this name among those that deliver events.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let mut known = Self::WITH_EVENTS.into_iter();
        known.find(|known| known.name() == name)
    }
}
