//! The actions.

pub(crate) mod deny;
pub(crate) mod process;
pub(crate) mod script;
pub(crate) mod webhook;
