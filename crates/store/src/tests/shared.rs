//! A PostgreSQL database that several collectors share, and that goes away.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

use super::*;

fn send_from(
    store: &dyn Store,
    agent: AgentId,
    numbers: std::ops::RangeInclusive<u64>,
) -> Result<Receipt, StoreError> {
    let records = numbers.clone().map(|n| {
        let group = format!("r{}", n % 7);
        Record::Alert(alert(i64::try_from(n).expect("small"), &group, "m"), None)
    });
    let batch = Batch {
        sender: agent,
        first: Some(*numbers.start()),
        records: records.collect(),
        received_ns: 7,
    };
    append(store, batch)
}

/// Follows a tail from its beginning until it has this many alerts, and returns their numbers.
fn follow(store: &dyn Store, count: usize) -> Vec<i64> {
    let (mut seen, mut last) = (Vec::new(), AlertId(0));
    while seen.len() < count {
        let rows = store.stored_after(last, Severity::DEBUG, 1000);
        let rows = rows.expect("readable");
        seen.extend(rows.rows.iter().map(|row| row.id.0));
        last = rows.rows.last().map_or(last, |row| row.id);
    }
    seen
}

#[test]
fn several_collectors_write_at_once_and_a_tail_misses_nothing() {
    const AGENTS: u64 = 4;
    const BATCHES: u64 = 25;
    let fixture = in_database();
    let agents: Vec<_> = (0..AGENTS)
        .map(|n| {
            enrol(
                &*fixture.store,
                TokenId(1),
                10 + u8::try_from(n).expect("small"),
                "h",
            )
        })
        .collect();
    let total = usize::try_from(AGENTS * BATCHES * 10).expect("small");
    let (seen, receipts) = std::thread::scope(|scope| {
        let tail = scope.spawn(|| follow(&*fixture.store, total));
        let writers: Vec<_> = agents
            .iter()
            .map(|agent| {
                // A collector of its own for each.
                let store = fixture.place.open();
                scope.spawn(move || {
                    let send = |n| send_from(&*store, *agent, n * 10 + 1..=n * 10 + 10);
                    (0..BATCHES).map(send).collect::<Result<Vec<_>, _>>()
                })
            })
            .collect();
        let receipts: Vec<_> = writers
            .into_iter()
            .map(|writer| writer.join().expect("no panic").expect("stored"))
            .collect();
        (tail.join().expect("no panic"), receipts)
    });
    assert!(
        receipts
            .iter()
            .flatten()
            .all(|receipt| receipt.stored == 10)
    );
    let different: BTreeSet<_> = seen.iter().collect();
    assert_eq!((seen.len(), different.len()), (total, total));
    assert!(seen.is_sorted(), "in the order of their numbers");
    let groups = fixture.store.groups(&Filter::default()).expect("readable");
    assert_eq!(groups.len(), 7, "each group was made once");
    let counted: u64 = groups.iter().map(|group| group.count).sum();
    assert_eq!(counted, total as u64);
}

#[test]
fn a_collector_notices_what_another_has_deleted() {
    let fixture = in_database();
    let other = fixture.place.open();
    send_from(&*fixture.store, fixture.agent, 1..=7).expect("stored");
    let everything = Retention {
        before_ns: None,
        max_bytes: Some(0),
    };
    assert_eq!(other.prune(everything).expect("writable").alerts, 7);
    // Neither its numbers of groups nor the partition are used from memory.
    send_from(&*fixture.store, fixture.agent, 8..=14).expect("stored");
    assert_eq!(bodies(&*other, &Filter::default()).len(), 7);
    assert_eq!(other.groups(&Filter::default()).expect("readable").len(), 7);
}

#[test]
fn days_that_a_sender_chooses_make_no_partitions_without_end() {
    let fixture = in_database();
    let day = 24 * HOUR;
    let now = 20_000 * day;
    let at = |days: i64| Record::Alert(alert(now - days * day, "r", "m"), None);
    let batch = Batch {
        sender: fixture.agent,
        first: Some(1),
        records: (0..1000).map(at).collect(),
        received_ns: now,
    };
    append(&*fixture.store, batch).expect("stored");
    let Place::Database { url, .. } = &fixture.place else {
        unreachable!("it is a database")
    };
    let mut client = ::postgres::Client::connect(url, ::postgres::NoTls).expect("it runs");
    let row = client.query_one(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'tollgate.alerts'::regclass",
        &[],
    );
    let partitions: i64 = row.expect("a count").get(0);
    assert_eq!(partitions, 31);
    // All are found, and the retention takes whole days and then hours.
    let before = |days: i64| Retention {
        before_ns: Some(now - days * day + HOUR),
        max_bytes: None,
    };
    assert_eq!(
        fixture.store.prune(before(500)).expect("writable").alerts,
        500
    );
    assert_eq!(
        fixture.store.prune(before(2)).expect("writable").alerts,
        498
    );
    assert_eq!(bodies(&*fixture.store, &Filter::default()).len(), 2);
}

#[test]
fn names_with_a_null_character_are_stored_and_found() {
    let fixture = in_database();
    let hostile = NewAlert {
        program: "a\0b".to_owned(),
        object: "\0".to_owned(),
        body: "{\"output\":\"x\\u0000y\"}".to_owned(),
        ..alert(1, "r\0", "m")
    };
    send(&fixture, Some(1), vec![hostile.clone(), hostile]);
    let found = Filter {
        program: Some("a\0b".to_owned()),
        rule: Some("r\0".to_owned()),
        ..Filter::default()
    };
    let groups = fixture.store.groups(&found).expect("readable");
    assert_eq!((groups.len(), groups[0].count), (1, 2));
    assert_eq!(groups[0].program, "a\u{fffd}b");
    let tail = fixture.store.stored_after(AlertId(0), Severity::DEBUG, 9);
    assert_eq!(
        tail.expect("readable").rows[0].body,
        "{\"output\":\"x\u{fffd}y\"}"
    );
}

/// Kills the server at random while an agent sends, and counts: what was acknowledged is there, and nothing is there
/// twice.
fn crashes(rounds: u64) {
    let server = Arc::new(Server::start());
    let url = server.database();
    let fixture = Place::Database {
        url,
        _server: Arc::clone(&server),
    }
    .fixture();
    let (mut acknowledged, mut refused) = (0_u64, 0_u64);
    // What was not acknowledged comes again, with more.
    let mut send = |acknowledged: &mut u64| {
        let next = *acknowledged + 1..=*acknowledged + 20;
        match send_from(&*fixture.store, fixture.agent, next) {
            Ok(receipt) => {
                assert_eq!(receipt.missing, 0);
                *acknowledged = receipt.acknowledged;
            }
            Err(_) => {
                refused += 1;
                sleep(Duration::from_millis(5));
            }
        }
    };
    for round in 0..rounds {
        // On a busy machine, too, each round has a batch before the crash.
        while acknowledged <= round * 20 {
            send(&mut acknowledged);
        }
        std::thread::scope(|scope| {
            let crash = scope.spawn(|| {
                sleep(Duration::from_millis(round * 7 % 40));
                server.crash();
            });
            while !crash.is_finished() {
                send(&mut acknowledged);
            }
        });
    }
    let all = follow(
        &*fixture.store,
        usize::try_from(acknowledged).expect("small"),
    );
    let agents = fixture.store.agents().expect("readable");
    let stored = agents[0].acknowledged;
    assert!(stored >= acknowledged, "{stored} of {acknowledged}");
    let groups = fixture.store.groups(&Filter::default()).expect("readable");
    let counted: u64 = groups.iter().map(|group| group.count).sum();
    assert_eq!((all.len() as u64, counted), (stored, stored), "each once");
    assert!(
        acknowledged >= rounds * 20 && refused > 0,
        "{acknowledged}, {refused}"
    );
    println!(
        "{rounds} crashes: acknowledged {acknowledged}, refused {refused}, lost 0, stored twice 0"
    );
}

#[test]
fn roll_outs_of_a_database_without_selectors_are_for_all_agents_of_their_class() {
    let server = Server::shared();
    let url = server.database();
    let mut old = ::postgres::Client::connect(&url, ::postgres::NoTls).expect("a database");
    let schemas = [
        include_str!("../postgres/schema_1.sql"),
        include_str!("../postgres/schema_2.sql"),
        include_str!("../postgres/schema_3.sql"),
    ];
    old.batch_execute("CREATE SCHEMA tollgate; SET search_path TO tollgate")
        .expect("a schema");
    for schema in schemas {
        old.batch_execute(schema).expect("a schema");
    }
    old.batch_execute(
        "INSERT INTO store (version) VALUES (3);
         INSERT INTO bundles (version, digest, key, text, created_ns, created_by)
             VALUES (7, 'd7', 'k', 't', 1, 'ann'), (8, 'd8', 'k', 't', 1, 'ann');
         INSERT INTO rollouts VALUES ('web', 2, 1, 10, 0, NULL, NULL, 'why', 5, 'ann');
         INSERT INTO tokens (class, role, hash, created_ns, created_by) VALUES ('web', '', '\\x01', 1, 'ann');
         INSERT INTO agents (token, hash, host, first_seen_ns, last_seen_ns) VALUES (1, '\\x02', 'h', 1, 1);",
    )
    .expect("rows");
    drop(old);
    let store: Arc<dyn Store> = PostgresStore::open(&url)
        .expect("it is brought up to date")
        .into();
    let rollouts = store.rollouts().expect("readable");
    let rollout = &rollouts[0];
    assert_eq!(
        (rollouts.len(), rollout.target.to_string()),
        (1, "class web".to_owned())
    );
    let previous = rollout.previous.as_ref().expect("the one before");
    assert_eq!((rollout.bundle.version, previous.version), (8, 7));
    assert_eq!(
        (rollout.halted.as_deref(), rollout.health.agents),
        (Some("why"), 1)
    );
    assert!(store.agents().expect("readable")[0].labels.is_empty());
    assert_eq!(store.tokens().expect("readable")[0].certificate, None);
}

#[test]
fn days_of_an_older_database_get_the_limit_of_what_a_search_reads_unsorted() {
    let fixture = in_database();
    let Place::Database { url, .. } = &fixture.place else {
        unreachable!("it is a database")
    };
    send(&fixture, Some(1), vec![alert(1, "r", "word")]);
    let mut client = ::postgres::Client::connect(url, ::postgres::NoTls).expect("it runs");
    client
        .batch_execute(
            "SET search_path TO tollgate; UPDATE store SET version = 6;
             ALTER TABLE captures DROP COLUMN rule, DROP COLUMN alert_ns, DROP COLUMN before_ms, DROP COLUMN after_ms;
             ALTER INDEX alerts_0_words RESET (gin_pending_list_limit)",
        )
        .expect("writable");
    let store = PostgresStore::open(url).expect("it is brought up to date");
    // The limit of a day that was made before is that of a new one.
    let day = 24 * HOUR;
    let batch = Batch {
        sender: fixture.agent,
        first: Some(2),
        records: vec![Record::Alert(alert(day, "r", "word"), None)],
        received_ns: day,
    };
    append(&store, batch).expect("it is stored");
    let limits = client.query(
        "SELECT c.relname, c.reloptions FROM pg_class c WHERE c.relname LIKE 'alerts%words' ORDER BY 1",
        &[],
    );
    let limits: Vec<(String, Vec<String>)> = limits
        .expect("readable")
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let limit = vec!["gin_pending_list_limit=256".to_owned()];
    let expected =
        ["alerts_0_words", "alerts_1_words"].map(|name| (name.to_owned(), limit.clone()));
    assert_eq!(limits, expected);
}

#[test]
fn a_collector_that_knows_no_selectors_finds_no_roll_out_to_hand_to_a_whole_class() {
    let fixture = in_database();
    let Place::Database { url, .. } = &fixture.place else {
        unreachable!("it is a database")
    };
    let mut client = ::postgres::Client::connect(url, ::postgres::NoTls).expect("it runs");
    client
        .batch_execute("SET search_path TO tollgate")
        .expect("it is there");
    // What builds before selectors ask, and how they assign.
    for sql in [
        "SELECT r.bundle FROM rollouts r JOIN bundles b ON b.id = r.bundle LEFT JOIN bundles p ON p.id = r.previous
         JOIN tokens t ON t.class = r.class JOIN agents a ON a.token = t.id WHERE a.id = 1",
        "INSERT INTO rollouts (class, bundle, percent, started_ns, actor) VALUES ('web', 1, 100, 1, 'ann')",
        "UPDATE rollouts SET bundle = previous WHERE class = 'web' AND previous IS NOT NULL",
    ] {
        let refused = client.batch_execute(sql).expect_err(sql);
        let code = refused.code();
        assert_eq!(
            code,
            Some(&::postgres::error::SqlState::UNDEFINED_TABLE),
            "{refused}"
        );
    }
}

#[test]
fn nothing_acknowledged_is_lost_or_stored_twice_when_the_server_is_killed() {
    crashes(1);
}

#[test]
fn the_same_a_hundred_times() {
    testing::need_slow!();
    crashes(100);
}
