use std::os::unix::ffi::OsStrExt;

use config::{IoUring, Verify};
use serde_reflection::{ContainerFormat, Samples, Tracer, TracerConfig};

use super::*;
use crate::confine::PolicyStrictness;
use crate::guard::{GuardSpec, WideFolders};
use crate::options::{AlertFormat, AlertStream, Refusal};

fn take_over() -> TakeOver {
    let json = serde_json::json!({"generation": 2, "descriptors": [3, 4]});
    serde_json::from_value(json).expect("its fields")
}

/// Something of everything, with paths and words that are no text.
fn full() -> AgentSpec {
    let odd = || PathBuf::from(OsStr::from_bytes(b"/odd\xff"));
    AgentSpec {
        detection: Detection {
            rules: vec![odd(), "/r".into()],
            add_rules: vec![odd()],
            rules_folder: Some(odd()),
            layers: vec![odd(), "/l".into()],
            config: Some(odd()),
            options: vec!["a=b".to_owned()],
            json: true,
            write: Some(odd()),
            rotation: crate::options::Rotation {
                write_size: Some(1),
                write_time: Some(2),
                write_events: Some(3),
                write_keep: Some(4),
            },
            stats: Some(odd()),
            stream: AlertStream {
                log: Some(odd()),
                is_beside_command: true,
                format: Some(AlertFormat::Line),
                is_wide: true,
            },
            stats_interval: 7,
            pidfile: Some(odd()),
            container_id: Some("id".to_owned()),
            ring_kib: Some(64),
            rule_threads: std::num::NonZeroUsize::new(3),
            hooks: capture::ebpf::Hooks::Raw,
            manner: config::CompatMode::Falco,
            ..Detection::default()
        },
        confine: Optional {
            policy: Some(odd()),
            how: PolicyStrictness {
                audit: true,
                accept_partial: vec!["x".to_owned()],
            },
            guard: Some(GuardSpec {
                policy: "policy:".to_owned(),
                report: Some(3),
                options: [("r".to_owned(), "--o".to_owned())].into(),
                wide: WideFolders {
                    homes: vec![odd()],
                    system: vec![odd()],
                    programs: vec![odd()],
                },
                ask: true,
                environment: Some("A=b".to_owned()),
            }),
        },
        interception: Interception {
            engine: Some(event::EngineKind::Notify),
            verify: Some(Verify::Always),
            io_uring: Some(IoUring::Allow),
            refuse: vec![Refusal::NonDumpable],
            ..Interception::default()
        },
        on_agent_death: OnAgentDeath::Deny,
        agent_timeout: 1234,
        mode: StartMode::Container {
            container: ContainerSpec {
                id: "c".to_owned(),
                bundle: odd(),
                has_mounts: true,
                plans: Some(odd()),
            },
            sessions: Some(odd()),
        },
        takes_over: Some(take_over()),
        command: vec!["runc".into(), OsStr::from_bytes(b"\xfe").to_owned()],
    }
}

fn refusal(bytes: &[u8]) -> String {
    AgentSpec::decode(bytes).expect_err("refused").render()
}

#[test]
fn a_specification_is_read_as_it_was_written() {
    let spec = full();
    let again = AgentSpec::decode(&spec.encode()).expect("this version");
    assert_eq!(format!("{again:?}"), format!("{spec:?}"));
    for spec in of_each_mode() {
        let again = AgentSpec::decode(&spec.encode()).expect("this version");
        assert_eq!(again.mode, spec.mode);
    }
}

#[test]
fn another_version_is_refused_by_its_number() {
    for other in [0, VERSION - 1, VERSION + 1, u32::MAX] {
        let mut bytes = full().encode();
        bytes[MAGIC.len()..][..4].copy_from_slice(&other.to_le_bytes());
        let text = refusal(&bytes);
        let expected = format!(
            "cannot start an agent: its specification has version {other}, and this build knows version {VERSION} alone"
        );
        assert!(text.contains(&expected), "{text}");
        // Whatever follows the number.
        bytes.truncate(MAGIC.len() + 4);
        assert!(refusal(&bytes).contains(&expected));
    }
}

/// A specification of each start mode. A mode that is missing here does not compile.
fn of_each_mode() -> Vec<AgentSpec> {
    let container = full().mode.container().expect("it has one").clone();
    let first = StartMode::Command;
    let following = |mode: &StartMode| match mode {
        StartMode::Command => Some(StartMode::Learn),
        StartMode::Learn => Some(full().mode),
        StartMode::Container { .. } => Some(StartMode::ContainerOfHost {
            container: container.clone(),
            agents: "/agents".into(),
        }),
        StartMode::ContainerOfHost { .. } => Some(StartMode::Session {
            container: container.clone(),
            agent: "/agent".into(),
        }),
        StartMode::Session { .. } => Some(StartMode::Host { base: "/b".into() }),
        StartMode::Host { .. } => None,
    };
    let modes = std::iter::successors(Some(first), following);
    modes.map(|mode| AgentSpec { mode, ..full() }).collect()
}

/// The layout of everything that a specification can have: each type that it contains, with the
/// names and types of fields and all variants, in order.
fn layout() -> String {
    let mut tracer = Tracer::new(TracerConfig::default());
    let mut samples = Samples::new();
    for spec in of_each_mode() {
        let envelope = Envelope {
            pretended_kernel: Some((6, 1)),
            spec,
        };
        let traced = tracer.trace_value(&mut samples, &envelope);
        traced.expect("a value");
    }
    let mut whole = vec!["OsString".to_owned(), "StartMode".to_owned()];
    macro_rules! all_variants {
        ($($kind:ty),*) => {$(
            tracer.trace_simple_type::<$kind>().expect("a type");
            let name = std::any::type_name::<$kind>().rsplit("::").next();
            whole.extend(name.map(str::to_owned));
        )*};
    }
    all_variants!(
        AlertFormat,
        capture::ebpf::Hooks,
        config::CompatMode,
        event::EngineKind,
        IoUring,
        OnAgentDeath,
        Refusal,
        Verify
    );
    // Fails if a type was not seen, for example behind an option without a value.
    let registry = tracer.registry().expect("all types are known");
    for (name, format) in &registry {
        let is_enum = matches!(format, ContainerFormat::Enum(_));
        assert!(
            !is_enum || whole.contains(name),
            "trace all variants of {name}"
        );
    }
    let types = registry
        .iter()
        .map(|(name, format)| format!("{name}: {format:?}\n"));
    types.collect()
}

#[test]
fn a_changed_form_has_a_new_version() {
    let layout = layout();
    for variant in [
        "Command",
        "Learn",
        "Container",
        "ContainerOfHost",
        "Session",
        "Host",
    ] {
        assert!(layout.contains(&format!("name: \"{variant}\"")), "{layout}");
    }
    // FNV-1a over the layout and what is written: where this fails, raise `VERSION` and note the
    // new number.
    let bytes = [layout.into_bytes(), full().encode()].concat();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!((VERSION, hash), (4, 0x805c_d9a1_500d_001c));
}

#[test]
fn bytes_after_a_specification_are_refused() {
    let mut bytes = full().encode();
    bytes.push(0);
    let text = refusal(&bytes);
    assert!(text.contains("is damaged: 1 bytes follow it"), "{text}");
}

#[test]
fn what_is_no_specification_or_a_part_of_one_is_refused() {
    let bytes = full().encode();
    for bytes in [&b""[..], b"tgagent", b"tgplan1\n\0\0\0\0", b"#!/bin/sh\n"] {
        let text = refusal(bytes);
        assert!(
            text.contains("this is not a specification of one"),
            "{text}"
        );
    }
    for length in MAGIC.len() + 4..bytes.len() {
        let text = refusal(&bytes[..length]);
        assert!(text.contains("is damaged"), "{length}: {text}");
    }
}

#[test]
fn the_agent_of_the_host_knows_nothing_of_the_container() {
    let of_host = |change: fn(&mut AgentSpec)| {
        let mut spec = full();
        change(&mut spec);
        spec.of_host(Path::new("/b")).encode()
    };
    let usual = of_host(|_| ());
    let other_container = of_host(|spec| {
        spec.mode = StartMode::ContainerOfHost {
            container: ContainerSpec {
                id: "other".to_owned(),
                ..spec.mode.container().expect("it has one").clone()
            },
            agents: "/agents".into(),
        };
        spec.command.clear();
    });
    assert_eq!(usual, other_container);
    assert_ne!(usual, of_host(|spec| spec.confine.how.audit = false));
    assert_ne!(usual, of_host(|spec| spec.detection.config = None));
}

#[test]
fn a_specification_comes_by_descriptor_or_file() {
    use std::os::fd::IntoRawFd;
    let bytes = full().encode();
    let memory = supervisor::in_memory(&bytes).expect("memory");
    // Far above the numbers that the threads of other tests are given.
    let number = rustix::io::fcntl_dupfd_cloexec(&memory, 700).expect("a number");
    let number = number.into_raw_fd();
    let received = AgentSpec::receive(OsStr::new(&number.to_string())).expect("it is there");
    assert_eq!(received.encode(), bytes);
    assert!(sys::fd::duplicate_number(number).is_err(), "it stayed open");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &bytes).expect("written");
    let received = AgentSpec::receive(file.path().as_os_str()).expect("it is there");
    assert_eq!(received.encode(), bytes);
    assert!(AgentSpec::receive(OsStr::new("/nothing")).is_err());
}
