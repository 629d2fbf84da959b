//! A receiver's response to an intrusion.

use std::sync::Arc;

use abi::Errno;
use bumpalo::Bump;
use event::{Evaluator, LiveProcess, Outcome, Process};
use sys::time::{Clock, now_ns};

use super::Response;
use crate::notify::obstacle::obstacle;
use crate::notify::receiver::Receiver;
use crate::notify::worker::CallView;
use decoder::call::Call;
use decoder::counters::Counters;
use decoder::decode;

impl<J: Evaluator + 'static> Receiver<J> {
    /// Answers a call that must not be made as it is; returns false for all others. Rules evaluate it with
    /// the result that it gets.
    pub(in crate::notify) fn is_intrusion(&mut self, call: &Call) -> bool {
        let shared = Arc::clone(&self.worker.shared);
        let Some(intrusion) = shared.guard.rule(call) else {
            return false;
        };
        let result = match intrusion.response {
            Response::Made => None,
            Response::Refused => Some(-i64::from(Errno::EPERM.0)),
            Response::Spared(result) => Some(result),
        };
        let Some(process) = self.caller(call) else {
            Counters::add(&shared.counters.gone);
            return false;
        };
        if process.sets_up() && result.is_none() {
            return false;
        }
        if intrusion.aim.is_counted() {
            Counters::add(&shared.counters.intrusions);
        }
        if intrusion.aim.is_hostile() {
            shared.notices.intrusion(&process, &intrusion);
        }
        let Some(result) = result else {
            return false;
        };
        if shared.is_evaluated(call) {
            self.finish_refused(call, result, &process);
        }
        let answered = match i32::try_from(result) {
            Ok(errno @ ..0) => shared.listener.respond_errno(call.id, -errno),
            _ => shared.listener.respond_value(call.id, result),
        };
        if answered.is_err() {
            Counters::add(&shared.counters.answer_errors);
        }
        true
    }

    fn finish_refused(&mut self, call: &Call, result: i64, process: &Arc<Process>) {
        let arena = Bump::new();
        let time_ns = now_ns(Clock::Real);
        let decoded = decode::decode(call, &self.memory, &arena);
        if self.seat.proceed() {
            let live = LiveProcess::default();
            let entry = CallView::at_entry(call, time_ns, decoded, &live, &arena);
            let view = entry.returned(Outcome::Returned(result));
            self.worker.finish(&view, process);
        }
    }

    /// Reports once that the memory of a process cannot be read.
    pub(in crate::notify) fn tell_unreadable(&self, call: &Call, process: &Process) {
        let shared = &self.worker.shared;
        if shared.unreadable.is_new(process)
            && let Some(obstacle) = obstacle(call.tid)
        {
            let name = call.syscall.name();
            shared.notices.unreadable(process, name, obstacle);
        }
    }
}
