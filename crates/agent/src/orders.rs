//! Operator orders to the agent, by signal.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use abi::Errno;
use anyhow::Context;
use outputs::Dispatcher;
use rules::Priority;
use supervisor::signals::{SIGHUP, SIGUSR1};
use supervisor::{Report, SenderCheck, SharedState};
use sys::poll::{self, PollFd};
use sys::signal::SignalStream;

use super::reports;
use crate::journal;

/// Handles orders on a thread of its own for the lifetime of the process. SIGUSR1 and SIGHUP reopen
/// every output; SIGHUP calls `on_reload` first. A signal that does not come from an operator is
/// reported and ignored.
pub(super) fn follow(
    orders: SignalStream,
    shared_state: Arc<SharedState>,
    dispatcher: Dispatcher,
    on_reload: impl Fn() + Send + 'static,
) -> anyhow::Result<()> {
    let mut check = SenderCheck::new(&shared_state);
    let work = move || {
        while wait(&orders) {
            while let Ok(Some(order)) = orders.next() {
                match order.signal {
                    // A hang-up of the terminal is meant for the command.
                    SIGHUP if order.code == SI_KERNEL => {}
                    _ if !check.accepts(&shared_state, &order) => {
                        dispatcher.emit_internal(reports::internal(&Report::OrderRefused));
                    }
                    SIGHUP => {
                        on_reload();
                        dispatcher.reopen();
                    }
                    SIGUSR1 => {
                        if journal::is_falcos() {
                            let text = "SIGUSR1 received, reopening outputs";
                            journal::say(Priority::Informational, text);
                        }
                        dispatcher.reopen();
                    }
                    _ => {}
                }
            }
        }
    };
    thread::Builder::new()
        .name("orders".to_owned())
        .spawn(work)
        .context("cannot start the thread that waits for signals")?;
    Ok(())
}

/// Waits for an order. Returns false if that is impossible.
fn wait(orders: &SignalStream) -> bool {
    let mut polled = [PollFd::new(orders.as_fd(), poll::IN)];
    match poll::poll(&mut polled, None) {
        Ok(_) => true,
        Err(error) => error.is(Errno::EINTR),
    }
}

/// `si_code` of a signal that no process has sent.
const SI_KERNEL: i32 = 0x80;
