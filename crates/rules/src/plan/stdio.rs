//! Rules about a `dup` that creates descriptor 0, 1 or 2, and the calls to watch instead of it.

use abi::constant::{F_SETFD, O_CLOEXEC};
use abi::{RegisterTest, Syscall, TestOp, TrappedCall};
use bumpalo::Bump;
use event::field::{DescriptorFact, Field, Source};
use event::{
    Descriptor, DescriptorKind, DescriptorSource, Event, EventKind, Known, LiveProcess, Name,
    NoSystemInfo, Stage, StdioWatch, Value,
};

use super::register;
use crate::compile::Ternary;
use crate::compile::atom::{Atom, Check};
use crate::compile::fact::{blank_event, blank_process};
use crate::compile::program::{Entry, Node, NodeId, Program};
use crate::compile::test::Context;

const FREED: &str = "a standard descriptor may be closed and reused by dup";
const FIRST_IS_STANDARD: RegisterTest = RegisterTest::low(0, TestOp::Le, 2);
const FD_CLOEXEC: u64 = 1;
/// ioctl_fioclex(2const); the same on x86-64 and aarch64.
const FIOCLEX: u64 = 0x5451;

const CLOSES_ON_EXEC: &[&[RegisterTest]] = &[&[
    FIRST_IS_STANDARD,
    RegisterTest::low(1, TestOp::Eq, F_SETFD.u64()),
    RegisterTest::low(2, TestOp::AllBits, FD_CLOEXEC),
]];

/// `socket` and `socketpair` by their numbers in `socketcall` (linux/net.h).
const SOCKETCALL_MAKES: &[&[RegisterTest]] = &[
    &[RegisterTest::low(0, TestOp::Eq, 1)],
    &[RegisterTest::low(0, TestOp::Eq, 8)],
];

/// Calls that close a standard descriptor, now or at the next exec.
pub(super) const CLOSING: &[TrappedCall] = &[
    trap(Syscall::CLOSE, &[&[FIRST_IS_STANDARD]], FREED),
    trap(Syscall::CLOSE_RANGE, &[&[FIRST_IS_STANDARD]], FREED),
    trap(
        Syscall::DUP3,
        &[
            &[
                RegisterTest::low(1, TestOp::Eq, 0),
                RegisterTest::low(2, TestOp::AllBits, O_CLOEXEC.u64()),
            ],
            &[
                RegisterTest::low(1, TestOp::Eq, 1),
                RegisterTest::low(2, TestOp::AllBits, O_CLOEXEC.u64()),
            ],
            &[
                RegisterTest::low(1, TestOp::Eq, 2),
                RegisterTest::low(2, TestOp::AllBits, O_CLOEXEC.u64()),
            ],
        ],
        FREED,
    ),
    trap(Syscall::FCNTL, CLOSES_ON_EXEC, FREED),
    trap(Syscall::FCNTL64, CLOSES_ON_EXEC, FREED),
    trap(
        Syscall::IOCTL,
        &[&[FIRST_IS_STANDARD, RegisterTest::low(1, TestOp::Eq, FIOCLEX)]],
        FREED,
    ),
];

const fn trap(
    call: Syscall,
    any_of: &'static [&'static [RegisterTest]],
    reason: &'static str,
) -> TrappedCall {
    TrappedCall {
        call,
        any_of,
        reason,
    }
}

const SOCKET: &str = "a process that has a standard descriptor closed may put a socket there";

/// Calls that create the first socket of a process. A process can also accept one, which takes another
/// socket, or receive one from another process by a call that is always trapped.
pub(super) const SOCKETS: &[TrappedCall] = &[
    trap(Syscall::SOCKET, &[], SOCKET),
    trap(Syscall::SOCKETPAIR, &[], SOCKET),
    trap(Syscall::SOCKETCALL, SOCKETCALL_MAKES, SOCKET),
];

/// Returns the watch to use instead of `dup` for a rule on it that can match only if the new descriptor is 0,
/// 1 or 2.
pub(super) fn watch(program: &Program, entry: &Entry, kind: EventKind) -> Option<StdioWatch> {
    let duplicates = matches!(kind.spec().descriptor, DescriptorSource::Duplicated(_));
    let root = entry.root.filter(|_| duplicates)?;
    if !makes_stdio(program, root, kind) {
        return None;
    }
    let matches_without_socket = NO_SOCKETS
        .iter()
        .any(|descriptor| holds_for(program, root, kind, *descriptor) != Ternary::False);
    Some(if matches_without_socket {
        StdioWatch::Any
    } else {
        StdioWatch::Sockets
    })
}

fn makes_stdio(program: &Program, id: NodeId, kind: EventKind) -> bool {
    match program.node(id) {
        Node::Literal { atom, negated } => {
            let atom = program.atoms.get(atom);
            let field = program.operands.as_field(atom.key.operand);
            register::is_stdio(atom, field, negated, kind)
        }
        Node::All { children, .. } => program
            .children(children)
            .iter()
            .any(|child| makes_stdio(program, *child, kind)),
        Node::Any { children, .. } => program
            .children(children)
            .iter()
            .all(|child| makes_stdio(program, *child, kind)),
    }
}

/// Kinds of a duplicated descriptor that is not a socket. The last entry stands for an unavailable kind.
const NO_SOCKETS: &[Known<DescriptorKind>] = &[
    Known::Yes(DescriptorKind::File),
    Known::Yes(DescriptorKind::Directory),
    Known::Yes(DescriptorKind::Pipe),
    Known::Yes(DescriptorKind::Event),
    Known::Yes(DescriptorKind::EventPoll),
    Known::Yes(DescriptorKind::Signal),
    Known::Yes(DescriptorKind::Timer),
    Known::Yes(DescriptorKind::Inotify),
    Known::Yes(DescriptorKind::Memfd),
    Known::Yes(DescriptorKind::Pidfd),
    Known::Yes(DescriptorKind::Userfault),
    Known::Yes(DescriptorKind::IoUring),
    Known::Yes(DescriptorKind::Bpf),
    Known::Yes(DescriptorKind::Other),
    Known::Never,
];

/// Returns whether a condition holds if only the kind of the descriptor is known.
fn holds_for(
    program: &Program,
    id: NodeId,
    kind: EventKind,
    descriptor: Known<DescriptorKind>,
) -> Ternary {
    match program.node(id) {
        Node::Literal { atom, negated } => {
            let atom = program.atoms.get(atom);
            let field = program.operands.as_field(atom.key.operand);
            let truth = field.map_or(Ternary::Unknown, |field| {
                decide(atom, field, kind, descriptor)
            });
            if negated { !truth } else { truth }
        }
        Node::All { children, .. } => program
            .children(children)
            .iter()
            .map(|child| holds_for(program, *child, kind, descriptor))
            .fold(Ternary::True, Ternary::and),
        Node::Any { children, .. } => program
            .children(children)
            .iter()
            .map(|child| holds_for(program, *child, kind, descriptor))
            .fold(Ternary::False, Ternary::or),
    }
}

fn decide(
    atom: &Atom,
    field: &Field,
    kind: EventKind,
    descriptor: Known<DescriptorKind>,
) -> Ternary {
    let Source::Descriptor(fact) = field.depends_on() else {
        return Ternary::Unknown;
    };
    let Check::Test(_) = atom.check else {
        return Ternary::Unknown;
    };
    // The other facts differ between descriptors of one kind.
    let follows_from_kind = match fact {
        DescriptorFact::Kind
        | DescriptorFact::TypeChar
        | DescriptorFact::Transport
        | DescriptorFact::ServerEnd
        | DescriptorFact::ClientEnd
        | DescriptorFact::LocalEnd
        | DescriptorFact::RemoteEnd
        | DescriptorFact::BothEnds
        | DescriptorFact::State => true,
        DescriptorFact::Number
        | DescriptorFact::Name
        | DescriptorFact::FileName
        | DescriptorFact::Inode => false,
    };
    if !follows_from_kind {
        return Ternary::Unknown;
    }
    let arena = Bump::new();
    let (process, live) = (blank_process(), LiveProcess::default());
    let event = Event {
        stage: Stage::Exit,
        descriptor: Some(Descriptor {
            number: Known::NotYet,
            kind: descriptor,
            name: Name::None,
            socket: None,
            device: Known::NotYet,
            inode: Known::NotYet,
        }),
        ..blank_event(kind, &process, &live, &arena)
    };
    let context = Context {
        world: &NoSystemInfo,
        arena: &arena,
    };
    atom.decide(&field.extract(&event), &Value::Absent, context)
}
