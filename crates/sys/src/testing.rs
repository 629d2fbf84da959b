//! Child processes for tests. Test programs have threads, so code in a child must be async-signal-safe:
//! prepare everything before.

use std::os::fd::{FromRawFd, OwnedFd};

use crate::clone::{CloneFlags, clone_child_unchecked};
use crate::seccomp::{self, SockFilter};
use crate::wait::{self, Target};

/// Runs `work` in a child; `Err` contains its error or 128 + signal.
pub(crate) fn in_child(work: impl FnOnce() -> Result<(), i32>) -> Result<(), i32> {
    reap(spawn(work))
}

/// Starts a child that ends with its parent.
pub(crate) fn spawn(work: impl FnOnce() -> Result<(), i32>) -> i32 {
    let body = || {
        if crate::prctl::set_parent_death_signal(libc::SIGKILL).is_err() {
            return 255;
        }
        work().err().unwrap_or(0)
    };
    // SAFETY: the closures of this crate's tests only make calls and touch prepared memory.
    unsafe { clone_child_unchecked(CloneFlags::default(), body) }.expect("a child can be made")
}

/// Waits for the end of a child.
pub(crate) fn reap(pid: i32) -> Result<(), i32> {
    loop {
        match wait::wait(Target::Pid(pid), wait::ALL) {
            Ok(Some((_, status))) if status.is_end() => {
                let code = status.shell_code().expect("it ended");
                return if code == 0 { Ok(()) } else { Err(code) };
            }
            Ok(_) => {}
            Err(error) if error.is(libc::EINTR) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Kills and reaps a child of this test.
pub(crate) fn kill_and_reap(pid: i32) {
    crate::signal::send(pid, libc::SIGKILL).expect("it is our child");
    assert_eq!(reap(pid), Err(128 + libc::SIGKILL));
}

/// Sleeps until a signal ends the process.
pub(crate) fn sleep_for_ever() {
    loop {
        let _ = crate::poll::poll(&mut [], None);
    }
}

/// A filter that returns `action` for one native call and allows the rest.
pub(crate) fn filter_for(nr: libc::c_long, action: u32) -> [SockFilter; 4] {
    let load = seccomp::BPF_LD | seccomp::BPF_W | seccomp::BPF_ABS;
    let equal = seccomp::BPF_JMP | seccomp::BPF_JEQ | seccomp::BPF_K;
    let answer = seccomp::BPF_RET | seccomp::BPF_K;
    [
        SockFilter::stmt(load, seccomp::DATA_NR),
        SockFilter::jump(equal, u32::try_from(nr).expect("numbers are small"), 0, 1),
        SockFilter::stmt(answer, action),
        SockFilter::stmt(answer, seccomp::SECCOMP_RET_ALLOW),
    ]
}

/// Takes ownership of a descriptor that a child with a shared table opened.
pub(crate) fn adopt(number: i32) -> OwnedFd {
    // SAFETY: the child that opened it has ended and told its number to this test only.
    unsafe { OwnedFd::from_raw_fd(number) }
}
