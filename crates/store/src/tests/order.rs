//! Batches that come from a queue wait for those before them.

use std::sync::mpsc::channel;

use super::*;

for_each_database! {
    a_batch_that_must_follow_is_refused_until_what_comes_before_it_is_stored,
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
