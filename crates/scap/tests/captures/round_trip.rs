//! Events of every kind, written and replayed: every field is what it was.

use core::net::IpAddr;
use std::sync::{Arc, LazyLock};

use event::testing::{self, Arg, EventBuilder, Facts, FakeSystemInfo};
use event::{
    Comm, Container, Containment, Credentials, DescriptorKind, DescriptorSource, Endpoint,
    EventKind, Known, Lookup, ParamSource, ParamType, Pid, Role, Socket, Stage, Stat, Status,
    Transport, User,
};
use scap::read::Reader;
use scap::replay::Replay;
use scap::write::{Header, Writer};

use crate::fields::{Recorder, Seen, look};

fn facts(pid: i32) -> Facts {
    Facts {
        comm: Lookup::Found(Comm::new(if pid == 42 {
            b"test".as_slice()
        } else {
            b"parent"
        })),
        stat: Lookup::Found(Stat {
            ppid: Pid(7),
            pgid: pid,
            sid: 7,
            tty: 34816,
            tpgid: -1,
            threads: 3,
            vm_size_kib: 10,
            vm_rss_kib: 5,
        }),
        status: Lookup::Found(Status {
            credentials: Credentials {
                uid: 1000,
                gid: 100,
            },
            real_uid: 1001,
            cap_inheritable: 1,
            cap_permitted: 2,
            cap_effective: 3,
            cap_bounding: 4,
            vpid: 5,
            vtid: 6,
            vpgid: 7,
            vsid: 8,
        }),
        login_uid: Lookup::Found(1000),
        ..Facts::default()
    }
}

pub(crate) fn world() -> FakeSystemInfo {
    let user = User {
        name: "tester".to_owned(),
        home: "/home/tester".to_owned(),
        shell: "/bin/sh".to_owned(),
    };
    let container = Container {
        containment: Containment::Known,
        id: "0123456789ab".to_owned(),
        full_id: Some("0123456789abcdef".repeat(4)),
        name: Some("box".to_owned()),
        runtime: Some("podman".to_owned()),
        image: Some("registry/x:1".to_owned()),
        privileged: Some(true),
        start_ns: Some(5),
        pod: Some(("pod".to_owned(), "space".to_owned(), "uid".to_owned())),
        ..Container::unknown()
    };
    FakeSystemInfo {
        facts: [42, 7].map(|pid| (Pid(pid), facts(pid))).into(),
        directories: [(None, Lookup::Found(b"/work".to_vec()))].into(),
        users: [(1000, Arc::new(user))].into(),
        container: Arc::new(container),
        descriptors: [
            (
                0,
                (DescriptorKind::Ipv4, b"10.0.0.1:5->10.0.0.2:6".to_vec()),
            ),
            (1, (DescriptorKind::File, b"?".to_vec())),
            (2, (DescriptorKind::Pipe, b"pipe:[7]".to_vec())),
            (8, (DescriptorKind::Ipv6, b"::1:5->::1:6".to_vec())),
        ]
        .into(),
        ..FakeSystemInfo::default()
    }
}

fn end(port: u16) -> Endpoint {
    Endpoint {
        ip: IpAddr::from([10, 0, 0, 1]),
        port,
    }
}

fn socket(role: Role) -> Socket<'static> {
    Socket {
        transport: Known::Yes(Transport::Tcp),
        local: Known::Yes(end(1234)),
        remote: Known::Yes(end(80)),
        role,
        unix_path: None,
        connected: Known::Yes(true),
        name_changed: Known::Yes(false),
        unspecified: None,
    }
}

/// An event of a kind with something in each parameter that a call can give.
fn filled(kind: EventKind, result: i64) -> EventBuilder {
    let parent = testing::process(7, None, &["/bin/parent", "-x"]);
    let process = testing::process(42, Some(&parent), &["/bin/test", "one", "two"]);
    let world = FakeSystemInfo {
        processes: [&process, &parent]
            .map(|known| (known.pid, Arc::clone(known)))
            .into(),
        ..world()
    };
    let mut builder = EventBuilder::new(kind.name())
        .process(&process)
        .world(world);
    for (at, param) in kind.spec().params.iter().enumerate() {
        let number = i64::try_from(at).expect("few parameters") + 3;
        let value = match (param.source, param.ty) {
            (
                ParamSource::Result
                | ParamSource::Process
                | ParamSource::Tuple
                | ParamSource::Nowhere,
                _,
            ) => {
                continue;
            }
            (ParamSource::Path { .. }, _) => Arg::Text(b"relative/../path".to_vec()),
            (ParamSource::Text(_) | ParamSource::Buffer { .. }, _) => {
                Arg::Text(b"text \xff".to_vec())
            }
            (ParamSource::Texts(_), _) => Arg::Texts(vec![b"a".to_vec(), b"b c".to_vec()]),
            (_, ParamType::Fd | ParamType::Int | ParamType::Pid) => Arg::Int(number),
            _ => Arg::Uint(number.cast_unsigned()),
        };
        builder = builder.arg(param.name, value);
    }
    if kind.has_result() {
        builder = builder.result(result);
    }
    builder
}

fn written(events: &[EventBuilder]) -> (Vec<u8>, Vec<Seen>) {
    let mut header = Header::default();
    header.machine.hostname = "testhost".to_owned();
    let mut writer = Writer::new(header);
    let mut file = Vec::new();
    writer.begin(&mut file);
    let mut seen = Vec::new();
    for builder in events {
        // The recorder comes after the rules, so that what they asked for is known.
        let event = builder.at(Stage::Exit);
        seen.push(look(&event));
        writer.event(&event, &mut file);
    }
    (file, seen)
}

fn replayed(file: &[u8]) -> Vec<Seen> {
    replayed_without(file, &[])
}

/// Without kinds that nobody asks about.
fn replayed_without(file: &[u8], ignores: &[&'static str]) -> Vec<Seen> {
    let recorder = Recorder {
        ignores: ignores.to_vec(),
        ..Recorder::default()
    };
    let mut replay = Replay::new(&recorder, 0);
    let mut reader = Reader::new(file).expect("a capture");
    while replay.step(&mut reader, 100).expect("a whole capture") {}
    recorder
        .seen
        .into_inner()
        .expect("no test panics while it looks")
}

fn assert_same(events: &[EventBuilder]) {
    let (file, seen) = written(events);
    let replayed = replayed(&file);
    let names = |all: &[Seen]| all.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!(names(&seen), names(&replayed));
    let mut wrong = Vec::new();
    for ((name, before), (_, after)) in seen.iter().zip(&replayed) {
        for ((field, before), (_, after)) in before.iter().zip(after) {
            if before != after {
                wrong.push(format!("{name} {field}: {before} became {after}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Kinds that engines show: calls.
fn calls() -> impl Iterator<Item = EventKind> {
    EventKind::all().filter(|kind| kind.is_syscall())
}

#[test]
fn every_field_of_every_call_is_what_it_was() {
    let events: Vec<_> = calls().map(|kind| filled(kind, 5)).collect();
    assert!(events.len() > 300);
    assert_same(&events);
}

/// Rules at the replay can be others than those at the recording.
#[test]
fn a_call_that_nobody_asks_about_leaves_nothing_to_the_next_one() {
    // Nothing has to be noted of this one, so that what was noted before would count.
    let next = EventKind::of_syscall(abi::Syscall::UNLINK);
    let process = testing::process(42, None, &["/bin/test"]);
    let world = FakeSystemInfo {
        processes: [(process.pid, Arc::clone(&process))].into(),
        ..FakeSystemInfo::default()
    };
    let follower = |time_ns| {
        let builder = EventBuilder::new(next.name()).process(&process);
        let builder = builder.world(world.clone()).time_ns(time_ns).result(5);
        builder.arg("path", Arg::Text(b"/file".to_vec()))
    };
    let mut opens = 0;
    let is_open =
        |kind: EventKind| matches!(kind.spec().descriptor, DescriptorSource::Opened { .. });
    // One in ten of the others, as looking at every field takes long.
    let some = calls().enumerate();
    let some = some.filter(|(at, kind)| is_open(*kind) || at.is_multiple_of(10));
    for (_, kind) in some.filter(|(_, kind)| *kind != next) {
        // Some have no place for their result in captures, and it is noted.
        let mut ignored = filled(kind, 7).time_ns(1000);
        let mut time_ns = 1001;
        if is_open(kind) {
            // These are looked at whoever asks, because they change what is known of the process.
            ignored = ignored
                .descriptor(DescriptorKind::File)
                .resolved("/elsewhere");
            time_ns = 1000;
            opens += 1;
        }
        let mut writer = Writer::new(Header::default());
        let mut file = Vec::new();
        writer.begin(&mut file);
        for builder in [ignored, follower(time_ns)] {
            // Nobody looks at it, so that nothing is noted of what was asked.
            writer.event(&builder.at(Stage::Exit), &mut file);
        }
        let all = replayed(&file);
        let left = replayed_without(&file, &[kind.name()]);
        assert_eq!(left, all[1..], "behind {}", kind.name());
    }
    assert!(opens > 2);
}

#[test]
fn failed_calls_and_those_without_a_known_result_are_what_they_were() {
    let events: Vec<_> = calls().map(|kind| filled(kind, -2)).collect();
    assert_same(&events);
    let events: Vec<_> = calls().map(|kind| filled(kind, 0).unlearnt()).collect();
    assert_same(&events);
}

#[test]
fn calls_with_nothing_but_their_name_are_what_they_were() {
    let events: Vec<_> = calls()
        .map(|kind| {
            let process = testing::process(42, None, &["/bin/test"]);
            let processes = [(process.pid, Arc::clone(&process))].into();
            let world = FakeSystemInfo {
                processes,
                ..FakeSystemInfo::default()
            };
            EventBuilder::new(kind.name())
                .process(&process)
                .world(world)
        })
        .collect();
    assert_same(&events);
}

#[test]
fn descriptors_of_every_kind_are_what_they_were() {
    let read = || {
        EventBuilder::new("read")
            .arg("fd", 9_i64)
            .result(1)
            .world(world())
    };
    let kinds = [
        DescriptorKind::File,
        DescriptorKind::Directory,
        DescriptorKind::Pipe,
        DescriptorKind::EventPoll,
        DescriptorKind::Memfd,
    ];
    let mut events: Vec<_> = kinds
        .into_iter()
        .map(|kind| read().descriptor(kind).resolved("/some/name"))
        .collect();
    for role in [Role::Client, Role::Server, Role::Unknown] {
        events.push(read().socket(DescriptorKind::Ipv4, socket(role)));
    }
    events.push(read().socket(
        DescriptorKind::Unix,
        Socket {
            local: Known::Never,
            remote: Known::Never,
            unix_path: Some(b"/run/socket"),
            ..socket(Role::Unknown)
        },
    ));
    events.push(
        read()
            .descriptor(DescriptorKind::File)
            .inode(0x801, 77)
            .resolved("/a"),
    );
    assert_same(&events);
}

#[test]
fn a_process_that_changes_is_described_anew() {
    let other = FakeSystemInfo {
        container: Arc::new(Container::host()),
        directories: [(None, Lookup::Unknown)].into(),
        ..world()
    };
    let process = testing::process(42, None, &["/bin/test"]);
    let event = |world: FakeSystemInfo| {
        EventBuilder::new("openat")
            .process(&process)
            .arg("dirfd", -100_i64)
            .arg("name", "x")
            .world(world)
            .result(3)
    };
    assert_same(&[
        event(world()),
        event(other.clone()),
        event(world()),
        event(other),
    ]);
}

/// A capture to spoil.
pub(crate) fn sample() -> Vec<u8> {
    static SAMPLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let events: Vec<_> = calls().step_by(12).map(|kind| filled(kind, 5)).collect();
        written(&events).0
    });
    SAMPLE.clone()
}
