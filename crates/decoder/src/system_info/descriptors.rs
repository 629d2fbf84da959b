//! Open descriptors of a thread.

use bumpalo::Bump;
use bumpalo::collections::Vec;
use event::{Lookup, Tid};

use process_info::deadline::Deadline;
use process_info::procfs::{Proc, ProcError};
use process_info::sockets;

/// Maximum number of descriptors listed; for a process with more, rules see the first ones.
const LIMIT: usize = 4096;

/// Returns the numbers of the open descriptors. The kernel makes the list from its own memory.
pub(super) fn numbers<'a>(proc: &Proc, tid: Tid, arena: &'a Bump) -> Lookup<&'a [i32]> {
    let Ok(numbers) = proc.numbers(&format!("{}/fd", tid.0)) else {
        return Lookup::Unknown;
    };
    Lookup::Found(Vec::from_iter_in(numbers.take(LIMIT), arena).into_bump_slice())
}

/// Returns the name of an open descriptor: a path, or the ends of a connection as in `fd.name`.
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
        // The thread waits for an answer, so it exists and the descriptor does not.
        Err(ProcError::Gone { file: "fd", .. }) => return Lookup::Missing,
        Err(_) => return Lookup::Unknown,
    };
    found.name_in(arena)
}
