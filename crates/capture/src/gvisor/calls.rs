//! Table that maps the fields of messages to the arguments of calls.

use abi::Errno;
use abi::Syscall as S;

use super::message::{Kind, Message};
use process_info::memory::CapturedMemory;

/// Target of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldTarget {
    /// The value of this argument.
    Argument(usize),
    /// A string that this argument points to.
    Text(usize),
    /// Strings that this argument points to.
    Texts(usize),
    /// A socket address that this argument points to; the next argument is its length.
    Address(usize),
}

use FieldTarget::{Address, Argument, Text, Texts};

/// Layout of a call: its fields, and the field with the path of its descriptor.
struct Layout {
    call: S,
    fields: &'static [(u32, FieldTarget)],
    /// The argument that is a descriptor, and the field with its path.
    path: Option<(usize, u32)>,
}

const fn layout(
    call: S,
    fields: &'static [(u32, FieldTarget)],
    path: Option<(usize, u32)>,
) -> Layout {
    Layout { call, fields, path }
}

/// Layout of calls on a descriptor: it is the first argument, and field 5 has its path.
const FIRST: Option<(usize, u32)> = Some((0, 5));

/// Calls that gVisor reports with their arguments.
const LAYOUTS: &[Layout] = &[
    layout(S::ACCEPT, &[(4, Argument(0))], FIRST),
    layout(S::ACCEPT4, &[(4, Argument(0)), (7, Argument(3))], FIRST),
    layout(S::BIND, &[(4, Argument(0)), (6, Address(1))], FIRST),
    layout(S::CHDIR, &[(6, Text(0))], None),
    layout(S::CHROOT, &[(4, Text(0))], None),
    layout(S::CLONE, &[(4, Argument(0)), (5, Argument(1))], None),
    layout(S::CLOSE, &[(4, Argument(0))], FIRST),
    layout(S::CONNECT, &[(4, Argument(0)), (6, Address(1))], FIRST),
    layout(S::CREAT, &[(6, Text(0)), (8, Argument(1))], None),
    layout(S::DUP, &[(4, Argument(0))], Some((0, 6))),
    layout(S::DUP2, &[(4, Argument(0)), (5, Argument(1))], Some((0, 6))),
    layout(
        S::DUP3,
        &[(4, Argument(0)), (5, Argument(1)), (7, Argument(2))],
        Some((0, 6)),
    ),
    layout(S::EVENTFD, &[(4, Argument(0))], None),
    layout(S::EVENTFD2, &[(4, Argument(0)), (5, Argument(1))], None),
    layout(
        S::EXECVE,
        &[(6, Text(0)), (7, Texts(1)), (8, Texts(2))],
        None,
    ),
    layout(
        S::EXECVEAT,
        &[
            (4, Argument(0)),
            (6, Text(1)),
            (7, Texts(2)),
            (8, Texts(3)),
            (9, Argument(4)),
        ],
        FIRST,
    ),
    layout(S::FCHDIR, &[(4, Argument(0))], FIRST),
    layout(
        S::FCNTL,
        &[(4, Argument(0)), (6, Argument(1)), (7, Argument(2))],
        FIRST,
    ),
    layout(S::FORK, &[], None),
    layout(
        S::INOTIFY_ADD_WATCH,
        &[(4, Argument(0)), (6, Text(1)), (7, Argument(2))],
        FIRST,
    ),
    layout(S::INOTIFY_INIT, &[], None),
    layout(S::INOTIFY_INIT1, &[(4, Argument(0))], None),
    layout(
        S::INOTIFY_RM_WATCH,
        &[(4, Argument(0)), (6, Argument(1))],
        FIRST,
    ),
    layout(S::LISTEN, &[(4, Argument(0)), (6, Argument(1))], FIRST),
    layout(
        S::MMAP,
        &[
            (6, Argument(0)),
            (7, Argument(1)),
            (8, Argument(2)),
            (9, Argument(3)),
            (4, Argument(4)),
            (10, Argument(5)),
        ],
        Some((4, 5)),
    ),
    layout(
        S::OPEN,
        &[(6, Text(0)), (7, Argument(1)), (8, Argument(2))],
        None,
    ),
    layout(
        S::OPENAT,
        &[
            (4, Argument(0)),
            (6, Text(1)),
            (7, Argument(2)),
            (8, Argument(3)),
        ],
        FIRST,
    ),
    layout(S::PIPE, &[], None),
    layout(S::PIPE2, &[(4, Argument(1))], None),
    layout(
        S::PREAD64,
        &[(4, Argument(0)), (6, Argument(2)), (8, Argument(3))],
        FIRST,
    ),
    layout(S::PREADV, &[(4, Argument(0))], FIRST),
    layout(S::PREADV2, &[(4, Argument(0))], FIRST),
    layout(S::PRLIMIT64, &[(4, Argument(0)), (5, Argument(1))], None),
    layout(S::PTRACE, &[(4, Argument(0)), (5, Argument(1))], None),
    layout(
        S::PWRITE64,
        &[(4, Argument(0)), (6, Argument(2)), (8, Argument(3))],
        FIRST,
    ),
    layout(S::PWRITEV, &[(4, Argument(0))], FIRST),
    layout(S::PWRITEV2, &[(4, Argument(0))], FIRST),
    layout(S::READ, &[(4, Argument(0)), (6, Argument(2))], FIRST),
    layout(S::READV, &[(4, Argument(0))], FIRST),
    layout(S::SETGID, &[(4, Argument(0))], None),
    layout(
        S::SETRESGID,
        &[(4, Argument(0)), (5, Argument(1)), (6, Argument(2))],
        None,
    ),
    layout(
        S::SETRESUID,
        &[(4, Argument(0)), (5, Argument(1)), (6, Argument(2))],
        None,
    ),
    layout(S::SETSID, &[], None),
    layout(S::SETUID, &[(4, Argument(0))], None),
    layout(S::SIGNALFD, &[(4, Argument(0))], FIRST),
    layout(S::SIGNALFD4, &[(4, Argument(0)), (7, Argument(3))], FIRST),
    layout(
        S::SOCKET,
        &[(4, Argument(0)), (5, Argument(1)), (6, Argument(2))],
        None,
    ),
    layout(
        S::SOCKETPAIR,
        &[(4, Argument(0)), (5, Argument(1)), (6, Argument(2))],
        None,
    ),
    layout(
        S::TIMERFD_CREATE,
        &[(4, Argument(0)), (5, Argument(1))],
        None,
    ),
    layout(S::TIMERFD_GETTIME, &[(4, Argument(0))], FIRST),
    layout(
        S::TIMERFD_SETTIME,
        &[(4, Argument(0)), (6, Argument(1))],
        FIRST,
    ),
    layout(S::VFORK, &[], None),
    layout(S::WRITE, &[(4, Argument(0)), (6, Argument(2))], FIRST),
    layout(S::WRITEV, &[(4, Argument(0))], FIRST),
];

/// Fields of a call that is reported by its registers alone.
const RAW: [(u32, FieldTarget); 6] = [
    (5, Argument(0)),
    (6, Argument(1)),
    (7, Argument(2)),
    (8, Argument(3)),
    (9, Argument(4)),
    (10, Argument(5)),
];
/// Field with the call's number.
const NUMBER: u32 = 3;
const RAW_NUMBER: u32 = 4;

fn layout_of(call: S) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|layout| layout.call == call)
}

/// Returns whether gVisor reports an argument of a call, or the data it points to.
pub fn tells_argument(call: S, argument: usize) -> bool {
    let Some(layout) = layout_of(call) else {
        // Reported by its registers alone.
        return call
            .args()
            .get(argument)
            .is_some_and(|spec| !spec.is_pointer());
    };
    layout.fields.iter().any(|(_, place)| {
        let (Argument(at) | Text(at) | Texts(at) | Address(at)) = *place;
        at == argument
    })
}

/// Returns whether gVisor reports the call with its arguments, and whether it can report the path of its descriptor.
pub(super) fn is_described(call: S) -> Option<bool> {
    layout_of(call).map(|layout| layout.path.is_some())
}

/// Returns the number of the call that a message is about.
pub(super) fn number(kind: Kind, message: &Message<'_>) -> u64 {
    message.number(if kind == Kind::RawSyscall {
        RAW_NUMBER
    } else {
        NUMBER
    })
}

/// Arguments of a call from a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments<'m> {
    pub(super) registers: [u64; 6],
    /// The descriptor that the call is about, or that its path starts at, with its path.
    pub(super) descriptor: Option<(i32, &'m [u8])>,
}

/// Start of a synthetic address range of the caller: pointers to captured data lead here.
const MEMORY: u64 = 0x1_0000_0000;
const STEP: u64 = 0x100_0000;
/// Synthetic address with no data.
const NOWHERE: u64 = 8;

/// Returns the arguments, with the strings that they point to in `captured`.
pub(super) fn arguments<'m>(
    kind: Kind,
    call: S,
    message: &Message<'m>,
    captured: &mut CapturedMemory,
) -> Arguments<'m> {
    let mut arguments = Arguments::default();
    let described = layout_of(call).filter(|_| kind == Kind::Syscall);
    let fields = described.map_or(&RAW[..], |layout| layout.fields);
    let mut next = MEMORY;
    let mut put = |bytes: &[u8], is_string: bool| {
        let address = next;
        next += STEP;
        captured.add(address, bytes, is_string);
        address
    };
    let registers = &mut arguments.registers;
    for (field, place) in fields {
        match *place {
            Argument(position) => registers[position] = message.number(*field),
            // gVisor reports an unreadable string as an empty one.
            Text(position)
                if message.result == Some(Errno::EFAULT.result())
                    && message.text(*field).is_empty() =>
            {
                registers[position] = NOWHERE;
            }
            Text(position) => registers[position] = put(message.text(*field), true),
            Texts(position) => {
                let texts = message.texts(*field).map(|text| put(text, true));
                let pointers: Vec<u64> = texts.chain([0]).collect();
                let bytes: Vec<u8> = pointers.iter().flat_map(|at| at.to_le_bytes()).collect();
                registers[position] = put(&bytes, false);
            }
            Address(position) => {
                let address = message.text(*field);
                registers[position] = put(address, false);
                registers[position + 1] = address.len() as u64;
            }
        }
    }
    let path = described.and_then(|layout| layout.path);
    arguments.descriptor = path.and_then(|(position, field)| {
        let path = message.text(field);
        let number = super::message::small(arguments.registers[position]);
        (!path.is_empty()).then_some((number, path))
    });
    arguments
}

#[cfg(test)]
mod tests {
    use super::super::message::split;
    use super::super::message::testing::datagram;
    use super::super::wire::testing::{bytes, number as put};
    use super::*;
    use event::Tid;
    use process_info::memory::Memory;

    #[test]
    fn no_call_is_there_twice_and_no_argument_is_set_twice() {
        for (index, layout) in LAYOUTS.iter().enumerate() {
            let name = layout.call.name();
            assert!(
                LAYOUTS[..index]
                    .iter()
                    .all(|other| other.call != layout.call),
                "{name}"
            );
            let mut seen = std::collections::BTreeSet::new();
            for (field, place) in layout.fields {
                let (Argument(at) | Text(at) | Texts(at) | Address(at)) = *place;
                assert!(*field > 3 && seen.insert(at), "{name}: {place:?}");
                assert!(at < layout.call.args().len(), "{name}: {place:?}");
            }
        }
    }

    #[test]
    fn strings_and_addresses_lie_where_the_arguments_point() {
        let datagram = datagram(11, |out| {
            put(out, 3, 322);
            put(out, 4, 5);
            bytes(out, 5, b"/opt");
            bytes(out, 6, b"tool");
            bytes(out, 7, b"tool");
            bytes(out, 7, b"-x");
        });
        let (header, payload) = split(&datagram).unwrap();
        let kind = header.kind.unwrap();
        let message = Message::parse(kind, payload).unwrap();
        assert_eq!(number(kind, &message), 322);
        let memory = Memory::captured();
        let mut found = Arguments::default();
        memory.capture(|captured| found = arguments(kind, S::EXECVEAT, &message, captured));
        let arena = bumpalo::Bump::new();
        assert_eq!(
            memory.text(Tid(1), found.registers[1], &arena).ok(),
            Some(&b"tool"[..])
        );
        let argv = memory.texts(Tid(1), found.registers[2], 8, &arena).ok();
        assert_eq!(argv, Some(&[&b"tool"[..], b"-x"][..]));
        assert_eq!(
            memory.texts(Tid(1), found.registers[3], 8, &arena).ok(),
            Some(&[][..])
        );
        assert_eq!(found.descriptor, Some((5, &b"/opt"[..])));
    }

    #[test]
    fn registers_alone_point_to_memory_that_cannot_be_read() {
        let datagram = datagram(6, |out| {
            put(out, 4, 83);
            put(out, 5, 0x7fff_0000);
            put(out, 6, 0o755);
        });
        let (header, payload) = split(&datagram).unwrap();
        let kind = header.kind.unwrap();
        let message = Message::parse(kind, payload).unwrap();
        assert_eq!(number(kind, &message), 83);
        let memory = Memory::captured();
        let mut found = Arguments::default();
        memory.capture(|captured| found = arguments(kind, S::MKDIR, &message, captured));
        assert_eq!(found.registers[..2], [0x7fff_0000, 0o755]);
        let arena = bumpalo::Bump::new();
        assert!(memory.text(Tid(1), found.registers[0], &arena).is_err());
    }
}
