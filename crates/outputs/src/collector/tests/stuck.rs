//! Captures that do not get through, while other requests do or do not.

use super::captures::{Over, requests, sending};
use super::*;

/// Time limit of a request that gets no answer.
const SHORT: Duration = Duration::from_secs(1);

/// The uplink is too slow for a part, and fast enough for the rest.
#[test]
fn a_capture_whose_part_never_arrives_in_time_is_given_up_while_alerts_go_on() {
    let fake = fake();
    let mut fixture = fixture(fake.address);
    fixture.options.timeout = SHORT;
    *fake.capture.lock().expect("no panic") = "7".to_owned();
    *fake.refused.lock().expect("no panic") = Some(("/chunks/", NO_ANSWER));
    for (source, ends) in [(Over::around_alert(1), (0, 1)), (Over::asked(1), (1, 0))] {
        let mut channel = sending(&fixture, &source);
        channel.patience = 2 * SHORT;
        let (batches, parts) = (fake.batches().len(), requests(&fake, "/chunks/"));
        let mut turns = 0;
        while source.ends() == (0, 0) {
            assert!(turns < 20, "it is sent for ever");
            channel.sending.retry.due = None;
            channel
                .deliver(&deliveries(1, Format::default()))
                .expect("delivered");
            turns += 1;
            assert_eq!(channel.held(), 0, "alerts go on");
        }
        assert_eq!(source.ends(), ends);
        assert!(turns > 1, "it is tried again");
        assert_eq!(fake.batches().len(), batches + turns);
        assert_eq!(requests(&fake, "/chunks/"), parts + turns);
        assert_eq!(channel.peer().trouble(), None, "there is none any more");
    }
}

#[test]
fn alerts_wait_once_for_a_request_about_a_capture_that_gets_no_answer() {
    let fake = fake();
    let mut fixture = fixture(fake.address);
    fixture.options.timeout = 2 * SHORT;
    *fake.refused.lock().expect("no panic") = Some(("/captures/alert", NO_ANSWER));
    let mut channel = sending(&fixture, &Over::around_alert(1));
    channel.turn = TURN;
    let began = Instant::now();
    channel
        .deliver(&deliveries(1, Format::default()))
        .expect("delivered");
    assert!(began.elapsed() >= fixture.options.timeout);
    assert!(channel.held_until <= Instant::now(), "they wait again");
    channel
        .deliver(&deliveries(1, Format::default()))
        .expect("delivered");
    assert_eq!(fake.batches(), [(1, 1), (2, 1)]);
}

#[test]
fn a_collector_that_is_away_makes_no_capture_be_given_up() {
    let fake = fake();
    let fixture = fixture(fake.address);
    let source = Over::around_alert(1);
    let mut channel = sending(&fixture, &source);
    let url = channel.options.url.clone();
    let away = format!("http://{}", nobody());
    for what in ["a sign of life", "a batch"] {
        channel.sending.retry.due = None;
        channel.attempt(SendTime::Bounded);
        let refused = channel.sending.retry.refused;
        assert!(refused.is_some(), "its number is missing");
        channel.link.move_to(&away);
        channel.patience = Duration::ZERO;
        match what {
            "a batch" => channel
                .deliver(&deliveries(1, Format::default()))
                .expect("on disk"),
            _ => channel.heartbeat = Instant::now(),
        }
        channel.sending.retry.due = None;
        channel.attempt(SendTime::Bounded);
        assert!(!channel.pause.is_zero(), "{what} fails");
        assert_eq!(channel.sending.retry.refused, None, "after {what}");
        assert_eq!(source.ends(), (0, 0));
        channel.link.move_to(&url);
        channel.patience = Duration::from_secs(600);
    }
    *fake.capture.lock().expect("no panic") = "7".to_owned();
    channel.attempt(SendTime::Bounded);
    assert_eq!(source.ends(), (1, 0));
}

/// Somebody waits for the order; the capture around the alert could wait for ten minutes.
#[test]
fn an_order_takes_the_place_of_a_capture_of_which_the_collector_takes_nothing() {
    let fake = fake();
    let fixture = fixture(fake.address);
    let order = |parts| format!("{{\"id\":9,\"seconds\":1,\"parts\":{parts}}}");
    // What the collector refuses, parts of the order that it has, and whether the order begins.
    for (path, parts, begins) in [
        ("/captures/alert", 0, true),
        ("/chunks/", 0, true),
        ("/done", 0, false),
        ("/captures/alert", 2, false),
    ] {
        let source = Over::around_alert(1);
        let mut channel = sending(&fixture, &source);
        *fake.refused.lock().expect("no panic") = Some((path, "503 Busy"));
        let ask = |capture: String| *fake.capture.lock().expect("no panic") = capture;
        if path == "/captures/alert" {
            // It may be taken at the first attempt.
            ask(order(parts));
        } else {
            ask("7".to_owned());
        }
        channel.attempt(SendTime::Bounded);
        assert_eq!(source.ends(), (0, 0), "{path}");
        ask(order(parts));
        channel.heartbeat = Instant::now();
        channel.attempt(SendTime::Bounded);
        let begun = source.begun.lock().expect("no panic").clone();
        let expected = if begins {
            (vec![9], (0, 1))
        } else {
            (vec![], (0, 0))
        };
        assert_eq!((begun, source.ends()), expected, "{path} {parts}");
    }
}
