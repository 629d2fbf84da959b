//! Rules on the permissions that files are given.

use abi::{Errno, RegisterTest, Syscall, TestOp};

use super::{Action, CallRule, refused};
use crate::policy::Rule;

/// `O_CREAT`, and the bit that distinguishes `O_TMPFILE` (include/uapi/asm-generic/fcntl.h).
const CREATES: u64 = 0o100 | 0o20_000_000;

/// Calls that set the permissions of a file: the index of the argument with the mode, and the index of the
/// flags that make it effective. Together with openat2, whose flags are in memory, they are the class `mode`
/// of data/classes.txt. mkdir(2) is not among them: the kernel clears the set-user-ID and set-group-ID bits,
/// and a directory is not executed.
const MODE_CALLS: [(Syscall, u8, Option<u8>); 10] = [
    (Syscall::CHMOD, 1, None),
    (Syscall::FCHMOD, 1, None),
    (Syscall::FCHMODAT, 2, None),
    (Syscall::FCHMODAT2, 2, None),
    (Syscall::CREAT, 1, None),
    (Syscall::OPEN, 2, Some(1)),
    (Syscall::OPENAT, 3, Some(2)),
    (Syscall::MKNOD, 1, None),
    (Syscall::MKNODAT, 2, None),
    (Syscall::MQ_OPEN, 2, Some(1)),
];

/// Lowers a rule on permission bits.
pub(super) fn lower(rule: &Rule, bits: u32) -> Vec<CallRule> {
    let mut rules: Vec<CallRule> = MODE_CALLS
        .into_iter()
        .filter_map(|(call, mode, flags)| {
            let creates = flags.map(|flags| RegisterTest::low(flags, TestOp::AnyBit, CREATES));
            let mode = RegisterTest::low(mode, TestOp::AnyBit, u64::from(bits));
            let when = creates.into_iter().chain([mode]).collect();
            refused(rule, call, when, Errno::EPERM)
        })
        .collect();
    if rule.verdict.denies() {
        // The flags and mode of openat2 are in memory; callers fall back to openat.
        rules.push(CallRule {
            rule: rule.id.clone(),
            call: Syscall::OPENAT2,
            when: Vec::new(),
            action: Action::Refuse(Errno::ENOSYS),
        });
    }
    rules
}
