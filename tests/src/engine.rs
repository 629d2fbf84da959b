//! The capture engine under test.

use std::env;

/// How `tollgate run` sees calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// seccomp user notification, the default.
    Notify,
    /// ptrace, with a filter.
    Ptrace,
    /// ptrace, as where no filter can be installed.
    EveryCall,
    /// eBPF. The program is privileged and outside; what a test says about who and where applies to
    /// the workload alone.
    Ebpf,
}

impl Engine {
    /// The one that `TOLLGATE_TEST_ENGINE` names: `notify`, `ptrace`, `every-call`
    /// or `ebpf`.
    ///
    /// # Panics
    /// If it names another one.
    pub fn under_test() -> Self {
        match env::var("TOLLGATE_TEST_ENGINE").as_deref() {
            Err(_) | Ok("notify") => Self::Notify,
            Ok("ptrace") => Self::Ptrace,
            Ok("every-call") => Self::EveryCall,
            Ok("ebpf") => Self::Ebpf,
            Ok(other) => panic!("TOLLGATE_TEST_ENGINE={other} is no engine"),
        }
    }

    /// Arguments of `tollgate run`.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::Notify => &[],
            Self::Ptrace => &["--engine", "ptrace"],
            Self::EveryCall => &["--engine", "ptrace", "--every-call"],
            Self::Ebpf => &["--engine", "ebpf"],
        }
    }

    /// Whether it traces.
    pub fn traces(self) -> bool {
        matches!(self, Self::Ptrace | Self::EveryCall)
    }

    /// How many processes of its own stand between a command and whoever started it: waiter, agent,
    /// keeper and front. There is no keeper for a tracer.
    pub fn watchers(self) -> usize {
        if self.traces() { 3 } else { 4 }
    }
}
