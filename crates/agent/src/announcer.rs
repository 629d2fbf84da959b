//! Reports the engine's notices as internal alerts.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use abi::constant::CAP_SYS_PTRACE;
use capture::notify::{
    AccessObstacle, ArgumentChange, Cause, EngineObserver, Intrusion, IntrusionTarget, Losses,
    Privilege, Response, RingAnswer, Violation, WithheldPrivileges,
};
use config::DropAction;
use event::{Comm, Event, Pid, Process, Tid};
use outputs::{Dispatcher, Internal};
use rules::{AlertValue, Priority};

use super::drops::Drops;
use super::violations::Violations;
use crate::journal;

/// Converts the engine's notices to internal alerts. The dispatcher limits the rate of each kind.
pub(super) struct Announcer {
    dispatcher: Dispatcher,
    /// Result of the last search for the cause of an undecided event: process, time, cause.
    looked: Mutex<Option<(Pid, Instant, Option<Cause>)>>,
    /// No process can make itself unreadable to this one.
    reads_all: bool,
    violations: Arc<Violations>,
    drops: Arc<Drops>,
}

/// Time that a cause stays valid for the same process: the search takes longer than all other work
/// on an event.
const CAUSE_KEPT: Duration = Duration::from_millis(100);

/// Time limit for looking up a name that the workload connects to.
const LOOKUP: Duration = Duration::from_secs(10);

impl Announcer {
    pub(super) fn new(
        dispatcher: Dispatcher,
        drops: Arc<Drops>,
        violations: Arc<Violations>,
    ) -> Self {
        let own = sys::credential::capabilities(0);
        Self {
            violations,
            dispatcher,
            looked: Mutex::default(),
            drops,
            reads_all: own.is_ok_and(|sets| sets.effective.contains(CAP_SYS_PTRACE.u8())),
        }
    }

    /// Does what the configuration asks for when events are dropped. For Falco, at its levels.
    fn act_on_drops(
        &self,
        message: &str,
        fields: Vec<(&'static str, AlertValue)>,
    ) -> ControlFlow<()> {
        // Whoever asks for the line in the log of this program gets it at the default level.
        let (level, priority) = match journal::is_falcos() {
            // Unless it is all that is said of the loss.
            true if self.drops.does(DropAction::Alert) => (Priority::Debug, Priority::Debug),
            true => (Priority::Warning, Priority::Debug),
            false => (Priority::Warning, Priority::Critical),
        };
        if self.drops.does(DropAction::Log) {
            journal::say(level, message);
        }
        if self.drops.does(DropAction::Alert) {
            self.dispatcher.emit_internal(Internal {
                rule: "Falco internal: syscall event drop",
                priority,
                message: message.to_owned(),
                fields,
            });
        }
        if self.drops.does(DropAction::Exit) {
            let why = "exiting after dropped events (syscall_event_drops.actions)";
            journal::say(Priority::Critical, &format!("{why}: {message}"));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Returns what prevents the agent from reading the process of an event.
    fn look(&self, event: &Event<'_>) -> Option<Cause> {
        let pid = event.process.pid;
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        match *looked {
            Some((last, when, cause)) if last == pid && when.elapsed() < CAUSE_KEPT => {
                return cause;
            }
            _ => {}
        }
        let cause = Cause::of_process(event.process, event.tid);
        *looked = Some((pid, Instant::now(), cause));
        cause
    }
}

/// Returns what is seen of a ring's calls, and what became of the request.
fn ring_words(answer: RingAnswer) -> (&'static str, &'static str) {
    match answer {
        RingAnswer::Refused => ("whose calls cannot be seen", "refused"),
        RingAnswer::Unseen => ("whose calls cannot be seen", "allowed"),
        // By a tracepoint, of the engine that sees every process of a host.
        RingAnswer::Followed => (
            "whose opens are seen as other opens are; its other calls that rules need are reported, not evaluated",
            "allowed",
        ),
    }
}

fn name(process: &Process) -> String {
    String::from_utf8_lossy(process.exec_name().as_bytes()).into_owned()
}

impl EngineObserver for Announcer {
    fn undecided(&self, event: &Event<'_>, rules: &[Arc<str>]) {
        let (call, pid) = (event.kind.name(), event.process.pid.0);
        let comm = name(event.process);
        let cause = Cause::of(event, || self.look(event)).to_string();
        let listed = rules.iter().map(|rule| AlertValue::Text(rule.to_string()));
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: undecided event",
            priority: Priority::Warning,
            message: format!(
                "rule not evaluated: data unavailable: {cause} (call={call} pid={pid} process={comm} rules={})",
                rules.join(", ")
            ),
            fields: vec![
                ("evt.type", AlertValue::Text(call.to_owned())),
                ("proc.name", AlertValue::Text(comm)),
                ("proc.pid", AlertValue::Int(i64::from(pid))),
                ("tollgate.cause", AlertValue::Text(cause)),
                ("tollgate.rules", AlertValue::Uint(rules.len() as u64)),
                ("tollgate.undecided", AlertValue::List(listed.collect())),
            ],
        });
    }

    fn violation(&self, event: &Event<'_>, violation: &Violation<'_>) {
        self.violations.report(&self.dispatcher, event, violation);
    }

    fn allows_connect(&self, process: &Process, peer: &str) -> bool {
        self.violations.allows_connect(&name(process), peer)
    }

    fn addresses(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        outputs::addresses(name, LOOKUP)
    }

    fn events_dropped(&self, losses: &Losses) -> ControlFlow<()> {
        /// Maximum number of processes named in an alert.
        const NAMED: usize = 5;
        let (dropped, sent) = (losses.dropped, losses.sent);
        if !self.drops.is_acted_on(dropped, sent) {
            return ControlFlow::Continue(());
        }
        let calls = losses
            .by_call
            .iter()
            .map(|(call, lost)| format!("{call}={lost}"));
        let calls = calls.collect::<Vec<_>>().join(" ");
        let processes = losses.by_process.iter().take(NAMED);
        let processes: Vec<_> = processes.map(ToString::to_string).collect();
        let processes = processes.join(" ");
        let fields = vec![
            ("n_drops", AlertValue::Uint(dropped)),
            ("n_drops_buffer_total", AlertValue::Uint(dropped)),
            ("n_evts", AlertValue::Uint(sent + dropped)),
            ("tollgate.calls", AlertValue::Text(calls.clone())),
            ("tollgate.processes", AlertValue::Text(processes.clone())),
        ];
        let processes = if processes.is_empty() {
            String::new()
        } else {
            format!(" processes: {processes}")
        };
        let message = format!(
            "Falco internal: syscall event drop. {dropped} system calls dropped in last second. \
             ({calls}){processes}"
        );
        self.act_on_drops(&message, fields)
    }

    fn engine_trouble(&self, error: &(dyn std::error::Error + 'static)) {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            message.push_str(": ");
            message.push_str(&error.to_string());
            cause = error.source();
        }
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: engine trouble",
            priority: Priority::Critical,
            message,
            fields: Vec::new(),
        });
    }

    fn unwatched(&self, pid: Pid, name: &str, why: &str, has_entered: bool) {
        let (priority, what) = if has_entered {
            (
                Priority::Critical,
                "a process that should be watched is not watched",
            )
        } else {
            (
                Priority::Notice,
                "a process is not watched: cannot determine whether it entered the container from outside",
            )
        };
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: unwatched process",
            priority,
            message: format!("{what}: {why} (pid={} process={name})", pid.0),
            fields: vec![
                ("proc.name", AlertValue::Text(name.to_owned())),
                ("proc.pid", AlertValue::Int(i64::from(pid.0))),
                ("tollgate.cause", AlertValue::Text(why.to_owned())),
            ],
        });
    }

    fn intrusion(&self, process: &Process, intrusion: &Intrusion) {
        let Intrusion {
            call,
            aim,
            response,
        } = *intrusion;
        let (comm, pid) = (name(process), process.pid.0);
        let (done, word) = match response {
            Response::Made => ("it was let through", "made"),
            Response::Refused => ("it was refused", "refused"),
            Response::Spared(_) => ("it was made for the others", "spared"),
        };
        let (what, target) = match aim {
            IntrusionTarget::Process(target) => {
                ("a call aimed at a process of tollgate", Some(target))
            }
            IntrusionTarget::Among(target) => {
                ("a call that would hit a process of tollgate", Some(target))
            }
            IntrusionTarget::OwnGroup | IntrusionTarget::Other => {
                ("a call that would hit a process of tollgate", None)
            }
            IntrusionTarget::FileOwner => ("a file was to send a deadly signal to its owner", None),
            IntrusionTarget::Unknown => ("a call on a process that cannot be identified", None),
            IntrusionTarget::Dumpable => ("a process makes itself unreadable", None),
        };
        let is_about_reading = aim == IntrusionTarget::Dumpable;
        let mut fields = vec![
            ("evt.type", AlertValue::Text(call.to_owned())),
            ("proc.name", AlertValue::Text(comm.clone())),
            ("proc.pid", AlertValue::Int(i64::from(pid))),
            ("tollgate.response", AlertValue::Text(word.to_owned())),
        ];
        fields.extend(target.map(|pid| ("tollgate.target", AlertValue::Int(i64::from(pid.0)))));
        self.dispatcher.emit_internal(Internal {
            rule: if is_about_reading {
                "Tollgate internal: process made unreadable"
            } else {
                "Tollgate internal: call aimed at the watcher"
            },
            priority: match (is_about_reading, self.reads_all) {
                (true, true) => Priority::Notice,
                (true, false) => Priority::Warning,
                _ => Priority::Critical,
            },
            message: format!("{what}; {done} (call={call} pid={pid} process={comm})"),
            fields,
        });
    }

    fn unreadable(&self, process: &Process, call: &'static str, obstacle: AccessObstacle) {
        let (comm, pid) = (name(process), process.pid.0);
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: unreadable process",
            priority: Priority::Warning,
            message: format!(
                "cannot read the arguments of a process: {obstacle} \
                 (call={call} pid={pid} process={comm})"
            ),
            fields: vec![
                ("evt.type", AlertValue::Text(call.to_owned())),
                ("proc.name", AlertValue::Text(comm)),
                ("proc.pid", AlertValue::Int(i64::from(pid))),
                ("tollgate.cause", AlertValue::Text(obstacle.to_string())),
            ],
        });
    }

    fn read_timed_out(&self, pid: Pid) {
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: read timed out",
            priority: Priority::Warning,
            message: format!(
                "a process delays reads of its memory with userfaultfd or FUSE (pid={})",
                pid.0
            ),
            fields: vec![("proc.pid", AlertValue::Int(i64::from(pid.0)))],
        });
    }

    fn attaching_timed_out(&self, pid: Pid) {
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: attaching timed out",
            priority: Priority::Warning,
            message: format!(
                "cannot read call results of a process while it executes a file that FUSE does not \
                deliver (pid={})",
                pid.0
            ),
            fields: vec![("proc.pid", AlertValue::Int(i64::from(pid.0)))],
        });
    }

    fn no_progress(&self, process: &Process, tid: Tid, call: &'static str) {
        let comm = name(process);
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: no progress",
            priority: Priority::Warning,
            message: format!(
                "a thread repeats an interrupted call; the call continues, and rules that need its result \
                are not evaluated (call={call} pid={} tid={} process={comm})",
                process.pid.0, tid.0
            ),
            fields: vec![
                ("evt.type", AlertValue::Text(call.to_owned())),
                ("proc.name", AlertValue::Text(comm)),
                ("proc.pid", AlertValue::Int(i64::from(process.pid.0))),
                ("thread.tid", AlertValue::Int(i64::from(tid.0))),
            ],
        });
    }

    fn renamed(&self, process: &Process, new: Comm) {
        let (comm, pid) = (name(process), process.pid.0);
        let new = String::from_utf8_lossy(new.as_bytes()).into_owned();
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: masquerading process",
            priority: Priority::Warning,
            message: format!(
                "a process renamed itself to a name that rules use; the rules still see its name at exec \
                (pid={pid} process={comm} name={new})"
            ),
            fields: vec![
                ("proc.name", AlertValue::Text(comm)),
                ("proc.pid", AlertValue::Int(i64::from(pid))),
                ("thread.name", AlertValue::Text(new)),
            ],
        });
    }

    fn privileges_withheld(&self, pid: Pid, withheld: &WithheldPrivileges) {
        let path = String::from_utf8_lossy(&withheld.path).into_owned();
        let (what, privilege) = match withheld.privilege {
            Privilege::Capabilities => ("its file capabilities".to_owned(), "capabilities"),
            Privilege::Group(gid) => (format!("its setgid bit (group {gid})"), "group"),
            Privilege::User(0) => ("its setuid bit".to_owned(), "user"),
            Privilege::User(uid) => (format!("its setuid bit (user {uid})"), "user"),
        };
        self.dispatcher.emit_internal_once(Internal {
            rule: "Tollgate internal: privileges withheld",
            priority: Priority::Notice,
            message: format!(
                "{path} lost {what}: without root, tollgate must set no_new_privs (pid={})",
                pid.0
            ),
            fields: vec![
                ("proc.exepath", AlertValue::Text(path)),
                ("proc.pid", AlertValue::Int(i64::from(pid.0))),
                ("tollgate.privilege", AlertValue::Text(privilege.to_owned())),
            ],
        });
    }

    fn arguments_changed(&self, change: &ArgumentChange<'_>) {
        let (call, pid, truth) = (change.kind.name(), change.process.pid.0, &change.truth);
        let given = change.given.as_deref().unwrap_or("<NA>");
        let name = name(change.process);
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: arguments changed under the call",
            priority: Priority::Critical,
            message: format!(
                "a process changed the arguments of a call during the call \
                 (call={call} read={given} done={truth} process={name} pid={pid})"
            ),
            fields: vec![
                ("evt.type", AlertValue::Text(call.to_owned())),
                ("proc.pid", AlertValue::Int(i64::from(pid))),
                ("proc.name", AlertValue::Text(name)),
                ("thread.tid", AlertValue::Int(i64::from(change.tid.0))),
                ("tollgate.read", AlertValue::Text(given.to_owned())),
                ("tollgate.done", AlertValue::Text(truth.clone())),
            ],
        });
    }

    fn traced_by_another(&self, process: &Process, tracer: Pid) {
        let (pid, tracer) = (process.pid.0, tracer.0);
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: traced by another process",
            priority: Priority::Warning,
            message: format!(
                "cannot read call results while another program traces the process \
                 (pid={pid} tracer={tracer})"
            ),
            fields: vec![
                ("proc.pid", AlertValue::Int(i64::from(pid))),
                ("tollgate.tracer", AlertValue::Int(i64::from(tracer))),
            ],
        });
    }

    fn opened_unseen(&self, path: &[u8]) {
        let path = String::from_utf8_lossy(path).into_owned();
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: sensitive file opened unseen",
            priority: Priority::Critical,
            message: format!(
                "a file was opened without a call that the engine saw, by the command or from outside \
                (file={path})"
            ),
            fields: vec![("fd.name", AlertValue::Text(path))],
        });
    }

    fn tripwire_overflowed(&self) {
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: tripwire overflowed",
            priority: Priority::Warning,
            message:
                "some opens of sensitive files were not reported (inotify queue overflow): raise \
            fs.inotify.max_queued_events"
                    .to_owned(),
            fields: Vec::new(),
        });
    }

    fn ring_call(&self, process: &Process, operation: &str) {
        let pid = process.pid.0;
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: io_uring call",
            priority: Priority::Warning,
            message: format!(
                "an io_uring operation made a call that rules need, but cannot see (pid={pid} \
                 operation={operation})"
            ),
            fields: vec![
                ("proc.pid", AlertValue::Int(i64::from(pid))),
                ("tollgate.operation", AlertValue::Text(operation.to_owned())),
            ],
        });
    }

    fn ring(&self, process: &Process, answer: RingAnswer) {
        let pid = process.pid.0;
        let (what, outcome) = ring_words(answer);
        self.dispatcher.emit_internal(Internal {
            rule: "Tollgate internal: io_uring",
            priority: Priority::Warning,
            message: format!("a process created an io_uring, {what} (pid={pid} {outcome})"),
            fields: vec![
                ("proc.pid", AlertValue::Int(i64::from(pid))),
                (
                    "tollgate.denied",
                    AlertValue::Bool(answer == RingAnswer::Refused),
                ),
            ],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_sees_the_opens_of_a_ring_says_so() {
        let (what, outcome) = ring_words(RingAnswer::Followed);
        assert!(what.starts_with("whose opens are seen"), "{what}");
        assert_eq!(outcome, "allowed");
        for (answer, outcome) in [
            (RingAnswer::Refused, "refused"),
            (RingAnswer::Unseen, "allowed"),
        ] {
            let expected = ("whose calls cannot be seen", outcome);
            assert_eq!(ring_words(answer), expected);
        }
    }
}
