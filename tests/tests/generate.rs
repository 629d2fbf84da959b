//! The event generator: every action is played and noticed, and leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{
    Engine, Environment, Finished, Identity, Limited, Watch, WatchResult, default_rules, need_root,
    skip, slow, until,
};
use serde_json::Value;

/// What Falco's own rules alerted on when its event generator ran under Falco 0.44.1, on the host and
/// in a container alike.
const FALCO_ANYWHERE: &[(&str, &str)] = &[
    ("ClearLogActivities", "Clear Log Activities"),
    (
        "CreateHardlinkOverSensitiveFiles",
        "Create Hardlink Over Sensitive Files",
    ),
    (
        "CreateSymlinkOverSensitiveFiles",
        "Create Symlink Over Sensitive Files",
    ),
    (
        "DirectoryTraversalMonitoredFileRead",
        "Directory traversal monitored file read",
    ),
    ("ExecutionFromDevShm", "Execution from /dev/shm"),
    (
        "FilelessExecutionViaMemfdCreate",
        "Fileless execution via memfd_create",
    ),
    ("FindAwsCredentials", "Find AWS Credentials"),
    ("PtraceAntiDebugAttempt", "PTRACE anti-debug attempt"),
    ("PtraceAttachedToProcess", "PTRACE attached to process"),
    (
        "ReadSensitiveFileTrustedAfterStartup",
        "Read sensitive file trusted after startup",
    ),
    (
        "ReadSensitiveFileUntrusted",
        "Read sensitive file untrusted",
    ),
    ("RemoveBulkDataFromDisk", "Remove Bulk Data from Disk"),
    ("RunShellUntrusted", "Run shell untrusted"),
    (
        "SearchPrivateKeysOrPasswords",
        "Search Private Keys or Passwords",
    ),
];

/// In a container only.
const FALCO_INSIDE: &[(&str, &str)] = &[
    (
        "DetectReleaseAgentFileContainerEscapes",
        "Detect release_agent File Container Escapes",
    ),
    (
        "PacketSocketCreatedInContainer",
        "Packet socket created in container",
    ),
];

/// What the list says of an action.
struct Listed {
    rules: Vec<String>,
    place: String,
}

/// All actions that have a rule.
fn listed() -> BTreeMap<String, Listed> {
    let output = Command::new(e2e::program())
        .args(["generate", "list", "--all", "--json"])
        .output()
        .expect("the program starts");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let read = |line: &str| {
        let value: Value = serde_json::from_str(line).expect("JSON");
        let rule = value["rule"].as_str()?.to_owned();
        let also = value["also"].as_array().expect("a list").iter();
        let rules = also.filter_map(|rule| rule.as_str().map(str::to_owned));
        let listed = Listed {
            rules: rules.chain([rule]).collect(),
            place: value["place"].as_str()?.to_owned(),
        };
        Some((value["action"].as_str()?.to_owned(), listed))
    };
    text.lines().filter_map(read).collect()
}

/// Outcome and reason of each action, out of the lines of `run --json` or `test --json`.
fn outcomes(printed: &str) -> BTreeMap<String, Value> {
    let lines = printed.lines().filter_map(|line| {
        let value: Value = serde_json::from_str(line).ok()?;
        Some((value["action"].as_str()?.to_owned(), value))
    });
    lines.collect()
}

fn more_rules() -> PathBuf {
    default_rules()
        .expect("it is part of the repository")
        .with_file_name("more.yaml")
}

/// Plays actions under the engine that is tested, with all rules of the repository.
fn play(place: Environment, identity: Identity, options: &[&str]) -> WatchResult {
    let program = match place {
        Environment::Inside | Environment::Below => "/usr/local/bin/tollgate".to_owned(),
        _ => String::new(),
    };
    let watch = Watch::new(["true"]);
    let program = if program.is_empty() {
        watch.program().display().to_string()
    } else {
        program
    };
    let mut command = vec![program];
    command.extend(["generate", "run", "--sleep", "0", "--json"].map(str::to_owned));
    command.extend(options.iter().map(|option| (*option).to_owned()));
    watch
        .command(command)
        .place(place)
        .identity(identity)
        .rules_file(&default_rules().expect("it is part of the repository"))
        .rules_file(&more_rules())
        .option("--level")
        .option("hunting")
        .run()
}

/// Fails unless each action that was played has an alert of its rule, and none failed; gives the
/// names of those that were played and the reasons of the others.
fn all_noticed(watched: &WatchResult) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let (mut played, mut skipped) = (BTreeSet::new(), BTreeMap::new());
    let mut wrong = String::new();
    let listed = listed();
    for (name, outcome) in outcomes(&watched.printed) {
        match outcome["outcome"].as_str() {
            Some("done") => {
                if let Some(action) = listed.get(&name)
                    && !action.rules.iter().any(|rule| !watched.of(rule).is_empty())
                {
                    wrong += &format!("{name}: no alert of {:?}\n", action.rules);
                }
                played.insert(name);
            }
            Some("skipped") => {
                skipped.insert(name, outcome["reason"].as_str().unwrap_or("").to_owned());
            }
            _ => wrong += &format!("{name}: {outcome}\n"),
        }
    }
    assert!(wrong.is_empty(), "{wrong}{}", watched.story());
    (played, skipped)
}

#[test]
fn every_action_is_noticed_on_the_host_as_root() {
    need_root!();
    let watched = play(Environment::Host, Identity::Root, &["--all"]);
    let (played, skipped) = all_noticed(&watched);
    let elsewhere: BTreeSet<_> = listed()
        .into_iter()
        .filter(|(_, action)| action.place == "container")
        .map(|(name, _)| name)
        .collect();
    assert_eq!(skipped.into_keys().collect::<BTreeSet<_>>(), elsewhere);
    assert!(played.len() > 50, "{played:?}");
    assert_eq!(watched.code(), 0, "{}", watched.story());
}

#[test]
fn every_action_is_noticed_in_a_container_as_root() {
    need_root!();
    let watched = play(Environment::Inside, Identity::Root, &["--all"]);
    let (played, skipped) = all_noticed(&watched);
    for (name, reason) in &skipped {
        let expected = match name.as_str() {
            "syscall.ChangeNamespacePrivilegesViaUnshare" => {
                "needs a process without CAP_SYS_ADMIN"
            }
            _ => "not for containers",
        };
        assert_eq!(reason, expected, "{name}");
    }
    assert_eq!(skipped.len(), 3, "{skipped:?}");
    assert!(played.len() > 70, "{played:?}");
}

#[test]
fn every_action_that_ordinary_users_may_play_is_noticed() {
    need_root!();
    let watched = play(Environment::Host, Identity::User, &["--all"]);
    let (played, skipped) = all_noticed(&watched);
    for (name, reason) in &skipped {
        assert!(
            reason.starts_with("needs ") || reason == "only for containers",
            "{name}: {reason}"
        );
    }
    for name in [
        "PtraceAttachedToProcess",
        "FilelessExecutionViaMemfdCreate",
        "NonSudoSetuid",
    ] {
        assert!(played.contains(&format!("syscall.{name}")), "{played:?}");
    }
    assert!(played.len() > 30, "{played:?}");
}

#[test]
fn rules_of_falco_fire_for_the_same_actions_as_under_falco() {
    need_root!();
    let Some(stock) = e2e::stock_rules_file() else {
        skip!("needs Falco's stable rules beside the repository", || Ok(
            String::from("../shared/reference/upstream/falco_rules.yaml is no file")
        ));
    };
    let tables = [
        (Environment::Host, vec![FALCO_ANYWHERE]),
        (Environment::Inside, vec![FALCO_ANYWHERE, FALCO_INSIDE]),
    ];
    for (place, tables) in tables {
        let watch = Watch::new(["true"]);
        let program = match place {
            Environment::Inside => "/usr/local/bin/tollgate".to_owned(),
            _ => watch.program().display().to_string(),
        };
        let words = [&program, "generate", "run", "--sleep", "0", "--json"];
        let watched = watch
            .command(words.map(str::to_owned))
            .place(place)
            .rules_file(&stock)
            .run();
        let outcomes = outcomes(&watched.printed);
        for (action, rule) in tables.into_iter().flatten() {
            let outcome = &outcomes[&format!("syscall.{action}")]["outcome"];
            assert_eq!(
                outcome,
                "done",
                "{action} at {place:?}: {}",
                watched.story()
            );
            assert!(
                !watched.of(rule).is_empty(),
                "{action} did not fire {rule} at {place:?}: {}",
                watched.story()
            );
        }
    }
}

/// Everything in folders that actions change: names, sizes, times of change.
fn machine() -> BTreeMap<PathBuf, (u64, Option<std::time::SystemTime>)> {
    let folders = [
        "/", "/bin", "/etc", "/lib", "/root", "/home", "/var/lib", "/dev/shm", "/tmp",
    ];
    let mut found = BTreeMap::new();
    for folder in folders {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            // Others work in the temporary folder as well.
            let is_ours = name.to_string_lossy().starts_with("tollgate-generate-");
            if folder == "/tmp" && !is_ours {
                continue;
            }
            if let Ok(data) = entry.metadata() {
                let changed = data.is_file().then(|| data.modified().ok()).flatten();
                found.insert(entry.path(), (data.len(), changed));
            }
        }
    }
    // Folders that other tests and daemons change all the time say nothing.
    found.retain(|path, _| path != Path::new("/tmp") && path != Path::new("/run"));
    found
}

#[test]
fn the_machine_is_left_as_it_was_found() {
    need_root!();
    // Other tests play at the same time: their folders are in /tmp only.
    let without_scratch = |machine: BTreeMap<PathBuf, _>| -> BTreeMap<PathBuf, _> {
        machine
            .into_iter()
            .filter(|(path, _)| !path.starts_with("/tmp"))
            .collect()
    };
    let before = without_scratch(machine());
    // One of the actions waits six seconds.
    for _ in 0..if slow() { 2 } else { 1 } {
        let output = Command::new(e2e::program())
            .args([
                "generate",
                "run",
                "--all",
                "--sleep",
                "0",
                "--json",
                "Write|Modify|Mkdir|Create|Read|Add|Schedule|Shm",
            ])
            .output()
            .expect("the program starts");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{printed}");
        let done = outcomes(&printed)
            .into_values()
            .filter(|value| value["outcome"] == "done")
            .count();
        assert!(done >= 18, "{printed}");
    }
    assert_eq!(without_scratch(machine()), before);
}

/// In a container that may not mount, system folders are changed only when asked, and restored.
#[test]
fn without_layers_the_system_is_touched_only_when_asked_and_restored() {
    need_root!();
    // A folder of an overlay has another size once something was in it.
    let list = "ls -lA /bin/ /etc /lib/ /root /home /var/lib /dev/shm | grep -v ^total";
    let script = format!(
        "{list} > /var/tmp/before
        /usr/local/bin/tollgate generate run --all --sleep 0 --json 'Write|Mkdir|ModifyB|Shm|Ssh'
        /usr/local/bin/tollgate generate run --all --sleep 0 --json --unsafe 'WriteBelowBinary|Mkdir|ModifyB'
        {list} > /var/tmp/after
        busybox diff /var/tmp/before /var/tmp/after >&2
        [ \"$(cat /var/tmp/before)\" = \"$(cat /var/tmp/after)\" ] && echo unchanged"
    );
    let watched = Watch::script(&script)
        .place(Environment::Inside)
        .identity(Identity::Docker)
        .rules_file(&default_rules().expect("it is part of the repository"))
        .run();
    let story = watched.story();
    let first = watched
        .printed
        .lines()
        .find(|line| line.contains("WriteBelowEtc"));
    let first = first.unwrap_or_else(|| panic!("{story}"));
    assert!(
        first.contains("skipped") && first.contains("--unsafe"),
        "{story}"
    );
    let done = watched
        .printed
        .lines()
        .filter(|line| line.contains(r#""outcome":"done""#));
    assert!(
        done.clone()
            .any(|line| line.contains("WriteBelowBinaryDir")),
        "{story}"
    );
    assert!(
        done.clone()
            .any(|line| line.contains("ExecutionFromDevShm")),
        "{story}"
    );
    assert!(!watched.of("Write below binary dir").is_empty(), "{story}");
    assert!(watched.printed.contains("unchanged"), "{story}");
}

#[test]
fn a_killed_generator_leaves_nothing() {
    need_root!();
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let mut generator = Command::new(e2e::program())
        .args(["generate", "run", "--sleep", "0", "TrustedAfterStartup"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mark = format!("TOLLGATE_GENERATE={}", folder.path().display());
    let players = || {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let environments =
            processes.filter_map(|entry| fs::read(entry.path().join("environ")).ok());
        environments
            .filter(|text| String::from_utf8_lossy(text).contains(&mark))
            .count()
    };
    until("the action and its part play", || players() >= 2);
    generator.kill().expect("it is ours");
    generator.wait().expect("it is ours");
    until("all processes have ended", || players() == 0);
    until("the folder is empty", || {
        fs::read_dir(folder.path()).is_ok_and(|mut entries| entries.next().is_none())
    });
}

/// In a user namespace that may not have further networks.
#[test]
fn addresses_are_contacted_in_a_network_of_its_own_or_not_at_all() {
    need_root!();
    let program = e2e::program().display().to_string();
    let script = format!(
        "ip link set lo up && ip address add 203.0.113.5/32 dev lo || exit 9
        echo 0 > /proc/sys/user/max_net_namespaces || exit 8
        {program} generate run --all --sleep 0 --json '^syscall.UnexpectedUDPTraffic$'
        {program} generate run --all --sleep 0 --json --allow-network 203.0.113.6 '^syscall.UnexpectedUDPTraffic$'
        {program} generate run --all --sleep 0 --json --allow-network 203.0.113.5 '^syscall.UnexpectedUDPTraffic$'"
    );
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c", &script]);
    let finished = Limited::start(&mut command, Duration::from_secs(30)).finish(b"");
    let lines: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let outcomes: Vec<_> = lines.iter().map(|line| line["outcome"].as_str()).collect();
    assert_eq!(
        outcomes,
        [Some("skipped"), Some("skipped"), Some("done")],
        "{}{}",
        finished.stdout,
        finished.stderr
    );
    let reason = lines[0]["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("--allow-network") && reason.contains("203.0.113.5"),
        "{reason}"
    );
}

/// A port that nobody has now.
fn port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Tests actions under a detector with these outputs, whose alerts come from `source`.
fn tested_by(rules: &Path, output: &[String], source: &[String], selection: &str) -> Finished {
    let program = e2e::program().display().to_string();
    let mut command = Command::new(&program);
    command.args([
        "run",
        "--quiet",
        "-o",
        "json_output=true",
        "-o",
        "rule_matching=all",
    ]);
    command.args(Engine::under_test().options());
    command.arg("-r").arg(rules);
    for key in output {
        command.args(["-o", key]);
    }
    command.args([
        "--",
        &program,
        "generate",
        "test",
        "--all",
        "--json",
        "--test-timeout=3s",
    ]);
    command.args(source).arg(selection);
    Limited::start(&mut command, Duration::from_secs(60)).finish(b"")
}

#[test]
fn alerts_are_tested_by_http_by_file_and_by_a_detector_of_its_own() {
    need_root!();
    let rules = default_rules().expect("it is part of the repository");
    let program = e2e::program().display().to_string();
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let alerts = folder.path().join("alerts.json");
    fs::write(&alerts, "").expect("it is our folder");
    let address = format!("127.0.0.1:{}", port());
    let selection = "^syscall.(ClearLogActivities|WriteBelowEtc|ReadSshInformation)$";
    let ways: [(&[String], &[String]); 2] = [
        (
            &[
                "http_output.enabled=true".to_owned(),
                format!("http_output.url=http://{address}/"),
            ],
            &[format!("--http-server-address={address}")],
        ),
        (
            &[
                "file_output.enabled=true".to_owned(),
                format!("file_output.filename={}", alerts.display()),
            ],
            &[format!("--alerts-file={}", alerts.display())],
        ),
    ];
    for (output, source) in ways {
        let finished = tested_by(&rules, output, source, selection);
        assert_verdicts(&finished.stdout);
        assert_eq!(
            finished.code(),
            1,
            "one alert is missing: {}",
            finished.stderr
        );
    }
    let mut command = Command::new(&program);
    command.args([
        "generate",
        "test",
        "--all",
        "--json",
        "--watched",
        selection,
    ]);
    command.arg("-r").arg(&rules);
    let finished = Limited::start(&mut command, Duration::from_secs(60)).finish(b"");
    let verdicts = outcomes(&finished.stdout);
    assert_eq!(verdicts["syscall.ReadSshInformation"]["verdict"], "no rule");
    assert_eq!(verdicts["syscall.WriteBelowEtc"]["verdict"], "detected");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
}

/// The default rules know two of the three deeds.
fn assert_verdicts(printed: &str) {
    let verdicts = outcomes(printed);
    for (action, verdict) in [
        ("ClearLogActivities", "detected"),
        ("WriteBelowEtc", "detected"),
        ("ReadSshInformation", "missed"),
    ] {
        let found = &verdicts[&format!("syscall.{action}")];
        assert_eq!(found["verdict"], verdict, "{printed}");
        assert_eq!(
            found["delay_ns"].is_u64(),
            verdict == "detected",
            "{printed}"
        );
    }
}

#[test]
fn a_loop_goes_on_until_it_is_stopped() {
    let mut generator = Command::new(e2e::program())
        .args([
            "generate",
            "run",
            "--loop",
            "--sleep",
            "1ms",
            "^helper.DoNothing$",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let out = BufReader::new(generator.stdout.take().expect("it is piped"));
    let lines: Vec<_> = out.lines().take(5).map_while(Result::ok).collect();
    assert_eq!(lines, vec!["done     helper.DoNothing"; 5]);
    generator.kill().expect("it is ours");
    generator.wait().expect("it is ours");
}

/// Root plays as somebody else; parts under other names do, too.
#[test]
fn actions_are_played_as_another_user() {
    need_root!();
    let watched = play(
        Environment::Host,
        Identity::Root,
        &[
            "--all",
            "--as=daemon",
            "NonSudoSetuid|PtraceAntiDebug|FilelessExecution|WriteBelowEtc",
        ],
    );
    let (played, skipped) = all_noticed(&watched);
    assert_eq!(played.len(), 3, "{}", watched.story());
    assert_eq!(skipped["syscall.WriteBelowEtc"], "needs root");
    let alert = watched.of("Fileless execution via memfd_create")[0];
    assert_eq!(alert.field("user.name"), "daemon");
}
