//! Rules that have one digest: a sender can choose them so.

use super::together::{batch, submit};
use super::*;

for_each_database! {
    rules_with_one_digest_are_stored_from_one_batch,
    rules_with_one_digest_are_stored_from_batches_of_one_transaction,
    rules_with_one_digest_in_hours_of_one_day_are_deleted,
}

/// Two texts with the same MD5.
const RULES: [&str; 2] = [
    "TEXTCOLLBYfGiJUETHQ4hAcKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak",
    "TEXTCOLLBYfGiJUETHQ4hEcKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak",
];

/// Groups and their alerts are kept apart by their texts. An overview may count both rules under one name.
fn agree(fixture: &Fixture, counts: [u64; 2]) {
    for (rule, count) in RULES.iter().zip(counts) {
        let of_rule = Filter {
            rule: Some((*rule).to_owned()),
            ..Filter::default()
        };
        let groups = fixture.store.groups(&of_rule).expect("readable");
        let counted: Vec<_> = groups.iter().map(|it| (&*it.rule, it.count)).collect();
        assert_eq!(counted, [(*rule, count)]);
        let found = bodies(&*fixture.store, &of_rule).len();
        assert_eq!(found as u64, count);
    }
    for hours in [1, 24] {
        let overview = fixture.store.overview(0, hours * HOUR).expect("readable");
        let of_rules = overview.rules.iter();
        let counted: u64 = of_rules
            .filter(|(rule, _)| RULES.contains(&&**rule))
            .map(|(_, count)| count)
            .sum();
        assert_eq!(counted, counts.iter().sum::<u64>(), "{hours}");
    }
}

fn rules_with_one_digest_are_stored_from_one_batch(fixture: &Fixture) {
    let alerts = [0, 1, 1].map(|rule| alert(1, RULES[rule], "m"));
    send(fixture, Some(1), alerts.into());
    agree(fixture, [1, 2]);
    let alerts = [1, 0, 0].map(|rule| alert(1, RULES[rule], "m"));
    send(fixture, Some(4), alerts.into());
    agree(fixture, [3, 3]);
}

fn rules_with_one_digest_are_stored_from_batches_of_one_transaction(fixture: &Fixture) {
    let other = enrol(&*fixture.store, TokenId(1), 10, "other");
    fixture.place.count_commits();
    let commits = fixture.place.commits();
    let batches = [(fixture.agent, 0), (other, 1)]
        .map(|(agent, rule)| batch(agent, 1, vec![alert(1, RULES[rule], "m")]));
    for result in submit(fixture, batches.into()) {
        assert_eq!(result.expect("stored").stored, 1);
    }
    assert_eq!(fixture.place.commits() - commits, 1, "not one for each");
    agree(fixture, [1, 1]);
}

fn rules_with_one_digest_in_hours_of_one_day_are_deleted(fixture: &Fixture) {
    let times = [(0, 0), (1, 0), (2, 1), (3, 0)];
    let alerts = times.map(|(hour, rule)| alert(hour * HOUR, RULES[rule], "m"));
    send(fixture, Some(1), alerts.into());
    let retention = Retention {
        before_ns: Some(HOUR),
        max_bytes: None,
    };
    // The sum of the day is made of those of its hours again.
    let pruned = fixture.store.prune(retention).expect("writable");
    assert_eq!(pruned.alerts, 1);
    let overview = fixture.store.overview(0, 24 * HOUR).expect("readable");
    let counted: u64 = overview.rules.iter().map(|(_, count)| count).sum();
    assert_eq!(counted, 3);
}
