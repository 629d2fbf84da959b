//! The claim to receive at a listener: held by one engine for each [`ReceiverStatus`], in one atomic word.
//!
//! A listener can be handed from process to process, and each of them may die, stop or be late. So a claim is
//! offered under a number, an engine takes it before its first call, and the process that offered it can
//! withdraw it. Then the engine never begins, or stops before its next call and releases the claim when it
//! has finished the calls it had.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sys::poll::{self, PollFd};

use super::receiver_status::ReceiverStatus;

/// Number of an offered claim, for the engine that is to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimOffer(pub u64);

/// State of a claim when it was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithdrawnClaim {
    /// No engine has received under it, and none will.
    Unused,
    /// An engine of this process has taken it, and has not finished its calls.
    InUse {
        /// Pid of the process.
        pid: i32,
    },
    /// The engine has finished its calls.
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Offered,
    Taken,
    Revoked,
    Released,
}

/// The claim word: a serial number that only grows, a state, and the pid of the process that has taken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    serial: u64,
    state: State,
    pid: i32,
}

const STATES: [State; 4] = [
    State::Offered,
    State::Taken,
    State::Revoked,
    State::Released,
];
const STATE_SHIFT: u32 = 32;
const SERIAL_SHIFT: u32 = 34;

impl Word {
    fn unpack(word: u64) -> Self {
        let state = usize::try_from(word >> STATE_SHIFT & 3).expect("two bits");
        let pid = u32::try_from(word & u64::from(u32::MAX)).expect("32 bits are left");
        Self {
            serial: word >> SERIAL_SHIFT,
            state: STATES[state],
            pid: pid.cast_signed(),
        }
    }

    fn pack(self) -> u64 {
        self.serial << SERIAL_SHIFT
            | (self.state as u64) << STATE_SHIFT
            | u64::from(self.pid.cast_unsigned())
    }
}

impl ReceiverStatus {
    fn change(&self, change: impl Fn(Word) -> Word) -> (Word, Word) {
        let claim: &AtomicU64 = self.claim_word();
        let mut known = claim.load(Ordering::Acquire);
        loop {
            let (before, after) = (Word::unpack(known), change(Word::unpack(known)));
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            match claim.compare_exchange_weak(known, after.pack(), success, failure) {
                Ok(_) => return (before, after),
                Err(now) => known = now,
            }
        }
    }

    /// Offers the claim to one engine. Any earlier offer or claim becomes invalid.
    pub fn offer(&self) -> ClaimOffer {
        let (_, offered) = self.change(|before| Word {
            serial: before.serial + 1,
            state: State::Offered,
            pid: 0,
        });
        ClaimOffer(offered.serial)
    }

    /// Takes the offered claim. Returns `None` if it has been withdrawn.
    pub fn take(self: &Arc<Self>, ticket: ClaimOffer) -> Option<ReceiveClaim> {
        let offered = Word {
            serial: ticket.0,
            state: State::Offered,
            pid: 0,
        };
        let taken = Word {
            state: State::Taken,
            pid: std::process::id().cast_signed(),
            ..offered
        };
        let (before, _) = self.change(|now| if now == offered { taken } else { now });
        (before == offered).then(|| ReceiveClaim {
            pulse: Arc::clone(self),
            taken,
        })
    }

    /// Withdraws the current claim, if any. An engine that has taken it receives no more from its next call on.
    pub fn withdraw(&self) -> WithdrawnClaim {
        let (before, _) = self.change(|now| {
            let state = match now.state {
                State::Offered | State::Released => State::Released,
                State::Taken | State::Revoked => State::Revoked,
            };
            Word { state, ..now }
        });
        match before.state {
            State::Offered => WithdrawnClaim::Unused,
            State::Taken | State::Revoked => WithdrawnClaim::InUse { pid: before.pid },
            // The claim was never taken, or its engine has finished with it.
            State::Released if before.pid == 0 => WithdrawnClaim::Unused,
            State::Released => WithdrawnClaim::Released,
        }
    }

    /// Returns whether an engine of a living process still works on calls under a claim that was withdrawn.
    pub fn is_in_use(&self) -> bool {
        let word = Word::unpack(self.claim_word().load(Ordering::Acquire));
        [State::Taken, State::Revoked].contains(&word.state) && is_alive(word.pid)
    }

    /// Withdraws the claim and waits until no engine receives under it, or the time has passed. Returns
    /// whether every received call has been finished.
    pub fn withdraw_and_wait(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            match self.withdraw() {
                WithdrawnClaim::Unused | WithdrawnClaim::Released => return true,
                WithdrawnClaim::InUse { pid } if !is_alive(pid) => {
                    // It may have released the claim just before it ended.
                    return !matches!(self.withdraw(), WithdrawnClaim::InUse { .. });
                }
                WithdrawnClaim::InUse { .. } if Instant::now() > deadline => return false,
                WithdrawnClaim::InUse { .. } => std::thread::sleep(PAUSE),
            }
        }
    }
}

const PAUSE: Duration = Duration::from_millis(1);

fn is_alive(pid: i32) -> bool {
    let Ok(process) = sys::pidfd::open(pid) else {
        return false;
    };
    let mut polled = [PollFd::new(process.as_fd(), poll::IN)];
    poll::poll(&mut polled, Some(Duration::ZERO)).is_ok_and(|ready| ready == 0)
}

/// The right of one engine to receive.
#[derive(Debug)]
pub struct ReceiveClaim {
    pulse: Arc<ReceiverStatus>,
    taken: Word,
}

impl ReceiveClaim {
    /// Returns whether the claim has not been withdrawn.
    pub(crate) fn is_in_force(&self) -> bool {
        self.pulse.claim_word().load(Ordering::Acquire) == self.taken.pack()
    }

    /// Releases the claim: every call that was received under it has been finished.
    pub(crate) fn release(&self) {
        let revoked = Word {
            state: State::Revoked,
            ..self.taken
        };
        let released = Word {
            state: State::Released,
            ..self.taken
        };
        self.pulse
            .change(|now| match now == self.taken || now == revoked {
                true => released,
                false => now,
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse() -> Arc<ReceiverStatus> {
        Arc::new(ReceiverStatus::private().expect("memory"))
    }

    #[test]
    fn of_two_engines_only_the_one_that_was_asked_last_receives() {
        let pulse = pulse();
        let late = pulse.offer();
        let alone = pulse.offer();
        assert!(pulse.take(late).is_none());
        let claim = pulse.take(alone).expect("it is the last offer");
        assert!(claim.is_in_force());
        assert!(pulse.take(alone).is_none(), "it has been taken");
    }

    #[test]
    fn an_offer_that_is_withdrawn_before_it_is_taken_is_never_taken() {
        let pulse = pulse();
        let ticket = pulse.offer();
        assert_eq!(pulse.withdraw(), WithdrawnClaim::Unused);
        assert!(pulse.take(ticket).is_none());
        assert!(pulse.withdraw_and_wait(Duration::ZERO));
        // Words that have never been used are no claim.
        assert_eq!(
            ReceiverStatus::private().expect("memory").withdraw(),
            WithdrawnClaim::Unused
        );
    }

    #[test]
    fn an_engine_whose_claim_is_withdrawn_stops_and_says_when_it_has_done() {
        let pulse = pulse();
        let claim = pulse.take(pulse.offer()).expect("it is offered");
        let pid = std::process::id().cast_signed();
        assert_eq!(pulse.withdraw(), WithdrawnClaim::InUse { pid });
        assert!(!claim.is_in_force() && pulse.is_in_use());
        assert!(!pulse.withdraw_and_wait(Duration::from_millis(3)));
        claim.release();
        assert!(!pulse.is_in_use());
        assert!(pulse.withdraw_and_wait(Duration::ZERO));
        assert_eq!(pulse.withdraw(), WithdrawnClaim::Released);
        // A release that comes late does not touch the next one's claim.
        let next = pulse.take(pulse.offer()).expect("it is offered");
        claim.release();
        assert!(next.is_in_force());
    }

    #[test]
    fn one_who_died_with_the_claim_has_not_concluded_its_calls() {
        let pulse = pulse();
        let mut child = std::process::Command::new("true")
            .spawn()
            .expect("it is there");
        let ticket = pulse.offer();
        let taken = Word {
            serial: ticket.0,
            state: State::Taken,
            pid: child.id().cast_signed(),
        };
        pulse.claim_word().store(taken.pack(), Ordering::Release);
        child.wait().expect("our child");
        assert!(!pulse.is_in_use());
        assert!(!pulse.withdraw_and_wait(Duration::from_secs(60)));
    }
}
