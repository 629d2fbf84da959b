//! The whole domain of `fd.*`: each kind of event, each field, each kind of descriptor, and each fact that may be
//! unknown. What is unknown is never taken for absent.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::BTreeSet;

use event::field::{self, Field, Supplied};
use event::testing::EventBuilder;
use event::{
    Descriptor, DescriptorKind, DescriptorSource, Endpoint, Event, EventKind, Known, Name, Outcome,
    Role, Socket, Transport, Value,
};

/// Facts about a descriptor that an engine can lack, each on its own.
type Forget = fn(&mut Descriptor<'_>, Lack);

const FACTS: &[(&str, Forget)] = &[
    ("number", |it, lack| it.number = lack.of()),
    ("kind", |it, lack| it.kind = lack.of()),
    ("device", |it, lack| it.device = lack.of()),
    ("inode", |it, lack| it.inode = lack.of()),
    ("name", |it, _| {
        it.name = match it.name {
            Name::None => Name::None,
            _ => Name::Unreadable,
        };
    }),
    ("transport", |it, lack| {
        of_socket(it, |socket| socket.transport = lack.of());
    }),
    ("local end", |it, lack| {
        of_socket(it, |socket| socket.local = lack.of());
    }),
    ("remote end", |it, lack| {
        of_socket(it, |socket| {
            socket.remote = match socket.remote {
                // Unread stands for an address that was passed, and so exists.
                Known::Never => Known::NotYet,
                _ => lack.of(),
            };
        });
    }),
    ("connected", |it, lack| {
        of_socket(it, |socket| socket.connected = lack.of());
    }),
    ("name changed", |it, lack| {
        of_socket(it, |socket| socket.name_changed = lack.of());
    }),
];

/// The two ways in which a fact is unknown.
#[derive(Clone, Copy, Debug)]
enum Lack {
    NotYet,
    Unread,
}

impl Lack {
    fn of<T>(self) -> Known<T> {
        match self {
            Self::NotYet => Known::NotYet,
            Self::Unread => Known::Unread,
        }
    }
}

fn of_socket(descriptor: &mut Descriptor<'_>, change: impl FnOnce(&mut Socket<'_>)) {
    if let Some(socket) = &mut descriptor.socket {
        change(socket);
    }
}

/// Returns every field of the class, without an index.
fn fields() -> Vec<Field> {
    let all = field::docs().filter(|(class, _)| class.name == "fd");
    all.flat_map(|(_, fields)| fields)
        .map(|spec| Field::parse(spec.name).expect("no field of the class needs an argument"))
        .collect()
}

/// Returns a descriptor of each kind with all facts known: a client's and a server's socket, and other objects
/// once.
fn descriptors() -> Vec<Descriptor<'static>> {
    let end = |last, port| Endpoint {
        ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)),
        port,
    };
    let socket = |role, remote| Socket {
        transport: Known::Yes(Transport::Tcp),
        local: Known::Yes(end(1, 40_000)),
        remote,
        role,
        unix_path: Some(b"/run/socket"),
        connected: Known::Yes(true),
        name_changed: Known::Yes(true),
        unspecified: None,
    };
    let of = |kind, name, socket| Descriptor {
        number: Known::Yes(5),
        kind: Known::Yes(kind),
        name,
        socket,
        device: Known::Yes(0x801),
        inode: Known::Yes(77),
    };
    let mut all = Vec::new();
    for kind in DescriptorKind::ALL {
        match kind {
            DescriptorKind::Ipv4 | DescriptorKind::Ipv6 | DescriptorKind::Unix => {
                let client = socket(Role::Client, Known::Yes(end(2, 443)));
                let server = socket(Role::Server, Known::Never);
                all.push(of(kind, Name::None, Some(client)));
                all.push(of(kind, Name::None, Some(server)));
            }
            _ => all.push(of(kind, Name::Resolved(b"/srv/data/file"), None)),
        }
    }
    all
}

/// Returns a descriptor about which nothing is known.
fn unknown(lack: Lack) -> Descriptor<'static> {
    Descriptor {
        number: lack.of(),
        kind: lack.of(),
        name: Name::Unreadable,
        socket: None,
        device: lack.of(),
        inode: lack.of(),
    }
}

/// Returns a call of this kind that returned 5, with the arguments of an open.
fn builder(kind: EventKind) -> EventBuilder {
    let mut builder = EventBuilder::new(kind.name());
    if kind.has_result() {
        builder = builder.result(5);
    }
    if let DescriptorSource::Opened { name, flags } = kind.spec().descriptor {
        let param = |at: u8| kind.spec().params[usize::from(at)].name;
        builder = builder.arg(param(name), "/srv/data/file");
        if kind.name() != "creat" {
            builder = builder.arg(param(flags), 0_u64);
        }
    }
    builder
}

fn values<'a>(event: &mut Event<'a>, fields: &[Field], it: Descriptor<'a>) -> Vec<Value<'a>> {
    event.descriptor = Some(it);
    fields.iter().map(|field| field.extract(event)).collect()
}

/// Checks that each value is unknown, or the one that it is with all facts known.
fn assert_cautious(what: &str, fields: &[Field], found: &[Value<'_>], with_all: &[Value<'_>]) {
    for ((field, found), with_all) in fields.iter().zip(found).zip(with_all) {
        assert!(
            *found == Value::Unknown || found == with_all,
            "{field} is {found:?} {what}, and {with_all:?} when all is known"
        );
    }
}

#[test]
fn a_fact_that_is_unknown_makes_a_field_unknown_and_never_absent() {
    let (fields, descriptors) = (fields(), descriptors());
    for kind in EventKind::all() {
        if kind.spec().descriptor == DescriptorSource::None {
            continue;
        }
        let builder = builder(kind);
        let mut event = builder.complete();
        for (index, descriptor) in descriptors.iter().enumerate() {
            let lack = [Lack::NotYet, Lack::Unread][index % 2];
            let with_all = values(&mut event, &fields, *descriptor);
            for (name, forget) in FACTS {
                let mut lacking = *descriptor;
                forget(&mut lacking, lack);
                let found = values(&mut event, &fields, lacking);
                let what = format!("of {} without {name} of {descriptor:?}", kind.name());
                assert_cautious(&what, &fields, &found, &with_all);
            }
            let found = values(&mut event, &fields, unknown(lack));
            let what = format!("of {} when nothing is known", kind.name());
            assert_cautious(&what, &fields, &found, &with_all);
        }
    }
}

#[test]
fn a_result_that_is_unknown_decides_nothing() {
    let (fields, descriptors) = (fields(), descriptors());
    for kind in EventKind::all().filter(|kind| kind.has_result()) {
        if kind.spec().descriptor == DescriptorSource::None {
            continue;
        }
        let builder = builder(kind);
        let mut event = builder.complete();
        for descriptor in &descriptors {
            event.outcome = Outcome::Unlearnt;
            let found = values(&mut event, &fields, *descriptor);
            for result in [5, -2] {
                event.outcome = Outcome::Returned(result);
                let with_all = values(&mut event, &fields, *descriptor);
                let what = format!("of {} without its result", kind.name());
                assert_cautious(&what, &fields, &found, &with_all);
            }
        }
    }
}

#[test]
fn fields_are_known_when_every_fact_is_and_absent_without_a_descriptor() {
    let (fields, descriptors) = (fields(), descriptors());
    let of_descriptor = |field: &&Field| field.spec.name != "fd.types";
    let mut filled = BTreeSet::new();
    for kind in EventKind::all() {
        let builder = builder(kind);
        let mut event = builder.complete();
        if kind.spec().descriptor == DescriptorSource::None {
            for field in fields.iter().filter(of_descriptor) {
                assert_eq!(
                    field.extract(&event),
                    Value::Absent,
                    "{field} of {}",
                    kind.name()
                );
            }
            continue;
        }
        for descriptor in &descriptors {
            let found = values(&mut event, &fields, *descriptor);
            for (field, value) in fields.iter().zip(found) {
                assert_ne!(
                    value,
                    Value::Unknown,
                    "{field} of {} on {descriptor:?}",
                    kind.name()
                );
                if value != Value::Absent {
                    filled.insert(field.spec.name);
                }
            }
        }
    }
    for field in &fields {
        let is_filled = filled.contains(field.spec.name);
        assert_eq!(is_filled, field.spec.supplied == Supplied::Yes, "{field}");
    }
}
