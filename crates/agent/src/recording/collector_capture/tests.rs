use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use event::testing::{self, Arg, EventBuilder, FakeSystemInfo};
use event::{Evaluator, EventKind, Process, Relevance, Stage};
use rules::Priority;
use scap::read::Reader;
use scap::replay::Replay;

use super::*;

fn asked(id: u64) -> CaptureCause {
    CaptureCause::Asked(id)
}

#[test]
fn there_is_one_capture_at_a_time_and_it_ends_by_its_time() {
    let capture = CollectorCapture::new(CaptureOnAlert::default());
    assert_eq!(capture.progress(), CaptureProgress::Idle);
    assert!(!capture.is_recording(), "nothing is asked for");
    capture.begin(7, 300);
    assert!(capture.is_recording());
    capture.begin(8, 1);
    let CaptureProgress::Recording { cause, until } = capture.progress() else {
        panic!("it is recorded");
    };
    assert_eq!(cause, asked(7));
    assert!(until > Instant::now() + Duration::from_secs(200));
    capture.end();
    assert!(!capture.is_recording());
    let CaptureProgress::Done { cause, bytes, .. } = capture.progress() else {
        panic!("it is over");
    };
    assert_eq!(cause, asked(7));
    // The header alone is a capture, too.
    assert_eq!(capture.read(0, usize::MAX).len(), bytes);
    assert_eq!(capture.read(bytes - 1, 5).len(), 1);
    assert!(capture.read(bytes + 1, 5).is_empty());
    capture.forget();
    assert_eq!(capture.progress(), CaptureProgress::Idle);
    capture.begin(9, 0);
    let CaptureProgress::Done { cause, .. } = capture.progress() else {
        panic!("it is over");
    };
    assert_eq!(cause, asked(9));
}

/// Names of the files that a process opened, with its parent's command, as a replay tells them.
#[derive(Default)]
struct Opened(Mutex<Vec<(String, String)>>);

impl Evaluator for Opened {
    type Scratch = ();

    fn scratch(&self) {}

    fn prefilter(&self, (): &mut (), _event: &Event<'_>) -> Relevance {
        Relevance::Undecided
    }

    fn evaluate(&self, (): &mut (), event: &Event<'_>) -> Vec<Arc<str>> {
        let value = |name: &str| {
            let field = event::field::Field::parse(name).expect("a field");
            format!("{:?}", field.extract(event))
        };
        let seen = (value("evt.arg.name"), value("proc.pcmdline"));
        self.0.lock().expect("no panic").push(seen);
        Vec::new()
    }
}

/// Returns how a value with this text is formatted.
fn formatted(text: &str) -> String {
    let bytes = format!("{:?}", text.as_bytes());
    bytes.trim_matches(['[', ']']).to_owned()
}

fn opened(capture: &CollectorCapture) -> Vec<(String, String)> {
    let bytes = capture.read(0, usize::MAX);
    let evaluator = Opened::default();
    let mut replay = Replay::new(&evaluator, 0);
    let mut reader = Reader::new(&*bytes).expect("a capture");
    while replay.step(&mut reader, 100).expect("whole blocks") {}
    evaluator.0.into_inner().expect("no panic")
}

/// Records that a process opens a file, with the rules that matched.
struct Opens {
    process: Arc<Process>,
    now: Instant,
}

impl Opens {
    fn new() -> Self {
        let parent = testing::process(7, None, &["/bin/parent", "arg"]);
        Self {
            process: testing::process(42, Some(&parent), &["/bin/test"]),
            now: Instant::now(),
        }
    }

    /// At this number of milliseconds.
    fn at(&self, capture: &CollectorCapture, millis: u64, file: &str, matched: &[RuleMatch<'_>]) {
        EventKind::from_name("openat").expect("a call");
        let builder = EventBuilder::new("openat")
            .process(&self.process)
            .world(FakeSystemInfo::default())
            .time_ns(1_000_000_000 + millis * 1_000_000)
            .result(5)
            .arg("name", Arg::Text(file.as_bytes().to_vec()));
        let event = builder.at(Stage::Exit);
        let now = self.now + Duration::from_millis(millis);
        capture.with(|state| state.record(&event, matched, now));
    }
}

fn matched(rule: &str, priority: Priority) -> [RuleMatch<'_>; 1] {
    [RuleMatch {
        rule,
        priority,
        capture: false,
        capture_duration_ms: 0,
    }]
}

fn warnings() -> CaptureOnAlert {
    CaptureOnAlert {
        priority: Some(Priority::Warning),
        before: 5,
        after: 1,
        ..CaptureOnAlert::default()
    }
}

#[test]
fn a_capture_around_an_alert_has_what_was_before_and_after_it() {
    let capture = CollectorCapture::new(warnings());
    assert!(capture.is_recording(), "past events are kept");
    let opens = Opens::new();
    opens.at(&capture, 0, "/long/ago", &[]);
    opens.at(&capture, 20_000, "/before", &[]);
    opens.at(&capture, 21_000, "/debug", &matched("D", Priority::Debug));
    assert_eq!(capture.progress(), CaptureProgress::Idle);
    opens.at(
        &capture,
        22_000,
        "/alert",
        &matched("W", Priority::Critical),
    );
    opens.at(
        &capture,
        22_500,
        "/after",
        &matched("W", Priority::Critical),
    );
    opens.at(&capture, 23_500, "/late", &[]);
    let CaptureProgress::Done { cause, events, .. } = capture.progress() else {
        panic!("its time is over");
    };
    let CaptureCause::Alert(alert) = cause else {
        panic!("nobody asked for it");
    };
    assert_eq!((&*alert.rule, alert.time_ns), ("W", 23_000_000_000));
    assert_eq!((alert.before_ms, alert.after_ms), (2_000, 1_000));
    let opened = opened(&capture);
    let names: Vec<_> = opened.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names.len(), 4, "{opened:?}");
    assert_eq!(events, 4);
    for (seen, name) in names.iter().zip(["/before", "/debug", "/alert", "/after"]) {
        assert!(seen.contains(&formatted(name)), "{name} in {opened:?}");
    }
    // Whatever was dropped, the processes are introduced.
    assert!(
        opened
            .iter()
            .all(|(_, parent)| parent.contains(&formatted("parent arg")))
    );
    let (_, counts) = capture.on_alert().expect("it goes on");
    assert_eq!((counts.begun, counts.busy, counts.rate), (1, 0, 0));
}

#[test]
fn alerts_without_a_capture_are_counted_by_cause() {
    let own = CaptureOnAlert {
        max_per_hour: 2,
        ..warnings()
    };
    let capture = CollectorCapture::new(own);
    let opens = Opens::new();
    let alert = matched("W", Priority::Warning);
    opens.at(&capture, 0, "/a", &alert);
    // Within the first one, and while that waits to be sent.
    opens.at(&capture, 500, "/b", &alert);
    opens.at(&capture, 1_500, "/c", &alert);
    capture.forget();
    opens.at(&capture, 2_000, "/d", &alert);
    capture.refuse();
    opens.at(&capture, 3_000, "/e", &alert);
    let (_, counts) = capture.on_alert().expect("it is on");
    let expected = AlertCaptureCounts {
        begun: 2,
        busy: 1,
        rate: 1,
        refused: 1,
    };
    assert_eq!(counts, expected);
    // An hour later there is room again.
    opens.at(&capture, 3_600_500, "/f", &alert);
    let (_, counts) = capture.on_alert().expect("it is on");
    assert_eq!((counts.begun, counts.rate), (3, 1));
    // One that the collector asked for has nothing before the alert.
    capture.forget();
    capture.begin(7, 300);
    opens.at(&capture, 3_601_000, "/g", &alert);
    let (_, counts) = capture.on_alert().expect("it is on");
    assert_eq!((counts.begun, counts.busy), (3, 2));
}

#[test]
fn memory_of_the_past_is_bounded_and_what_is_left_is_readable() {
    let own = CaptureOnAlert {
        limit_mib: 1,
        ..warnings()
    };
    let capture = CollectorCapture::new(own);
    let opens = Opens::new();
    let name = format!("/{}", "x".repeat(3_000));
    for millis in 0..1_000 {
        opens.at(&capture, millis, &name, &[]);
        let size = capture.state().ring.size();
        assert!(size <= 1 << 20, "{size}");
    }
    assert!(capture.state().ring.size() > 1 << 19);
    opens.at(&capture, 1_000, "/alert", &matched("W", Priority::Warning));
    capture.end();
    let CaptureProgress::Done { bytes, events, .. } = capture.progress() else {
        panic!("it has ended");
    };
    assert!(bytes < (1 << 20) + (64 << 10), "{bytes}");
    let opened = opened(&capture);
    assert_eq!(u64::try_from(opened.len()), Ok(events));
    assert!(events > 100 && events < 1_000, "{events}");
    assert!(
        opened
            .iter()
            .all(|(_, parent)| parent.contains(&formatted("parent arg")))
    );
}

#[test]
fn the_collector_says_which_alerts_unless_the_agent_does_and_a_rule_may_ask_itself() {
    let capture = CollectorCapture::new(CaptureOnAlert::default());
    assert_eq!(capture.on_alert(), None);
    let opens = Opens::new();
    opens.at(&capture, 0, "/a", &matched("W", Priority::Critical));
    assert_eq!(capture.progress(), CaptureProgress::Idle, "it is off");
    let wanted = CaptureOnAlert {
        priority: None,
        rules: vec!["R".to_owned()],
        ..warnings()
    };
    capture.follow(Some(wanted.clone()));
    assert!(capture.is_recording());
    opens.at(&capture, 1, "/a", &matched("W", Priority::Critical));
    assert_eq!(capture.progress(), CaptureProgress::Idle);
    let own = RuleMatch {
        capture: true,
        capture_duration_ms: 250,
        ..matched("W", Priority::Debug)[0]
    };
    opens.at(&capture, 2, "/a", &[own]);
    opens.at(&capture, 300, "/b", &[]);
    let CaptureProgress::Done { cause, events, .. } = capture.progress() else {
        panic!("its own time is over");
    };
    let CaptureCause::Alert(alert) = cause else {
        panic!("nobody asked for it");
    };
    assert_eq!((&*alert.rule, alert.after_ms, events), ("W", 250, 2));
    capture.forget();
    capture.follow(None);
    assert!(!capture.is_recording(), "nothing is kept any more");
    let theirs = CollectorCapture::new(warnings());
    theirs.follow(Some(wanted));
    theirs.follow(None);
    let (in_force, _) = theirs.on_alert().expect("its own");
    assert_eq!(in_force, warnings());
    // Its settings change, as by a bundle, and back.
    let theirs_now = CaptureOnAlert {
        before: 7,
        ..warnings()
    };
    theirs.follow(Some(theirs_now.clone()));
    theirs.set_own(&CaptureOnAlert::default());
    let (in_force, _) = theirs.on_alert().expect("the collector's");
    assert_eq!(in_force, theirs_now);
    theirs.set_own(&warnings());
    let (in_force, _) = theirs.on_alert().expect("its own");
    assert_eq!(in_force, warnings());
}

#[test]
fn a_capture_without_the_past_begins_with_the_event_of_its_alert() {
    let capture = CollectorCapture::new(CaptureOnAlert {
        before: 0,
        ..warnings()
    });
    let opens = Opens::new();
    // The second time nothing of the first one is left.
    for start in [0, 5_000] {
        opens.at(&capture, start, "/before", &[]);
        opens.at(&capture, start, "/alert", &matched("W", Priority::Critical));
        opens.at(&capture, start + 1, "/after", &[]);
        opens.at(&capture, start + 2_000, "/late", &[]);
        let CaptureProgress::Done { cause, events, .. } = capture.progress() else {
            panic!("its time is over");
        };
        let CaptureCause::Alert(alert) = cause else {
            panic!("nobody asked for it");
        };
        assert_eq!((alert.before_ms, alert.after_ms, events), (0, 1_000, 2));
        let opened = opened(&capture);
        assert_eq!(opened.len(), 2, "{opened:?}");
        for ((seen, parent), name) in opened.iter().zip(["/alert", "/after"]) {
            assert!(seen.contains(&formatted(name)), "{name} in {opened:?}");
            assert!(parent.contains(&formatted("parent arg")), "{opened:?}");
        }
        capture.forget();
    }
}

#[test]
fn events_do_not_wait_for_the_header_of_a_capture_that_begins() {
    let capture = CollectorCapture::new(CaptureOnAlert::default());
    capture.begin_with(7, 300, || {
        assert!(capture.state.try_lock().is_ok(), "an event would wait");
        header::header()
    });
    let CaptureProgress::Recording { cause, .. } = capture.progress() else {
        panic!("it is recorded");
    };
    assert_eq!(cause, asked(7));
    capture.begin_with(8, 300, || panic!("there is one"));
}

#[test]
fn a_capture_that_begins_by_itself_wakes_who_sends_it_and_nothing_else_does() {
    let capture = CollectorCapture::new(warnings());
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    capture.wake_by(Box::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    }));
    let process = testing::process(42, None, &["/bin/test"]);
    let records = |matched: &[RuleMatch<'_>]| {
        let builder = EventBuilder::new("openat")
            .process(&process)
            .world(FakeSystemInfo::default())
            .result(5)
            .arg("name", Arg::Text(b"/a".to_vec()));
        Recorder::record(&capture, &builder.at(Stage::Exit), matched);
        woken.load(Ordering::SeqCst)
    };
    assert_eq!(records(&[]), 0);
    assert_eq!(records(&matched("D", Priority::Debug)), 0);
    assert_eq!(records(&matched("W", Priority::Warning)), 1);
    assert_eq!(records(&matched("W", Priority::Warning)), 1, "within it");
    let CaptureProgress::Recording { until, .. } = capture.progress() else {
        panic!("it is recorded");
    };
    let left = until.saturating_duration_since(Instant::now());
    assert!(left <= Duration::from_secs(1), "{left:?}");
    capture.end();
    assert_eq!(records(&matched("W", Priority::Warning)), 1, "it waits");
    capture.forget();
    assert_eq!(records(&matched("W", Priority::Warning)), 2);
}
