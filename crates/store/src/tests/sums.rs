//! Sums by hour, and what is deleted.

use super::*;

for_each_database! {
    an_overview_has_hours_severities_and_losses,
    pruning_deletes_whole_hours_and_groups_that_are_empty,
    a_hostile_sender_cannot_make_groups_without_end,
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
