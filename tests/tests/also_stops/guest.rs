//! The same under BPF LSM and AppArmor, in an emulated machine whose kernel has both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use e2e::{Guest, Identity, need_slow};
use serde_json::Value;

use super::{
    ALIKE, Lab, STAGE, failed, is_of_one_capability, listed_by, outcomes, policy_of, text,
};

/// Prepares the guest, and runs the workload without a policy.
const GUEST: &str = r#"
busybox mount -t securityfs none /sys/kernel/security || exit 90
busybox mount -t bpf bpf /sys/fs/bpf || exit 91
mkdir -p /p /srv/work; export W=/srv/work S=/secrets/kubernetes.io/serviceaccount
PATH=$W/bin:$PATH
sleep 10000 & OUTSIDE=$!
ordinary() { rm -rf $W; mkdir -m 777 $W; unshare -m sh -ec "$STAGE" sh "$@" /usr/local/bin/ordinary $W $OUTSIDE; }
echo '### free'; ordinary env
"#;

/// Each rule under BPF or AppArmor, in the guest, whose kernel has both.
fn check_in_guest(enforcer: &str) {
    if let Some(why) = Guest::missing() {
        panic!("{why}");
    }
    let lab = Lab::new();
    let rules = lab.json(&["policy", "list", "--json"]);
    let rules = rules.as_array().or_else(|| rules["rules"].as_array());
    let is_wanted = |rule: &&Value| {
        let name = text(&rule["name"]);
        !is_of_one_capability(name) && !ALIKE.contains(&name)
    };
    let rules: Vec<_> = rules.expect("a list").iter().filter(is_wanted).collect();
    let mut script = format!("STAGE='{}'\n{GUEST}", STAGE.replace('\'', "'\\''"));
    for rule in &rules {
        let (name, policy) = (text(&rule["name"]), policy_of(rule, enforcer));
        script.push_str(&format!(
            "cat > /p/p.yaml <<'EOF'\n{policy}EOF\necho '### explain {name}'; tollgate policy explain --json /p/p.yaml\n\
             echo '### run {name}'; ordinary tollgate enforce -q --policy /p/p.yaml --\n"
        ));
    }
    let guest = Guest::new()
        .option("lsm=landlock,lockdown,yama,apparmor,bpf")
        .packaged("apparmor", "/sbin/apparmor_parser")
        .limit(Duration::from_secs(3000))
        .file(lab.workload.program(), "/usr/local/bin/ordinary");
    let run = guest.run(0, Identity::Root, &script);
    let sections: BTreeMap<&str, &str> = run
        .stdout
        .split("### ")
        .filter_map(|part| part.split_once('\n'))
        .collect();
    let free = outcomes(sections["free"]);
    let done = free.values().filter(|error| **error == 0).count();
    assert!(
        done >= 180,
        "{done} of {} operations work: {run:?}",
        free.len()
    );
    let (mut runs, mut mistakes) = (0, Vec::new());
    let mut seen = BTreeSet::new();
    for rule in &rules {
        let name = text(&rule["name"]);
        let explained = sections[&*format!("explain {name}")];
        let explained: Value = serde_json::from_str(explained).expect("it is JSON");
        let part = &explained["policies"][0]["rules"][0]["enforcers"][enforcer.to_lowercase()];
        if part["grade"].is_null() || part["grade"] == "none" {
            continue;
        }
        runs += 1;
        let bound = outcomes(sections[&*format!("run {name}")]);
        let said = listed_by([part].into_iter());
        let failed = failed(&free, &bound);
        seen.extend(lab.expected.shown(&said, &failed));
        let unlisted = lab.expected.unlisted(name, &said, &failed);
        if !unlisted.is_empty() {
            mistakes.push(format!("{name} lists {said:?}, and stops {unlisted:?}"));
        }
    }
    println!(
        "{enforcer}: {runs} rules, {} operations, {done} work",
        free.len()
    );
    assert!(runs >= 15, "{runs}: {run:?}");
    assert!(mistakes.is_empty(), "{enforcer}:\n{}", mistakes.join("\n"));
    if enforcer == "AppArmor" {
        let texts = lab.expected.apparmor.iter().map(|(begin, _)| *begin);
        let is_seen = |begin: &&str| seen.iter().any(|text: &String| text.starts_with(begin));
        let never: Vec<_> = texts.filter(|begin| !is_seen(begin)).collect();
        assert!(
            never.is_empty(),
            "listed, and nothing of it fails: {never:?}"
        );
    }
}

#[test]
fn what_a_rule_stops_besides_is_listed_for_bpf() {
    need_slow!();
    check_in_guest("BPF");
}

#[test]
fn what_a_rule_stops_besides_is_listed_for_apparmor() {
    need_slow!();
    check_in_guest("AppArmor");
}
