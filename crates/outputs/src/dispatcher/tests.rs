mod losses;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rules::{AlertValue, Priority};

use super::*;
use crate::channel::{Delivery, DeliveryError, ReceiverState};
use crate::program::{ProgramChannel, ProgramOptions};

/// What a test channel does with the next delivery.
enum Step {
    Take,
    Fail(ReceiverState),
    Reject,
}

/// Delivers only when the test lets it.
struct Gated {
    name: &'static str,
    steps: Receiver<Step>,
    taken: Arc<Mutex<Vec<String>>>,
}

impl Channel for Gated {
    fn name(&self) -> &str {
        self.name
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        match self.steps.recv() {
            Ok(Step::Fail(receiver)) => Err(DeliveryError {
                receiver,
                ..DeliveryError::of_all(io::ErrorKind::BrokenPipe.into())
            }),
            Ok(Step::Reject) => Err(DeliveryError {
                rejected: alerts.len(),
                ..DeliveryError::of_all(io::Error::other("not taken"))
            }),
            // A test that has dropped its end wants the channel to run free.
            Ok(Step::Take) | Err(_) => {
                let mut taken = self.taken.lock().unwrap();
                taken.extend(
                    alerts
                        .iter()
                        .map(|alert| alert.line().trim_end().to_owned()),
                );
                Ok(())
            }
        }
    }
}

struct Gate {
    steps: Option<Sender<Step>>,
    taken: Arc<Mutex<Vec<String>>>,
}

impl Gate {
    fn open(&mut self) {
        self.steps = None;
    }

    fn step(&self, step: Step) {
        self.steps.as_ref().unwrap().send(step).unwrap();
    }

    fn taken(&self) -> Vec<String> {
        self.taken.lock().unwrap().clone()
    }
}

fn gated(name: &'static str) -> (Box<dyn Channel>, Gate) {
    let (sender, steps) = channel();
    let taken = Arc::new(Mutex::new(Vec::new()));
    let gate = Gate {
        steps: Some(sender),
        taken: Arc::clone(&taken),
    };
    (Box::new(Gated { name, steps, taken }), gate)
}

fn settings() -> Settings {
    Settings::new("box".into(), Arc::new(|_| ()))
}

fn alert(message: &str) -> Alert {
    Alert {
        time_ns: 1,
        made_ns: 2,
        rule: "r".into(),
        priority: Priority::Notice,
        source: "syscall".into(),
        tags: Arc::new([]),
        hostname: "box".into(),
        message: message.to_owned(),
        fields: vec![("proc.name".into(), AlertValue::Text("cat".into()))],
        details: rules::AlertDetails::default(),
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn emit_many(dispatcher: &Dispatcher, count: usize) {
    for n in 0..count {
        dispatcher.emit(alert(&format!("n={n}")));
    }
}

/// Log settings hide no loss.
#[test]
fn an_own_alert_that_warns_goes_to_the_channels_if_no_log_takes_it() {
    for (is_taken, expected) in [(true, &[][..]), (false, &["gap"])] {
        let (channel, mut gate) = gated("a");
        gate.open();
        let logged = Arc::new(Mutex::new(0));
        let count = Arc::clone(&logged);
        let log = move |_: &Alert| {
            *count.lock().unwrap() += 1;
            is_taken
        };
        let settings = Settings {
            log: Some(Arc::new(log)),
            ..settings()
        };
        let dispatcher = Dispatcher::prepare(settings, vec![channel])
            .start()
            .unwrap();
        for (rule, priority, message) in [
            ("Tollgate internal: unwatched gap", Priority::Warning, "gap"),
            (
                "Tollgate internal: rules loaded",
                Priority::Informational,
                "loaded",
            ),
        ] {
            dispatcher.emit_internal(Internal {
                rule,
                priority,
                message: message.to_owned(),
                fields: Vec::new(),
            });
        }
        assert_eq!(dispatcher.flush(soon()), []);
        let taken = gate.taken();
        assert_eq!(taken.len(), expected.len(), "{taken:?}");
        for (line, text) in taken.iter().zip(expected) {
            assert!(line.contains(text), "{line}");
        }
        assert_eq!(*logged.lock().unwrap(), 2);
    }
}

#[test]
fn alerts_reach_every_channel_in_order() {
    let (a, mut gate_a) = gated("a");
    let (b, mut gate_b) = gated("b");
    let dispatcher = Dispatcher::prepare(settings(), vec![a, b]).start().unwrap();
    gate_a.open();
    gate_b.open();
    emit_many(&dispatcher, 1000);
    assert_eq!(dispatcher.flush(soon()), []);
    for gate in [gate_a, gate_b] {
        let taken = gate.taken();
        assert_eq!(taken.len(), 1000);
        assert!(
            taken
                .iter()
                .enumerate()
                .all(|(n, line)| line.ends_with(&format!(": Notice n={n}")))
        );
    }
}

#[test]
fn the_queue_is_bounded_in_bytes_too() {
    let (stuck, _gate) = gated("stuck");
    let capacity = QueueCapacity {
        alerts: 1000,
        bytes: 100_000,
    };
    let settings = Settings {
        capacity,
        ..settings()
    };
    let dispatcher = Dispatcher::prepare(settings, vec![stuck]).start().unwrap();
    for _ in 0..10 {
        dispatcher.emit(alert(&"x".repeat(20_000)));
    }
    let counters = &dispatcher.counters().channels[0];
    // A message counts thrice: itself, and in a JSON line as output and as message.
    assert_eq!((counters.queued, counters.lost_queue_full), (1, 9));
}

#[test]
fn alerts_that_the_receiver_refuses_are_counted_apart() {
    let (channel, mut gate) = gated("file");
    let dispatcher = Dispatcher::prepare(settings(), vec![channel])
        .start()
        .unwrap();
    gate.step(Step::Reject);
    emit_many(&dispatcher, 3);
    gate.open();
    assert_eq!(dispatcher.flush(soon()), []);
    let counters = &dispatcher.counters().channels[0];
    assert_eq!((counters.lost_rejected, counters.lost()), (1, 1));
    assert_eq!(counters.delivered, 2);
}

#[test]
fn a_receiver_that_has_never_been_there_is_said_once_and_no_loss() {
    let (problems, said) = std::sync::mpsc::channel();
    let settings = Settings {
        on_problem: Arc::new(move |problem| problems.send(problem.to_owned()).unwrap()),
        ..settings()
    };
    let (channel, mut gate) = gated("syslog");
    let dispatcher = Dispatcher::prepare(settings, vec![channel])
        .start()
        .unwrap();
    gate.step(Step::Fail(ReceiverState::Absent));
    gate.step(Step::Fail(ReceiverState::Absent));
    emit_many(&dispatcher, 3);
    gate.open();
    assert_eq!(dispatcher.flush(soon()), []);
    let counters = &dispatcher.counters().channels[0];
    assert_eq!((counters.delivered, counters.lost_no_receiver), (1, 2));
    assert_eq!((counters.lost(), counters.queued), (0, 3), "no alert of it");
    let said: Vec<_> = said.try_iter().collect();
    assert!(said.len() == 1 && said[0].starts_with("nobody receives alerts of syslog: "));
}

#[test]
fn a_dead_channel_counts_everything_after_as_lost_and_flush_does_not_wait_for_it() {
    let (channel, gate) = gated("stdout");
    let dispatcher = Dispatcher::prepare(settings(), vec![channel])
        .start()
        .unwrap();
    gate.step(Step::Fail(ReceiverState::Gone));
    emit_many(&dispatcher, 5);
    assert_eq!(dispatcher.flush(soon()), []);
    emit_many(&dispatcher, 5);
    let counters = dispatcher.counters().channels.remove(0);
    assert_eq!(
        (
            counters.delivered,
            counters.lost_write_failed,
            counters.pending
        ),
        (0, 10, 0)
    );
}

#[test]
fn throttled_alerts_are_counted_and_announced() {
    let (channel, mut gate) = gated("stdout");
    gate.open();
    let throttle = ThrottleRate {
        per_second: 0.001,
        max_burst: 3,
    };
    let settings = Settings {
        throttle,
        ..settings()
    };
    let dispatcher = Dispatcher::prepare(settings, vec![channel])
        .start()
        .unwrap();
    emit_many(&dispatcher, 20);
    assert_eq!(dispatcher.flush(soon()), []);
    let counters = dispatcher.counters();
    assert_eq!((counters.emitted, counters.suppressed), (3, 17));
    let taken = gate.taken();
    assert_eq!(taken.len(), 4, "{taken:?}");
    assert!(
        taken[3].ends_with("by outputs.rate (suppressed=17 suppressed_total=17)"),
        "{taken:?}"
    );
}

#[test]
fn internal_alerts_are_rate_limited_by_rule_and_the_rest_summed_up() {
    let (channel, mut gate) = gated("stdout");
    gate.open();
    let dispatcher = Dispatcher::prepare(settings(), vec![channel])
        .start()
        .unwrap();
    let event = |rule| Internal {
        rule,
        priority: Priority::Warning,
        message: rule.to_owned(),
        fields: Vec::new(),
    };
    for _ in 0..10 {
        dispatcher.emit_internal(event("Tollgate internal: a"));
        dispatcher.emit_internal(event("Tollgate internal: b"));
    }
    assert_eq!(dispatcher.flush(soon()), []);
    let mut taken: Vec<_> = gate
        .taken()
        .iter()
        .map(|line| line.split_once(": ").unwrap().1.to_owned())
        .collect();
    taken.sort();
    assert_eq!(
        taken,
        [
            "Notice Tollgate internal: a: 9 more",
            "Notice Tollgate internal: b: 9 more",
            "Warning Tollgate internal: a",
            "Warning Tollgate internal: b",
        ]
    );
}

#[test]
fn what_is_about_one_thing_is_limited_apart_from_others() {
    let (channel, mut gate) = gated("stdout");
    gate.open();
    let dispatcher = Dispatcher::prepare(settings(), vec![channel])
        .start()
        .unwrap();
    let event = || Internal {
        rule: "Tollgate internal: a",
        priority: Priority::Warning,
        message: "a".to_owned(),
        fields: Vec::new(),
    };
    let about = |name: &str| dispatcher.about(vec![("x", AlertValue::Text(name.to_owned()))]);
    let (one, two) = (about("one"), about("two"));
    for _ in 0..10 {
        one.emit_internal(event());
        two.emit_internal(event());
    }
    assert_eq!(dispatcher.flush(soon()), []);
    assert_eq!(gate.taken().len(), 2);
    assert_eq!(one.flush(soon()), []);
    assert_eq!(gate.taken().len(), 3);
    assert_eq!(
        one.internal(event()).fields[0].1,
        AlertValue::Text("one".to_owned())
    );
    let own = ("x", AlertValue::Int(1));
    let with_own = Internal {
        fields: vec![own.clone()],
        ..event()
    };
    let fields = one.internal(with_own).fields;
    assert_eq!(fields, [(own.0.into(), own.1)]);
    assert_eq!(dispatcher.internal(event()).fields, []);
}

#[test]
fn buffered_channels_take_a_backlog_many_at_a_time() {
    let (channel, gate) = gated("stdout");
    let settings = Settings {
        buffered: true,
        ..settings()
    };
    let dispatcher = Dispatcher::prepare(settings, vec![channel])
        .start()
        .unwrap();
    emit_many(&dispatcher, 100);
    // The first delivery may have started with any number; two more steps must be enough.
    for _ in 0..3 {
        gate.step(Step::Take);
    }
    assert_eq!(dispatcher.flush(soon()), []);
    assert_eq!(gate.taken().len(), 100);
}

fn with_program(program: &str, keep_alive: bool) -> Dispatcher {
    let channel = ProgramChannel::new(ProgramOptions {
        program: program.to_owned(),
        keep_alive,
        timeout: Duration::from_secs(60),
        prints_to: crate::StandardStream::Output,
    });
    let prepared = Dispatcher::prepare(settings(), vec![Box::new(channel)]);
    prepared.start().unwrap()
}

#[test]
fn closing_lets_a_program_read_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let dispatcher = with_program(&format!("sleep 0.2; cat > {}", out.display()), true);
    for n in 0..3 {
        dispatcher.emit(alert(&format!("n={n}")));
    }
    assert_eq!(
        dispatcher.flush(Instant::now() + Duration::from_secs(10)),
        []
    );
    dispatcher.close(Duration::from_secs(10));
    let text = std::fs::read_to_string(&out).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn closing_does_not_wait_for_a_program_that_holds_up_a_delivery() {
    let dispatcher = with_program("sleep 1000", false);
    for n in 0..3 {
        dispatcher.emit(alert(&format!("n={n}")));
    }
    let start = Instant::now();
    let pending = dispatcher.flush(start + Duration::from_millis(100));
    assert_eq!(pending[0].alerts, 3);
    dispatcher.close(Duration::from_secs(60));
    assert!(start.elapsed() < Duration::from_secs(30));
    let counters = &dispatcher.counters().channels[0];
    assert_eq!((counters.pending, counters.lost_write_failed), (0, 3));
}

#[test]
fn what_is_to_be_done_when_an_alert_is_settled_waits_for_every_channel() {
    let (a, mut gate_a) = gated("a");
    let (b, gate_b) = gated("b");
    let dispatcher = Dispatcher::prepare(settings(), vec![a, b]).start().unwrap();
    let (settled, is_settled) = channel();
    let event = Internal {
        rule: "Tollgate internal: x",
        priority: Priority::Notice,
        message: "m".to_owned(),
        fields: Vec::new(),
    };
    dispatcher.emit_internal_then(event, Box::new(move || settled.send(()).unwrap()));
    gate_a.open();
    let short = Duration::from_millis(50);
    assert!(is_settled.recv_timeout(short).is_err(), "b has it still");
    // One that is lost is counted, and settled too.
    gate_b.step(Step::Fail(ReceiverState::Gone));
    is_settled.recv_timeout(Duration::from_secs(10)).unwrap();
    let lost: Vec<_> = dispatcher.counters().channels;
    assert_eq!(lost[1].lost_write_failed, 1);
    // It may have been told already that the other has lost one.
    assert!([1, 2].contains(&lost[0].delivered), "{lost:?}");
}

/// Delivers only at a flush.
#[derive(Default)]
struct Holding(usize);

impl Channel for Holding {
    fn name(&self) -> &str {
        "holding"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        self.0 += alerts.len();
        Ok(())
    }

    fn held(&self) -> usize {
        self.0
    }

    fn release(&mut self, everything: bool) -> Result<(), DeliveryError> {
        if everything {
            self.0 = 0;
        }
        Ok(())
    }
}

#[test]
fn a_channel_that_takes_nothing_takes_no_time_from_the_others() {
    let (blocked, _gate) = gated("blocked");
    let channels = vec![blocked, Box::<Holding>::default() as Box<dyn Channel>];
    let dispatcher = Dispatcher::prepare(settings(), channels).start().unwrap();
    let names = |left: Vec<Pending>| {
        left.into_iter()
            .map(|left| left.channel)
            .collect::<Vec<_>>()
    };
    dispatcher.emit(alert("n=0"));
    let left = dispatcher.flush(Instant::now() + Duration::from_millis(500));
    assert_eq!(names(left), ["blocked"]);
    // One that is not waited for any more.
    dispatcher.emit(alert("n=1"));
    let later = soon();
    let left = dispatcher.flush_each(|name| match name {
        "blocked" => Instant::now(),
        _ => later,
    });
    assert_eq!(names(left), ["blocked"]);
    assert!(Instant::now() < later);
}
