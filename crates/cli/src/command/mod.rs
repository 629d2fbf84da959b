//! One module for each verb.

pub(crate) mod alerts;
pub(crate) mod artifact;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod copy;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod enforce;
pub(crate) mod falco;
pub(crate) mod generate;
pub(crate) mod guard;
pub(crate) mod help;
pub(crate) mod learn;
pub(crate) mod man;
pub(crate) mod node;
pub(crate) mod policy;
pub(crate) mod replay;
pub(crate) mod rules;
pub(crate) mod run;
pub(crate) mod runtime;
pub(crate) mod serve;
pub(crate) mod top;
pub(crate) mod version;
pub(crate) mod watch;
pub(crate) mod workload;
