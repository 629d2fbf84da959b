//! `process:deny` withholds calls from the tree of an alert, and from no other process.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::marks::{marking, marking_by, work};
use e2e::responding::{TAKEN, answering, pair, results, to_mark, with_responses};
use e2e::{Engine, Fixture, Watch, WatchResult};

const EVERYTHING: &str = "  - {action: Deny, actionner: 'process:deny'}\n";
/// What is withheld, in the order in which the program tries it.
const STARTS: [&str; 2] = ["exec", "execveat"];
const CONNECTS: [&str; 3] = ["sendto", "sendmsg", "connect"];
const WRITES: [&str; 5] = ["open", "append", "openat2", "creat", "truncate"];
const EPERM: u32 = 1;

/// Returns the engine under test, or another one in the place of one that cannot withhold calls.
fn engine() -> Engine {
    match Engine::under_test() {
        Engine::Ebpf => Engine::Notify,
        other => other,
    }
}

/// Runs the program that tries everything: first beside the one that raises the alert, which is the second, and then after it.
fn attempts(actions: &str) -> WatchResult {
    let fixture = Fixture::compile("denied");
    let program = fixture.program().display().to_string();
    let script = format!(
        "touch %W/file; {program} - before %W/file & sleep 0.1; {program} %W/mark hit %W/file; {program} - after %W/file; wait"
    );
    answering(&script, &to_mark(actions))
        .engine(engine())
        .limit(Duration::from_secs(60))
        .run()
}

/// Returns what a process was told about each try.
fn errors(watched: &WatchResult, label: &str) -> Vec<(String, u32)> {
    let mut lines = watched.printed.lines();
    let start = format!("{label} ");
    let line = lines.find_map(|line| line.strip_prefix(&start));
    let line = line.unwrap_or_else(|| panic!("{label}: {}", watched.story()));
    let parts = line.split(' ').map(|part| {
        let (name, error) = part.split_once('=').expect("a try and its error");
        (name.to_owned(), error.parse().expect("a number"))
    });
    parts.collect()
}

/// Compares what a process was told with what is withheld from it.
fn assert_withheld(watched: &WatchResult, label: &str, withheld: &[&str]) {
    let errors = errors(watched, label);
    assert_eq!(errors.len(), 11, "{errors:?}");
    for (name, error) in errors {
        let expected = match withheld.contains(&name.as_str()) {
            true => EPERM,
            false => 0,
        };
        assert_eq!(error, expected, "{label} {name}: {}", watched.story());
    }
}

#[test]
fn everything_is_withheld_from_the_tree_and_nothing_from_its_twins() {
    let watched = attempts(EVERYTHING);
    let all = [&STARTS[..], &CONNECTS, &WRITES].concat();
    assert_withheld(&watched, "hit", &all);
    // Nobody who lives leads from the process of the alert to this one.
    assert_withheld(&watched, "hit-orphan", &all);
    for twin in ["before", "before-orphan", "after", "after-orphan"] {
        assert_withheld(&watched, twin, &[]);
    }
    assert_eq!(results(&watched), [pair("process:deny", "done")]);
    let report = watched.of(TAKEN)[0];
    let reason = report.field("response.reason");
    let expected = "denied exec, connect, open_for_write to 1 process (pid ";
    assert!(reason.starts_with(expected), "{reason}");
}

#[test]
fn only_the_calls_that_are_named_are_withheld() {
    for (name, withheld) in [
        ("exec", &STARTS[..]),
        ("connect", &CONNECTS),
        ("open_for_write", &WRITES),
    ] {
        let action = format!(
            "  - {{action: Deny, actionner: 'process:deny', parameters: {{calls: [{name}]}}}}\n"
        );
        let watched = attempts(&action);
        assert_withheld(&watched, "hit", withheld);
        assert_withheld(&watched, "hit-orphan", withheld);
        assert_withheld(&watched, "after", &[]);
    }
}

#[test]
fn what_was_withheld_for_a_time_is_allowed_again() {
    let action = "  - {action: Deny, actionner: 'process:deny', parameters: {calls: [open_for_write], duration: 1}}\n";
    let script = "(: > %W/early) 2> /dev/null && echo early; sleep 0.2; : < %W/mark; sleep 0.1; (: > %W/file) || echo refused; \
                  sleep 1.2; (: > %W/file) && echo allowed";
    let watched = answering(script, &to_mark(action)).engine(engine()).run();
    assert_eq!(
        watched.printed,
        "early\nrefused\nallowed\n",
        "{}",
        watched.story()
    );
    let reason = watched.of(TAKEN)[0].field("response.reason");
    assert!(
        reason.starts_with("denied open_for_write for 1 s to "),
        "{reason}"
    );
}

#[test]
fn the_call_that_raises_the_alert_is_withheld_too() {
    let rule = "- rule: Mark\n  desc: d\n  condition: evt.type in (open, openat) and fd.name endswith /secret and \
                evt.is_open_write = true\n  output: written\n  priority: WARNING\n";
    let script = "sh -c ': > %W/secret'; [ -e %W/secret ] && echo made; : > %W/other && echo other";
    let watch = with_responses(marking_by(script, rule), &to_mark(EVERYTHING));
    let watched = watch.engine(engine()).run();
    assert_eq!(watched.printed, "other\n", "{}", watched.story());
    assert_eq!(results(&watched)[0], pair("process:deny", "done"));
    // The same without the response.
    let watched = marking_by(script, rule).run();
    assert_eq!(watched.printed, "made\nother\n", "{}", watched.story());
}

#[test]
fn what_is_started_right_after_the_alert_is_hit() {
    // The next command of a shell is a child.
    let script = "for n in 1 2 3 4 5 6 7 8 9 10; do sh -c ': < %W/mark; /bin/true && echo free; :'; done; /bin/echo end";
    let watched = answering(script, &to_mark(EVERYTHING))
        .engine(engine())
        .run();
    assert_eq!(watched.printed, "end\n", "{}", watched.story());
    let expected = vec![pair("process:deny", "done"); 10];
    assert_eq!(results(&watched), expected);
}

#[test]
fn descendants_are_hit_though_the_process_of_the_alert_ends() {
    let script = "mkfifo %W/fifo; sh -c ': < %W/mark; (read line < %W/fifo; : > %W/late && echo free) &'; sleep 0.5; \
                  echo > %W/fifo; sleep 0.5; echo end";
    let watched = answering(script, &to_mark(EVERYTHING))
        .engine(engine())
        .run();
    assert_eq!(watched.printed, "end\n", "{}", watched.story());
    assert_eq!(results(&watched), [pair("process:deny", "done")]);
}

#[test]
fn alerts_about_refused_calls_start_nothing_and_leave_the_rate_to_others() {
    let rule = "- rule: Mark\n  desc: d\n  condition: evt.type in (open, openat) and evt.rawarg.name endswith /mark\n  \
                output: marked file=%fd.name process=%proc.name\n  priority: WARNING\n";
    let script = "sh -c ': < %W/mark; for n in 1 2 3 4 5; do (: > %W/mark) && echo free; done; :'; \
                  sh -c ': < %W/mark; /bin/true && echo free; :'; echo end";
    let watch = with_responses(marking_by(script, rule), &to_mark(EVERYTHING));
    let watch = watch
        .option("-o")
        .option("responses.rule_max_burst=2")
        .option("-o")
        .option("responses.rule_rate=0.01");
    let watched = watch.engine(engine()).run();
    assert_eq!(watched.printed, "end\n", "{}", watched.story());
    // Each attempt is an alert, and the two processes are answered once each.
    assert_eq!(watched.of("Mark").len(), 7, "{}", watched.story());
    let expected = vec![pair("process:deny", "done"); 2];
    assert_eq!(results(&watched), expected);
}

#[test]
fn the_call_of_a_process_with_several_threads_is_made_and_the_next_one_is_not() {
    let rule = "- rule: Mark\n  desc: d\n  condition: evt.type in (open, openat) and fd.name endswith /secret and \
                evt.is_open_write = true\n  output: written\n  priority: WARNING\n";
    let program = "import sys, threading, time\nthreading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n\
                   for name in sys.argv[1:]:\n try: open(name, 'w'); print(name[-6:], 'made')\n \
                   except PermissionError: print(name[-6:], 'refused')\n";
    let script =
        format!("cat > %W/program << 'END'\n{program}END\npython3 %W/program %W/secret %W/later_");
    let watch = with_responses(marking_by(&script, rule), &to_mark(EVERYTHING));
    let watched = watch.engine(engine()).run();
    assert_eq!(
        watched.printed,
        "secret made\nlater_ refused\n",
        "{}",
        watched.story()
    );
}

/// Only `notify` reports violations of calls.
#[test]
fn a_violation_of_a_policy_is_reported_though_its_call_is_withheld() {
    let policy = "apiVersion: crd.varmor.org/v1beta1\nkind: VarmorPolicy\nmetadata: {name: demo}\nspec:\n  \
                  target: {kind: Pod, name: demo}\n  policy:\n    enforcer: Seccomp\n    mode: EnhanceProtect\n    \
                  enhanceProtect:\n      auditViolations: true\n      \
                  syscallRawRules: [{names: [truncate], action: SCMP_ACT_ERRNO}]\n";
    let script = "python3 -c 'import os, sys\nopen(sys.argv[1]).close()\ntry: os.truncate(sys.argv[2], 0)\n\
                  except PermissionError: print(\"refused\")' %W/mark %W/mark";
    let watch = answering(script, &to_mark(EVERYTHING));
    let file = work(&watch).join("policy.yaml");
    fs::write(&file, policy).expect("the scratch folder is writable");
    let watch = watch.option("--policy").option(file.display().to_string());
    let watched = watch.engine(Engine::Notify).run();
    assert_eq!(watched.printed, "refused\n", "{}", watched.story());
    assert_eq!(
        watched.of("Policy violation").len(),
        1,
        "{}",
        watched.story()
    );
    assert_eq!(results(&watched), [pair("process:deny", "done")]);
}

/// Under `ptrace`, which knows how the interrupted call ended when the next one is made.
#[test]
fn the_call_after_one_that_a_signal_interrupts_is_withheld() {
    let fixture = Fixture::compile("interrupted_exec");
    let rule = "- rule: Mark\n  desc: d\n  condition: evt.type in (open, openat) and evt.rawarg.name endswith /fifo and \
                evt.failed = true\n  output: interrupted\n  priority: WARNING\n";
    let script = format!(
        "mkfifo %W/fifo; {} %W/fifo; echo end",
        fixture.program().display()
    );
    let watch = with_responses(marking_by(&script, rule), &to_mark(EVERYTHING));
    let watched = watch.engine(Engine::Ptrace).run();
    assert_eq!(watched.printed, "refused 1\nend\n", "{}", watched.story());
    assert_eq!(results(&watched), [pair("process:deny", "done")]);
}

#[test]
fn a_dry_run_withholds_nothing() {
    let watch = answering(
        ": < %W/mark; sleep 0.1; ls %W/mark > %W/file && echo went on",
        &to_mark(EVERYTHING),
    );
    let watched = watch.engine(engine()).option("--responses-dry-run").run();
    assert_eq!(watched.printed, "went on\n", "{}", watched.story());
    assert_eq!(results(&watched), [pair("process:deny", "dry_run")]);
    let reason = watched.of(TAKEN)[0].field("response.reason");
    let expected = "would have denied exec, connect, open_for_write to 1 process (pid ";
    assert!(reason.starts_with(expected), "{reason}");
}

/// Runs the program and returns what it complains about.
fn complaint(watch: &Watch, responses: &str, options: &[&str]) -> String {
    let file = work(watch).join("r.yaml");
    fs::write(&file, responses).expect("the scratch folder is writable");
    let mut command = Command::new(e2e::program());
    command.args(["run", "--responses"]).arg(&file);
    command.args(options).args(["--", "echo", "started"]);
    let output = command.stdin(Stdio::null()).output().expect("it is built");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_cannot_be_withheld_starts_nothing() {
    let watch = marking("");
    let with = |parameters: &str| {
        to_mark(&format!(
            "  - {{action: D, actionner: 'process:deny', parameters: {{{parameters}}}}}\n"
        ))
    };
    for (parameters, expected) in [
        ("calls: [exce]", "did you mean `exec`?"),
        ("calls: []", "`calls` is empty"),
        ("duration: 0", "seconds from 1 to"),
        ("call: [exec]", "did you mean `calls`?"),
    ] {
        let text = complaint(&watch, &with(parameters), &[]);
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("help: "), "{text}");
    }
    let text = complaint(&watch, &to_mark(EVERYTHING), &["-o", "io_uring=allow"]);
    assert!(text.contains("a ring opens files"), "{text}");
    let text = complaint(&watch, &to_mark(EVERYTHING), &["--engine", "ebpf"]);
    assert!(text.contains("not supported here: "), "{text}");
    assert!(text.contains("process:freeze"), "{text}");
}
