//! The tracer: handles each stop of a traced thread.
//!
//! A thread is in one of three stops that show its position in a call: at the filter, before the call, or
//! after it. Every other stop is passed on as if no tracer existed: a signal about to be delivered is
//! delivered, a group-stop lasts until the group is continued (`PTRACE_LISTEN`), a new thread or process is
//! traced from its first instruction.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bumpalo::Bump;
use event::{Evaluator, Outcome, Pid, Process, Tid};
use sys::notify::Notification;
use sys::ptrace::{self, SyscallInfo, SyscallOp};
use sys::wait::{self, Status};

use abi::constant::CLONE_UNTRACED;
use abi::{Errno, Signal, Syscall};

use super::attach::AttachError;
use super::guard::TracerView;
use super::inspection::Inspection;
use super::newborns::Newborns;
use super::pages::Pages;
use super::request_queue::{Request, RequestQueue};
use super::{MARK, Target};
use crate::notify::Shared;
use crate::notify::escalation::{is_own_interruption, restart};
use crate::notify::tracer::FollowedCall;
use crate::notify::worker::CallEvaluator;
use decoder::call::Call;
use decoder::counters::Counters;
use decoder::decode;
use process_info::memory::Memory;
use seccomp::run::{SeccompData, run as run_filter};
use seccomp::{Action, FilterProgram};

/// Number of bytes kept by the arena between calls; an arena that has grown beyond it is replaced.
const ARENA_KEEP: usize = 256 * 1024;

/// Number of stops after which every thread gets a turn. The kernel reports the youngest stopped thread
/// first, so threads that stop all the time would keep the older ones waiting for ever.
const FAIR_EVERY: u32 = 16;

/// Options for every traced thread, besides its calls.
const OPTIONS: u32 = ptrace::OPTION_TRACESYSGOOD
    | ptrace::OPTION_TRACEFORK
    | ptrace::OPTION_TRACEVFORK
    | ptrace::OPTION_TRACECLONE
    | ptrace::OPTION_TRACEEXEC;
/// Option for a thread under the filter. Without it the filter's answer is ENOSYS, as programs expect that
/// install such a filter themselves and are not traced.
const FILTERED: u32 = ptrace::OPTION_TRACESECCOMP;

/// State of the tracer. Everything runs on the thread that has attached.
pub(super) struct Engine<J: Evaluator> {
    pub(super) worker: CallEvaluator<J>,
    pub(super) memory: Memory,
    pub(super) arena: Bump,
    pub(super) post: Arc<TracerView>,
    pub(super) tracees: HashMap<Tid, Tracee>,
    pub(super) pages: Pages,
    pub(super) newborns: Newborns,
    /// Processes in which plain `dup` may give one of descriptors 0..2 to a socket (`decoder::stdio`).
    pub(super) redirecting: HashSet<Pid>,
    inbox: Arc<RequestQueue>,
    filter: FilterProgram,
    is_leaving: bool,
}

/// A traced thread.
#[derive(Debug)]
pub(super) struct Tracee {
    /// Process of the thread.
    pub(super) pid: Pid,
    /// Mode in which its calls are traced.
    pub(super) how: TraceMode,
    /// The call in progress, if it is followed.
    call: AwaitedStop,
    /// For a call that a signal has interrupted: the stack pointer there, and the number of calls since.
    undone: (u64, u32),
    /// True between attaching and the first stop.
    is_fresh: bool,
}

/// Mode in which the calls of a thread are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceMode {
    /// The filter stops the thread at planned calls.
    Filter,
    /// The thread stops at every call, and the tracer runs the filter.
    Every,
    /// The thread runs this program's code, before it installs the filter, or decides not to.
    Starting,
}

/// Stop that the tracer awaits in the call of a thread.
#[derive(Debug)]
enum AwaitedStop {
    /// No stop.
    Nothing,
    /// The stop after the call, with its result.
    Result(Box<FollowedCall>),
    /// A signal has interrupted the call; the kernel restarts it or lets it fail with EINTR.
    Undone(Box<FollowedCall>),
    /// The stop that shows whether the filter is in place.
    Filter,
}

impl Tracee {
    pub(super) fn attached(pid: Pid, how: TraceMode) -> Self {
        Self {
            pid,
            how,
            call: AwaitedStop::Nothing,
            undone: (0, 0),
            is_fresh: true,
        }
    }

    pub(super) fn born(pid: Pid, how: TraceMode) -> Self {
        Self {
            is_fresh: false,
            ..Self::attached(pid, how)
        }
    }

    /// Returns whether the thread must stop at its next entry to, or return from, a call.
    fn stops_at_calls(&self) -> bool {
        self.how != TraceMode::Filter || !matches!(self.call, AwaitedStop::Nothing)
    }
}

impl<J: Evaluator> Engine<J> {
    pub(super) fn new(
        shared: Arc<Shared<J>>,
        inbox: Arc<RequestQueue>,
        post: Arc<TracerView>,
        filter: FilterProgram,
    ) -> Self {
        Self {
            worker: CallEvaluator::new(shared),
            memory: Memory::of_resident_pages(Arc::clone(&post.reading)),
            arena: Bump::with_capacity(16 * 1024),
            post,
            tracees: HashMap::new(),
            pages: Pages::new(Arc::clone(&inbox)),
            newborns: Newborns::default(),
            redirecting: HashSet::new(),
            inbox,
            filter,
            is_leaving: false,
        }
    }

    /// Attaches to the target.
    pub(super) fn begin(&mut self, target: &Target) -> Result<(), AttachError> {
        match target {
            Target::Command(pid) => {
                let options = OPTIONS | FILTERED | ptrace::OPTION_EXITKILL;
                self.attach_thread(Tid(pid.0), *pid, TraceMode::Starting, options)
            }
            Target::Running(pids) => pids.iter().try_for_each(|pid| self.attach(*pid)),
        }
    }

    /// Handles stops and requests until no traced thread is left.
    pub(super) fn run(&mut self) {
        let mut turns = 0_u32;
        loop {
            while let Some(request) = self.inbox.take() {
                self.serve(request);
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(FAIR_EVERY) {
                self.serve_stops();
            }
            match wait::wait(wait::Target::Any, wait::ALL | wait::NO_THREAD) {
                Ok(Some((tid, status))) => self.stopped(Tid(tid), status),
                // A request arrived.
                Ok(None) => {}
                Err(error) if error.is(EINTR) => {}
                // No traced thread is left.
                Err(_) => return,
            }
        }
    }

    /// Handles each pending stop, once for each thread, without waiting for another.
    pub(super) fn serve_stops(&mut self) {
        for (tid, status) in wait::pending_of_thread() {
            self.stopped(Tid(tid), status);
        }
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Attach { pid, answer } => {
                // The requester may have given up.
                let _ = answer.send(self.attach(pid));
            }
            Request::Fetched(fetched) => self.fetched(fetched),
            Request::Overdue => {
                self.overdue();
                self.overdue_newborns();
            }
            Request::Leave => self.leave(),
        }
    }

    /// Interrupts every thread, to detach from it at that stop.
    fn leave(&mut self) {
        self.is_leaving = true;
        for tid in self.tracees.keys() {
            // A thread that is stopped already is detached at that stop.
            let _ = ptrace::interrupt(tid.0);
        }
    }

    /// Seizes a thread and interrupts it.
    pub(super) fn attach_thread(
        &mut self,
        tid: Tid,
        pid: Pid,
        how: TraceMode,
        options: u32,
    ) -> Result<(), AttachError> {
        ptrace::seize(tid.0, options).map_err(|error| AttachError::of(tid, pid, &error))?;
        self.tracees.insert(tid, Tracee::attached(pid, how));
        // Fails only if the thread has ended, which the next wait reports.
        let _ = ptrace::interrupt(tid.0);
        Ok(())
    }

    /// As [`Engine::attach_thread`], for a thread that runs without the filter.
    pub(super) fn attach_unfiltered(&mut self, tid: Tid, pid: Pid) -> Result<(), AttachError> {
        self.attach_thread(tid, pid, TraceMode::Every, OPTIONS)
    }

    fn stopped(&mut self, tid: Tid, status: Status) {
        match status {
            Status::Exited(_) | Status::Signaled { .. } => self.ended(tid),
            Status::Continued => {}
            // A signal is about to be delivered.
            Status::Stopped(signal) => self.go_on(tid, signal),
            Status::SyscallStop => {
                self.at_syscall(tid);
                self.go_on_unless_held(tid);
            }
            Status::PtraceEvent { event, signal } => match event {
                // A group-stop: the group stays stopped until it is continued.
                ptrace::EVENT_STOP if is_stop_signal(signal) => self.stay(tid, signal),
                ptrace::EVENT_STOP => self.at_stop(tid),
                _ => {
                    match event {
                        ptrace::EVENT_SECCOMP => self.at_filter(tid),
                        ptrace::EVENT_EXEC => self.at_exec(tid),
                        ptrace::EVENT_FORK | ptrace::EVENT_VFORK | ptrace::EVENT_CLONE => {
                            self.at_birth(tid, event);
                        }
                        _ => {}
                    }
                    self.go_on_unless_held(tid);
                }
            },
        }
    }

    /// Resumes a thread, unless its call waits for a page.
    pub(super) fn go_on_unless_held(&mut self, tid: Tid) {
        if !self.pages.is_waiting(tid) {
            self.go_on(tid, 0);
        }
    }

    fn go_on(&mut self, tid: Tid, signal: i32) {
        let Some(tracee) = self.tracees.get(&tid) else {
            // Born to a thread that was killed before its birth was reported.
            self.adopt(tid, None);
            return self.go_on_anyway(tid, signal);
        };
        if self.is_let_go(tid) {
            // Any stop cancels the requested one.
            let _ = ptrace::interrupt(tid.0);
        }
        // Fails only if the thread was killed; its end is reported by the next wait.
        let _ = if tracee.stops_at_calls() || self.redirecting.contains(&tracee.pid) {
            ptrace::resume_to_syscall(tid.0, signal)
        } else {
            ptrace::resume(tid.0, signal)
        };
    }

    fn go_on_anyway(&mut self, tid: Tid, signal: i32) {
        let is_known = self.tracees.contains_key(&tid);
        // Fails only if the thread was killed, as above.
        let _ = if is_known {
            ptrace::resume_to_syscall(tid.0, signal)
        } else {
            ptrace::resume(tid.0, signal)
        };
    }

    fn stay(&mut self, tid: Tid, signal: i32) {
        if self.is_let_go(tid) {
            // It stays stopped, as the kernel remembers the reason.
            return self.release(tid, signal);
        }
        let _ = ptrace::listen(tid.0);
    }

    /// Returns whether the tracer is to detach from the thread at this stop, which must be the requested one:
    /// at any other one the requested stop would still be pending. A call under the filter needs a tracer.
    fn is_let_go(&self, tid: Tid) -> bool {
        let is_unfiltered = |tracee: &Tracee| tracee.how == TraceMode::Every;
        self.is_leaving && self.tracees.get(&tid).is_some_and(is_unfiltered)
    }

    /// Detaches from a stopped thread.
    fn release(&mut self, tid: Tid, signal: i32) {
        if let Some(tracee) = self.tracees.remove(&tid)
            && let AwaitedStop::Result(followed) | AwaitedStop::Undone(followed) = tracee.call
        {
            self.conclude(*followed, Outcome::Unlearnt);
        }
        let _ = ptrace::detach(tid.0, signal);
    }

    /// Handles the stop that attaching requested, a newborn's first, or the end of a group-stop.
    fn at_stop(&mut self, tid: Tid) {
        // Not known: its parent has not reported its birth yet.
        if !self.tracees.contains_key(&tid) && self.holds_newborn(tid) {
            return;
        }
        if let Some(tracee) = self.tracees.get_mut(&tid)
            && (std::mem::take(&mut tracee.is_fresh) || self.is_leaving)
            && let Ok(mut registers) = ptrace::registers(tid.0)
        {
            // The stop ended a call that the kernel does not restart by itself.
            is_own_interruption(tid.0, &mut registers, |now| restart(now, None));
        }
        self.go_on_from_stop(tid);
    }

    /// Resumes a thread from a stop that attaching requested, or detaches from it.
    pub(super) fn go_on_from_stop(&mut self, tid: Tid) {
        if self.is_let_go(tid) {
            return self.release(tid, 0);
        }
        self.go_on(tid, 0);
    }

    /// Handles an exec. If a thread other than the leader made it, that thread has the leader's id from now
    /// on; the other threads are gone, and the kernel does not report the end of all of them.
    fn at_exec(&mut self, tid: Tid) {
        let former = event_tid(tid).unwrap_or(tid);
        let Some(mut caller) = self.tracees.remove(&former) else {
            return;
        };
        let pid = caller.pid;
        self.memory.forget(tid);
        let others = self.tracees.extract_if(|_, tracee| tracee.pid == pid);
        for (tid, _) in others {
            self.pages.forget(tid);
            self.memory.forget(tid);
        }
        self.note_waiting();
        let call = std::mem::replace(&mut caller.call, AwaitedStop::Nothing);
        if caller.how == TraceMode::Starting {
            // The program runs without a filter.
            caller.how = TraceMode::Every;
        }
        self.tracees.insert(tid, caller);
        if let AwaitedStop::Result(mut followed) = call {
            followed.call.tid = tid;
            self.returned(*followed, 0);
        }
        self.follow_stdio_of_program(pid);
    }

    pub(super) fn at_filter(&mut self, tid: Tid) {
        let Ok(info) = ptrace::syscall_info(tid.0) else {
            return;
        };
        let SyscallOp::Seccomp { nr, args, data } = info.op else {
            return;
        };
        if data == u32::from(MARK) || self.is_planned(nr, info.arch, args) {
            self.enters(tid, nr, info.arch, info.ip, args);
        }
        if self.pages.is_waiting(tid) {
            return;
        }
        if data != u32::from(MARK) {
            // A filter of the workload's own asks for a tracer, which the workload does not have.
            self.refuse(tid, i64::from(Errno::ENOSYS.0));
        } else if is_new_listener(nr, info.arch, args) {
            self.refuse(tid, i64::from(Errno::EBUSY.0));
        }
    }

    /// Makes the call fail that the thread is about to make.
    fn refuse(&mut self, tid: Tid, errno: i64) {
        // Fails only if the thread was killed.
        let _ = ptrace::skip_call(tid.0, -errno);
        let Some(tracee) = self.tracees.get_mut(&tid) else {
            return;
        };
        if let AwaitedStop::Result(followed) =
            std::mem::replace(&mut tracee.call, AwaitedStop::Nothing)
        {
            self.returned(*followed, -errno);
        }
    }

    pub(super) fn at_syscall(&mut self, tid: Tid) {
        let Ok(info) = ptrace::syscall_info(tid.0) else {
            return;
        };
        let Some(how) = self.tracees.get(&tid).map(|tracee| tracee.how) else {
            return;
        };
        match info.op {
            SyscallOp::Entry { nr, args } => match how {
                TraceMode::Filter if self.is_redirection(nr, info.arch) => {
                    self.enters(tid, nr, info.arch, info.ip, args);
                }
                TraceMode::Filter => self.claims_undone(tid, &info, nr, args),
                TraceMode::Every => match self.verdict(nr, info.arch, args) {
                    Action::Trace(_) | Action::Notify => {
                        self.enters(tid, nr, info.arch, info.ip, args);
                    }
                    Action::Allow if self.is_redirection(nr, info.arch) => {
                        self.enters(tid, nr, info.arch, info.ip, args);
                    }
                    action => {
                        self.claims_undone(tid, &info, nr, args);
                        if let Action::Errno(errno) = action {
                            self.refuse(tid, errno.into());
                        }
                    }
                },
                TraceMode::Starting => self.starting(tid, nr, info.arch, info.ip, args),
            },
            SyscallOp::Exit { rval, .. } => {
                self.leaves(tid, &info, rval);
                self.note_filled(tid, rval);
            }
            SyscallOp::None | SyscallOp::Seccomp { .. } => {}
        }
    }

    /// Returns whether the filter stops the call.
    fn is_planned(&self, nr: u64, audit: u32, args: [u64; 6]) -> bool {
        matches!(self.verdict(nr, audit, args), Action::Trace(_))
    }

    /// Returns the action of the filter for the call.
    fn verdict(&self, nr: u64, audit: u32, args: [u64; 6]) -> Action {
        let data = SeccompData {
            number: low(nr),
            audit,
            args,
        };
        // If the filter fails to run, the call is trapped rather than missed.
        run_filter(&self.filter, &data).map_or(Action::Trace(MARK), |verdict| verdict.action)
    }

    /// Follows this program's own code in the command until it has installed its filter.
    fn starting(&mut self, tid: Tid, nr: u64, audit: u32, ip: u64, args: [u64; 6]) {
        let call = abi::arch::decode(audit, low(nr)).and_then(|(_, call)| call);
        let Some(tracee) = self.tracees.get_mut(&tid) else {
            return;
        };
        match call {
            Some(Syscall::SECCOMP) => tracee.call = AwaitedStop::Filter,
            Some(Syscall::EXECVE | Syscall::EXECVEAT) => {
                tracee.how = TraceMode::Every;
                self.enters(tid, nr, audit, ip, args);
            }
            _ => {}
        }
    }

    /// Handles a planned call before it is made.
    fn enters(&mut self, tid: Tid, nr: u64, audit: u32, ip: u64, args: [u64; 6]) {
        let notification = Notification {
            tid: tid.0,
            nr: low(nr),
            arch: audit,
            ip,
            args,
            ..Notification::default()
        };
        let waited = self.pages.resume(tid);
        self.memory
            .settle(waited.as_ref().map_or(&[], |waited| &waited.settled));
        let denied = self.worker.shared.denied_caller(&notification);
        let Some(call) = Call::decode(&notification, &self.memory) else {
            let counters = &self.worker.shared.counters;
            Counters::add(&counters.trapped);
            Counters::add(&counters.unknown_calls);
            if denied.is_some() {
                let _ = ptrace::skip_call(tid.0, -i64::from(Errno::ENOSYS.0));
            }
            return;
        };
        if let Some(process) = denied {
            return self.deny(&call, &process);
        }
        if self.resumes_undone(&call) {
            return;
        }
        if hides_child(&call) {
            // Only an attempt to escape: the flag has been reserved for the kernel since 2.6.
            let _ = ptrace::skip_call(tid.0, -i64::from(Errno::EPERM.0));
            return;
        }
        let mut look = self.look(&call, waited.as_ref());
        if let Inspection::Page(page) = look {
            let Err(waited) = self.hold(tid, waited, page) else {
                return;
            };
            look = self.look(&call, Some(&waited));
        }
        match look {
            Inspection::GoOn | Inspection::Page(_) => {}
            // Fails only if the thread was killed.
            Inspection::Refused(result) => {
                let _ = ptrace::skip_call(tid.0, result);
                return;
            }
            Inspection::Result(followed) => {
                if let Some(tracee) = self.tracees.get_mut(&tid) {
                    tracee.call = AwaitedStop::Result(followed);
                }
            }
        }
        // The answer to an alert about this call, or about one that a signal had interrupted, may withhold it.
        if self.worker.shared.denied_caller(&notification).is_some() {
            self.refuse(tid, i64::from(Errno::EPERM.0));
        }
    }

    /// Refuses a call that is withheld from its caller, and has rules see that it fails.
    fn deny(&mut self, call: &Call, process: &Process) {
        // Fails only if the thread was killed.
        let _ = ptrace::skip_call(call.tid.0, -i64::from(Errno::EPERM.0));
        if self.resumes_undone(call) {
            // It is seen after the stop at which it has failed.
            return;
        }
        Counters::add(&self.worker.shared.counters.trapped);
        let arena = std::mem::take(&mut self.arena);
        let decoded = decode::decode(call, &self.memory, &arena);
        self.worker.conclude_denied(call, process, decoded, &arena);
        self.recycle(arena);
    }

    /// Returns whether the call is the restart of one that a signal has interrupted. If it is another one,
    /// the interrupted call has ended.
    fn resumes_undone(&mut self, call: &Call) -> bool {
        let Some(tracee) = self.tracees.get_mut(&call.tid) else {
            return false;
        };
        match std::mem::replace(&mut tracee.call, AwaitedStop::Nothing) {
            AwaitedStop::Undone(followed) => {
                if followed.is_again(call, || stack_pointer(call.tid)) {
                    tracee.call = AwaitedStop::Result(followed);
                    return true;
                }
                self.returned(*followed, -i64::from(EINTR));
                false
            }
            other => {
                tracee.call = other;
                false
            }
        }
    }

    /// Handles an unplanned or unknown call that follows an interrupted one: either the handler made it,
    /// whose frames lie below the interrupted call's, or the program goes on after EINTR.
    fn claims_undone(&mut self, tid: Tid, info: &SyscallInfo, nr: u64, args: [u64; 6]) {
        let audit = info.arch;
        let is_undone = |tracee: &Tracee| matches!(tracee.call, AwaitedStop::Undone(_));
        if !self.tracees.get(&tid).is_some_and(is_undone) {
            return;
        }
        if self.is_planned(nr, audit, args) {
            // The filter stops the call next, and it is inspected there.
            return;
        }
        let decoded = abi::arch::decode(audit, low(nr)).and_then(|(_, call)| call);
        let Some(tracee) = self.tracees.get_mut(&tid) else {
            return;
        };
        let (sp, calls) = &mut tracee.undone;
        *calls += 1;
        // The return from a handler decides the interrupted call's fate; the handler may have a stack of its own.
        let is_return = matches!(decoded, Some(Syscall::RT_SIGRETURN | Syscall::SIGRETURN));
        let is_handlers = (is_return || info.sp < *sp) && *calls <= HANDLER_CALLS;
        if let AwaitedStop::Undone(followed) =
            std::mem::replace(&mut tracee.call, AwaitedStop::Nothing)
        {
            if decoded == Some(Syscall::RESTART_SYSCALL) {
                tracee.call = AwaitedStop::Result(followed);
            } else if is_handlers {
                tracee.call = AwaitedStop::Undone(followed);
            } else {
                self.returned(*followed, -i64::from(EINTR));
            }
        }
    }

    /// Handles the return of the thread's call.
    fn leaves(&mut self, tid: Tid, info: &SyscallInfo, result: i64) {
        let Some(tracee) = self.tracees.get_mut(&tid) else {
            return;
        };
        match std::mem::replace(&mut tracee.call, AwaitedStop::Nothing) {
            AwaitedStop::Nothing => {}
            AwaitedStop::Filter if result == 0 => tracee.how = TraceMode::Filter,
            AwaitedStop::Filter => {}
            AwaitedStop::Result(mut followed)
                if ptrace::RESTART_CODES.contains(&result)
                    || self.is_leaving && result == -i64::from(EINTR) =>
            {
                followed.note_stack(stack_pointer(tid));
                tracee.call = AwaitedStop::Undone(followed);
                tracee.undone = (info.sp, 0);
            }
            AwaitedStop::Result(followed) => self.returned(*followed, result),
            // A return from a handler leads to the point where the call has failed.
            AwaitedStop::Undone(followed)
                if result == -i64::from(EINTR) && info.ip == followed.call.ip =>
            {
                self.returned(*followed, result);
            }
            undone @ AwaitedStop::Undone(_) => tracee.call = undone,
        }
    }

    /// Evaluates a followed call with its result.
    fn returned(&mut self, followed: FollowedCall, result: i64) {
        Counters::add(&self.worker.shared.counters.escalated);
        self.conclude(followed, Outcome::Returned(result));
    }

    fn conclude(&mut self, followed: FollowedCall, outcome: Outcome) {
        let arena = std::mem::take(&mut self.arena);
        self.post
            .caller
            .store(followed.call.tid.0, std::sync::atomic::Ordering::Release);
        followed.finish(&mut self.worker, outcome, &arena);
        self.recycle(arena);
    }

    fn ended(&mut self, tid: Tid) {
        self.pages.forget(tid);
        self.newborns.forget(tid);
        self.note_waiting();
        self.memory.forget(tid);
        let tracee = self.tracees.remove(&tid);
        // The leader of a process is the last to be reported.
        self.redirecting.remove(&Pid(tid.0));
        let call = tracee.map_or(AwaitedStop::Nothing, |tracee| tracee.call);
        if let AwaitedStop::Result(_) | AwaitedStop::Undone(_) = call {
            Counters::add(&self.worker.shared.counters.gone);
        }
        match call {
            // Killed in the call, which may have taken effect. A call that waits for others has not.
            AwaitedStop::Result(followed) if !waits_for_others(followed.call.syscall) => {
                self.conclude(*followed, Outcome::Unlearnt);
            }
            // Ended in a handler, or after one that did not return.
            AwaitedStop::Undone(followed) if !waits_for_others(followed.call.syscall) => {
                self.returned(*followed, -i64::from(EINTR));
            }
            _ => {}
        }
    }

    /// Keeps the arena for the next call.
    pub(super) fn recycle(&mut self, mut arena: Bump) {
        if arena.allocated_bytes() > ARENA_KEEP {
            arena = Bump::with_capacity(16 * 1024);
        } else {
            arena.reset();
        }
        self.arena = arena;
    }
}

/// Returns whether a call waits for another process and has no effect until then.
fn waits_for_others(syscall: Syscall) -> bool {
    use Syscall as S;
    matches!(
        syscall.base(),
        S::ACCEPT | S::ACCEPT4 | S::RECVFROM | S::RECVMSG | S::RECVMMSG | S::READ | S::READV
    )
}

/// Returns the thread that an event is about.
pub(super) fn event_tid(tid: Tid) -> Option<Tid> {
    let message = ptrace::event_message(tid.0).ok()?;
    i32::try_from(message).ok().map(Tid)
}

/// Returns the low 32 bits of a call number; the kernel ignores the rest of the register.
pub(super) fn low(nr: u64) -> u32 {
    u32::try_from(nr & 0xffff_ffff).expect("32 bits fit")
}

/// Returns whether the call asks for a seccomp listener, whose answers would go before the tracer's.
fn is_new_listener(nr: u64, audit: u32, args: [u64; 6]) -> bool {
    const SET_MODE_FILTER: u64 = 1;
    const NEW_LISTENER: u64 = 8;
    let call = abi::arch::decode(audit, low(nr)).and_then(|(_, call)| call);
    call == Some(Syscall::SECCOMP)
        && args[0] & 0xffff_ffff == SET_MODE_FILTER
        && args[1] & NEW_LISTENER != 0
}

/// Returns whether the call would make a process that is not traced. Decided only if all flags are in a
/// register; where they are in memory the filter refuses the call, unless a rule asks for it.
fn hides_child(call: &Call) -> bool {
    call.syscall == Syscall::CLONE && call.raw(0) & CLONE_UNTRACED.u64() != 0
}

fn is_stop_signal(signal: i32) -> bool {
    // SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU.
    (Signal::SIGSTOP.0..=Signal::SIGTTOU.0).contains(&signal)
}

/// Number of calls that a signal handler may make until the call that it has interrupted counts as failed: a
/// program that leaves its handler by a jump must not keep that call from being reported.
const HANDLER_CALLS: u32 = 64;
const EINTR: i32 = Errno::EINTR.0;

/// Returns the stack pointer of a stopped thread.
fn stack_pointer(tid: Tid) -> Option<u64> {
    ptrace::syscall_info(tid.0).map(|info| info.sp).ok()
}
