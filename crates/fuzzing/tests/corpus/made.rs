//! Seeds in binary formats, which are made here: a change of a format changes them. `BLESS=1` writes them.

use std::env;
use std::fs;

use agent::confine::Optional;
use agent::options::{Detection, Interception};
use agent::spec::{AgentSpec, StartMode};
use nri::{Message, MessageKind, encode};
use plugin::protocol::{
    self, ArgumentDescription, Capabilities, Description, FieldDescription, FieldType, FieldValue,
    Record, Reply, Scalar,
};
use supervisor::handover_state;
use vm::{Frame, Kind};

use crate::{fuzz_folder, made_files};

/// A target, the name of a seed, and the seed.
pub(crate) type Seed = (&'static str, &'static str, Vec<u8>);

#[test]
fn committed_seeds_are_of_the_formats_of_this_build() {
    for (target, name, bytes) in seeds() {
        let file = fuzz_folder().join("corpus").join(target).join(name);
        if env::var_os("BLESS").is_some() {
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder can be made");
            fs::write(&file, &bytes).expect("a file can be written");
        }
        // A missing file differs, too: no seed is empty.
        let committed = fs::read(&file).unwrap_or_default();
        assert!(
            committed == bytes,
            "{} is of another format\nhelp: BLESS=1 cargo test --package fuzzing writes it",
            file.display()
        );
    }
}

fn seeds() -> Vec<Seed> {
    let mut seeds = vec![
        ("agent_spec", "container", agent_spec(StartMode::Command)),
        (
            "agent_spec",
            "host",
            agent_spec(StartMode::Host {
                base: "/run/x".into(),
            }),
        ),
        ("handover_state", "empty", handover()),
        (
            "rules_cache",
            "parts",
            agent::testing::cache_file([b"key", b"image", b"a warning"]),
        ),
        ("vm_frame", "program", frames()),
        ("dns", "address", dns(0)),
        ("dns", "no-such-name", dns(3)),
        ("otlp_logs", "protobuf", otlp_logs()),
        (
            "otlp_answer",
            "protobuf",
            message(|out| bytes(out, 1, &message(|out| number(out, 1, 3)))),
        ),
    ];
    seeds.extend(made_files::seeds());
    seeds.extend(gvisor());
    seeds.extend(nri_messages());
    seeds.extend(plugin_replies());
    seeds.extend(handoff());
    seeds
}

fn agent_spec(mode: StartMode) -> Vec<u8> {
    let spec = AgentSpec {
        detection: Detection {
            rules: vec!["/r.yaml".into()],
            options: vec!["outputs.rate=5".to_owned()],
            ..Detection::default()
        },
        confine: Optional::default(),
        interception: Interception::default(),
        on_agent_death: config::OnAgentDeath::Continue,
        agent_timeout: 1000,
        mode,
        takes_over: None,
        command: vec!["cat".into(), "/etc/passwd".into()],
    };
    spec.encode()
}

fn handover() -> Vec<u8> {
    let policy = "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                  hardeningRules: [disallow-create-user-ns]\n";
    let (policies, _) = policy::load("p.yaml", policy);
    let in_force = handover_state::PolicyInForce {
        profile: policy::compile::seccomp::Profile::compile(&policies[0]),
        ..handover_state::PolicyInForce::default()
    };
    handover_state::encode(&event::Plan::default(), &in_force, None)
}

fn frames() -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, content) in [
        (Kind::Done, &b""[..]),
        (Kind::Output, b"text\n"),
        (Kind::Exited, &[3]),
    ] {
        let written = Frame::new(7, kind, content).write(&mut out);
        written.expect("memory takes it");
    }
    out
}

/// An answer with this code, and an address.
fn dns(code: u8) -> Vec<u8> {
    let mut out = vec![0, 0, 0x81, 0x80 | code, 0, 1, 0, 1, 0, 0, 0, 0];
    out.extend(b"\x07example\x03com\0\0\x01\0\x01");
    out.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\0\0\x01");
    out
}

fn otlp_logs() -> Vec<u8> {
    let any = |text: &str| message(|out| bytes(out, 1, text.as_bytes()));
    let pair = |key: &str, value: &str| {
        message(|out| {
            bytes(out, 1, key.as_bytes());
            bytes(out, 2, &any(value));
        })
    };
    let record = message(|out| {
        number(out, 2, 17);
        bytes(out, 5, &any("a file was opened"));
        bytes(out, 6, &pair("falco.rule", "R"));
        bytes(out, 6, &pair("fd.name", "/etc/shadow"));
    });
    let resource = message(|out| bytes(out, 1, &pair("host.name", "h")));
    let logs = message(|out| {
        bytes(out, 1, &resource);
        bytes(out, 2, &message(|out| bytes(out, 2, &record)));
    });
    message(|out| bytes(out, 1, &logs))
}

fn gvisor() -> Vec<Seed> {
    let call = datagram(7, |out| {
        bytes(out, 2, &message(|out| number(out, 2, 2)));
        number(out, 3, 257);
        number(out, 4, (-100_i64).cast_unsigned());
        bytes(out, 6, b"/etc/shadow");
    });
    let start = datagram(1, |out| {
        bytes(out, 2, b"/bin/busybox");
        bytes(out, 3, b"box");
    });
    let clone = datagram(2, |out| number(out, 2, 9));
    let program = datagram(3, |out| {
        bytes(out, 2, b"/bin/cat");
        bytes(out, 3, b"cat");
        bytes(out, 3, b"/etc/passwd");
    });
    let end = datagram(5, |out| number(out, 2, 256));
    let all = [&start, &clone, &program, &call, &end];
    let mut wrong = call.clone();
    wrong.truncate(wrong.len() - 3);
    vec![
        (
            "gvisor",
            "life-of-a-process",
            all.iter().flat_map(|one| framed(one)).collect(),
        ),
        ("gvisor", "open", framed(&call)),
        ("gvisor", "refused-cut-off", framed(&wrong)),
    ]
}

/// A datagram with its length.
fn framed(datagram: &[u8]) -> Vec<u8> {
    let length = u16::try_from(datagram.len()).expect("a short one");
    [&length.to_le_bytes(), datagram].concat()
}

/// A datagram of this type about process 7 of the container `box`.
fn datagram(kind: u16, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let context = message(|out| {
        for (field, value) in [(1, 1_000), (2, 8), (4, 7), (5, 500), (10, 1)] {
            number(out, field, value);
        }
        bytes(out, 6, b"box");
        bytes(out, 7, &message(|out| number(out, 2, 1000)));
        bytes(out, 8, b"/home");
        bytes(out, 9, b"worker");
    });
    let mut out = [8_u16.to_ne_bytes(), kind.to_ne_bytes(), [3, 0], [0, 0]].concat();
    bytes(&mut out, 1, &context);
    fill(&mut out);
    out
}

fn nri_messages() -> Vec<Seed> {
    let request = |method: &str, payload: &[u8]| {
        let payload = message(|out| {
            bytes(out, 1, b"nri.pkg.api.v1alpha1.Plugin");
            bytes(out, 2, method.as_bytes());
            bytes(out, 3, payload);
        });
        let message = Message {
            connection: 1,
            stream: 1,
            kind: MessageKind::Request,
            payload,
        };
        encode(&message).expect("a short message")
    };
    let pod = message(|out| {
        bytes(out, 1, b"p1");
        bytes(out, 2, b"pod");
    });
    let container = message(|out| {
        bytes(out, 1, b"c1");
        bytes(out, 2, b"p1");
        bytes(out, 3, b"container");
    });
    let about = message(|out| {
        bytes(out, 1, &pod);
        bytes(out, 2, &container);
    });
    let configure = message(|out| bytes(out, 2, b"containerd"));
    let all = [
        request("Configure", &configure),
        request("Synchronize", &about),
        request("CreateContainer", &about),
        request("Shutdown", b""),
    ];
    vec![
        ("nri", "life-of-a-container", all.concat()),
        ("nri", "payload-of-create", all[2].clone()),
    ]
}

fn plugin_description() -> Description {
    let text = |text: &str| text.to_owned();
    Description {
        name: text("dummy"),
        description: text("Numbers"),
        contact: text("c"),
        version: text("1.0.0"),
        required_api: text("3.0.0"),
        capabilities: Capabilities {
            sourcing: true,
            extraction: true,
            ..Capabilities::default()
        },
        id: 4,
        source: text("dummy"),
        extracts_from: vec![text("dummy")],
        fields: vec![FieldDescription {
            name: text("dummy.value"),
            ty: FieldType::Uint,
            is_list: true,
            argument: ArgumentDescription::default(),
            description: text("A number"),
        }],
        schema: String::new(),
        parses_from: Vec::new(),
        parses_system_calls: false,
        adds_to: Vec::new(),
        async_events: vec![text("tick")],
    }
}

fn plugin_replies() -> Vec<Seed> {
    let text = |text: &str| text.to_owned();
    let plugin = plugin_description();
    let record = Record {
        time_ns: 7,
        info: FieldValue::One(Scalar::Text(b"seven".to_vec())),
        asynchronous: None,
        values: vec![
            FieldValue::One(Scalar::Text(b"t\xff".to_vec())),
            FieldValue::Many(vec![Scalar::Uint(1), Scalar::Uint(u64::MAX)]),
        ],
        data: Some(b"7".to_vec()),
    };
    let mut unnamed = plugin.clone();
    unnamed.name = text("a b");
    let frames = |replies: &[Reply]| {
        let mut out = Vec::new();
        for reply in replies {
            protocol::write(&mut out, reply).expect("memory takes it");
        }
        out
    };
    let all = [
        Reply::Loaded(vec![plugin]),
        Reply::Opened,
        Reply::Batch(vec![record]),
        Reply::Unparsed(3),
        Reply::Idle,
        Reply::Ended,
    ];
    let failed = [
        Reply::Failed(text("no")),
        Reply::Missed(protocol::Missed::default()),
    ];
    vec![
        ("plugin", "life-of-a-source", frames(&all)),
        ("plugin", "failed", frames(&failed)),
        (
            "plugin",
            "refused-name",
            frames(&[Reply::Loaded(vec![unnamed])]),
        ),
    ]
}

fn handoff() -> Vec<Seed> {
    let framed = |letter: &[u8], text: &str| {
        let length = u32::try_from(text.len()).expect("a short text");
        [letter, &length.to_le_bytes(), text.as_bytes()].concat()
    };
    let request = |build: &str| {
        format!(
            r#"{{"build":"{build}","container":"c","bundle":"/b","has_mounts":true,"generation":3,"is_resumed":false,"ticket":7,"transparent":[1,2],"is_answered":true,"rules":5,"losses":[0,1]}}"#
        )
    };
    let calls = r#"{"words":[1,6,257,3221225534,4096,1,2,3,4,5,6],"runtime":null}"#;
    vec![
        (
            "handoff",
            "request",
            framed(b"q", &request(agent::testing::BUILD)),
        ),
        (
            "handoff",
            "refused-request-of-another-build",
            framed(b"q", &request("0.0.9")),
        ),
        ("handoff", "held-calls", framed(b"c", calls)),
        ("handoff", "welcome", b"a+".to_vec()),
        ("handoff", "refusal", framed(b"a-", "it is too late")),
        (
            "handoff",
            "orders",
            b"oe\0\0\0\0f\0\0\0\0g\0\0\0\0r\x67\x12\0\0".to_vec(),
        ),
        (
            "handoff",
            "ended",
            [&b"m"[..], &(!0x89_0000_0002_u64).to_le_bytes()].concat(),
        ),
    ]
}

pub(crate) fn message(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    fill(&mut out);
    out
}

pub(crate) fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field) << 3);
    varint(out, value);
}

pub(crate) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    varint(out, u64::from(field) << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
