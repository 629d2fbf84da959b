//! Violations that the kernel itself tells of, as alerts: those of BPF and AppArmor, for which no call
//! has to wait.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use enforce::bpf::Reports;
use enforce::{Audit, Denial, LoadedPolicy};
use event::cgroup::Identity;
use outputs::{Dispatcher, Internal};
use rules::{Alert, AlertValue, Priority};
use supervisor::Board;

use super::violations::RULE;
use crate::policy_files;

/// How long nothing has to come for everything to have come.
const QUIET: Duration = Duration::from_millis(50);
/// Longest that an end waits for that.
const PATIENCE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_millis(20);

/// The threads that listen.
pub(super) struct Denials {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    dispatcher: Dispatcher,
    hostname: Arc<str>,
    /// The container that all of them are of, where that is known.
    container: Option<String>,
    ends: AtomicBool,
    told: AtomicU64,
    last: Mutex<Instant>,
}

impl Denials {
    /// Listens for violations of what is in force. `policy`: its file, by which denials of AppArmor are
    /// given the name of their rule.
    pub(super) fn follow(
        resident: &LoadedPolicy,
        policy: Option<&PathBuf>,
        dispatcher: Dispatcher,
        board: &Arc<Board>,
        container: Option<&str>,
    ) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            dispatcher,
            hostname: decoder::host::host_name().into(),
            container: container.map(short),
            ends: AtomicBool::new(false),
            told: AtomicU64::new(0),
            last: Mutex::new(Instant::now()),
        });
        let mut threads = Vec::new();
        let named = |name: &str| std::thread::Builder::new().name(format!("tollgate-{name}"));
        if let Some(number) = resident.bpf {
            let shared = Arc::clone(&shared);
            threads.push(named("bpf").spawn(move || hear_bpf(number, &shared))?);
        }
        if resident.bpf_later {
            let (shared, board) = (Arc::clone(&shared), Arc::clone(board));
            threads.push(named("bpf").spawn(move || hear_container(&board, &shared))?);
        }
        if let Some(profile) = &resident.apparmor {
            let file = policy.map(|path| policy_files::read(path).policies);
            // Edited since, or gone: then denials have the name of the profile.
            let policy = file.and_then(|mut policies| policies.pop());
            let mut audit = Audit::open(profile, policy)
                .context("cannot hear the kernel's audit records (it needs CAP_AUDIT_READ)")?;
            let shared = Arc::clone(&shared);
            threads.push(named("audit").spawn(move || hear_audit(&mut audit, &shared))?);
        }
        Ok(Self { shared, threads })
    }

    /// Waits for what is on its way.
    pub(super) fn flush(&self) {
        if self.threads.is_empty() {
            return;
        }
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let last = *self
                .shared
                .last
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let quiet_since = last.max(began);
            if quiet_since.elapsed() >= QUIET {
                return;
            }
            std::thread::sleep(QUIET / 5);
        }
    }

    /// Ends listening.
    pub(super) fn end(self) {
        self.flush();
        self.shared.ends.store(true, Ordering::Release);
        for thread in self.threads {
            // A thread that panicked has said why.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.ends.load(Ordering::Acquire)
    }

    fn tell(&self, denials: Vec<Denial>) {
        if denials.is_empty() {
            return;
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        for denial in denials {
            self.told.fetch_add(1, Ordering::Relaxed);
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

/// Until a container's first program begins there is nothing to hear.
fn hear_container(board: &Board, shared: &Shared) {
    while shared.goes_on() {
        match board.tenant() {
            Some(number) => return hear_bpf(number, shared),
            None => std::thread::sleep(WAIT),
        }
    }
}

fn hear_bpf(number: u32, shared: &Shared) {
    const RULE: &str = "Tollgate internal: violations lost";
    let mut reports = match Reports::open(number) {
        Ok(reports) => reports,
        Err(error) => {
            shared.complain(RULE, format!("violations cannot be told: {error}"), 0);
            return;
        }
    };
    let mut lost = 0;
    while shared.goes_on() {
        match reports.wait(WAIT) {
            Ok(denials) => shared.tell(denials),
            // A signal; everything else would be told by the counter.
            Err(_) => std::thread::sleep(WAIT),
        }
        let now = reports.lost().unwrap_or(lost);
        if now > lost {
            let message = format!("{} violations found no room and are not told", now - lost);
            shared.complain(RULE, message, now - lost);
            lost = now;
        }
    }
}

fn hear_audit(audit: &mut Audit, shared: &Shared) {
    const RULE: &str = "Tollgate internal: violations lost";
    let mut lost = 0;
    while shared.goes_on() {
        match audit.wait(WAIT) {
            Ok(denials) => shared.tell(denials),
            Err(_) => std::thread::sleep(WAIT),
        }
        if audit.lost() > lost {
            let message = "the kernel threw audit records away before they were read".to_owned();
            shared.complain(RULE, message, audit.lost() - lost);
            lost = audit.lost();
        }
    }
}

fn alert(denial: &Denial, shared: &Shared) -> Alert {
    let text = |text: &str| AlertValue::Text(text.to_owned());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    });
    let errno = denial.errno.map(|errno| {
        errno
            .name()
            .map_or_else(|| errno.0.to_string(), str::to_owned)
    });
    let action = match denial.errno {
        Some(_) => "denied",
        None => "audited",
    };
    let what = match &errno {
        Some(errno) => format!("denied with {errno}"),
        None => "allowed".to_owned(),
    };
    let seen = Seen::of(denial.pid);
    let exe = denial.exe.clone().or(seen.exe);
    let container = shared.container.clone().or(seen.container);
    let mut fields: Vec<(Arc<str>, AlertValue)> = vec![
        ("policy.rule".into(), text(&denial.rule)),
        ("policy.enforcer".into(), text(denial.enforcer.name())),
        ("policy.action".into(), text(action)),
    ];
    if let Some(errno) = &errno {
        fields.push(("policy.errno".into(), text(errno)));
    }
    let optional = |value: Option<String>| value.map_or(AlertValue::Absent, AlertValue::Text);
    let uid = denial.uid.map(i64::from);
    let rest: [(&str, AlertValue); 9] = [
        ("policy.operation", text(&denial.operation)),
        ("evt.args", text(&denial.detail)),
        ("fd.name", optional(denial.path.clone())),
        ("proc.name", text(&denial.comm)),
        ("proc.pid", AlertValue::Int(i64::from(denial.pid))),
        ("proc.exepath", optional(exe.clone())),
        ("proc.cmdline", optional(seen.command.clone())),
        ("user.uid", uid.map_or(AlertValue::Absent, AlertValue::Int)),
        ("container.id", optional(container.clone())),
    ];
    fields.extend(rest.map(|(name, value)| (name.into(), value)));
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "<NA>".to_owned());
    let message = format!(
        "{RULE}: {what} by {} ({}) operation={} args={} file={} process={} pid={} exe={} command={} \
         user={} container={}",
        denial.rule,
        denial.enforcer,
        denial.operation,
        denial.detail,
        shown(&denial.path),
        denial.comm,
        denial.pid,
        shown(&exe),
        shown(&seen.command),
        shown(&uid.map(|uid| uid.to_string())),
        shown(&container),
    );
    Alert {
        time_ns: now,
        made_ns: now,
        rule: RULE.into(),
        priority: Priority::Warning,
        source: "syscall".into(),
        tags: Arc::from(["policy".to_owned()]),
        hostname: Arc::clone(&shared.hostname),
        message,
        fields,
    }
}

/// As `container.id` has it.
fn short(id: &str) -> String {
    Identity::named(id.to_owned()).into_container().id
}

/// What `/proc` still tells of a process.
#[derive(Default)]
struct Seen {
    exe: Option<String>,
    command: Option<String>,
    container: Option<String>,
}

impl Seen {
    /// Of a process that is gone, nothing.
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
