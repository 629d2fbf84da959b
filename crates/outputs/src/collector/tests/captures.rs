//! Captures that the collector asked for, and those around alerts.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::slow::far;
use super::*;

/// Has a capture that is over, until the collector has it or refuses it.
pub(super) struct Over {
    bytes: usize,
    cause: crate::CaptureCause,
    /// Numbers of captures that began after it.
    pub(super) begun: Mutex<Vec<u64>>,
    /// Captures that the collector has, and that it does not take.
    taken: AtomicUsize,
    refused: AtomicUsize,
}

impl Over {
    fn new(bytes: usize, cause: crate::CaptureCause) -> Arc<Self> {
        Arc::new(Self {
            bytes,
            cause,
            begun: Mutex::default(),
            taken: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        })
    }

    /// One that the collector asked for.
    pub(super) fn asked(bytes: usize) -> Arc<Self> {
        Self::new(bytes, crate::CaptureCause::Asked(7))
    }

    /// One around an alert.
    pub(super) fn around_alert(bytes: usize) -> Arc<Self> {
        let alert = crate::CapturedAlert {
            rule: "R".to_owned(),
            time_ns: 1,
            before_ms: 2,
            after_ms: 3,
        };
        Self::new(bytes, crate::CaptureCause::Alert(alert))
    }

    /// Numbers of captures that the collector has, and that it does not take.
    pub(super) fn ends(&self) -> (usize, usize) {
        (
            self.taken.load(Ordering::SeqCst),
            self.refused.load(Ordering::SeqCst),
        )
    }
}

impl crate::CaptureSource for Over {
    fn begin(&self, id: u64, _seconds: u64) {
        self.begun.lock().expect("no panic").push(id);
    }

    fn end(&self) {}

    fn progress(&self) -> crate::CaptureProgress {
        match self.ends() {
            (0, 0) => crate::CaptureProgress::Done {
                cause: self.cause.clone(),
                bytes: self.bytes,
                events: 1,
                lost: 0,
            },
            _ => crate::CaptureProgress::Idle,
        }
    }

    fn read(&self, from: usize, length: usize) -> Vec<u8> {
        vec![0; length.min(self.bytes - from)]
    }

    fn forget(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    fn wake_by(&self, _wake: crate::CaptureWake) {}

    fn set_own(&self, _own: &CaptureOnAlert) {}

    fn follow(&self, _wanted: Option<CaptureOnAlert>) {}

    fn on_alert(&self) -> Option<(CaptureOnAlert, crate::AlertCaptureCounts)> {
        None
    }

    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::SeqCst);
    }
}

/// A channel that sends a capture.
pub(super) fn sending(fixture: &Fixture, source: &Arc<Over>) -> CollectorChannel {
    let mut channel = open(fixture);
    let slot = ReportSlot::default();
    slot.take_captures(Arc::clone(source) as Arc<dyn crate::CaptureSource>);
    channel.keep_reports(&slot);
    channel
}

/// Number of requests so far with this text in their first line.
pub(super) fn requests(fake: &Fake, part: &str) -> usize {
    let got = fake.got.lock().expect("no panic");
    got.iter().filter(|(line, ..)| line.contains(part)).count()
}

#[test]
fn alerts_arrive_while_the_collector_cannot_take_a_capture_which_is_tried_again_less_and_less() {
    let fake = fake();
    let fixture = fixture(fake.address);
    let source = Over::around_alert(1);
    let mut channel = sending(&fixture, &source);
    *fake.capture.lock().expect("no panic") = "7".to_owned();
    let mut first = 1;
    let mut pauses = Vec::new();
    for path in ["/captures/alert", "/chunks/", "/done"] {
        *fake.refused.lock().expect("no panic") = Some((path, "503 Busy"));
        for _ in 0..8 {
            let before = requests(&fake, path);
            channel.sending.retry.due = None;
            for _ in 0..2 {
                channel
                    .deliver(&deliveries(1, Format::default()))
                    .expect("delivered");
                assert_eq!(fake.batches().last(), Some(&(first, 1)), "{path}");
                first += 1;
            }
            assert_eq!(requests(&fake, path), before + 1, "once, and then it waits");
            assert!(channel.pause.is_zero() && channel.held() == 0);
            let due = channel.sending.retry.due.expect("it is tried again");
            pauses.push(
                due.saturating_duration_since(Instant::now())
                    .as_secs_f64()
                    .ceil(),
            );
            let peer = channel.peer();
            let trouble = peer.trouble().expect("it is told");
            assert!(trouble.starts_with("cannot send a capture: "), "{trouble}");
        }
        assert_eq!(channel.receiver_notice(), None, "alerts arrive");
        channel.sending.retry = capture::Retry::default();
    }
    let expected = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0].repeat(3);
    // The machine may take some time between a failure and the look at its pause.
    for (pause, expected) in pauses.iter().zip(expected) {
        assert!((expected - 1.0..=expected).contains(pause), "{pauses:?}");
    }
    *fake.refused.lock().expect("no panic") = None;
    channel.attempt(SendTime::Bounded);
    assert_eq!(source.ends(), (1, 0));
    assert_eq!(channel.peer().trouble(), None);
}

#[test]
fn a_capture_that_the_collector_refuses_for_too_long_is_given_up_and_counted() {
    let fake = fake();
    let fixture = fixture(fake.address);
    for path in ["/captures/alert", "/chunks/", "/done"] {
        let source = Over::around_alert(1);
        let mut channel = sending(&fixture, &source);
        channel.patience = Duration::from_millis(200);
        *fake.capture.lock().expect("no panic") = "7".to_owned();
        *fake.refused.lock().expect("no panic") = Some((path, "503 Busy"));
        channel.attempt(SendTime::Bounded);
        assert_eq!(source.ends(), (0, 0), "it is tried again: {path}");
        thread::sleep(channel.patience);
        channel.sending.retry.due = None;
        channel.attempt(SendTime::Bounded);
        assert_eq!(source.ends(), (0, 1), "{path}");
        assert_eq!(channel.peer().trouble(), None, "there is none any more");
        let before = requests(&fake, "/captures/");
        channel.attempt(SendTime::Bounded);
        assert_eq!(requests(&fake, "/captures/"), before);
    }
    // What the collector never takes is given up at once, and what it asked for counts as none around an alert.
    *fake.refused.lock().expect("no panic") = Some(("/captures/alert", "409 Conflict"));
    let source = Over::around_alert(1);
    sending(&fixture, &source).attempt(SendTime::Bounded);
    assert_eq!(source.ends(), (0, 1));
    *fake.refused.lock().expect("no panic") = Some(("/chunks/", "404 Not Found"));
    let source = Over::asked(1);
    sending(&fixture, &source).attempt(SendTime::Bounded);
    assert_eq!(source.ends(), (1, 0));
}

/// Records nothing, and keeps which captures began.
#[derive(Default)]
struct Source(Mutex<Vec<u64>>);

impl crate::CaptureSource for Source {
    fn begin(&self, id: u64, _seconds: u64) {
        self.0.lock().expect("no panic").push(id);
    }

    fn end(&self) {}

    fn progress(&self) -> crate::CaptureProgress {
        match self.0.lock().expect("no panic").last() {
            None => crate::CaptureProgress::Idle,
            Some(&id) => crate::CaptureProgress::Recording {
                cause: crate::CaptureCause::Asked(id),
                until: Instant::now() + Duration::from_secs(3600),
            },
        }
    }

    fn read(&self, _from: usize, _length: usize) -> Vec<u8> {
        Vec::new()
    }

    fn forget(&self) {}

    fn wake_by(&self, _wake: crate::CaptureWake) {}

    fn set_own(&self, _own: &CaptureOnAlert) {}

    fn follow(&self, _wanted: Option<CaptureOnAlert>) {}

    fn on_alert(&self) -> Option<(CaptureOnAlert, crate::AlertCaptureCounts)> {
        None
    }

    fn refuse(&self) {
        unreachable!("the collector asked for it");
    }
}

#[test]
fn an_agent_that_starts_again_continues_no_capture_of_the_one_before() {
    let fake = fake();
    let fixture = fixture(fake.address);
    let mut channel = open(&fixture);
    let slot = ReportSlot::default();
    let source = Arc::new(Source::default());
    slot.take_captures(Arc::clone(&source) as Arc<dyn crate::CaptureSource>);
    channel.keep_reports(&slot);
    let mut ask = |capture: &str| {
        *fake.capture.lock().expect("no panic") = capture.to_owned();
        slot.change();
        let alerts = deliveries(1, Format::default());
        channel.deliver(&alerts).expect("delivered");
        let mut got = fake.got.lock().expect("no panic");
        let got = std::mem::take(&mut *got).into_iter();
        let ends = got.filter(|(line, ..)| line.contains("/done "));
        let ends: Vec<_> = ends.map(|(_, _, lines)| lines.concat()).collect();
        (source.0.lock().expect("no panic").clone(), ends.concat())
    };
    let (begun, end) = ask(r#"{"id":7,"seconds":1,"parts":2}"#);
    assert_eq!(begun, Vec::<u64>::new());
    assert!(end.contains("the agent was started again"), "{end}");
    // None is there yet, or the collector is an older one.
    let begins = |ids: &[u64]| (ids.to_vec(), String::new());
    assert_eq!(ask(r#"{"id":8,"seconds":1,"parts":0}"#), begins(&[8]));
    assert_eq!(ask(r#"{"id":9,"seconds":1}"#), begins(&[8, 9]));
    // Its own one goes on.
    assert_eq!(ask(r#"{"id":9,"seconds":1,"parts":1}"#), begins(&[8, 9]));
}

/// Alerts that come while a capture is sent arrive between its parts, and each part goes once.
#[test]
fn a_capture_takes_turns_with_alerts_and_goes_on_where_it_was() {
    let fake = fake();
    let fixture = fixture(far(fake.address));
    let mut channel = open(&fixture);
    channel.turn = TURN;
    let slot = ReportSlot::default();
    slot.take_captures(Over::asked(3 * (512 << 10)));
    channel.keep_reports(&slot);
    let lines = || {
        let got = fake.got.lock().expect("no panic");
        let lines = got.iter().map(|(line, ..)| {
            let path = line.split(' ').nth(1).expect("a path");
            path.rsplit('/').next().expect("a name").to_owned()
        });
        lines.collect::<Vec<_>>()
    };
    while !lines().contains(&"done".to_owned()) {
        channel
            .deliver(&deliveries(1, Format::default()))
            .expect("on disk");
        channel.release(false).expect("delivered");
    }
    let lines = lines();
    let parts: Vec<_> = lines.iter().filter(|line| line.len() == 1).collect();
    assert_eq!(parts, ["0", "1", "2"], "{lines:?}");
    let place = |name: &str| lines.iter().position(|line| line == name);
    let between = &lines[place("0").expect("it is sent")..place("done").expect("it ends")];
    assert!(between.contains(&"batches".to_owned()), "{lines:?}");
}

/// Records around alerts. The test says when a capture begins, and when it is over.
struct Around {
    progress: Mutex<crate::CaptureProgress>,
    wake: Mutex<Option<crate::CaptureWake>>,
    /// Number of times that its progress was looked at.
    looks: AtomicUsize,
}

impl crate::CaptureSource for Around {
    fn begin(&self, _id: u64, _seconds: u64) {}

    fn end(&self) {}

    fn progress(&self) -> crate::CaptureProgress {
        self.looks.fetch_add(1, Ordering::SeqCst);
        let mut progress = self.progress.lock().expect("no panic");
        if let crate::CaptureProgress::Recording { cause, until } = &*progress
            && Instant::now() >= *until
        {
            *progress = crate::CaptureProgress::Done {
                cause: cause.clone(),
                bytes: 1,
                events: 1,
                lost: 0,
            };
        }
        progress.clone()
    }

    fn read(&self, _from: usize, length: usize) -> Vec<u8> {
        vec![0; length.min(1)]
    }

    fn forget(&self) {
        *self.progress.lock().expect("no panic") = crate::CaptureProgress::Idle;
    }

    fn wake_by(&self, wake: crate::CaptureWake) {
        *self.wake.lock().expect("no panic") = Some(wake);
    }

    fn set_own(&self, _own: &CaptureOnAlert) {}

    fn follow(&self, _wanted: Option<CaptureOnAlert>) {}

    fn on_alert(&self) -> Option<(CaptureOnAlert, crate::AlertCaptureCounts)> {
        let on = CaptureOnAlert {
            priority: Some(rules::Priority::Warning),
            ..CaptureOnAlert::default()
        };
        Some((on, crate::AlertCaptureCounts::default()))
    }

    fn refuse(&self) {
        unreachable!("the collector takes it");
    }
}

#[test]
fn nobody_looks_for_a_capture_that_has_not_begun_and_one_that_has_is_sent_at_its_end() {
    let fake = fake();
    let fixture = fixture(fake.address);
    *fake.capture.lock().expect("no panic") = "7".to_owned();
    let mut channel = open(&fixture);
    let source = Arc::new(Around {
        progress: Mutex::new(crate::CaptureProgress::Idle),
        wake: Mutex::default(),
        looks: AtomicUsize::new(0),
    });
    // It has shown life: the next time is in 15 seconds.
    channel.attempt(SendTime::Bounded);
    channel.attempt(SendTime::Bounded);
    channel.heartbeat = Instant::now() + HEARTBEAT;
    channel.next_attempt = channel.heartbeat;
    let (dispatcher, _told) = telling(channel);
    dispatcher.take_captures(Arc::clone(&source) as Arc<dyn crate::CaptureSource>);
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(source.looks.load(Ordering::SeqCst), 0, "nothing happens");

    let alert = crate::CapturedAlert {
        rule: "R".to_owned(),
        time_ns: 1,
        before_ms: 2,
        after_ms: 3,
    };
    let began = Instant::now();
    *source.progress.lock().expect("no panic") = crate::CaptureProgress::Recording {
        cause: crate::CaptureCause::Alert(alert),
        until: began + Duration::from_millis(500),
    };
    source.wake.lock().expect("no panic").as_ref().expect("set")();
    while requests(&fake, "/done") == 0 {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "before the sign of life"
        );
        thread::sleep(Duration::from_millis(5));
    }
    assert!(began.elapsed() >= Duration::from_millis(500));
    let looks = source.looks.load(Ordering::SeqCst);
    assert!(looks < 10, "{looks}");
}
