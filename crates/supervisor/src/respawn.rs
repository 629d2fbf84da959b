//! How a program is executed that becomes an agent and takes over from another.

use std::ffi::OsString;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The verb of this program that makes it an agent. The number of a descriptor follows, from which it reads its
/// specification, and after `--` what is shown of it in lists of processes.
pub const AGENT_VERB: &str = "agent";

/// Which agent it becomes, and what it is given.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct TakeOver {
    /// Number of the agent.
    pub generation: u64,
    /// Numbers of the descriptors that the keeper leaves open for it.
    pub(super) descriptors: Vec<i32>,
}

/// Makes the specification of an agent that takes over.
pub type MakeSpec = Box<dyn Fn(TakeOver) -> Vec<u8> + Send + Sync>;

/// What a keeper needs to start another agent.
pub struct Respawn {
    /// Makes its specification.
    pub spec: MakeSpec,
    /// What is shown of it in lists of processes: the command that it watches.
    pub label: Vec<OsString>,
}

impl Respawn {
    /// Its command line, where it reads its specification from the descriptor of this number.
    pub(super) fn words(&self, number: i32) -> Vec<OsString> {
        let words = ["tollgate", AGENT_VERB, &number.to_string(), "--"].map(OsString::from);
        words
            .into_iter()
            .chain(self.label.iter().cloned())
            .collect()
    }
}

impl fmt::Debug for Respawn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Respawn")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}
