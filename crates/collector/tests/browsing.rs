//! Looking into captures stays within its memory, and nobody else waits for it.

mod started;
mod visitor;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use collector::{MatchedClause, MatchedRule};
use scap::browse::Browsed;
use store::Scope;

use self::started::{PART, Started};
use self::visitor::{Answer, Browser, alert};

/// Bytes of captures that are looked into at the same time, at most.
const ALL_BYTES: usize = 16 << 20;

/// People who look at the same time.
const MANY: usize = 9;

/// Threads for everything but looks into captures.
const OTHERS: usize = 8;

/// What looks into captures, as long as the test wants.
struct Looks {
    /// Gets a message from each that begins.
    began: Receiver<()>,
    /// Each that is to end takes a message.
    end: Sender<()>,
    /// Bytes of those that have begun and not ended, and the most of them so far.
    bytes: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    /// The same of proposals of exceptions, each of which takes a thread of the others.
    proposing: Receiver<()>,
    proposed: Sender<()>,
}

fn fixture() -> (Started, Looks) {
    let (begin, began) = channel();
    let (end, ended) = channel();
    let ended = Mutex::new(ended);
    let (bytes, most) = (Arc::default(), Arc::default());
    let (propose, proposing) = channel();
    let (proposed, answer) = channel();
    let answer = Mutex::new(answer);
    let looks = Looks {
        began,
        end,
        bytes: Arc::clone(&bytes),
        most: Arc::clone(&most),
        proposing,
        proposed,
    };
    let started = started::start(|settings| {
        settings.explain = Some(Arc::new(|_asked| {
            let clause = MatchedClause {
                depth: 0,
                text: "a clause".to_owned(),
                values: Vec::new(),
                holds: Some(true),
            };
            Ok(Some(MatchedRule {
                clauses: vec![clause],
                holds: Some(true),
                inferred: None,
                digests: Vec::new(),
                is_of_bundle: false,
            }))
        }));
        settings.propose = Some(Arc::new(move |_alert| {
            propose.send(()).expect("the test waits");
            let answer = answer.lock().expect("no panic");
            let _answer = answer.recv_timeout(Duration::from_secs(20));
            Err("there is none".to_owned())
        }));
        settings.browse = Some(Arc::new(move |capture, _query| {
            let read = std::io::copy(capture, &mut std::io::sink()).expect("it is whole");
            let read = usize::try_from(read).expect("small");
            let now = bytes.fetch_add(read, Ordering::SeqCst) + read;
            most.fetch_max(now, Ordering::SeqCst);
            begin.send(()).expect("the test waits");
            // A test that fails does not wait for ever.
            let ended = ended.lock().expect("no panic");
            let _ended = ended.recv_timeout(Duration::from_secs(20));
            drop(ended);
            bytes.fetch_sub(read, Ordering::SeqCst);
            Ok(Browsed {
                scanned: u64::try_from(read).expect("small"),
                ..Browsed::default()
            })
        }));
    });
    (started, looks)
}

/// Has many people look into a capture, of whom as many begin as may, and checks that nobody else waits for them.
fn many_look(fixture: &Started, looks: &Looks, path: &str, (may, bytes): (usize, usize)) {
    let browser = fixture.user(path.trim_start_matches("/captures/"), Scope::Operator);
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let all = [(); MANY].map(|()| scope.spawn(|| browser.get(path)));
        for _ in 0..may {
            let began = looks.began.recv_timeout(Duration::from_secs(30));
            began.expect("it begins");
        }
        others_are_answered(fixture, &browser);
        // The others are refused while these are looked into.
        while all.iter().filter(|page| page.is_finished()).count() < MANY - may {
            std::thread::sleep(Duration::from_millis(20));
        }
        looks.began.try_recv().expect_err("no more begin");
        assert_eq!(looks.bytes.load(Ordering::SeqCst), may * bytes);
        for _ in 0..may {
            looks.end.send(()).expect("it waits");
        }
        all.map(|page| page.join().expect("no panic")).into()
    });
    let (good, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|it| it.status == 200);
    assert_eq!((good.len(), refused.len()), (may, MANY - may));
    for answer in refused {
        assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
        let problem = "too many captures are looked into";
        assert!(answer.text.contains(problem), "{}", answer.text);
    }
}

/// Alerts are explained, and stored, at once.
fn others_are_answered(fixture: &Started, browser: &Browser<'_>) {
    let began = Instant::now();
    for _ in 0..4 {
        let page = browser.get("/alerts/1").text;
        assert!(page.contains("a clause"), "{page}");
        fixture.alerts(vec![alert("r", "m")]);
    }
    assert!(began.elapsed() < Duration::from_secs(4), "they wait");
}

#[test]
fn nobody_waits_for_those_who_look_into_captures_and_their_memory_is_bounded() {
    let (fixture, looks) = fixture();
    fixture.alerts(vec![alert("r", "m")]);
    let agent = fixture.enrol();
    for (parts, may) in [(16_u64, 1), (8, 2), (1, 4)] {
        let id = fixture.capture(agent, parts).0;
        let bytes = usize::try_from(parts).expect("small") * PART;
        many_look(&fixture, &looks, &format!("/captures/{id}"), (may, bytes));
    }
    assert!(looks.most.load(Ordering::SeqCst) <= ALL_BYTES);
}

#[test]
fn those_who_look_into_captures_take_no_thread_of_others() {
    let (fixture, looks) = fixture();
    fixture.alerts(vec![alert("r", "m")]);
    let path = format!("/captures/{}", fixture.capture(fixture.enrol(), 1).0);
    let browser = fixture.user("ann", Scope::Operator);
    let turns = ALL_BYTES / (4 << 20);
    let (filled, answers) = std::thread::scope(|scope| {
        let look = || scope.spawn(|| browser.get(&path));
        let mut all: Vec<_> = (0..turns).map(|_| look()).collect();
        for _ in 0..turns {
            let began = looks.began.recv_timeout(Duration::from_secs(30));
            began.expect("it begins");
        }
        let propose = || scope.spawn(|| browser.post("/alerts/1/exception", &[]));
        all.extend((0..OTHERS).map(|_| propose()));
        let begins = |_: &usize| {
            let begun = looks.proposing.recv_timeout(Duration::from_secs(10));
            begun.is_ok()
        };
        let filled = (0..OTHERS).take_while(begins).count();
        for _ in 0..turns {
            looks.end.send(()).expect("it waits");
        }
        for _ in 0..OTHERS {
            looks.proposed.send(()).expect("it waits");
        }
        let answers = all.into_iter().map(|page| page.join().expect("no panic"));
        (filled, answers.map(|it| it.status).collect::<Vec<_>>())
    });
    assert_eq!(filled, OTHERS, "others wait for those who look");
    assert_eq!(answers, vec![200; turns + OTHERS]);
}
