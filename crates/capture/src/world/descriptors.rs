//! Open descriptors of a thread, as rules name them.

use bumpalo::Bump;
use bumpalo::collections::Vec;
use event::field::connection_name;
use event::{DescriptorKind, Known, Lookup, Name, Tid};

use crate::deadline::Deadline;
use crate::procfs::{Proc, ProcError};
use crate::sockets::{self, ResolvedDescriptor};

/// Most descriptors that are listed; a process with more tells by the first ones what it is.
const LIMIT: usize = 4096;

/// Numbers of the open descriptors. The list is made from kernel memory.
pub(super) fn numbers<'a>(proc: &Proc, tid: Tid, arena: &'a Bump) -> Lookup<&'a [i32]> {
    let Ok(numbers) = proc.numbers(&format!("{}/fd", tid.0)) else {
        return Lookup::Unknown;
    };
    Lookup::Found(Vec::from_iter_in(numbers.take(LIMIT), arena).into_bump_slice())
}

/// Name of an open descriptor: a path, or the ends of a connection as in `fd.name`.
pub(super) fn name<'a>(
    proc: &Proc,
    tid: Tid,
    number: i32,
    deadline: &Deadline,
    arena: &'a Bump,
) -> Lookup<&'a [u8]> {
    let found = proc
        .status(tid.0)
        .and_then(|status| sockets::resolve(proc, status.tgid, tid.0, number, deadline));
    let found = match found {
        Ok(found) => found,
        // The thread, which waits for an answer, is there; so it is the descriptor that is not.
        Err(ProcError::Gone { file: "fd", .. }) => return Lookup::Missing,
        Err(_) => return Lookup::Unknown,
    };
    found.name_in(arena)
}

impl ResolvedDescriptor {
    /// The name in this form.
    pub(crate) fn name_in<'a>(&self, arena: &'a Bump) -> Lookup<&'a [u8]> {
        let descriptor = self.as_descriptor(0);
        let name = match (descriptor.kind, descriptor.socket, descriptor.name) {
            (Known::Yes(DescriptorKind::Ipv4 | DescriptorKind::Ipv6), Some(socket), _) => {
                return connection_name(&socket, arena).map_or(Lookup::Unknown, Lookup::Found);
            }
            (Known::Yes(DescriptorKind::Unix), Some(socket), _) => {
                // A socket that was not bound has the empty name.
                &*arena.alloc_slice_copy(socket.unix_path.unwrap_or_default())
            }
            (Known::NotYet | Known::Unread, ..) => return Lookup::Unknown,
            (_, _, Name::Resolved(path)) => &*arena.alloc_slice_copy(path),
            _ => return Lookup::Missing,
        };
        Lookup::Found(name)
    }
}
