//! What each database has to do alike. Each test runs against a SQLite file and against a PostgreSQL server of its
//! own.

mod bundles;
mod captures;
mod certificates;
mod digests;
mod encrypted;
mod order;
mod people;
mod place;
mod shared;
mod sums;
mod together;

use std::sync::Arc;
use std::sync::mpsc::channel;

use proptest::prelude::*;
use testing::postgres::Server;

use crate::error::StoreError;
pub(crate) use crate::intake::HOUR_NS as HOUR;
use crate::intake::{LOSSES, OTHER};
use crate::model::*;
use crate::number::now_ns;
use crate::severity::Severity;
use crate::{PostgresStore, SqliteStore, Store};

use self::place::Place;

/// A new store with an agent.
struct Fixture {
    store: Arc<dyn Store>,
    agent: AgentId,
    place: Place,
}

fn in_file() -> Fixture {
    Place::File(tempfile::tempdir().expect("a folder for temporary files")).fixture()
}

fn in_database() -> Fixture {
    let server = Server::shared();
    let url = server.database();
    Place::Database {
        url,
        _server: server,
    }
    .fixture()
}

/// Makes a test of each function, for each database.
macro_rules! for_each_database {
    ($($name:ident,)*) => {
        mod sqlite {
            $(#[test] fn $name() { super::$name(&crate::tests::in_file()); })*
        }
        mod postgres {
            $(#[test] fn $name() { super::$name(&crate::tests::in_database()); })*
        }
    };
}
use for_each_database;

for_each_database! {
    a_batch_that_comes_again_is_stored_once_and_a_hole_is_counted,
    an_agent_writes_as_itself_and_a_direct_sender_names_its_hosts,
    a_batch_of_an_unknown_sender_leaves_nothing_and_others_of_its_transaction_stay,
    a_credential_ends_when_its_token_expires_or_is_revoked,
    groups_count_what_the_filter_accepts,
    an_acknowledged_group_is_hidden_until_it_is_taken_back,
    a_search_finds_words_that_all_occur_and_takes_no_query_language,
}

fn token(store: &dyn Store, scope: Scope, hash: u8, expires_ns: Option<i64>) -> TokenId {
    let token = NewToken {
        scope,
        hash: [hash; 32],
        expires_ns,
        actor: "root".to_owned(),
    };
    store.create_token(token).expect("it is added")
}

fn enrol(store: &dyn Store, token: TokenId, hash: u8, host: &str) -> AgentId {
    let agent = NewAgent {
        token,
        hash: [hash; 32],
        host: host.to_owned(),
    };
    store.enrol(agent).expect("it is added")
}

pub(crate) fn alert(time_ns: i64, rule: &str, message: &str) -> NewAlert {
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

fn append(store: &dyn Store, batch: Batch) -> Result<Receipt, StoreError> {
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
    append(&*fixture.store, batch).expect("it is stored")
}

/// Stores one alert of a new agent.
pub(crate) fn store_one(store: &dyn Store) {
    let token = token(store, Scope::Agents("web".to_owned()), 1, None);
    let batch = Batch {
        sender: enrol(store, token, 2, "box"),
        first: Some(1),
        records: vec![Record::Alert(alert(1, "r", "m"), None)],
        received_ns: 7,
    };
    append(store, batch).expect("it is stored");
}

pub(crate) fn bodies(store: &dyn Store, filter: &Filter) -> Vec<String> {
    let alerts = store.alerts(filter).expect("it can be read");
    alerts.into_iter().map(|alert| alert.body).collect()
}

fn a_batch_that_comes_again_is_stored_once_and_a_hole_is_counted(fixture: &Fixture) {
    let alerts = |times: std::ops::Range<i64>| times.map(|time| alert(time, "r", "m")).collect();
    let receipt = send(fixture, Some(1), alerts(1..4));
    assert_eq!((receipt.acknowledged, receipt.stored), (3, 3));
    // Its acknowledgement got lost, and more came in the meantime.
    let receipt = send(fixture, Some(1), alerts(1..6));
    let expected = Receipt {
        acknowledged: 5,
        stored: 2,
        duplicates: 3,
        missing: 0,
    };
    assert_eq!(receipt, expected);
    let receipt = send(fixture, Some(9), alerts(9..10));
    assert_eq!((receipt.acknowledged, receipt.missing), (9, 3));
    let all = bodies(&*fixture.store, &Filter::default());
    let numbers = [9, 5, 4, 3, 2, 1].map(|n| format!("{{\"n\":{n}}}"));
    assert_eq!(all, numbers);
    let agents = fixture.store.agents().expect("it can be read");
    assert_eq!((agents[0].acknowledged, agents[0].missing), (9, 3));
    let one = |id| fixture.store.agent(AgentId(id)).expect("it can be read");
    let known = one(agents[0].id.0).expect("it has enrolled");
    assert_eq!(
        (known.host, known.acknowledged),
        (agents[0].host.clone(), 9)
    );
    assert!(one(i64::MAX).is_none());
}

fn an_agent_writes_as_itself_and_a_direct_sender_names_its_hosts(fixture: &Fixture) {
    send(fixture, Some(1), vec![alert(1, "r", "m")]);
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
    let receipt = append(&*fixture.store, batch).expect("it is stored");
    assert_eq!((receipt.stored, receipt.duplicates), (2, 0));
    let of_host = Filter {
        host: Some("claimed".to_owned()),
        ..Filter::default()
    };
    assert_eq!(bodies(&*fixture.store, &of_host).len(), 2);
}

fn a_batch_of_an_unknown_sender_leaves_nothing_and_others_of_its_transaction_stay(
    fixture: &Fixture,
) {
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
    assert_eq!(bodies(&*fixture.store, &Filter::default()).len(), 1);
}

fn a_credential_ends_when_its_token_expires_or_is_revoked(fixture: &Fixture) {
    let store = &*fixture.store;
    let is_known = |hash: u8| store.credential(&[hash; 32]).expect("readable").is_some();
    assert!(is_known(1) && is_known(2) && !is_known(9));
    let agent = store.credential(&[2; 32]).expect("readable");
    let expected = Credential::Agent {
        id: fixture.agent,
        host: "box".to_owned(),
        certificate: None,
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

fn groups_count_what_the_filter_accepts(fixture: &Fixture) {
    let store = &*fixture.store;
    let mut alerts: Vec<_> = (0..5).map(|n| alert(n * HOUR, "a", "m")).collect();
    alerts.push(NewAlert {
        severity: Severity::named("Critical").expect("a name"),
        ..alert(2 * HOUR, "b", "m")
    });
    send(fixture, Some(1), alerts);
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

fn an_acknowledged_group_is_hidden_until_it_is_taken_back(fixture: &Fixture) {
    let store = &*fixture.store;
    send(
        fixture,
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

fn a_search_finds_words_that_all_occur_and_takes_no_query_language(fixture: &Fixture) {
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
    send(fixture, Some(1), alerts);
    let found = |text: &str| {
        let filter = Filter {
            text: Some(text.to_owned()),
            ..Filter::default()
        };
        let groups = fixture.store.groups(&filter).expect("readable").len();
        let alerts = bodies(&*fixture.store, &filter).len();
        assert_eq!(groups, alerts.min(1));
        alerts
    };
    assert_eq!(found("/etc/shadow"), 1);
    assert_eq!(found("CAT etc"), 2);
    assert_eq!(found("shad"), 0);
    assert_eq!(found("shad*"), 1);
    assert_eq!(found("et* *at* /pas*cat"), 0);
    assert_eq!(found("et* sha*cat"), 1);
    assert_eq!(found("shadow passwd"), 0);
    assert_eq!(found("near"), 1);
    for hostile in [
        "",
        "\"",
        "a\" OR \"b",
        "NEAR(",
        "message:",
        "^*",
        "*",
        "**a**",
        "-",
        "\u{0}",
    ] {
        found(hostile);
    }
}

/// However batches are cut, repeated and reopened between, each record is stored once.
fn every_record_is_stored_once(
    fixture: Fixture,
    cuts: Vec<(u64, u64)>,
) -> Result<(), TestCaseError> {
    let Fixture {
        mut store,
        agent,
        place,
    } = fixture;
    let mut acknowledged = 0_u64;
    for (at, (back, length)) in cuts.into_iter().enumerate() {
        let first = (acknowledged + 1).saturating_sub(back).max(1);
        let records = (first..first + length)
            .map(|n| Record::Alert(alert(i64::try_from(n).unwrap(), "r", "m"), None));
        let batch = Batch {
            sender: agent,
            first: Some(first),
            records: records.collect(),
            received_ns: 0,
        };
        let receipt = append(&*store, batch).unwrap();
        prop_assert_eq!(receipt.missing, 0);
        acknowledged = acknowledged.max(first + length - 1);
        prop_assert_eq!(receipt.acknowledged, acknowledged);
        if at % 5 == 4 {
            drop(store);
            store = place.open();
        }
    }
    let all = Filter {
        limit: 1000,
        ..Filter::default()
    };
    let expected: Vec<_> = (1..=acknowledged)
        .rev()
        .map(|n| format!("{{\"n\":{n}}}"))
        .collect();
    prop_assert_eq!(bodies(&*store, &all), expected);
    prop_assert_eq!(store.groups(&all).unwrap()[0].count, acknowledged);
    Ok(())
}

fn cuts() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0_u64..6, 1_u64..6), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_record_is_stored_once_in_a_file(cuts in cuts()) {
        every_record_is_stored_once(in_file(), cuts)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn every_record_is_stored_once_in_a_database(cuts in cuts()) {
        every_record_is_stored_once(in_database(), cuts)?;
    }
}
