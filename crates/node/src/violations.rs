//! Violations of policies that `tollgate runtime` and the kernel enforce: as Events of their pods, and as lines of a log in the
//! form of vArmor's.
//!
//! The agents of `tollgate runtime` write them to a file as alerts, and those of the kernel are brought into the same form. What
//! they do not know, such as which ArmorProfile it is, is
//! added from what the container runtime has said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::agent::Agent;
use crate::follow::{Follow, Line as Read, Position};
use crate::names::Named;
use crate::pod_events::{EventReason, Occurrence};
use crate::printable::printable;
use crate::too_long;
use crate::violation_log::Log;

/// How often the file is looked at.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// How long violations wait until the container runtime has said which containers there are. Without that they have no pod.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// End of the description of a violation whose alert is too long.
const TOO_LONG: &str = "; its alert is too long to be read as a whole";
/// Tag of alerts about a policy.
pub(crate) const TAG: &str = "policy";

/// Files of violations.
#[derive(Clone, Debug, Default)]
pub struct ViolationFiles {
    /// Alerts of `tollgate runtime`, JSON lines, if they are followed.
    pub alerts: Option<PathBuf>,
    /// The log, if there is to be one.
    pub log: Option<PathBuf>,
}

/// Counters of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViolationCounters {
    /// Violations that were read.
    pub(crate) read: u64,
    /// Of these, from containers that the container runtime has not named.
    pub(crate) unnamed: u64,
    /// Lines that are no alerts.
    pub(crate) skipped: u64,
    /// Alerts that are too long to be read as a whole.
    pub(crate) too_long: u64,
    /// Times that a file of alerts was gone, or cut, and perhaps not read to its end.
    pub(crate) gaps: u64,
    /// Violations that could not be written to the log.
    pub(crate) lost: u64,
    /// Violations that the kernel had no room for, since it began to report.
    pub(crate) lost_by_kernel: u64,
    /// Times that it could not be found how many those are.
    pub(crate) unknown_losses: u64,
}

/// An alert about a policy.
pub(crate) struct Violation<'a> {
    alert: &'a Value,
    fields: &'a Map<String, Value>,
    rule: &'a str,
    /// Only the begin of the alert was read.
    is_too_long: bool,
}

impl<'a> Violation<'a> {
    /// The violation of an alert; `None` if it is about something else.
    pub(crate) fn of(alert: &'a Value) -> Option<Self> {
        let fields = alert["output_fields"].as_object()?;
        let mut tags = alert["tags"].as_array()?.iter();
        if !tags.any(|tag| tag == TAG) {
            return None;
        }
        let rule = fields.get("policy.rule")?.as_str()?;
        Some(Self {
            alert,
            fields,
            rule,
            is_too_long: false,
        })
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        let text = self.fields.get(name)?.as_str()?;
        Some(text).filter(|text| !text.is_empty())
    }

    /// What was done: the kernel's name of an operation, or a system call.
    fn operation(&self) -> Option<&'a str> {
        self.text("policy.operation")
            .or_else(|| self.text("evt.type"))
    }

    fn path(&self) -> Option<&'a str> {
        self.text("fd.name")
            .or_else(|| self.text("evt.arg.filename"))
    }

    fn is_denied(&self) -> bool {
        self.text("policy.action") == Some("denied")
    }

    fn what(&self) -> What<'a> {
        What {
            rule: self.rule,
            operation: self.operation(),
            path: self.path(),
            errno: self.text("policy.errno"),
            process: self.text("proc.name"),
            executable: self.text("proc.exepath"),
            command: self.text("proc.cmdline"),
            arguments: self.text("evt.args"),
        }
    }

    /// The description for people.
    fn note(&self, container: &str) -> String {
        let done = match (self.text("policy.action"), self.is_denied()) {
            (None, _) => "denied or reported",
            (Some(_), true) => "denied",
            (Some(_), false) => "reported",
        };
        let mut note = format!("container {container}: {} {done}", self.rule);
        let values = [
            (" ", self.operation()),
            (" ", self.path()),
            (" by ", self.text("proc.name")),
        ];
        for (before, value) in values {
            if let Some(value) = value {
                note.push_str(before);
                note.push_str(value);
            }
        }
        if self.is_too_long {
            note.push_str(TOO_LONG);
        }
        note
    }
}

/// A line of the log. Members that are not known are left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    level: &'static str,
    node_name: &'a str,
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    pod_uid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_labels: Option<&'a BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload_kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload_name: Option<&'a str>,
    #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
    container_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u64>,
    /// Seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_timestamp: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enforcer: Option<&'a str>,
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_namespace: Option<&'a str>,
    event: What<'a>,
    /// When the line was written.
    time: String,
    message: &'static str,
}

/// What was done.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct What<'a> {
    rule: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    executable: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
}

fn line(violation: &Violation<'_>, named: Option<&Named>, node: &str) -> String {
    let names = named.map(|named| &*named.names);
    let pod = names.map(|names| &names.pod);
    let profile = named.and_then(|named| named.profile.as_ref());
    let policy = named.and_then(|named| named.policy.as_ref());
    let workload = names.and_then(|names| names.workload.as_ref());
    let time = violation.alert["time"].as_str();
    let time = time.and_then(|time| time.parse::<Timestamp>().ok());
    let line = Line {
        level: "warn",
        node_name: node,
        pod_uid: pod.map(|pod| &*pod.uid),
        pod_name: pod
            .map(|pod| &*pod.name)
            .or_else(|| violation.text("k8s.pod.name")),
        pod_namespace: pod
            .map(|pod| &*pod.namespace)
            .or_else(|| violation.text("k8s.ns.name")),
        pod_labels: names.map(|names| &names.labels),
        workload_kind: workload.map(|workload| workload.kind),
        workload_name: workload.map(|workload| &*workload.name),
        container_id: names
            .map(|names| &*names.id)
            .or_else(|| violation.text("container.id")),
        container_name: names
            .map(|names| &*names.name)
            .or_else(|| violation.text("container.name")),
        image: names
            .and_then(|names| names.image.as_deref())
            .or_else(|| violation.text("container.image.repository")),
        pid: violation.fields.get("proc.pid").and_then(Value::as_u64),
        event_timestamp: time.map(Timestamp::as_second),
        enforcer: violation.text("policy.enforcer"),
        action: match violation.is_denied() {
            true => "DENIED",
            false if violation.text("policy.action").is_none() => "UNKNOWN",
            false => "AUDIT",
        },
        profile_name: profile.map(|key| &*key.name),
        policy_kind: policy.map(|(kind, _)| &**kind),
        policy_name: policy.map(|(_, name)| &**name),
        policy_namespace: policy
            .zip(profile)
            .filter(|((kind, _), _)| kind == "VarmorPolicy")
            .map(|(_, key)| &*key.namespace),
        event: violation.what(),
        time: Timestamp::now().strftime("%FT%TZ").to_string(),
        message: match violation.is_too_long {
            true => "violation event (the alert is too long to be read as a whole)",
            false => "violation event",
        },
    };
    printable(&serde_json::to_string(&line).expect("it is JSON"))
}

/// The log of violations, which several threads write.
#[derive(Debug)]
pub(crate) struct SharedLog(Mutex<(Log, Option<String>)>);

impl SharedLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(Mutex::new((Log::new(path), None)))
    }
}

impl Agent {
    /// Takes a violation: into the log, and as an Event of its pod. `id` is that of its container; without one it is in the alert.
    pub(crate) fn take_violation(&self, violation: &Violation<'_>, id: Option<&str>) {
        let mut state = self.state();
        let id = id.or_else(|| violation.text("container.id"));
        let named = id.and_then(|id| state.named(id, Instant::now()));
        state.violations.read += 1;
        state.violations.unnamed += u64::from(named.is_none());
        drop(state);
        if let (Some(events), Some(named)) = (&self.events, &named) {
            events.note(Occurrence {
                pod: named.names.pod.clone(),
                reason: EventReason::PolicyViolation,
                subject: violation.rule.to_owned(),
                is_warning: violation.is_denied() || violation.is_too_long,
                note: violation.note(&named.names.name),
            });
        }
        let Some(SharedLog(log)) = &self.violations_log else {
            return;
        };
        let line = line(violation, named.as_ref(), &self.settings.node);
        let mut both = log.lock().unwrap_or_else(PoisonError::into_inner);
        let (log, said) = &mut *both;
        let problem = log.write(&line).err();
        let problem =
            problem.map(|error| format!("cannot write {}: {error}", log.path().display()));
        if let Some(problem) = &problem {
            self.state().violations.lost += 1;
            if said.as_ref() != Some(problem) {
                self.say(problem.clone());
            }
        }
        *said = problem;
    }
}

/// Follows violations for ever.
pub(crate) fn follow(agent: &Agent, alerts: &Path) {
    // What a runtime has reported meanwhile is of containers of which nothing is known yet.
    agent.wait_for_containers(PATIENCE);
    let mut follower = Follower::new(agent, alerts);
    loop {
        if !follower.step() {
            thread::sleep(TICK);
        }
    }
}

struct Follower<'a> {
    agent: &'a Agent,
    follow: Follow,
    /// How far the file was read, as it is kept on disk.
    kept: Option<Position>,
    /// The last complaints about alerts and about the position, which are not repeated.
    said: [Option<String>; 2],
}

impl<'a> Follower<'a> {
    /// Goes on where the agent before has ended.
    fn new(agent: &'a Agent, alerts: &Path) -> Self {
        let kept = agent.store.position();
        Self {
            agent,
            follow: Follow::new(alerts.to_owned(), kept.clone()),
            kept,
            said: [None, None],
        }
    }

    /// Takes what is new, and keeps how far that is. Returns true if there is more.
    fn step(&mut self) -> bool {
        let mut lines = Vec::new();
        let read = self.follow.lines(|line| lines.push(line));
        let skipped = std::mem::take(&mut self.follow.skipped);
        let gaps = std::mem::take(&mut self.follow.gaps);
        let mut state = self.agent.state();
        state.violations.skipped += skipped;
        state.violations.gaps += gaps;
        drop(state);
        for line in &lines {
            self.read(line);
        }
        let problem = read.as_ref().err();
        let problem =
            problem.map(|error| format!("cannot read the alerts of the runtime: {error}"));
        self.complain(0, problem);
        self.keep_position();
        // An error was told above; the next step reads again.
        read.unwrap_or(false)
    }

    fn keep_position(&mut self) {
        let problem = match self.follow.position() {
            Ok(None) => None,
            Ok(position) if position == self.kept => None,
            Ok(Some(position)) => match self.agent.store.write_position(&position) {
                Ok(()) => {
                    self.kept = Some(position);
                    None
                }
                Err(error) => Some(crate::chain(&error)),
            },
            Err(error) => Some(format!("cannot read the alerts of the runtime: {error}")),
        };
        self.complain(1, problem);
    }

    fn read(&mut self, line: &Read) {
        match line {
            Read::Whole(text) => {
                let Ok(alert) = serde_json::from_slice::<Value>(text) else {
                    self.agent.state().violations.skipped += 1;
                    return;
                };
                if let Some(violation) = Violation::of(&alert) {
                    self.agent.take_violation(&violation, None);
                }
            }
            Read::Cut(head) => {
                self.agent.state().violations.too_long += 1;
                let alert = too_long::alert(head);
                if let Some(violation) = Violation::of(&alert) {
                    let violation = Violation {
                        is_too_long: true,
                        ..violation
                    };
                    self.agent.take_violation(&violation, None);
                }
            }
        }
    }

    fn complain(&mut self, about: usize, problem: Option<String>) {
        if let Some(problem) = &problem
            && self.said[about].as_ref() != Some(problem)
        {
            self.agent.say(problem.clone());
        }
        self.said[about] = problem;
    }
}

#[cfg(test)]
#[path = "violations_tests.rs"]
mod tests;
