//! Checking and compilation of conditions.
//!
//! [`check`] turns a parsed condition into a [`tree`] over shared [`atom`]s and [`operand`]s and reports
//! problems; [`program`] specialises the trees of all rules for every kind of event; [`eval`] evaluates them
//! on one event in three-valued logic ([`ternary`]): an unknown value neither matches nor excludes a rule.

pub(crate) mod atom;
pub(crate) mod check;
pub(crate) mod doubt;
pub(crate) mod eval;
pub(crate) mod fact;
mod index;
mod literal;
pub(crate) mod opening;
pub(crate) mod operand;
mod path_prefix;
pub(crate) mod program;
mod re2;
mod substrings;
mod ternary;
pub(crate) mod test;
mod text_set;
mod transform;
pub(crate) mod tree;

pub(crate) use ternary::Ternary;
