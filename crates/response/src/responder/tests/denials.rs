use event::{Denial, ProcessDenier};

use super::*;

/// Notes what it is asked, and knows one process.
struct Noting {
    known: Pid,
    lack: Option<String>,
    asked: Arc<Mutex<Vec<Denial>>>,
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

    fn spare(&self, _process: (Pid, StartTime), _denial: DenialId) -> bool {
        false
    }

    fn is_alive(&self) -> bool {
        true
    }
}

const DENY: &str =
    "  - {action: Deny, actionner: 'process:deny', parameters: {calls: [exec, connect]}}\n";

#[test]
fn calls_are_withheld_from_the_process_at_once_and_then_from_its_descendants() {
    let (responder, reports) = responder(&answer(DENY), &[]);
    let child = sleeper();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let known = Pid(child.id().cast_signed());
    responder.denials().add(Arc::new(Noting {
        known,
        lack: None,
        asked: Arc::clone(&asked),
    }));
    let offered = responder
        .offer(&alert_of(child.id()))
        .expect("a rule matches");
    let of_one: Vec<Denial> = asked.lock().unwrap().clone();
    assert_eq!(of_one.len(), 1);
    assert!(!of_one[0].has_descendants);
    offered.start();
    let reason = report(&reports, TAKEN, "response.reason");
    assert_eq!(
        reason,
        format!("denied exec, connect to 1 process (pid {})", known.0)
    );
    let asked = asked.lock().unwrap();
    assert!(asked[1].has_descendants);
    assert_eq!(asked[1].id, asked[0].id);
    end(child);
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
        let asked = Arc::default();
        responder
            .denials()
            .add(Arc::new(Noting { known, lack, asked }));
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
