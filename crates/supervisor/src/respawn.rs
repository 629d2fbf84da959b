//! Command line and specification of an agent that takes over from another.

use std::ffi::OsString;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Command of this program that runs an agent. Its arguments are the number of the descriptor with
/// its specification and, after `--`, the text for process listings.
pub const AGENT_VERB: &str = "agent";

/// Generation and descriptors of an agent that takes over.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct TakeOver {
    /// Generation of the agent.
    pub generation: u64,
    /// Numbers of the descriptors that the keeper leaves open for the agent.
    pub(super) descriptors: Vec<i32>,
}

/// Makes the specification of an agent that takes over.
pub type MakeSpec = Box<dyn Fn(TakeOver) -> Vec<u8> + Send + Sync>;

/// Parameters for starting another agent.
pub struct Respawn {
    /// Creates its specification.
    pub spec: MakeSpec,
    /// Text for process listings: the watched command.
    pub label: Vec<OsString>,
}

impl Respawn {
    /// Returns the agent's command line. It reads its specification from the descriptor with this
    /// number.
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
