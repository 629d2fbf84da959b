//! The program from outside: its output and exit codes.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .env("COLUMNS", "100")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    tollgate()
        .args(args)
        .output()
        .expect("the program was built for this test")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("it prints UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("it prints UTF-8")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

/// Returns true if the engine works here. If not, the tests check that the program reports it.
fn can_watch() -> bool {
    json(&run(&["doctor", "--json"]))["notify"] == true
}

/// Skips a test where the engine `notify` does not work; there `run` must say so by its exit code.
macro_rules! need_notify {
    () => {
        if !can_watch() {
            testing::skip!("needs the engine notify", || {
                match run(&["run", "true"]).status.code() {
                    Some(3) => Ok("run ends with 3".to_owned()),
                    other => Err(format!("run ends with {other:?}")),
                }
            });
        }
    };
}

/// Compares with a file of `tests/golden`; `BLESS=1` writes it instead.
fn assert_golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("it has one")).expect("it can be made");
        fs::write(&path, actual).expect("it can be written");
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        actual == expected,
        "{name} differs; BLESS=1 rewrites it. It is now:\n{actual}"
    );
}

#[test]
fn help_is_as_it_was() {
    for (name, args) in [
        ("help.txt", &["--help"][..]),
        ("help-run.txt", &["run", "--help"]),
        ("help-enforce.txt", &["enforce", "--help"]),
        ("help-learn.txt", &["learn", "--help"]),
        ("help-watch.txt", &["watch", "--help"]),
        ("help-replay.txt", &["replay", "--help"]),
        ("help-falco.txt", &["falco", "--help"]),
        ("help-rules.txt", &["rules", "--help"]),
        ("help-rules-check.txt", &["rules", "check", "--help"]),
        ("help-rules-explain.txt", &["rules", "explain", "--help"]),
        ("help-rules-test.txt", &["rules", "test", "--help"]),
        ("help-rules-silence.txt", &["rules", "silence", "--help"]),
        ("help-config-show.txt", &["config", "show", "--help"]),
        ("help-config-check.txt", &["config", "check", "--help"]),
        ("help-rules-lint.txt", &["rules", "lint", "--help"]),
        ("help-rules-cost.txt", &["rules", "cost", "--help"]),
        ("help-runtime.txt", &["runtime", "--help"]),
        ("help-doctor.txt", &["doctor", "--help"]),
        ("help-policy.txt", &["policy", "--help"]),
        ("help-policy-init.txt", &["policy", "init", "--help"]),
        ("help-policy-check.txt", &["policy", "check", "--help"]),
        ("help-policy-explain.txt", &["policy", "explain", "--help"]),
        ("help-generate.txt", &["generate", "--help"]),
        ("help-generate-test.txt", &["generate", "test", "--help"]),
        ("help-generate-bench.txt", &["generate", "bench", "--help"]),
        (
            "help-generate-suite-test.txt",
            &["generate", "suite", "test", "--help"],
        ),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(stderr(&output), "");
        assert_golden(name, &stdout(&output));
    }
}

#[test]
fn what_policies_mean_is_shown_as_it_was() {
    let directory = tempfile::tempdir().expect("a folder for temporary files");
    let file = directory.path().join("web.yaml");
    fs::write(
        &file,
        "policy:\n  enforcer: SeccompLandlockAppArmor\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
         privileged: true\n    auditViolations: true\n    hardeningRules: [disallow-create-user-ns]\n    \
         attackProtectionRules: [{rules: [disable-access-shadow, disable-shell]}]\n",
    )
    .expect("it can be written");
    let file = file.to_str().expect("temporary folders have plain names");
    for (name, args) in [
        ("policy-list.txt", &["policy", "list", "disable-tcp"][..]),
        ("policy-check.txt", &["policy", "check", file]),
        (
            "policy-check-long.txt",
            &["policy", "check", "--long", file],
        ),
        ("policy-explain.txt", &["policy", "explain", file]),
        (
            "policy-explain-long.txt",
            &["policy", "explain", "--long", file],
        ),
        (
            "policy-explain-seccomp.txt",
            &["policy", "explain", "--enforcer", "seccomp", file],
        ),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_golden(name, &stdout(&output).replace(file, "web.yaml"));
    }
}

#[test]
fn the_pages_about_falco_and_fields_are_what_the_program_prints() {
    for (name, args) in [
        ("falco-compat.md", &["falco", "--compat"][..]),
        ("fields.md", &["rules", "fields", "--markdown"]),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_golden(
            &format!("../../../../docs/reference/{name}"),
            &stdout(&output),
        );
    }
}

#[test]
fn the_page_of_built_in_rules_is_what_the_program_prints() {
    let output = run(&["policy", "list", "--markdown"]);
    assert_eq!(output.status.code(), Some(0));
    assert_golden(
        "../../../../docs/reference/policy-rules.md",
        &stdout(&output),
    );
}

#[test]
fn a_subverb_without_its_verb_is_found() {
    let output = run(&["silence"]);
    assert_eq!(output.status.code(), Some(2));
    let help = "help: did you mean `tollgate rules silence`?";
    assert!(stderr(&output).contains(help), "{}", stderr(&output));
}

#[test]
fn wrong_usage_is_exit_2_with_a_message_on_stderr() {
    for (args, message) in [
        (
            &["frobnicate"][..],
            "cannot find `tollgate frobnicate`: no such verb\nhelp: choose one of run, ",
        ),
        (&["rnu"], "help: did you mean `tollgate run`?"),
        (
            &["rules", "chek"],
            "help: did you mean `tollgate rules check`?",
        ),
        (&["help", "runn"], "help: did you mean `tollgate run`?"),
        (&["run"], "<CMD>"),
        (
            &["run", "--jsno", "--", "true"],
            "a similar argument exists: '--json'",
        ),
        (
            &["run", "--stats-interval", "5", "--", "true"],
            "--stats <FILE>",
        ),
        (&["run", "--engine", "kmod", "--", "true"], "kmod"),
        (&["rules", "test"], "<FILE>"),
        (
            &["man", "nothing"],
            "help: choose one of run, enforce, guard, learn, watch, top, replay, falco, rules",
        ),
        (
            &["generate", "list", "no-such-action"],
            "`tollgate generate list --all` shows all",
        ),
        (&["generate", "run", "NonSudoSetuid"], "add `--all`"),
        (&["generate", "run", "("], "unclosed group"),
        (&["generate", "run", "--sleep", "5"], "expected a duration"),
        (
            &["watch", "--engine", "ptrace"],
            "cannot watch the whole host",
        ),
        (&["watch", "-p", "0"], "0 is not in 1.."),
    ] {
        let output = run(args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
        assert_eq!(stdout(&output), "", "{args:?}");
        assert!(
            stderr(&output).starts_with("tollgate: "),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(message),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

/// Arguments that are refused, with their exit code and a part of the message.
const REFUSED: &[(&[&str], i32, &str)] = &[
    (
        &["run", "no-such-program-at-all"],
        127,
        "command not found\nhelp: ",
    ),
    (&["run", "--", "/no/such/file"], 127, "no such file\nhelp: "),
    (&["run", "/"], 126, "it is a directory\nhelp: "),
    (
        &["run", "/etc/passwd"],
        126,
        "permission denied\nhelp: make it executable",
    ),
    (
        &["run", "-r", "/no/rules.yaml", "true"],
        2,
        "LOAD_ERR_FILE_READ",
    ),
    (
        &["run", "-c", "/no/config.yaml", "true"],
        2,
        "cannot read configuration /no/config.yaml: ",
    ),
    (
        &["run", "-o", "outputs.rat=1", "true"],
        2,
        "help: did you mean `outputs.rate`?",
    ),
    (
        &["run", "-s", "/no/stats", "true"],
        2,
        "cannot open stats file /no/stats: ",
    ),
    (
        &[
            "run",
            "-o",
            "file_output={enabled: true, filename: /no/f}",
            "true",
        ],
        2,
        "cannot open alert file /no/f: ",
    ),
    (
        &["rules", "list", "-l", "Run shell untrustd"],
        2,
        "did you mean `Run shell untrusted`?",
    ),
    (
        &["rules", "fields", "--class", "prco"],
        2,
        "did you mean `proc`?",
    ),
    (
        &["rules", "explain", "--call", "opnat"],
        2,
        "did you mean `openat`?",
    ),
    (
        &["rules", "explain", "--call", "getppid"],
        2,
        "no rule needs it, so it runs at full speed",
    ),
];

#[test]
fn what_cannot_run_is_refused_with_the_next_step() {
    for &(args, code, message) in REFUSED {
        let output = run(args);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.starts_with("tollgate: cannot "), "{args:?}: {text}");
        assert!(text.contains(message), "{args:?}: {text}");
        assert!(text.contains("\nhelp: "), "{args:?}: {text}");
        assert_eq!(stdout(&output), "", "{args:?}");
    }
}

#[test]
fn rules_check_tells_good_from_bad() {
    let dir = tempfile::tempdir().expect("there is room");
    let good = dir.path().join("good.yaml");
    let bad = dir.path().join("bad.yaml");
    fs::write(
        &good,
        "- rule: A\n  desc: d\n  condition: evt.type = acct\n  output: o\n  priority: info\n",
    )
    .expect("there is room");
    fs::write(
        &bad,
        "- rule: B\n  desc: d\n  condition: proc.nme = x\n  output: o\n  priority: info\n",
    )
    .expect("there is room");
    let (good, bad) = (good.to_str().expect("UTF-8"), bad.to_str().expect("UTF-8"));

    let output = run(&["rules", "check", good]);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(0), format!("{good}: Ok\n"))
    );

    let output = run(&["rules", "check", good, bad]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains(&format!("{bad}:3:")), "{text}");
    assert!(text.contains("did you mean `proc.name`?"), "{text}");
    assert!(
        text.ends_with(&format!("{good}: Ok\n{bad}: Invalid: 1 error\n")),
        "{text}"
    );

    let output = run(&["rules", "check", "--json", good, bad]);
    assert_eq!(output.status.code(), Some(2));
    let results = json(&output);
    assert_eq!(results["falco_load_results"][0]["successful"], true);
    assert_eq!(results["falco_load_results"][1]["successful"], false);
    assert_eq!(
        results["falco_load_results"][1]["errors"][0]["code"],
        "LOAD_ERR_COMPILE_CONDITION"
    );
}

#[test]
fn the_published_rules_load() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/reference/upstream/falco_rules.yaml");
    if !path.exists() {
        testing::skip!("needs Falco's stable rules beside the repository", || Ok(
            format!("{} is not there", path.display())
        ));
    }
    let output = run(&["rules", "check", path.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
}

#[test]
fn every_listing_prints_text_json_and_markdown() {
    for args in [&["rules", "fields"][..], &["rules", "events"]] {
        let text = run(args);
        assert_eq!(text.status.code(), Some(0), "{args:?}");
        assert!(text.stdout.len() > 1000, "{args:?}");
        let markdown = run(&[args, &["--markdown"]].concat());
        assert!(stdout(&markdown).contains("|---|---|---|"), "{args:?}");
        assert!(
            json(&run(&[args, &["--json"]].concat())).is_object(),
            "{args:?}"
        );
    }
    assert!(json(&run(&["rules", "list", "--json"]))["rules"][0]["name"].is_string());
    let explained = json(&run(&["rules", "explain", "--json"]));
    let calls = explained["calls"].as_array().expect("a list");
    assert!(calls.iter().any(|call| call["call"] == "openat"));
    assert_eq!(json(&run(&["version", "--json"]))["name"], "tollgate");
}

#[test]
fn completions_and_manual_pages_are_made() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            stdout(&run(&["completions", shell])).contains("tollgate"),
            "{shell}"
        );
    }
    let page = stdout(&run(&["man"]));
    assert!(
        page.contains(".TH TOLLGATE 1") && page.contains("EXIT STATUS"),
        "{page}"
    );
    let page = stdout(&run(&["man", "run"]));
    assert!(
        page.contains("outputs.max_burst") && page.contains("128+N"),
        "{page}"
    );
    assert_eq!(run(&["man", "rules", "check"]).status.code(), Some(0));
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let (reader, writer) = std::io::pipe().expect("there are descriptors");
    drop(reader);
    let status = tollgate()
        .args(["rules", "fields"])
        .stdout(writer)
        .stderr(Stdio::inherit())
        .status()
        .expect("the program was built for this test");
    assert_eq!(status.code(), Some(0));
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").expect("a path");
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

#[test]
fn version_lists_every_engine_and_enforcer() {
    let version = json(&run(&["version", "--json"]));
    assert_eq!(
        version["engines"],
        serde_json::json!(["notify", "ptrace", "ebpf", "gvisor", "scap"])
    );
    assert_eq!(
        version["enforcers"],
        serde_json::json!(["seccomp", "landlock", "caps", "apparmor", "bpf"])
    );
}

#[test]
fn doctor_agrees_with_its_exit_code() {
    let output = run(&["doctor", "--json"]);
    let report = json(&output);
    let probes = report["probes"].as_array().expect("a list");
    assert!(probes.len() >= 15);
    for probe in probes {
        let support = probe["support"].as_str().expect("text");
        assert!(["yes", "partial", "no"].contains(&support), "{probe}");
        assert!(
            !probe["detail"].as_str().expect("text").is_empty(),
            "{probe}"
        );
        // A fix is offered only where it can help.
        assert!(support != "yes" || probe["fix"].is_null(), "{probe}");
    }
    let expected = if report["notify"] == true || report["ptrace"] == true {
        0
    } else {
        3
    };
    assert_eq!(output.status.code(), Some(expected));
    let text = stdout(&run(&["doctor"]));
    assert_eq!(text.lines().next(), report["verdict"]["text"].as_str());
    for fix in report["fixes"].as_array().expect("a list") {
        let fix = fix["fix"].as_str().expect("text");
        assert!(text.contains(fix), "{fix}: {text}");
        // What belongs to another distribution, and modules that the kernel lacks, are not offered.
        assert!(!fix.contains("apt-get") || has_program("apt-get"), "{fix}");
    }
    assert_eq!(run(&["doctor"]).status.code(), Some(expected));
    assert!(
        !stdout(&run(&["doctor"])).contains('\u{1b}'),
        "colours only for terminals"
    );
}

struct Watched {
    dir: tempfile::TempDir,
    rules: PathBuf,
}

impl Watched {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("there is room");
        let rules = dir.path().join("rules.yaml");
        let secret = dir.path().join("secret");
        fs::write(&secret, "x\n").expect("there is room");
        let rule = format!(
            "- rule: Secret read\n  desc: d\n  condition: evt.type in (open, openat) and \
             fd.name = {0}\n  output: secret read (file=%fd.name)\n  priority: warning\n  \
             tags: [b, a]\n",
            secret.display()
        );
        fs::write(&rules, rule).expect("there is room");
        Self { dir, rules }
    }

    fn path(&self, name: &str) -> String {
        self.dir
            .path()
            .join(name)
            .to_str()
            .expect("UTF-8")
            .to_owned()
    }

    fn run(&self, options: &[&str], script: &str) -> Output {
        let rules = self.rules.to_str().expect("UTF-8");
        let script = script.replace('@', &self.path("secret"));
        run(&[&["run", "-r", rules], options, &["--", "sh", "-c", &script]].concat())
    }
}

#[test]
fn the_exit_status_is_the_commands() {
    need_notify!();
    let watched = Watched::new();
    assert_eq!(watched.run(&[], "exit 7").status.code(), Some(7));
    let killed = watched.run(&[], "kill -9 $$").status;
    assert!(
        killed.code() == Some(137) || killed.signal() == Some(9),
        "{killed:?}"
    );
}

#[test]
fn alerts_are_printed_written_and_counted() {
    need_notify!();
    let watched = Watched::new();
    let (file, stats) = (watched.path("alerts"), watched.path("stats"));
    let output = watched.run(
        &[
            "-o",
            "file_output.enabled=true",
            "-o",
            &format!("file_output.filename={file}"),
            "-s",
            &stats,
            "--json",
        ],
        "cat @ >/dev/null; cat @ >/dev/null",
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    let printed = stderr(&output);
    assert_eq!(printed.lines().count(), 2, "{printed}");
    assert_eq!(fs::read_to_string(&file).expect("it was written"), printed);
    for line in printed.lines() {
        check_alert(line, &watched.path("secret"));
    }
    let stats = fs::read_to_string(&stats).expect("it was written");
    let last: serde_json::Value =
        serde_json::from_str(stats.lines().last().expect("a line")).expect("JSON");
    assert_eq!(last["alerts"]["emitted"], 2);
    assert_eq!(last["alerts"]["channels"]["file"]["delivered"], 2);
    assert_eq!(last["cur"]["drops"], 0);
    let counters = &last["counters"];
    assert_eq!(last["cur"]["events"], counters["trapped"]);
    assert!(
        counters["rejected_at_strings"].as_u64().expect("a number") > 0,
        "{last}"
    );
    assert_eq!(counters["matched"], 2);
}

/// Checks that a line is the alert about this file, with all keys.
fn check_alert(line: &str, file: &str) {
    let alert: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(alert["rule"], "Secret read");
    assert_eq!(alert["priority"], "Warning");
    assert_eq!(alert["tags"], serde_json::json!(["a", "b"]));
    assert_eq!(alert["output_fields"]["fd.name"], file);
    assert!(alert["output_fields"]["evt.time"].is_u64());
    let keys: Vec<_> = alert
        .as_object()
        .expect("an object")
        .keys()
        .cloned()
        .collect();
    let expected = [
        "hostname",
        "id",
        "output",
        "output_fields",
        "priority",
        "rule",
        "rule_file",
        "rule_id",
        "rule_line",
        "source",
        "tags",
        "time",
    ];
    assert_eq!(keys, expected);
}

#[test]
fn text_alerts_have_time_priority_and_message() {
    need_notify!();
    let watched = Watched::new();
    let output = watched.run(&["-o", "time_format_iso_8601=true"], "cat @ >/dev/null");
    let line = stderr(&output);
    let (time, rest) = line
        .trim_end()
        .split_once("+0000: ")
        .expect("a time in UTC");
    assert_eq!(time.len(), "2026-11-21T08:15:42.000000007".len());
    assert_eq!(
        rest,
        format!("Warning secret read (file={})", watched.path("secret"))
    );
}

#[test]
fn a_watched_program_cannot_have_two_listeners_and_is_told_so() {
    need_notify!();
    let watched = Watched::new();
    let program = env!("CARGO_BIN_EXE_tollgate");
    let rules = watched.path("rules.yaml");
    let inner = format!("{program} run --engine notify -r {rules} -- true");
    let output = watched.run(&[], &inner);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("listener already"),
        "{}",
        stderr(&output)
    );
    let output = watched.run(&[], &format!("{program} doctor"));
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let verdict = "The engine notify does not work here because of: notify-listener, \
                   notify-continue.\nThe engine ptrace works here";
    assert!(stdout(&output).contains(verdict), "{}", stdout(&output));
}

#[test]
fn an_agent_without_a_specification_of_this_build_is_refused() {
    let folder = Watched::new();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path(name);
        fs::write(&path, bytes).expect("there is room");
        path
    };
    let cases = [
        (file("none", b"x"), "this is not a specification of one"),
        (
            file("other", b"tgagent\n\xff\0\0\0"),
            "its specification has version 255, and this build knows version",
        ),
        (folder.path("missing"), "cannot read the specification"),
    ];
    for (path, why) in cases {
        let output = run(&["agent", &path]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}

#[test]
fn a_keeper_of_a_build_that_gave_agents_options_is_refused_by_name() {
    let output = run(&["run", "--resume=1,3,4", "-q", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("an agent of an older build"), "{said}");
    assert!(
        said.contains("help: the agent that began goes on"),
        "{said}"
    );
    // An option after the command belongs to the command.
    let output = run(&["run", "--nonsense", "--", "true", "--resume=1"]);
    assert!(
        !stderr(&output).contains("older build"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_stuck_output_loses_by_count_and_the_command_is_not_held_up() {
    need_notify!();
    let watched = Watched::new();
    let fifo = watched.path("fifo");
    let made = Command::new("mkfifo")
        .arg(&fifo)
        .status()
        .expect("mkfifo is everywhere");
    assert!(made.success());
    // Both ends are open, so that opening does not block; nothing is read.
    let _reader = fs::File::options()
        .read(true)
        .write(true)
        .open(&fifo)
        .expect("it was made");
    let stats = watched.path("stats");
    let output = watched.run(
        &[
            "-o",
            "stdout_output.enabled=false",
            "-o",
            "output_timeout=300",
            "-o",
            "outputs_queue.capacity=4",
            "-o",
            "file_output={enabled: true, keep_alive: true}",
            "-o",
            &format!("file_output.filename={fifo}"),
            "-s",
            &stats,
        ],
        "i=0; while [ $i -lt 2000 ]; do read x < @; i=$((i+1)); done",
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let stats = fs::read_to_string(&stats).expect("it was written");
    let last: serde_json::Value =
        serde_json::from_str(stats.lines().last().expect("a line")).expect("JSON");
    assert_eq!(last["alerts"]["emitted"], 2000);
    let file = &last["alerts"]["channels"]["file"];
    let count = |name: &str| file[name].as_u64().expect("a number");
    assert!(count("lost_queue_full") > 0, "{file}");
    assert_eq!(count("queued") + count("lost_queue_full"), 2000, "{file}");
    assert_eq!(
        count("delivered") + count("pending"),
        count("queued"),
        "{file}"
    );
}

#[test]
fn the_throttle_holds_back_and_says_so() {
    need_notify!();
    let watched = Watched::new();
    let output = watched.run(
        &["-o", "outputs.rate=0.001", "-o", "outputs.max_burst=2"],
        "for i in 1 2 3 4 5; do cat @ >/dev/null; done",
    );
    let printed = stderr(&output);
    assert_eq!(
        printed
            .lines()
            .filter(|line| line.contains("secret read"))
            .count(),
        2,
        "{printed}"
    );
    assert!(
        printed.contains("suppressed by outputs.rate (suppressed=3 "),
        "{printed}"
    );
}
