//! Open descriptors of a thread, as rules name them.

use bumpalo::Bump;
use bumpalo::collections::Vec;
use event::{Lookup, Tid};

use process_info::deadline::Deadline;
use process_info::procfs::{Proc, ProcError};
use process_info::sockets;

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
