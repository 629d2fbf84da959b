//! Parts that actions start under another name.

mod combined_server_client;
mod do_nothing;
mod exec_ls;
mod inbound_connection;
mod network_activity;
mod outbound_connection;
mod run_shell;

use super::Action;

/// The table of helpers, sorted by name.
#[rustfmt::skip]
pub(super) const ACTIONS: &[&Action] = &[
    &combined_server_client::ACTION,
    &do_nothing::ACTION,
    &exec_ls::ACTION,
    &inbound_connection::ACTION,
    &network_activity::ACTION,
    &outbound_connection::ACTION,
    &run_shell::ACTION,
];
