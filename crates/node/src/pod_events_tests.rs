//! Tests of the limits of Events.

use serde_json::{Value, json};

use super::*;
use crate::event_writer::{MAX_NOTE, event, reporting_instance};

fn pod(name: &str) -> PodRef {
    let (namespace, name) = name.split_once('/').unwrap_or(("demo", name));
    PodRef {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
    }
}

fn alert(pod_name: &str, rule: &str, note: &str) -> Occurrence {
    Occurrence {
        pod: pod(pod_name),
        reason: EventReason::RuleMatched,
        subject: rule.to_owned(),
        is_warning: true,
        note: note.to_owned(),
    }
}

/// Events with a clock of their own.
struct Clocked {
    events: PodEvents,
    begin: Instant,
    now: Instant,
}

impl Clocked {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            events: PodEvents::default(),
            begin: now,
            now,
        }
    }

    fn note(&self, occurrence: Occurrence) {
        let passed = self.now.duration_since(self.begin);
        let time = Timestamp::from_second(1_800_000_000).unwrap() + passed;
        self.events.note_at(occurrence, time, self.now);
    }

    /// Lets seconds pass, and writes each second what may be written.
    fn pass(&mut self, seconds: u64, outcome: Outcome) -> Vec<Value> {
        let mut all = Vec::new();
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            while let Some(due) = self.events.due(self.now) {
                all.push(event(&due, None, "n1"));
                self.events.settle(due, outcome, self.now);
            }
        }
        all
    }
}

#[test]
fn what_repeats_becomes_one_event_with_a_count() {
    let mut clocked = Clocked::new();
    for number in 0..5 {
        clocked.note(alert("web", "Shell", &format!("shell {number}")));
    }
    let written = clocked.pass(1, Outcome::Written);
    assert_eq!(written.len(), 1, "{written:#?}");
    let event = &written[0];
    assert_eq!(event["regarding"]["kind"], "Pod");
    assert_eq!(event["regarding"]["uid"], "uid-web");
    assert_eq!(event["metadata"]["namespace"], "demo");
    assert_eq!(event["reason"], "RuleMatched");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["note"], "shell 4");
    assert_eq!(event["series"]["count"], 5);
    assert_eq!(event["eventTime"], "2027-01-15T08:00:00.000000Z");
    assert_eq!(event["reportingInstance"], "n1");

    // The next ones wait for a minute, and then come together.
    clocked.note(alert("web", "Shell", "later"));
    assert_eq!(clocked.pass(30, Outcome::Written), [] as [Value; 0]);
    clocked.note(alert("web", "Shell", "last"));
    let written = clocked.pass(30, Outcome::Written);
    assert_eq!(written.len(), 1, "{written:#?}");
    assert_eq!(written[0]["note"], "last");
    assert_eq!(written[0]["series"]["count"], 2);
    assert_ne!(written[0]["metadata"]["name"], event["metadata"]["name"]);

    clocked.note(alert("web", "Shell", "one"));
    let written = clocked.pass(61, Outcome::Written);
    assert_eq!(written.len(), 1, "{written:#?}");
    assert_eq!(written[0]["series"], Value::Null, "one is no series");
    let figures = clocked.events.figures();
    assert_eq!((figures.occurrences, figures.written), (8, 3));
    assert_eq!((figures.waiting, figures.lost_full), (0, 0));
}

#[test]
fn a_pod_and_a_rule_have_limits_and_nothing_is_lost_by_them() {
    let mut clocked = Clocked::new();
    // One pod with many rules.
    for rule in 0..MAX_OF_POD {
        clocked.note(alert("noisy", &format!("Rule {rule}"), "n"));
    }
    let of_pod = clocked.pass(3, Outcome::Written).len();
    assert_eq!(of_pod, 10);
    // Another pod does not wait for it.
    clocked.note(alert("calm", "Shell", "n"));
    let written = clocked.pass(2, Outcome::Written);
    assert_eq!(written.len(), 1, "{written:#?}");
    assert_eq!(written[0]["regarding"]["name"], "calm");
    assert_eq!(clocked.events.figures().waiting, 54);
    assert_eq!(clocked.pass(60, Outcome::Written).len(), 2);

    // One rule in many pods.
    let mut clocked = Clocked::new();
    for number in 0..100 {
        clocked.note(alert(&format!("pod-{number}"), "Shell", "n"));
    }
    assert_eq!(clocked.pass(1, Outcome::Written).len(), 20);
    assert_eq!(clocked.pass(50, Outcome::Written).len(), 10);
    // In the end all are written.
    assert_eq!(clocked.pass(1000, Outcome::Written).len(), 70);
    assert_eq!(clocked.events.figures().written, 100);
}

#[test]
fn the_node_has_a_limit_too() {
    let mut clocked = Clocked::new();
    for number in 0..200 {
        clocked.note(alert(&format!("p{number}"), &format!("Rule {number}"), "n"));
    }
    assert_eq!(clocked.pass(1, Outcome::Written).len(), 30);
    assert_eq!(clocked.pass(60, Outcome::Written).len(), 30);
}

#[test]
fn the_table_is_bounded_and_what_finds_no_room_is_counted() {
    let clocked = Clocked::new();
    for number in 0..MAX + 7 {
        let name = format!("n{}/p{number}", number % 8);
        clocked.note(alert(&name, "Shell", "n"));
    }
    // What is there already has room.
    clocked.note(alert("n0/p0", "Shell", "n"));
    let figures = clocked.events.figures();
    assert_eq!(figures.lost_full, 7);
    assert_eq!(figures.waiting, u64::try_from(MAX).unwrap() + 1);
}

#[test]
fn an_api_server_that_does_not_answer_is_asked_again_and_one_that_refuses_is_not() {
    let mut clocked = Clocked::new();
    for _ in 0..3 {
        clocked.note(alert("web", "Shell", "n"));
    }
    let first = clocked.pass(1, Outcome::Later);
    assert_eq!(first.len(), 1);
    assert_eq!(clocked.pass(4, Outcome::Later).len(), 0, "it waits");
    clocked.note(alert("web", "Shell", "again"));
    // An outage of an hour takes nothing from the limits of the time after it.
    clocked.pass(3600, Outcome::Later);
    let written = clocked.pass(6, Outcome::Written);
    assert_eq!(written.len(), 1, "{written:#?}");
    assert_eq!(written[0]["series"]["count"], 4);
    assert_eq!(written[0]["metadata"]["name"], first[0]["metadata"]["name"]);
    clocked.note(alert("other", "Shell", "n"));
    clocked.note(alert("other", "Shell", "n"));
    assert_eq!(clocked.pass(60, Outcome::Refused).len(), 1);
    let figures = clocked.events.figures();
    assert_eq!((figures.written, figures.lost_refused), (1, 2));
    assert_eq!(figures.waiting, 0);
}

#[test]
fn entries_and_limits_are_forgotten_in_the_end() {
    let mut clocked = Clocked::new();
    for number in 0..10 {
        clocked.note(alert(&format!("p{number}"), "Shell", "n"));
    }
    clocked.pass(600, Outcome::Written);
    let table = clocked.events.table();
    assert!(table.entries.is_empty() && table.pods.is_empty() && table.subjects.is_empty());
    assert!(table.turns.is_empty() && table.failing.is_empty());
}

#[test]
fn texts_are_what_the_api_server_takes() {
    let mut clocked = Clocked::new();
    let long = "\u{e4}".repeat(600);
    let mut occurrence = alert(&"p".repeat(253), "Shell", &format!("\u{1b}[31m{long}"));
    occurrence.pod.name.replace_range(219..220, ".");
    clocked.note(occurrence);
    let written = clocked.pass(1, Outcome::Written);
    let note = written[0]["note"].as_str().unwrap();
    let shown = crate::event_writer::shown("a\u{202e}b\u{200b}\u{2029}");
    assert_eq!(shown, r"a\u202eb\u200b\u2029");
    assert!(
        note.len() <= MAX_NOTE && note.len() > MAX_NOTE - 2,
        "{}",
        note.len()
    );
    assert!(note.starts_with(r"\u001b[31m"), "{note}");
    let name = written[0]["metadata"]["name"].as_str().unwrap();
    assert!(name.len() <= 253 && !name.contains(".."), "{name}");
    let node = "n".repeat(200);
    assert_eq!(reporting_instance(&node).len(), 128);
}

#[test]
fn an_event_that_always_fails_does_not_stop_the_others_and_is_lost_in_the_end() {
    let mut clocked = Clocked::new();
    clocked.note(alert("bad", "Shell", "n"));
    clocked.note(alert("bad", "Shell", "n"));
    let mut others = 0;
    let mut attempts = 0;
    for second in 0..300 {
        if second % 10 == 0 {
            clocked.note(alert(&format!("p{second}"), &format!("Rule {second}"), "n"));
        }
        clocked.now += Duration::from_secs(1);
        while let Some(due) = clocked.events.due(clocked.now) {
            let is_bad = due.key.pod.name == "bad";
            let outcome = if is_bad {
                Outcome::Later
            } else {
                Outcome::Written
            };
            attempts += u32::from(is_bad);
            others += u32::from(!is_bad);
            clocked.events.settle(due, outcome, clocked.now);
        }
    }
    assert_eq!((others, attempts), (30, MAX_FAILURES));
    let figures = clocked.events.figures();
    assert_eq!(
        (figures.written, figures.lost_failed, figures.waiting),
        (30, 2, 0)
    );
}

#[test]
fn several_events_that_fail_pause_the_node_and_one_does_not() {
    let mut clocked = Clocked::new();
    for number in 0..20 {
        clocked.note(alert(&format!("p{number}"), &format!("Rule {number}"), "n"));
    }
    assert_eq!(clocked.pass(1, Outcome::Later).len(), SEVERAL);
    assert_eq!(clocked.pass(4, Outcome::Later).len(), 0, "it is paused");
    let written = clocked.pass(6, Outcome::Written);
    assert_eq!(written.len(), 20);
    assert_eq!(clocked.events.figures().lost_failed, 0);
}

#[test]
fn a_pod_and_a_namespace_leave_room_for_others() {
    let mut clocked = Clocked::new();
    for rule in 0..MAX_OF_POD + 3 {
        clocked.note(alert("evil/noisy", &format!("Rule {rule}"), "n"));
    }
    assert_eq!(clocked.events.figures().lost_full, 3);
    for number in 0..MAX {
        clocked.note(alert(
            &format!("evil/p{number}"),
            &format!("R{number}"),
            "n",
        ));
    }
    let kept = u64::try_from(MAX_OF_NAMESPACE).unwrap();
    assert_eq!(clocked.events.figures().waiting, kept);
    clocked.note(alert("zen/web", "Shell", "n"));
    clocked.note(alert("zen/db", "Shell", "n"));
    assert_eq!(clocked.events.figures().waiting, kept + 2);

    // They came last, and namespaces take turns.
    let written = clocked.pass(1, Outcome::Written);
    let names = written.iter().take(4);
    let names: Vec<_> = names
        .map(|event| event["regarding"]["name"].as_str())
        .collect();
    assert_eq!(names, [Some("noisy"), Some("db"), Some("p0"), Some("web")]);
    // Each pod has had one before another has a second one.
    let noisy = written
        .iter()
        .filter(|event| event["regarding"]["name"] == "noisy");
    assert_eq!(noisy.count(), 1);
}

#[test]
fn what_came_after_a_lost_answer_is_told_by_the_next_event() {
    let mut clocked = Clocked::new();
    clocked.note(alert("web", "Shell", "n"));
    clocked.note(alert("web", "Shell", "n"));
    let first = clocked.pass(1, Outcome::Later);
    assert_eq!(first[0]["series"]["count"], 2);
    for _ in 0..3 {
        clocked.note(alert("web", "Shell", "later"));
    }
    let exists = clocked.pass(10, Outcome::Exists);
    assert_eq!(exists.len(), 1);
    assert_eq!(exists[0]["series"]["count"], 5);
    assert_eq!(clocked.events.figures().waiting, 3);
    let next = clocked.pass(60, Outcome::Written);
    assert_eq!(next.len(), 1);
    assert_eq!(next[0]["series"]["count"], 3);
    assert_ne!(next[0]["metadata"]["name"], exists[0]["metadata"]["name"]);
    assert_eq!(clocked.events.figures().waiting, 0);
}

#[test]
fn a_warning_is_shown_until_it_is_written() {
    let mut clocked = Clocked::new();
    let normal = |note: &str| Occurrence {
        is_warning: false,
        ..alert("web", "Shell", note)
    };
    clocked.note(normal("before"));
    clocked.note(alert("web", "Shell", "denied"));
    clocked.note(normal("allowed"));
    let failed = clocked.pass(1, Outcome::Later);
    assert_eq!(failed[0]["type"], "Warning");
    clocked.note(normal("allowed again"));
    let written = clocked.pass(10, Outcome::Written);
    assert_eq!(
        (&written[0]["type"], &written[0]["note"]),
        (&json!("Warning"), &json!("denied"))
    );
    clocked.note(normal("after"));
    let written = clocked.pass(60, Outcome::Written);
    assert_eq!(
        (&written[0]["type"], &written[0]["note"]),
        (&json!("Normal"), &json!("after"))
    );
}
