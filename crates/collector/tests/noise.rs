//! A day of noisy pods becomes a handful of groups.

mod started;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use store::{Filter, NewAgent, Scope};

/// Alerts of the day.
const ALERTS: u64 = 33_000;
const PODS: u64 = 14;
const BATCH: u64 = 1000;

/// A number that looks random, and is the same in each run.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// Letters and digits as names of pods and temporary files end with.
fn suffix(mut n: u64, letters: &str, length: usize) -> String {
    let letters: Vec<char> = letters.chars().collect();
    let next = || {
        n = mixed(n + 1);
        letters[usize::try_from(n % letters.len() as u64).expect("small")]
    };
    std::iter::repeat_with(next).take(length).collect()
}

const LOWER: &str = "bcdfghjklmnpqrstvwxz2456789";
const BOTH: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// What pods do all day that rules alert on: rule, priority and program.
const HABITS: [[&str; 3]; 8] = [
    [
        "Contact K8S API Server From Container",
        "Notice",
        "kube-probe",
    ],
    ["Read sensitive file untrusted", "Warning", "backup"],
    [
        "Read environment variable from /proc files",
        "Warning",
        "node-exporter",
    ],
    ["Drop and execute new binary in container", "Critical", "sh"],
    ["Clear Log Activities", "Warning", "logrotate"],
    [
        "Launch Package Management Process in Container",
        "Error",
        "apk",
    ],
    ["Write below binary dir", "Error", "updater"],
    ["Unexpected UDP Traffic", "Notice", "resolver"],
];

/// The object of a habit, whose parts differ from alert to alert.
fn object(habit: usize, pod: u64, random: u64) -> String {
    let hex = format!("{:016x}{:016x}", mixed(random + 1), mixed(random + 2));
    let client = format!("10.244.{pod}.{}:{}", random % 250, 30000 + random % 30000);
    match habit {
        0 => format!("{client}->10.96.0.1:443"),
        1 => {
            let uid = [
                &hex[..8],
                &hex[8..12],
                &hex[12..16],
                &hex[16..20],
                &hex[20..32],
            ]
            .join("-");
            format!("/var/lib/kubelet/pods/{uid}/volumes/secret/token")
        }
        2 => format!("/proc/{}/environ", 1 + random % 4_000_000),
        3 => format!("/tmp/tmp.{}", suffix(random, BOTH, 10)),
        4 => format!("/var/log/worker{}.log", random % 64),
        5 => format!("/var/lib/docker/overlay2/{hex}/merged/lib/apk/db"),
        6 => format!("/usr/bin/.update-{}-{}", random % 100_000, random % 977),
        _ => format!("{client}->10.96.0.10:53"),
    }
}

fn alert(n: u64) -> Value {
    let random = mixed(n);
    let pod = mixed(n / 7) % PODS;
    let deployment =
        ["checkout", "cart", "search", "mail"][usize::try_from(pod % 4).expect("small")];
    let name = format!(
        "{deployment}-{}-{}",
        suffix(pod / 4, LOWER, 10),
        suffix(pod + 99, LOWER, 5)
    );
    let habit = usize::try_from(random % 8).expect("small");
    let ([rule, priority, program], object) = (HABITS[habit], object(habit, pod, random));
    json!({"rule": rule, "priority": priority, "output": format!("{rule}: {object} by {program} in {name}"),
        "output_fields": {"proc.name": program, "fd.name": object, "proc.pid": random % 4_000_000, "k8s.pod.name": name,
            "k8s.ns.name": "shop", "container.id": format!("{:012x}", random >> 16), "proc.cmdline": format!("{program} {object}")}})
}

#[test]
fn a_day_of_33_000_alerts_of_14_noisy_pods_becomes_at_most_10_groups() {
    let started = started::start(|_| {});
    let (token, _) = started.token(Scope::Agents("web".to_owned()));
    let secret = collector::NewSecret::of_token().expect("random numbers");
    let (hash, host) = (secret.hash, "node-1".to_owned());
    let agent = NewAgent { token, hash, host };
    started.store.enrol(agent).expect("writable");
    for first in (1..=ALERTS).step_by(usize::try_from(BATCH).expect("small")) {
        let lines: Vec<_> = (first..first + BATCH)
            .map(|n| alert(n).to_string())
            .collect();
        let sent = ureq::post(format!("http://{}/api/v1/batches", started.address))
            .header("Authorization", format!("Bearer {}", secret.text))
            .header("Tollgate-Sequence", first.to_string())
            .send(lines.join("\n"));
        assert_eq!(sent.expect("it is stored").status(), 200);
    }
    let filter = Filter {
        limit: 1000,
        ..Filter::default()
    };
    let groups = started.store.groups(&filter).expect("readable");
    let counts: BTreeMap<_, _> = groups
        .iter()
        .map(|group| ((&*group.rule, &*group.object), group.count))
        .collect();
    assert_eq!(counts.values().sum::<u64>(), ALERTS);
    assert!(groups.len() <= 10, "{counts:#?}");
    println!("{counts:#?}");
}
