//! Responses to alerts act on the right processes, on all of them, and on no other.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use e2e::marks::{marking, marking_by, work};
use e2e::responding::{
    KILL, RESUME, STOP, TAKEN, answering, pair, results, to_mark, with_responses,
};
use e2e::{Alert, Engine, Fixture, Limited, Watch, need_root, watch_host};
use serde_json::Value;

/// A shell that starts processes, which start others all the time, and then opens the file.
const FORKING: &str = "\
sh -c 'for n in 1 2 3; do (while :; do (sleep 0.002; sleep 60) & sleep 0.001; done) & done; sleep 0.05; \
: < %W/mark; sleep 0.1; echo survived'
echo after";

#[test]
fn a_tree_whose_processes_fork_is_terminated_as_a_whole() {
    for _ in 0..5 {
        // A process that is left holds the output open for a minute, which is longer than the limit.
        let watch = answering(FORKING, &to_mark(KILL)).limit(Duration::from_secs(30));
        let watched = watch.run();
        assert_eq!(watched.printed, "after\n", "{}", watched.story());
        assert_eq!(results(&watched), [pair("process:terminate", "done")]);
        let report = watched.of(TAKEN)[0];
        let killed = report.fields["response.processes"]
            .as_array()
            .expect("a list");
        assert!(killed.len() > 3, "{report}");
        assert_eq!(report.field("response.alert"), "Mark");
    }
}

#[test]
fn a_process_whose_first_thread_has_ended_is_terminated() {
    let fixture = Fixture::compile("headless");
    let script = format!("{} %W/mark; echo status $?", fixture.program().display());
    let watch = answering(&script, &to_mark(KILL)).limit(Duration::from_secs(30));
    let watched = watch.run();
    assert_eq!(watched.printed, "status 137\n", "{}", watched.story());
    assert_eq!(results(&watched), [pair("process:terminate", "done")]);
}

const UNLINK: &str = "\
- rule: Mark
  desc: a file is removed
  condition: evt.type in (unlink, unlinkat) and proc.name = rm
  output: removed
  priority: WARNING
";

#[test]
fn a_single_process_dies_before_its_call_is_done() {
    // Only where the caller waits for the answer.
    let is_held = Engine::under_test() == Engine::Notify;
    let script = ": > %W/file; rm %W/file; echo status $?; [ -e %W/file ] && echo kept";
    let watched = with_responses(marking_by(script, UNLINK), &to_mark(KILL)).run();
    assert_eq!(
        results(&watched),
        [pair("process:terminate", "done")],
        "{}",
        watched.story()
    );
    if is_held {
        assert!(
            watched.printed.ends_with("status 137\nkept\n"),
            "{}",
            watched.story()
        );
    }
    // The same without the response.
    let watched = marking_by(script, UNLINK).run();
    assert_eq!(watched.printed, "status 0\n", "{}", watched.story());
}

#[test]
fn a_tree_is_frozen_while_a_script_looks_at_it_and_goes_on() {
    let look = "  - {action: Look, actionner: 'host:script', parameters: {script: \
                'cut -d\" \" -f3 /proc/$TOLLGATE_ALERT_PID/stat; \
                grep SigBlk /proc/self/status'}}\n";
    let actions = [STOP, look, RESUME].concat();
    let watched = answering(
        "(sleep 0.3 & : < %W/mark; wait); echo done",
        &to_mark(&actions),
    )
    .run();
    assert_eq!(watched.printed, "done\n", "{}", watched.story());
    let expected = [
        pair("process:freeze", "done"),
        pair("host:script", "done"),
        pair("process:thaw", "done"),
    ];
    assert_eq!(results(&watched), expected, "{}", watched.story());
    let taken = watched.of(TAKEN);
    assert_eq!(
        taken[1].field("response.output"),
        "T\nSigBlk:\t0000000000000000\n"
    );
    let undo = taken[0].field("response.undo");
    let pid = taken[0].field("response.pid");
    assert!(undo.starts_with(&format!("kill -CONT {pid}")), "{undo}");
    let stopped = &taken[0].fields["response.processes"];
    let mut resumed = taken[2].fields["response.processes"]
        .as_array()
        .expect("a list")
        .clone();
    resumed.reverse();
    assert_eq!(stopped, &Value::Array(resumed));
}

#[test]
fn a_frozen_tree_goes_on_when_its_time_is_up() {
    let stop = "  - {action: Stop, actionner: 'process:freeze', parameters: {duration: 1}}\n";
    let watched = answering(": < %W/mark; echo done", &to_mark(stop)).run();
    assert_eq!(watched.printed, "done\n");
    let elapsed = watched.finished.elapsed;
    assert!(
        elapsed >= Duration::from_secs(1),
        "{elapsed:?}: {}",
        watched.story()
    );
}

#[test]
fn a_script_gets_the_alert_and_its_failure_ends_the_rule() {
    let actions = "  - {action: Keep, actionner: 'host:script', parameters: {script: 'cat > %W/alert; echo $TOLLGATE_RESPONSE_RULE'}}\n  \
                   - {action: Fail, actionner: 'host:script', ignore_errors: true, parameters: {file: /bin/false}}\n  \
                   - {action: Late, actionner: 'host:script', parameters: {script: 'sleep 60', timeout: 1}}\n  \
                   - {action: Never, actionner: 'host:script', parameters: {script: 'exit 0'}}\n";
    let watched = answering(": < %W/mark; sleep 1.5", &to_mark(actions)).run();
    let expected = ["done", "failed", "failed"].map(|result| pair("host:script", result));
    assert_eq!(results(&watched), expected, "{}", watched.story());
    let taken = watched.of(TAKEN);
    assert_eq!(taken[0].field("response.output"), "Answer\n");
    assert_eq!(taken[1].field("response.reason"), "exited with status 1");
    assert_eq!(taken[2].field("response.reason"), "killed after 1 s");
    let text =
        fs::read_to_string(watched.scratch.path().join("work/alert")).expect("the script wrote it");
    let alert: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(alert["rule"], "Mark");
    assert_eq!(alert["output_fields"]["proc.name"], "sh");
    assert_eq!(alert["id"], taken[0].field("response.alert_id"));
}

/// A server that answers with a status line, and the bodies it got.
fn web_server(status: &'static str) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let (got, bodies) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = BufReader::new(stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).is_ok_and(|n| n > 0) {}
            let head = head.to_ascii_lowercase();
            let length = head
                .split("content-length: ")
                .nth(1)
                .and_then(|rest| rest.lines().next());
            let mut body = vec![0; length.and_then(|length| length.parse().ok()).unwrap_or(0)];
            let read = stream.read_exact(&mut body);
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            if read.is_ok() && stream.get_mut().write_all(answer.as_bytes()).is_ok() {
                let _ = got.send(String::from_utf8_lossy(&body).into_owned());
            }
        }
    });
    (format!("http://{address}/hook"), bodies)
}

#[test]
fn a_webhook_gets_the_alert_as_json() {
    for (status, result) in [("204 No Content", "done"), ("500 Broken", "failed")] {
        let (url, bodies) = web_server(status);
        let action = format!(
            "  - {{action: Tell, actionner: 'host:webhook', parameters: {{url: '{url}'}}}}\n"
        );
        let watched = answering(": < %W/mark", &to_mark(&action)).run();
        assert_eq!(
            results(&watched),
            [pair("host:webhook", result)],
            "{}",
            watched.story()
        );
        let body = bodies
            .recv_timeout(Duration::from_secs(10))
            .expect("a request");
        let alert: Value = serde_json::from_str(&body).expect("it is JSON");
        assert_eq!(alert["rule"], "Mark");
    }
}

#[test]
fn a_dry_run_reports_and_does_nothing() {
    let script = "sh -c 'sleep 1 & : < %W/mark; wait; echo survived'; ls %W/done";
    let all = [
        STOP,
        "  - {action: S, actionner: 'host:script', parameters: {script: ': > %W/done'}}\n",
        KILL,
    ]
    .concat();
    let in_file = to_mark(&all).replace("  match:", "  dry_run: true\n  match:");
    for (responses, option) in [
        (to_mark(&all), Some("--responses-dry-run")),
        (in_file, None),
    ] {
        let watch = answering(script, &responses);
        let watch = option.into_iter().fold(watch, Watch::option);
        let watched = watch.run();
        assert_eq!(watched.printed, "survived\n", "{}", watched.story());
        let expected = ["process:freeze", "host:script", "process:terminate"];
        let expected = expected.map(|actionner| pair(actionner, "dry_run"));
        assert_eq!(results(&watched), expected, "{}", watched.story());
        let report = watched.of(TAKEN)[2];
        let reason = report.field("response.reason");
        assert!(
            reason.starts_with("would have killed 2 processes (pid "),
            "{reason}"
        );
    }
}

#[test]
fn a_protected_program_is_refused_unless_it_is_named() {
    need_root!();
    let allowed = "  - {action: Kill, actionner: 'process:terminate', parameters: {allow_protected: [sshd]}}\n";
    for (action, result, printed) in [(KILL, "refused", "went on\n"), (allowed, "done", "")] {
        let script = "%W/sshd < %W/mark; %W/sshd %W/mark && echo went on";
        let watch = answering(script, &to_mark(action));
        let program = work(&watch).join("sshd");
        fs::copy("/bin/cat", &program).expect("it can be copied");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let rule = "- rule: Mark\n  desc: d\n  condition: evt.type in (open, openat) and fd.name endswith /mark and \
                    proc.name = sshd\n  output: opened\n  priority: WARNING\n";
        let watched = watch.rules(rule).run();
        let results = results(&watched);
        assert_eq!(
            results,
            [pair("process:terminate", result)],
            "{}",
            watched.story()
        );
        assert_eq!(watched.printed, printed, "{}", watched.story());
        if result == "refused" {
            let reason = watched.of(TAKEN)[0].field("response.reason");
            assert!(reason.contains("`sshd` is protected"), "{reason}");
        }
    }
}

#[test]
fn more_actions_than_the_rate_admits_are_not_started_and_reported() {
    let action = "  - {action: S, actionner: 'host:script', parameters: {script: 'exit 0'}}\n";
    let watch = answering(
        "for n in 1 2 3 4 5 6 7 8; do : < %W/mark; done",
        &to_mark(action),
    );
    let watch = watch.option("-o").option("responses.rule_rate=0.001");
    let watched = watch
        .option("-o")
        .option("responses.rule_max_burst=3")
        .run();
    assert_eq!(watched.of("Mark").len(), 8);
    assert_eq!(results(&watched).len(), 3, "{}", watched.story());
    let not_started = watched.of("Tollgate internal: response not started");
    assert!(!not_started.is_empty(), "{}", watched.story());
    assert_eq!(
        not_started[0].field("response.reason"),
        "the rate limit of responses is reached"
    );
}

#[test]
fn a_match_decides_which_alerts_are_answered() {
    let other = to_mark(KILL).replace("[Mark]", "[Another]");
    let quiet = to_mark(KILL).replace("{rules: [Mark]}", "{priority: '>=Error'}");
    let field = to_mark(KILL).replace("{rules: [Mark]}", "{output_fields: ['proc.name!=sh']}");
    for responses in [other, quiet, field] {
        let watched = answering(": < %W/mark; echo done", &responses).run();
        assert_eq!(
            (watched.printed.as_str(), results(&watched).len()),
            ("done\n", 0)
        );
    }
}

/// Runs the program without a workload of its own.
fn tollgate(words: &[&str]) -> std::process::Output {
    let mut command = Command::new(e2e::program());
    command.args(words).stdin(Stdio::null());
    command.output().expect("the program is built")
}

fn file(watch: &Watch, text: &str) -> PathBuf {
    watch.scratch().file("r.yaml", 0o644, text)
}

#[test]
fn a_wrong_file_starts_nothing_and_is_named_with_line_and_next_step() {
    let watch = Watch::script("");
    for (text, expected) in [
        (
            to_mark("  - {action: K, actionner: 'process:kill'}\n"),
            "there is no actionner `process:kill`",
        ),
        (
            to_mark("  - {action: K, actionner: 'kubernetes:label'}\n"),
            "`kubernetes:label` is not available: it acts through the API of a Kubernetes cluster",
        ),
    ] {
        let path = file(&watch, &text);
        let path = path.display().to_string();
        let run = tollgate(&["run", "--responses", &path, "--", "echo", "started"]);
        assert_eq!(run.status.code(), Some(2));
        assert!(run.stdout.is_empty());
        let complaint = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(complaint.contains(expected), "{complaint}");
        assert!(complaint.contains(&format!("{path}:4:")), "{complaint}");
        assert!(complaint.contains("help: "), "{complaint}");
        let check = tollgate(&["rules", "check", "--responses", &path]);
        assert_eq!(check.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&check.stdout).contains(expected));
    }
    let path = file(
        &watch,
        &to_mark("  - {action: K, actionner: 'kubernetes:label'}\n"),
    );
    let path = path.display().to_string();
    let check = [
        "rules",
        "check",
        "--responses",
        &path,
        "--accept-partial",
        "kubernetes:label",
    ];
    let check = tollgate(&check);
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(check.status.code(), Some(0), "{text}");
    assert!(
        text.ends_with("0 response rules with 0 actions\n"),
        "{text}"
    );
}

#[test]
fn a_watch_of_the_host_terminates_the_tree_of_an_alert() {
    need_root!();
    let watch = marking("");
    let work = work(&watch);
    let responses = file(&watch, &to_mark(KILL));
    let mark = work.join("mark").display().to_string();
    let rule = format!(
        "- rule: Mark\n  desc: d\n  condition: evt.type in (open, openat) and fd.name = {mark}\n  output: opened \
         %proc.name\n  priority: WARNING\n"
    );
    let options = ["--responses", &responses.display().to_string()];
    let mut status = None;
    let (printed, _) = watch_host(&options, &rule, || {
        let script = format!("(sleep 60 & sleep 60) & sleep 0.1; : < {mark}; sleep 60");
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let finished = Limited::start(&mut command, Duration::from_secs(30)).finish(b"");
        status = Some(finished.code());
    });
    assert_eq!(status, Some(137), "{printed}");
    let taken: Vec<_> = printed
        .lines()
        .filter_map(Alert::parse)
        .filter(|alert| alert.rule == TAKEN)
        .collect();
    assert_eq!(taken.len(), 1, "{printed}");
    assert_eq!(taken[0].field("response.result"), "done");
    // A shell may become the last of its commands.
    let killed = taken[0].fields["response.processes"].as_array();
    assert!(killed.is_some_and(|killed| killed.len() >= 3), "{printed}");
}
