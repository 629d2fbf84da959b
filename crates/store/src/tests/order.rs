//! Batches that come from a queue wait for those before them.

use std::sync::mpsc::channel;

use super::*;
use crate::Fault;

for_each_database! {
    a_batch_that_must_follow_is_refused_until_what_comes_before_it_is_stored,
    counts_of_a_sender_stay_at_the_largest_number_instead_of_failing,
    a_batch_without_records_counts_nothing_as_missing,
    an_error_says_whether_the_batch_is_at_fault_or_the_store,
}

/// Submits records with these numbers that have to follow.
fn append_next(
    fixture: &Fixture,
    numbers: std::ops::RangeInclusive<u64>,
) -> Result<Receipt, StoreError> {
    let batch = Batch {
        sender: fixture.agent,
        first: Some(*numbers.start()),
        records: numbers
            .map(|n| {
                let time = i64::try_from(n).expect("small");
                Record::Alert(alert(time, "r", "m"), None)
            })
            .collect(),
        received_ns: 7,
    };
    let (sender, receiver) = channel();
    let done = move |result| sender.send(result).expect("it waits");
    fixture.store.append_next(batch, Box::new(done))?;
    receiver.recv().expect("it is answered")
}

fn a_batch_that_must_follow_is_refused_until_what_comes_before_it_is_stored(fixture: &Fixture) {
    let early = append_next(fixture, 4..=6);
    assert!(
        matches!(
            early,
            Err(StoreError::OutOfOrder {
                first: 4,
                expected: 1
            })
        ),
        "{early:?}"
    );
    append_next(fixture, 1..=3).expect("it is stored");
    let acknowledged = |agent| fixture.store.acknowledged(agent);
    assert_eq!(acknowledged(fixture.agent).expect("readable"), 3);
    let receipt = append_next(fixture, 4..=6).expect("it is stored");
    assert_eq!((receipt.acknowledged, receipt.missing), (6, 0));
    let receipt = append_next(fixture, 4..=7).expect("it is stored");
    assert_eq!((receipt.stored, receipt.duplicates), (1, 3));
    assert_eq!(bodies(&*fixture.store, &Filter::default()).len(), 7);
    let unknown = acknowledged(AgentId(99));
    assert!(
        matches!(unknown, Err(StoreError::UnknownAgent { id: 99 })),
        "{unknown:?}"
    );
}

fn batch(fixture: &Fixture, first: u64, records: Vec<Record>) -> Batch {
    Batch {
        sender: fixture.agent,
        first: Some(first),
        records,
        received_ns: 7,
    }
}

fn counts_of_a_sender_stay_at_the_largest_number_instead_of_failing(fixture: &Fixture) {
    let largest = u64::try_from(i64::MAX).expect("positive");
    for first in [largest - 9, u64::MAX - 9, u64::MAX] {
        let receipt = send(fixture, Some(first), vec![alert(1, "r", "m")]);
        assert_eq!(receipt.stored, 1, "{first}");
    }
    let agents = fixture.store.agents().expect("readable");
    assert_eq!(
        (agents[0].acknowledged, agents[0].missing),
        (largest, largest)
    );
    // Beyond a number of rows, losses are added to the last one.
    let loss = |count| {
        Record::Loss(Loss {
            time_ns: 1,
            kind: LossKind::Spool,
            count,
            detail: String::new(),
        })
    };
    let rows = usize::try_from(LOSSES).expect("small");
    let mut records = vec![loss(1); rows];
    records.extend([loss(u64::MAX), loss(u64::MAX)]);
    let batch = Batch {
        first: None,
        ..batch(fixture, 1, records)
    };
    append(&*fixture.store, batch).expect("it is stored");
}

fn a_batch_without_records_counts_nothing_as_missing(fixture: &Fixture) {
    let receipt = append(&*fixture.store, batch(fixture, 9, Vec::new())).expect("it is stored");
    assert_eq!((receipt.acknowledged, receipt.missing), (0, 0));
    let receipt = send(fixture, Some(9), vec![alert(1, "r", "m")]);
    assert_eq!((receipt.acknowledged, receipt.missing), (9, 8));
}

fn an_error_says_whether_the_batch_is_at_fault_or_the_store(fixture: &Fixture) {
    fixture.place.run(
        "CREATE TRIGGER refused BEFORE INSERT ON alerts WHEN new.sequence = 1
         BEGIN SELECT RAISE(ABORT, 'refused'); END",
        "ALTER TABLE alerts ADD CONSTRAINT refused CHECK (sequence <> 1)",
    );
    let records = || vec![Record::Alert(alert(1, "r", "m"), None)];
    let error = append(&*fixture.store, batch(fixture, 1, records())).expect_err("refused");
    assert_eq!(error.fault(), Fault::Values, "{error:?}");
    append(&*fixture.store, batch(fixture, 2, records())).expect("it is stored");
    assert_eq!(StoreError::Stopped.fault(), Fault::Away);
    assert_eq!(StoreError::Busy.fault(), Fault::Later);
}
