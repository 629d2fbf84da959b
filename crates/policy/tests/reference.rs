//! Checks that `docs/reference/policy-language.md` lists exactly the keys of each mapping of a policy file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const PAGE: &str = "../../docs/reference/policy-language.md";

/// A key that resembles no valid key, so that the message about it lists all keys.
const UNKNOWN: &str = "zzzzzzzzzzzz";

/// Every kind of mapping, each with an invalid key.
const DOCUMENTS: [&str; 5] = [
    "
zzzzzzzzzzzz: 1
apiVersion: crd.varmor.org/v1beta1
kind: VarmorPolicy
spec:
  zzzzzzzzzzzz: 1
  target:
    zzzzzzzzzzzz: 1
    kind: Pod
    selector:
      zzzzzzzzzzzz: 1
      matchExpressions:
      - {key: tier, operator: In, values: [web], zzzzzzzzzzzz: 1}
  policy:
    zzzzzzzzzzzz: 1
    enforcer: AppArmorBPFSeccompLandlock
    mode: EnhanceProtect
    networkProxyConfig: {zzzzzzzzzzzz: 1}
    enhanceProtect:
      zzzzzzzzzzzz: 1
      networkProxyRawRules:
        zzzzzzzzzzzz: 1
        egress:
          zzzzzzzzzzzz: 1
          defaultAction: allow
          rules:
          - {qualifiers: [deny], ip: 10.0.0.1, zzzzzzzzzzzz: 1}
      attackProtectionRules:
      - {rules: [mitigate-sa-leak], zzzzzzzzzzzz: 1}
      appArmorRawRules:
      - {rules: 'deny /data/** r,', zzzzzzzzzzzz: 1}
      landlockRawRules:
        zzzzzzzzzzzz: 1
        only:
        - {pattern: /usr/**, permissions: [read], zzzzzzzzzzzz: 1}
      connectRawRules: {only: ['example.org:443'], zzzzzzzzzzzz: 1}
      bpfRawRules:
        zzzzzzzzzzzz: 1
        files:
        - {pattern: /data/**, permissions: [read], zzzzzzzzzzzz: 1}
        processes:
        - {pattern: nc, permissions: [exec], zzzzzzzzzzzz: 1}
        network:
          zzzzzzzzzzzz: 1
          sockets:
          - {protocols: [tcp], zzzzzzzzzzzz: 1}
          egress:
            zzzzzzzzzzzz: 1
            toDestinations:
            - {qualifiers: [deny], ip: 10.0.0.1, ports: [{port: 1, zzzzzzzzzzzz: 1}], zzzzzzzzzzzz: 1}
            toServices:
            - {name: dns, zzzzzzzzzzzz: 1}
            toPods:
            - {podSelector: {matchLabels: {a: b}}, zzzzzzzzzzzz: 1}
        ptrace: {permissions: [all], zzzzzzzzzzzz: 1}
        mounts:
        - {sourcePattern: /proc/**, zzzzzzzzzzzz: 1}
      syscallRawRules:
      - names: [fchmodat]
        action: SCMP_ACT_ERRNO
        zzzzzzzzzzzz: 1
        args:
        - {index: 2, value: 1, op: SCMP_CMP_EQ, zzzzzzzzzzzz: 1}
",
    "
policy:
  enforcer: Seccomp
  mode: BehaviorModeling
  modelingOptions: {duration: 1, zzzzzzzzzzzz: 1}
",
    "
policy:
  enforcer: AppArmorSeccomp
  mode: DefenseInDepth
  defenseInDepth:
    zzzzzzzzzzzz: 1
    appArmor: {profileType: BehaviorModel, zzzzzzzzzzzz: 1}
    seccomp: {profileType: BehaviorModel, zzzzzzzzzzzz: 1}
",
    "
policy:
  enforcer: Seccomp
  mode: DefenseInDepth
  defenseInDepth:
    seccomp:
      profileType: Custom
      customProfile: '{\"defaultAction\": \"SCMP_ACT_ERRNO\", \"zzzzzzzzzzzz\": 1, \"syscalls\":
        [{\"names\": [\"read\"], \"action\": \"SCMP_ACT_ALLOW\", \"zzzzzzzzzzzz\": 1}]}'
",
    "
apiVersion: crd.varmor.org/v1beta1
kind: ArmorProfileModel
zzzzzzzzzzzz: 1
data:
  zzzzzzzzzzzz: 1
  profile: {zzzzzzzzzzzz: 1}
  dynamicResult: {zzzzzzzzzzzz: 1, seccomp: {zzzzzzzzzzzz: 1}}
",
];

/// Number of places in the loader that read a mapping. A new one needs a mapping in [`DOCUMENTS`].
const PLACES: usize = 37;

type Keys = BTreeMap<String, BTreeSet<String>>;

/// The keys of each mapping, from the loader's message about an invalid key.
fn known() -> Keys {
    let mut keys = Keys::new();
    for document in DOCUMENTS {
        let (_, problems) = policy::load("p.yaml", document);
        for problem in problems {
            let text = problem.to_string();
            let Some((before, _)) = text.split_once(&format!("` has no field `{UNKNOWN}`")) else {
                panic!("another problem than an unknown key: {text}");
            };
            let what = before.rsplit('`').next().expect("it is in backquotes");
            let help = problem.help.expect("the keys are listed");
            let list = help
                .strip_prefix("its fields are ")
                .expect("the keys are listed");
            let list = list.split(", ").map(str::to_owned).collect();
            keys.insert(what.to_owned(), list);
        }
    }
    keys
}

/// The first cells of the tables below each heading in backquotes. Only the first table counts.
fn documented() -> Keys {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let text = fs::read_to_string(path).expect("the page is part of the repository");
    let mut keys = Keys::new();
    for section in text.split("\n## `").skip(1) {
        let (what, rest) = section
            .split_once('`')
            .expect("a heading ends in a backquote");
        // A section without a table has no keys, which the comparison below rejects.
        let table = rest.split("\n| key |").nth(1).unwrap_or_default();
        let rows = table
            .lines()
            .skip(1)
            .take_while(|line| line.starts_with('|'));
        let names = rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next());
        keys.insert(what.to_owned(), names.map(str::to_owned).collect());
    }
    keys
}

#[test]
fn the_page_has_the_keys_of_each_mapping() {
    let (known, documented) = (known(), documented());
    let names = |keys: &Keys| keys.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&documented), names(&known), "sections of {PAGE}");
    for (what, keys) in &known {
        assert_eq!(&documented[what], keys, "keys of `{what}` in {PAGE}");
    }
}

#[test]
fn each_place_that_reads_a_mapping_is_tried() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/load");
    let mut places = 0;
    for entry in fs::read_dir(folder).expect("the loader is a folder") {
        let path = entry.expect("it can be listed").path();
        places += fs::read_to_string(path)
            .expect("it is text")
            .matches("reader.fields(")
            .count();
    }
    assert_eq!(
        places, PLACES,
        "add the new mapping to DOCUMENTS, with an unknown key"
    );
}
