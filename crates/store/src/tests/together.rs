//! Batches of several agents in one transaction, and searches with other conditions beside the words.

use super::*;

for_each_database! {
    batches_of_several_agents_add_up_to_the_same_sums,
    a_search_with_other_conditions_finds_what_both_accept,
    a_filter_by_rule_program_or_group_finds_the_same_along_each_index,
}

/// Submits batches at once, so that they share transactions, and returns how many were stored.
fn submit(store: &dyn Store, batches: Vec<Batch>) -> u64 {
    let (sender, receiver) = channel();
    let count = batches.len();
    for batch in batches {
        let sender = sender.clone();
        let done = move |result: Result<Receipt, _>| {
            let stored = result.map_or(0, |receipt| receipt.stored);
            sender.send(stored).expect("it waits");
        };
        store.append(batch, Box::new(done)).expect("not busy");
    }
    receiver.iter().take(count).sum()
}

fn batch(sender: AgentId, first: u64, alerts: Vec<NewAlert>) -> Batch {
    let records = alerts.into_iter().map(|alert| Record::Alert(alert, None));
    Batch {
        sender,
        first: Some(first),
        records: records.collect(),
        received_ns: 7,
    }
}

fn batches_of_several_agents_add_up_to_the_same_sums(fixture: &Fixture) {
    let store = &*fixture.store;
    let token = token(store, Scope::Agents("db".to_owned()), 8, None);
    let agents: Vec<_> = (10..15)
        .map(|n| enrol(store, token, n, &format!("host-{n}")))
        .collect();
    let mut batches = Vec::new();
    for round in 0..8 {
        for agent in &agents {
            let time = i64::try_from(round).expect("small") * HOUR / 2;
            let alerts = vec![alert(time, "a", "one"), alert(time + 1, "b", "two")];
            batches.push(batch(*agent, 1 + round * 2, alerts));
        }
        // Fails in the midst of the others, and leaves neither alerts nor sums.
        batches.push(batch(AgentId(4711), 1, vec![alert(1, "c", "three")]));
    }
    assert_eq!(submit(store, batches), 80);
    let groups = store.groups(&Filter::default()).expect("readable");
    let counts: Vec<_> = groups
        .iter()
        .map(|group| (&*group.rule, group.count, group.hosts, group.first_ns))
        .collect();
    assert_eq!(counts, [("b", 40, 5, 1), ("a", 40, 5, 0)]);
    let overview = store.overview(0, 4 * HOUR).expect("readable");
    let hours: Vec<_> = overview.alerts.iter().map(|hour| hour.count).collect();
    assert_eq!(hours, [20; 4]);
    assert_eq!(overview.rules, [("a".to_owned(), 40), ("b".to_owned(), 40)]);
    assert_eq!(overview.hosts.len(), 5);
    assert!(overview.hosts.iter().all(|(_, count)| *count == 16));
}

fn a_search_with_other_conditions_finds_what_both_accept(fixture: &Fixture) {
    let store = &*fixture.store;
    let of = |n: i64| {
        let rule = if n % 2 == 0 { "even" } else { "odd" };
        let rare = if n % 10 == 0 { "rare" } else { "plain" };
        alert(n, rule, &format!("word {rare}"))
    };
    send(fixture, Some(1), (0..100).map(of).collect());
    let text = |text: &str| Filter {
        text: Some(text.to_owned()),
        ..Filter::default()
    };
    let rule = |text: &str, rule: &str| Filter {
        text: Some(text.to_owned()),
        rule: Some(rule.to_owned()),
        limit: 1000,
        ..Filter::default()
    };
    assert_eq!(bodies(store, &text("rare")).len(), 10);
    assert_eq!(bodies(store, &rule("rare", "even")).len(), 10);
    assert_eq!(bodies(store, &rule("rare", "odd")).len(), 0);
    assert_eq!(bodies(store, &rule("plain", "even")).len(), 40);
    let range = Filter {
        from_ns: Some(20),
        to_ns: Some(41),
        host: Some("box".to_owned()),
        ..text("rare")
    };
    let expected: Vec<_> = [40, 30, 20].map(|n| format!("{{\"n\":{n}}}")).into();
    assert_eq!(bodies(store, &range), expected);
    let first = Filter {
        limit: 2,
        ..text("rare")
    };
    let rows = store.alerts(&first).expect("readable");
    let last = rows.last().expect("two");
    let after = Filter {
        after: Some(Cursor {
            time_ns: last.time_ns,
            id: last.id.0,
        }),
        ..first
    };
    let expected: Vec<_> = [70, 60].map(|n| format!("{{\"n\":{n}}}")).into();
    assert_eq!(bodies(store, &after), expected);
    let elsewhere = Filter {
        host: Some("other".to_owned()),
        ..text("rare")
    };
    assert!(bodies(store, &elsewhere).is_empty());
}

fn a_filter_by_rule_program_or_group_finds_the_same_along_each_index(fixture: &Fixture) {
    let store = &*fixture.store;
    // One rule is common, so that it is read along the times, and one is rare, so that it is read along its group.
    let of = |n: i64| alert(n, if n % 500 == 0 { "rare" } else { "common" }, "m");
    send(fixture, Some(1), (0..2000).map(of).collect());
    for (rule, latest, count) in [("rare", 1500, 4), ("common", 1999, 50)] {
        let by_rule = Filter {
            rule: Some(rule.to_owned()),
            program: Some("cat".to_owned()),
            ..Filter::default()
        };
        let found = bodies(store, &by_rule);
        assert_eq!(found.len(), count, "{rule}");
        assert_eq!(found[0], format!("{{\"n\":{latest}}}"));
        let groups = store.groups(&by_rule).expect("readable");
        let by_group = Filter {
            group: Some(groups[0].id),
            ..Filter::default()
        };
        assert_eq!(bodies(store, &by_group), found);
        let by_host = Filter {
            host: Some("box".to_owned()),
            ..by_rule
        };
        assert_eq!(bodies(store, &by_host), found);
    }
}
