//! Reports of `tollgate guard`: each denial in plain words on the standard error, and as a line of JSON on a
//! descriptor that the caller names.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use abi::Errno;
use capture::notify::Violation;
use diagnostics::terminal;
use policy::EnforcerKind;
use rules::AlertValue;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sys::poll::{self, PollFd};
use sys::signal::{MaskChange, SignalSet, change_mask};

mod advice;

pub use self::advice::WideFolders;
use self::advice::{Advice, FileRules};

/// Name of the policy in messages.
pub const POLICY_NAME: &str = "guard";
/// Maximum number of different denials that are told apart.
const DISTINCT_LIMIT: usize = 4096;
/// Time to wait for a reader of the descriptor.
const PATIENCE: Duration = Duration::from_millis(200);
/// Largest value of a text in JSON: a line fits into a pipe at once.
const TEXT_LIMIT: usize = 1000;

/// Settings of a guarded command.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct GuardSpec {
    /// The policy, which is in no file.
    pub policy: String,
    /// Descriptor for denials as JSON.
    pub report: Option<i32>,
    /// Options that allow what a rule denies, by rule.
    pub options: BTreeMap<String, String>,
    /// Folders that no option is proposed for.
    pub wide: WideFolders,
    /// Ask on the terminal before a connection is refused.
    pub ask: bool,
    /// Variable that the command gets, as `NAME=VALUE`.
    pub environment: Option<String>,
}

/// Reports denials.
#[derive(Debug)]
pub(super) struct DenialReporter {
    lines: BTreeMap<String, u32>,
    options: BTreeMap<String, String>,
    wide: WideFolders,
    files: FileRules,
    /// Answers by peer, if the user is asked.
    answers: Option<Mutex<HashMap<String, bool>>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    report: Option<File>,
    /// Number of equal denials by message.
    known: HashMap<String, u64>,
    denied: u64,
    unwritten: u64,
}

/// A denial in words.
struct Described {
    /// Who may not do what.
    what: String,
    /// Layer, policy line and rule.
    by: String,
    /// The option that would allow it.
    advice: Advice,
    /// What may be the cause instead of the policy.
    note: Option<String>,
}

impl DenialReporter {
    /// Creates a reporter. An agent that takes over does not have the descriptor.
    pub(super) fn new(spec: &GuardSpec) -> std::io::Result<Self> {
        let report = spec.report.map(sys::fd::duplicate_number).transpose()?;
        let (policies, _) = policy::load(POLICY_NAME, &spec.policy);
        let rules = policies.iter().flat_map(|policy| &policy.rules);
        Ok(Self {
            lines: rules
                .map(|rule| (rule.id.clone(), rule.location.line))
                .collect(),
            options: spec.options.clone(),
            wide: spec.wide.clone(),
            files: FileRules::of(&policies),
            answers: spec.ask.then(Mutex::default),
            state: Mutex::new(State {
                report: report.map(File::from),
                known: HashMap::new(),
                denied: 0,
                unwritten: 0,
            }),
        })
    }

    /// Asks on the terminal whether a process may connect to a peer. One question at a time; an answer holds for
    /// the peer until the end. Without a terminal the answer is no.
    pub(super) fn asks(&self, process: &str, peer: &str) -> bool {
        let Some(answers) = &self.answers else {
            return false;
        };
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = answers.get(peer) {
            return *answer;
        }
        let answer = ask(process, peer).unwrap_or(false);
        answers.insert(peer.to_owned(), answer);
        answer
    }

    /// Reports a denial. `fields` describe the caller.
    pub(super) fn report(
        &self,
        violation: &Violation<'_>,
        fields: &[(std::sync::Arc<str>, AlertValue)],
    ) {
        let field = |name: &str| {
            let mut fields = fields.iter();
            let found = fields.find(|(own, _)| &**own == name);
            found.map_or_else(String::new, |(_, value)| shown(value))
        };
        let described = self.describe(violation, &field);
        let line = self.json(violation, &described, &field);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.denied += 1;
        state.write(&line);
        let key = format!("{} {}", described.what, violation.rule);
        let is_bounded = state.known.len() < DISTINCT_LIMIT;
        match state.known.get_mut(&key) {
            Some(count) => *count += 1,
            None if is_bounded => {
                state.known.insert(key, 1);
                terminal::complain(&described.text());
            }
            None => {}
        }
    }

    fn describe(&self, violation: &Violation<'_>, field: &dyn Fn(&str) -> String) -> Described {
        let call = violation.call.name();
        // Only a call that was let pass has no error, and guard lets none pass.
        let errno = violation.errno.map(name).unwrap_or_default();
        let deed = match (violation.access, violation.object) {
            (Some("exec"), Some(object)) => format!("may not execute {object} ({call}: {errno})"),
            (Some("connect"), Some(object)) => format!("may not connect to {object} ({errno})"),
            (Some(access), Some(object)) => format!("may not {access} {object} ({call}: {errno})"),
            _ => format!("may not call {call} ({errno}): {}", field("evt.args")),
        };
        let line = self.lines.get(violation.rule);
        let line = line
            .map(|line| format!(", policy line {line}"))
            .unwrap_or_default();
        Described {
            what: printable(&format!("{} {deed}", field("proc.name"))),
            by: format!("{}{line} ({})", violation.enforcer, violation.rule),
            advice: self.advice(violation),
            note: violation.note.map(printable),
        }
    }

    /// The option that would allow what was denied. One for files does not, where something else than a rule on files denied it.
    fn advice(&self, violation: &Violation<'_>) -> Advice {
        let (rule, call) = (violation.rule, violation.call.name());
        match (violation.access, violation.object) {
            (Some("connect"), Some(peer)) => advice::advice(&self.wide, "connect", call, peer),
            (Some(access), Some(object))
                if violation.enforcer != EnforcerKind::Caps && !self.options.contains_key(rule) =>
            {
                self.files.advice(&self.wide, rule, access, call, object)
            }
            _ => {
                let option = self.options.get(rule).cloned();
                option.map_or(Advice::None, Advice::Option)
            }
        }
    }

    fn json(
        &self,
        violation: &Violation<'_>,
        described: &Described,
        field: &dyn Fn(&str) -> String,
    ) -> Value {
        let is_peer = violation.access == Some("connect");
        // A clock before 1970 gives the time 0; the denial is reported all the same.
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        json!({
            "event": "denied",
            "time": now.as_secs_f64(),
            "layer": violation.enforcer.name(),
            "call": violation.call.name(),
            "access": violation.access,
            "path": violation.object.filter(|_| !is_peer).map(short),
            "address": violation.object.filter(|_| is_peer).map(short),
            "arguments": short(&field("evt.args")),
            "errno": violation.errno.map(name),
            "rule": violation.rule,
            "policy_line": self.lines.get(violation.rule),
            "allow": match &described.advice {
                Advice::Option(option) => Some(short(option)),
                Advice::TooWide(_) | Advice::None => None,
            },
            "too_wide": match &described.advice {
                Advice::TooWide(folder) => Some(short(folder)),
                Advice::Option(_) | Advice::None => None,
            },
            "note": described.note.as_deref().map(short),
            "message": short(&described.what),
            "pid": field("proc.pid").parse::<i64>().ok(),
            "process": field("proc.name"),
            "command": short(&field("proc.cmdline")),
        })
    }

    /// Reports the totals.
    pub(super) fn finish(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (denied, distinct) = (state.denied, state.known.len());
        state.write(&json!({"event": "summary", "denied": denied, "distinct": distinct}));
        if denied > distinct as u64 {
            terminal::complain(&format!(
                "tollgate guard: {denied} denials, {distinct} different ones\n"
            ));
        }
        if state.unwritten > 0 {
            let unwritten = state.unwritten;
            terminal::complain(&format!(
                "tollgate guard: {unwritten} lines were not written to the descriptor of --report-fd\n"
            ));
        }
    }
}

impl Described {
    fn text(&self) -> String {
        let advice = match &self.advice {
            Advice::Option(option) => format!("to allow it: {option}"),
            Advice::TooWide(folder) => {
                format!("no option is proposed: it would open all of {folder}")
            }
            Advice::None => "no option allows it".to_owned(),
        };
        let note = self.note.as_ref();
        let note = note.map(|note| format!("  {note}\n")).unwrap_or_default();
        format!(
            "tollgate guard: denied: {}\n  by {}; {advice}\n{note}",
            self.what, self.by
        )
    }
}

impl State {
    /// Writes a line. A reader that does not read must not stop the command for long.
    fn write(&mut self, line: &Value) {
        let Some(file) = &mut self.report else {
            return;
        };
        let mut polled = [PollFd::new(file.as_fd(), poll::OUT)];
        let is_ready = poll::poll(&mut polled, Some(PATIENCE)).is_ok_and(|ready| ready > 0);
        if !is_ready || file.write_all(format!("{line}\n").as_bytes()).is_err() {
            self.unwritten += 1;
        }
    }
}

/// Asks a question on the controlling terminal.
fn ask(process: &str, peer: &str) -> std::io::Result<bool> {
    // A process in the background must fail here, and not stop.
    change_mask(MaskChange::Block, SignalSet::ALL)?;
    let mut terminal = File::options().read(true).write(true).open("/dev/tty")?;
    // What the name of a process contains must not control the terminal.
    let process = process.escape_default();
    let peer = peer.escape_default();
    write!(
        terminal,
        "tollgate guard: {process} wants to connect to {peer}. Allow it? [y/N] "
    )?;
    let mut answer = String::new();
    BufReader::new(terminal).read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn name(errno: Errno) -> String {
    errno
        .name()
        .map_or_else(|| errno.0.to_string(), str::to_owned)
}

fn shown(value: &AlertValue) -> String {
    match value {
        AlertValue::Text(text) => text.clone(),
        AlertValue::Int(number) => number.to_string(),
        AlertValue::Uint(number) => number.to_string(),
        _ => String::new(),
    }
}

/// Escapes what would control a terminal: the command chooses names.
fn printable(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => plain.extend(character.escape_default()),
            false => plain.push(character),
        }
    }
    plain
}

/// The beginning of a long text.
fn short(text: &str) -> String {
    match text.char_indices().nth(TEXT_LIMIT) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Syscall;

    fn reporter() -> DenialReporter {
        let policy = "policy:\n  enforcer: Landlock\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                      privileged: true\n    bpfRawRules:\n      files:\n      \
                      - {pattern: '/s/**', permissions: [read]}\n    \
                      landlockRawRules:\n      only:\n      \
                      - {pattern: '/**', permissions: [read]}\n      \
                      - {pattern: '/usr/**', permissions: [read, write]}\n      \
                      - {pattern: '/x', permissions: [read, exec]}\n";
        let options = [("other-architecture".to_owned(), "--allow x".to_owned())];
        DenialReporter::new(&GuardSpec {
            policy: policy.to_owned(),
            report: None,
            options: options.into(),
            wide: WideFolders::default(),
            ask: false,
            environment: None,
        })
        .expect("no descriptor")
    }

    fn violation<'a>(access: Option<&'static str>, object: Option<&'a str>) -> Violation<'a> {
        Violation {
            rule: "bpfRawRules.files[0]",
            enforcer: EnforcerKind::Landlock,
            errno: Some(Errno(13)),
            call: Syscall::OPENAT,
            args: [0; 6],
            object,
            access,
            note: None,
        }
    }

    #[test]
    fn a_denial_names_layer_line_and_option() {
        let reporter = reporter();
        let field = |name: &str| {
            if name == "proc.name" {
                "cat".to_owned()
            } else {
                String::new()
            }
        };
        let text = |access, object| reporter.describe(&violation(access, object), &field).text();
        assert_eq!(
            text(Some("read"), Some("/s/a b")),
            "tollgate guard: denied: cat may not read /s/a b (openat: EACCES)\n  \
             by Landlock, policy line 8 (bpfRawRules.files[0]); to allow it: --allow-read '/s/a b'\n"
        );
        assert!(
            text(Some("connect"), Some("192.0.2.1:443"))
                .ends_with("--allow-connect 192.0.2.1:443\n")
        );
        assert!(text(Some("connect"), Some("unix:@x")).ends_with("no option allows it\n"));
        assert!(text(None, None).contains("may not call openat (EACCES)"));
        assert!(text(Some("read"), Some("/\x1b[2J")).contains(r"may not read /\u{1b}[2J "));
        let unresolved = Violation {
            note: Some("cannot look up \x1b"),
            ..violation(Some("connect"), Some("192.0.2.1:443"))
        };
        assert!(
            reporter
                .describe(&unresolved, &field)
                .text()
                .ends_with("\n  cannot look up \\u{1b}\n")
        );
        let by_rule = Violation {
            rule: "other-architecture",
            ..violation(None, None)
        };
        assert_eq!(
            reporter.advice(&by_rule),
            Advice::Option("--allow x".to_owned())
        );
    }

    #[test]
    fn an_option_that_allows_nothing_more_is_not_proposed() {
        let reporter = reporter();
        let advice = |rule, enforcer, access, path| {
            reporter.advice(&Violation {
                rule,
                enforcer,
                ..violation(Some(access), Some(path))
            })
        };
        let listed = |access, path| {
            let rule = "landlockRawRules.only";
            advice(rule, EnforcerKind::Landlock, access, path)
        };
        let option = |text: &str| Advice::Option(text.to_owned());
        assert_eq!(listed("exec", "/lib"), option("--allow-exec /lib"));
        assert_eq!(listed("write", "/lib"), option("--allow-write /lib"));
        assert_eq!(listed("read", "/s/a"), option("--allow-read /s/a"));
        // Allowed already, and denied for another reason.
        assert_eq!(listed("exec", "/x"), Advice::None);
        assert_eq!(listed("read", "/proc/1/mem"), Advice::None);
        assert_eq!(listed("write", "/usr"), Advice::None);
        for (rule, enforcer) in [
            ("disable-cap-privileged", EnforcerKind::Caps),
            ("disallow-debug-disk-device", EnforcerKind::Landlock),
        ] {
            assert_eq!(advice(rule, enforcer, "write", "/lib"), Advice::None);
        }
        // The option of the rule is the one that works.
        let by_rule = advice("other-architecture", EnforcerKind::Landlock, "read", "/s/a");
        assert_eq!(by_rule, option("--allow x"));
    }
}
