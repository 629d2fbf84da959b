use std::os::fd::AsRawFd;

use abi::{Arch, Syscall};
use event::EventKind;

use super::*;

fn own_pid() -> i32 {
    std::process::id().cast_signed()
}

fn own_tid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

fn call(syscall: Syscall, args: [i64; 4]) -> Call {
    let mut raw = [0; 6];
    for (raw, arg) in raw.iter_mut().zip(args) {
        *raw = arg.cast_unsigned();
    }
    Call {
        id: 0,
        tid: Tid(own_tid()),
        arch: Arch::X86_64,
        syscall,
        kind: EventKind::of_syscall(syscall),
        ip: 0,
        args: raw,
        is_unread: false,
    }
}

fn guard(options: GuardOptions) -> Guard {
    Guard::new(&[Pid(own_pid())], options).unwrap()
}

/// Decides without acting: a relayed signal would really be sent.
fn action(guard: &Guard, syscall: Syscall, args: [i64; 4]) -> Option<Action> {
    guard
        .intrusion_of(&call(syscall, args))
        .map(|(_, action)| action)
}

#[test]
fn every_trapped_way_to_reach_a_process_is_ruled_on() {
    let agent = i64::from(own_pid());
    let guard = guard(GuardOptions::default());
    let descriptor = sys::pidfd::open(own_pid()).unwrap();
    let pidfd = i64::from(std::os::fd::AsRawFd::as_raw_fd(&descriptor));
    let folder = std::fs::File::open(format!("/proc/{agent}")).unwrap();
    let folder = i64::from(std::os::fd::AsRawFd::as_raw_fd(&folder));
    let aimed = [
        (Syscall::KILL, [agent, 9, 0, 0]),
        (Syscall::KILL, [agent, 1, 0, 0]),
        (Syscall::TKILL, [agent, 19, 0, 0]),
        (Syscall::TGKILL, [agent, i64::from(own_tid()), 9, 0]),
        (Syscall::RT_SIGQUEUEINFO, [agent, 9, 0, 0]),
        (Syscall::RT_TGSIGQUEUEINFO, [agent, agent, 9, 0]),
        (Syscall::PIDFD_SEND_SIGNAL, [pidfd, 9, 0, 0]),
        (Syscall::PIDFD_SEND_SIGNAL, [folder, 9, 0, 0]),
        (Syscall::PIDFD_OPEN, [agent, 0, 0, 0]),
        (Syscall::PIDFD_GETFD, [pidfd, 3, 0, 0]),
        (Syscall::PROCESS_MADVISE, [pidfd, 0, 0, 21]),
        (Syscall::PROCESS_VM_READV, [agent, 0, 0, 0]),
        (Syscall::PROCESS_VM_WRITEV, [agent, 0, 0, 0]),
        (Syscall::PTRACE, [16, agent, 0, 0]),
        (Syscall::PTRACE, [0x4206, i64::from(own_tid()), 0, 0]),
        (Syscall::PERF_EVENT_OPEN, [0, agent, 0, 0]),
        (Syscall::PRLIMIT64, [agent, 7, 1, 0]),
        (Syscall::SCHED_SETSCHEDULER, [agent, 5, 0, 0]),
        (Syscall::SCHED_SETPARAM, [agent, 0, 0, 0]),
        (Syscall::SCHED_SETATTR, [agent, 0, 0, 0]),
        (Syscall::SCHED_SETAFFINITY, [i64::from(own_tid()), 8, 0, 0]),
        (Syscall::SETPRIORITY, [0, agent, 19, 0]),
        (Syscall::SETPRIORITY, [1, 0, 19, 0]),
        (Syscall::SETPRIORITY, [2, 0, 19, 0]),
        (Syscall::IOPRIO_SET, [1, agent, 0, 0]),
        (Syscall::IOPRIO_SET, [2, 0, 0, 0]),
        (Syscall::FCNTL, [3, 10, 9, 0]),
    ];
    for (syscall, args) in aimed {
        let found = action(&guard, syscall, args);
        assert_eq!(found, Some(Action::Refuse), "{syscall} {args:?}");
        assert!(Guard::concerns(syscall), "{syscall}");
    }
}

#[test]
fn what_is_aimed_at_others_goes_on() {
    let guard = guard(GuardOptions::default());
    let parent = rustix::process::getppid().unwrap();
    let other = i64::from(parent.as_raw_nonzero().get());
    let descriptor = sys::pidfd::open(parent.as_raw_nonzero().get()).unwrap();
    let pidfd = i64::from(std::os::fd::AsRawFd::as_raw_fd(&descriptor));
    let innocent = [
        (Syscall::KILL, [other, 9, 0, 0]),
        (Syscall::KILL, [0, 15, 0, 0]),
        (Syscall::KILL, [-1, 2, 0, 0]),
        (Syscall::KILL, [i64::from(i32::MIN), 9, 0, 0]),
        (Syscall::TGKILL, [other, other, 9, 0]),
        (Syscall::PIDFD_SEND_SIGNAL, [pidfd, 15, 0, 0]),
        (Syscall::PIDFD_SEND_SIGNAL, [9999, 10, 0, 0]),
        (Syscall::PIDFD_SEND_SIGNAL, [9999, 15, 0, 4]),
        (Syscall::PIDFD_GETFD, [pidfd, 3, 0, 0]),
        (Syscall::PTRACE, [16, other, 0, 0]),
        (Syscall::PTRACE, [7, i64::from(own_pid()), 0, 0]),
        (Syscall::PRLIMIT64, [other, 7, 1, 0]),
        (Syscall::SETPRIORITY, [0, other, 19, 0]),
        (Syscall::FCNTL, [3, 10, 29, 0]),
        (Syscall::PRCTL, [4, 1, 0, 0]),
        (Syscall::PRCTL, [22, 0, 0, 0]),
    ];
    for (syscall, args) in innocent {
        assert_eq!(action(&guard, syscall, args), None, "{syscall} {args:?}");
    }
}

/// Another thread may exchange the descriptor after it was read here.
#[test]
fn no_deadly_signal_by_a_descriptor_is_left_to_the_kernel() {
    let guard = guard(GuardOptions::default());
    let parent = rustix::process::getppid().expect("it has one");
    let parent = parent.as_raw_nonzero().get();
    let number = |descriptor: &dyn AsRawFd| i64::from(descriptor.as_raw_fd());
    let pidfd = sys::pidfd::open(parent).expect("it lives");
    let mut ended = std::process::Command::new("true")
        .spawn()
        .expect("it is there");
    let of_ended = sys::pidfd::open(i32::try_from(ended.id()).expect("a pid")).expect("not reaped");
    ended.wait().expect("it ends");
    let folder = |path: &str| std::fs::File::open(path).expect(path);
    let of_parent = folder(&format!("/proc/{parent}"));
    let scratch = tempfile::tempdir().expect("a folder");
    let like_parent = scratch.path().join(parent.to_string());
    std::fs::create_dir(&like_parent).expect("a new folder");
    let like_parent = folder(&like_parent.display().to_string());
    let other = folder("/");
    for signal in (0..=64).filter(|signal| is_deadly(*signal)) {
        let signal_by = |descriptor: i64, flags: i64| {
            let args = [descriptor, i64::from(signal), 0, flags];
            action(&guard, Syscall::PIDFD_SEND_SIGNAL, args)
        };
        let to_parent = Some(Action::Relay(Members::One(parent), signal));
        assert_eq!(signal_by(number(&pidfd), 0), to_parent);
        assert_eq!(signal_by(number(&of_parent), 0), to_parent);
        let to_group = Some(Action::Relay(Members::Group(parent), signal));
        assert_eq!(signal_by(number(&pidfd), 4), to_group);
        for flags in [0, 4] {
            let ended = signal_by(number(&of_ended), flags);
            assert_eq!(ended, Some(Action::Fail(Errno::ESRCH)));
            // Where the parent leads the group of this process, the folder names that, too.
            let like = signal_by(number(&like_parent), flags);
            let is_passed_on =
                flags == 4 && like == Some(Action::Relay(Members::Group(parent), signal));
            assert!(like == Some(Action::Refuse) || is_passed_on, "{like:?}");
            assert_eq!(
                signal_by(number(&other), flags),
                Some(Action::Fail(Errno::EBADF))
            );
            assert_eq!(signal_by(9999, flags), Some(Action::Fail(Errno::EBADF)));
        }
    }
}

#[test]
fn deadly_signals_and_orders_to_many_are_passed_on_and_all_others_go_on() {
    let guard = guard(GuardOptions::default());
    let group = rustix::process::getpgrp().as_raw_nonzero().get();
    for (pid, members) in [
        (-1, Members::All),
        (0, Members::Group(group)),
        (-i64::from(group), Members::Group(group)),
    ] {
        for signal in 0..=64 {
            let harms = [1, 4, 5, 7, 8, 9, 10, 11, 12, 19, 31, 32, 33].contains(&signal);
            let expected = harms.then_some(Action::Relay(members, signal));
            let found = action(&guard, Syscall::KILL, [pid, i64::from(signal), 0, 0]);
            assert_eq!(found, expected, "signal {signal} to {pid}");
        }
    }
    // A group that does not exist.
    assert_eq!(action(&guard, Syscall::KILL, [-0x3fff_fff0, 9, 0, 0]), None);
}

#[test]
fn lenient_processes_may_be_sent_what_they_can_catch() {
    let agent = i64::from(own_pid());
    let guard = guard(GuardOptions {
        lenient: vec![Pid(own_pid())],
        refuse_non_dumpable: false,
    });
    assert_eq!(action(&guard, Syscall::KILL, [agent, 12, 0, 0]), None);
    assert_eq!(action(&guard, Syscall::PIDFD_OPEN, [agent, 0, 0, 0]), None);
    let deadly = action(&guard, Syscall::KILL, [agent, 9, 0, 0]);
    assert_eq!(deadly, Some(Action::Refuse));
}

#[test]
fn a_process_that_makes_itself_unreadable_is_told_and_refused_on_demand() {
    for (refuse_non_dumpable, expected) in [(false, Action::Make), (true, Action::Refuse)] {
        let guard = guard(GuardOptions {
            refuse_non_dumpable,
            ..GuardOptions::default()
        });
        let found = action(&guard, Syscall::PRCTL, [4, 0, 0, 0]);
        assert_eq!(found, Some(expected));
    }
}
