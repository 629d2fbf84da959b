//! Effects of events on descriptors: open, connect, duplicate, close.

use std::borrow::Cow;
use std::rc::Rc;

use abi::Errno;
use event::field::{is_plain, normalize};
use event::{DescriptorKind, DescriptorSource, OpenFlags, Param, Role, Transport};

use super::AppliedEvent;
use crate::replay::decode::{self, Address, ConnectionEnds as EventEnds};
use crate::state::State;
use crate::state::descriptor::{Open, SocketEnds, kind_of};

impl AppliedEvent<'_, '_> {
    pub(super) fn open(&self, state: &mut State, process: usize) {
        let DescriptorSource::Opened { name, flags } = self.exit.kind.spec().descriptor else {
            return;
        };
        let (Some(number), Some(raw)) = (self.result, self.text_at(usize::from(name))) else {
            return;
        };
        let flags = self.int_at(usize::from(flags)).unwrap_or_default();
        let kind = OpenFlags(flags.cast_unsigned()).kind();
        let path = self.absolute(state, process, raw);
        let fact = |at: Option<usize>| {
            self.param(at?, |param| match param {
                Param::Uint(fact) => Some(*fact),
                _ => None,
            })
        };
        let [device, inode] = self.exit.file;
        let file = [fact(device), fact(inode).filter(|inode| *inode != 0)];
        state.open_file(process, number, kind, &path, file);
    }

    /// Makes a path absolute lexically, without resolving links.
    fn absolute<'n>(&self, state: &State, process: usize, raw: &'n [u8]) -> Cow<'n, [u8]> {
        if is_plain(raw) {
            return raw.into();
        }
        let arena = bumpalo::Bump::new();
        let held = state.process(process);
        let base = match self.exit.base.and_then(|at| self.int_at(at)) {
            Some(number) if number >= 0 => held
                .descriptors
                .get(number)
                .map(|open| open.name.as_slice()),
            _ => Some(&*held.cwd),
        };
        match base {
            Some(base) if base.first() == Some(&b'/') || raw.first() == Some(&b'/') => {
                normalize(&arena, base, raw).to_vec().into()
            }
            _ => raw.into(),
        }
    }

    pub(super) fn socket(&self, state: &mut State, process: usize) {
        let Some(number) = self.result else { return };
        let domain = self.int("domain").unwrap_or(-1);
        let kind = kind_of_family(domain);
        let mut open = Open::new(kind, b"");
        open.socket = Some(SocketEnds {
            transport: Transport::of(
                self.int("type").unwrap_or(0).cast_unsigned(),
                self.int("proto").unwrap_or(0).cast_unsigned(),
            ),
            ..SocketEnds::NONE
        });
        state.open(process, number, open);
    }

    pub(super) fn connect(&self, state: &mut State, process: usize) {
        let Some(number) = self.number() else { return };
        let established = matches!(self.result, Some(result) if result >= 0 || result == Errno::EINPROGRESS.result());
        self.name_ends(state, process, number, |ends, event| {
            if let EventEnds::Inet {
                source,
                destination,
            } = event
            {
                ends.local = Some(source);
                ends.remote = Some(destination);
                ends.role = Role::Client;
            }
            ends.connected = established;
        });
    }

    pub(super) fn accept(&self, state: &mut State, process: usize) {
        let Some(number) = self.result else { return };
        state.open(
            process,
            number,
            Open {
                kind: None,
                socket: Some(SocketEnds {
                    transport: Transport::Tcp,
                    ..SocketEnds::NONE
                }),
                ..Open::new(DescriptorKind::OtherSocket, b"")
            },
        );
        self.name_ends(state, process, number, |ends, event| {
            if let EventEnds::Inet {
                source,
                destination,
            } = event
            {
                ends.remote = Some(source);
                ends.local = Some(destination);
            }
            ends.role = Role::Server;
            ends.connected = true;
        });
    }

    /// Applies a message between two addresses outside of a connection.
    pub(super) fn exchange(&self, state: &mut State, process: usize, role: Role) {
        let Some(number) = self.number() else { return };
        self.name_ends(state, process, number, |ends, event| {
            let EventEnds::Inet {
                source,
                destination,
            } = event
            else {
                return;
            };
            let (local, remote) = match role {
                Role::Server => (destination, source),
                _ => (source, destination),
            };
            ends.local = Some(local);
            ends.remote = Some(remote);
            if ends.role == Role::Unknown {
                ends.role = role;
            }
        });
    }

    pub(super) fn bind(&self, state: &mut State, process: usize) {
        let (Some(number), Some(bytes)) = (
            self.number(),
            self.exit.address.bytes(self.raw, self.raw_enter),
        ) else {
            return;
        };
        let address = decode::address(bytes);
        let mut open = self.known(state, process, number);
        let ends = open.socket.get_or_insert(SocketEnds::NONE);
        match address {
            Some(Address::Inet(local)) => {
                ends.local = Some(local);
                ends.role = Role::Server;
                open.kind = Some(kind_of(local));
            }
            Some(Address::Unix(path)) => {
                open.kind = Some(DescriptorKind::Unix);
                open.name = path.to_vec();
            }
            None => return,
        }
        state.open(process, number, open);
    }

    /// Adds the ends of a connection to a descriptor.
    fn name_ends(
        &self,
        state: &mut State,
        process: usize,
        number: i64,
        take: impl FnOnce(&mut SocketEnds, EventEnds<'_>),
    ) {
        let bytes = self.exit.ends.bytes(self.raw, self.raw_enter);
        let event = bytes.and_then(decode::ends);
        let Some(event) = event else { return };
        let mut open = self.known(state, process, number);
        match event {
            EventEnds::Inet { destination, .. } => open.kind = Some(kind_of(destination)),
            EventEnds::Unix(path) => {
                open.kind = Some(DescriptorKind::Unix);
                if !path.is_empty() {
                    open.name = path.to_vec();
                }
            }
        }
        take(open.socket.get_or_insert(SocketEnds::NONE), event);
        state.open(process, number, open);
    }

    /// Returns a descriptor for modification.
    fn known(&self, state: &State, process: usize, number: i64) -> Open {
        let known = state.process(process).descriptors.get(number);
        known.map_or_else(
            || Open {
                kind: None,
                ..Open::new(DescriptorKind::Other, b"")
            },
            |open| Open::clone(open),
        )
    }

    pub(super) fn duplicate(&self, state: &mut State, process: usize) {
        if let (Some(from), Some(to)) = (self.number(), self.result) {
            copy(state, process, from, to);
        }
    }

    pub(super) fn fcntl(&self, state: &mut State, process: usize) {
        /// `F_DUPFD`, `F_DUPFD_CLOEXEC`.
        const DUPLICATES: [i64; 2] = [0, 1030];
        if self.int("cmd").is_some_and(|cmd| DUPLICATES.contains(&cmd)) {
            self.duplicate(state, process);
        }
    }

    pub(super) fn create(&self, state: &mut State, process: usize, kind: DescriptorKind) {
        if let Some(number) = self.result {
            let name = match kind {
                DescriptorKind::Memfd => self.text("name").unwrap_or_default(),
                _ => b"",
            };
            state.open(process, number, Open::new(kind, name));
        }
    }

    pub(super) fn pair(&self, state: &mut State, process: usize, kind: DescriptorKind) {
        let inode = self.int("ino").map(i64::cast_unsigned);
        for name in ["fd1", "fd2"] {
            if let Some(number) = self.int(name) {
                let mut open = Open::new(kind, b"");
                open.inode = inode;
                open.socket = (kind == DescriptorKind::Unix).then_some(SocketEnds {
                    connected: true,
                    ..SocketEnds::NONE
                });
                state.open(process, number, open);
            }
        }
    }

    pub(super) fn close_range(&self, state: &mut State, process: usize) {
        /// `CLOSE_RANGE_CLOEXEC`: the call closes nothing.
        const LATER: i64 = 4;
        let flags = self.int("flags").unwrap_or(0);
        let (Some(first), Some(last)) = (self.int("first"), self.int("last")) else {
            return;
        };
        if flags & LATER != 0 {
            return;
        }
        for number in state.process(process).descriptors.numbers() {
            let number = i64::from(number);
            if (first..=last).contains(&number) {
                state.close(process, number);
            }
        }
    }
}

fn copy(state: &mut State, process: usize, from: i64, to: i64) {
    if let Some(open) = state.process(process).descriptors.get(from) {
        let open = Rc::clone(open);
        state.open_shared(process, to, open);
    }
}

fn kind_of_family(family: i64) -> DescriptorKind {
    match family {
        1 => DescriptorKind::Unix,
        2 => DescriptorKind::Ipv4,
        10 => DescriptorKind::Ipv6,
        16 => DescriptorKind::Netlink,
        _ => DescriptorKind::OtherSocket,
    }
}
