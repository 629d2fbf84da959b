//! Sums by hour, and what is deleted.

use super::*;

for_each_database! {
    an_overview_has_hours_severities_and_losses,
    pruning_deletes_whole_hours_and_groups_that_are_empty,
    a_hostile_sender_cannot_make_groups_without_end,
    a_hostile_sender_cannot_fill_the_store_with_losses,
    sums_of_every_range_agree_with_the_alerts,
}

fn an_overview_has_hours_severities_and_losses(fixture: &Fixture) {
    let alerts = [0, 1, HOUR].map(|time| alert(time, "r", "m"));
    send(fixture, Some(1), alerts.into());
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
    append(&*fixture.store, batch).expect("it is stored");
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

fn pruning_deletes_whole_hours_and_groups_that_are_empty(fixture: &Fixture) {
    let store = &*fixture.store;
    send(
        fixture,
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
    send(fixture, Some(3), vec![alert(3 * HOUR, "old", "word")]);
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
        send(fixture, Some(3), vec![alert(1, "r", "m")]).duplicates,
        1
    );
}

fn a_hostile_sender_cannot_make_groups_without_end(fixture: &Fixture) {
    let many: Vec<_> = (0..2500)
        .map(|n| NewAlert {
            object: format!("/{n}"),
            ..alert(n, "r", "m")
        })
        .collect();
    send(fixture, Some(1), many);
    let groups = fixture.store.statistics().expect("readable").groups;
    assert_eq!(groups, 2001);
    let other = Filter {
        program: Some(OTHER.to_owned()),
        ..Filter::default()
    };
    assert_eq!(
        fixture.store.groups(&other).expect("readable")[0].count,
        500
    );
}

fn a_hostile_sender_cannot_fill_the_store_with_losses(fixture: &Fixture) {
    let loss = |kind, time_ns| {
        Record::Loss(Loss {
            time_ns,
            kind,
            count: 2,
            detail: "d".to_owned(),
        })
    };
    let send = |first, records: Vec<Record>| {
        let batch = Batch {
            sender: fixture.agent,
            first: Some(first),
            records,
            received_ns: 7,
        };
        append(&*fixture.store, batch).expect("it is stored");
    };
    let most = u64::try_from(LOSSES).expect("small");
    let dropped = |n: i64| loss(LossKind::DroppedEvents, n);
    send(1, (0..LOSSES + 100).map(dropped).collect());
    // In a further batch, and of a kind that has no row yet.
    send(
        most + 101,
        vec![
            dropped(1),
            loss(LossKind::Spool, 1),
            loss(LossKind::Spool, 1),
        ],
    );
    let overview = fixture.store.overview(0, HOUR).expect("readable");
    let hours = [
        (0, LossKind::DroppedEvents, 2 * (most + 101)),
        (0, LossKind::Spool, 4),
    ];
    assert_eq!(overview.losses_by_hour, hours, "none is forgotten");
    let retention = Retention {
        before_ns: Some(HOUR),
        max_bytes: None,
    };
    let pruned = fixture.store.prune(retention).expect("writable");
    assert_eq!(pruned.losses, most + 1);
}

/// Hours of the alerts of [`many`]: four days and a part.
const HOURS: i64 = 100;

/// Alerts of some groups in many hours, not in order.
fn many(host: &str, salt: i64) -> Vec<NewAlert> {
    let alerts = (0..300).map(|n| {
        let mixed = (n * 7919 + salt) % 3001;
        NewAlert {
            host: host.to_owned(),
            program: format!("p{}", mixed % 3),
            ..alert(
                mixed % HOURS * HOUR + mixed,
                ["a", "b", "c", "d"][usize::try_from(mixed % 4).expect("small")],
                "m",
            )
        }
    });
    alerts.collect()
}

/// What one alert is to a sum: time, rule and program, host.
type Known = (i64, (String, String), String);

/// A group as a sum has it: last and first time, number, hosts.
type Summed = (i64, i64, u64, u64);

/// Adds up alerts, group by group, the latest first.
fn expected(known: &[Known], filter: &Filter) -> Vec<((String, String), Summed)> {
    let mut groups: std::collections::BTreeMap<_, Vec<&Known>> = std::collections::BTreeMap::new();
    let from = filter
        .from_ns
        .map_or(i64::MIN, |from| from.div_euclid(HOUR));
    let to = filter
        .to_ns
        .map_or(i64::MAX, |to| (to - 1).div_euclid(HOUR));
    for alert in known {
        let is_host = filter.host.as_ref().is_none_or(|host| *host == alert.2);
        if is_host && (from..=to).contains(&alert.0.div_euclid(HOUR)) {
            groups.entry(alert.1.clone()).or_default().push(alert);
        }
    }
    let sum = |alerts: &Vec<&Known>| {
        let times = || alerts.iter().map(|alert| alert.0);
        let hosts: std::collections::BTreeSet<_> = alerts.iter().map(|alert| &alert.2).collect();
        let (last, first) = (times().max().expect("one"), times().min().expect("one"));
        (last, first, alerts.len() as u64, hosts.len() as u64)
    };
    let mut groups: Vec<_> = groups
        .iter()
        .map(|(key, alerts)| (key.clone(), sum(alerts)))
        .collect();
    groups.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.0));
    groups
}

/// Returns the groups that the store finds, page by page.
fn found(store: &dyn Store, filter: &Filter) -> Vec<((String, String), Summed)> {
    let mut filter = Filter {
        limit: 5,
        ..filter.clone()
    };
    let mut all = Vec::new();
    loop {
        let page = store.groups(&filter).expect("readable");
        let Some(last) = page.last() else { return all };
        filter.after = Some(Cursor {
            time_ns: last.last_ns,
            id: last.id.0,
        });
        let sum = |group: &Group| (group.last_ns, group.first_ns, group.count, group.hosts);
        all.extend(
            page.iter()
                .map(|group| ((group.rule.clone(), group.program.clone()), sum(group))),
        );
    }
}

fn agree(store: &dyn Store, known: &[Known]) {
    let ranges = [None, Some(0), Some(HOUR * 30 + 5), Some(HOUR * 72)];
    for from_ns in ranges {
        for to_ns in [None, Some(HOUR * 31), Some(HOUR * 97 + 1), Some(HOUR * 500)] {
            for host in [None, Some("h1".to_owned()), Some("nobody".to_owned())] {
                let filter = Filter {
                    from_ns,
                    to_ns,
                    host,
                    ..Filter::default()
                };
                assert_eq!(
                    found(store, &filter),
                    expected(known, &filter),
                    "{filter:?}"
                );
            }
            let (from, to) = (from_ns.unwrap_or(0), to_ns.unwrap_or(HOUR * 500));
            let overview = store.overview(from, to).expect("readable");
            let hours = from.div_euclid(HOUR)..=(to - 1).div_euclid(HOUR);
            let within: Vec<_> = known
                .iter()
                .filter(|it| hours.contains(&it.0.div_euclid(HOUR)))
                .collect();
            let count = |rows: &[(String, u64)], name: &str| {
                rows.iter().find(|row| row.0 == name).map_or(0, |row| row.1)
            };
            let of = |is: &dyn Fn(&Known) -> bool| within.iter().filter(|it| is(it)).count() as u64;
            for rule in ["a", "b", "c", "d"] {
                assert_eq!(
                    count(&overview.rules, rule),
                    of(&|it| it.1.0 == rule),
                    "{rule} {from} {to}"
                );
            }
            for host in ["h1", "h2"] {
                assert_eq!(
                    count(&overview.hosts, host),
                    of(&|it| it.2 == host),
                    "{host} {from} {to}"
                );
            }
        }
    }
}

fn sums_of_every_range_agree_with_the_alerts(fixture: &Fixture) {
    let store = &*fixture.store;
    let direct = store.direct_sender(TokenId(1)).expect("it is added");
    let mut known = Vec::new();
    for (host, salt) in [("h1", 1), ("h2", 2), ("h1", 3)] {
        let alerts = many(host, salt);
        let key = |it: &NewAlert| (it.rule.clone(), it.program.clone());
        known.extend(
            alerts
                .iter()
                .map(|it| (it.time_ns, key(it), it.host.clone())),
        );
        let batch = Batch {
            sender: direct,
            first: None,
            records: alerts
                .into_iter()
                .map(|it| Record::Alert(it, None))
                .collect(),
            received_ns: 7,
        };
        append(store, batch).expect("it is stored");
    }
    agree(store, &known);
    // In the middle of a day.
    let before = HOUR * 29;
    let retention = Retention {
        before_ns: Some(before),
        max_bytes: None,
    };
    store.prune(retention).expect("writable");
    known.retain(|alert| alert.0 >= before);
    agree(store, &known);
}
