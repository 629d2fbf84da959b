//! Addresses that the programs of a container do not reach, without a security module: programs at its control group
//! (bpf/egress.bpf.c).
//!
//! The programs of a policy are loaded once and pinned; every container of the policy has them. They stay attached until the
//! control group is removed, whatever becomes of the agent. A change of the policy exchanges one table, for all of its
//! containers at once.
//!
//! | part | content |
//! |---|---|
//! | `table` | the rules of a policy by prefix |
//! | `programs` | loading, and the objects that stay in the kernel |

mod programs;
mod table;

pub use programs::{EgressPrograms, LoadedEgress, try_egress};
pub use table::{EgressTable, what_egress_lacks};

#[cfg(test)]
mod tests;
