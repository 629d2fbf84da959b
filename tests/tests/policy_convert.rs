//! `tollgate policy convert`: what it prints is a policy that denies what the source denied.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Finished, Limited, Scratch};
use serde_json::Value;

const ARMOR: &str = "apiVersion: security.kubearmor.com/v1
kind: KubeArmorPolicy
metadata: {name: web, namespace: prod}
spec:
  selector: {matchLabels: {app: web}}
  severity: 5
  message: no secrets for strangers
  file:
    matchPaths:
    - path: /etc/hostname
    - {path: /etc/passwd, ownerOnly: true}
  network:
    matchProtocols: [{protocol: udp, action: Audit}]
";

const SECCOMP: &str = "apiVersion: security-profiles-operator.x-k8s.io/v1beta1
kind: SeccompProfile
metadata: {name: calls}
spec:
  defaultAction: SCMP_ACT_ALLOW
  syscalls:
  - {names: [mkdir, mkdirat], action: SCMP_ACT_ERRNO, errnoRet: '33'}
";

fn tollgate(arguments: &[&str]) -> Finished {
    let mut command = Command::new(e2e::program());
    command.args(arguments).stdin(Stdio::null());
    Limited::start(&mut command, Duration::from_secs(60)).finish(b"")
}

fn name(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

#[test]
fn a_rule_that_cannot_be_carried_is_named_and_nothing_is_printed_before_it_is_accepted() {
    let scratch = Scratch::new();
    let file = scratch.file("ksp.yaml", 0o644, ARMOR);
    let refused = tollgate(&["policy", "convert", name(&file)]);
    assert_eq!(refused.code(), 3, "{}", refused.stderr);
    assert_eq!(refused.stdout, "");
    for part in [
        "ksp.yaml:11: error: cannot carry `spec.file.matchPaths[1]` over: `ownerOnly`",
        "help: leave it out: --accept-partial 'spec.file.matchPaths[1]'",
        "spec.file.matchPaths[0]         whole    bpfRawRules.files[0]: ",
    ] {
        assert!(refused.stderr.contains(part), "{part}\n{}", refused.stderr);
    }
    let accept = ["--accept-partial", "spec.file.matchPaths[1]"];
    let arguments = [&["policy", "convert", name(&file)][..], &accept].concat();
    let done = tollgate(&arguments);
    assert_eq!(done.code(), 0, "{}", done.stderr);
    let lines: Vec<&str> = done.stdout.lines().take(3).collect();
    assert_eq!(lines[1], "# Converted from KubeArmorPolicy web.");
    assert!(
        lines[2].starts_with("# Left out: spec.file.matchPaths[1]: `ownerOnly`"),
        "{}",
        lines[2]
    );
    // The only reader of policies takes it.
    let policy = scratch.file("policy.yaml", 0o644, &done.stdout);
    let checked = tollgate(&["policy", "check", name(&policy)]);
    assert_eq!(checked.code(), 0, "{}", checked.stdout);
    let arguments = [&arguments[..], &["--json"]].concat();
    let data: Value = serde_json::from_str(&tollgate(&arguments).stdout).expect("it is JSON");
    let rules = &data["policies"][0]["rules"];
    assert_eq!(rules[1]["carried"], "refused", "{rules}");
    assert_eq!(
        rules[2]["becomes"][0]["rule"],
        "bpfRawRules.network.sockets[0]"
    );
}

#[test]
fn a_converted_profile_denies_the_call_with_its_error() {
    let scratch = Scratch::new();
    let file = scratch.file("profile.yaml", 0o644, SECCOMP);
    let done = tollgate(&["policy", "convert", name(&file)]);
    assert_eq!(done.code(), 0, "{}", done.stderr);
    let policy = scratch.file("policy.yaml", 0o644, &done.stdout);
    let folder = scratch.path().join("made");
    let attempt = |enforced: bool| match enforced {
        true => tollgate(&[
            "enforce",
            "--policy",
            name(&policy),
            "--",
            "mkdir",
            name(&folder),
        ]),
        false => {
            let mut command = Command::new("mkdir");
            Limited::start(command.arg(&folder), Duration::from_secs(60)).finish(b"")
        }
    };
    let denied = attempt(true);
    assert!(
        denied.stderr.contains("Numerical argument out of domain") && !folder.exists(),
        "{}",
        denied.stderr
    );
    // The twin without the policy.
    assert_eq!(attempt(false).code(), 0);
    assert!(folder.exists());
    // With workloads it is an object of a cluster.
    let object = tollgate(&[
        "policy",
        "convert",
        "--target",
        "Deployment/shop",
        name(&file),
    ]);
    assert!(
        object.stdout.contains("kind: VarmorPolicy\n") && object.stdout.contains("name: shop\n"),
        "{}",
        object.stdout
    );
    for (arguments, expected) in [
        (&["--target", "Job/a"][..], "expected KIND/NAME"),
        (
            &["--accept-partial", "spec.nothing"],
            "the file has no such rule",
        ),
    ] {
        let wrong = tollgate(&[&["policy", "convert", name(&file)][..], arguments].concat());
        assert_eq!(wrong.code(), 2, "{}", wrong.stderr);
        assert!(wrong.stderr.contains(expected), "{}", wrong.stderr);
    }
}

const MODEL: &str = "apiVersion: crd.varmor.org/v1beta1
kind: ArmorProfileModel
metadata: {name: varmor-shop-web, namespace: shop}
storageType: CRDInternal
data:
  dynamicResult:
    seccomp: {syscalls: [execve, openat, newfstatat, ioctl, access, arch_prctl, prlimit64, pread64, statfs]}
  profile: {name: varmor-shop-web, enforcer: Seccomp, mode: enforce}
";

#[test]
fn a_model_of_varmor_denies_what_was_not_recorded() {
    let scratch = Scratch::new();
    let file = scratch.file("model.yaml", 0o644, MODEL);
    let done = tollgate(&["policy", "convert", name(&file)]);
    assert_eq!(done.code(), 0, "{}", done.stderr);
    assert!(done.stderr.contains("partial"), "{}", done.stderr);
    let policy = scratch.file("policy.yaml", 0o644, &done.stdout);
    let folder = scratch.path().join("made");
    let policy = name(&policy).to_owned();
    let enforced =
        |command: &[&str]| tollgate(&[&["enforce", "--policy", &policy, "--"], command].concat());
    let passed = enforced(&["true"]);
    assert_eq!(passed.code(), 0, "{}", passed.stderr);
    let denied = enforced(&["mkdir", name(&folder)]);
    assert!(
        denied.stderr.contains("Operation not permitted") && !folder.exists(),
        "{}",
        denied.stderr
    );
    // A name that is misspelt is an error with the right one.
    let wrong = scratch.file("wrong.yaml", 0o644, MODEL.replace("syscalls", "sycalls"));
    let refused = tollgate(&["policy", "convert", name(&wrong)]);
    assert_eq!(refused.code(), 3);
    assert!(
        refused.stderr.contains("did you mean `syscalls`?"),
        "{}",
        refused.stderr
    );
}

#[test]
fn models_of_replicas_become_one_of_varmor_in_any_order() {
    let scratch = Scratch::new();
    // What `learn` writes goes there and comes back.
    let recorded = r#"{"calls": ["execve", "mkdir"], "values": {}, "violated": {}, "reads": ["/etc/hosts"], "writes": [],
        "makes": [], "programs": ["/bin/mkdir"], "sockets": [], "peers": [], "capabilities": "", "had_capabilities": false}"#;
    let one = scratch.file("one.json", 0o644, recorded);
    let two = scratch.file("two.json", 0o644, recorded.replace("mkdir", "rmdir"));
    let written = |first: &Path, second: &Path| {
        let arguments = [
            "policy",
            "convert",
            "--to-model",
            "shop/web",
            name(first),
            "--merge",
            name(second),
        ];
        let done = tollgate(&arguments);
        assert_eq!(done.code(), 0, "{}", done.stderr);
        done.stdout
    };
    let object = written(&one, &two);
    assert_eq!(object, written(&two, &one));
    for part in [
        "kind: ArmorProfileModel\n",
        "name: varmor-shop-web\n",
        "- mkdir\n",
        "- rmdir\n",
        "path: \"/etc/hosts\"\n",
    ] {
        assert!(object.contains(part), "{part} in {object}");
    }
    let object = scratch.file("object.yaml", 0o644, &object);
    let back = tollgate(&["policy", "convert", name(&object)]);
    assert_eq!(back.code(), 0, "{}", back.stderr);
    assert!(back.stdout.contains("landlockRawRules"), "{}", back.stdout);
}
