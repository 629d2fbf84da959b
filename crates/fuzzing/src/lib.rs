//! What can be done with hostile bytes: one function for each parser, with what has to hold beyond not to panic.
//!
//! `fuzz/` wraps each function for libFuzzer; `tests/corpus` runs each on the committed corpus and on mutations of it, in
//! every run of the usual tests. [`each_target!`] has the list. How to add one is in `fuzz/README.md`.

mod captured;
mod collected;
mod configured;
mod fetched;
mod filter;
mod received;
mod state;

#[path = "../../scap/tests/captures/mutate.rs"]
mod mutate;
#[path = "../../scap/tests/captures/openings.rs"]
mod openings;

mod mutation;

pub use captured::{capture, gvisor, mutate_capture, nri, process};
pub use collected::{alert, batch, inventory, otlp_logs};
pub use configured::{bundle, config, oci, option, policy};
pub use fetched::{artifact, grpc_frames, identity, provider_keys, provider_token};
pub use filter::{condition, output, rules};
pub use mutation::Mutator;
pub use received::{agent_spec, dns, handoff, otlp_answer, plugin, vm_frame};
pub use state::{
    behavior, container_record, engine_state, handover_state, review, rules_cache, spool,
};

/// What a parser made of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took them.
    Accepted,
    /// It refused them.
    Refused,
}

impl Outcome {
    fn accepted_if(holds: bool) -> Self {
        match holds {
            true => Self::Accepted,
            false => Self::Refused,
        }
    }
}

/// A parser with its name, which its folder in `fuzz/corpus` and its program in `fuzz/fuzz_targets` have, too.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Gives it bytes, and panics if something does not hold.
    pub run: fn(&[u8]) -> Outcome,
}

/// Calls the macro `$use` with the names of all targets.
#[macro_export]
macro_rules! each_target {
    ($use:ident) => {
        $use! {
            agent_spec, alert, artifact, batch, behavior, bundle, capture, condition, config, container_record, dns, engine_state,
            grpc_frames, gvisor, handoff, handover_state, identity, inventory, nri, oci, option, otlp_answer, otlp_logs, output, plugin, policy, process, review,
            rules, rules_cache, spool, vm_frame
        }
    };
}

macro_rules! table {
    ($($name:ident),*) => {
        /// All targets, by name.
        pub const TARGETS: &[Target] = &[$(Target { name: stringify!($name), run: $name }),*];
    };
}

each_target!(table);

/// Returns the bytes as text, as a parser of text gets it. What is no text never arrives there.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Returns the number of lines of a YAML file: a carriage return alone ends a line, too.
fn yaml_lines(text: &str) -> u32 {
    let lines = text.replace("\r\n", "\n").split(['\n', '\r']).count();
    u32::try_from(lines).unwrap_or(u32::MAX)
}
