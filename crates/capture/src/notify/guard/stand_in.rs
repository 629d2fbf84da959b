//! Protection of the monitor's processes while a process without rules answers the calls.

use abi::Syscall;
use event::Pid;
use sys::notify::Notification;

use super::{Guard, GuardOptions, Response, with_own};
use decoder::call::Call;
use decoder::lineage;
use process_info::procfs::ProcError;

/// Answer to a call that must not be made as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandInAnswer {
    /// The call fails with EPERM.
    Refused,
    /// The call was carried out for the other processes, or has no effect, and returns this: 0 or a negative error
    /// number.
    Returned(i64),
}

/// Protects the monitor's processes, and the marks by which it recognises those of the workload, while the agent does
/// not receive calls.
#[derive(Debug)]
pub struct StandInGuard(Guard);

impl StandInGuard {
    /// Creates a guard. It protects this process and, at each call, those that are named there.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be opened.
    pub fn new(options: GuardOptions) -> Result<Self, ProcError> {
        Guard::new(&[], options).map(Self)
    }

    /// Returns whether [`Self::answer`] has to be asked about a call. One whose arguments are unknown must be refused
    /// then.
    pub fn concerns(audit: u32, nr: u32) -> bool {
        let known = abi::arch::decode(audit, nr).and_then(|(_, call)| call);
        known.is_some_and(|call| call == Syscall::SETRLIMIT || Guard::concerns(call))
    }

    /// Returns the answer to a call that must not be made as it is, and `None` for any other. A signal to many has
    /// been sent to the others when this returns. `ours`: the processes to protect beside this one.
    pub fn answer(&self, notification: &Notification, ours: &[Pid]) -> Option<StandInAnswer> {
        let call = Call::from_registers(notification)?;
        match lineage::answer_to(&call) {
            Some(Ok(result)) => return Some(StandInAnswer::Returned(result)),
            Some(Err(errno)) => return Some(StandInAnswer::Returned(-i64::from(errno))),
            None if !Guard::concerns(call.syscall) => return None,
            None => {}
        }
        self.0.set_ours(with_own(ours));
        match self.0.rule(&call)?.response {
            Response::Made => None,
            Response::Refused => Some(StandInAnswer::Refused),
            Response::Spared(result) => Some(StandInAnswer::Returned(result)),
        }
    }
}
