//! Violations of policies that `tollgate runtime` enforces: as Events of their pods, and as lines of a log in the form of
//! vArmor's.
//!
//! The agents of `tollgate runtime` write them to a file as alerts. What they do not know, such as which ArmorProfile it is, is
//! added from what the container runtime has said.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::agent::Agent;
use crate::follow::Follow;
use crate::pod_events::{EventReason, Occurrence, PodRef};
use crate::state::Seen;
use crate::store::Record;
use crate::violation_log::Log;
use crate::workload::workload;

/// How often the file is looked at.
const TICK: Duration = Duration::from_millis(250);
/// Least time between two writes of how far the file was read.
const SAVE: Duration = Duration::from_secs(5);
/// Tag of alerts about a policy.
const TAG: &str = "policy";

/// Files of violations.
#[derive(Clone, Debug)]
pub struct ViolationFiles {
    /// Alerts of `tollgate runtime`, JSON lines.
    pub alerts: PathBuf,
    /// The log, if there is to be one.
    pub log: Option<PathBuf>,
}

/// Counters of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViolationCounters {
    /// Violations that were read.
    pub(crate) read: u64,
    /// Lines that are no alerts, or too long.
    pub(crate) skipped: u64,
    /// Violations that could not be written to the log.
    pub(crate) lost: u64,
}

/// An alert about a policy.
struct Violation<'a> {
    alert: &'a Value,
    fields: &'a Map<String, Value>,
    rule: &'a str,
}

impl<'a> Violation<'a> {
    /// The violation of an alert; `None` if it is about something else.
    fn of(alert: &'a Value) -> Option<Self> {
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
        let done = match self.is_denied() {
            true => "denied",
            false => "reported",
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
    pod_labels: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload_kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload_name: Option<String>,
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

/// What the agent knows of a container.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) id: String,
    pub(crate) seen: Seen,
    /// How it was confined.
    pub(crate) record: Option<Record>,
    /// Kind and name of the policy.
    pub(crate) policy: Option<(String, String)>,
}

fn line(violation: &Violation<'_>, named: Option<&Named>, node: &str) -> String {
    let seen = named.map(|named| &named.seen);
    let pod = seen.map(|seen| &seen.pod);
    let record = named.and_then(|named| named.record.as_ref());
    let policy = named.and_then(|named| named.policy.as_ref());
    let labels = pod.map(|pod| {
        let labels = pod.labels.iter();
        labels
            .map(|(key, value)| (key.clone(), Value::from(value.clone())))
            .collect()
    });
    let workload = pod.and_then(workload);
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
        pod_labels: labels,
        workload_kind: workload.as_ref().map(|workload| workload.kind),
        workload_name: workload.map(|workload| workload.name),
        container_id: named
            .map(|named| &*named.id)
            .or_else(|| violation.text("container.id")),
        container_name: seen
            .map(|seen| &*seen.name)
            .or_else(|| violation.text("container.name")),
        image: seen
            .and_then(|seen| seen.image.as_deref())
            .or_else(|| violation.text("container.image.repository")),
        pid: violation.fields.get("proc.pid").and_then(Value::as_u64),
        event_timestamp: time.map(Timestamp::as_second),
        enforcer: violation.text("policy.enforcer"),
        action: match violation.is_denied() {
            true => "DENIED",
            false => "AUDIT",
        },
        profile_name: record.map(|record| &*record.name),
        policy_kind: policy.map(|(kind, _)| &**kind),
        policy_name: policy.map(|(_, name)| &**name),
        policy_namespace: policy
            .zip(record)
            .filter(|((kind, _), _)| kind == "VarmorPolicy")
            .map(|(_, record)| &*record.namespace),
        event: violation.what(),
        time: Timestamp::now().strftime("%FT%TZ").to_string(),
        message: "violation event",
    };
    serde_json::to_string(&line).expect("it is JSON")
}

/// Follows violations for ever.
pub(crate) fn follow(agent: &Agent, files: &ViolationFiles) {
    let mut follower = Follower {
        agent,
        follow: Follow::new(files.alerts.clone(), agent.store.position()),
        log: files.log.clone().map(Log::new),
        said: [None, None],
    };
    let mut saved = (Instant::now(), None);
    loop {
        let has_more = follower.step();
        let position = follower.follow.position();
        if position != saved.1 && saved.0.elapsed() >= SAVE {
            if let Some(position) = position
                && let Err(error) = agent.store.write_position(&position)
            {
                agent.say(crate::chain(&error));
            }
            saved = (Instant::now(), position);
        }
        if !has_more {
            thread::sleep(TICK);
        }
    }
}

struct Follower<'a> {
    agent: &'a Agent,
    follow: Follow,
    log: Option<Log>,
    /// The last complaints about alerts and about the log, which are not repeated.
    said: [Option<String>; 2],
}

impl Follower<'_> {
    /// Takes what is new. Returns true if there is more.
    fn step(&mut self) -> bool {
        let mut lines = Vec::new();
        let read = self.follow.lines(|line| lines.push(line.to_vec()));
        let skipped = std::mem::take(&mut self.follow.skipped);
        self.agent.state().violations.skipped += skipped;
        for line in &lines {
            self.take(line);
        }
        let problem = read.as_ref().err();
        let problem =
            problem.map(|error| format!("cannot read the alerts of the runtime: {error}"));
        self.complain(0, problem);
        read.unwrap_or_default()
    }

    fn take(&mut self, text: &[u8]) {
        let Ok(alert) = serde_json::from_slice::<Value>(text) else {
            self.agent.state().violations.skipped += 1;
            return;
        };
        let Some(violation) = Violation::of(&alert) else {
            return;
        };
        let short = violation.text("container.id").unwrap_or_default();
        let mut state = self.agent.state();
        state.violations.read += 1;
        let named = state.named(short);
        drop(state);
        if let (Some(events), Some(named)) = (&self.agent.events, &named) {
            events.note(Occurrence {
                pod: PodRef::of(&named.seen.pod),
                reason: EventReason::PolicyViolation,
                subject: violation.rule.to_owned(),
                is_warning: violation.is_denied(),
                note: violation.note(&named.seen.name),
            });
        }
        let Some(log) = &mut self.log else {
            return;
        };
        let line = line(&violation, named.as_ref(), &self.agent.settings.node);
        let problem = log.write(&line).err();
        let problem =
            problem.map(|error| format!("cannot write {}: {error}", log.path().display()));
        if problem.is_some() {
            self.agent.state().violations.lost += 1;
        }
        self.complain(1, problem);
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
