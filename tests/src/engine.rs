//! The capture engine under test.

use std::env;

/// The capture engine of `tollgate run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// seccomp user notification, the default.
    Notify,
    /// ptrace, with a filter.
    Ptrace,
    /// ptrace at every call, as where no filter can be installed.
    EveryCall,
    /// eBPF. The program is privileged and runs outside; users and environments of a test apply to the workload
    /// alone.
    Ebpf,
}

impl Engine {
    /// Returns the engine that `TOLLGATE_TEST_ENGINE` names: `notify`, `ptrace`, `every-call` or `ebpf`.
    ///
    /// # Panics
    /// If the variable names another one.
    pub fn under_test() -> Self {
        match env::var("TOLLGATE_TEST_ENGINE").as_deref() {
            Err(_) | Ok("notify") => Self::Notify,
            Ok("ptrace") => Self::Ptrace,
            Ok("every-call") => Self::EveryCall,
            Ok("ebpf") => Self::Ebpf,
            Ok(other) => panic!("TOLLGATE_TEST_ENGINE={other} is no engine"),
        }
    }

    /// Returns the arguments of `tollgate run`.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::Notify => &[],
            Self::Ptrace => &["--engine", "ptrace"],
            Self::EveryCall => &["--engine", "ptrace", "--every-call"],
            Self::Ebpf => &["--engine", "ebpf"],
        }
    }

    /// Returns true if the engine uses ptrace.
    pub fn traces(self) -> bool {
        matches!(self, Self::Ptrace | Self::EveryCall)
    }

    /// Returns the number of tollgate's processes between a command and its caller: waiter, agent, keeper and
    /// front. A tracer has no keeper.
    pub fn watchers(self) -> usize {
        if self.traces() { 3 } else { 4 }
    }
}
