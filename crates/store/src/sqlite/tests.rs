mod files;
mod people;

use std::sync::mpsc::channel;

use proptest::prelude::*;

use super::*;
use crate::model::{Cursor, Loss, LossKind, NewAlert, Receipt, Record, Scope};
use crate::severity::Severity;

const HOUR: i64 = append::HOUR_NS;

struct Fixture {
    store: SqliteStore,
    folder: tempfile::TempDir,
    agent: AgentId,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let store = SqliteStore::open(&folder.path().join("s.db")).expect("a new store");
    let token = token(&store, Scope::Agents("web".to_owned()), 1, None);
    let agent = enrol(&store, token, 2, "box");
    Fixture {
        store,
        folder,
        agent,
    }
}

fn token(store: &SqliteStore, scope: Scope, hash: u8, expires_ns: Option<i64>) -> TokenId {
    let token = NewToken {
        scope,
        hash: [hash; 32],
        expires_ns,
        actor: "root".to_owned(),
    };
    store.create_token(token).expect("it is added")
}

fn enrol(store: &SqliteStore, token: TokenId, hash: u8, host: &str) -> AgentId {
    let agent = NewAgent {
        token,
        hash: [hash; 32],
        host: host.to_owned(),
    };
    store.enrol(agent).expect("it is added")
}

fn alert(time_ns: i64, rule: &str, message: &str) -> NewAlert {
    NewAlert {
        time_ns,
        severity: Severity::named("Warning").expect("a name"),
        rule: rule.to_owned(),
        host: "claimed".to_owned(),
        program: "cat".to_owned(),
        object: "/etc/*".to_owned(),
        message: message.to_owned(),
        body: format!("{{\"n\":{time_ns}}}"),
    }
}

fn append(store: &SqliteStore, batch: Batch) -> Result<Receipt, StoreError> {
    let (sender, receiver) = channel();
    store.append(
        batch,
        Box::new(move |result| sender.send(result).expect("it waits")),
    )?;
    receiver.recv().expect("it is answered")
}

fn send(fixture: &Fixture, first: Option<u64>, alerts: Vec<NewAlert>) -> Receipt {
    let batch = Batch {
        sender: fixture.agent,
        first,
        records: alerts
            .into_iter()
            .map(|alert| Record::Alert(alert, None))
            .collect(),
        received_ns: 7,
    };
    append(&fixture.store, batch).expect("it is stored")
}

fn bodies(store: &SqliteStore, filter: &Filter) -> Vec<String> {
    let alerts = store.alerts(filter).expect("it can be read");
    alerts.into_iter().map(|alert| alert.body).collect()
}

#[test]
fn a_batch_that_comes_again_is_stored_once_and_a_hole_is_counted() {
    let fixture = fixture();
    let alerts = |times: std::ops::Range<i64>| times.map(|time| alert(time, "r", "m")).collect();
    let receipt = send(&fixture, Some(1), alerts(1..4));
    assert_eq!((receipt.acknowledged, receipt.stored), (3, 3));
    // Its acknowledgement got lost, and more came in the meantime.
    let receipt = send(&fixture, Some(1), alerts(1..6));
    let expected = Receipt {
        acknowledged: 5,
        stored: 2,
        duplicates: 3,
        missing: 0,
    };
    assert_eq!(receipt, expected);
    let receipt = send(&fixture, Some(9), alerts(9..10));
    assert_eq!((receipt.acknowledged, receipt.missing), (9, 3));
    let all = bodies(&fixture.store, &Filter::default());
    let numbers = [9, 5, 4, 3, 2, 1].map(|n| format!("{{\"n\":{n}}}"));
    assert_eq!(all, numbers);
    let agents = fixture.store.agents().expect("it can be read");
    assert_eq!((agents[0].acknowledged, agents[0].missing), (9, 3));
}

#[test]
fn an_agent_writes_as_itself_and_a_direct_sender_names_its_hosts() {
    let fixture = fixture();
    send(&fixture, Some(1), vec![alert(1, "r", "m")]);
    let rows = fixture.store.alerts(&Filter::default()).expect("readable");
    assert_eq!(rows[0].host, "box");
    let token = TokenId(1);
    let direct = fixture.store.direct_sender(token).expect("it is added");
    assert_eq!(fixture.store.direct_sender(token).expect("known"), direct);
    let batch = Batch {
        sender: direct,
        first: None,
        records: vec![Record::Alert(alert(2, "r", "m"), None); 2],
        received_ns: 7,
    };
    let receipt = append(&fixture.store, batch).expect("it is stored");
    assert_eq!((receipt.stored, receipt.duplicates), (2, 0));
    let of_host = Filter {
        host: Some("claimed".to_owned()),
        ..Filter::default()
    };
    assert_eq!(bodies(&fixture.store, &of_host).len(), 2);
}

#[test]
fn a_batch_of_an_unknown_sender_leaves_nothing_and_others_of_its_transaction_stay() {
    let fixture = fixture();
    let batch = |sender| Batch {
        sender,
        first: Some(1),
        records: vec![Record::Alert(alert(1, "r", "m"), None)],
        received_ns: 7,
    };
    let (sender, receiver) = channel();
    for agent in [AgentId(99), fixture.agent] {
        let sender = sender.clone();
        let done = move |result: Result<Receipt, StoreError>| {
            sender.send((agent, result.is_ok())).expect("it waits");
        };
        let submitted = fixture.store.append(batch(agent), Box::new(done));
        submitted.expect("it is not busy");
    }
    let mut answers: Vec<_> = receiver.iter().take(2).collect();
    answers.sort();
    assert_eq!(answers, [(fixture.agent, true), (AgentId(99), false)]);
    assert_eq!(bodies(&fixture.store, &Filter::default()).len(), 1);
}

#[test]
fn a_credential_ends_when_its_token_expires_or_is_revoked() {
    let fixture = fixture();
    let store = &fixture.store;
    let is_known = |hash: u8| store.credential(&[hash; 32]).expect("readable").is_some();
    assert!(is_known(1) && is_known(2) && !is_known(9));
    let agent = store.credential(&[2; 32]).expect("readable");
    let expected = Credential::Agent {
        id: fixture.agent,
        host: "box".to_owned(),
    };
    assert_eq!(agent, Some(expected));
    token(store, Scope::Viewer, 3, Some(now_ns() - 1));
    token(store, Scope::Viewer, 4, Some(now_ns() + HOUR));
    assert!(!is_known(3) && is_known(4));
    assert!(store.revoke_token(TokenId(1), "root").expect("writable"));
    assert!(!is_known(1) && !is_known(2), "its agents end with it");
    assert!(!store.revoke_token(TokenId(1), "root").expect("writable"));
    assert!(store.agents().expect("readable")[0].is_ended);
    let actions: Vec<_> = store
        .audit(9)
        .expect("readable")
        .into_iter()
        .map(|e| e.action)
        .collect();
    let expected = [
        "revoke token",
        "create token",
        "create token",
        "enrol agent",
        "create token",
    ];
    assert_eq!(actions, expected);
}

#[test]
fn groups_count_what_the_filter_accepts() {
    let fixture = fixture();
    let store = &fixture.store;
    let mut alerts: Vec<_> = (0..5).map(|n| alert(n * HOUR, "a", "m")).collect();
    alerts.push(NewAlert {
        severity: Severity::named("Critical").expect("a name"),
        ..alert(2 * HOUR, "b", "m")
    });
    send(&fixture, Some(1), alerts);
    let groups = |filter: &Filter| -> Vec<(String, u64)> {
        let groups = store.groups(filter).expect("readable");
        groups
            .into_iter()
            .map(|group| (group.rule, group.count))
            .collect()
    };
    let named = |name: &str, count| (name.to_owned(), count);
    let all = Filter::default();
    assert_eq!(groups(&all), [named("a", 5), named("b", 1)]);
    let middle = Filter {
        from_ns: Some(HOUR),
        to_ns: Some(3 * HOUR),
        ..Filter::default()
    };
    assert_eq!(groups(&middle), [named("b", 1), named("a", 2)]);
    let severe = Filter {
        severity: Severity::named("Error"),
        ..Filter::default()
    };
    assert_eq!(groups(&severe), [named("b", 1)]);
    let elsewhere = Filter {
        host: Some("claimed".to_owned()),
        ..Filter::default()
    };
    assert!(groups(&elsewhere).is_empty());
    let first = store
        .groups(&Filter {
            limit: 1,
            ..all.clone()
        })
        .expect("readable");
    let second = Filter {
        after: Some(Cursor {
            time_ns: first[0].last_ns,
            id: first[0].id.0,
        }),
        ..all.clone()
    };
    assert_eq!(groups(&second), [named("b", 1)]);
}

#[test]
fn an_acknowledged_group_is_hidden_until_it_is_taken_back() {
    let fixture = fixture();
    let store = &fixture.store;
    send(
        &fixture,
        Some(1),
        vec![alert(2, "a", "m"), alert(1, "b", "m")],
    );
    let all = Filter::default();
    let groups = |filter: &Filter| store.groups(filter).expect("readable");
    let first = groups(&all)[0].id;
    let how = |is_set| Acknowledgement {
        actor: "ann".to_owned(),
        note: "known".to_owned(),
        is_set,
    };
    assert!(store.acknowledge(first, how(true)).expect("writable"));
    assert!(!store.acknowledge(GroupId(99), how(true)).expect("writable"));
    assert_eq!(groups(&all).len(), 1);
    let shown = Filter {
        with_acknowledged: true,
        ..Filter::default()
    };
    assert_eq!(
        store.groups(&shown).expect("readable")[0]
            .acknowledged_by
            .as_deref(),
        Some("ann")
    );
    assert!(store.acknowledge(first, how(false)).expect("writable"));
    assert_eq!(groups(&all).len(), 2);
}

#[test]
fn a_search_finds_words_that_all_occur_and_takes_no_query_language() {
    let fixture = fixture();
    let texts = [
        "opened /etc/shadow by cat",
        "opened /etc/passwd by cat",
        "NEAR OR *",
    ];
    let alerts = texts
        .iter()
        .zip(1..)
        .map(|(text, n)| alert(n, "r", text))
        .collect();
    send(&fixture, Some(1), alerts);
    let found = |text: &str| {
        let filter = Filter {
            text: Some(text.to_owned()),
            ..Filter::default()
        };
        let groups = fixture.store.groups(&filter).expect("readable").len();
        let alerts = bodies(&fixture.store, &filter).len();
        assert_eq!(groups, alerts.min(1));
        alerts
    };
    assert_eq!(found("/etc/shadow"), 1);
    assert_eq!(found("CAT etc"), 2);
    assert_eq!(found("shad"), 1);
    assert_eq!(found("shadow passwd"), 0);
    assert_eq!(found("near"), 1);
    for hostile in [
        "",
        "\"",
        "a\" OR \"b",
        "NEAR(",
        "message:",
        "^*",
        "-",
        "\u{0}",
    ] {
        found(hostile);
    }
}

#[test]
fn a_hostile_sender_cannot_make_groups_without_end() {
    let fixture = fixture();
    let many: Vec<_> = (0..2500)
        .map(|n| NewAlert {
            object: format!("/{n}"),
            ..alert(n, "r", "m")
        })
        .collect();
    send(&fixture, Some(1), many);
    let groups = fixture.store.statistics().expect("readable").groups;
    assert_eq!(groups, 2001);
    let other = Filter {
        program: Some(append::OTHER.to_owned()),
        ..Filter::default()
    };
    assert_eq!(
        fixture.store.groups(&other).expect("readable")[0].count,
        500
    );
}

#[test]
fn an_overview_has_hours_severities_and_losses() {
    let fixture = fixture();
    let alerts = [0, 1, HOUR].map(|time| alert(time, "r", "m"));
    send(&fixture, Some(1), alerts.into());
    let loss = Loss {
        time_ns: HOUR + 1,
        kind: LossKind::DroppedEvents,
        count: 12,
        detail: "12 dropped".to_owned(),
    };
    let batch = Batch {
        sender: fixture.agent,
        first: Some(4),
        records: vec![Record::Loss(loss.clone())],
        received_ns: 7,
    };
    append(&fixture.store, batch).expect("it is stored");
    let overview = fixture.store.overview(0, 2 * HOUR).expect("readable");
    let hours: Vec<_> = overview
        .alerts
        .iter()
        .map(|hour| (hour.hour, hour.count))
        .collect();
    assert_eq!(hours, [(0, 2), (1, 1)]);
    assert_eq!(overview.losses_by_hour, [(1, LossKind::DroppedEvents, 12)]);
    assert_eq!(
        (&overview.losses[0].loss, &*overview.losses[0].host),
        (&loss, "box")
    );
    assert_eq!(overview.rules, [("r".to_owned(), 3)]);
    assert_eq!(overview.hosts, [("box".to_owned(), 3)]);
    let earlier = fixture.store.overview(0, HOUR).expect("readable");
    assert_eq!((earlier.alerts.len(), earlier.losses.len()), (1, 0));
}

#[test]
fn pruning_deletes_whole_hours_and_groups_that_are_empty() {
    let fixture = fixture();
    let store = &fixture.store;
    send(
        &fixture,
        Some(1),
        vec![alert(1, "old", "word"), alert(2 * HOUR, "new", "word")],
    );
    let retention = Retention {
        before_ns: Some(HOUR + 5),
        max_bytes: None,
    };
    assert_eq!(store.prune(retention).expect("writable").alerts, 1);
    let statistics = store.statistics().expect("readable");
    assert_eq!((statistics.alerts, statistics.groups), (1, 1));
    // The number of the deleted group is not used from memory.
    send(&fixture, Some(3), vec![alert(3 * HOUR, "old", "word")]);
    let rows = store.alerts(&Filter::default()).expect("readable");
    assert_eq!(
        rows.iter().map(|row| &*row.rule).collect::<Vec<_>>(),
        ["old", "new"]
    );
    let search = Filter {
        text: Some("word".to_owned()),
        ..Filter::default()
    };
    assert_eq!(bodies(store, &search).len(), 2);
    let everything = Retention {
        before_ns: None,
        max_bytes: Some(0),
    };
    assert_eq!(store.prune(everything).expect("writable").alerts, 2);
    assert!(bodies(store, &search).is_empty());
    // Sequence numbers are not forgotten with the alerts.
    assert_eq!(
        send(&fixture, Some(3), vec![alert(1, "r", "m")]).duplicates,
        1
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However batches are cut, repeated and reopened between, each record is stored once.
    #[test]
    fn every_record_is_stored_once(cuts in prop::collection::vec((0_u64..6, 1_u64..6), 1..12)) {
        let Fixture { mut store, folder, agent } = fixture();
        let mut acknowledged = 0_u64;
        for (at, (back, length)) in cuts.into_iter().enumerate() {
            let first = (acknowledged + 1).saturating_sub(back).max(1);
            let records = (first..first + length).map(|n| {
                Record::Alert(alert(i64::try_from(n).unwrap(), "r", "m"), None)
            });
            let batch = Batch { sender: agent, first: Some(first), records: records.collect(), received_ns: 0 };
            let receipt = append(&store, batch).unwrap();
            prop_assert_eq!(receipt.missing, 0);
            acknowledged = acknowledged.max(first + length - 1);
            prop_assert_eq!(receipt.acknowledged, acknowledged);
            if at % 5 == 4 {
                drop(store);
                store = SqliteStore::open(&folder.path().join("s.db")).unwrap();
            }
        }
        let all = Filter { limit: 1000, ..Filter::default() };
        let expected: Vec<_> = (1..=acknowledged).rev().map(|n| format!("{{\"n\":{n}}}")).collect();
        prop_assert_eq!(bodies(&store, &all), expected);
        prop_assert_eq!(store.groups(&all).unwrap()[0].count, acknowledged);
    }
}
