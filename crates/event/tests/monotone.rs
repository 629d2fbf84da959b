//! A known value never changes: at an earlier stage, every field is unknown or equal to its final value.
//! Rejecting a call early is therefore sound.

use core::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use event::field::{self, ArgumentKind, Field};
use event::testing::{Arg, EventBuilder, Facts, FakeSystemInfo, image, process};
use event::{
    Changes, Comm, CommandLine, Container, Containment, Credentials, DescriptorKind,
    DescriptorSource, Endpoint, EventKind, ExecutableFile, ExecutableFlags, Group, Known, Lookup,
    ParamSource, ParamType, Pid, Process, Role, Socket, Stage, Stat, Status, Transport, User,
    Value,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

const CALLER: i32 = 42;

/// Returns every field, with arguments where it takes some.
fn all_fields() -> Vec<Field> {
    let mut texts = Vec::new();
    for spec in field::docs().flat_map(|(_, fields)| fields) {
        let name = spec.name;
        match spec.argument {
            ArgumentKind::None => texts.push(name.to_owned()),
            ArgumentKind::Index { required } => {
                texts.extend((!required).then(|| name.to_owned()));
                texts.extend((0..3).map(|index| format!("{name}[{index}]")));
            }
            ArgumentKind::Name { required } | ArgumentKind::IndexOrName { required } => {
                texts.extend((!required).then(|| name.to_owned()));
                texts.push(format!("{name}[HOME]"));
                if matches!(spec.argument, ArgumentKind::IndexOrName { .. }) {
                    texts.extend((0..3).map(|index| format!("{name}[{index}]")));
                }
            }
            ArgumentKind::Suffix { required, names } => {
                texts.extend((!required).then(|| name.to_owned()));
                texts.extend(names.iter().map(|part| format!("{name}.{part}")));
                texts.push(format!("{name}.{}", names.first().unwrap_or(&"open")));
            }
            ArgumentKind::Label => texts.push(format!("{name}[app]")),
            ArgumentKind::Param => {
                texts.extend((0..12).map(|index| format!("{name}[{index}]")));
                for param in [
                    "fd", "flags", "name", "path", "mode", "res", "uid", "pid", "tuple",
                ] {
                    texts.push(format!("{name}.{param}"));
                }
            }
        }
    }
    texts
        .iter()
        .map(|text| Field::parse(text).expect("made from the registry"))
        .collect()
}

#[derive(Clone, Debug)]
struct Scene {
    kind: EventKind,
    numbers: Vec<u64>,
    relative: bool,
    unreadable: Option<usize>,
    result: Option<i64>,
    late: bool,
    descriptor: DescriptorKind,
    role: Role,
    remote: bool,
    missing: bool,
}

fn scenes(kind: impl Strategy<Value = EventKind>) -> impl Strategy<Value = Scene> {
    let numbers = prop::collection::vec(
        prop_oneof![
            Just(0_u64),
            Just(1),
            Just(3),
            Just(CALLER.cast_unsigned().into()),
            Just(u64::from(u32::MAX)),
            Just((-100_i64).cast_unsigned()),
            any::<u64>(),
        ],
        32,
    );
    let result = prop::option::of(prop_oneof![Just(0_i64), Just(5), Just(-2), Just(-115)]);
    let descriptor = prop::sample::select(vec![
        DescriptorKind::File,
        DescriptorKind::Directory,
        DescriptorKind::Ipv4,
        DescriptorKind::Unix,
        DescriptorKind::Pipe,
        DescriptorKind::Other,
    ]);
    let role = prop::sample::select(vec![Role::Client, Role::Server, Role::Unknown]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (
        kind,
        numbers,
        prop::option::weighted(0.2, 0_usize..32),
        result,
        descriptor,
        role,
        flags,
    )
        .prop_map(
            |(kind, numbers, unreadable, result, descriptor, role, flags)| Scene {
                kind,
                numbers,
                relative: flags.0,
                unreadable,
                result,
                late: flags.1,
                descriptor,
                role,
                remote: flags.2,
                missing: flags.3,
            },
        )
}

impl Scene {
    fn builder(&self) -> EventBuilder {
        let parent = process(7, None, &["/bin/bash", "-l"]);
        let caller = process(CALLER, Some(&parent), &["/usr/bin/before", "one"]);
        let changes = self.kind.changes();
        let before = world(&parent, &caller, Changes::default(), self.missing);
        let after = world(&parent, &caller, changes, self.missing);
        let mut builder = EventBuilder::new(self.kind.name())
            .process(&caller)
            .world(before)
            .world_after(after)
            .late(self.late)
            .resolved("/srv/data/file")
            .inode(0x801, 77);
        if changes.image {
            builder = builder.image_after(image(&["/usr/bin/after", "two", "three"]));
        }
        builder = match self.result {
            Some(result) if self.kind.has_result() => builder.result(result),
            None if self.kind.has_result() => builder.unlearnt(),
            _ => builder,
        };
        builder = self.with_descriptor(builder);
        for (at, param) in self.kind.spec().params.iter().enumerate() {
            if let Some(arg) = self.value(at, param.ty, param.source) {
                builder = builder.arg(param.name, arg);
            }
        }
        builder
    }

    fn with_descriptor(&self, builder: EventBuilder) -> EventBuilder {
        let end = |last, port| Endpoint {
            ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)),
            port,
        };
        let socket = Socket {
            transport: Known::Yes(Transport::Tcp),
            local: Known::Yes(end(1, 40_000)),
            remote: if self.remote {
                Known::Yes(end(2, 443))
            } else {
                Known::Never
            },
            role: self.role,
            unix_path: Some(b"/run/socket"),
            connected: Known::Yes(true),
            name_changed: Known::Yes(true),
            unspecified: None,
        };
        match self.descriptor {
            kind @ (DescriptorKind::Ipv4 | DescriptorKind::Unix)
                if !matches!(self.kind.spec().descriptor, DescriptorSource::Opened { .. }) =>
            {
                builder.socket(kind, socket)
            }
            kind => builder.descriptor(kind),
        }
    }

    fn value(&self, at: usize, ty: ParamType, source: ParamSource) -> Option<Arg> {
        let number = self.numbers[at];
        let in_memory = !matches!(source, ParamSource::Register(_));
        match source {
            ParamSource::Process | ParamSource::Nowhere if number.is_multiple_of(2) => return None,
            ParamSource::Process | ParamSource::Nowhere => {}
            _ if in_memory && self.unreadable == Some(at) => return Some(Arg::Unreadable),
            _ => {}
        }
        Some(match ty {
            ParamType::Errno | ParamType::Int | ParamType::Pid => Arg::Int(number.cast_signed()),
            ParamType::Fd => Arg::Int(if self.relative { 5 } else { -100 }),
            ParamType::Path => Arg::from(if self.relative {
                "a/../b//c"
            } else {
                "/etc/./x"
            }),
            ParamType::Text | ParamType::Tuple | ParamType::Bytes => Arg::from("word"),
            ParamType::Texts => Arg::Texts(vec![b"a".to_vec(), b"b".to_vec()]),
            _ => Arg::Uint(number),
        })
    }
}

/// Returns the status of the caller after a call with these changes.
fn status(changed: Changes) -> Status {
    let number = |changed: bool| if changed { 1000 } else { 0 };
    Status {
        credentials: Credentials {
            uid: number(changed.credentials),
            gid: number(changed.credentials),
        },
        real_uid: number(changed.credentials),
        cap_inheritable: 0,
        cap_permitted: if changed.credentials { 0 } else { 3 },
        cap_effective: if changed.credentials { 0 } else { 3 },
        cap_bounding: 3,
        vpid: if changed.namespaces { 1 } else { CALLER },
        vtid: if changed.namespaces { 1 } else { CALLER },
        vpgid: if changed.session || changed.namespaces {
            1
        } else {
            7
        },
        vsid: if changed.session || changed.namespaces {
            1
        } else {
            7
        },
    }
}

/// Returns what `/proc` has of the caller after a call with these changes.
fn facts(changed: Changes, missing: bool) -> Facts {
    let stat = Stat {
        ppid: Pid(7),
        pgid: if changed.session { CALLER } else { 7 },
        sid: if changed.session { CALLER } else { 7 },
        tty: if changed.session { 0 } else { 34816 },
        tpgid: 7,
        threads: 2,
        vm_size_kib: 100,
        vm_rss_kib: 50,
    };
    Facts {
        comm: Lookup::Found(Comm::new(if changed.comm { b"after" } else { b"before" })),
        thread_name: Lookup::Found(Comm::new(if changed.thread_name {
            b"after"
        } else {
            b"before"
        })),
        stat: Lookup::Found(stat),
        status: if missing {
            Lookup::Missing
        } else {
            Lookup::Found(status(changed))
        },
        command_line: Lookup::Found(CommandLine::default()),
        executable: Lookup::Found(b"/x".to_vec()),
        executable_file: Lookup::Found(ExecutableFile {
            flags: ExecutableFlags::default(),
            inode: 1,
            ctime_ns: 1,
            mtime_ns: 1,
        }),
        executable_writable: Lookup::Found(true),
        environment: Lookup::Found(Vec::new()),
        login_uid: Lookup::Found(0),
    }
}

/// Returns the facts before a call without changes, and after one with some.
fn world(
    parent: &Arc<Process>,
    caller: &Arc<Process>,
    changed: Changes,
    missing: bool,
) -> FakeSystemInfo {
    let mut world = FakeSystemInfo::default();
    world.facts.insert(caller.pid, facts(changed, missing));
    world.processes.insert(parent.pid, Arc::clone(parent));
    world.processes.insert(caller.pid, Arc::clone(caller));
    let home = if changed.directory {
        "/after"
    } else {
        "/before"
    };
    world.directories.insert(None, Lookup::Found(home.into()));
    world
        .directories
        .insert(Some(5), Lookup::Found(b"/five".to_vec()));
    world.users.insert(
        0,
        Arc::new(User {
            name: "root".to_owned(),
            home: "/root".to_owned(),
            shell: "/bin/sh".to_owned(),
        }),
    );
    world.groups.insert(
        0,
        Arc::new(Group {
            name: "root".to_owned(),
        }),
    );
    world
        .descriptors
        .insert(0, (DescriptorKind::Pipe, b"pipe".to_vec()));
    world.container = Arc::new(if changed.namespaces {
        Container {
            containment: Containment::Known,
            id: "abc".to_owned(),
            ..Container::unknown()
        }
    } else {
        Container::host()
    });
    world
}

fn check(scene: &Scene, fields: &[Field]) {
    let builder = scene.builder();
    // In the order of an engine: what is asked early must not spoil what is asked late.
    let stages = [
        Stage::Registers,
        Stage::Strings,
        Stage::Descriptor,
        Stage::Entry,
    ]
    .map(|stage| builder.at(stage));
    let earlier: Vec<[Value<'_>; 4]> = fields
        .iter()
        .map(|field| stages.each_ref().map(|event| field.extract(event)))
        .collect();
    let end = builder.complete();
    // A fresh source of facts: early queries must not have changed the final values.
    let alone = scene.builder();
    let fresh = alone.complete();
    for (field, earlier) in fields.iter().zip(earlier) {
        let last = field.extract(&end);
        let name = scene.kind.name();
        assert_eq!(
            last,
            field.extract(&fresh),
            "{field} of {name} is stale: {scene:?}"
        );
        for (event, value) in stages.iter().zip(earlier) {
            assert!(
                value == Value::Unknown || value == last,
                "{field} of {name} at {:?} is {value:?}, at the end {last:?}: {scene:?}",
                event.stage,
            );
            assert!(
                event.stage >= field.dependency(scene.kind) || value == Value::Unknown,
                "{field} of {name} is known at {:?}",
                event.stage,
            );
        }
        assert_type(field, last);
    }
}

/// Checks that values have the type in the registry, and lists occur only where it allows them.
fn assert_type(field: &Field, value: Value<'_>) {
    use event::ValueType as Type;
    let fits = match value {
        Value::Unknown | Value::Absent => true,
        Value::List(values) => {
            assert!(field.multi(), "{field} has several values");
            values.iter().for_each(|value| assert_type(field, *value));
            true
        }
        Value::Bool(_) => field.ty() == Type::Bool,
        Value::Int(_) => field.ty() == Type::Int,
        Value::Uint(_) => {
            matches!(
                field.ty(),
                Type::Uint | Type::Port | Type::AbsTime | Type::RelTime
            )
        }
        Value::Text(_) => matches!(field.ty(), Type::Text | Type::Path),
        Value::Ip(_) => matches!(field.ty(), Type::Ip | Type::Net),
    };
    // The same parameter name has other types in other kinds, so the type of a raw parameter is a
    // guess that holds for most.
    assert!(
        fits || field.spec.name == "evt.rawarg",
        "{field} is {:?}: {value:?}",
        field.ty()
    );
}

#[test]
fn answers_never_change_once_known_for_every_kind() {
    let fields = all_fields();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for kind in EventKind::all() {
        let scene = scenes(Just(kind))
            .new_tree(&mut runner)
            .expect("no filter rejects")
            .current();
        check(&scene, &fields);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_never_change_once_known(
        scene in scenes((0..EventKind::all().filter(|kind| !kind.is_generic()).count())
            .prop_map(|at| EventKind::all().nth(at).expect("in range"))),
    ) {
        check(&scene, &all_fields());
    }
}
