//! What a workload can do to the monitor's processes while a keeper answers its calls.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use abi::{Arch, Syscall};
use capture::notify::{ActivePolicy, StandInGuard};
use rustix::io::Errno;
use rustix::process::{self, Pid, PidfdFlags, Resource, Rlimit, Signal};
use sys::notify::{Listener, Notification};
use sys::seccomp::{self, FilterFlags, SockFilter};

use super::super::inherited::has_calls;
use super::super::shared_state::{Cause, FIRST, SharedState};
use super::gap::UnwatchedInterval;
use super::{OnAgentDeath, Policy};

const LIMIT: Duration = Duration::from_secs(20);

type CallMaker = Box<dyn FnOnce() -> rustix::io::Result<()> + Send>;

/// A thread whose calls wait for an answer if they can be aimed at a process.
struct Caller {
    ask: Sender<CallMaker>,
    results: Receiver<rustix::io::Result<()>>,
    listener: Listener,
}

impl Caller {
    fn start() -> Self {
        let (ask, asked) = channel::<CallMaker>();
        let (answer, results) = channel();
        let (give, given) = channel();
        std::thread::spawn(move || {
            seccomp::set_no_new_privs().expect("it is always allowed");
            let flags = FilterFlags::NEW_LISTENER;
            let listener = seccomp::install_filter(&filter(), flags).expect("a filter");
            let listener = listener.expect("with a listener");
            give.send(listener).expect("the test waits");
            while let Ok(act) = asked.recv() {
                answer.send(act()).expect("the test waits");
            }
        });
        let listener = Listener::new(given.recv().expect("the thread gives it"));
        Self {
            ask,
            results,
            listener,
        }
    }

    /// Has the thread make a call.
    fn begin(&self, act: impl FnOnce() -> rustix::io::Result<()> + Send + 'static) {
        self.ask.send(Box::new(act)).expect("the thread waits");
        let begun = Instant::now();
        while !has_calls(&self.listener) {
            assert!(begun.elapsed() < LIMIT, "no call");
            std::thread::yield_now();
        }
    }

    fn result(&self) -> rustix::io::Result<()> {
        self.results.recv_timeout(LIMIT).expect("it is answered")
    }
}

/// Returns a filter that gives every call to the listener that can be aimed at a process, except fcntl(2), with which
/// the standard library checks each descriptor that it closes.
fn filter() -> Vec<SockFilter> {
    let native = Arch::native().expect("a known architecture");
    let answer = seccomp::BPF_RET | seccomp::BPF_K;
    let others = Syscall::all().filter(|call| *call != Syscall::FCNTL);
    let numbers = others.filter_map(|call| call.number(native));
    let concerned = numbers.filter(|number| StandInGuard::concerns(native.audit(), *number));
    let load = seccomp::BPF_LD | seccomp::BPF_W | seccomp::BPF_ABS;
    let equal = seccomp::BPF_JMP | seccomp::BPF_JEQ | seccomp::BPF_K;
    let mut filter = vec![SockFilter::stmt(load, seccomp::DATA_NR)];
    for number in concerned {
        filter.push(SockFilter::jump(equal, number, 0, 1));
        filter.push(SockFilter::stmt(answer, seccomp::SECCOMP_RET_USER_NOTIF));
    }
    filter.push(SockFilter::stmt(answer, seccomp::SECCOMP_RET_ALLOW));
    filter
}

/// A process that a signal may end.
struct Target(Child);

impl Target {
    fn start() -> Self {
        Self(Command::new("sleep").arg("60").spawn().expect("coreutils"))
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().expect("our child").is_none()
    }

    /// Returns the signal that ended it.
    fn end(&mut self) -> Option<i32> {
        self.0.wait().expect("our child").signal()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Keeping<'a> {
    shared_state: &'a SharedState,
    caller: &'a Caller,
}

impl Keeping<'_> {
    /// Has a keeper do its part of an unwatched interval.
    fn keep(&self, part: impl FnOnce(&UnwatchedInterval<'_>)) {
        let policy = Policy {
            on_agent_death: OnAgentDeath::Continue,
            limit: Duration::ZERO,
            refuse_non_dumpable: true,
        };
        let confiner = ActivePolicy::new(Default::default());
        let parts = (self.shared_state, Some(&confiner));
        let listener = &self.caller.listener;
        let gap = UnwatchedInterval::of(parts, listener, policy, Cause::Starved);
        gap.record(0);
        part(&gap);
        gap.end();
    }

    /// Returns what a call of the workload gets from a keeper.
    fn call(
        &self,
        act: impl FnOnce() -> rustix::io::Result<()> + Send + 'static,
    ) -> rustix::io::Result<()> {
        self.caller.begin(act);
        let begun = Instant::now();
        loop {
            if has_calls(&self.caller.listener) {
                self.keep(|gap| gap.receive());
            }
            if let Ok(result) = self.caller.results.try_recv() {
                return result;
            }
            assert!(begun.elapsed() < LIMIT, "no result");
            std::thread::yield_now();
        }
    }
}

/// Returns the ways to reach a process that need no memory of the caller.
fn ways(pid: Pid) -> Vec<(&'static str, CallMaker)> {
    let pidfd = process::pidfd_open(pid, PidfdFlags::empty()).expect("it lives");
    let low = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    vec![
        (
            "kill",
            Box::new(move || process::kill_process(pid, Signal::KILL)),
        ),
        (
            "kill, a command",
            Box::new(move || process::kill_process(pid, Signal::HUP)),
        ),
        (
            "pidfd_open",
            Box::new(move || process::pidfd_open(pid, PidfdFlags::empty()).map(drop)),
        ),
        (
            "pidfd_send_signal",
            Box::new(move || process::pidfd_send_signal(pidfd.as_fd(), Signal::KILL)),
        ),
        (
            "prlimit",
            Box::new(move || process::prlimit(Some(pid), Resource::Nofile, low).map(drop)),
        ),
        (
            "setpriority",
            Box::new(move || process::setpriority_process(Some(pid), 19)),
        ),
    ]
}

#[test]
fn no_call_reaches_a_process_of_the_monitor() {
    let (shared_state, _file) = SharedState::create().expect("memory");
    let caller = Caller::start();
    let keeping = Keeping {
        shared_state: &shared_state,
        caller: &caller,
    };
    let own: Vec<Target> = (0..6).map(|_| Target::start()).collect();
    let pid = |at: usize| own[at].pid().as_raw_nonzero().get();
    shared_state.front_pid.set(pid(0));
    shared_state.waiter_pid.set(pid(1));
    shared_state.keeper_pid.set(pid(2));
    shared_state.host_agent_pid.set(pid(3));
    shared_state.set_agent_pid(FIRST, pid(4));
    shared_state.invite(FIRST + 1);
    shared_state.set_agent_pid(FIRST + 1, pid(5));
    for mut own in own {
        // The front and the waiter pass signals on, as without an interval.
        let raw = own.pid().as_raw_nonzero().get();
        let is_lenient = [shared_state.front_pid.get(), shared_state.waiter_pid.get()];
        for (name, act) in ways(own.pid()) {
            let passes = ["kill, a command", "pidfd_open"].contains(&name);
            if is_lenient.contains(&raw) && passes {
                continue;
            }
            assert_eq!(keeping.call(act), Err(Errno::PERM), "{name}");
        }
        assert!(own.lives());
    }
    let denied = shared_state.denied();
    assert_eq!(denied, 4 * 6 + 2 * 4);
    assert_eq!(shared_state.passed(Cause::Starved), 0);
}

#[test]
fn the_workload_reaches_its_own_processes() {
    let (shared_state, _file) = SharedState::create().expect("memory");
    let caller = Caller::start();
    let keeping = Keeping {
        shared_state: &shared_state,
        caller: &caller,
    };
    let mut agent = Target::start();
    shared_state.set_agent_pid(FIRST, agent.pid().as_raw_nonzero().get());
    let mut other = Target::start();
    let pid = other.pid();
    for (name, act) in ways(pid) {
        if name != "kill" {
            assert_eq!(keeping.call(act), Ok(()), "{name}");
        }
    }
    assert!(matches!(other.end(), Some(1 | 9)));
    // An agent that has handed over and has ended: its number may be another process's.
    shared_state.set_state(FIRST + 1, super::super::shared_state::State::HandedOver);
    let mut again = Target::start();
    let pid = again.pid();
    shared_state.set_agent_pid(FIRST + 1, pid.as_raw_nonzero().get());
    let killed = keeping.call(move || process::kill_process(pid, Signal::KILL));
    assert_eq!((killed, again.end()), (Ok(()), Some(9)));
    assert!(agent.lives());
    assert_eq!(shared_state.denied(), 0);
}

/// The keeper sends a signal to a group to its members but the agent.
#[test]
fn a_signal_to_many_leaves_the_agent_out() {
    use std::os::unix::process::CommandExt;
    let (shared_state, _file) = SharedState::create().expect("memory");
    let caller = Caller::start();
    let keeping = Keeping {
        shared_state: &shared_state,
        caller: &caller,
    };
    let member = |group: i32| {
        let child = Command::new("sleep").arg("60").process_group(group).spawn();
        Target(child.expect("coreutils"))
    };
    let mut agent = member(0);
    let group = agent.pid();
    let mut others = [1, 2].map(|_| member(group.as_raw_nonzero().get()));
    shared_state.set_agent_pid(FIRST, group.as_raw_nonzero().get());
    let killed = keeping.call(move || process::kill_process_group(group, Signal::KILL));
    assert_eq!(killed, Ok(()));
    assert_eq!(others.each_mut().map(Target::end), [Some(9), Some(9)]);
    assert!(agent.lives());
    assert_eq!(shared_state.passed(Cause::Starved), 1);
}

/// Nobody knows any more where a call goes that an agent has received.
#[test]
fn a_call_with_unknown_arguments_is_refused() {
    let (shared_state, _file) = SharedState::create().expect("memory");
    let caller = Caller::start();
    let keeping = Keeping {
        shared_state: &shared_state,
        caller: &caller,
    };
    let seat = shared_state.pulse(FIRST).seat();
    let mut agent = Target::start();
    let pid = agent.pid();
    shared_state.set_agent_pid(FIRST, pid.as_raw_nonzero().get());
    caller.begin(move || process::kill_process(pid, Signal::KILL));
    let mut call = Notification::default();
    caller.listener.receive(&mut call).expect("it waits");
    seat.received(&call);
    keeping.keep(|gap| gap.take_over_held(FIRST));
    assert_eq!(caller.result(), Err(Errno::PERM));
    assert!(agent.lives());
}

#[test]
fn marks_and_readable_memory_stay_as_they_are() {
    let (shared_state, _file) = SharedState::create().expect("memory");
    let caller = Caller::start();
    let keeping = Keeping {
        shared_state: &shared_state,
        caller: &caller,
    };
    let locks = || process::getrlimit(Resource::Locks);
    let before = locks();
    let mark = Rlimit {
        current: Some(7),
        maximum: Some(7),
    };
    let marked = keeping.call(move || process::setrlimit(Resource::Locks, mark));
    let hidden = process::DumpableBehavior::NotDumpable;
    let unreadable = keeping.call(move || process::set_dumpable_behavior(hidden));
    assert!(marked.is_ok() || marked == Err(Errno::PERM));
    assert_eq!(locks(), before);
    assert_eq!(unreadable, Err(Errno::PERM));
}
