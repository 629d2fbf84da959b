//! Captures that the collector asked for.

use super::slow::far;
use super::*;

/// Has a capture that is over, of so many bytes.
struct Over(usize);

impl crate::CaptureSource for Over {
    fn begin(&self, _id: u64, _seconds: u64) {}

    fn end(&self) {}

    fn progress(&self) -> crate::CaptureProgress {
        crate::CaptureProgress::Done {
            cause: crate::CaptureCause::Asked(7),
            bytes: self.0,
            events: 1,
            lost: 0,
        }
    }

    fn read(&self, from: usize, length: usize) -> Vec<u8> {
        vec![0; length.min(self.0 - from)]
    }

    fn forget(&self) {}

    fn follow(&self, _wanted: Option<CaptureOnAlert>) {}

    fn on_alert(&self) -> Option<(CaptureOnAlert, crate::AlertCaptureCounts)> {
        None
    }

    fn refuse(&self) {
        unreachable!("the collector asked for it");
    }
}

#[test]
fn alerts_have_arrived_even_if_a_capture_does_not() {
    let fake = fake();
    let fixture = fixture(fake.address);
    let mut channel = open(&fixture);
    let slot = ReportSlot::default();
    slot.take_captures(Arc::new(Over(1)));
    channel.keep_reports(&slot);
    // Enrolment, inventory, batch, part of the capture; then the part alone.
    let statuses = ["201 Created", "200 OK", "200 OK", "507 Full", "507 Full"];
    *fake.statuses.lock().expect("no panic") = statuses.into();
    channel
        .deliver(&deliveries(3, Format::default()))
        .expect("delivered");
    assert_eq!((fake.batches(), channel.held()), (vec![(1, 3)], 0));
    assert!(!channel.pause.is_zero(), "the capture is tried again");
    channel.attempt(SendTime::Bounded);
    let got = fake.got.lock().expect("no panic").len();
    assert_eq!(got, statuses.len());
    assert_eq!(channel.receiver_notice(), None);
    // A failure a minute later would be the first one.
    let later = Instant::now() + Duration::from_secs(60);
    channel
        .standing
        .fails(&io::Error::other("gone"), None, later);
    assert_eq!(channel.receiver_notice(), None);
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
            Some(&id) => crate::CaptureProgress::Recording(crate::CaptureCause::Asked(id)),
        }
    }

    fn read(&self, _from: usize, _length: usize) -> Vec<u8> {
        Vec::new()
    }

    fn forget(&self) {}

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
    slot.take_captures(Arc::new(Over(3 * (512 << 10))));
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
