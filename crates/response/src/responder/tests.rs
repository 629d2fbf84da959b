use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;

use event::Pid;
use outputs::{Channel, Delivery, DeliveryError};

use super::*;
use crate::bound::SIGKILL;
use crate::load::{SourceFile, load};
use crate::outcome::{NOT_TAKEN, TAKEN};
use crate::testing::{alert, alert_of};
use crate::tree::{Selection, Tree};

mod denials;

/// Passes alerts on.
struct Reporting(Sender<Alert>);

impl Channel for Reporting {
    fn name(&self) -> &str {
        "test"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        for alert in alerts {
            // The test may have ended.
            let _ = self.0.send(alert.alert().clone());
        }
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A responder with these rules, and what it reports.
fn responder(rules: &str, accepted: &[&str]) -> (Responder, Receiver<Alert>) {
    responder_with(rules, accepted, |_| ())
}

/// A responder whose settings are changed.
fn responder_with(
    rules: &str,
    accepted: &[&str],
    change: impl FnOnce(&mut Settings),
) -> (Responder, Receiver<Alert>) {
    // A machine may be busy with other tests.
    responder_within(LIMIT, rules, accepted, change)
}

/// The same with a limit of the search of a dry run.
fn responder_within(
    search_limit: Duration,
    rules: &str,
    accepted: &[&str],
    change: impl FnOnce(&mut Settings),
) -> (Responder, Receiver<Alert>) {
    let file = SourceFile {
        name: "r.yaml".to_owned(),
        text: Ok(rules.to_owned()),
    };
    let accepted: Vec<_> = accepted.iter().map(|name| (*name).to_owned()).collect();
    let loaded = load(vec![file], &accepted);
    assert!(loaded.is_usable(), "{}", loaded.render());
    let rate = ThrottleRate {
        per_second: 100.0,
        max_burst: 100,
    };
    let mut settings = Settings {
        dry_run: false,
        limits: Limits {
            total: rate,
            each: rate,
        },
        caller_waits: true,
        has_local_pids: true,
        cannot_deny: None,
    };
    change(&mut settings);
    let (sender, reports) = channel();
    let settings_of_outputs = outputs::Settings::new("box".into(), Arc::new(|_: &str| {}));
    let dispatcher = Dispatcher::prepare(settings_of_outputs, vec![Box::new(Reporting(sender))]);
    let mut prepared = Prepared::new(loaded.responses, settings, means()).unwrap();
    prepared.search_limit = search_limit;
    let responder = prepared.start(dispatcher.start().unwrap()).unwrap();
    (responder, reports)
}

/// No means.
fn means() -> Means {
    Means {
        capture: Err("no engine"),
        quarantine: Err("no programs".to_owned()),
    }
}

/// A response rule for the alert.
fn answer(actions: &str) -> String {
    format!("- rule: Answer\n  match: {{rules: [Mark]}}\n  actions:\n{actions}")
}

const KILL: &str = "  - {action: Kill, actionner: 'process:terminate'}\n";
const SLEEP: &str =
    "  - {action: Wait, actionner: 'host:script', parameters: {script: 'sleep 2'}}\n";
const LIMIT: Duration = Duration::from_secs(20);

fn offer(responder: &Responder, alert: &Alert) {
    responder.offer(alert).expect("a rule matches").start();
}

/// Waits for a report and returns a field of it.
fn report(reports: &Receiver<Alert>, rule: &str, field: &str) -> String {
    let alert = reports.recv_timeout(LIMIT).unwrap();
    assert_eq!(&*alert.rule, rule);
    text_of(&alert, field)
}

/// Returns a field of a report.
fn text_of(alert: &Alert, field: &str) -> String {
    let value = alert.fields.iter().find(|(name, _)| &**name == field);
    match value {
        Some((_, rules::AlertValue::Text(text))) => text.clone(),
        other => panic!("{field}: {other:?}"),
    }
}

fn sleeper() -> Child {
    Command::new("sleep").arg("60").spawn().unwrap()
}

fn state(child: &Child) -> u8 {
    let pid = child.id().cast_signed();
    Proc::open().unwrap().stat(pid).unwrap().state
}

fn wait_for(what: &str, is_it: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_it() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_a_rule_without_actions_excepts_is_not_hit_by_later_rules() {
    let rules = format!(
        "- rule: Except\n  match: {{priority: Warning}}\n  continue: false\n  actions: [{{action: L, actionner: \
         'kubernetes:label'}}]\n{}",
        answer(KILL)
    );
    let (responder, _reports) = responder(&rules, &["kubernetes:label"]);
    assert!(responder.offer(&alert()).is_none());
    let other = Alert {
        priority: rules::Priority::Error,
        ..alert()
    };
    assert!(responder.offer(&other).is_some());
}

#[test]
fn the_leader_of_a_session_is_not_alone() {
    let (responder, _reports) = responder(&answer(KILL), &[]);
    let is_alone = |pid: u32| {
        let process = Bound::open(&responder.shared.proc, Pid(pid.cast_signed())).unwrap();
        responder.shared.is_alone(&process)
    };
    let child = sleeper();
    assert!(is_alone(child.id()));
    end(child);
    let leader = Command::new("setsid")
        .args(["sleep", "60"])
        .spawn()
        .unwrap();
    let proc = Proc::open().unwrap();
    let pid = leader.id().cast_signed();
    wait_for("a session", || proc.stat(pid).unwrap().stat.sid == pid);
    assert!(!is_alone(leader.id()));
    end(leader);
}

#[test]
fn scripts_that_take_long_keep_no_process_from_being_killed() {
    let rules = format!(
        "- rule: Slow\n  match: {{rules: [Slow]}}\n  actions:\n{SLEEP}{}",
        answer(KILL)
    );
    let (responder, reports) = responder(&rules, &[]);
    let slow = Alert {
        rule: "Slow".into(),
        ..alert()
    };
    for _ in 0..2 * THREADS {
        offer(&responder, &slow);
    }
    let mut child = sleeper();
    let begun = Instant::now();
    offer(&responder, &alert_of(child.id()));
    let actionner = report(&reports, TAKEN, "response.actionner");
    assert_eq!(actionner, "process:terminate");
    assert!(begun.elapsed() < Duration::from_secs(2));
    child.wait().unwrap();
    assert_eq!(responder.flush(Instant::now() + LIMIT), 0);
}

/// Offers an alert about a process that has ended before a thread looks at it. Returns its pid, and the report.
fn rehearsed(actions: &str, caller_waits: bool, mut command: Command) -> (u32, Alert) {
    let (responder, reports) = responder_with(&answer(actions), &[], |settings| {
        settings.dry_run = true;
        settings.caller_waits = caller_waits;
    });
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let (pid, alert) = (child.id(), alert_of(child.id()));
    let offered = responder.offer(&alert).expect("a rule matches");
    child.kill().unwrap();
    child.wait().unwrap();
    offered.start();
    (pid, reports.recv_timeout(LIMIT).unwrap())
}

/// The real run would have killed or stopped it.
#[test]
fn a_dry_run_hits_a_process_that_ends_while_its_alert_is_on_its_way() {
    let stop = "  - {action: Stop, actionner: 'process:freeze'}\n";
    for (actions, verb) in [(KILL, "killed"), (stop, "stopped")] {
        for caller_waits in [true, false] {
            let mut command = Command::new("sh");
            command.args(["-c", "echo; exec sleep 60"]);
            let (pid, report) = rehearsed(actions, caller_waits, command);
            assert_eq!(text_of(&report, "response.result"), "dry_run");
            let text = format!("would have {verb} 1 process (pid {pid})");
            assert_eq!(text_of(&report, "response.reason"), text);
            let processes = report
                .fields
                .iter()
                .find(|(name, _)| &**name == "response.processes");
            let expected = rules::AlertValue::List(vec![rules::AlertValue::Int(pid.into())]);
            assert_eq!(processes.map(|(_, value)| value), Some(&expected));
        }
    }
}

#[test]
fn a_dry_run_finds_the_descendants_of_a_process_that_waits() {
    let mut command = Command::new("sh");
    // The child ends with its standard input, and so with the test at the latest.
    command
        .args(["-c", "exec 3<&0; cat <&3 & echo; wait"])
        .stdin(Stdio::piped());
    let (_, report) = rehearsed(KILL, true, command);
    let reason = text_of(&report, "response.reason");
    assert!(
        reason.starts_with("would have killed 2 processes (pid "),
        "{reason}"
    );
}

/// Its call is not answered before.
#[test]
fn a_dry_run_keeps_no_caller_whose_child_forks_all_the_time() {
    let (responder, reports) = responder_within(SEARCH_LIMIT, &answer(KILL), &[], |settings| {
        settings.dry_run = true;
    });
    let mut child = Command::new("sh")
        .args(["-c", "while :; do sleep 0.05 & done & echo; wait"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let alert = alert_of(child.id());
    let begun = Instant::now();
    let offered = responder.offer(&alert).expect("a rule matches");
    let took = begun.elapsed();
    offered.start();
    let report = reports.recv_timeout(LIMIT);
    let shared = &responder.shared;
    let select = Selection {
        proc: &shared.proc,
        guard: &shared.guard,
        allowed: &[],
    };
    let root = Bound::open(&shared.proc, Pid(child.id().cast_signed())).unwrap();
    Tree::stop(&select, Arc::new(root), false).kill();
    child.wait().unwrap();
    // Beyond the 10 ms: the time that a busy machine lets this thread wait.
    assert!(took < Duration::from_secs(2), "{took:?}");
    let reason = text_of(&report.unwrap(), "response.reason");
    let pid = format!("(pid {}", child.id());
    assert!(reason.starts_with("would have killed "), "{reason}");
    assert!(reason.contains(&pid), "{reason}");
}

/// A search that has no time finds no descendant, and a thread looks again.
#[test]
fn a_dry_run_whose_search_has_no_time_names_the_process_of_the_alert_and_what_is_left() {
    let (responder, reports) = responder_within(Duration::ZERO, &answer(KILL), &[], |settings| {
        settings.dry_run = true;
    });
    // The leader of a session, which is no child of this process, ends and is not reaped. All end with their input.
    let script = "exec 3<&0; setsid sh -c 'cat <&3 & echo $$; wait' & exec cat <&3";
    let mut child = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let leader: u32 = line.trim().parse().unwrap();
    let alert = alert_of(leader);
    let offered = responder.offer(&alert).expect("a rule matches");
    let root = Bound::open(&responder.shared.proc, Pid(leader.cast_signed())).unwrap();
    root.signal(SIGKILL).unwrap();
    assert!(root.ends_before(Instant::now() + LIMIT));
    offered.start();
    let report = reports.recv_timeout(LIMIT).unwrap();
    child.wait().unwrap();
    let reason = text_of(&report, "response.reason");
    let expected = format!("would have killed 2 processes (pid {leader}, ");
    assert!(reason.starts_with(&expected), "{reason}");
}

#[test]
fn processes_that_have_ended_do_not_stay_stopped() {
    let stop = "  - {action: Stop, actionner: 'process:freeze'}\n";
    let (responder, reports) = responder(&answer(stop), &[]);
    let mut child = sleeper();
    offer(&responder, &alert_of(child.id()));
    assert_eq!(report(&reports, TAKEN, "response.result"), "done");
    // Nobody has reaped it, so that it is kept.
    child.kill().unwrap();
    let pid = Pid(child.id().cast_signed());
    let process = Bound::open(&responder.shared.proc, pid).unwrap();
    assert!(process.ends_before(Instant::now() + LIMIT));
    assert_eq!(responder.end(), 0);
    child.wait().unwrap();
}

#[test]
fn too_many_scripts_fail_and_do_not_wait() {
    let (responder, reports) = responder(&answer(SLEEP), &[]);
    let waiting = &responder.shared.waiting;
    waiting.store(PATIENT_CAPACITY, Ordering::Relaxed);
    offer(&responder, &alert());
    let reason = report(&reports, TAKEN, "response.reason");
    assert_eq!(reason, "too many scripts and requests wait already");
    waiting.store(0, Ordering::Relaxed);
}

#[test]
fn the_duration_of_a_freeze_counts_while_later_actions_run() {
    let stop = "  - {action: Stop, actionner: 'process:freeze', parameters: {duration: 1}}\n";
    let (responder, reports) = responder(&answer(&[stop, SLEEP].concat()), &[]);
    let child = sleeper();
    offer(&responder, &alert_of(child.id()));
    assert_eq!(report(&reports, TAKEN, "response.result"), "done");
    assert_eq!(state(&child), b'T');
    wait_for("it goes on", || state(&child) != b'T');
    assert!(reports.try_recv().is_err(), "the script runs still");
    assert_eq!(report(&reports, TAKEN, "response.actionner"), "host:script");
    end(child);
}

#[test]
fn a_thaw_resumes_what_its_own_rule_has_stopped_and_the_end_sees_the_rest() {
    let stop = "  - {action: Stop, actionner: 'process:freeze'}\n";
    let thaw = "  - {action: Go, actionner: 'process:thaw'}\n";
    let rules = format!(
        "- rule: Stop\n  match: {{rules: [Stop]}}\n  actions:\n{stop}{SLEEP}{}",
        answer(&[stop, thaw].concat())
    );
    let (responder, reports) = responder(&rules, &[]);
    let (stays, goes) = (sleeper(), sleeper());
    let mut alert = alert_of(stays.id());
    alert.rule = "Stop".into();
    offer(&responder, &alert);
    assert_eq!(report(&reports, TAKEN, "response.result"), "done");
    offer(&responder, &alert_of(goes.id()));
    assert_eq!(report(&reports, TAKEN, "response.result"), "done");
    assert_eq!(
        report(&reports, TAKEN, "response.actionner"),
        "process:thaw"
    );
    wait_for("it goes on", || state(&goes) != b'T');
    assert_eq!(state(&stays), b'T');
    // The script of its rule runs still.
    assert_eq!(responder.end(), 1);
    end(stays);
    end(goes);
}

#[test]
fn a_script_starts_no_script() {
    let (responder, reports) = responder(&answer(SLEEP), &[]);
    let script = Command::new("sleep")
        .arg("60")
        .process_group(0)
        .spawn()
        .unwrap();
    let of_script = alert_of(script.id());
    let mut below = alert_of(std::process::id());
    let identity = of_script.details.process.clone().unwrap();
    let process = below.details.process.as_mut().unwrap();
    process.ancestors = vec![(identity.pid, identity.start)];
    let shared = &responder.shared;
    let start = || Ok::<_, ()>((identity.pid, ()));
    // Made before the script was known.
    let early = responder.offer(&below).expect("it is not known yet");
    shared.guard.scripts.start(&shared.proc, start).unwrap();
    early.start();
    let why = "a script of a response has raised the alert";
    assert_eq!(report(&reports, NOT_TAKEN, "response.reason"), why);
    for alert in [of_script, below] {
        assert!(responder.offer(&alert).is_none());
    }
    assert_eq!(responder.flush(Instant::now() + LIMIT), 0);
    let bound = Bound::open(&shared.proc, identity.pid).unwrap();
    let refusal = shared.guard.check(&shared.proc, &bound, &[]);
    assert_eq!(refusal, Err(crate::guard::Refusal::Own));
    end(script);
}
