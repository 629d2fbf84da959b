//! `fd.*`: the descriptor that an event concerns.

use core::net::IpAddr;

use bumpalo::Bump;

use super::text::{Text, shown};
use super::{
    Argument, ArgumentKind, Class, DescriptorFact as Fact, FieldSpec, ProcessFact, Source, evt,
    path,
};
use crate::ValueType::{self, Bool, Int, Ip, Net, Path, Port};
use crate::{
    Descriptor, DescriptorKind, DescriptorSource, Endpoint, Event, Known, Lookup, Name, OpenFlags,
    Role, Socket, Transport, Value,
};

pub(super) const CLASS: Class = Class {
    name: "fd",
    description: "The file, socket or other object that a call works on.",
};

pub(super) const LIST_CLASS: Class = Class {
    name: "fdlist",
    description: "The descriptors that a poll waits for.",
};

const TEXT: ValueType = ValueType::Text;
const LAYER: &str = "the layer of an overlay that a file lies in is not looked up";
const POLL: &str = "the list of descriptors is not read";

const fn fact(fact: Fact) -> Source {
    Source::Descriptor(fact)
}

pub(super) static FIELDS: &[FieldSpec] = &[
    FieldSpec::new(
        "fd.num",
        Int,
        fact(Fact::Number),
        number,
        "Number; that of a failed open is negative.",
    ),
    FieldSpec::new(
        "fd.type",
        TEXT,
        fact(Fact::Kind),
        |e, _| type_word(e),
        "`file`, `directory`, `ipv4`, `ipv6`, `unix`, `pipe`, `event`, ...",
    ),
    FieldSpec::new(
        "fd.typechar",
        TEXT,
        fact(Fact::TypeChar),
        |e, _| type_char(e),
        "The type as a letter: `f`, `d`, `4`, `6`, `u`, `p`, ... A file to be opened has one even if the open fails.",
    ),
    FieldSpec::new(
        "fd.name",
        Path,
        fact(Fact::Name),
        |e, _| name(e),
        "Absolute path of a file, whatever name led to it; `client:port->server:port` of a connection; path of a unix socket, made absolute if the call passed it.",
    ),
    FieldSpec::new(
        "fd.nameraw",
        TEXT,
        fact(Fact::Name),
        raw_name,
        "Path as it was passed to the call.",
    ),
    FieldSpec::new(
        "fd.directory",
        Path,
        fact(Fact::FileName),
        directory,
        "Directory of a file; of a directory its own path.",
    ),
    FieldSpec::new(
        "fd.filename",
        TEXT,
        fact(Fact::FileName),
        file_name,
        "Name of a file without its directory.",
    ),
    FieldSpec::new(
        "fd.ip",
        Ip,
        fact(Fact::BothEnds),
        |e, _| both(e, ip),
        "Either address.",
    )
    .many(),
    FieldSpec::new(
        "fd.cip",
        Ip,
        fact(Fact::ClientEnd),
        |e, _| end(e, client, ip),
        "Address of the client.",
    ),
    FieldSpec::new(
        "fd.sip",
        Ip,
        fact(Fact::ServerEnd),
        |e, _| end(e, server, ip),
        "Address of the server.",
    ),
    FieldSpec::new(
        "fd.lip",
        Ip,
        fact(Fact::LocalEnd),
        |e, _| end(e, local, ip),
        "Own address.",
    ),
    FieldSpec::new(
        "fd.rip",
        Ip,
        fact(Fact::RemoteEnd),
        |e, _| end(e, remote, ip),
        "Address of the other end.",
    ),
    FieldSpec::new(
        "fd.port",
        Port,
        fact(Fact::BothEnds),
        |e, _| both(e, port),
        "Either port.",
    )
    .many(),
    FieldSpec::new(
        "fd.cport",
        Port,
        fact(Fact::ClientEnd),
        |e, _| end(e, client, port),
        "Port of the client.",
    ),
    FieldSpec::new(
        "fd.sport",
        Port,
        fact(Fact::ServerEnd),
        |e, _| end(e, server, port),
        "Port of the server.",
    ),
    FieldSpec::new(
        "fd.lport",
        Port,
        fact(Fact::LocalEnd),
        |e, _| end(e, local, port),
        "Own port.",
    ),
    FieldSpec::new(
        "fd.rport",
        Port,
        fact(Fact::RemoteEnd),
        |e, _| end(e, remote, port),
        "Port of the other end.",
    ),
    FieldSpec::new(
        "fd.l4proto",
        TEXT,
        fact(Fact::Transport),
        transport,
        "`tcp`, `udp`, `icmp` or `raw`.",
    ),
    FieldSpec::new(
        "fd.sockfamily",
        TEXT,
        fact(Fact::Kind),
        family,
        "`ip` or `unix`.",
    ),
    FieldSpec::new(
        "fd.is_server",
        Bool,
        fact(Fact::State),
        is_server,
        "Whether the process is the server of the connection.",
    ),
    FieldSpec::new(
        "fd.uid",
        TEXT,
        fact(Fact::Number),
        unique,
        "Thread id and number joined: names a descriptor while it is open.",
    ),
    FieldSpec::new(
        "fd.containername",
        TEXT,
        Source::NameInContainer,
        |e, _| in_container(e, name(e)),
        "Container id, a colon and the name.",
    ),
    FieldSpec::new(
        "fd.containerdirectory",
        TEXT,
        Source::NameInContainer,
        |e, a| in_container(e, directory(e, a)),
        "Container id, a colon and the directory.",
    ),
    FieldSpec::new(
        "fd.proto",
        Port,
        fact(Fact::BothEnds),
        |e, _| both(e, port),
        "Either port.",
    )
    .many(),
    FieldSpec::new(
        "fd.cproto",
        TEXT,
        fact(Fact::ClientEnd),
        |e, _| port_text(e, client),
        "Port of the client as text.",
    ),
    FieldSpec::new(
        "fd.sproto",
        TEXT,
        fact(Fact::ServerEnd),
        |e, _| port_text(e, server),
        "Port of the server as text.",
    ),
    FieldSpec::new(
        "fd.lproto",
        TEXT,
        fact(Fact::LocalEnd),
        |e, _| port_text(e, local),
        "Own port as text.",
    ),
    FieldSpec::new(
        "fd.rproto",
        TEXT,
        fact(Fact::RemoteEnd),
        |e, _| port_text(e, remote),
        "Port of the other end as text.",
    ),
    FieldSpec::new(
        "fd.net",
        Net,
        fact(Fact::BothEnds),
        |e, _| both(e, ip),
        "Either address, for comparison with networks.",
    )
    .many(),
    FieldSpec::new(
        "fd.cnet",
        Net,
        fact(Fact::ClientEnd),
        |e, _| end(e, client, ip),
        "Address of the client, for comparison with networks.",
    ),
    FieldSpec::new(
        "fd.snet",
        Net,
        fact(Fact::ServerEnd),
        |e, _| end(e, server, ip),
        "Address of the server, for comparison with networks.",
    ),
    FieldSpec::new(
        "fd.lnet",
        Net,
        fact(Fact::LocalEnd),
        |e, _| end(e, local, ip),
        "Own address, for comparison with networks.",
    ),
    FieldSpec::new(
        "fd.rnet",
        Net,
        fact(Fact::RemoteEnd),
        |e, _| end(e, remote, ip),
        "Address of the other end, for comparison with networks.",
    ),
    FieldSpec::new(
        "fd.connected",
        Bool,
        fact(Fact::State),
        |e, _| flag(e, |socket| socket.connected),
        "Whether a socket is connected.",
    ),
    FieldSpec::new(
        "fd.name_changed",
        Bool,
        fact(Fact::State),
        |e, _| flag(e, |socket| socket.name_changed),
        "Whether this call gave the descriptor another name.",
    ),
    FieldSpec::new(
        "fd.cip.name",
        Ip,
        fact(Fact::ClientEnd),
        |e, _| end(e, client, ip),
        "Client, for comparison with host names.",
    )
    .named_host(),
    FieldSpec::new(
        "fd.sip.name",
        Ip,
        fact(Fact::ServerEnd),
        |e, _| end(e, server, ip),
        "Server, for comparison with host names.",
    )
    .named_host(),
    FieldSpec::new(
        "fd.lip.name",
        Ip,
        fact(Fact::LocalEnd),
        |e, _| end(e, local, ip),
        "Own end, for comparison with host names.",
    )
    .named_host(),
    FieldSpec::new(
        "fd.rip.name",
        Ip,
        fact(Fact::RemoteEnd),
        |e, _| end(e, remote, ip),
        "Other end, for comparison with host names.",
    )
    .named_host(),
    FieldSpec::new(
        "fd.dev",
        Int,
        fact(Fact::Inode),
        |e, _| device(e, |dev| dev),
        "Device number of a file.",
    ),
    FieldSpec::new(
        "fd.dev.major",
        Int,
        fact(Fact::Inode),
        |e, _| device(e, major),
        "Major device number of a file.",
    ),
    FieldSpec::new(
        "fd.dev.minor",
        Int,
        fact(Fact::Inode),
        |e, _| device(e, minor),
        "Minor device number of a file.",
    ),
    FieldSpec::new(
        "fd.ino",
        Int,
        fact(Fact::Inode),
        inode,
        "Inode number of a file.",
    ),
    FieldSpec::new(
        "fd.types",
        TEXT,
        Source::Process(ProcessFact::Descriptors),
        types,
        "Types of the process's open descriptors, or of the one with the number that is given.",
    )
    .with(ArgumentKind::Index { required: false })
    .many(),
    FieldSpec::absent(
        "fd.is_upper_layer",
        Bool,
        LAYER,
        "Whether the file lies in the upper layer of an overlay.",
    ),
    FieldSpec::absent(
        "fd.is_lower_layer",
        Bool,
        LAYER,
        "Whether the file lies in a lower layer of an overlay.",
    ),
];

pub(super) static LIST_FIELDS: &[FieldSpec] = &[
    FieldSpec::absent("fdlist.nums", TEXT, POLL, "Numbers of the descriptors.").many(),
    FieldSpec::absent("fdlist.names", TEXT, POLL, "Names of the descriptors.").many(),
    FieldSpec::absent("fdlist.cips", TEXT, POLL, "Client addresses.").many(),
    FieldSpec::absent("fdlist.sips", TEXT, POLL, "Server addresses.").many(),
    FieldSpec::absent("fdlist.cports", TEXT, POLL, "Client ports.").many(),
    FieldSpec::absent("fdlist.sports", TEXT, POLL, "Server ports.").many(),
];

fn known<'a, T>(fact: Known<T>, show: impl FnOnce(T) -> Value<'a>) -> Value<'a> {
    match fact {
        Known::Yes(fact) => show(fact),
        Known::NotYet | Known::Unread => Value::Unknown,
        Known::Never => Value::Absent,
    }
}

fn number<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    match event.descriptor {
        Some(descriptor) => known(descriptor.number, Value::Int),
        None => Value::Absent,
    }
}

fn unique<'a>(event: &Event<'a>, argument: &Argument) -> Value<'a> {
    match number(event, argument) {
        Value::Int(number) => shown(event.arena, format_args!("{}{number}", event.tid.0)),
        other => other,
    }
}

/// Returns Falco's word and letter for a kind of descriptor.
fn words(kind: DescriptorKind) -> Option<(&'static str, &'static str)> {
    use DescriptorKind as Kind;
    Some(match kind {
        Kind::File => ("file", "f"),
        Kind::Directory => ("directory", "d"),
        Kind::Ipv4 => ("ipv4", "4"),
        Kind::Ipv6 => ("ipv6", "6"),
        Kind::Unix => ("unix", "u"),
        Kind::Netlink => ("netlink", "n"),
        Kind::Pipe => ("pipe", "p"),
        Kind::Event => ("event", "e"),
        Kind::EventPoll => ("eventpoll", "l"),
        Kind::Signal => ("signalfd", "s"),
        Kind::Timer => ("timerfd", "t"),
        Kind::Inotify => ("inotify", "i"),
        Kind::Memfd => ("memfd", "m"),
        Kind::Pidfd => ("pidfd", "P"),
        Kind::Userfault => ("userfaultfd", "u"),
        Kind::IoUring => ("io_uring", "r"),
        Kind::Bpf => ("bpf", "b"),
        Kind::OtherSocket | Kind::Other => return None,
    })
}

fn word<'a>(kind: DescriptorKind) -> Value<'a> {
    words(kind).map_or(Value::Absent, |(word, _)| Value::text(word))
}

/// Returns true if the call should have created the descriptor and failed: then no descriptor exists.
fn failed_to_make(event: &Event<'_>) -> Value<'static> {
    match event.kind.spec().descriptor {
        DescriptorSource::Opened { .. }
        | DescriptorSource::CreatedSocket
        | DescriptorSource::Created(_)
        | DescriptorSource::Accepted(_) => match evt::on_result(event, |r| Value::Bool(r < 0)) {
            Value::Absent => Value::Bool(false),
            Value::Bool(failed) => Value::Bool(failed),
            _ => Value::Unknown,
        },
        _ => Value::Bool(false),
    }
}

fn type_word<'a>(event: &Event<'a>) -> Value<'a> {
    let Some(descriptor) = event.descriptor else {
        return Value::Absent;
    };
    match failed_to_make(event) {
        Value::Bool(true) => return Value::Absent,
        Value::Unknown => return Value::Unknown,
        _ => {}
    }
    match event.kind.spec().descriptor {
        DescriptorSource::Opened { flags, .. } => opened_kind(event, flags, word),
        _ => known(descriptor.kind, word),
    }
}

/// Passes the kind of descriptor that an open would create to `show`.
fn opened_kind<'a>(
    event: &Event<'a>,
    flags: u8,
    show: impl FnOnce(DescriptorKind) -> Value<'a>,
) -> Value<'a> {
    let flags = match super::param::value(event, usize::from(flags)) {
        Value::Uint(flags) => flags,
        Value::Unknown => return Value::Unknown,
        _ => 0,
    };
    show(OpenFlags(flags).kind())
}

fn type_char<'a>(event: &Event<'a>) -> Value<'a> {
    let letter = |kind| Value::text(words(kind).map_or("o", |(_, letter)| letter));
    match (event.kind.spec().descriptor, event.descriptor) {
        (DescriptorSource::Opened { flags, .. }, _) => opened_kind(event, flags, letter),
        (_, None) => Value::Absent,
        (_, Some(descriptor)) => match descriptor.kind {
            // Falco has a letter for an object that it could not look up.
            Known::Never => Value::text("o"),
            kind => known(kind, letter),
        },
    }
}

/// Returns the letters between the angle brackets of a formatted descriptor: the type, and for sockets with
/// addresses the transport.
pub(super) fn type_letters<'a>(event: &Event<'a>) -> Value<'a> {
    let letter = match type_char(event) {
        Value::Text(letter) => letter,
        other => return other,
    };
    let mut out = Text::new(event.arena);
    out.push(letter);
    if let Some(socket) = ip_socket(event) {
        match socket.transport {
            Known::Yes(Transport::Tcp) => out.push(b"t"),
            Known::Yes(Transport::Udp) => out.push(b"u"),
            Known::Yes(Transport::Icmp) => out.push(b"i"),
            Known::Yes(Transport::Raw) => out.push(b"r"),
            Known::Yes(Transport::Unknown) | Known::Never => {}
            Known::NotYet | Known::Unread => return Value::Unknown,
        }
    }
    out.value()
}

/// Computes `fd.name`.
pub(super) fn name<'a>(event: &Event<'a>) -> Value<'a> {
    let Some(descriptor) = event.descriptor else {
        return Value::Absent;
    };
    if let DescriptorSource::Opened { .. } = event.kind.spec().descriptor {
        return path::resolved(event, descriptor.name);
    }
    match (descriptor.socket, descriptor.kind) {
        (_, Known::NotYet | Known::Unread) => Value::Unknown,
        (Some(socket), Known::Yes(DescriptorKind::Ipv4 | DescriptorKind::Ipv6)) => {
            connection(event, &socket)
        }
        // The path that was passed, relative to the caller's directory.
        (Some(_), Known::Yes(DescriptorKind::Unix)) if descriptor.name != Name::None => {
            path::resolved(event, descriptor.name)
        }
        (Some(socket), Known::Yes(DescriptorKind::Unix)) => match socket.unix_path {
            Some(path) => Value::Text(path),
            None if socket.has_unread_address() => Value::Unknown,
            None => Value::Text(b""),
        },
        _ => path::resolved(event, descriptor.name),
    }
}

fn connection<'a>(event: &Event<'a>, socket: &Socket<'_>) -> Value<'a> {
    connection_name(socket, event.arena).map_or(Value::Unknown, Value::Text)
}

/// Formats `client:port->server:port`; `address:port` for a listening socket; empty if the socket has no
/// address yet. Returns `None` while an end is unknown.
pub fn connection_name<'a>(socket: &Socket<'_>, arena: &'a Bump) -> Option<&'a [u8]> {
    let (from, to) = match socket.role {
        Role::Server => (socket.remote, socket.local),
        Role::Client | Role::Unknown => (socket.local, socket.remote),
    };
    let mut out = Text::new(arena);
    for end in [from, to] {
        match end {
            Known::NotYet | Known::Unread => return None,
            Known::Never => {}
            Known::Yes(end) => {
                if !out.is_empty() {
                    out.push(b"->");
                }
                out.show(format_args!("{}:{}", end.ip, end.port));
            }
        }
    }
    Some(out.bytes())
}

/// Formats the tuple parameter, which equals the name of a socket.
pub(super) fn tuple<'a>(event: &Event<'a>) -> Value<'a> {
    match event.descriptor {
        Some(Descriptor {
            socket: Some(_), ..
        }) => match name(event) {
            Value::Text(b"") => Value::Absent,
            name => name,
        },
        Some(Descriptor {
            kind: Known::NotYet | Known::Unread,
            ..
        }) => Value::Unknown,
        _ => Value::Absent,
    }
}

fn raw_name<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    match event.descriptor.map(|descriptor| descriptor.name) {
        Some(Name::Passed { raw, .. } | Name::Opened { raw, .. } | Name::Unresolved { raw }) => {
            Value::Text(path::without_double_slashes(event.arena, raw))
        }
        _ => name(event),
    }
}

/// Computes a value from a file's path and kind; absent if the descriptor is not a file.
fn file<'a>(
    event: &Event<'a>,
    show: impl FnOnce(&'a [u8], DescriptorKind) -> Value<'a>,
) -> Value<'a> {
    let Some(descriptor) = event.descriptor else {
        return Value::Absent;
    };
    let mut is = None;
    let answer = match event.kind.spec().descriptor {
        DescriptorSource::Opened { flags, .. } => opened_kind(event, flags, |kind| {
            is = Some(kind);
            Value::Absent
        }),
        _ => known(descriptor.kind, |kind| {
            is = Some(kind);
            Value::Absent
        }),
    };
    match is {
        Some(kind @ (DescriptorKind::File | DescriptorKind::Directory)) => match name(event) {
            Value::Text(path) => show(path, kind),
            other => other,
        },
        _ => answer,
    }
}

fn directory<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    file(event, |path, kind| match kind {
        DescriptorKind::Directory => Value::Text(path),
        _ => Value::Text(path::directory(path)),
    })
}

fn file_name<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    file(event, |path, kind| match kind {
        DescriptorKind::Directory => Value::Absent,
        _ => Value::Text(path::file_name(path)),
    })
}

fn in_container<'a>(event: &Event<'a>, name: Value<'a>) -> Value<'a> {
    let Value::Text(name) = name else { return name };
    let mut out = Text::new(event.arena);
    out.push(event.container().id.as_bytes());
    out.push(b":");
    out.push(name);
    out.value()
}

fn ip_socket<'a>(event: &Event<'a>) -> Option<Socket<'a>> {
    let descriptor = event.descriptor?;
    matches!(
        descriptor.kind,
        Known::Yes(DescriptorKind::Ipv4 | DescriptorKind::Ipv6)
    )
    .then_some(descriptor.socket)?
}

fn client(socket: &Socket<'_>) -> Known<Endpoint> {
    match socket.role {
        Role::Client => socket.local,
        Role::Server => socket.remote,
        Role::Unknown => roleless(socket),
    }
}

fn server(socket: &Socket<'_>) -> Known<Endpoint> {
    match socket.role {
        Role::Client => socket.remote,
        Role::Server => socket.local,
        Role::Unknown => roleless(socket),
    }
}

/// Returns no client and server end for a socket whose role is unknown.
fn roleless(socket: &Socket<'_>) -> Known<Endpoint> {
    let is_unknown = |end: Known<Endpoint>| matches!(end, Known::NotYet | Known::Unread);
    if is_unknown(socket.local) || is_unknown(socket.remote) {
        Known::NotYet
    } else {
        Known::Never
    }
}

fn local(socket: &Socket<'_>) -> Known<Endpoint> {
    match socket.remote {
        // A socket that only listens has one address, the server's.
        Known::Never => Known::Never,
        // It may prove to listen only.
        Known::NotYet => Known::NotYet,
        // An address that was passed exists, readable or not.
        Known::Unread | Known::Yes(_) => socket.local,
    }
}

fn remote(socket: &Socket<'_>) -> Known<Endpoint> {
    socket.remote
}

type End = fn(&Socket<'_>) -> Known<Endpoint>;
type Show = fn(Endpoint) -> Value<'static>;

fn ip(end: Endpoint) -> Value<'static> {
    Value::Ip(match end.ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    })
}

fn port(end: Endpoint) -> Value<'static> {
    Value::Uint(u64::from(end.port))
}

/// Returns absent if the descriptor is not a socket with addresses; unknown while it may still prove to be
/// one.
fn no_socket<'a>(event: &Event<'a>) -> Value<'a> {
    match event.descriptor {
        Some(Descriptor {
            kind: Known::NotYet | Known::Unread,
            ..
        }) => Value::Unknown,
        _ => Value::Absent,
    }
}

fn end<'a>(event: &Event<'a>, end: End, show: Show) -> Value<'a> {
    match ip_socket(event) {
        Some(socket) => known(end(&socket), show),
        None => no_socket(event),
    }
}

fn both<'a>(event: &Event<'a>, show: Show) -> Value<'a> {
    let Some(socket) = ip_socket(event) else {
        return no_socket(event);
    };
    let (local, remote) = (known(socket.local, show), known(socket.remote, show));
    match (local, remote) {
        (Value::Unknown, _) | (_, Value::Unknown) => Value::Unknown,
        (Value::Absent, one) | (one, Value::Absent) => one,
        (local, remote) => Value::List(event.arena.alloc([local, remote])),
    }
}

fn port_text<'a>(event: &Event<'a>, which: End) -> Value<'a> {
    match end(event, which, port) {
        Value::Uint(port) => shown(event.arena, port),
        other => other,
    }
}

fn transport<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let Some(socket) = ip_socket(event) else {
        return no_socket(event);
    };
    known(socket.transport, |transport| match transport {
        Transport::Tcp => Value::text("tcp"),
        Transport::Udp => Value::text("udp"),
        Transport::Icmp => Value::text("icmp"),
        Transport::Raw => Value::text("raw"),
        Transport::Unknown => Value::Absent,
    })
}

fn family<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let Some(descriptor) = event.descriptor else {
        return Value::Absent;
    };
    known(descriptor.kind, |kind| match kind {
        DescriptorKind::Ipv4 | DescriptorKind::Ipv6 => Value::text("ip"),
        DescriptorKind::Unix => Value::text("unix"),
        _ => Value::Absent,
    })
}

fn is_server<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let Some(descriptor) = event.descriptor else {
        return Value::Absent;
    };
    known(descriptor.kind, |_| match descriptor.socket {
        Some(socket) => Value::Bool(socket.role == Role::Server),
        None => Value::Bool(false),
    })
}

fn flag<'a>(event: &Event<'a>, which: fn(&Socket<'_>) -> Known<bool>) -> Value<'a> {
    match event.descriptor {
        None => Value::Absent,
        Some(Descriptor {
            kind: Known::NotYet | Known::Unread,
            ..
        }) => Value::Unknown,
        Some(Descriptor { socket: None, .. }) => Value::Bool(false),
        Some(Descriptor {
            socket: Some(socket),
            ..
        }) => known(which(&socket), Value::Bool),
    }
}

fn device<'a>(event: &Event<'a>, part: fn(u64) -> u64) -> Value<'a> {
    let Some(descriptor) = event.descriptor else {
        return Value::Absent;
    };
    known(descriptor.device, |device| {
        i64::try_from(part(device)).map_or(Value::Absent, Value::Int)
    })
}

/// Returns the major number of `dev_t` as the C library packs it (gnu_dev_major): 12 bits from bit 8, the
/// rest from bit 32.
fn major(device: u64) -> u64 {
    (device >> 8) & 0xfff | (device >> 32) & 0xffff_f000
}

/// Returns the minor number of `dev_t` (gnu_dev_minor): 8 bits from bit 0, the rest from bit 12.
fn minor(device: u64) -> u64 {
    device & 0xff | (device >> 12) & 0xffff_ff00
}

fn inode<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let Some(descriptor) = event.descriptor else {
        return Value::Absent;
    };
    known(descriptor.inode, |inode| {
        i64::try_from(inode).map_or(Value::Absent, Value::Int)
    })
}

fn types<'a>(event: &Event<'a>, argument: &Argument) -> Value<'a> {
    if let Some(index) = argument.index() {
        return i32::try_from(index).map_or(Value::Absent, |number| type_of(event, number));
    }
    let numbers = match event.open_descriptors() {
        Lookup::Found(numbers) => numbers,
        Lookup::Missing => return Value::Absent,
        Lookup::Unknown => return Value::Unknown,
    };
    let mut types = bumpalo::collections::Vec::new_in(event.arena);
    for number in numbers {
        match type_of(event, *number) {
            Value::Unknown => return Value::Unknown,
            value if value != Value::Absent && !types.contains(&value) => types.push(value),
            _ => {}
        }
    }
    Value::List(types.into_bump_slice())
}

/// Returns `fd.type` of an open descriptor of the process.
pub(super) fn type_of<'a>(event: &Event<'a>, number: i32) -> Value<'a> {
    match event.descriptor_type(number) {
        Lookup::Found(kind) => word(kind),
        Lookup::Missing => Value::Absent,
        Lookup::Unknown => Value::Unknown,
    }
}

/// Returns `fd.name` of an open descriptor of the process.
pub(super) fn name_of<'a>(event: &Event<'a>, number: i32) -> Value<'a> {
    match event.descriptor_name(number) {
        Lookup::Found(name) => Value::Text(name),
        Lookup::Missing => Value::Absent,
        Lookup::Unknown => Value::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_split_as_the_c_library_does() {
        // makedev(8, 1), makedev(259, 3) and makedev(0x12345, 0x67890) of the C library.
        assert_eq!((major(0x801), minor(0x801)), (8, 1));
        assert_eq!((major(0x1_0303), minor(0x1_0303)), (0x103, 3));
        let wide = 0x0001_2000_6783_4590;
        assert_eq!((major(wide), minor(wide)), (0x12345, 0x67890));
    }
}
