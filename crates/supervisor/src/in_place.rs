//! Runs the command in the called process, with no process of ours between the command and its
//! caller.
//!
//! This mode is for commands that themselves show the caller everything it learns: exit status,
//! stops and signals. Keeper and agent watch the processes that the command leaves running, to
//! their end, as after any command that has ended.

use std::convert::Infallible;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use abi::{Arch, Errno, Syscall};
use enforce::Confinement;
use seccomp::FilterProgram;
use sys::clone::CloneFlags;
use sys::notify::{Listener, Notification, Received};
use sys::schedule::with_short_turns;
use sys::signal::{MaskChange, SignalSet, change_mask};

use super::inherited::{InheritedDescriptors, is_readable};
use super::keeper::{self, Policy};
use super::signals::{self, SIGCONT};
use super::{
    AgentPlan, Command, Detach, Failure, LaunchContext, Respawn, SOCK_SEQPACKET, agent, command,
    front,
};

/// Becomes the command. Its first call after the exec waits for the agent.
pub(super) fn run(
    policy: Policy,
    stay: LaunchContext,
    prepared: AgentPlan,
) -> Result<Infallible, Failure> {
    front::check_proc()?;
    let inherited = inherited(stay.respawn, stay.tenure, &prepared)?;
    let AgentPlan {
        command,
        program,
        confinement,
        start,
        ..
    } = prepared;
    let pair = || sys::socket::pair(SOCK_SEQPACKET).map_err(Failure::process("make a socket"));
    let ((for_keeper, to_keeper), (for_agent, to_agent)) = (pair()?, pair()?);
    let own = std::process::id().cast_signed();
    let keep = || {
        // Nor may it be stopped with the caller's process group, since whoever continues only the
        // command does not know of it.
        if sys::file::new_session().is_err() {
            return 1;
        }
        // Their readers must notice if the command ends before it has a listener.
        for end in [&to_keeper, &to_agent] {
            sys::fd::close_number(end.as_raw_fd());
        }
        let agent = || agent::beside(&inherited, &for_agent, start, own, stay.complain);
        keeper::first(&inherited, &for_keeper, policy, agent)
    };
    // The keeper must not be a child that the command knows of: crun waits for all its children.
    let keeper = with_short_turns(super::turns::START_SLICE, || {
        sys::clone::clone_child(CloneFlags::UNANNOUNCED, keep)
    })
    .map_err(Failure::process("make the keeper process"))?;
    drop((for_keeper, for_agent));
    become_readable()?;
    if let Some(confinement) = &confinement {
        confine(confinement)?;
    }
    let exec_is_asked =
        Arch::native().is_some_and(|arch| program.always_asks(arch, Syscall::EXECVE));
    let listener = Arc::new(AtomicI32::new(NONE_YET));
    let given = ListenerSender {
        listener: Arc::clone(&listener),
        exec_is_asked,
        keeper,
        inherited,
        to: [to_keeper, to_agent],
    };
    // A thread lacks filters that were installed after its creation.
    with_short_turns(super::turns::START_SLICE, || {
        std::thread::Builder::new().spawn(move || given.hand_over())
    })
    .map_err(Failure::io("hand the listener over"))?;
    install_and_execute(&command, &program, exec_is_asked, &listener)
}

/// Prepares what keeper and agent inherit.
fn inherited(
    respawn: Respawn,
    tenure: Detach,
    prepared: &AgentPlan,
) -> Result<Arc<InheritedDescriptors>, Failure> {
    let inherited = InheritedDescriptors::create_alone(respawn, tenure);
    let inherited = inherited.map_err(Failure::io("prepare the processes that watch"))?;
    let checked = inherited.tenure.check();
    checked.map_err(Failure::io("open the log of the processes that watch"))?;
    let shared_state = &inherited.shared_state;
    shared_state.set_first_waits(prepared.restricts_first);
    let written = inherited.handover.write(&prepared.handover);
    written.map_err(Failure::io("leave a note"))?;
    Ok(Arc::new(inherited))
}

/// Resets signals for the command, and lets the agent read what this process passes to exec; see `supervise::run`.
fn become_readable() -> Result<(), Failure> {
    sys::prctl::set_dumpable(true)
        .and_then(|()| change_mask(MaskChange::Block, SignalSet::default()))
        .and_then(signals::reset_for_command)
        .map_err(Failure::process("hand the listener over"))
}

/// Restricts this process, which becomes the command.
fn confine(confinement: &Confinement) -> Result<(), Failure> {
    confinement
        .apply()
        .map_err(|unapplied| Failure::Unconfined {
            step: unapplied.step,
            cause: unapplied.cause.into(),
        })
}

/// Installs the filter and executes the command, while another thread sends the listener.
fn install_and_execute(
    command: &Command,
    program: &FilterProgram,
    exec_is_asked: bool,
    listener: &AtomicI32,
) -> Result<Infallible, Failure> {
    match command::install(program) {
        Ok(number) => listener.store(number, Ordering::Release),
        Err(errno) => {
            listener.store(NEVER, Ordering::Release);
            let cause = std::io::Error::from_raw_os_error(errno);
            return Err(Failure::Filter { cause });
        }
    }
    // Any call might wait for a process that has no listener yet.
    if !exec_is_asked && !is_given(listener) {
        return Err(Failure::Gone { process: "agent" });
    }
    let error = sys::exec::execve(&command.path, &command.argv, &command.environment);
    Err(match error.errno() {
        // No process has the listener.
        ENOSYS => Failure::Gone { process: "agent" },
        _ => Failure::Exec {
            path: command.path.to_string_lossy().into_owned(),
            cause: error.into(),
        },
    })
}

/// Waits without a system call until the listener was received, or no process is left to receive
/// it.
fn is_given(listener: &AtomicI32) -> bool {
    loop {
        match listener.load(Ordering::Acquire) {
            GIVEN => return true,
            LOST => return false,
            _ => std::hint::spin_loop(),
        }
    }
}

/// State of the thread that sends the listener.
struct ListenerSender {
    /// Number of the listener's descriptor, or a state.
    listener: Arc<AtomicI32>,
    /// The filter is certain to trap the coming exec.
    exec_is_asked: bool,
    keeper: i32,
    inherited: Arc<InheritedDescriptors>,
    /// Sockets of keeper and agent. The agent comes last: when it has answered, this thread may
    /// have ended.
    to: [OwnedFd; 2],
}

impl ListenerSender {
    /// Sends the listener. This process keeps no copy, so that its calls fail instead of waiting if
    /// no receiver is left.
    ///
    /// No rule is evaluated for the coming exec. If it is certain to be trapped, this thread allows
    /// it, so that it waits for no other process. It does so before another process has the
    /// listener, which would find the call gone that poll(2) has reported.
    fn hand_over(self) {
        let number = loop {
            match self.listener.load(Ordering::Acquire) {
                NONE_YET => std::thread::sleep(agent::LISTENER_POLL),
                NEVER => return,
                number => break number,
            }
        };
        let copy = sys::fd::duplicate_number(number);
        sys::fd::close_number(number);
        let listener = copy.map(Listener::new);
        let is_given = listener.as_ref().is_ok_and(|listener| self.give(listener));
        if !is_given {
            // The command's first call fails.
            drop(listener);
        }
        let outcome = if is_given { GIVEN } else { LOST };
        self.listener.store(outcome, Ordering::Release);
    }

    /// Waits until the keeper has left the caller's process group. Returns false if the keeper has
    /// ended.
    fn keeper_is_apart(&self) -> bool {
        let mut begun = Instant::now();
        while self.inherited.shared_state.keeper_pid.get() == 0 {
            std::thread::sleep(agent::LISTENER_POLL);
            if begun.elapsed() < STOPPED_WITH_GROUP {
                continue;
            }
            let keeper = sys::pidfd::open(self.keeper);
            if keeper.map_or(true, |keeper| is_readable(keeper.as_fd(), Duration::ZERO)) {
                return false;
            }
            let _ = sys::signal::send(self.keeper, SIGCONT);
            begun = Instant::now();
        }
        true
    }

    /// Sends the listener. Returns true if it was received.
    fn give(&self, listener: &Listener) -> bool {
        let mut exec = Notification::default();
        let is_received =
            self.exec_is_asked && matches!(listener.receive(&mut exec), Ok(Received::Notification));
        if !self.keeper_is_apart() {
            return false;
        }
        let mut is_given = false;
        for socket in &self.to {
            // One of them may have died; the other handles that.
            let sent = sys::socket::send_fd(socket.as_fd(), b"L", Some(listener.as_fd()));
            is_given |= sent.is_ok();
        }
        if is_given && is_received {
            // Fails only if the call is gone: then this process ends, or calls again.
            let _ = listener.respond_continue(exec.id);
        }
        is_given
    }
}

/// Time after which a keeper that has not started may have been stopped with its caller's process
/// group.
const STOPPED_WITH_GROUP: Duration = Duration::from_millis(10);
const ENOSYS: i32 = Errno::ENOSYS.0;
/// The listener is not installed yet.
const NONE_YET: i32 = -1;
/// The listener cannot be installed.
const NEVER: i32 = -2;
/// The listener was received.
const GIVEN: i32 = -3;
/// There was no receiver.
const LOST: i32 = -4;
