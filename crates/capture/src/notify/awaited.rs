//! Calls of one traced thread whose results are awaited.
//!
//! More than one only while a signal handler makes calls before the interrupted call is restarted or fails
//! with EINTR: the last one is the innermost.

use abi::Syscall;

use super::tracer::FollowedCall;
use decoder::call::Call;

/// Call that a thread entered: audit architecture, number and arguments.
pub(crate) type SyscallEntry = (u32, u64, [u64; 6]);

/// Progress of an awaited call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Taken back before it began, for the stop; the kernel certainly makes it again.
    Held,
    /// In progress.
    Made,
    /// Interrupted by a signal. When the handler returns the call is restarted, or fails with EINTR.
    Undone,
}

#[derive(Debug)]
struct AwaitedCall {
    followed: FollowedCall,
    phase: Phase,
    /// Number of other calls of the thread since it was taken back or interrupted.
    others: u32,
}

/// Relation of a trapped call to the awaited ones.
#[derive(Debug)]
pub(crate) enum Trapped {
    /// An independent call.
    Other,
    /// The innermost awaited call.
    Awaited {
        /// True if it was not in progress before.
        begins: bool,
    },
}

/// The awaited calls of a thread.
#[derive(Debug, Default)]
pub(crate) struct AwaitedCalls(Vec<AwaitedCall>);

impl AwaitedCalls {
    /// Returns whether no call is awaited.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a call that was taken back before it began.
    pub(crate) fn hold(&mut self, followed: FollowedCall) -> bool {
        self.push(followed, Phase::Held)
    }

    /// Adds a call that is about to be let go.
    pub(crate) fn let_go(&mut self, followed: FollowedCall) -> bool {
        self.push(followed, Phase::Made)
    }

    fn push(&mut self, followed: FollowedCall, phase: Phase) -> bool {
        if self.0.len() >= NESTED_LIMIT {
            return false;
        }
        self.0.push(AwaitedCall {
            followed,
            phase,
            others: 0,
        });
        true
    }

    /// Returns the innermost call if it is in progress.
    pub(crate) fn under_way(&mut self) -> Option<&mut FollowedCall> {
        let last = self.0.last_mut()?;
        (last.phase == Phase::Made).then_some(&mut last.followed)
    }

    /// Notes the stack pointer of the thread, which has just been stopped for the innermost call.
    pub(crate) fn note_stack(&mut self, stack: Option<u64>) {
        if let Some(last) = self.0.last_mut() {
            last.followed.note_stack(stack);
        }
    }

    /// Matches a trapped call of the thread with the awaited ones. `stack`: its stack pointer.
    pub(crate) fn trapped(&mut self, call: &Call, stack: impl FnOnce() -> Option<u64>) -> Trapped {
        match self.0.last_mut() {
            Some(last) if last.followed.is_again(call, stack) => {
                let begins = last.phase != Phase::Made;
                last.phase = Phase::Made;
                Trapped::Awaited { begins }
            }
            _ => Trapped::Other,
        }
    }

    /// Notes that the thread enters a call. Returns the innermost awaited call if the program has left it
    /// without returning from its signal handler (longjmp).
    pub(crate) fn entered(&mut self, entered: SyscallEntry) -> Option<FollowedCall> {
        let last = self.0.last_mut()?;
        if last.phase == Phase::Made || last.followed.is_entered(Some(entered)) {
            return None;
        }
        last.others += 1;
        if last.others <= HANDLER_LIMIT {
            return None;
        }
        self.0.pop().map(|last| last.followed)
    }

    /// Notes that the thread's call has returned. Returns the innermost awaited call if it is that one.
    pub(crate) fn returned(&mut self, entered: Option<SyscallEntry>) -> Option<FollowedCall> {
        let is_it =
            |last: &mut AwaitedCall| last.phase == Phase::Made && last.followed.is_entered(entered);
        self.0.pop_if(is_it).map(|last| last.followed)
    }

    /// Notes that the innermost call was interrupted, and will be restarted or fail with EINTR.
    pub(crate) fn undone(&mut self, entered: Option<SyscallEntry>, stack: Option<u64>) -> bool {
        let Some(last) = self.0.last_mut() else {
            return false;
        };
        let is_it = last.phase == Phase::Made && last.followed.is_entered(entered);
        if is_it {
            last.phase = Phase::Undone;
            last.others = 0;
            last.followed.note_stack(stack);
        }
        is_it
    }

    /// Notes that a signal handler has returned to `ip` with EINTR. Returns the interrupted call if it has
    /// failed for good.
    pub(crate) fn failed(
        &mut self,
        entered: Option<SyscallEntry>,
        ip: u64,
    ) -> Option<FollowedCall> {
        let (audit, number, _) = entered?;
        let number = u32::try_from(number).ok()?;
        let (_, syscall) = abi::arch::decode(audit, number)?;
        if !matches!(syscall, Some(Syscall::RT_SIGRETURN | Syscall::SIGRETURN)) {
            return None;
        }
        let is_it =
            |last: &mut AwaitedCall| last.phase == Phase::Undone && last.followed.call.ip == ip;
        self.0.pop_if(is_it).map(|last| last.followed)
    }

    /// Notes an exec. Returns the exec, and the number of other calls that will never return.
    pub(crate) fn executed(
        &mut self,
        is_exec: impl Fn(&FollowedCall) -> bool,
    ) -> (Option<FollowedCall>, u64) {
        let mut exec = None;
        let mut others = 0;
        for last in self.0.drain(..).rev() {
            if exec.is_none() && last.phase == Phase::Made && is_exec(&last.followed) {
                exec = Some(last.followed);
            } else {
                others += 1;
            }
        }
        (exec, others)
    }

    /// Removes the call with this id, which will not come back.
    pub(crate) fn forget(&mut self, id: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|last| last.followed.call.id != id);
        self.0.len() < before
    }

    /// Returns all calls, and whether each has begun: the others are made again, if at all.
    pub(crate) fn into_all(self) -> impl Iterator<Item = (FollowedCall, bool)> {
        let calls = self.0.into_iter();
        calls.map(|last| (last.followed, last.phase != Phase::Held))
    }
}

/// Maximum number of nested signal handlers, each within an awaited call.
const NESTED_LIMIT: usize = 16;
/// Maximum number of calls of a signal handler, and after leaving it by a jump, before the interrupted call
/// is given up.
const HANDLER_LIMIT: u32 = 1024;
