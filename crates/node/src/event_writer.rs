//! Events as objects, and the thread that writes them.

use std::thread;
use std::time::{Duration, Instant};

use apiserver::{ApiError, Client, Resource};
use jiff::Timestamp;
use kinds::ObjectKey;
use nri::message::PodSandbox;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::chain;
use crate::pod_events::{Due, EventReason, Occurrence, Outcome, PodRef};
use crate::printable::write_printable;
use crate::store::Record;
use crate::workload::Workload;

/// How often the thread looks whether there is an Event to write.
const TICK: Duration = Duration::from_millis(250);
/// Maximum length in bytes of a note, which the API server limits to 1024.
pub(crate) const MAX_NOTE: usize = 1000;
/// Maximum length in bytes of the reporting instance, which the API server limits.
const MAX_INSTANCE: usize = 128;
/// Maximum length in bytes of the part of an Event's name that is the pod's. With the rest it has at most 253.
const MAX_POD: usize = 220;

impl Agent {
    /// Notes that a container runs without its policy.
    pub(crate) fn note_unenforced(&self, pod: &PodSandbox, key: &ObjectKey, note: &str) {
        let Some(events) = &self.events else {
            return;
        };
        events.note(Occurrence {
            pod: PodRef::of(pod),
            reason: EventReason::PolicyNotEnforced,
            subject: key.to_string(),
            is_warning: true,
            note: note.to_owned(),
        });
    }

    /// Notes that a container runs without a part of its policy, if there is one.
    pub(crate) fn note_gaps(&self, pod: &PodSandbox, container: &str, record: &Record) {
        let gaps = &record.gaps;
        if gaps.is_empty() {
            return;
        }
        let key = ObjectKey {
            namespace: record.namespace.clone(),
            name: record.name.clone(),
        };
        let gaps = gaps.join("; ");
        let note =
            format!("{container} runs without a part of {key}, whose fail mode is open: {gaps}");
        self.note_unenforced(pod, &key, &note);
    }
}

/// A note as the API server takes it. Programs of the pod choose parts of it, and terminals show it.
pub(crate) fn shown(note: &str) -> String {
    let mut text = String::new();
    for letter in note.chars() {
        let whole = text.len();
        write_printable(&mut text, letter);
        if text.len() > MAX_NOTE {
            text.truncate(whole);
            break;
        }
    }
    text
}

/// The greatest length that is at most `most` and does not cut a letter.
fn boundary(text: &str, most: usize) -> usize {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

/// The name by which a node is the reporter of its Events.
pub(crate) fn reporting_instance(node: &str) -> &str {
    &node[..boundary(node, MAX_INSTANCE)]
}

/// The object.
pub(crate) fn event(due: &Due, workload: Option<&Workload>, node: &str) -> Value {
    let PodRef {
        namespace,
        name,
        uid,
    } = &due.key.pod;
    let (reason, action) = due.key.reason.words();
    let micro = |time: Timestamp| time.strftime("%FT%T.%6fZ").to_string();
    // A second attempt has the same name, so that an Event is not written twice.
    let hash = due.key.subject.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let base = name[..boundary(name, MAX_POD)].trim_end_matches(['.', '-']);
    let mut event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{base}.{:x}{hash:08x}", due.first.as_nanosecond()),
            "namespace": namespace,
        },
        "eventTime": micro(due.first),
        "reportingController": "tollgate.dev/node",
        "reportingInstance": reporting_instance(node),
        "action": action,
        "reason": reason,
        "type": if due.is_warning { "Warning" } else { "Normal" },
        "regarding": { "apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": uid },
        "note": due.note,
    });
    if let Some(workload) = workload {
        event["related"] = json!({ "apiVersion": workload.api_version, "kind": workload.kind,
            "name": workload.name, "namespace": namespace });
    }
    if due.count > 1 {
        event["series"] = json!({ "count": due.count, "lastObservedTime": micro(due.last) });
    }
    event
}

/// Whether an Event was written, given the answer of the API server.
fn outcome(result: &Result<Value, ApiError>) -> Outcome {
    const NOT_KNOWN: u16 = 401;
    const TIMEOUT: u16 = 408;
    const EXISTS: u16 = 409;
    const TOO_MANY: u16 = 429;
    match result.as_ref().map_err(ApiError::code) {
        Ok(_) => Outcome::Written,
        // An attempt of which no answer came has written it.
        Err(Some(EXISTS)) => Outcome::Exists,
        Err(None | Some(NOT_KNOWN | TIMEOUT | TOO_MANY | 500..)) => Outcome::Later,
        Err(Some(_)) => Outcome::Refused,
    }
}

/// Writes Events for ever, if the agent writes some.
pub(crate) fn write(agent: &Agent, client: &Client) {
    let Some(events) = &agent.events else {
        return;
    };
    let resource = Resource::new("events.k8s.io", "v1", "events");
    // The last complaint, which is not repeated.
    let mut last = String::new();
    loop {
        thread::sleep(TICK);
        while let Some(due) = events.due(Instant::now()) {
            let workload = agent.state().workload(&due.key.pod.uid);
            let event = event(&due, workload.as_ref(), &agent.settings.node);
            let result = client.create(&resource, &event);
            let outcome = outcome(&result);
            events.settle(due, outcome, Instant::now());
            match &result {
                Err(error) if matches!(outcome, Outcome::Later | Outcome::Refused) => {
                    let message = chain(error);
                    if message != last {
                        agent.say(format!("cannot write an Event: {message}"));
                        last = message;
                    }
                }
                _ => last.clear(),
            }
        }
    }
}
