use event::{Denial, ProcessDenier};

use super::*;

/// Notes what it is asked, and knows one process.
struct Noting {
    known: Pid,
    lack: Option<String>,
    asked: Arc<Mutex<Vec<Denial>>>,
    /// Descendants that only the engine knows.
    below: Vec<(Pid, StartTime)>,
    spared: Arc<Mutex<Vec<Pid>>>,
}

impl Noting {
    fn of(known: Pid) -> Self {
        Self {
            known,
            lack: None,
            asked: Arc::default(),
            below: Vec::new(),
            spared: Arc::default(),
        }
    }
}

impl ProcessDenier for Noting {
    fn deny(&self, process: (Pid, StartTime), denial: Denial) -> Result<bool, String> {
        match &self.lack {
            _ if process.0 != self.known => Ok(false),
            Some(lack) => Err(lack.clone()),
            None => {
                self.asked.lock().unwrap().push(denial);
                Ok(true)
            }
        }
    }

    fn spare(&self, process: (Pid, StartTime), _denial: DenialId) -> bool {
        self.spared.lock().unwrap().push(process.0);
        true
    }

    fn is_denied(&self, process: (Pid, StartTime), denial: DenialId) -> bool {
        let asked = self.asked.lock().unwrap();
        process.0 == self.known && asked.iter().any(|known| known.id == denial)
    }

    fn denied_descendants(
        &self,
        _process: (Pid, StartTime),
        _denial: DenialId,
    ) -> Vec<(Pid, StartTime)> {
        self.below.clone()
    }

    fn is_alive(&self) -> bool {
        true
    }
}

const DENY: &str =
    "  - {action: Deny, actionner: 'process:deny', parameters: {calls: [exec, connect]}}\n";

#[test]
fn calls_are_withheld_at_once_and_then_protected_descendants_are_spared() {
    let (responder, reports) = responder(&answer(DENY), &[]);
    let (child, below) = (sleeper(), sleeper());
    let known = Pid(child.id().cast_signed());
    let proc = Proc::open().unwrap();
    let identity = |pid: i32| (Pid(pid), proc.stat(pid).unwrap().start);
    // One that may be hit, and one that never is.
    let (hit, protected) = (identity(below.id().cast_signed()), identity(1));
    let denier = Noting {
        below: vec![hit, protected],
        ..Noting::of(known)
    };
    let (asked, spared) = (Arc::clone(&denier.asked), Arc::clone(&denier.spared));
    responder.denials().add(Arc::new(denier));
    let offered = responder
        .offer(&alert_of(child.id()))
        .expect("a rule matches");
    assert_eq!(asked.lock().unwrap().len(), 1);
    assert!(spared.lock().unwrap().is_empty());
    offered.start();
    let reason = report(&reports, TAKEN, "response.reason");
    let expected = format!(
        "denied exec, connect to 2 processes (pid {}, {}); spared pid 1: pid 1 is never hit",
        known.0, hit.0.0
    );
    assert_eq!(reason, expected);
    assert_eq!(*spared.lock().unwrap(), [Pid(1)]);
    assert_eq!(asked.lock().unwrap().len(), 1);
    end(child);
    end(below);
}

#[test]
fn alerts_of_a_process_that_is_hit_start_nothing_and_use_up_no_rate() {
    let (responder, reports) = responder_with(&answer(DENY), &[], |settings| {
        settings.limits.each.max_burst = 2;
        settings.limits.each.per_second = 0.001;
    });
    let (child, other) = (sleeper(), sleeper());
    let denier = Noting::of(Pid(child.id().cast_signed()));
    let asked = Arc::clone(&denier.asked);
    responder.denials().add(Arc::new(denier));
    let offer_of = |child: &Child| responder.offer(&alert_of(child.id()));
    offer_of(&child).expect("a rule matches").start();
    assert_eq!(report(&reports, TAKEN, "response.result"), "done");
    for _ in 0..5 {
        assert!(offer_of(&child).is_none());
    }
    assert_eq!(asked.lock().unwrap().len(), 1);
    offer_of(&other).expect("the rate is not used up").start();
    assert_eq!(report(&reports, TAKEN, "response.result"), "failed");
    end(child);
    end(other);
}

#[test]
fn a_process_that_has_ended_with_unknown_descendants_is_reported_as_failed() {
    // Not the first action, so that the process may end before.
    let actions = format!(
        "  - {{action: Wait, actionner: 'host:script', parameters: {{script: 'sleep 0.3'}}}}\n{DENY}"
    );
    let (responder, reports) = responder(&answer(&actions), &[]);
    let child = sleeper();
    responder.denials().add(Arc::new(Noting::of(Pid(0))));
    offer(&responder, &alert_of(child.id()));
    end(child);
    assert_eq!(report(&reports, TAKEN, "response.result"), "done");
    let last = reports.recv_timeout(LIMIT).unwrap();
    assert_eq!(text_of(&last, "response.result"), "failed");
    assert_eq!(
        text_of(&last, "response.reason"),
        "the process had ended; descendants that it may have are not hit"
    );
}

#[test]
fn what_no_engine_can_withhold_is_reported_as_failed() {
    for (lack, expected) in [
        (
            Some("no filter".to_owned()),
            "not supported here: no filter",
        ),
        (None, "no engine of tollgate watches the process any more"),
    ] {
        let (responder, reports) = responder(&answer(DENY), &[]);
        let child = sleeper();
        let known = match &lack {
            Some(_) => Pid(child.id().cast_signed()),
            None => Pid(0),
        };
        responder.denials().add(Arc::new(Noting {
            lack,
            ..Noting::of(known)
        }));
        offer(&responder, &alert_of(child.id()));
        let report = reports.recv_timeout(LIMIT).unwrap();
        assert_eq!(text_of(&report, "response.result"), "failed");
        assert_eq!(text_of(&report, "response.reason"), expected);
        end(child);
    }
}

#[test]
fn an_engine_that_cannot_withhold_calls_is_refused_before_it_starts() {
    let file = SourceFile {
        name: "r.yaml".to_owned(),
        text: Ok(answer(DENY)),
    };
    let loaded = load(vec![file], &[]);
    let rate = ThrottleRate {
        per_second: 1.0,
        max_burst: 1,
    };
    let settings = Settings {
        dry_run: false,
        limits: Limits {
            total: rate,
            each: rate,
        },
        caller_waits: false,
        has_local_pids: true,
        cannot_deny: Some("it sees a call when it has been made"),
    };
    let error = Prepared::new(loaded.responses, settings, means()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot use `process:deny` of the response rule `Answer`: not supported here: it sees a call when it has been made"
    );
}
