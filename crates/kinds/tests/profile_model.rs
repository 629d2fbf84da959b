//! Models of vArmor, in files of our own with its members, and models of ours in its form.

use std::collections::BTreeSet;

use abi::Syscall;
use policy::compile::MachineFeatures;
use policy::compile::seccomp::Profile;
use policy::{EnforcerKind, Enforcers, Model};
use proptest::prelude::*;

use kinds::convert::{Carried, Conversion, Options, convert, to_profile_model};
use kinds::yaml_text;

/// What vArmor's agents send of a workload with the enforcers AppArmor, BPF and Seccomp.
const RECORDED: &str = "apiVersion: crd.varmor.org/v1beta1
kind: ArmorProfileModel
metadata: {name: varmor-shop-web, namespace: shop}
storageType: CRDInternal
data:
  dynamicResult:
    appArmor:
      profiles: [varmor-shop-web]
      executions: [/usr/sbin/web]
      files:
      - {path: /etc/web.conf, owner: true, permissions: [r]}
      - {path: /srv/site/, permissions: [r]}
      networks: {sockets: [{domain: inet, type: stream, protocol: tcp}]}
      signals: [{peer: varmor-shop-web, permissions: [send], signals: [term]}]
    bpf:
      executions: [/usr/sbin/web]
      files:
      - {path: /var/cache/web/*, permissions: [create, write], oldPath: /var/cache/web/a1}
      capabilities: [net_bind_service]
      network:
        sockets: [{domain: AF_INET, type: SOCK_STREAM, protocol: IPPROTO_TCP}]
        egresses: [{ip: 10.0.0.7, ports: [5432]}]
    seccomp:
      syscalls: [socket, bind, listen, accept4, connect, execve, newfstatat, a_call_of_tomorrow]
  profile: {name: varmor-shop-web, enforcer: AppArmorBPFSeccomp, mode: enforce, seccomp: '{}'}
status: {desiredNumber: 2, completedNumber: 2, ready: true}
";

fn one(text: &str) -> Conversion {
    let mut all = convert("model.yaml", text, &Options::default()).expect("it is valid");
    all.remove(0)
}

fn loaded(conversion: &Conversion) -> policy::Policy {
    let text = yaml_text::stream(std::slice::from_ref(&conversion.object));
    let (policies, problems) = policy::load("f", &text);
    assert!(
        problems.iter().all(|one| !one.is_error()),
        "{problems:?}\n{text}"
    );
    policies.into_iter().next().expect("it is valid")
}

fn refused(conversion: &Conversion) -> Vec<(String, String)> {
    let refused = conversion.refused(&[]);
    refused
        .map(|(rule, cause)| (rule.source.clone(), cause.to_owned()))
        .collect()
}

#[test]
fn a_model_of_varmor_becomes_a_policy_that_allows_what_was_recorded() {
    let conversion = one(RECORDED);
    assert_eq!(refused(&conversion), []);
    let policy = loaded(&conversion);
    assert_eq!(policy.enforcers.joined(), "SeccompLandlockCaps");
    let profile = Profile::compile(&policy);
    let passes = |name: &str, args: [u64; 6]| {
        let call = abi_call(name);
        profile.decide(call, &args).is_none()
    };
    assert!(passes("accept4", [0; 6]) && passes("socket", [2, 1, 6, 0, 0, 0]));
    assert!(!passes("socket", [16, 3, 0, 0, 0, 0]) && !passes("ptrace", [0; 6]));
    let text = conversion.yaml();
    for (file, permissions) in [
        ("/etc/web.conf", "read"),
        ("/srv/site", "read"),
        ("/usr/sbin/web", "exec"),
        ("/var/cache/web/**", "write"),
    ] {
        let at = text
            .find(&format!("- pattern: \"{file}\"\n"))
            .unwrap_or_else(|| panic!("{file}\n{text}"));
        let rest = &text[at..];
        let end = rest[2..]
            .find("- pattern:")
            .map_or(rest.len(), |end| end + 2);
        let rest = &rest[..end];
        assert!(rest.contains(permissions), "{file}: {rest}");
    }
    assert!(!text.contains("/etc/shadow") && !text.contains("disable-cap-net-bind-service"));
    let graded = |source: &str| {
        let rule = conversion.rules.iter().find(|rule| rule.source == source);
        rule.unwrap_or_else(|| panic!("{source} in {:?}", conversion.rules))
            .clone()
    };
    let calls = graded("data.dynamicResult.seccomp.syscalls");
    assert_eq!(calls.becomes[0], "syscallRawRules[0]");
    assert!(
        calls.carried.words().1.contains("a_call_of_tomorrow"),
        "{calls:?}"
    );
    let files = graded("data.dynamicResult.appArmor.files");
    assert_eq!(files.becomes, ["landlockRawRules.only"]);
    assert!(files.carried.words().1.contains("owner"), "{files:?}");
    let programs = graded("data.dynamicResult.bpf.executions");
    assert_eq!(programs.carried, Carried::Whole);
}

fn abi_call(name: &str) -> Syscall {
    Syscall::from_name(name).expect("it is valid")
}

/// What is replaced in [`RECORDED`], by what, and the place and a part of the reason of the refusal.
const MISTAKES: [(&str, &str, &str, &str); 19] = [
    (
        "seccomp:\n      syscalls:",
        "secomp:\n      syscalls:",
        "data.dynamicResult.secomp",
        "did you mean `seccomp`?",
    ),
    (
        "storageType: CRDInternal",
        "storageType: CRDInternl",
        "storageType",
        "did you mean `CRDInternal`?",
    ),
    (
        "egresses: [{ip:",
        "egress: [{ip:",
        "data.dynamicResult.bpf.network.egress",
        "did you mean `egresses`?",
    ),
    (
        "protocol: tcp",
        "protocl: tcp",
        "data.dynamicResult.appArmor.networks.sockets[0].protocl",
        "`protocol`?",
    ),
    (
        "domain: inet,",
        "domain: innet,",
        "data.dynamicResult.appArmor.networks.sockets[0]",
        "called `innet`",
    ),
    (
        "[net_bind_service]",
        "[net_bind]",
        "data.dynamicResult.bpf.capabilities[0]",
        "`net_bind` is not known",
    ),
    (
        "permissions: [r]}",
        "permissions: [z]}",
        "data.dynamicResult.appArmor.files[0].permissions[0]",
        "`z` is not known",
    ),
    (
        "path: /etc/web.conf",
        "path: web.conf",
        "data.dynamicResult.appArmor.files[0]",
        "no absolute path",
    ),
    (
        "[5432]",
        "[70000]",
        "data.dynamicResult.bpf.network.egresses[0].ports[0]",
        "no port",
    ),
    (
        "ip: 10.0.0.7",
        "ip: db",
        "data.dynamicResult.bpf.network.egresses[0]",
        "no address",
    ),
    (
        "profiles: [varmor-shop-web]",
        "unhandled: [Operation - dbus]",
        "data.dynamicResult.appArmor.unhandled",
        "not understood",
    ),
    (
        "mode: enforce,",
        "mode: enforced,",
        "data.profile.mode",
        "did you mean `enforce`?",
    ),
    (
        "seccomp: '{}'",
        "bpf: {files: []}",
        "data.profile.bpf",
        "compiled form",
    ),
    (
        "  dynamicResult:",
        "  staticResult: {calls: 1}\n  dynamicResult:",
        "data.staticResult.calls",
        "not known",
    ),
    ("status:", "spec: {}\nstatus:", "spec", "not known"),
    (
        "mode: enforce,",
        "mode: {word: enforce},",
        "data.profile.mode",
        "it is no text",
    ),
    (
        "permissions: [r]}",
        "permissions: []}",
        "data.dynamicResult.appArmor.files[0]",
        "`permissions` is empty",
    ),
    (
        "[5432]",
        "[]",
        "data.dynamicResult.bpf.network.egresses[0]",
        "`ports` is empty",
    ),
    (
        "ready: true",
        "ready: false",
        "status.ready",
        "not complete",
    ),
];

#[test]
fn what_a_model_has_and_no_policy_can_carry_is_refused_by_its_place() {
    for (from, to, source, cause) in MISTAKES {
        let text = RECORDED.replacen(from, to, 1);
        assert_ne!(text, RECORDED, "{from}");
        let refused = refused(&one(&text));
        let [(place, why)] = &refused[..] else {
            panic!("{to}: {refused:?}");
        };
        assert_eq!(place, source);
        assert!(why.contains(cause), "{to}: {why}");
    }
}

#[test]
fn data_that_are_elsewhere_or_were_never_recorded_are_no_empty_model() {
    let head = "apiVersion: crd.varmor.org/v1beta1\nkind: ArmorProfileModel\nmetadata: {name: m}\n";
    for (rest, source, cause) in [
        ("storageType: CRDInternal\n", "", "`data` is missing"),
        (
            "data: {dynamicResult: {}, staticResult: {}, profile: {name: '', enforcer: '', mode: ''}}\n",
            "data",
            "nothing was recorded",
        ),
        (
            "data: {dynamicResult: {seccomp: {}}}\n",
            "data.dynamicResult.seccomp",
            "nobody watched",
        ),
        (
            "data: {dynamicResult: {bpf: {}}}\n",
            "data.dynamicResult.bpf",
            "nobody watched",
        ),
    ] {
        let conversion = one(&format!("{head}{rest}"));
        let refused = refused(&conversion);
        assert_eq!(refused[0].0, source, "{rest}: {refused:?}");
        assert!(refused[0].1.contains(cause), "{rest}: {refused:?}");
        assert!(conversion.is_empty());
    }
    let elsewhere = format!("{head}storageType: LocalDisk\ndata: {{dynamicResult: {{}}}}\n");
    assert!(refused(&one(&elsewhere))[0].1.contains("export the model"));
    // vArmor's manager exports the data, and leaves the type.
    let exported = RECORDED.replace("CRDInternal", "LocalDisk");
    assert_eq!(refused(&one(&exported)), []);
}

#[test]
fn a_model_without_a_recording_gives_its_profiles_as_they_are() {
    let text = "apiVersion: crd.varmor.org/v1beta1\nkind: ArmorProfileModel\nmetadata: {name: m}\ndata:\n  profile:\n    \
                name: m\n    enforcer: Seccomp\n    mode: complain\n    seccomp: '{\"defaultAction\": \
                \"SCMP_ACT_ERRNO\", \"syscalls\": [{\"names\": [\"read\"], \"action\": \"SCMP_ACT_ALLOW\"}]}'\n";
    let conversion = one(text);
    assert_eq!(conversion.rules[0].becomes, ["defenseInDepth.seccomp"]);
    let depth = &conversion.object["policy"]["defenseInDepth"];
    assert_eq!(depth["allowViolations"], true);
    assert_eq!(loaded(&conversion).mode.name(), "DefenseInDepth");
}

/// A rule about what nobody has recorded would deny what the workload may do.
#[test]
fn what_nobody_recorded_is_not_denied() {
    let only_calls = RECORDED
        .split("    appArmor:")
        .next()
        .expect("it is valid")
        .to_owned()
        + "    seccomp:\n      syscalls: [socket, connect, clone, mount]\n";
    let conversion = one(&only_calls);
    assert_eq!(refused(&conversion), []);
    let policy = loaded(&conversion);
    assert_eq!(policy.enforcers.joined(), "Seccomp");
    for rule in &policy.rules {
        for about in [
            "cap-", "udp", "tcp", "network", "-mount", "user-ns", "runtime", "metadata",
        ] {
            assert!(!rule.id.contains(about), "{}", rule.id);
        }
    }
    let asked = Options {
        enforcers: Some("LandlockSeccomp".to_owned()),
        ..Options::default()
    };
    let conversion = convert("f", &only_calls, &asked)
        .expect("it is valid")
        .remove(0);
    assert!(refused(&conversion)[0].1.contains("Landlock could allow"));
}

#[test]
fn what_a_model_of_ours_has_and_the_form_lacks_is_named() {
    let mut model = Model::default();
    model.note_local_peer("/run/docker.sock");
    model.had_capabilities = true;
    let conversion = to_profile_model("shop", "web", &model).expect("it is valid");
    let refused = refused(&conversion);
    assert_eq!(refused[0].0, "peers.unix");
    assert!(refused[0].1.contains("/run/docker.sock"), "{refused:?}");
    assert_eq!(conversion.object["metadata"]["name"], "varmor-shop-web");
    let listed = &conversion.object["data"]["dynamicResult"]["bpf"]["capabilities"];
    assert!(
        listed.as_array().is_some_and(|all| all.len() > 30),
        "{listed}"
    );
    assert!(to_profile_model("shop", &"w".repeat(60), &model).is_err());
}

/// A run of a workload, from small numbers.
fn model() -> impl Strategy<Value = Model> {
    let file = (0..4_usize, 0..6_usize, 0..50_u32);
    let call = (0..12_usize, 0..40_u64);
    (
        prop::collection::vec(file, 1..40),
        prop::collection::vec(call, 1..20),
        prop::collection::vec((0..3_usize, 1..6_u64, 0..60_u64), 0..4),
        prop::collection::vec(0..41_u8, 0..4),
    )
        .prop_map(|(files, calls, sockets, capabilities)| {
            let mut model = Model::default();
            let folders = [
                "/etc",
                "/srv/site",
                "/proc/12",
                "/tmp/made",
                "/usr/bin",
                "/dev",
            ];
            model.note_program("/usr/bin/web");
            for (kind, folder, number) in files {
                let names = ["passwd", "shadow", "0123456789abcdef", "sda"];
                let name = names.get(usize::try_from(number).expect("it is valid"));
                let name = name.map_or_else(|| format!("f{number}"), |name| (*name).to_owned());
                let file = format!("{}/{name}", folders[folder]);
                match kind {
                    0 => model.note_read(&file),
                    1 => model.note_write(&file),
                    2 => model.note_make(&file),
                    _ => model.note_program(&file),
                }
            }
            let names = [
                "openat", "execve", "mount", "unshare", "ptrace", "prctl", "ioctl", "bind",
                "connect", "chmod", "setns", "bpf",
            ];
            for (at, argument) in calls {
                model.note_call(abi_call(names[at]), &[argument; 6]);
            }
            for (domain, kind, protocol) in sockets {
                model.note_call(
                    abi_call("socket"),
                    &[[1, 2, 10][domain], kind, protocol, 0, 0, 0],
                );
            }
            for number in capabilities {
                model.capabilities.0 |= 1 << number;
            }
            model.note_peer("10.1.2.3".parse().expect("it is valid"), 443);
            model.note_peer("fd00::1".parse().expect("it is valid"), 53);
            model
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A policy from a model that went through vArmor's form allows each file and call that the policy from the model itself
    /// allows, and has no built-in rule that the model breaks.
    #[test]
    fn a_model_of_ours_survives_the_form_of_varmor(model in model()) {
        let object = to_profile_model("shop", "web", &model).expect("it is valid").object;
        let text = yaml_text::stream(std::slice::from_ref(&object));
        let conversion = one(&text);
        prop_assert_eq!(refused(&conversion), []);
        let again = loaded(&conversion);
        let machine = MachineFeatures::default();
        let enforcers = model.bearable(Enforcers::default().with(EnforcerKind::Seccomp)
            .with(EnforcerKind::Landlock).with(EnforcerKind::Caps));
        prop_assert_eq!(again.enforcers, enforcers);
        let (own, _) = policy::load("own", &model.policy("own", enforcers, &machine, &BTreeSet::new()));
        let files = |policy: &policy::Policy| {
            let rule = policy.rules.iter().find(|rule| rule.id == "landlockRawRules.only");
            rule.map(|rule| rule.restrictions.clone())
        };
        prop_assert_eq!(files(&again), files(&own[0]));
        let ids = |policy: &policy::Policy| -> BTreeSet<String> {
            policy.rules.iter().map(|rule| rule.id.clone()).collect()
        };
        for id in ids(&again).difference(&ids(&own[0])) {
            prop_assert!(false, "a rule more: {}", id);
        }
        let (strict, loose) = (Profile::compile(&own[0]), Profile::compile(&again));
        for name in ["openat", "execve", "mount", "unshare", "ptrace", "prctl", "socket", "bpf", "keyctl", "reboot"] {
            for argument in 0..70 {
                let args = [argument; 6];
                let call = abi_call(name);
                if strict.decide(call, &args).is_none() {
                    prop_assert!(loose.decide(call, &args).is_none(), "{} {}", name, argument);
                }
            }
        }
    }
}
