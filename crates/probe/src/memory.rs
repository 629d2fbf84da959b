//! Probes of access to another process.

use std::os::fd::AsFd;

use abi::Errno;
use sys::ptrace::{EVENT_STOP, detach, interrupt, seize as attach};
use sys::wait::{ALL, Status, Target, wait};
use sys::{pidfd, process_memory};

use super::{Support, fix};
use super::attempt::{SleepingChild, in_child};

/// Data to read from the child, which has a copy at the same address.
static MARK: [u8; 16] = *b"tollgate probe \n";

pub(super) fn read() -> Support {
    in_child(|| {
        let sleeper = match SleepingChild::start() {
            Ok(sleeper) => sleeper,
            Err(error) => return Support::no_unless_fixed(error.to_string(), fix::process_access()),
        };
        let address = u64::try_from(MARK.as_ptr().addr()).expect("an address has at most 64 bits");
        let mut bytes = [0; 16];
        match process_memory::read(sleeper.pid(), address, &mut bytes) {
            Ok(16) if bytes == MARK => Support::yes(
                "works: process_vm_readv read the memory of a child \
            process",
            ),
            Ok(count) => Support::no_unless_fixed(
                format!("read {count} bytes that are not the child's"),
                fix::process_access(),
            ),
            Err(error) => read_by_file(&sleeper, address, &error.to_string()),
        }
    })
}

fn read_by_file(sleeper: &SleepingChild, address: u64, failure: &str) -> Support {
    let mut bytes = [0; 16];
    let file = process_memory::MemoryFile::open(sleeper.pid());
    match file.and_then(|file| file.read(address, &mut bytes)) {
        Ok(16) if bytes == MARK => Support::partial_unless_fixed(
            format!("{failure}; /proc/PID/mem works, slower"),
            fix::process_access(),
        ),
        Ok(_) => Support::no_unless_fixed(failure, fix::process_access()),
        Err(error) => Support::no_unless_fixed(format!("{failure}; /proc/PID/mem: {error}"), fix::process_access()),
    }
}

pub(super) fn pidfd_getfd() -> Support {
    in_child(|| {
        let attempt = SleepingChild::start().and_then(|sleeper| {
            let process = pidfd::open(sleeper.pid())?;
            pidfd::take_fd(process.as_fd(), 2)
        });
        match attempt {
            Ok(_) => Support::yes("works: copied a descriptor of a child process"),
            Err(error) => Support::partial_unless_fixed(
                format!("{error}: sockets show only their inode"),
                match error.is(Errno::ENOSYS) {
                    true => Some(fix::newer_kernel("5.6")),
                    false => fix::process_access(),
                },
            ),
        }
    })
}

pub(super) fn seize() -> Support {
    in_child(|| {
        let attempt = SleepingChild::start().and_then(|sleeper| {
            let pid = sleeper.pid();
            attach(pid, 0)?;
            interrupt(pid)?;
            let stop = wait(Target::Pid(pid), ALL)?;
            detach(pid, 0)?;
            Ok(stop)
        });
        match attempt {
            Ok(Some((
                _,
                Status::PtraceEvent {
                    event: EVENT_STOP, ..
                },
            ))) => Support::yes("works: seized and stopped a child process"),
            Ok(other) => Support::no_unless_fixed(format!("the child did not stop: {other:?}"), fix::process_access()),
            Err(error) => Support::partial_unless_fixed(
                format!("{error}: call results cannot be read"),
                fix::process_access(),
            ),
        }
    })
}
