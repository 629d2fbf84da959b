//! What every engine that holds a caller at its call has in common: the call in the terms of the
//! call table, what its arguments say, who makes it.

pub(crate) mod call;
pub(crate) mod census;
pub(crate) mod counters;
pub(crate) mod decode;
pub(crate) mod initial_stack;
pub(crate) mod lineage;
pub(crate) mod stdio;
pub(crate) mod tree;
