//! Captures that people ask agents for.

use super::*;
use crate::captures::{
    AlertCaptureBegun, Capture, CaptureAsked, CaptureEnd, CaptureId, CaptureParts, CaptureState,
    CaptureUse, CapturedAlert, KEPT, KEPT_OF_AGENT, KEPT_OF_ALERTS, MAX_CAPTURE, NewAlertCapture,
    NewCapture,
};

for_each_database! {
    a_capture_arrives_in_parts_and_is_downloaded_whole,
    a_part_that_comes_again_or_too_early_changes_nothing,
    an_end_that_comes_again_changes_nothing,
    a_capture_that_is_too_large_or_not_whole_fails,
    an_agent_sends_its_own_capture_and_has_one_at_a_time,
    the_oldest_captures_go,
    a_capture_that_is_open_stays_and_more_than_are_kept_are_refused,
    a_capture_around_an_alert_is_begun_once_and_arrives_beside_one_that_was_asked_for,
    an_agent_begins_few_captures_around_alerts_and_takes_none_of_others_away,
    an_agent_that_begins_many_captures_in_a_full_store_loses_its_own,
    no_alert_makes_room_for_captures,
    parts_are_read_while_the_thread_that_writes_is_busy_and_end_with_their_capture,
}

fn request(fixture: &Fixture) -> CaptureAsked {
    let new = NewCapture {
        agent: fixture.agent,
        seconds: 7,
        actor: "ann".to_owned(),
    };
    fixture.store.request_capture(new).expect("writable")
}

fn added(fixture: &Fixture) -> CaptureId {
    match request(fixture) {
        CaptureAsked::Added(id) => id,
        other => panic!("{other:?}"),
    }
}

fn send(fixture: &Fixture, id: CaptureId, number: u64, data: &[u8]) -> Option<u64> {
    let store = &fixture.store;
    let next = store.add_chunk(fixture.agent, id, number, data.to_vec());
    next.expect("writable")
}

fn end(fixture: &Fixture, id: CaptureId, chunks: u64) -> bool {
    let end = CaptureEnd {
        chunks,
        events: 5,
        lost: 2,
        failure: None,
    };
    let ended = fixture.store.end_capture(fixture.agent, id, end);
    ended.expect("writable")
}

fn latest(fixture: &Fixture) -> Capture {
    fixture.store.captures().expect("readable").remove(0)
}

fn data(fixture: &Fixture, id: CaptureId) -> Option<Vec<u8>> {
    let store = &fixture.store;
    let opened = store.open_capture(id, "ann", CaptureUse::Download);
    let Some(opened) = opened.expect("writable") else {
        let part = store.capture_part(id, 0).expect("readable");
        assert_eq!(part, None, "it is not complete");
        return None;
    };
    let part = |number| store.capture_part(id, number).expect("readable");
    assert_eq!(part(opened.parts), None);
    let parts = (0..opened.parts).map(|number| part(number).expect("it is kept"));
    let data = parts.collect::<Vec<_>>().concat();
    assert_eq!(u64::try_from(data.len()), Ok(opened.bytes));
    Some(data)
}

fn a_capture_arrives_in_parts_and_is_downloaded_whole(fixture: &Fixture) {
    let id = added(fixture);
    let open = fixture.store.capture_of(fixture.agent).expect("readable");
    let open = open.expect("the agent is to record it");
    assert_eq!((open.id, open.seconds), (id, 7));
    assert_eq!(open.state, CaptureState::Requested);
    assert_eq!(send(fixture, id, 0, b"\x00\xffa"), Some(1));
    assert_eq!(latest(fixture).state, CaptureState::Arriving);
    assert_eq!(send(fixture, id, 1, b"b"), Some(2));
    assert_eq!(data(fixture, id), None, "it is not complete");
    assert!(end(fixture, id, 2));
    let capture = latest(fixture);
    assert_eq!(capture.state, CaptureState::Complete);
    assert_eq!((capture.bytes, capture.events, capture.lost), (4, 5, 2));
    assert_eq!(data(fixture, id).as_deref(), Some(&b"\x00\xffab"[..]));
    let open = fixture.store.capture_of(fixture.agent).expect("readable");
    assert_eq!(open, None);
    let audit = fixture.store.audit(10).expect("readable");
    let of = |action: &str| audit.iter().find(|entry| entry.action == action);
    for (action, actor) in [
        ("request capture", "ann".to_owned()),
        ("complete capture", format!("agent {}", fixture.agent.0)),
        ("download capture", "ann".to_owned()),
    ] {
        let entry = of(action).unwrap_or_else(|| panic!("{action} in {audit:?}"));
        assert_eq!(entry.actor, actor);
    }
}

fn a_part_that_comes_again_or_too_early_changes_nothing(fixture: &Fixture) {
    let id = added(fixture);
    assert_eq!(send(fixture, id, 1, b"x"), Some(0));
    assert_eq!(send(fixture, id, 0, b"a"), Some(1));
    assert_eq!(send(fixture, id, 0, b"other"), Some(1));
    assert_eq!(send(fixture, id, 1, b""), Some(1));
    assert!(end(fixture, id, 1));
    assert_eq!(data(fixture, id).as_deref(), Some(&b"a"[..]));
    assert_eq!(send(fixture, id, 1, b"late"), None);
}

fn an_end_that_comes_again_changes_nothing(fixture: &Fixture) {
    let id = added(fixture);
    assert_eq!(send(fixture, id, 0, b"a"), Some(1));
    assert!(end(fixture, id, 1));
    let before = (latest(fixture), fixture.store.audit(10).expect("readable"));
    assert!(end(fixture, id, 1), "its agent did not hear of the first");
    assert!(!end(fixture, id, 2), "that is another one");
    let failed = CaptureEnd {
        chunks: 1,
        failure: Some("no".to_owned()),
        ..CaptureEnd::default()
    };
    let store = &fixture.store;
    let ended = store.end_capture(fixture.agent, id, failed);
    assert!(!ended.expect("writable"));
    let whole = CaptureEnd {
        chunks: 1,
        ..CaptureEnd::default()
    };
    let other = AgentId(fixture.agent.0 + 100);
    let ended = store.end_capture(other, id, whole);
    assert!(!ended.expect("writable"), "it is of another agent");
    let after = (latest(fixture), store.audit(10).expect("readable"));
    assert_eq!(after, before);
    assert_eq!(data(fixture, id).as_deref(), Some(&b"a"[..]));
    let id = added(fixture);
    assert_eq!(send(fixture, id, 0, b"a"), Some(1));
    assert!(end(fixture, id, 2), "it fails");
    assert!(!end(fixture, id, 1), "it has failed");
}

fn a_capture_that_is_too_large_or_not_whole_fails(fixture: &Fixture) {
    let id = added(fixture);
    send(fixture, id, 0, b"a");
    assert!(end(fixture, id, 2));
    let capture = latest(fixture);
    assert_eq!(capture.state, CaptureState::Failed);
    assert_eq!(capture.reason, "1 of 2 parts have arrived");
    assert_eq!(data(fixture, id), None);
    let id = added(fixture);
    let half = vec![0; usize::try_from(MAX_CAPTURE / 2).expect("small")];
    assert_eq!(send(fixture, id, 0, &half), Some(1));
    assert_eq!(send(fixture, id, 1, &half), Some(2));
    assert_eq!(send(fixture, id, 2, b"x"), None);
    let capture = latest(fixture);
    assert_eq!(capture.state, CaptureState::Failed);
    assert!(capture.reason.contains("it exceeds"), "{}", capture.reason);
    assert_eq!(data(fixture, id), None);
}

fn an_agent_sends_its_own_capture_and_has_one_at_a_time(fixture: &Fixture) {
    let id = added(fixture);
    assert_eq!(request(fixture), CaptureAsked::Busy(Some(id)));
    let other = AgentId(fixture.agent.0 + 100);
    let new = NewCapture {
        agent: other,
        seconds: 1,
        actor: "ann".to_owned(),
    };
    let asked = fixture.store.request_capture(new).expect("readable");
    assert_eq!(asked, CaptureAsked::UnknownAgent);
    let next = fixture.store.add_chunk(other, id, 0, vec![1]);
    assert_eq!(next.expect("readable"), None);
    let end = CaptureEnd::default();
    let ended = fixture.store.end_capture(other, id, end);
    assert!(!ended.expect("readable"));
}

fn the_oldest_captures_go(fixture: &Fixture) {
    let first = added(fixture);
    send(fixture, first, 0, b"a");
    assert!(end(fixture, first, 1));
    assert!(data(fixture, first).is_some());
    for _ in 0..KEPT {
        let id = added(fixture);
        let failure = Some("no".to_owned());
        let end = CaptureEnd {
            failure,
            ..CaptureEnd::default()
        };
        let ended = fixture.store.end_capture(fixture.agent, id, end);
        assert!(ended.expect("writable"));
    }
    assert_eq!(data(fixture, first), None);
    let captures = fixture.store.captures().expect("readable");
    assert_eq!(captures.len(), usize::try_from(KEPT).expect("small"));
}

fn a_capture_that_is_open_stays_and_more_than_are_kept_are_refused(fixture: &Fixture) {
    let store = &*fixture.store;
    let whole = added(fixture);
    send(fixture, whole, 0, b"a");
    assert!(end(fixture, whole, 1));
    let token = token(store, Scope::Agents("many".to_owned()), 50, None);
    let ask = |agent| {
        let actor = "ann".to_owned();
        let new = NewCapture {
            agent,
            seconds: 7,
            actor,
        };
        store.request_capture(new).expect("writable")
    };
    let agents = (100u8..).take(usize::try_from(KEPT).expect("small"));
    let agents: Vec<_> = agents
        .map(|hash| enrol(store, token, hash, "box"))
        .collect();
    let ids: Vec<_> = agents.iter().map(|agent| ask(*agent)).collect();
    assert_eq!(request(fixture), CaptureAsked::Busy(None));
    for (agent, id) in agents.iter().zip(ids) {
        let open = store.capture_of(*agent).expect("readable");
        assert_eq!(open.map(|open| CaptureAsked::Added(open.id)), Some(id));
    }
    assert!(data(fixture, whole).is_some(), "others are still to come");
    let open = store.capture_of(agents[0]).expect("readable");
    let ended = store.end_capture(agents[0], open.expect("one").id, CaptureEnd::default());
    assert!(ended.expect("writable"));
    added(fixture);
}

/// Begins a capture around an alert of this time.
fn begin(fixture: &Fixture, agent: AgentId, time_ns: i64) -> AlertCaptureBegun {
    let alert = CapturedAlert {
        rule: "<b>R".to_owned(),
        time_ns,
        before_ms: 4_000,
        after_ms: 1_500,
    };
    let begun = fixture
        .store
        .begin_alert_capture(NewAlertCapture { agent, alert });
    begun.expect("writable")
}

fn begun(fixture: &Fixture, agent: AgentId, time_ns: i64) -> CaptureId {
    match begin(fixture, agent, time_ns) {
        AlertCaptureBegun::Expected(id, 0) => id,
        other => panic!("{other:?}"),
    }
}

fn a_capture_around_an_alert_is_begun_once_and_arrives_beside_one_that_was_asked_for(
    fixture: &Fixture,
) {
    let asked = added(fixture);
    let agent = fixture.agent;
    let id = begun(fixture, agent, 77);
    assert_eq!(send(fixture, id, 0, b"a"), Some(1));
    // Its answer was lost.
    assert_eq!(
        begin(fixture, agent, 77),
        AlertCaptureBegun::Expected(id, 1)
    );
    let open = fixture.store.capture_of(agent).expect("readable");
    assert_eq!(open.map(|open| open.id), Some(asked));
    let stranger = AgentId(agent.0 + 100);
    let next = fixture.store.add_chunk(stranger, id, 1, vec![1]);
    assert_eq!(next.expect("readable"), None);
    assert!(end(fixture, id, 1));
    assert_eq!(begin(fixture, agent, 77), AlertCaptureBegun::Known(id));
    let capture = latest(fixture);
    assert_eq!((capture.id, capture.seconds), (id, 6));
    let alert = capture.alert.expect("it is around one");
    assert_eq!((&*alert.rule, alert.time_ns), ("<b>R", 77));
    assert_eq!((alert.before_ms, alert.after_ms), (4_000, 1_500));
    assert_eq!(data(fixture, id).as_deref(), Some(&b"a"[..]));
    assert!(end(fixture, asked, 0), "it was still to arrive");
    assert_eq!(begin(fixture, stranger, 1), AlertCaptureBegun::UnknownAgent);
    // A new process of the agent does not go on with the one before.
    let first = begun(fixture, agent, 78);
    assert_eq!(send(fixture, first, 0, b"a"), Some(1));
    let second = begun(fixture, agent, 79);
    assert_eq!(send(fixture, first, 1, b"b"), None);
    assert_eq!(send(fixture, second, 0, b"b"), Some(1));
    let captures = fixture.store.captures().expect("readable");
    let first = captures.iter().find(|capture| capture.id == first);
    let first = first.expect("it is kept");
    assert_eq!(first.state, CaptureState::Failed);
    assert!(first.reason.contains("begun another"), "{}", first.reason);
    let used = fixture.store.open_capture(id, "bob", CaptureUse::Browse);
    assert!(used.expect("writable").is_some());
    let audit = fixture.store.audit(1).expect("readable");
    assert_eq!(
        (&*audit[0].action, &*audit[0].actor),
        ("browse capture", "bob")
    );
}

fn an_agent_begins_few_captures_around_alerts_and_takes_none_of_others_away(fixture: &Fixture) {
    let store = &*fixture.store;
    let token = token(store, Scope::Agents("many".to_owned()), 50, None);
    let other = enrol(store, token, 90, "box");
    let theirs = begun(fixture, other, 1);
    let mut last = None;
    for time_ns in 1..=KEPT_OF_AGENT {
        last = Some(begun(fixture, fixture.agent, time_ns));
    }
    let more = begin(fixture, fixture.agent, KEPT_OF_AGENT + 1);
    assert_eq!(more, AlertCaptureBegun::Busy);
    // The last one is still taken.
    assert_eq!(send(fixture, last.expect("some"), 0, b"a"), Some(1));
    let captures = store.captures().expect("readable");
    assert!(captures.iter().any(|capture| capture.id == theirs));
    // What someone asks for has a place of its own.
    added(fixture);
    begun(fixture, other, 2);
}

/// Begins a capture around an alert of this time, which arrives.
fn arrived(fixture: &Fixture, agent: AgentId, time_ns: i64) -> CaptureId {
    let (store, id) = (&fixture.store, begun(fixture, agent, time_ns));
    let next = store.add_chunk(agent, id, 0, vec![1]);
    assert_eq!(next.expect("writable"), Some(1));
    let end = CaptureEnd {
        chunks: 1,
        ..CaptureEnd::default()
    };
    assert!(store.end_capture(agent, id, end).expect("writable"));
    id
}

fn an_agent_that_begins_many_captures_in_a_full_store_loses_its_own(fixture: &Fixture) {
    let store = &*fixture.store;
    let token = token(store, Scope::Agents("many".to_owned()), 50, None);
    let agents: Vec<_> = (100u8..155)
        .map(|hash| enrol(store, token, hash, "box"))
        .collect();
    // Ten agents have one, the oldest ones, and 45 have two.
    let (with_one, with_two) = agents.split_at(10);
    let mut kept: Vec<_> = with_one
        .iter()
        .map(|agent| arrived(fixture, *agent, 1))
        .collect();
    for time_ns in 1..=2 {
        let of_all = with_two
            .iter()
            .map(|agent| arrived(fixture, *agent, time_ns));
        kept.extend(of_all);
    }
    assert_eq!(i64::try_from(kept.len()).expect("small"), KEPT_OF_ALERTS);
    let of_hostile: Vec<_> = (1..=KEPT_OF_AGENT)
        .map(|time_ns| arrived(fixture, fixture.agent, time_ns))
        .collect();

    // The first one takes the place of the oldest of those who had more, each other one that of the one before.
    let lost = kept.remove(with_one.len());
    kept.extend(of_hostile.last());
    let captures = store.captures().expect("readable");
    let mut found: Vec<_> = captures.iter().map(|capture| capture.id.0).collect();
    found.sort_unstable();
    assert_eq!(found, kept.iter().map(|id| id.0).collect::<Vec<_>>());
    assert_eq!(data(fixture, lost), None);
    for id in kept {
        assert_eq!(data(fixture, id).as_deref(), Some(&[1][..]), "{id:?}");
    }
}

fn no_alert_makes_room_for_captures(fixture: &Fixture) {
    super::send(fixture, Some(1), vec![alert(9, "a", "m")]);
    let id = begun(fixture, fixture.agent, 77);
    let part = vec![7; 1 << 20];
    for number in 0..8 {
        assert_eq!(send(fixture, id, number, &part), Some(number + 1));
    }
    assert!(end(fixture, id, 8));
    let retention = Retention {
        before_ns: None,
        max_bytes: Some(4 << 20),
    };
    let pruned = fixture.store.prune(retention).expect("writable");
    assert_eq!(pruned.alerts, 0);
    assert_eq!(data(fixture, id).map(|data| data.len()), Some(8 << 20));
}

fn parts_are_read_while_the_thread_that_writes_is_busy_and_end_with_their_capture(
    fixture: &Fixture,
) {
    let id = added(fixture);
    let parts = [vec![1; 1 << 20], vec![2; 1 << 20]];
    for (number, part) in (0..).zip(&parts) {
        assert_eq!(send(fixture, id, number, part), Some(number + 1));
    }
    assert!(end(fixture, id, 2));
    let opened = fixture.store.open_capture(id, "ann", CaptureUse::Download);
    let expected = CaptureParts {
        parts: 2,
        bytes: 2 << 20,
    };
    assert_eq!(opened.expect("writable"), Some(expected));

    // The thread that writes calls this, and goes on with it only when the reader is done.
    let (begin, began) = channel();
    let (go_on, gone_on) = channel::<()>();
    let batch = Batch {
        sender: fixture.agent,
        first: Some(1),
        records: vec![Record::Alert(alert(1, "r", "m"), None)],
        received_ns: 7,
    };
    let done = move |result: Result<Receipt, StoreError>| {
        begin.send(result.is_ok()).expect("it waits");
        gone_on.recv().expect("it reads");
    };
    fixture.store.append(batch, Box::new(done)).expect("free");
    assert!(began.recv().expect("it is written"));
    let (sender, receiver) = channel();
    let store = Arc::clone(&fixture.store);
    let reader = std::thread::spawn(move || {
        for number in 0..2 {
            sender
                .send(store.capture_part(id, number))
                .expect("it waits");
        }
    });
    for part in parts {
        let read = receiver.recv_timeout(std::time::Duration::from_secs(20));
        let read = read.expect("a reader waits for no writer");
        assert_eq!(read.expect("readable"), Some(part));
    }
    go_on.send(()).expect("it writes");
    reader.join().expect("no panic");

    for _ in 0..KEPT {
        let id = added(fixture);
        assert!(end(fixture, id, 0));
    }
    let part = fixture.store.capture_part(id, 1).expect("readable");
    assert_eq!(part, None, "its capture was deleted");
}
