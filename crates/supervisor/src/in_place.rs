//! The command in the place of the process that was called: none of ours stands between it and its caller.
//!
//! So it is where what the caller learns of the command is the command's own to tell: the exit status, stops,
//! signals. What is watched is what it leaves running, which keeper and agent follow to its end as they do
//! behind any command that has ended.

use std::convert::Infallible;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use abi::{Arch, Errno, Syscall};
use seccomp::FilterProgram;
use sys::clone::CloneFlags;
use sys::notify::{Listener, Notification, Received};
use sys::schedule::with_short_turns;
use sys::signal::{MaskChange, SignalSet, change_mask};

use super::inherited::{InheritedDescriptors, is_readable};
use super::keeper::{self, Policy};
use super::signals::{self, SIGCONT};
use super::{AgentPlan, Command, Failure, LaunchContext, SOCK_SEQPACKET, agent, command, front};

/// Becomes the command. Its first call after the exec waits for the agent.
pub(super) fn run(
    policy: Policy,
    stay: LaunchContext,
    prepared: AgentPlan,
) -> Result<Infallible, Failure> {
    front::check_proc()?;
    let inherited = InheritedDescriptors::create_alone(stay.respawn, stay.tenure);
    let inherited = Arc::new(inherited.map_err(Failure::io("prepare the processes that watch"))?);
    let checked = inherited.tenure.check();
    checked.map_err(Failure::io("open the log of the processes that watch"))?;
    let shared_state = &inherited.shared_state;
    shared_state.set_first_waits(prepared.restricts_first);
    let written = inherited.memo.write(&prepared.memo);
    written.map_err(Failure::io("leave a note"))?;
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
        // Nor is it to be stopped with the caller's group, for whoever continues the command alone knows nothing of it.
        if sys::file::new_session().is_err() {
            return 1;
        }
        // Their readers are to learn when the command has ended before it had a listener.
        for end in [&to_keeper, &to_agent] {
            sys::fd::close_number(end.as_raw_fd());
        }
        let agent = || agent::beside(&inherited, &for_agent, start, own, stay.complain);
        keeper::first(&inherited, &for_keeper, policy, agent)
    };
    // The keeper is no child that the command knows of: crun waits for all that it has.
    let keeper = with_short_turns(super::START_SLICE, || {
        sys::clone::clone_child(CloneFlags::UNANNOUNCED, keep)
    })
    .map_err(Failure::process("make the keeper process"))?;
    drop((for_keeper, for_agent));
    // The agent has to read what this process passes to exec; see `supervise::run`.
    sys::prctl::set_dumpable(true)
        .and_then(|()| change_mask(MaskChange::Block, SignalSet::default()))
        .and_then(signals::reset_for_command)
        .map_err(Failure::process("hand the listener over"))?;
    if let Some(confinement) = &confinement {
        confinement
            .apply()
            .map_err(|unapplied| Failure::Unconfined {
                step: unapplied.step,
                cause: unapplied.cause.into(),
            })?;
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
    // A thread has no filter that was not there when it was made.
    with_short_turns(super::START_SLICE, || {
        std::thread::Builder::new().spawn(move || given.hand_over())
    })
    .map_err(Failure::io("hand the listener over"))?;
    install_and_execute(&command, &program, exec_is_asked, &listener)
}

/// Installs the filter and executes the command, while another thread gives the listener away.
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
    // Any call might wait for somebody who has no listener yet.
    if !exec_is_asked && !is_given(listener) {
        return Err(Failure::Gone { process: "agent" });
    }
    let error = sys::exec::execve(&command.path, &command.argv, &command.environment);
    Err(match error.errno() {
        // Nobody has the listener.
        ENOSYS => Failure::Gone { process: "agent" },
        _ => Failure::Exec {
            path: command.path.to_string_lossy().into_owned(),
            cause: error.into(),
        },
    })
}

/// Waits until somebody has the listener, or nobody is there to have it, without a call.
fn is_given(listener: &AtomicI32) -> bool {
    loop {
        match listener.load(Ordering::Acquire) {
            GIVEN => return true,
            LOST => return false,
            _ => std::hint::spin_loop(),
        }
    }
}

/// What the thread has that gives the listener away.
struct ListenerSender {
    /// The number of the listener's descriptor, or what is to be known of it.
    listener: Arc<AtomicI32>,
    /// Whether the filter stops the exec that is to come for certain.
    exec_is_asked: bool,
    keeper: i32,
    inherited: Arc<InheritedDescriptors>,
    /// Where keeper and agent wait for the listener; the agent is the last, for when it has answered, this thread
    /// may be no more.
    to: [OwnedFd; 2],
}

impl ListenerSender {
    /// Gives the listener away. This process keeps none: its calls fail, instead of waiting, if nobody is left.
    ///
    /// The exec that is to come is nobody's to judge. Where it is asked of for certain it is let pass from here, so
    /// that it waits for no other process to be there; it is received before anybody else has the listener, who
    /// would find the call gone that poll(2) has told of.
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

    /// Waits until the keeper has left the caller's group; `false`: it has ended.
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

    /// Whether somebody has it.
    fn give(&self, listener: &Listener) -> bool {
        let mut exec = Notification::default();
        let is_received =
            self.exec_is_asked && matches!(listener.receive(&mut exec), Ok(Received::Notification));
        if !self.keeper_is_apart() {
            return false;
        }
        let mut is_given = false;
        for socket in &self.to {
            // One that is gone: the other one sees to that.
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

/// After this time a keeper that has not begun may have been stopped with its caller's group.
const STOPPED_WITH_GROUP: Duration = Duration::from_millis(10);
const ENOSYS: i32 = Errno::ENOSYS.0;
/// There is no listener.
const NONE_YET: i32 = -1;
/// There will be none.
const NEVER: i32 = -2;
/// It has been given away.
const GIVEN: i32 = -3;
/// There was nobody to give it to.
const LOST: i32 = -4;
