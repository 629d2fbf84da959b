//! Batches of several agents in one transaction, and searches with other conditions beside the words.

use super::*;
use crate::error::Fault;

for_each_database! {
    batches_of_several_agents_add_up_to_the_same_sums,
    a_batch_whose_sums_are_refused_fails_alone,
    a_search_with_other_conditions_finds_what_both_accept,
    a_filter_by_rule_program_or_group_finds_the_same_along_each_index,
}

/// Submits batches that share a transaction, and returns what became of each.
pub(super) fn submit(fixture: &Fixture, batches: Vec<Batch>) -> Vec<Result<Receipt, StoreError>> {
    let (sender, receiver) = channel();
    let count = batches.len();
    let held = fixture.place.hold();
    for (at, batch) in batches.into_iter().enumerate() {
        let sender = sender.clone();
        let done = move |result| sender.send((at, result)).expect("it waits");
        let submitted = fixture.store.append(batch, Box::new(done));
        submitted.expect("not busy");
    }
    drop(held);
    let mut results: Vec<_> = receiver.iter().take(count).collect();
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Returns how many records were stored, and the errors.
fn stored(results: Vec<Result<Receipt, StoreError>>) -> (u64, Vec<StoreError>) {
    let (mut stored, mut errors) = (0, Vec::new());
    for result in results {
        match result {
            Ok(receipt) => stored += receipt.stored,
            Err(error) => errors.push(error),
        }
    }
    (stored, errors)
}

pub(super) fn batch(sender: AgentId, first: u64, alerts: Vec<NewAlert>) -> Batch {
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
    fixture.place.run(
        "CREATE TRIGGER refuse BEFORE INSERT ON alerts WHEN NEW.body = 'refused'
         BEGIN SELECT RAISE(ABORT, 'refused'); END",
        "ALTER TABLE alerts ADD CHECK (body <> 'refused')",
    );
    fixture.place.count_commits();
    let (mut batches, day) = (Vec::new(), 24 * HOUR);
    for round in 0..8 {
        for agent in &agents {
            let time = i64::try_from(round).expect("small") * HOUR / 2;
            let alerts = vec![alert(time, "a", "one"), alert(time + 1, "b", "two")];
            batches.push(batch(*agent, 1 + round * 2, alerts));
        }
        // Fails in the midst of the others, after it has made a group and a day, and leaves neither of them, nor alerts or sums.
        let refused = NewAlert {
            body: "refused".to_owned(),
            ..alert(day, "c", "three")
        };
        let alerts = vec![alert(day, "c", "three"), refused];
        batches.push(batch(fixture.agent, 1, alerts));
    }
    // Needs the same group and the same day.
    batches.push(batch(agents[0], 17, vec![alert(day, "c", "three")]));
    let commits = fixture.place.commits();
    let (stored, errors) = stored(submit(fixture, batches));
    assert_eq!((stored, errors.len()), (81, 8));
    assert!(errors.iter().all(|it| it.fault() == Fault::Values));
    assert_eq!(fixture.place.commits() - commits, 1, "one transaction");
    assert_eq!(store.statistics().expect("readable").alerts, 81);
    let groups = store.groups(&Filter::default()).expect("readable");
    let counts: Vec<_> = groups
        .iter()
        .map(|group| (&*group.rule, group.count, group.hosts, group.first_ns))
        .collect();
    assert_eq!(counts, [("c", 1, 1, day), ("b", 40, 5, 1), ("a", 40, 5, 0)]);
    let overview = store.overview(0, 4 * HOUR).expect("readable");
    let hours: Vec<_> = overview.alerts.iter().map(|hour| hour.count).collect();
    assert_eq!(hours, [20; 4]);
    assert_eq!(overview.rules, [("a".to_owned(), 40), ("b".to_owned(), 40)]);
    assert_eq!(overview.hosts.len(), 5);
    assert!(overview.hosts.iter().all(|(_, count)| *count == 16));
}

fn a_batch_whose_sums_are_refused_fails_alone(fixture: &Fixture) {
    let store = &*fixture.store;
    let agents: Vec<_> = (10..14)
        .map(|n| enrol(store, TokenId(1), n, &format!("host-{n}")))
        .collect();
    fixture.place.run(
        "CREATE TRIGGER refuse BEFORE INSERT ON rule_sums WHEN NEW.rule = 'refused'
         BEGIN SELECT RAISE(ABORT, 'refused'); END",
        "ALTER TABLE rule_sums ADD CHECK (rule <> 'refused')",
    );
    fixture.place.count_commits();
    let good = |agent: &AgentId| batch(*agent, 1, vec![alert(1, "a", "one"); 2]);
    let refused = || batch(fixture.agent, 1, vec![alert(1, "refused", "two")]);
    let mut batches: Vec<_> = agents.iter().map(good).collect();
    batches.insert(2, refused());
    let commits = fixture.place.commits();
    let results = submit(fixture, batches);
    let is_stored: Vec<_> = results.iter().map(Result::is_ok).collect();
    assert_eq!(is_stored, [true, true, false, true, true]);
    let (stored, errors) = stored(results);
    // A queue sets it aside by this fault.
    assert_eq!((stored, errors[0].fault()), (8, Fault::Values));
    assert_eq!(fixture.place.commits() - commits, 4, "one for each");
    let groups = store.groups(&Filter::default()).expect("readable");
    assert_eq!((groups.len(), groups[0].count, groups[0].hosts), (1, 8, 4));
    let overview = store.overview(0, HOUR).expect("readable");
    assert_eq!(overview.rules, [("a".to_owned(), 8)]);
    // It fails again, and its agent goes on without it.
    let again = append(store, refused()).expect_err("refused");
    assert_eq!(again.fault(), Fault::Values);
    append(store, good(&fixture.agent)).expect("stored");
    assert_eq!(bodies(store, &Filter::default()).len(), 10);
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
