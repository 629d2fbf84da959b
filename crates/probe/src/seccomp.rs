//! Probes of seccomp filters and listeners.

use std::sync::mpsc::channel;
use std::thread;

use abi::Errno;
use sys::notify::{Delivery, Listener, Notification, Received};
use sys::seccomp::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, DATA_NR, FilterFlags,
    SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF, SockFilter, action_available, install_filter,
    set_no_new_privs,
};
use sys::syscall::getppid_raw;

use super::{Support, fix};
use super::attempt::in_child;

const ALLOW_ALL: [SockFilter; 1] = [SockFilter::stmt(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)];

pub(super) const BUSY: &str =
    "a listener already watches this process, and the kernel allows only one";

const BUSY_FIX: &str = "run outside of the other supervisor: another tollgate, or a container \
                        runtime with seccomp notification";

pub(super) fn filter() -> Support {
    in_child(|| {
        let installed =
            set_no_new_privs().and_then(|()| install_filter(&ALLOW_ALL, FilterFlags::default()));
        match installed {
            Ok(_) => Support::yes("works: loaded a filter"),
            Err(error) => Support::no(
                error.to_string(),
                match fix::is_built_with("SECCOMP_FILTER") {
                    Some(false) => "boot a kernel with CONFIG_SECCOMP_FILTER".to_owned(),
                    _ => fix::allow_calls("seccomp(2)"),
                },
            ),
        }
    })
}

pub(super) fn listener() -> Support {
    in_child(|| {
        if action_available(SECCOMP_RET_USER_NOTIF) == Ok(false) {
            return Support::no(
                "the kernel lacks SECCOMP_RET_USER_NOTIF",
                fix::newer_kernel("5.5"),
            );
        }
        match set_no_new_privs()
            .and_then(|()| install_filter(&ALLOW_ALL, FilterFlags::NEW_LISTENER))
        {
            Ok(_) => Support::yes("works: loaded a filter with a listener"),
            Err(error) if error.is(Errno::EBUSY) => Support::no(BUSY, BUSY_FIX),
            Err(error) => Support::no(error.to_string(), fix::allow_calls("seccomp(2)")),
        }
    })
}

pub(super) fn continue_call() -> Support {
    in_child(|| match round_trip(FilterFlags::default(), |_| Ok(())) {
        Ok(()) => Support::yes("works: a trapped call continued and returned its result"),
        Err(RoundTripError::Busy) => Support::no(BUSY, BUSY_FIX),
        Err(RoundTripError::Failed(why)) => Support::no(why, fix::newer_kernel("5.5")),
    })
}

pub(super) fn wait_killable() -> Support {
    in_child(
        || match round_trip(FilterFlags::WAIT_KILLABLE_RECV, |_| Ok(())) {
            Ok(()) => Support::yes("works"),
            Err(RoundTripError::Busy) => {
                Support::partial_with_fix(format!("not tried: {BUSY}"), BUSY_FIX)
            }
            Err(RoundTripError::Failed(why)) => Support::partial_with_fix(
                format!("{why}: a signal may repeat a trapped call, and an alert may appear twice"),
                fix::newer_kernel("5.19"),
            ),
        },
    )
}

pub(super) fn sync_wake_up() -> Support {
    let ready = |listener: &Listener| listener.set_sync_wake_up(true);
    in_child(|| match round_trip(FilterFlags::default(), ready) {
        Ok(()) => Support::yes("works"),
        Err(RoundTripError::Busy) => {
            Support::partial_with_fix(format!("not tried: {BUSY}"), BUSY_FIX)
        }
        Err(RoundTripError::Failed(why)) => Support::partial_with_fix(
            format!("{why}: each trapped call may wake another CPU, about 20 us instead of 3"),
            fix::newer_kernel("6.6"),
        ),
    })
}

pub(super) fn no_new_privs() -> Support {
    in_child(
        || match install_filter(&ALLOW_ALL, FilterFlags::default()) {
            Ok(_) => Support::yes(
                "not needed: with CAP_SYS_ADMIN, set-uid programs keep their privileges",
            ),
            Err(_) => Support::partial_with_fix(
                format!(
                    "needed without CAP_SYS_ADMIN: under `run`, {}",
                    without_privileges()
                ),
                fix::with_capability("SYS_ADMIN", "tollgate run -- CMD"),
            ),
        },
    )
}

/// The effect of missing privileges on the programs of this host.
fn without_privileges() -> String {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let names = super::privileged::programs(uid.as_raw(), gid.as_raw());
    if names.is_empty() {
        return "set-uid programs and file capabilities have no effect; none found here".to_owned();
    }
    format!(
        "programs lose their set-uid and file privileges: {}",
        names.join(", ")
    )
}

/// The reason why a round trip failed.
enum RoundTripError {
    /// A filter of this process already has a listener.
    Busy,
    Failed(String),
}

impl From<sys::SyscallError> for RoundTripError {
    fn from(error: sys::SyscallError) -> Self {
        if error.is(Errno::EBUSY) {
            Self::Busy
        } else {
            Self::Failed(error.to_string())
        }
    }
}

/// Has a thread of this process make a call that the main thread receives and lets continue.
fn round_trip(
    flags: FilterFlags,
    ready: impl FnOnce(&Listener) -> sys::Result<()>,
) -> Result<(), RoundTripError> {
    let failed = |why: &str| RoundTripError::Failed(why.to_owned());
    let expected = getppid_raw();
    let program = notify_getppid().ok_or_else(|| failed("this architecture is not supported"))?;
    set_no_new_privs()?;
    let (sender, receiver) = channel();
    let (go, wait_for_go) = channel::<()>();
    let caller = thread::spawn(move || {
        let listener = install_filter(&program, flags | FilterFlags::NEW_LISTENER);
        let installed = listener.is_ok();
        let sent = sender.send(listener).is_ok();
        // The main thread decides by sending, or by dropping its end of the channel.
        if installed && sent && wait_for_go.recv().is_ok() {
            getppid_raw()
        } else {
            -1
        }
    });
    let installed = receiver
        .recv()
        .map_err(|error| failed(&error.to_string()))?;
    let listener = installed?.map(Listener::new);
    let listener = listener.ok_or_else(|| failed("the kernel gave no listener"))?;
    ready(&listener)?;
    go.send(()).map_err(|error| failed(&error.to_string()))?;
    answer(&listener)?;
    match caller.join() {
        Ok(result) if result == expected => Ok(()),
        Ok(result) => Err(failed(&format!(
            "the call gave {result} instead of {expected}"
        ))),
        Err(_) => Err(failed("the thread that made the call failed")),
    }
}

fn answer(listener: &Listener) -> sys::Result<()> {
    loop {
        let mut notification = Notification::default();
        if listener.receive(&mut notification)? == Received::Notification
            && listener.respond_continue(notification.id)? == Delivery::Delivered
        {
            return Ok(());
        }
    }
}

/// A filter that notifies of `getppid` alone.
fn notify_getppid() -> Option<[SockFilter; 4]> {
    let number = abi::Syscall::from_name("getppid")?.number(abi::Arch::native()?)?;
    Some([
        SockFilter::stmt(BPF_LD | BPF_W | BPF_ABS, DATA_NR),
        SockFilter::jump(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        SockFilter::stmt(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        SockFilter::stmt(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    ])
}
