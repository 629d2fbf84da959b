//! Reports violations detected by the kernel itself (BPF and AppArmor) as alerts. No call waits for
//! them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use enforce::{Denial, Listen, LoadedPolicy, registered};
use event::cgroup::Identity;
use outputs::{Dispatcher, Internal};
use policy::EnforcerKind;
use rules::{Alert, AlertValue, Priority};
use supervisor::SharedState;

use super::violations::{KernelViolation, Ruling};

/// Time without a violation after which a thread that waits for one assumes that all have arrived.
const QUIET: Duration = Duration::from_millis(50);
/// Maximum time to wait for the last violations.
const PATIENCE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_millis(20);
/// Rule name of the alert about lost violations.
const LOST: &str = "Tollgate internal: violations lost";

/// The threads that receive violations.
pub(super) struct KernelReports {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    dispatcher: Dispatcher,
    hostname: Arc<str>,
    /// The container of all these violations, if known.
    container: Option<String>,
    ends: AtomicBool,
    reported: AtomicU64,
    /// Number of calls of [`KernelReports::flush`].
    asked: AtomicU64,
    /// For each thread, the last of those calls after which it found nothing pending.
    answered: Vec<AtomicU64>,
}

impl KernelReports {
    /// Starts receiving violations of the current policy. `policy` reads it, to map
    /// AppArmor's denials to rule names.
    pub(super) fn follow(
        resident: &LoadedPolicy,
        policy: &dyn Fn() -> Option<policy::Policy>,
        dispatcher: Dispatcher,
        shared_state: &Arc<SharedState>,
        container: Option<&str>,
    ) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            dispatcher,
            hostname: decoder::host::host_name().into(),
            container: container.map(short),
            ends: AtomicBool::new(false),
            reported: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            answered: (0..resident.known.len() + usize::from(resident.later.is_some()))
                .map(|_| AtomicU64::new(0))
                .collect(),
        });
        let mut threads = Vec::new();
        let named = |name: &str| std::thread::Builder::new().name(format!("tollgate-{name}"));
        for (kind, name) in &resident.known {
            let listen = (registered(*kind).listen)(name, policy)?;
            let shared = Arc::clone(&shared);
            let index = threads.len();
            threads.push(named(kind.id()).spawn(move || hear(listen, &shared, index))?);
        }
        if let Some(kind) = resident.later {
            let (shared, shared_state) = (Arc::clone(&shared), Arc::clone(shared_state));
            let index = threads.len();
            let hear = move || hear_container(kind, &shared_state, &shared, index);
            threads.push(named(kind.id()).spawn(hear)?);
        }
        Ok(Self { shared, threads })
    }

    /// Waits until pending violations have arrived: until each thread has waited once in vain. Time alone proves
    /// nothing on a busy machine, where a thread may not have run.
    pub(super) fn flush(&self) {
        if self.threads.is_empty() {
            return;
        }
        let request = self.shared.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let is_answered = || {
            let mut answered = self.shared.answered.iter();
            answered.all(|last| last.load(Ordering::Acquire) >= request)
        };
        let began = Instant::now();
        while began.elapsed() < PATIENCE && !is_answered() {
            std::thread::sleep(QUIET / 5);
        }
    }

    /// Stops receiving.
    pub(super) fn end(self) {
        self.flush();
        self.shared.ends.store(true, Ordering::Release);
        for thread in self.threads {
            // A thread that panicked has reported the reason.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.ends.load(Ordering::Acquire)
    }

    /// Returns true if a flush waits for a thread.
    fn is_asked(&self, index: usize, asked: u64) -> bool {
        let answered = self.answered.get(index);
        answered.is_some_and(|last| last.load(Ordering::Acquire) < asked)
    }

    /// Notes that nothing of a thread was pending after a flush began.
    fn answer(&self, index: usize, asked: u64) {
        if let Some(last) = self.answered.get(index) {
            last.store(asked, Ordering::Release);
        }
    }

    /// Reports that a thread receives nothing, and lets no flush wait for it.
    fn fail(&self, index: usize, error: &enforce::Error) {
        self.complain(LOST, format!("cannot report violations: {error}"), 0);
        self.answer(index, u64::MAX);
    }

    fn tell(&self, denials: Vec<Denial>) {
        for denial in denials {
            self.reported.fetch_add(1, Ordering::Relaxed);
            self.dispatcher.emit(alert(&denial, self));
        }
    }

    fn complain(&self, what: &'static str, message: String, lost: u64) {
        self.dispatcher.emit_internal(Internal {
            rule: what,
            priority: Priority::Warning,
            message,
            fields: vec![("tollgate.lost", AlertValue::Uint(lost))],
        });
    }
}

/// Waits for the container's first program before it receives violations; there are none earlier.
fn hear_container(kind: EnforcerKind, shared_state: &SharedState, shared: &Shared, index: usize) {
    while shared.goes_on() {
        let asked = shared.asked.load(Ordering::Acquire);
        let Some(number) = shared_state.tenant() else {
            shared.answer(index, asked);
            std::thread::sleep(WAIT);
            continue;
        };
        return match (registered(kind).listen)(&number.to_string(), &|| None) {
            Ok(listen) => hear(listen, shared, index),
            Err(error) => shared.fail(index, &error),
        };
    }
}

fn hear(listen: Listen, shared: &Shared, index: usize) {
    let mut reports = match listen() {
        Ok(reports) => reports,
        Err(error) => {
            shared.fail(index, &error);
            return;
        }
    };
    let mut lost = 0;
    while shared.goes_on() {
        let asked = shared.asked.load(Ordering::Acquire);
        let (is_asked, began) = (shared.is_asked(index, asked), Instant::now());
        match reports.wait(if is_asked { QUIET } else { WAIT }) {
            Ok(denials) if denials.is_empty() => {
                // Records about others end the wait early.
                if is_asked && began.elapsed() >= QUIET {
                    shared.answer(index, asked);
                }
            }
            Ok(denials) => shared.tell(denials),
            // A signal; the counter would report anything else.
            Err(_) => std::thread::sleep(WAIT),
        }
        let now = reports.lost().unwrap_or(lost);
        if now > lost {
            let message = reports.describe_loss(now - lost);
            shared.complain(LOST, message, now - lost);
            lost = now;
        }
    }
}

fn alert(denial: &Denial, shared: &Shared) -> Alert {
    let text = |text: &str| AlertValue::Text(text.to_owned());
    let optional = |value: Option<String>| value.map_or(AlertValue::Absent, AlertValue::Text);
    let seen = Seen::of(denial.pid);
    let uid = denial.uid.map(i64::from);
    let violation = KernelViolation {
        ruling: Ruling {
            rule: &denial.rule,
            enforcer: denial.enforcer,
            errno: denial.errno,
        },
        operation: &denial.operation,
        values: [
            text(&denial.detail),
            optional(denial.path.clone()),
            text(&denial.comm),
            AlertValue::Int(i64::from(denial.pid)),
            optional(denial.exe.clone().or(seen.exe)),
            optional(seen.command),
            uid.map_or(AlertValue::Absent, AlertValue::Int),
            optional(shared.container.clone().or(seen.container)),
        ],
        hostname: Arc::clone(&shared.hostname),
    };
    violation.into_alert()
}

/// Shortens a container id like `container.id`.
fn short(id: &str) -> String {
    Identity::named(id.to_owned()).into_container().id
}

/// Process data that `/proc` still provides.
#[derive(Default)]
struct Seen {
    exe: Option<String>,
    command: Option<String>,
    container: Option<String>,
}

impl Seen {
    /// Reads the data; empty for a process that has ended.
    fn of(pid: u32) -> Self {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let Ok(cgroup) = fs::read(folder.join("cgroup")) else {
            return Self::default();
        };
        let container = container::identify(&cgroup);
        let command = fs::read(folder.join("cmdline"))
            .ok()
            .filter(|text| !text.is_empty());
        let command = command.map(|text| {
            let words = text
                .split(|byte| *byte == 0)
                .filter(|word| !word.is_empty());
            let words: Vec<_> = words.map(|word| String::from_utf8_lossy(word)).collect();
            words.join(" ")
        });
        let exe = fs::read_link(folder.join("exe")).ok();
        Self {
            exe: exe.map(|path| path.to_string_lossy().into_owned()),
            command,
            container: Some(
                container.map_or_else(|| "host".to_owned(), |found| short(&found.full_id)),
            ),
        }
    }
}
