//! The actions.

pub(crate) mod capture;
pub(crate) mod deny;
pub(crate) mod process;
pub(crate) mod quarantine;
pub(crate) mod script;
pub(crate) mod webhook;
