//! Upgrade: a new agent takes over from a living one.

use sys::time::{Clock, now_ns};
use sys::wait::{self, Target};

use super::super::shared_state::{Cause, Order, State};
use super::successor::{Program, Successor};
use super::{Keeper, PREPARATION_NS};

/// Time limit for an agent to conclude the calls it holds.
const HAND_OVER_NS: u64 = 10_000_000_000;

/// A new agent that is about to take over from a living one.
pub(super) struct Upgrade {
    pub(super) successor: Successor,
    began_ns: u64,
    /// Time at which the living one was ordered to hand over.
    ordered_ns: Option<u64>,
}

/// Minimum time between the starts of two upgrades. An earlier request waits.
const UPGRADE_INTERVAL_NS: u64 = 1_000_000_000;

impl Keeper<'_> {
    /// Returns true if the last upgrade is long enough ago.
    pub(super) fn may_upgrade(&self) -> bool {
        let since = now_ns(Clock::Monotonic) - self.upgraded_ns;
        self.upgraded_ns == 0 || since >= UPGRADE_INTERVAL_NS
    }

    pub(super) fn begin_upgrade(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        self.wants_upgrade = false;
        self.upgraded_ns = now_ns(Clock::Monotonic);
        let generation = self.inherited.shared_state.generation.get() + 1;
        match Successor::start(self.inherited, listener, generation, Program::Installed) {
            Ok(successor) => {
                self.upgrade = Some(Upgrade {
                    successor,
                    began_ns: now_ns(Clock::Monotonic),
                    ordered_ns: None,
                });
            }
            Err(_) => self.upgrade_failed(),
        }
    }

    pub(super) fn follow_upgrade(&mut self) {
        let shared_state = &self.inherited.shared_state;
        let (old, new) = (
            shared_state.generation.get(),
            shared_state.generation.get() + 1,
        );
        let now = now_ns(Clock::Monotonic);
        let Some(upgrade) = &mut self.upgrade else {
            return;
        };
        let is_late = now - upgrade.began_ns > PREPARATION_NS;
        match upgrade.ordered_ns {
            _ if upgrade.successor.has_ended() => {
                let is_ordered = upgrade.ordered_ns.is_some();
                self.drop_upgrade();
                self.upgrade_failed();
                if is_ordered {
                    // The old agent hands over without a successor; an unwatched interval and
                    // another agent follow.
                    self.agent.end_for_upgrade(Cause::Exited);
                }
            }
            None if shared_state.state(new) == State::Prepared => {
                upgrade.ordered_ns = Some(now);
                shared_state.set_order(old, Order::HandOver);
                self.inherited.agent_bell(old).ring();
            }
            None if is_late => upgrade.successor.kill(),
            Some(_) if shared_state.state(old) == State::HandedOver => {
                shared_state.bury(old);
                shared_state.upgrades.add(1);
                shared_state.upgraded_to.set(new);
                if let Some(upgrade) = self.upgrade.take() {
                    self.hand_to(new, upgrade.successor);
                }
            }
            Some(ordered) if now - ordered > HAND_OVER_NS => {
                self.agent.end_for_upgrade(Cause::Stopped);
            }
            None | Some(_) => {}
        }
    }

    pub(super) fn drop_upgrade(&mut self) {
        if let Some(mut upgrade) = self.upgrade.take() {
            upgrade.successor.kill();
            let _ = wait::wait(Target::Pid(upgrade.successor.pid()), 0);
        }
    }

    fn upgrade_failed(&self) {
        let shared_state = &self.inherited.shared_state;
        shared_state.upgrades_failed.add(1);
        self.inherited
            .agent_bell(shared_state.generation.get())
            .ring();
    }
}
