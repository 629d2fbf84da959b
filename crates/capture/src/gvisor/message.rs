//! Datagrams of the sink: a header, and a message about a task.

use event::Comm;

use super::wire::{Fields, Malformed, Value};

/// Size of the header in this version, in bytes; a later one may be longer.
const HEADER: usize = 8;

/// Type of a message, by its number in gVisor's `MessageType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first program of a container was started.
    ContainerStart,
    /// A task was created.
    Clone,
    /// A program was executed.
    Execve,
    /// A process has ended and its parent is notified.
    ExitNotifyParent,
    /// A task has ended.
    TaskExit,
    /// A file was mapped into memory.
    MmapInfo,
    /// A call, with its registers only.
    RawSyscall,
    /// A call with its arguments.
    Syscall,
}

impl Kind {
    fn of(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::ContainerStart,
            2 => Self::Clone,
            3 => Self::Execve,
            4 => Self::ExitNotifyParent,
            5 => Self::TaskExit,
            6 => Self::RawSyscall,
            35 => Self::MmapInfo,
            7..=34 | 36..=38 => Self::Syscall,
            _ => return None,
        })
    }

    /// Returns whether field 2 is the call's exit, and not a value of the message's own.
    fn has_exit(self) -> bool {
        matches!(self, Self::RawSyscall | Self::Syscall)
    }
}

/// Header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Type of the message; `None` if it is unknown.
    pub(super) kind: Option<Kind>,
    /// Number of messages that this sandbox has lost so far; it wraps.
    pub(super) dropped: u32,
}

/// Splits a datagram into header and message.
pub(super) fn split(datagram: &[u8]) -> Result<(Header, &[u8]), Malformed> {
    let (header, _) = datagram.split_first_chunk::<HEADER>().ok_or(Malformed)?;
    let [size_low, size_high, kind_low, kind_high, dropped @ ..] = *header;
    let size = usize::from(u16::from_ne_bytes([size_low, size_high]));
    if size < HEADER {
        return Err(Malformed);
    }
    let payload = datagram.get(size..).ok_or(Malformed)?;
    let kind = Kind::of(u16::from_ne_bytes([kind_low, kind_high]));
    let dropped = u32::from_ne_bytes(dropped);
    Ok((Header { kind, dropped }, payload))
}

/// The task that caused the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Context<'m> {
    pub(super) time_ns: u64,
    pub(super) tid: i32,
    pub(super) pid: i32,
    pub(super) start_ns: u64,
    pub(super) container: &'m [u8],
    /// Effective user and group ids.
    pub(super) credentials: Option<(u32, u32)>,
    pub(super) cwd: &'m [u8],
    pub(super) name: &'m [u8],
    pub(super) parent: i32,
}

impl Context<'_> {
    pub(super) fn comm(&self) -> Comm {
        Comm::new(self.name)
    }
}

/// Parsed message.
#[derive(Clone, Debug)]
pub(super) struct Message<'m> {
    pub(super) context: Context<'m>,
    /// Result of the call: a value, or a negative error number. `None` at its entry.
    pub(super) result: Option<i64>,
    fields: Fields<'m>,
}

impl<'m> Message<'m> {
    /// Parses a whole message, so that later reads of its fields succeed.
    pub(super) fn parse(kind: Kind, payload: &'m [u8]) -> Result<Self, Malformed> {
        let fields = Fields::of(payload);
        let (mut context, mut result) = (Context::default(), None);
        for field in fields {
            match field? {
                (1, Value::Bytes(bytes)) => context = read_context(bytes)?,
                (2, Value::Bytes(bytes)) if kind.has_exit() => result = Some(read_exit(bytes)?),
                _ => {}
            }
        }
        Ok(Self {
            context,
            result,
            fields,
        })
    }

    fn values(&self, number: u32) -> impl Iterator<Item = Value<'m>> + use<'m> {
        let found = self.fields.filter_map(Result::ok);
        found.filter_map(move |(field, value)| (field == number).then_some(value))
    }

    /// Returns a number; zero is not sent.
    pub(super) fn number(&self, number: u32) -> u64 {
        let values = self.values(number);
        let numbers = values.filter_map(|value| match value {
            Value::Number(number) => Some(number),
            Value::Bytes(_) => None,
        });
        // The last occurrence counts, as the format demands.
        numbers.last().unwrap_or(0)
    }

    /// Returns a text; an empty text is not sent.
    pub(super) fn text(&self, number: u32) -> &'m [u8] {
        self.texts(number).last().unwrap_or_default()
    }

    /// Returns a list of texts.
    pub(super) fn texts(&self, number: u32) -> impl Iterator<Item = &'m [u8]> + use<'m> {
        self.values(number).filter_map(|value| match value {
            Value::Bytes(bytes) => Some(bytes),
            Value::Number(_) => None,
        })
    }
}

/// Returns a number of 32 bits, which is sent sign-extended.
pub(super) fn small(number: u64) -> i32 {
    abi::argument::low_signed(number)
}

fn read_context(bytes: &[u8]) -> Result<Context<'_>, Malformed> {
    let mut context = Context::default();
    for field in Fields::of(bytes) {
        match field? {
            (1, Value::Number(number)) => context.time_ns = number,
            (2, Value::Number(number)) => context.tid = small(number),
            (4, Value::Number(number)) => context.pid = small(number),
            (5, Value::Number(number)) => context.start_ns = number,
            (6, Value::Bytes(bytes)) => context.container = bytes,
            (7, Value::Bytes(bytes)) => context.credentials = Some(read_credentials(bytes)?),
            (8, Value::Bytes(bytes)) => context.cwd = bytes,
            (9, Value::Bytes(bytes)) => context.name = bytes,
            (10, Value::Number(number)) => context.parent = small(number),
            _ => {}
        }
    }
    Ok(context)
}

fn read_credentials(bytes: &[u8]) -> Result<(u32, u32), Malformed> {
    let (mut user, mut group) = (0, 0);
    for field in Fields::of(bytes) {
        match field? {
            (2, Value::Number(number)) => user = small(number).cast_unsigned(),
            (5, Value::Number(number)) => group = small(number).cast_unsigned(),
            _ => {}
        }
    }
    Ok((user, group))
}

fn read_exit(bytes: &[u8]) -> Result<i64, Malformed> {
    let (mut result, mut errno) = (0, 0);
    for field in Fields::of(bytes) {
        match field? {
            (1, Value::Number(number)) => result = number.cast_signed(),
            (2, Value::Number(number)) => errno = number.cast_signed(),
            _ => {}
        }
    }
    Ok(match errno {
        0 => result,
        1..=4095 => -errno,
        // No error has such a number.
        _ => return Err(Malformed),
    })
}

/// Builders of messages for tests.
#[cfg(test)]
pub(super) mod testing {
    use super::super::wire::testing::{bytes, number};

    /// Builds a datagram of this type, about process 7 of container `box`, whose other fields `fill` writes.
    pub(in crate::gvisor) fn datagram(kind: u16, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut context = Vec::new();
        for (field, value) in [(1, 1_000), (2, 8), (4, 7), (5, 500), (10, 1)] {
            number(&mut context, field, value);
        }
        bytes(&mut context, 6, b"box");
        let mut credentials = Vec::new();
        number(&mut credentials, 2, 1000);
        bytes(&mut context, 7, &credentials);
        bytes(&mut context, 8, b"/home");
        bytes(&mut context, 9, b"worker");
        let mut datagram = Vec::new();
        datagram.extend(8_u16.to_ne_bytes());
        datagram.extend(kind.to_ne_bytes());
        datagram.extend(3_u32.to_ne_bytes());
        bytes(&mut datagram, 1, &context);
        fill(&mut datagram);
        datagram
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::testing::{bytes, number};
    use super::testing::datagram;
    use super::*;

    #[test]
    fn an_open_says_who_and_what() {
        let datagram = datagram(7, |out| {
            let mut exit = Vec::new();
            number(&mut exit, 2, 2);
            bytes(out, 2, &exit);
            number(out, 3, 257);
            number(out, 4, (-100_i64).cast_unsigned());
            bytes(out, 6, b"/etc/shadow");
        });
        let (header, payload) = split(&datagram).unwrap();
        assert_eq!((header.kind, header.dropped), (Some(Kind::Syscall), 3));
        let message = Message::parse(Kind::Syscall, payload).unwrap();
        assert_eq!(message.result, Some(-2));
        assert_eq!((message.number(3), small(message.number(4))), (257, -100));
        assert_eq!(message.text(6), b"/etc/shadow");
        let context = message.context;
        assert_eq!((context.pid, context.tid, context.parent), (7, 8, 1));
        assert_eq!(context.credentials, Some((1000, 0)));
        assert_eq!((context.cwd, context.name), (&b"/home"[..], &b"worker"[..]));
    }

    #[test]
    fn a_program_has_its_path_where_calls_have_their_end() {
        let datagram = datagram(3, |out| {
            bytes(out, 2, b"/bin/busybox");
            bytes(out, 3, b"cat");
            bytes(out, 3, b"");
        });
        let (_, payload) = split(&datagram).unwrap();
        let message = Message::parse(Kind::Execve, payload).unwrap();
        assert_eq!(
            (message.result, message.text(2)),
            (None, &b"/bin/busybox"[..])
        );
        assert_eq!(message.texts(3).collect::<Vec<_>>(), [&b"cat"[..], b""]);
    }

    #[test]
    fn a_longer_header_is_skipped_and_a_wrong_one_refused() {
        let mut longer = 12_u16.to_ne_bytes().to_vec();
        longer.extend(5_u16.to_ne_bytes());
        longer.extend([0; 8]);
        let (header, payload) = split(&longer).unwrap();
        assert_eq!((header.kind, payload), (Some(Kind::TaskExit), &[][..]));
        longer[0] = 4;
        assert_eq!(split(&longer), Err(Malformed));
        longer[0] = 200;
        assert_eq!(split(&longer), Err(Malformed));
        assert_eq!(split(&longer[..7]), Err(Malformed));
        longer[0] = 8;
        longer[2] = 99;
        assert_eq!(split(&longer).unwrap().0.kind, None);
    }

    #[test]
    fn an_error_that_is_none_makes_a_message_malformed() {
        let datagram = datagram(7, |out| {
            let mut exit = Vec::new();
            number(&mut exit, 2, u64::MAX);
            bytes(out, 2, &exit);
        });
        let (_, payload) = split(&datagram).unwrap();
        assert!(Message::parse(Kind::Syscall, payload).is_err());
    }
}
