//! The event generator of Falco as the client of our HTTP output, and ours beside it.
//!
//! It is built from its public source outside this repository, and named by
//! `TOLLGATE_EVENT_GENERATOR`. Some of its actions change the machine and some contact public
//! addresses, so it runs on an overlay of the root, in a network namespace without a way out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use e2e::{Limited, Scratch, certificates, default_rules, need_root, skip};
use serde_json::Value;

/// An overlay of the whole root, whose changes vanish; a network that has the addresses that actions
/// contact, and no route. Arguments: scratch folder, then the command.
const STAGE: &str = r#"
set -e
scratch=$1
shift
mount --make-rprivate /
mkdir "$scratch/stage"
mount -t tmpfs tmpfs "$scratch/stage"
cd "$scratch/stage"
mkdir upper work root
mount -t overlay -o "lowerdir=/,upperdir=upper,workdir=work" overlay root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount -t tmpfs -o mode=1777 tmpfs root/dev/shm
mkdir -p root/usr/local/bin
cp "$scratch/tollgate" "$scratch/event-generator" root/usr/local/bin
cp "$scratch"/*.yaml "$scratch"/*.pem root/root
ip link set lo up
for address in 203.0.113.5 10.2.3.4 169.254.169.254; do ip address add $address/32 dev lo; done
echo '203.0.113.5 example.com example.net' >> root/etc/hosts
rm -f root/etc/resolv.conf
: > root/etc/resolv.conf
[ -z "$(ip route show)" ]
exec chroot root /usr/bin/env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"
"#;

/// Actions that the real one plays without a trace that any rule could see: nobody listens where it
/// connects, it writes by write(2), or what it starts fails.
const WITHOUT_ALERT: &[&str] = &[
    "DisallowedSSHConnectionNonStandardPort",
    "JavaProcessClassFileDownload",
    "ProgramRunWithDisallowedHttpProxyEnv",
    "UnexpectedUDPTraffic",
];

/// Takes alerts by HTTP, as today's generators do.
const HTTP: &[&str] = &[
    "http_output.enabled=true",
    "http_output.url=http://localhost:8080",
];

/// `real` is a variable that names a generator; `outputs`: where alerts go.
fn played(real: &str, outputs: &[&str], generator: &[&str]) -> String {
    let scratch = Scratch::new();
    let real = std::env::var(real).expect("checked before");
    scratch.program(&PathBuf::from(real), "event-generator");
    scratch.program(&e2e::program(), "tollgate");
    let rules = default_rules().expect("it is part of the repository");
    for (from, to) in [
        (rules.clone(), "default.yaml"),
        (rules.with_file_name("more.yaml"), "more.yaml"),
    ] {
        fs::copy(from, scratch.path().join(to)).expect("it is our folder");
    }
    certificates(scratch.path());
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--", "sh", "-c", STAGE, "stage"]);
    command.arg(scratch.path());
    command.args([
        "tollgate",
        "run",
        "-q",
        "-r",
        "/root/default.yaml",
        "-r",
        "/root/more.yaml",
    ]);
    let keys = [
        "rule_matching=all",
        "rules_level=hunting",
        "json_output=true",
        "stdout_output.enabled=false",
    ];
    for key in keys.iter().chain(outputs) {
        command.args(["-o", key]);
    }
    command.arg("--").args(generator);
    let finished = Limited::start(&mut command, Duration::from_secs(300)).finish(b"");
    format!("{}{}", finished.stdout, finished.stderr)
}

fn objects(text: &str) -> impl Iterator<Item = Value> {
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
}

fn letters(text: &str) -> String {
    let text = text.rsplit('.').next().unwrap_or(text);
    text.chars()
        .filter(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_lowercase()
}

#[test]
fn the_event_generator_of_falco_and_ours_agree_action_by_action() {
    need_root!();
    if std::env::var_os("TOLLGATE_EVENT_GENERATOR").is_none() {
        skip!("needs Falco's event generator", || Ok(String::from(
            "TOLLGATE_EVENT_GENERATOR names no program"
        )));
    }
    let options = [
        "test",
        "^syscall[.]",
        "--all",
        "--sleep",
        "0",
        "--test-timeout",
        "4s",
    ];
    const REAL: &str = "TOLLGATE_EVENT_GENERATOR";
    let generator = [&["event-generator"], &options[..], &["--logformat", "json"]].concat();
    let real = played(REAL, HTTP, &generator);
    let generator = [&["tollgate", "generate"], &options[..], &["--json"]].concat();
    let ours = played(REAL, HTTP, &generator);

    let passed: BTreeSet<String> = objects(&real)
        .filter(|line| line["msg"] == "test passed")
        .filter_map(|line| line["rule"].as_str().map(letters))
        .collect();
    let tried: BTreeSet<String> = objects(&real)
        .filter(|line| line["msg"] == "action executed" || line["msg"] == "action error")
        .filter_map(|line| line["action"].as_str().map(letters))
        .collect();
    let verdicts: BTreeMap<String, Value> = objects(&ours)
        .filter_map(|line| Some((letters(line["action"].as_str()?), line)))
        .collect();
    let detected = |name: &String| {
        verdicts
            .get(name)
            .is_some_and(|line| line["verdict"] == "detected")
    };
    let only_real: Vec<_> = passed.iter().filter(|name| !detected(name)).collect();
    assert!(
        only_real.is_empty(),
        "ours does not play or notice {only_real:?}\n{ours}"
    );
    let known: BTreeSet<String> = WITHOUT_ALERT.iter().map(|name| letters(name)).collect();
    let only_ours: Vec<_> = tried
        .iter()
        .filter(|name| detected(name) && !passed.contains(*name) && !known.contains(*name))
        .collect();
    // The first alert may come before the real one listens.
    assert!(
        only_ours.len() <= 1,
        "the real one does not get {only_ours:?}\n{real}"
    );
    assert!(passed.len() >= 35, "{passed:?}\n{real}");
}
