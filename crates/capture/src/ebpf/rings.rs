//! Operations of io_uring, by the calls that do the same (include/uapi/linux/io_uring.h).

use abi::{Arch, Syscall};

/// `RING_OPERATIONS` of bpf/record.h.
const OPERATIONS: usize = 256;

/// By number: the operation's name, and the call that stands for it in rules.
const CALLS: [(usize, &str, Syscall); 27] = [
    (9, "sendmsg", Syscall::SENDMSG),
    (10, "recvmsg", Syscall::RECVMSG),
    (13, "accept", Syscall::ACCEPT4),
    (16, "connect", Syscall::CONNECT),
    (17, "fallocate", Syscall::FALLOCATE),
    (18, "openat", Syscall::OPENAT),
    (21, "statx", Syscall::STATX),
    (22, "read", Syscall::READ),
    (23, "write", Syscall::WRITE),
    (26, "send", Syscall::SENDTO),
    (27, "recv", Syscall::RECVFROM),
    // The same event as the other.
    (28, "openat2", Syscall::OPENAT),
    (30, "splice", Syscall::SPLICE),
    (33, "tee", Syscall::TEE),
    (34, "shutdown", Syscall::SHUTDOWN),
    (35, "renameat", Syscall::RENAMEAT2),
    (36, "unlinkat", Syscall::UNLINKAT),
    (37, "mkdirat", Syscall::MKDIRAT),
    (38, "symlinkat", Syscall::SYMLINKAT),
    (39, "linkat", Syscall::LINKAT),
    (41, "fsetxattr", Syscall::FSETXATTR),
    (42, "setxattr", Syscall::SETXATTR),
    (45, "socket", Syscall::SOCKET),
    (53, "send_zc", Syscall::SENDTO),
    (55, "ftruncate", Syscall::FTRUNCATE),
    (56, "bind", Syscall::BIND),
    (57, "listen", Syscall::LISTEN),
];

/// The name of an operation.
pub(super) fn name(operation: u32) -> &'static str {
    let named = CALLS
        .iter()
        .find(|(number, ..)| u32::try_from(*number) == Ok(operation));
    named.map_or("another", |(_, name, _)| name)
}

/// The calls by operation, as the programs read them: one more than the number, 0 where there is none.
pub(super) fn calls() -> Vec<u8> {
    let arch = Arch::native().unwrap_or(Arch::X86_64);
    let mut numbers = [0_u16; OPERATIONS];
    for (operation, _, call) in CALLS {
        // Such calls have numbers on every architecture, and small ones.
        let number = call.number(arch).and_then(|number| number.try_into().ok());
        numbers[operation] = number.map_or(0, |number: u16| number + 1);
    }
    numbers.into_iter().flat_map(u16::to_ne_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_call_of_this_machine() {
        let calls = calls();
        for (operation, name, call) in CALLS {
            let number = u16::from_ne_bytes([calls[2 * operation], calls[2 * operation + 1]]);
            let native = Arch::native().expect("the tests' machine has calls");
            let expected = call.number(native).map(|number| number + 1);
            assert_eq!(Some(u32::from(number)), expected, "{name}");
        }
    }
}
