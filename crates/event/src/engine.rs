//! What events are learnt by.

/// What events are learnt by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EngineKind {
    /// seccomp user notification: callers wait at a listener, of which a keeper has a copy.
    Notify,
    /// ptrace: callers wait for their tracer, for which nobody can stand in.
    Ptrace,
    /// eBPF: programs in the kernel look at calls, and nobody waits.
    Ebpf,
    /// Messages of gVisor's kernel.
    Gvisor,
    /// Captures.
    Scap,
    /// Nothing: no event comes.
    Nodriver,
}

use EngineKind::{Ebpf, Gvisor, Nodriver, Notify, Ptrace, Scap};

impl EngineKind {
    /// All that events come from.
    pub const WITH_EVENTS: [Self; 5] = [Notify, Ptrace, Ebpf, Gvisor, Scap];

    /// The word for it, also on the command line.
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

    /// Its name in metrics: that of Falco's engine that works in the same way, or our own.
    #[must_use]
    pub fn name_in_metrics(self) -> &'static str {
        match self {
            Ebpf => "modern_bpf",
            Notify | Ptrace | Gvisor | Scap | Nodriver => self.name(),
        }
    }

    /// By the word for it, among those that events come from.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let mut known = Self::WITH_EVENTS.into_iter();
        known.find(|known| known.name() == name)
    }
}
