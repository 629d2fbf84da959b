//! Losses are counted and announced.

use super::*;

#[test]
fn a_stuck_channel_loses_by_count_and_neither_blocks_nor_harms_the_others() {
    let (stuck, mut stuck_gate) = gated("stuck");
    let (free, mut free_gate) = gated("free");
    free_gate.open();
    let capacity = QueueCapacity {
        alerts: 10,
        bytes: 1 << 20,
    };
    let settings = Settings {
        capacity,
        ..settings()
    };
    let dispatcher = Dispatcher::prepare(settings, vec![stuck, free])
        .start()
        .unwrap();

    for n in 0..100 {
        dispatcher.emit(alert(&format!("n={n}")));
        // The free channel's queue is as short; give it time.
        while dispatcher.counters().channels[1].pending > 5 {
            std::thread::yield_now();
        }
    }
    let counters = dispatcher.counters();
    assert_eq!(counters.emitted, 100);
    assert_eq!(counters.channels[0].queued, 10);
    assert_eq!(counters.channels[0].lost_queue_full, 90);
    assert_eq!(counters.channels[1].lost_queue_full, 0);
    let left = dispatcher.flush(Instant::now() + Duration::from_millis(20));
    assert_eq!(
        left,
        [Pending {
            channel: "stuck".into(),
            alerts: 10
        }]
    );
    let notices: Vec<_> = free_gate
        .taken()
        .into_iter()
        .filter(|line| line.contains("alerts lost"))
        .collect();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(
        notices[0].contains("Error alerts lost (channel=stuck lost=1 "),
        "{notices:?}"
    );

    stuck_gate.open();
    assert_eq!(dispatcher.flush(soon()), []);
    let taken = stuck_gate.taken();
    assert_announced(&taken, 90);
}

/// Asserts that a channel's lines announce so many lost alerts. Over how many lines they are spread depends on when
/// the channel's thread woke up.
fn assert_announced(taken: &[String], lost: u64) {
    let announced = taken.iter().filter_map(|line| number_after(line, " lost="));
    assert_eq!(announced.sum::<u64>(), lost, "{taken:?}");
    let totals = taken
        .iter()
        .filter_map(|line| number_after(line, " lost_total="));
    assert_eq!(totals.max(), Some(lost), "{taken:?}");
}

fn number_after(line: &str, word: &str) -> Option<u64> {
    let (_, rest) = line.split_once(word)?;
    rest.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[test]
fn a_notice_that_is_not_delivered_is_repeated_until_it_is() {
    let (channel, mut gate) = gated("file");
    let dispatcher = Dispatcher::prepare(settings(), vec![channel])
        .start()
        .unwrap();
    gate.step(Step::Fail(ReceiverState::Failing));
    emit_many(&dispatcher, 1);
    while dispatcher.counters().channels[0].lost() == 0 {
        std::thread::yield_now();
    }
    // The notice before the next alert fails, and so does that of a flush, which does not wait for a third.
    gate.step(Step::Fail(ReceiverState::Failing));
    gate.step(Step::Take);
    gate.step(Step::Fail(ReceiverState::Failing));
    emit_many(&dispatcher, 1);
    assert_eq!(dispatcher.flush(soon()), []);
    assert_eq!(gate.taken().len(), 1, "{:?}", gate.taken());
    gate.open();
    assert_eq!(dispatcher.flush(soon()), []);
    assert_announced(&gate.taken(), 1);
    assert_eq!(dispatcher.counters().channels[0].lost(), 1);
}

#[test]
fn a_failed_write_is_a_counted_loss_and_the_next_succeeds() {
    let (channel, mut gate) = gated("file");
    let problems = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&problems);
    let on_problem: OnProblem =
        Arc::new(move |problem: &str| seen.lock().unwrap().push(problem.to_owned()));
    let settings = Settings {
        on_problem,
        ..settings()
    };
    let dispatcher = Dispatcher::prepare(settings, vec![channel])
        .start()
        .unwrap();
    gate.step(Step::Fail(ReceiverState::Failing));
    gate.step(Step::Fail(ReceiverState::Failing));
    emit_many(&dispatcher, 3);
    gate.open();
    assert_eq!(dispatcher.flush(soon()), []);
    let counters = &dispatcher.counters().channels[0];
    assert_eq!(counters.delivered + counters.lost_write_failed, 3);
    assert!(counters.lost_write_failed >= 1);
    assert_eq!(problems.lock().unwrap().len(), 1);
    assert_eq!(
        problems.lock().unwrap()[0],
        "cannot write alerts to file: broken pipe"
    );
}
