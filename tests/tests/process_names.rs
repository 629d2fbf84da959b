//! `proc.name` is the name at exec: programs that call themselves something else are not taken for that.

use std::fs;

use e2e::runtime_fixture::{RuntimeFixture, fields};
use e2e::{Engine, Environment, Fixture, Watch, WatchResult, need_root, need_runtime};

const RULE: &str = "Read by another than sshd";
const MASQUERADE: &str = "Tollgate internal: masquerading process";

const RULES: &str = "
- rule: Read by another than sshd
  desc: a file that one program alone may read
  condition: >
    evt.type in (open, openat, openat2) and fd.name = %F and not proc.name in (sshd, sftp-server)
  output: read (name=%proc.name thread=%thread.name parent=%proc.pname)
  priority: WARNING
- rule: Read by the program
  desc: the program is asked for by its name
  condition: evt.type in (open, openat, openat2) and fd.name = %F and proc.name = renamer
  output: read (name=%proc.name)
  priority: WARNING
";

/// Runs the program that gives itself a name, under the file name `program`.
fn rename(program: &str, how: &str, name: &str) -> WatchResult {
    let fixture = Fixture::compile("renamer");
    let watch = Watch::new(["true"]);
    let folder = watch.scratch().path().to_owned();
    let program = watch.scratch().program(fixture.program(), program);
    let file = folder.join("secret");
    fs::write(&file, "secret").expect("the scratch folder is writable");
    let (program, file) = (program.display().to_string(), file.display().to_string());
    // The shell waits for what outlives the program.
    let script = "\"$0\" \"$@\"; sleep 0.5";
    let words = ["sh", "-c", script, &program, how, name, &file];
    let watch = watch.command(words.map(str::to_owned));
    watch.rules(&RULES.replace("%F", &file)).run()
}

#[test]
fn a_process_that_calls_itself_by_an_excepted_name_is_seen_and_reported() {
    for how in ["prctl", "comm", "thread", "forked", "exec", "many", "check"] {
        let watched = rename("renamer", how, "sshd");
        assert!(
            watched.printed.contains("read\n"),
            "{how}: {}",
            watched.story()
        );
        let alerts = watched.of(RULE);
        assert_eq!(alerts.len(), 1, "{how}: {}", watched.story());
        assert_eq!(alerts[0].field("proc.name"), "renamer", "{how}");
        assert_eq!(alerts[0].field("thread.name"), "sshd", "{how}");
        // Once for a process, and not for those that it forks.
        let told = watched.of(MASQUERADE);
        assert_eq!(told.len(), 1, "{how}: {}", watched.story());
        assert_eq!(told[0].field("proc.name"), "renamer", "{how}");
        assert_eq!(told[0].field("thread.name"), "sshd", "{how}");
    }
}

/// Engines that compare names in the kernel see the present name there.
#[test]
fn a_rule_that_asks_for_a_program_finds_it_under_another_name() {
    for how in ["prctl", "comm", "forked"] {
        let watched = rename("renamer", how, "another");
        let alerts = watched.of("Read by the program");
        assert_eq!(alerts.len(), 1, "{how}: {}", watched.story());
    }
}

/// As npm does, which node runs.
#[test]
fn a_script_that_takes_its_own_name_is_not_reported_but_one_that_takes_anothers_is() {
    for (script, reported) in [("sshd", 0), ("other", 1)] {
        let watch = Watch::new(["true"]);
        let folder = watch.scratch().path().to_owned();
        let file = folder.join("secret");
        fs::write(&file, "secret").expect("the scratch folder is writable");
        let text = "$0 = 'sshd'; open my $file, '<', $ARGV[0] or die; print \"read\\n\"";
        let script = watch.scratch().file(script, 0o644, text);
        let words = ["perl".into(), script, file.clone()];
        let watch = watch.command(words.map(|word| word.display().to_string()));
        let watched = watch
            .rules(&RULES.replace("%F", &file.display().to_string()))
            .run();
        assert!(watched.printed.contains("read"), "{}", watched.story());
        // Rules have the name at exec.
        let alerts = watched.of(RULE);
        assert_eq!(alerts.len(), 1, "{}", watched.story());
        assert_eq!(alerts[0].field("proc.name"), "perl");
        assert_eq!(
            watched.of(MASQUERADE).len(),
            reported,
            "{}",
            watched.story()
        );
    }
}

#[test]
fn a_name_that_nothing_follows_is_reported_all_the_same() {
    let watched = rename("renamer", "idle", "sftp-server");
    assert_eq!(watched.of(RULE).len(), 0, "{}", watched.story());
    assert_eq!(watched.of(MASQUERADE).len(), 1, "{}", watched.story());
}

#[test]
fn other_names_and_those_of_other_threads_are_not_reported() {
    for (how, name) in [
        ("prctl", "worker-1"),
        ("comm", "ThreadPool"),
        ("other", "sshd"),
    ] {
        let watched = rename("renamer", how, name);
        let alerts = watched.of(RULE);
        assert_eq!(alerts.len(), 1, "{how}: {}", watched.story());
        assert_eq!(alerts[0].field("proc.name"), "renamer", "{how}");
        assert_eq!(
            watched.of(MASQUERADE).len(),
            0,
            "{how}: {}",
            watched.story()
        );
    }
}

#[test]
fn the_excepted_program_is_excepted_whatever_it_calls_itself() {
    for name in ["sshd", "another"] {
        for how in ["prctl", "forked"] {
            let watched = rename("sshd", how, name);
            assert!(watched.printed.contains("read\n"), "{}", watched.story());
            assert_eq!(
                watched.of(RULE).len(),
                0,
                "{how} {name}: {}",
                watched.story()
            );
            assert_eq!(
                watched.of(MASQUERADE).len(),
                0,
                "{how} {name}: {}",
                watched.story()
            );
        }
    }
}

/// The kernel takes the name from the path, not from the arguments; a script is called by its own name.
#[test]
fn the_name_at_exec_is_that_of_the_file() {
    let rules = "
- rule: Executed
  desc: by what name
  condition: evt.type in (execve, execveat) and proc.args endswith name-of-the-file
  output: executed %proc.name %thread.name
  priority: WARNING
";
    let script = "cd %W && printf '#!/bin/sh\\n:\\n' >script && chmod +x script && \
                  ./script name-of-the-file; (exec -a innocent /bin/echo name-of-the-file); :";
    let watched = Watch::new(["bash", "-c", script]).rules(rules).run();
    let names: Vec<_> = watched
        .of("Executed")
        .iter()
        .map(|alert| alert.field("proc.name"))
        .collect();
    assert_eq!(names, ["script", "echo"], "{}", watched.story());
}

/// `AT_EXECVE_CHECK` executes nothing: the process stays what it is. Engine `ebpf` hears of programs that were
/// executed and of those that could not be.
#[test]
fn a_check_of_a_program_is_a_call_of_the_program_that_checks() {
    need_root!();
    let rules = "
- rule: Checked
  desc: by whom
  condition: evt.type = execveat
  output: checked %proc.name
  priority: WARNING
";
    let program = "import ctypes
words = (ctypes.c_char_p * 2)(b'true', None)
print(ctypes.CDLL(None).syscall(322, -100, b'/bin/true', words, words, 0x10000))";
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        let watched = Watch::new(["python3", "-c", program])
            .engine(engine)
            .place(Environment::Host)
            .rules(rules)
            .run();
        let succeeded = watched.printed.contains("0\n");
        let told = watched.of("Checked");
        let expected = usize::from(engine != Engine::Ebpf || !succeeded);
        assert_eq!(told.len(), expected, "{}", watched.story());
        for alert in told {
            assert!(alert.field("proc.name").starts_with("python3"));
        }
    }
}

/// The number stays the kernel's.
#[test]
fn a_root_of_its_own_has_names_of_users_of_its_own() {
    need_root!();
    let rules = "
- rule: Opened there
  desc: by whom
  condition: evt.type in (open, openat, openat2) and fd.name endswith /probe
  output: opened %user.name %user.uid
  priority: WARNING
";
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        let watch = Watch::new(["true"]).engine(engine).place(Environment::Host);
        let folder = watch.scratch().path().join("root");
        fs::create_dir_all(folder.join("etc")).expect("the scratch folder is writable");
        fs::write(folder.join("etc/passwd"), "backup:x:0:0::/:/bin/sh\n").expect("it is ours");
        // The root is looked at when a call of it is an event, or when the process gets it.
        let program = format!(
            "import os, time; os.chroot('{}'); time.sleep(0.5)
try: os.open('/probe', 0)
except OSError: time.sleep(0.5)",
            folder.display()
        );
        let watched = watch
            .command(["python3", "-c", &program].map(str::to_owned))
            .rules(rules)
            .run();
        let told = watched.of("Opened there");
        assert_eq!(told.len(), 1, "{}", watched.story());
        assert_eq!(told[0].field("user.name"), "backup", "{}", watched.story());
        assert_eq!(told[0].field("user.uid"), "0", "{}", watched.story());
    }
}

/// Runs runc from a sealed copy in memory, as its newer versions do by themselves.
const RUNC_IN_MEMORY: &str = r#"#!/usr/bin/python3
import fcntl, os, shutil, sys
copy = os.memfd_create("runc_cloned:/proc/self/exe", os.MFD_ALLOW_SEALING)
with open(shutil.which("runc"), "rb") as program:
    while data := program.read(1 << 20):
        os.write(copy, data)
seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
fcntl.fcntl(copy, fcntl.F_ADD_SEALS, seals)
os.execve(copy, ["runc", *sys.argv[1:]], os.environ)
"#;

/// It calls itself `runc:[0:PARENT]` and so on while it sets a container up, and a session in one.
#[test]
fn a_runtime_that_runs_from_memory_is_not_reported_for_its_own_name() {
    need_root!();
    need_runtime!("runc");
    let rules = r#"
- rule: Shell
  desc: a shell that no runtime started
  condition: >
    evt.type in (execve, execveat) and proc.name = sh
    and not proc.pname in ("runc:[0:PARENT]", "runc:[1:CHILD]", "runc:[2:INIT]")
  output: shell
  priority: INFO
"#;
    let ground = RuntimeFixture::new();
    ground.bundle(
        "b",
        "touch out/up; while test ! -e out/done; do sleep 0.05; done",
    );
    ground.scratch.file("rules.yaml", 0o644, rules);
    ground
        .scratch
        .file("bin/runc-in-memory", 0o755, RUNC_IN_MEMORY);
    let script = "RUNTIME=$PWD/bin/runc-in-memory
rt run --bundle b $ID < /dev/null & container=$!
await up
rt exec $ID sh -c 'touch /out/done'
wait $container
settle
";
    let (finished, alerts) = ground.run("runc", script);
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(fields(&alerts, "Shell", "container.id").len(), 2);
    let others: Vec<_> = alerts
        .iter()
        .filter(|alert| alert.rule != "Shell")
        .collect();
    assert!(others.is_empty(), "{others:?}");
}
