//! `run` from outside: its processes, signals and descriptors.
//!
//! Where the engine does not work, `what_cannot_run_is_refused_with_the_next_step` and its neighbours in
//! `command_line.rs` test the message.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

const TOLLGATE: &str = env!("CARGO_BIN_EXE_tollgate");
/// Time limit, long enough for a busy host; tests wait that long only if something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a rule that matches nothing here, but traps `openat` and the always-trapped calls.
fn rules() -> tempfile::NamedTempFile {
    let rule = "- rule: R\n  desc: d\n  condition: evt.type = openat and fd.name = /no/such/file\n  \
                output: seen\n  priority: info\n";
    let file = tempfile::Builder::new()
        .suffix(".yaml")
        .tempfile()
        .expect("there is room");
    fs::write(file.path(), rule).expect("there is room");
    file
}

/// Returns true if the engine works here.
fn can_watch() -> bool {
    let doctor = Command::new(TOLLGATE).args(["doctor", "--json"]).output();
    let report: serde_json::Value =
        serde_json::from_slice(&doctor.expect("it was built").stdout).expect("it prints JSON");
    report["notify"] == true
}

/// Skips a test where the engine `notify` does not work; there `run` must say so by its exit code.
macro_rules! need_notify {
    () => {
        if !can_watch() {
            testing::skip!("needs the engine notify", || {
                let ran = Command::new(TOLLGATE).args(["run", "true"]).status();
                match ran.expect("it was built").code() {
                    Some(3) => Ok("run ends with 3".to_owned()),
                    other => Err(format!("run ends with {other:?}")),
                }
            });
        }
    };
}

/// A watched shell that has printed `ready`, in a group of its own.
struct Watched {
    front: Child,
    stdout: BufReader<ChildStdout>,
    _rules: tempfile::NamedTempFile,
}

impl Watched {
    fn start(shell: &str, script: &str) -> Self {
        Self::start_with(&[], shell, script)
    }

    fn start_with(options: &[&str], shell: &str, script: &str) -> Self {
        let rules = rules();
        // A shell cannot trap a signal that its caller ignored, as nohup(1) and shells do for background
        // commands.
        let mut front = Command::new("env")
            .args(["--default-signal", TOLLGATE, "run"])
            .args(options)
            .arg("-r")
            .arg(rules.path())
            .args(["--", shell, "-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("it was built");
        let stdout = BufReader::new(front.stdout.take().expect("it was asked for"));
        let mut watched = Self {
            front,
            stdout,
            _rules: rules,
        };
        assert_eq!(watched.line(), "ready\n");
        watched
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it prints UTF-8");
        line
    }

    fn pid(&self) -> i32 {
        self.front.id().cast_signed()
    }

    /// Returns the pids of agent, waiter and command.
    fn family(&self) -> [i32; 3] {
        let keeper = only_child(self.pid());
        let (waiters, agents): (Vec<i32>, Vec<i32>) = children(keeper)
            .into_iter()
            .partition(|pid| !children(*pid).is_empty());
        let ([waiter], [agent]) = (&waiters[..], &agents[..]) else {
            panic!(
                "children of the keeper {keeper}: with children {waiters:?}, without {agents:?}"
            );
        };
        [*agent, *waiter, only_child(*waiter)]
    }

    fn end(mut self) -> Output {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.front.try_wait().expect("it is our child") {
                break status;
            }
            if Instant::now() > deadline {
                kill(-self.pid(), "KILL");
                panic!("run did not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.stdout.read_to_end(&mut stdout).expect("a pipe");
        let errors = self.front.stderr.as_mut().expect("it was asked for");
        errors.read_to_end(&mut stderr).expect("a pipe");
        Output {
            status,
            stdout,
            stderr,
        }
    }
}

/// Returns the state and parent of a process; `None` if it does not exist.
fn stat(pid: i32) -> Option<(char, i32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn children(parent: i32) -> Vec<i32> {
    let pids = fs::read_dir("/proc")
        .expect("procfs")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, ppid)| ppid == parent))
        .collect()
}

fn only_child(parent: i32) -> i32 {
    let children = children(parent);
    assert_eq!(children.len(), 1, "children of {parent}: {children:?}");
    children[0]
}

/// Sends a signal through the shell, because this crate has no unsafe code. A negative pid is a group.
fn kill(pid: i32, signal: &str) {
    let script = format!("kill -{signal} -- {pid}");
    let status = Command::new("bash")
        .args(["-c", &script])
        .status()
        .expect("bash");
    assert!(status.success(), "{script}");
}

/// Kills several processes as nearly at once as possible.
fn kill_all(pids: &str) {
    let script = format!("kill -KILL {pids}");
    let status = Command::new("bash").args(["-c", &script]).status();
    assert!(status.expect("bash").success(), "{script}");
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a shell script in which `$RUN` is `tollgate run -r RULES --`, or nothing for `native`.
fn script(native: bool, script: &str) -> Output {
    let rules = rules();
    let run = if native {
        String::new()
    } else {
        format!("{TOLLGATE} run -q -r {} --", rules.path().display())
    };
    let mut command = Command::new("bash");
    command
        .args(["-c", script])
        .env("RUN", run)
        .stdin(Stdio::null());
    // Inherited descriptors of the test program are compared, too; they are equal.
    command.output().expect("bash")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const SLEEP: &str = "echo ready; while :; do sleep .05; done";

#[test]
fn without_the_agent_the_command_is_killed_if_that_was_asked_for() {
    need_notify!();
    let watched = Watched::start_with(&["--on-agent-death", "kill"], "sh", SLEEP);
    let [agent, _, command] = watched.family();
    kill(agent, "KILL");
    let output = watched.end();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let text = stderr(&output);
    assert!(
        text.contains("cannot go on watching: the agent process is gone\nhelp: "),
        "{text}"
    );
    assert!(
        stat(command).is_none_or(|(state, _)| state == 'Z'),
        "the command lives"
    );
}

#[test]
fn without_the_waiter_the_command_is_killed() {
    need_notify!();
    let watched = Watched::start("sh", SLEEP);
    let [_, waiter, command] = watched.family();
    kill(waiter, "KILL");
    let output = watched.end();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(
        stderr(&output).contains("the waiter process is gone\nhelp: "),
        "{output:?}"
    );
    assert!(
        stat(command).is_none_or(|(state, _)| state == 'Z'),
        "the command lives"
    );
}

#[test]
fn without_the_front_everything_ends() {
    need_notify!();
    let watched = Watched::start("sh", SLEEP);
    let family = watched.family();
    kill(watched.pid(), "KILL");
    watched.end();
    for pid in family {
        until("end", || stat(pid).is_none_or(|(state, _)| state == 'Z'));
    }
}

#[test]
fn without_anybody_the_command_is_killed() {
    need_notify!();
    let watched = Watched::start("sh", SLEEP);
    let keeper = only_child(watched.pid());
    let family = watched.family();
    let everybody = format!("{} {keeper} {}", watched.pid(), family[0]);
    kill_all(&everybody);
    watched.end();
    for pid in family {
        until("end", || stat(pid).is_none_or(|(state, _)| state == 'Z'));
    }
}

#[test]
fn services_that_do_not_start_leave_nothing_behind() {
    need_notify!();
    // With so few descriptors some step fails; which one depends on the limit.
    let mut failures = 0;
    for limit in 10..20 {
        let output = script(
            false,
            &format!("ulimit -n {limit}; exec $RUN sh -c 'exit 42'"),
        );
        if output.status.code() != Some(42) {
            failures += 1;
            assert!(
                [Some(3), Some(4)].contains(&output.status.code()),
                "{limit}: {output:?}"
            );
            assert!(stderr(&output).contains("help: "), "{limit}: {output:?}");
        }
    }
    assert!(failures > 0, "no limit was too low");
}

#[test]
fn a_second_listener_is_refused_at_once() {
    need_notify!();
    let begin = Instant::now();
    let output = script(false, "exec $RUN ${RUN% --} --engine notify -- true");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        begin.elapsed() < Duration::from_secs(4),
        "it waited for a deadline"
    );
}

#[test]
fn proc_of_another_pid_namespace_is_refused() {
    let namespaces = "unshare --user --map-root-user --pid --fork";
    let possible = Command::new("bash")
        .args(["-c", &format!("{namespaces} true")])
        .output();
    let possible = possible.expect("bash");
    if !possible.status.success() {
        testing::skip!("needs namespaces of users", || Ok(String::from_utf8_lossy(
            &possible.stderr
        )
        .into_owned()));
    }
    let output = script(false, &format!("exec {namespaces} $RUN true"));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let text = stderr(&output);
    assert!(
        text.contains("cannot use /proc: it belongs to another pid namespace"),
        "{text}"
    );
    assert!(text.contains("help: mount a new /proc"), "{text}");
    // With a new /proc, as the help says; and as the first process, whose session is outside.
    let output = script(
        false,
        &format!("exec {namespaces} --mount-proc $RUN sh -c 'exit 6'"),
    );
    assert!(
        !can_watch() || output.status.code() == Some(6),
        "{output:?}"
    );
}

#[test]
fn a_stop_inside_shows_outside_and_so_does_its_end() {
    need_notify!();
    for signal in ["STOP", "TSTP", "TTIN", "TTOU"] {
        // The subshell continues the command when a signal tells it to.
        let inner = format!(
            "echo ready; (trap 'kill -CONT $$; exit' USR1; echo $BASHPID; \
             while :; do sleep .02; done) & kill -{signal} $$; wait; exit 6"
        );
        let mut watched = Watched::start("bash", &inner);
        let subshell: i32 = watched.line().trim().parse().expect("a pid");
        let front = watched.pid();
        until(signal, || {
            stat(front).is_some_and(|(state, _)| state == 'T')
        });
        kill(subshell, "USR1");
        assert_eq!(watched.end().status.code(), Some(6), "{signal}");
    }
}

#[test]
fn a_quick_continuation_overtakes_no_stop() {
    need_notify!();
    for signal in ["STOP", "TSTP"] {
        for _ in 0..10 {
            let inner =
                format!("echo ready; (kill -{signal} $$; kill -CONT $$) & wait; wait; exit 6");
            assert_eq!(
                Watched::start("sh", &inner).end().status.code(),
                Some(6),
                "{signal}"
            );
        }
    }
}

#[test]
fn whoever_continues_the_front_continues_everything() {
    need_notify!();
    // Stops front, agent and waiter, too.
    let inner = "echo ready; kill -STOP 0; cat /proc/self/comm; exit 6";
    let mut watched = Watched::start("sh", inner);
    let front = watched.pid();
    until("stop", || {
        stat(front).is_some_and(|(state, _)| state == 'T')
    });
    kill(front, "CONT");
    assert_eq!(watched.line(), "cat\n");
    assert_eq!(watched.end().status.code(), Some(6));
}

#[test]
fn a_stop_of_the_front_alone_does_not_stop_the_command() {
    need_notify!();
    let inner = "echo ready; while :; do sleep .01; echo on; done";
    let mut watched = Watched::start("sh", inner);
    let front = watched.pid();
    kill(front, "STOP");
    until("stop", || {
        stat(front).is_some_and(|(state, _)| state == 'T')
    });
    // More than the pipe can hold.
    for _ in 0..20 {
        assert_eq!(watched.line(), "on\n");
    }
    kill(front, "KILL");
    watched.end();
}

#[test]
fn every_signal_is_passed_on() {
    need_notify!();
    let signals = [
        "HUP", "INT", "QUIT", "ABRT", "USR1", "USR2", "PIPE", "ALRM", "TERM", "STKFLT", "TSTP",
        "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "RTMIN",
        "RTMIN+5", "RTMAX",
    ];
    let traps: String = signals
        .map(|signal| format!("trap 'echo {signal}' {signal};"))
        .concat();
    let mut watched = Watched::start("bash", &format!("{traps} {SLEEP}"));
    let front = watched.pid();
    for signal in signals {
        kill(front, signal);
        assert_eq!(watched.line(), format!("{signal}\n"));
    }
    kill(front, "KILL");
    watched.end();
}

#[test]
fn a_signal_to_the_group_leaves_the_last_word_to_the_command() {
    need_notify!();
    for signal in ["TERM", "PROF", "XCPU", "RTMIN+3", "ABRT"] {
        let inner = format!("trap 'exit 6' {signal}; {SLEEP}");
        let watched = Watched::start("bash", &inner);
        kill(-watched.pid(), signal);
        assert_eq!(watched.end().status.code(), Some(6), "{signal}");
    }
}

#[test]
fn the_status_is_kept_where_the_caller_ignores_children() {
    need_notify!();
    let output = script(false, "trap '' CHLD; exec $RUN sh -c 'exit 9'");
    assert_eq!(output.status.code(), Some(9), "{output:?}");
}

#[test]
fn the_command_is_given_what_the_caller_had() {
    need_notify!();
    for given in [
        "trap '' USR1 CHLD INT; exec $RUN grep -E 'Sig(Blk|Ign)' /proc/self/status",
        "ulimit -Sn 100; exec $RUN bash -c 'ulimit -Sn; ulimit -Hn'",
        "exec 7</dev/null 9>/dev/null; exec $RUN ls /proc/self/fd",
        // The mask of the shell is empty; that of python is not.
        "python3 -c \"import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2, 40])
words = (os.environ['RUN'] + ' grep SigBlk /proc/self/status').split()
os.execvp(words[0], words)\"",
    ] {
        let (native, watched) = (script(true, given), script(false, given));
        assert!(
            native.status.success() && !native.stdout.is_empty(),
            "{native:?}"
        );
        assert_eq!(
            stdout(&watched),
            stdout(&native),
            "{given}: {}",
            stderr(&watched)
        );
    }
}

#[test]
fn closed_standard_descriptors_become_dev_null() {
    need_notify!();
    // Through descriptor 5, because 0 to 2 are tested; alerts have no output.
    let given = "exec 5>&1; exec $RUN ls -l /proc/self/fd/0 >&5 <&-";
    assert!(!script(true, given).status.success());
    assert!(stdout(&script(false, given)).contains("-> /dev/null"));
}

#[test]
fn an_ignored_sigpipe_becomes_the_default() {
    need_notify!();
    let is_ignored = |native| {
        let given = "trap '' PIPE; exec $RUN grep SigIgn /proc/self/status";
        let line = stdout(&script(native, given));
        let mask = line.trim_start_matches("SigIgn:").trim();
        u64::from_str_radix(mask, 16).expect("hexadecimal") & (1 << 12) != 0
    };
    assert!(is_ignored(true));
    assert!(!is_ignored(false));
}

#[test]
fn stdout_stays_open_for_descendants_alerts() {
    need_notify!();
    let inner = "sleep 4 >/dev/null 2>&1 & exit 6";
    let given = format!("x=$($RUN sh -c '{inner}'); exit $?");
    let begin = Instant::now();
    assert_eq!(script(true, &given).status.code(), Some(6));
    let native = begin.elapsed();
    let begin = Instant::now();
    assert_eq!(script(false, &given).status.code(), Some(6));
    assert!(native < Duration::from_secs(4) && begin.elapsed() >= Duration::from_secs(4));
    // A caller that waits for the process alone is not blocked.
    let mut child = Command::new(TOLLGATE)
        .args(["run", "-q", "--", "sh", "-c", "sleep 30 & echo $!; exit 6"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was built");
    let mut line = String::new();
    let out = child.stdout.take().expect("it was asked for");
    BufReader::new(out)
        .read_line(&mut line)
        .expect("it prints UTF-8");
    let begin = Instant::now();
    assert_eq!(child.wait().expect("it is our child").code(), Some(6));
    assert!(begin.elapsed() < Duration::from_secs(15), "it waited");
    kill(line.trim().parse().expect("a pid"), "KILL");
}
