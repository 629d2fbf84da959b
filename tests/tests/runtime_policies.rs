//! Policies for containers of `tollgate runtime`: an attack in a container fails with the error of its
//! enforcer from the first program on, what is legitimate goes on, and without the policy the attack
//! succeeds.

use abi::constant::CAP_NET_RAW;
use abi::{Capabilities, Errno};
use e2e::runtime_fixture::{RuntimeFixture, fields};
use e2e::{Alert, Finished, Fixture, need_runtime};

/// Seccomp, Landlock and capabilities each carry something.
const STRICT: &str = "policy:
  enforcer: SeccompLandlockCaps
  mode: EnhanceProtect
  enhanceProtect:
    privileged: true
    auditViolations: true
    hardeningRules: [disallow-create-user-ns, disable-cap-net-raw]
    attackProtectionRules: [{rules: [disable-access-shadow, disable-udp]}]
";

/// Nothing is told: denials that the kernel would carry alone elsewhere.
const SILENT: &str = "policy:
  enforcer: Seccomp
  mode: EnhanceProtect
  enhanceProtect:
    privileged: true
    hardeningRules: [disallow-mount]
    attackProtectionRules: [{rules: [disable-udp]}]
";

const FATAL: &str = "policy:
  enforcer: Seccomp
  mode: EnhanceProtect
  enhanceProtect:
    privileged: true
    syscallRawRules:
    - {names: [mount], action: SCMP_ACT_KILL_PROCESS}
";

/// What the program tries, and what it gets under the strict policy.
const DEEDS: [(&str, i32); 7] = [
    ("user_unshare", Errno::EPERM.0),
    ("udp", Errno::EPERM.0),
    ("packets", Errno::EPERM.0),
    ("reads=/etc/shadow", Errno::EACCES.0),
    ("reads=/etc/secret", 0),
    ("tcp", 0),
    ("forks", 0),
];

/// What a container of an engine has, and some that make the attacks possible.
fn privileged(config: &mut serde_json::Value) {
    let names = [
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_NET_RAW",
        "CAP_SETPCAP",
        "CAP_SYS_ADMIN",
    ];
    let sets = ["bounding", "effective", "permitted"];
    let sets = sets.map(|set| (set.to_owned(), serde_json::json!(names)));
    config["process"]["capabilities"] = serde_json::Value::Object(sets.into_iter().collect());
}

/// Without what a rule would drop.
fn poor(config: &mut serde_json::Value) {
    let names = serde_json::json!(["CAP_DAC_OVERRIDE"]);
    for set in ["bounding", "effective", "permitted"] {
        config["process"]["capabilities"][set] = names.clone();
    }
}

/// As engines give by default: nothing that lets a process restrict itself without `no_new_privs`.
fn modest(config: &mut serde_json::Value) {
    let names = serde_json::json!(["CAP_NET_RAW", "CAP_DAC_OVERRIDE"]);
    for set in ["bounding", "effective", "permitted"] {
        config["process"]["capabilities"][set] = names.clone();
    }
}

fn named(config: &mut serde_json::Value, policy: &str) {
    config["annotations"]["tollgate.policy"] = policy.into();
}

fn runs(config: &mut serde_json::Value, program: &str, words: &[&str]) {
    let words = [program]
        .into_iter()
        .chain(words.iter().copied())
        .map(str::to_owned);
    config["process"]["args"] = words.collect::<Vec<_>>().into();
}

fn deeds() -> Vec<&'static str> {
    DEEDS.iter().map(|(deed, _)| *deed).collect()
}

/// A ground with the program that tries, and the policies.
fn ground(more: &str) -> RuntimeFixture {
    let ground = RuntimeFixture::new();
    let path = ground.scratch.path().display().to_string();
    let ground = ground.settings(&format!(
        "append_output: [{{extra_fields: [container.annotations]}}]
runtime: {{policies: {path}/policies, accept_partial: [disable-access-shadow, disable-cap-net-raw], {more}}}
"
    ));
    let violate = Fixture::compile("violate");
    ground
        .scratch
        .program(violate.program(), "rootfs/bin/violate");
    ground.scratch.file("rootfs/etc/shadow", 0o600, "secret\n");
    for (name, text) in [("strict", STRICT), ("silent", SILENT), ("fatal", FATAL)] {
        ground
            .scratch
            .file(&format!("policies/{name}.yaml"), 0o644, text);
    }
    ground
}

/// The numbers behind each deed, in their order.
fn outcomes(text: &str) -> Vec<(String, i32)> {
    let pair = |line: &str| {
        let (deed, number) = line.rsplit_once(' ')?;
        Some((deed.to_owned(), number.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

fn expected(denied: bool) -> Vec<(String, i32)> {
    let of = |(deed, errno): &(&str, i32)| ((*deed).to_owned(), if denied { *errno } else { 0 });
    DEEDS.iter().map(of).collect()
}

fn read(ground: &RuntimeFixture, file: &str, finished: &Finished) -> String {
    std::fs::read_to_string(ground.scratch.path().join(file))
        .unwrap_or_else(|error| panic!("cannot read {file}: {error}; {finished:?}"))
}

fn violations(alerts: &[Alert], id: &str) -> Vec<(String, String)> {
    let alerts = alerts
        .iter()
        .filter(|alert| alert.rule == "Policy violation");
    let alerts = alerts.filter(|alert| alert.field("container.id") == id);
    alerts
        .map(|alert| (alert.field("policy.rule"), alert.field("policy.errno")))
        .collect()
}

/// Asserts that the status of a process has capabilities, but not those for raw sockets.
fn assert_capability_is_dropped(status: &str) {
    for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
        let line = status.lines().find_map(|line| line.strip_prefix(set));
        let value = u64::from_str_radix(line.expect("the kernel tells").trim(), 16);
        let value = value.expect("it is hexadecimal");
        assert!(!Capabilities(value).contains(CAP_NET_RAW.u8()), "{status}");
        assert_ne!(value, 0, "{status}");
    }
}

/// Makes bundles without a policy, and with one and different capabilities.
fn bundles_to_confine(ground: &RuntimeFixture) {
    ground.changed_bundle("free", "", |config| {
        privileged(config);
        runs(config, "violate", &deeds());
    });
    for (name, capabilities) in [
        ("many", privileged as fn(&mut _)),
        ("few", modest),
        ("none", poor),
    ] {
        ground.changed_bundle(name, "", |config| {
            capabilities(config);
            named(config, "strict");
            runs(config, "violate", &deeds());
        });
    }
    ground.changed_bundle("long", "touch /out/one; exec sleep 1000", |config| {
        privileged(config);
        named(config, "strict");
    });
}

fn confined_life(runtime: &str, more: &str) {
    let ground = ground(&format!("watch: none{more}"));
    bundles_to_confine(&ground);
    let words = deeds().join(" ");
    let (finished, alerts) = ground.run(
        runtime,
        &format!(
            r#"
rt run --bundle free $ID-free < /dev/null > free.txt
rt run --bundle many $ID-many < /dev/null > many.txt
rt run --bundle few $ID-few < /dev/null > few.txt
rt run --bundle none $ID-none < /dev/null > none.txt
rt create --bundle long $ID-long < /dev/null > /dev/null 2>&1
rt start $ID-long
await one
rt exec $ID-long violate {words} > exec.txt
rt exec $ID-long cat /proc/self/status > status.txt
rt kill $ID-long KILL
await_stop $ID-long
rt delete $ID-long
settle
test -z "$(remains $ID)"
"#
        ),
    );
    let refused = fields(
        &alerts,
        "Tollgate internal: container not confined",
        "cause",
    );
    assert_eq!(finished.code(), 0, "{refused:?} {finished:?}");
    for (file, denied) in [
        ("free.txt", false),
        ("many.txt", true),
        ("few.txt", true),
        ("none.txt", true),
        ("exec.txt", true),
    ] {
        let found = outcomes(&read(&ground, file, &finished));
        assert_eq!(found, expected(denied), "{file}: {finished:?}");
    }
    assert_capability_is_dropped(&read(&ground, "status.txt", &finished));
    assert_violations(&ground, &alerts);
}

/// Asserts which violations the containers of [`confined_life`] reported.
fn assert_violations(ground: &RuntimeFixture, alerts: &[Alert]) {
    let told = [
        ("disallow-create-user-ns".to_owned(), "EPERM".to_owned()),
        ("disable-udp".to_owned(), "EPERM".to_owned()),
        ("disable-cap-net-raw".to_owned(), "EPERM".to_owned()),
        ("disable-access-shadow".to_owned(), "EACCES".to_owned()),
    ];
    for name in ["many", "few", "long"] {
        let id = format!("{}-{name}", ground.id);
        assert_eq!(violations(alerts, &id), told, "{name}: {alerts:?}");
    }
    // It would not have had the capability without the policy either.
    let without = told
        .iter()
        .filter(|(rule, _)| rule != "disable-cap-net-raw");
    let without: Vec<_> = without.cloned().collect();
    let id = format!("{}-none", ground.id);
    assert_eq!(violations(alerts, &id), without, "{alerts:?}");
    assert!(violations(alerts, &format!("{}-free", ground.id)).is_empty());
    let annotations = fields(alerts, "Policy violation", "container.annotations");
    assert!(
        annotations.iter().all(|text| text.contains("red")),
        "{annotations:?}"
    );
}

#[test]
fn attacks_in_a_container_fail_and_all_else_goes_on_under_runc() {
    need_runtime!("runc");
    confined_life("runc", "");
}

#[test]
fn attacks_in_a_container_fail_and_all_else_goes_on_under_one_agent() {
    need_runtime!("runc");
    confined_life("runc", ", agent: host, agent_linger: 1");
}

#[test]
fn attacks_in_a_container_fail_and_all_else_goes_on_under_crun() {
    need_runtime!("crun");
    confined_life("crun", "");
}

#[test]
fn attacks_in_a_container_fail_and_all_else_goes_on_under_the_embedded_runtime() {
    need_runtime!("embedded");
    confined_life("embedded", "");
}

/// The profile of the container denies what the policy allows, and the other way round: both hold.
#[test]
fn the_profile_of_a_container_and_its_policy_both_hold() {
    need_runtime!("runc");
    let ground = ground("policy: silent");
    ground.changed_bundle("b", "", |config| {
        privileged(config);
        runs(config, "violate", &["udp", "tcp", "user_unshare"]);
        config["linux"]["seccomp"] = serde_json::json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["unshare"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}],
        });
    });
    let (finished, alerts) = ground.run("runc", "rt run --bundle b $ID < /dev/null > said.txt");
    assert_eq!(finished.code(), 0, "{finished:?}");
    let found = outcomes(&read(&ground, "said.txt", &finished));
    let of = |deed: &str, errno| (deed.to_owned(), errno);
    assert_eq!(
        found,
        [
            of("udp", Errno::EPERM.0),
            of("tcp", 0),
            of("user_unshare", 95)
        ],
        "{finished:?}"
    );
    // It is silent, and its runtime mounts all the same.
    assert!(violations(&alerts, &ground.id).is_empty(), "{alerts:?}");
}

/// Makes bundles whose policy cannot be put in force, each for another reason.
fn bundles_that_cannot_be_confined(ground: &RuntimeFixture) {
    for policy in ["fatal", "missing", "../policies/strict", "strict"] {
        let name = policy.replace(['/', '.'], "-");
        ground.changed_bundle(&name, "touch /out/began", |config| {
            privileged(config);
            named(config, policy);
            // The last of them is refused by the container's own profile.
            config["linux"]["seccomp"] = serde_json::json!({
                "defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{"names": ["landlock_restrict_self"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}],
            });
        });
    }
    ground.changed_bundle("shared", "touch /out/began", |config| {
        named(config, "strict");
        config["linux"]["namespaces"] = serde_json::json!([{"type": "pid"}]);
    });
    // A name that is misspelt, and one that is empty.
    for (bundle, key, value) in [
        ("misspelt", "tollgate.polcy", "strict"),
        ("empty", "tollgate.policy", ""),
    ] {
        ground.changed_bundle(bundle, "touch /out/began", |config| {
            config["annotations"][key] = value.into();
        });
    }
}

#[test]
fn a_policy_that_cannot_be_put_in_force_starts_nothing() {
    need_runtime!("runc");
    let ground = ground("watch: all");
    bundles_that_cannot_be_confined(&ground);
    let (finished, alerts) = ground.run(
        "runc",
        r#"
for bundle in fatal missing ---policies-strict strict shared misspelt empty; do
    status=0; rt run --bundle $bundle $ID-$bundle < /dev/null 2> said.txt || status=$?
    echo "$bundle: $status"; cat said.txt
done
test ! -e out/began
settle
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    for said in [
        "fatal: 3\n",
        "its rule `syscallRawRules",
        "missing: 2\n",
        "policies/missing.yaml",
        "---policies-strict: 2\n",
        "is not a policy name",
        "shared: 3\n",
        "without a mount namespace",
        "misspelt: 2\n",
        "did you mean `tollgate.policy`?",
        "empty: 2\n",
    ] {
        assert!(
            finished.stdout.contains(said),
            "no {said:?} in {finished:?}"
        );
    }
    assert!(!finished.stdout.contains("strict: 0\n"), "{finished:?}");
    let refused = "Tollgate internal: container not confined";
    let causes = fields(&alerts, refused, "cause");
    assert_eq!(causes.len(), 1, "{alerts:?}");
    assert!(
        causes[0].contains("restrict itself by Landlock"),
        "{causes:?}"
    );
}

/// Whoever of ours dies before the container's first program begins: it begins confined, or not at all.
#[test]
fn no_first_program_begins_unconfined_when_processes_of_ours_are_killed() {
    need_runtime!("runc");
    let ground = ground("watch: all");
    ground.changed_bundle("b", "", |config| {
        privileged(config);
        named(config, "strict");
        let script = format!("violate {} > /out/$NAME", deeds().join(" "));
        config["process"]["args"] = serde_json::json!(["sh", "-c", script]);
        config["process"]["env"] = serde_json::json!(["PATH=/bin", "NAME=said"]);
    });
    let (finished, _) = ground.run(
        "runc",
        r#"
ours() { grep -l '^tollgate' /proc/[0-9]*/comm 2> /dev/null | sed 's,/proc/,,; s,/comm,,' || true; }
for victims in agent all; do
    rt create --bundle b $ID-$victims < /dev/null > /dev/null 2>&1
    set -- $(ours)
    test $# -ge 2
    case $victims in
        agent) kill -9 $1 ;;
        # One that has only begun to work may have ended by itself.
        all) kill -9 $* 2> kill.txt || true ;;
    esac
    sleep 0.3
    rt start $ID-$victims > start.txt 2>&1 || true
    case $victims in
        agent) await_stop $ID-agent ;;
        all) sleep 1 ;;
    esac
    echo "$victims: $(cat out/said 2> /dev/null | tr '\n' ' ')"
    test -s out/said || { cat start.txt; find state -name '*.log' -exec cat {} +; cat alerts; }  >&2
    rm -f out/said
    rt delete --force $ID-$victims
    settle
done
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let said: Vec<_> = finished.stdout.lines().collect();
    let confined: Vec<_> = DEEDS
        .iter()
        .map(|(deed, errno)| format!("{deed} {errno} "))
        .collect();
    assert_eq!(
        said[0],
        format!("agent: {}", confined.concat()),
        "{finished:?}"
    );
    assert_eq!(said[1], "all: ", "{finished:?}");
}
