//! Probe of the engine `ptrace`: a filter stops a call, and the tracer reads the call and its result.

use std::sync::atomic::Ordering;

use abi::Signal;
use sys::clone::{CloneFlags, clone_child};
use sys::ptrace::{self, EVENT_SECCOMP, EVENT_STOP, SyscallOp};
use sys::seccomp::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, DATA_NR, FilterFlags,
    SECCOMP_RET_ALLOW, SECCOMP_RET_TRACE, SockFilter, install_filter, set_no_new_privs,
};
use sys::shared::SharedPage;
use sys::syscall::getppid_raw;
use sys::wait::{ALL, Status, Target, wait};

use super::{Support, fix};
use super::attempt::in_child;

/// Index of the flag that lets the child continue.
const GO: usize = 0;
/// Index of the flag that reports that the child has no filter.
const UNFILTERED: usize = 1;

pub(super) fn engine() -> Support {
    in_child(|| match attempt() {
        Ok(Seen::Filtered) => {
            Support::yes("works: a filter stopped a call, and its result was read")
        }
        Ok(Seen::Unfiltered) => Support::partial_with_fix(
            "no filter can be installed: every call stops, and is 20 to 100 times slower",
            fix::allow_calls("seccomp(2)"),
        ),
        Err(why) => Support::no_unless_fixed(why, fix::process_access()),
    })
}

enum Seen {
    Filtered,
    Unfiltered,
}

fn attempt() -> Result<Seen, String> {
    let page = SharedPage::new().map_err(|error| error.to_string())?;
    let expected = i64::from(std::process::id());
    let child = clone_child(CloneFlags::default(), || traced(&page)).map_err(|e| e.to_string())?;
    let seen = follow(child, &page, expected);
    // Ends the child, whatever the result of the attempt.
    let _ = sys::signal::send(child, Signal::SIGKILL.0);
    while wait(Target::Pid(child), ALL).is_ok() {}
    seen
}

/// Body of the child: one call that its filter stops.
fn traced(page: &SharedPage) -> i32 {
    while page.int(GO).load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    let installed = stop_getppid().is_some_and(|filter| {
        set_no_new_privs().is_ok() && install_filter(&filter, FilterFlags::default()).is_ok()
    });
    page.int(UNFILTERED)
        .store(i32::from(!installed), Ordering::Release);
    i32::from(getppid_raw() <= 0)
}

fn follow(child: i32, page: &SharedPage, expected: i64) -> Result<Seen, String> {
    let say = |error: sys::SyscallError| error.to_string();
    let options =
        ptrace::OPTION_TRACESYSGOOD | ptrace::OPTION_TRACESECCOMP | ptrace::OPTION_EXITKILL;
    ptrace::seize(child, options).map_err(say)?;
    ptrace::interrupt(child).map_err(say)?;
    let mut is_looked_at = false;
    loop {
        let (_, status) = wait(Target::Pid(child), ALL)
            .map_err(say)?
            .ok_or("no stop")?;
        match status {
            Status::PtraceEvent {
                event: EVENT_STOP, ..
            } => page.int(GO).store(1, Ordering::Release),
            Status::PtraceEvent {
                event: EVENT_SECCOMP,
                ..
            } => {
                let info = ptrace::syscall_info(child).map_err(say)?;
                is_looked_at = matches!(info.op, SyscallOp::Seccomp { .. });
                ptrace::resume_to_syscall(child, 0).map_err(say)?;
                continue;
            }
            Status::SyscallStop => {
                let info = ptrace::syscall_info(child).map_err(say)?;
                return match info.op {
                    SyscallOp::Exit { rval, .. } if is_looked_at && rval == expected => {
                        Ok(Seen::Filtered)
                    }
                    other => Err(format!(
                        "the call was not followed to its result: {other:?}"
                    )),
                };
            }
            Status::Exited(0) if page.int(UNFILTERED).load(Ordering::Acquire) != 0 => {
                return Ok(Seen::Unfiltered);
            }
            Status::Exited(_) | Status::Signaled { .. } => {
                return Err("the call was not stopped".to_owned());
            }
            _ => {}
        }
        ptrace::resume(child, 0).map_err(say)?;
    }
}

/// A filter that stops `getppid` alone.
fn stop_getppid() -> Option<[SockFilter; 4]> {
    let number = abi::Syscall::from_name("getppid")?.number(abi::Arch::native()?)?;
    Some([
        SockFilter::stmt(BPF_LD | BPF_W | BPF_ABS, DATA_NR),
        SockFilter::jump(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        SockFilter::stmt(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
        SockFilter::stmt(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    ])
}
