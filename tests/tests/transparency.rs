//! Nobody can tell from outside that a command is watched: exit status, signals, terminal, input and
//! output, and every kind of program are as without.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{
    Engine, Environment, Finished, Fixture, Identity, Limited, SENTINEL, Scratch, Watch,
    WatchResult, need_root, skip, wait_for,
};
use rustix::process::{Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(30);

/// Fires when a file called `mark` is opened.
const MARK: &str = "\
- rule: Mark
  desc: a file that marks a moment
  condition: evt.type in (open, openat, creat) and fd.name endswith /mark
  output: marked file=%fd.name process=%proc.name pid=%proc.vpid
  priority: DEBUG
";

fn watch(script: &str) -> WatchResult {
    Watch::script(script).rules(SENTINEL).rules(MARK).run()
}

/// A shell whose variable `T` is the beginning of a watched command line.
fn shell(shell: &str, script: &str) -> (Finished, Scratch) {
    let scratch = Scratch::new();
    let rules = scratch.file("rules.yaml", 0o644, MARK);
    let watched = format!(
        "{} run {} -q -r {} --",
        e2e::program().display(),
        Engine::under_test().options().join(" "),
        rules.display()
    );
    let mut command = Command::new(shell);
    command
        .args(["-c", script])
        .env("T", watched)
        .env("TERM", "xterm")
        .stdin(Stdio::null());
    command.current_dir(scratch.path());
    (Limited::start(&mut command, LIMIT).finish(b""), scratch)
}

/// Wants to know of each socket that becomes a standard descriptor.
const DUPLICATED: &str = "\
- rule: Redirected
  desc: d
  condition: evt.type in (dup, dup2, dup3) and evt.rawres in (0, 1, 2) and fd.type in (ipv4, ipv6)
  output: redirected
  priority: NOTICE
";

/// A shell that redirects closes standard descriptors for a moment; that is followed only where a
/// socket could take their place, and none of ours counts as one.
#[test]
fn shells_without_sockets_are_not_followed() {
    let script = "for n in 1 2 3; do echo $n | sort > %W/out; cat < %W/out; done";
    let watched = Watch::script(script).rules(DUPLICATED).run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let stats = watched.stats.as_ref().expect("a stats file was asked for");
    assert_eq!(stats["counters"]["stdio_watches"], 0, "{}", watched.story());
}

#[test]
fn the_exit_status_is_the_commands() {
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
        ("sh -c 'exit 7'; exit $?", 7),
    ] {
        let watched = watch(script);
        assert_eq!(watched.code(), code, "{script}: {}", watched.story());
        assert!(
            !watched.of("Sentinel").is_empty(),
            "{script}: {}",
            watched.story()
        );
    }
}

#[test]
fn the_exit_status_is_the_commands_for_every_user() {
    need_root!();
    for &identity in Identity::ALL {
        for place in [Environment::Host, Environment::Inside, Environment::Below] {
            let watch = Watch::script("exit 5")
                .rules(SENTINEL)
                .place(place)
                .identity(identity);
            let watched = watch.run();
            assert_eq!(
                watched.code(),
                5,
                "{place:?} {identity:?}: {}",
                watched.story()
            );
        }
    }
}

#[test]
fn a_command_that_cannot_run_ends_as_in_a_shell() {
    let scratch = Scratch::new();
    let text = scratch.file("text", 0o644, "no program\n");
    let folder = scratch.path().display().to_string();
    for (command, code) in [
        ("/no/such/program", 127),
        (text.to_str().expect("plain"), 126),
        (folder.as_str(), 126),
    ] {
        let watched = Watch::new([command]).rules(MARK).run();
        assert_eq!(watched.code(), code, "{command}: {}", watched.story());
        assert!(
            watched.finished.stderr.contains("tollgate: cannot "),
            "{}",
            watched.story()
        );
        assert!(
            watched.finished.stderr.contains("\nhelp: "),
            "{}",
            watched.story()
        );
    }
}

#[test]
fn input_goes_in_and_output_comes_out() {
    let input: Vec<u8> = (0..300_000)
        .flat_map(|n: u32| format!("{n}\n").into_bytes())
        .collect();
    let expected = String::from_utf8(input.clone()).expect("digits");
    let watched = Watch::new(["cat"]).rules(MARK).input(input).run();
    assert_eq!(watched.code(), 0);
    assert!(
        watched.printed == expected,
        "the input did not come back as it was"
    );
}

#[test]
fn pipelines_work() {
    let (finished, _) = shell(
        "bash",
        "set -o pipefail; yes | $T head -n 3 | $T cat | $T wc -l; echo ${PIPESTATUS[*]}",
    );
    assert!(finished.stdout.starts_with("3\n"), "{finished:?}");
    // yes dies of SIGPIPE, and so does a watched one.
    let (finished, _) = shell("bash", "$T yes | head -n 1; echo ${PIPESTATUS[0]}");
    assert_eq!(finished.stdout, "y\n141\n", "{finished:?}");
}

#[test]
fn timeout_ends_it() {
    let (finished, _) = shell("bash", "timeout 1 $T sleep 30; echo $?");
    assert_eq!(finished.stdout, "124\n", "{finished:?}");
    assert!(finished.elapsed < Duration::from_secs(20), "{finished:?}");
}

/// Starts a script that says when it is ready, and sends a signal to the program in front.
fn signalled(signal: Signal, script: &str) -> WatchResult {
    let watch = Watch::script(script).rules(MARK);
    let ready = watch.scratch().path().join("work/ready");
    let running = watch.start();
    wait_for(&ready);
    kill_process(running.pid(), signal).expect("it runs");
    let finished = running.finish(b"");
    watch.watched(finished)
}

#[test]
fn signals_reach_the_command() {
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::USR1, "USR1"),
    ] {
        let script = format!(
            "trap 'echo got {name}; exit 9' {name}; touch %W/ready; while :; do sleep 0.1; done"
        );
        let watched = signalled(signal, &script);
        assert_eq!(watched.code(), 9, "{name}: {}", watched.story());
        assert_eq!(watched.printed, format!("got {name}\n"));
    }
    let watched = signalled(Signal::TERM, "touch %W/ready; exec sleep 60");
    assert_eq!(watched.code(), 143, "{}", watched.story());
    assert!(watched.finished.elapsed < Duration::from_secs(40));
}

/// Without a watcher the signal would have killed the command.
#[test]
fn killing_the_front_kills_the_command_and_spares_its_children() {
    let watched = signalled(
        Signal::KILL,
        "(sleep 1; : > %W/mark && echo child lives) & touch %W/ready; sleep 2; echo command lives",
    );
    assert_eq!(
        watched.finished.status.signal(),
        Some(9),
        "{}",
        watched.story()
    );
    assert_eq!(watched.printed, "child lives\n", "{}", watched.story());
    assert_eq!(watched.of("Mark").len(), 1, "{}", watched.story());
}

#[test]
fn descendants_that_outlive_the_command_are_watched_on() {
    let script = "(sleep 1; : > %W/mark; echo alive) & exit 4";
    let watched = watch(script);
    assert_eq!(watched.code(), 4, "{}", watched.story());
    assert_eq!(watched.printed, "alive\n", "{}", watched.story());
    assert_eq!(watched.of("Mark").len(), 1, "{}", watched.story());
    // A daemon: a session of its own, and nothing of the caller's open.
    let watched = watch(
        "setsid sh -c 'sleep 1; : > %W/mark; echo alive > %W/out' < /dev/null > /dev/null 2>&1 & exit 0",
    );
    let out = watched.scratch.path().join("work/out");
    wait_for(&out);
    assert_eq!(watched.code(), 0, "{}", watched.story());
}

#[test]
fn the_front_ends_with_the_command_not_with_its_descendants() {
    let (finished, _) = shell(
        "bash",
        "s=$SECONDS; $T sh -c 'sleep 4 > /dev/null 2>&1 < /dev/null & exit 6'; echo $? $((SECONDS - s < 3))",
    );
    assert!(finished.stdout.starts_with("6 1\n"), "{finished:?}");
}

/// What is closed must not become a descriptor of ours, which the command could read or spoil.
#[test]
fn closed_standard_streams_lead_nowhere() {
    let looks = "for n in 0 1; do readlink /proc/self/fd/$n; done > targets; exit 7";
    for (closed, redirection) in [("stdin", "0<&-"), ("stdout", ">&-"), ("both", "0<&- >&-")] {
        let (finished, scratch) = shell(
            "bash",
            &format!("exec {redirection}; $T sh -c 'echo lost; {looks}'"),
        );
        assert_eq!(finished.code(), 7, "{closed}: {finished:?}");
        let targets = std::fs::read_to_string(scratch.path().join("targets")).expect("it wrote");
        let ours = |line: &str| {
            !["/dev/null", "targets"]
                .iter()
                .any(|end| line.ends_with(end))
        };
        let lines = || targets.lines().take(usize::from(closed != "stdout"));
        assert!(!lines().any(ours), "{closed}: {targets}");
        assert_eq!(
            finished.stdout.contains("lost"),
            closed == "stdin",
            "{closed}: {finished:?}"
        );
    }
}

#[test]
fn no_descriptor_and_no_variable_is_added() {
    let script = "cd /proc/self/fd && echo *; env | sort | grep -v -e ^_= -e ^PWD= -e ^OLDPWD= -e ^SHLVL= -e ^T=";
    let (plain, _) = shell("bash", &format!("bash -c '{script}'"));
    let (watched, _) = shell("bash", &format!("$T bash -c '{script}'"));
    assert_eq!(plain.stdout, watched.stdout);
}

#[test]
fn signal_dispositions_are_the_callers() {
    let script = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status";
    let (plain, _) = shell("bash", &format!("trap '' HUP USR2; {script}"));
    let (watched, _) = shell("bash", &format!("trap '' HUP USR2; $T {script}"));
    assert_eq!(plain.stdout, watched.stdout);
    assert!(!plain.stdout.is_empty());
}

#[test]
fn large_arguments_and_environments_pass() {
    let (finished, _) = shell(
        "bash",
        "big=$(head -c 100000 /dev/zero | tr '\\0' x); export BIG=$big; \
         $T sh -c 'echo ${#1} ${#BIG} $#' sh $big $(seq 1 9000)",
    );
    assert_eq!(
        finished.stdout, "100000 100000 9001\n",
        "{}",
        finished.stderr
    );
}

#[test]
fn deep_chains_of_programs_work() {
    let script = "n=$1; if [ $n -gt 0 ]; then exec \"$0\" $((n - 1)); fi; : > mark; echo end";
    let scratch = Scratch::new();
    let chain = scratch.file(
        "chain",
        0o755,
        format!("#!/bin/sh\ncd %\n{script}\n").replace("cd %", ":"),
    );
    let watched = Watch::new([
        "sh",
        "-c",
        "cd %W && exec \"$0\" 150",
        chain.to_str().expect("plain"),
    ])
    .rules(SENTINEL)
    .rules(MARK)
    .run();
    assert_eq!(watched.printed, "end\n", "{}", watched.story());
    assert_eq!(
        watched.of("Sentinel").len(),
        152,
        "{}",
        watched.finished.stderr
    );
    assert_eq!(watched.of("Mark").len(), 1);
    let nested = "n=$1; if [ $n -gt 0 ]; then \"$0\" $((n - 1)); exit $?; fi; : > mark; exit 11";
    let nested = scratch.file("nested", 0o755, format!("#!/bin/sh\n{nested}\n"));
    let watched = Watch::new([
        "sh",
        "-c",
        "cd %W && exec \"$0\" 60",
        nested.to_str().expect("plain"),
    ])
    .rules(MARK)
    .run();
    assert_eq!(
        (watched.code(), watched.of("Mark").len()),
        (11, 1),
        "{}",
        watched.story()
    );
}

/// Runs a compiled program that opens `mark` as often as it says, under every identity.
fn program_marks(fixture: &Fixture, argument: &str, identities: &[Identity], times: usize) {
    for &identity in identities {
        let watch = Watch::new(["true"]).rules(MARK).identity(identity);
        let program = watch.scratch().program(fixture.program(), "marker");
        let script = "cd %W && exec \"$0\" \"$1\"";
        let words = [
            "sh",
            "-c",
            script,
            program.to_str().expect("plain"),
            argument,
        ];
        let watched = watch.command(words.map(str::to_owned)).run();
        assert_eq!(
            watched.code(),
            0,
            "{argument} {identity:?}: {}",
            watched.story()
        );
        assert_eq!(
            watched.of("Mark").len(),
            times,
            "{argument} {identity:?}: {}",
            watched.story()
        );
    }
}

fn identities() -> &'static [Identity] {
    if e2e::is_root() {
        Identity::ALL
    } else {
        &[Identity::Root]
    }
}

#[test]
fn static_vforking_threaded_and_signal_ridden_programs_work() {
    let fixture = Fixture::compile("marker");
    for (argument, times) in [("plain", 1), ("vfork", 1), ("threads", 8), ("signals", 200)] {
        program_marks(&fixture, argument, identities(), times);
    }
}

#[test]
fn programs_of_32_bits_are_seen() {
    let fixture = Fixture::try_compile("marker", &["-m32", "-static"]);
    let fixture = fixture.unwrap_or_else(|text| panic!("{text}; gcc-multilib is needed"));
    for (argument, times) in [("plain", 1), ("vfork", 1), ("threads", 8), ("signals", 200)] {
        program_marks(&fixture, argument, identities(), times);
    }
}

#[test]
fn programs_for_x32_are_seen() {
    let fixture = Fixture::try_compile("marker", &["-mx32", "-static"]);
    let fixture = fixture.unwrap_or_else(|text| panic!("{text}; libc6-dev-x32 is needed"));
    let native = Command::new(fixture.program())
        .arg("plain")
        .current_dir(fixture.folder())
        .output();
    if native
        .as_ref()
        .map_or(true, |output| !output.status.success())
    {
        skip!("needs a kernel that runs x32 programs", || match native {
            Ok(output) if output.status.success() => Err(String::from("it ran")),
            other => Ok(format!("starting one gives {other:?}")),
        });
    }
    program_marks(&fixture, "plain", identities(), 1);
}

#[test]
fn busybox_is_seen() {
    let watched = Watch::new(["busybox", "sh", "-c", ": > %W/mark; busybox cat %W/mark"])
        .rules(MARK)
        .run();
    assert_eq!(
        (watched.code(), watched.of("Mark").len()),
        (0, 2),
        "{}",
        watched.story()
    );
}

#[test]
fn programs_that_change_their_user_work_for_root() {
    need_root!();
    let script =
        "cp \"$(command -v id)\" %W/id && chown 65534 %W/id && chmod 4755 %W/id && %W/id -u";
    let watched = watch(script);
    assert_eq!(watched.printed, "65534\n", "{}", watched.story());
}

/// Runs an expect(1) script; `$T` in it is the watched command line's beginning.
fn expect(script: &str) -> (Finished, Scratch) {
    let scratch = Scratch::new();
    let rules = scratch.file("rules.yaml", 0o644, MARK);
    let tollgate = e2e::program();
    let head = format!(
        "set timeout 15\nproc fail {{why}} {{ puts stderr \"expected $why\"; exit 9 }}\n\
         proc want {{text}} {{ expect -re $text {{}} timeout {{ fail $text }} eof {{ fail \"$text, got its end\" }} }}\n\
         proc over {{}} {{ catch {{ expect eof }} }}\n\
         proc start {{args}} {{ global spawn_id spawn_out; spawn -noecho {} run -q -r {} -- {{*}}$args }}\n",
        tollgate.display(),
        rules.display()
    );
    let script = scratch.file("script.exp", 0o644, format!("{head}{script}\n"));
    let mut command = Command::new("expect");
    command
        .arg("-f")
        .arg(script)
        .current_dir(scratch.path())
        .stdin(Stdio::null());
    command
        .env("TERM", "xterm")
        .env("PS1", "ready> ")
        .env_remove("INPUTRC");
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    assert_eq!(
        finished.code(),
        0,
        "{} {}",
        finished.stdout,
        finished.stderr
    );
    (finished, scratch)
}

#[test]
fn an_interactive_shell_has_job_control() {
    expect(
        "start bash --norc -i\nwant {ready> }\nsend \"PS1='ok> '; sleep 100\\r\"\nsleep 0.7\n\
         send \\032\nwant {Stopped}\nwant {ok> }\nsend \"jobs\\r\"\nwant {Stopped +sleep 100}\n\
         send \"fg\\r\"\nwant {sleep 100}\nsleep 0.5\nsend \\003\nwant {ok> }\n\
         send \"echo status $?\\r\"\nwant {status 130}\nsend \"exit 5\\r\"\nover\n\
         set status [lindex [wait] 3]\nif {$status != 5} { fail \"5, not $status\" }",
    );
}

#[test]
fn interrupting_from_the_terminal_ends_it_once() {
    expect(
        "start sh -c {trap 'echo caught; exit 8' INT; echo begun; while :; do sleep 0.1; done}\n\
         want {begun}\nsend \\003\nwant {caught}\nover\n\
         set status [lindex [wait] 3]\nif {$status != 8} { fail \"8, not $status\" }",
    );
}

#[test]
fn a_shell_can_stop_it_and_go_on() {
    let scratch = Scratch::new();
    let rules = scratch.file("rules.yaml", 0o644, MARK);
    let line = format!(
        "{} run -q -r {} -- cat",
        e2e::program().display(),
        rules.display()
    );
    expect(&format!(
        "spawn -noecho bash --norc -i\nwant {{ready> }}\nsend \"PS1='ok> '\\r\"\nwant {{ok> }}\n\
         send \"{line}\\r\"\nsleep 1\nsend \"one\\r\"\nwant {{one.*one}}\nsend \\032\nwant {{Stopped}}\n\
         want {{ok> }}\nsend \"fg\\r\"\nwant {{cat}}\nsleep 0.5\nsend \"two\\r\"\nwant {{two.*two}}\n\
         send \\004\nwant {{ok> }}\nsend \"echo status $?\\r\"\nwant {{status 0}}\nsend \"exit\\r\"\nover"
    ));
}

#[test]
fn the_terminal_has_its_size_and_says_when_it_changes() {
    expect(
        "set stty_init {rows 33 cols 77}\nstart sh -c {stty size; trap 'stty size; exit' WINCH; echo set; while :; do sleep 0.1; done}\n\
         want {33 77}\nwant {set}\nexec stty -F $spawn_out(slave,name) rows 44 cols 99\nwant {44 99}\nover",
    );
}

#[test]
fn an_editor_opens_a_file_and_quits() {
    let (_, scratch) = expect(
        "start vim -u NONE -n text\nsleep 1\nsend \"ihello\\033\"\nsleep 0.3\nsend \":wq\\r\"\nover\n\
         set status [lindex [wait] 3]\nif {$status != 0} { fail \"0, not $status\" }",
    );
    let text = std::fs::read_to_string(scratch.path().join("text")).expect("vim wrote it");
    assert_eq!(text, "hello\n");
}

#[test]
fn a_full_screen_program_runs_and_ends_at_a_key() {
    expect("start top\nwant {PID}\nsend q\nover\nif {[lindex [wait] 3] != 0} { fail 0 }");
    let (finished, _) = shell("bash", "$T top -b -n 1 | grep -c PID");
    assert_eq!(finished.stdout, "1\n", "{finished:?}");
}

#[test]
fn recording_a_session_works() {
    let (finished, scratch) = shell(
        "bash",
        "$T script -qec 'tty > /dev/null && echo on a terminal' log",
    );
    assert!(finished.stdout.contains("on a terminal"), "{finished:?}");
    let log: PathBuf = scratch.path().join("log");
    assert!(
        std::fs::read_to_string(log)
            .expect("it wrote one")
            .contains("on a terminal")
    );
}

#[test]
fn a_debugger_and_a_tracer_work_below() {
    if Engine::under_test().traces() {
        skip!("cannot be traced twice", || {
            let watched = Watch::new(["strace", "true"]).rules(SENTINEL).run();
            let said = watched.finished.stderr.clone();
            let refused = watched.code() != 0 && said.contains("Operation not permitted");
            if refused {
                Ok(said)
            } else {
                Err(watched.story())
            }
        });
    }
    let watched = Watch::new([
        "strace",
        "-f",
        "-o",
        "%W/trace",
        "sh",
        "-c",
        ": > %W/mark; /bin/true",
    ])
    .rules(MARK)
    .rules(SENTINEL)
    .run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    assert_eq!(watched.of("Mark").len(), 1, "{}", watched.story());
    let trace = watched.scratch.path().join("work/trace");
    let trace = std::fs::read_to_string(trace).expect("strace wrote it");
    assert!(trace.contains("+++ exited with 0 +++"), "{trace}");
}
