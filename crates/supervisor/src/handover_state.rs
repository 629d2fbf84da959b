//! State for agents that take over: what the running command's filter traps, since newly loaded
//! rules may need more, and what the current policy denies, which the keeper also needs to refuse
//! calls in a dead agent's place.

use std::collections::BTreeMap;

use abi::{Errno, RegisterTest, Syscall, TestOp, TestWidth};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use enforce::{DeferredConfinement, LoadedPolicy};
use event::{CallPlan, Need, Plan, StdioWatch};
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::portable::PortableClassifier;
use policy::compile::seccomp::{Action, CallRule, Profile};
use policy::{AllowedPeer, EnforcerKind};
use serde::{Deserialize, Serialize};

/// The part of a plan that its filter was compiled from. Calls are stored by name, so that another
/// version of this program understands them.
#[derive(Deserialize, Serialize)]
struct HandoverState {
    version: u32,
    stdio: u8,
    calls: BTreeMap<String, Vec<Vec<Test>>>,
    policy: Policy,
    /// Parts of a policy that are loaded in the kernel and report violations, by the ids of
    /// enforcers.
    known: BTreeMap<String, String>,
    /// The enforcer that reports a container's violations, once the container has started.
    later: Option<String>,
    /// What of the policy in force is recognized by failed calls.
    classifier: PortableClassifier,
    /// What is reported about the policy. Earlier builds of this version left none.
    #[serde(default)]
    record: Option<PolicyRecord>,
}

/// A policy in force, for an agent that takes over. Nothing of it is decided again: the policy's file, and the
/// enforcers that work, may have changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyInForce {
    /// Decisions on calls.
    pub profile: Profile,
    /// Classifier of failed calls as denials.
    pub classifier: DenialClassifier,
    /// What the kernel holds and reports of the policy.
    pub loaded: LoadedPolicy,
    /// What is reported about it, if it is known.
    pub record: Option<PolicyRecord>,
}

/// What is reported about a policy in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct PolicyRecord {
    /// Name of the policy.
    pub name: String,
    /// SHA-256 of its file in hexadecimal.
    pub digest: String,
    /// The policy only reports: nothing is denied.
    pub audits: bool,
    /// Extent of enforcement by the name of the enforcer.
    pub enforcers: BTreeMap<String, String>,
    /// Why an enforcer does not enforce everything, by its name. Earlier builds of this version left none.
    #[serde(default)]
    pub reasons: BTreeMap<String, String>,
    /// Rules that are not enforced in full, each as a sentence with the reason. `None` if that is not known: earlier builds of
    /// this version left none.
    #[serde(default)]
    pub gaps: Option<Vec<String>>,
}

/// Version of this layout. Others are refused, because the confinement of a container is not
/// guessed.
const VERSION: u32 = 3;

/// What every version has.
#[derive(Deserialize)]
struct WrittenVersion {
    version: u32,
}

/// A policy's decisions on calls.
#[derive(Default, Deserialize, Serialize)]
struct Policy {
    refuse_foreign: bool,
    /// Restriction of a container's first program, by the ids of enforcers.
    first: Option<BTreeMap<String, String>>,
    /// Rule, call, tests, action, error number.
    rules: Vec<(String, String, Vec<Test>, Does, i32)>,
    /// The peers to which a caller is connected nevertheless.
    #[serde(default)]
    peers: Option<Vec<String>>,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
enum Does {
    KillProcess,
    KillThread,
    Refuse,
    RefuseAndReport,
    Report,
    Trap,
    Watch,
}

/// Argument, whether all 64 bits are compared, operator, mask, value.
type Test = (u8, bool, Op, u64, u64);

#[derive(Clone, Copy, Deserialize, Serialize)]
enum Op {
    AllBits,
    AnyBit,
    Eq,
    Ge,
    Le,
    MaskedEq,
    Ne,
    NoBit,
}

/// Arguments of a call, from 0 on.
const ARGUMENTS: u8 = 6;

const STDIO: [StdioWatch; 3] = [StdioWatch::Off, StdioWatch::Sockets, StdioWatch::Any];

/// Encodes the handover state for an agent that takes over.
pub fn encode(
    plan: &Plan,
    in_force: &PolicyInForce,
    first: Option<&DeferredConfinement>,
) -> Vec<u8> {
    let PolicyInForce {
        profile,
        classifier,
        loaded: resident,
        record,
    } = in_force;
    let stdio = STDIO.iter().position(|watch| *watch == plan.stdio);
    let stdio = stdio.expect("the table has every watch");
    let group = |group: &Vec<RegisterTest>| group.iter().map(test).collect();
    let calls = plan.calls.iter().map(|(call, planned)| {
        let any_of = planned.any_of.iter().map(group).collect();
        (call.name().to_owned(), any_of)
    });
    let by_id = |by_kind: &BTreeMap<EnforcerKind, String>| {
        let each = by_kind.iter();
        each.map(|(kind, text)| (kind.id().to_owned(), text.clone()))
            .collect()
    };
    let handover = HandoverState {
        version: VERSION,
        stdio: u8::try_from(stdio).expect("three of them"),
        calls: calls.collect(),
        policy: Policy {
            refuse_foreign: profile.refuse_foreign,
            first: first.map(|first| by_id(&first.0)),
            rules: profile.rules.iter().map(call_rule).collect(),
            peers: profile
                .peers
                .as_ref()
                .map(|peers| peers.iter().map(ToString::to_string).collect()),
        },
        known: by_id(&resident.known),
        later: resident.later.map(|kind| kind.id().to_owned()),
        classifier: classifier.into(),
        record: record.clone(),
    };
    serde_json::to_vec(&handover).expect("names and numbers can be written")
}

fn call_rule(rule: &CallRule) -> (String, String, Vec<Test>, Does, i32) {
    let (does, errno) = match rule.action {
        Action::KillProcess => (Does::KillProcess, 0),
        Action::KillThread => (Does::KillThread, 0),
        Action::Refuse(errno) => (Does::Refuse, errno.0),
        Action::RefuseAndReport(errno) => (Does::RefuseAndReport, errno.0),
        Action::Report => (Does::Report, 0),
        Action::Trap => (Does::Trap, 0),
        Action::Watch => (Does::Watch, 0),
    };
    let tests = rule.when.iter().map(test).collect();
    let call = rule.call.name().to_owned();
    (rule.rule.clone(), call, tests, does, errno)
}

fn test(test: &RegisterTest) -> Test {
    let (op, mask) = match test.op {
        TestOp::AllBits => (Op::AllBits, 0),
        TestOp::AnyBit => (Op::AnyBit, 0),
        TestOp::Eq => (Op::Eq, 0),
        TestOp::Ge => (Op::Ge, 0),
        TestOp::Le => (Op::Le, 0),
        TestOp::MaskedEq { mask } => (Op::MaskedEq, mask),
        TestOp::Ne => (Op::Ne, 0),
        TestOp::NoBit => (Op::NoBit, 0),
    };
    (
        test.arg,
        test.width == TestWidth::Full64,
        op,
        mask,
        test.value,
    )
}

/// Decodes the restriction of a container's first program.
pub fn decode_first(handover: &[u8]) -> Result<Option<DeferredConfinement>, Failure> {
    let first = parse(handover)?.policy.first;
    first
        .map(|parts| by_kind(parts).map(DeferredConfinement))
        .transpose()
}

fn kind_of(id: &str) -> Result<EnforcerKind, Failure> {
    EnforcerKind::from_id(id).ok_or_else(|| {
        let message =
            format!("cannot take over: this version does not know the enforcer `{id}` in force");
        Failure::new(Exit::Internal, message).help("install the version that began")
    })
}

fn by_kind(by_id: BTreeMap<String, String>) -> Result<BTreeMap<EnforcerKind, String>, Failure> {
    let each = by_id.into_iter();
    each.map(|(id, text)| Ok((kind_of(&id)?, text))).collect()
}

fn parse(handover: &[u8]) -> Result<HandoverState, Failure> {
    let refused = |why: &str| {
        let message = format!("cannot take over: the previous agent left no filter plan: {why}");
        Failure::new(Exit::Internal, message).help("start the command again")
    };
    let unread = |error: serde_json::Error| refused(&error.to_string());
    // Read first: another version may have other fields.
    let WrittenVersion { version } = serde_json::from_slice(handover).map_err(unread)?;
    if version != VERSION {
        return Err(refused(&format!(
            "it is of version {version}, and this program reads version {VERSION}"
        )));
    }
    let state: HandoverState = serde_json::from_slice(handover).map_err(unread)?;
    let of_rules = state.policy.rules.iter().map(|(_, _, tests, ..)| tests);
    let mut tests = state.calls.values().flatten().chain(of_rules).flatten();
    match tests.find(|(arg, ..)| *arg >= ARGUMENTS) {
        Some((arg, ..)) => Err(refused(&format!("it tests argument {arg} of a call"))),
        None => Ok(state),
    }
}

/// Decodes the plan. Calls that this version does not know are ignored, since none of its rules
/// uses them. An unknown kind of watch counts as none: rules that need one are refused by name.
pub fn decode(handover: &[u8]) -> Result<(Plan, PolicyInForce), Failure> {
    let handover = parse(handover)?;
    let known = |(name, any_of): (String, Vec<Vec<Test>>)| {
        let call = Syscall::from_name(&name)?;
        let group = |group: Vec<Test>| group.into_iter().map(register_test).collect();
        let planned = CallPlan {
            any_of: any_of.into_iter().map(group).collect(),
            strings: false,
            result: Need::Never,
            reasons: Vec::new(),
        };
        Some((call, planned))
    };
    let profile = policy_of(handover.policy)?;
    let classifier = DenialClassifier::try_from(handover.classifier);
    let in_force = PolicyInForce {
        profile,
        classifier: classifier.map_err(|error| {
            Failure::new(Exit::Internal, format!("cannot take over: {error}"))
                .help("install the version that began")
        })?,
        loaded: LoadedPolicy {
            known: by_kind(handover.known)?,
            later: handover.later.map(|id| kind_of(&id)).transpose()?,
        },
        record: handover.record,
    };
    let plan = Plan {
        // Interests of the kernel's own filter, which no keeper hands over.
        interests: BTreeMap::new(),
        calls: handover.calls.into_iter().filter_map(known).collect(),
        stdio: STDIO
            .get(usize::from(handover.stdio))
            .copied()
            .unwrap_or_default(),
        ..Plan::default()
    };
    Ok((plan, in_force))
}

/// Decodes a policy. It fails if any part is unknown.
fn policy_of(policy: Policy) -> Result<Profile, Failure> {
    let rule = |(rule, call, tests, does, errno): (String, String, Vec<Test>, Does, i32)| {
        let errno = Errno(errno);
        let call = Syscall::from_name(&call).ok_or_else(|| {
            let message = format!(
                "cannot take over: this version does not know `{call}`, which rule `{rule}` of the policy \
                in force uses"
            );
            Failure::new(Exit::Internal, message).help("install the version that began")
        })?;
        Ok(CallRule {
            rule,
            call,
            when: tests.into_iter().map(register_test).collect(),
            action: match does {
                Does::KillProcess => Action::KillProcess,
                Does::KillThread => Action::KillThread,
                Does::Refuse => Action::Refuse(errno),
                Does::RefuseAndReport => Action::RefuseAndReport(errno),
                Does::Report => Action::Report,
                Does::Trap => Action::Trap,
                Does::Watch => Action::Watch,
            },
        })
    };
    Ok(Profile {
        refuse_foreign: policy.refuse_foreign,
        rules: policy
            .rules
            .into_iter()
            .map(rule)
            .collect::<Result<_, Failure>>()?,
        peers: policy.peers.map(peers_of).transpose()?,
    })
}

fn peers_of(texts: Vec<String>) -> Result<Vec<AllowedPeer>, Failure> {
    let peer = |text: String| {
        AllowedPeer::parse(&text).map_err(|problem| {
            Failure::new(Exit::Internal, format!("cannot take over: {problem}"))
                .help("install the version that began")
        })
    };
    texts.into_iter().map(peer).collect()
}

fn register_test((arg, full, op, mask, value): Test) -> RegisterTest {
    let op = match op {
        Op::AllBits => TestOp::AllBits,
        Op::AnyBit => TestOp::AnyBit,
        Op::Eq => TestOp::Eq,
        Op::Ge => TestOp::Ge,
        Op::Le => TestOp::Le,
        Op::MaskedEq => TestOp::MaskedEq { mask },
        Op::Ne => TestOp::Ne,
        Op::NoBit => TestOp::NoBit,
    };
    let width = if full {
        TestWidth::Full64
    } else {
        TestWidth::Low32
    };
    RegisterTest {
        arg,
        width,
        op,
        value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::rule_files::{self, NoSink};
    use policy::compile::landlock::{DeniedPath, Grant};
    use policy::compile::{MachineFeatures, NarrowedPolicy};

    #[test]
    fn a_memo_tells_what_the_filter_hands_over() {
        let mut loaded = rule_files::load(&[]);
        let (engine, plan) = loaded.compile(&rules::EngineOptions::default(), NoSink);
        let policy = "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                      auditViolations: true\n    hardeningRules: [disallow-create-user-ns]\n";
        let (policies, _) = policy::load("p.yaml", policy);
        let profile = Profile::compile(&policies[0]);
        assert!(!profile.rules.is_empty());
        let first = DeferredConfinement(BTreeMap::from([
            (EnforcerKind::Caps, "6 true".to_owned()),
            (EnforcerKind::AppArmor, "tollgate-q".to_owned()),
        ]));
        let kernel = LoadedPolicy {
            known: BTreeMap::from([(EnforcerKind::AppArmor, "tollgate-p".to_owned())]),
            later: Some(EnforcerKind::Bpf),
        };
        let in_force = PolicyInForce {
            profile,
            classifier: DenialClassifier::default(),
            loaded: kernel,
            record: Some(PolicyRecord {
                name: "p".to_owned(),
                digest: "ab".to_owned(),
                audits: true,
                enforcers: BTreeMap::from([("BPF".to_owned(), "partially enforced".to_owned())]),
                reasons: BTreeMap::from([("BPF".to_owned(), "no LSM hook".to_owned())]),
                gaps: Some(vec!["BPF enforces `r` only partially".to_owned()]),
            }),
        };
        let handover = encode(&plan, &in_force, Some(&first));
        assert_eq!(decode_first(&handover).expect("the same"), Some(first));
        let (decoded, confined) = decode(&handover).expect("a handover state of this version");
        assert_eq!(confined, in_force);
        let groups = |plan: &Plan| -> Vec<_> {
            let calls = plan.calls.iter();
            calls
                .map(|(call, planned)| (*call, planned.any_of.clone()))
                .collect()
        };
        assert_eq!(groups(&decoded), groups(&plan));
        assert_eq!(decoded.stdio, plan.stdio);
        assert!(engine.unserved(&decoded).is_empty());
        assert!(!engine.unserved(&Plan::default()).is_empty());
    }

    /// Denials are classified by what was decided when the policy was applied, whatever its file says now and
    /// whichever enforcers would work now.
    #[test]
    fn the_classifier_of_denials_is_handed_over_as_it_was_made() {
        let text = "policy:\n  enforcer: LandlockCaps\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                    privileged: true\n    auditViolations: true\n    \
                    hardeningRules: [disallow-umount, disallow-access-procfs-root, disable-cap-all]\n    \
                    bpfRawRules: {files: [{pattern: '/srv/**', permissions: [read]}]}\n    \
                    landlockRawRules: {only: [{pattern: '/usr/**', permissions: [read, exec]}]}\n";
        let (policies, problems) = policy::load("p.yaml", text);
        assert!(problems.is_empty(), "{problems:?}");
        let machine = MachineFeatures {
            watches: true,
            held: Some(abi::Capabilities::ALL),
            ..MachineFeatures::default()
        };
        let denied = DeniedPath {
            path: "/srv/x".to_owned(),
            rights: 4,
        };
        let granted = Grant {
            path: "/srv".to_owned(),
            rights: 2,
        };
        let classifier = NarrowedPolicy::new(&policies[0], &machine)
            .classifier()
            .with_ruleset(vec![("of-srv".to_owned(), denied)], &[granted]);
        assert!(!classifier.is_empty());
        let in_force = PolicyInForce {
            classifier,
            ..PolicyInForce::default()
        };
        let handover = encode(&Plan::default(), &in_force, None);
        let (_, decoded) = decode(&handover).expect("a handover state of this version");
        assert_eq!(decoded, in_force);
        let text = String::from_utf8(handover).expect("it is JSON");
        let newer = text.replace("\"umount2\"", "\"umount9\"");
        assert_ne!(newer, text);
        let failure = decode(newer.as_bytes()).expect_err("nothing is left out");
        assert!(
            failure.message().contains("the call `umount9`"),
            "{failure:?}"
        );
    }

    #[test]
    fn what_is_no_memo_is_refused() {
        assert!(decode(b"").is_err());
        assert!(decode(b"{\"stdio\":0,\"calls\":{\"openat\":[[[0]]]}}").is_err());
    }

    fn text() -> String {
        let first =
            DeferredConfinement(BTreeMap::from([(EnforcerKind::Caps, "6 true".to_owned())]));
        let handover = encode(&Plan::default(), &PolicyInForce::default(), Some(&first));
        String::from_utf8(handover).expect("it is JSON")
    }

    #[test]
    fn a_state_with_the_fields_of_another_version_is_refused_by_its_number() {
        for version in [0, VERSION - 1, VERSION + 1] {
            // A field less, a field of another type, and a field that this version lacks.
            let other =
                format!("{{\"version\":{version},\"stdio\":\"any\",\"calls\":{{}},\"new\":1}}");
            let failure = decode(other.as_bytes()).expect_err("it is not guessed");
            let expected =
                format!("it is of version {version}, and this program reads version {VERSION}");
            assert!(failure.message().contains(&expected), "{failure:?}");
        }
    }

    #[test]
    fn a_part_of_a_state_and_one_with_a_broken_byte_are_refused() {
        let whole = text().into_bytes();
        assert!(decode(&whole).is_ok());
        for len in 0..whole.len() {
            assert!(decode(&whole[..len]).is_err(), "{len}");
            assert!(decode_first(&whole[..len]).is_err(), "{len}");
            let mut broken = whole.clone();
            broken[len] = 0xff;
            assert!(decode(&broken).is_err(), "{len}");
        }
    }

    #[test]
    fn a_changed_form_of_a_state_has_a_new_version() {
        let test = RegisterTest {
            arg: 1,
            width: TestWidth::Full64,
            op: TestOp::MaskedEq { mask: 3 },
            value: 2,
        };
        let rule = CallRule {
            rule: "r".to_owned(),
            call: Syscall::MOUNT,
            when: vec![test],
            action: Action::RefuseAndReport(Errno(13)),
        };
        let in_force = PolicyInForce {
            profile: Profile {
                refuse_foreign: true,
                rules: vec![rule],
                peers: Some(vec![
                    AllowedPeer::parse("unix:/run/x.sock").expect("a path"),
                ]),
            },
            loaded: LoadedPolicy {
                known: BTreeMap::from([(EnforcerKind::AppArmor, "p".to_owned())]),
                later: Some(EnforcerKind::Bpf),
            },
            record: Some(PolicyRecord::default()),
            ..PolicyInForce::default()
        };
        let first = DeferredConfinement(BTreeMap::from([(EnforcerKind::Caps, "6".to_owned())]));
        let written = encode(&Plan::default(), &in_force, Some(&first));
        // FNV-1a: where this fails, raise `VERSION` and note the new number, unless the field has a default that means
        // the same as before.
        let hash = written
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let shown = String::from_utf8_lossy(&written);
        assert_eq!((VERSION, hash), (3, 0x5fb3_8268_3f49_0cbb), "{shown}");
    }

    /// A filter would read what is behind the arguments.
    #[test]
    fn a_test_of_an_argument_that_no_call_has_is_refused() {
        let with = |arg: u8| {
            let calls = format!("\"calls\":{{\"openat\":[[[{arg},true,\"Eq\",0,1]]]}}");
            text().replace("\"calls\":{}", &calls)
        };
        assert!(decode(with(5).as_bytes()).is_ok());
        let failure = decode(with(6).as_bytes()).expect_err("a call has six");
        assert!(
            failure.message().contains("tests argument 6"),
            "{failure:?}"
        );
    }

    #[test]
    fn another_version_and_an_unknown_enforcer_are_refused() {
        let text = text();
        assert!(decode_first(text.as_bytes()).is_ok());
        let older = text.replace("\"version\":3", "\"version\":2");
        let failure = decode_first(older.as_bytes()).expect_err("it may mean other things");
        assert!(failure.message().contains("of version 2"), "{failure:?}");
        let unknown = text.replace("\"caps\"", "\"moat\"");
        let failure = decode_first(unknown.as_bytes()).expect_err("nothing is left out");
        assert!(failure.message().contains("`moat`"), "{failure:?}");
    }
}
