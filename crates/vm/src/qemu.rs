//! QEMU as a child process, connected to the guest by a socket.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use sys::signal::{MaskChange, SignalSet};

use super::{
    CONSOLE, GUEST, QEMU, QEMU_LOG, SIGKILL, START_LIMIT, START_WAIT, cannot, guest, this_program,
};

pub(super) const EMULATOR: &str = "qemu-system-x86_64";

/// Description of a machine to boot.
pub(super) struct Machine<'m> {
    /// Directory for the output of QEMU and the console.
    pub(super) folder: &'m Path,
    pub(super) kernel: &'m Path,
    pub(super) initrd: &'m Path,
    pub(super) memory_mib: u64,
}

impl Machine<'_> {
    /// Starts the machine. It ends with the calling thread.
    pub(super) fn boot(&self, line: &UnixStream) -> Result<Child, Failure> {
        rustix::io::fcntl_setfd(line, rustix::io::FdFlags::empty())
            .map_err(|error| cannot("hand on a line")(error.into()))?;
        let said = File::create(self.folder.join(QEMU_LOG));
        let mut command = this_program();
        command.arg(QEMU).arg(std::process::id().to_string());
        for words in [
            "-no-user-config -nodefaults -display none -no-reboot",
            "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
            "-device virtio-serial-pci -serial chardev:console",
        ] {
            command.args(words.split(' '));
        }
        let accelerator = if super::kernel::why_not_kvm().is_none() {
            "kvm"
        } else {
            "tcg"
        };
        command.arg("-accel").arg(accelerator);
        command.arg("-m").arg(format!("{}M", self.memory_mib));
        command.arg("-kernel").arg(self.kernel);
        command.arg("-initrd").arg(self.initrd);
        command.arg("-append").arg(format!(
            "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check rdinit=/init -- runtime {GUEST}"
        ));
        let console = self.folder.join(CONSOLE);
        let console = console.to_string_lossy().replace(',', ",,");
        command
            .arg("-chardev")
            .arg(format!("file,id=console,path={console}"));
        command
            .arg("-chardev")
            .arg(format!("socket,id=line,fd={}", line.as_raw_fd()));
        command
            .arg("-device")
            .arg(format!("virtserialport,chardev=line,name={}", guest::PORT));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said.map_err(cannot("write what QEMU says"))?);
        command.spawn().map_err(cannot("start a process"))
    }
}

/// Time limit for a machine's start.
pub(super) struct BootTimeout {
    holder: u32,
    deadline: Instant,
}

impl BootTimeout {
    /// Creates the limit for a machine whose parent is this process.
    pub(super) fn with(holder: u32) -> Self {
        Self {
            holder,
            deadline: Instant::now() + START_WAIT,
        }
    }

    /// Returns true if the limit of processor time or of elapsed time has passed.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() > self.deadline || time_of_children(self.holder) > START_LIMIT
    }
}

/// Returns the processor time of a process's children. It is zero if the kernel does not list
/// children (no CONFIG_PROC_CHILDREN); the elapsed time then decides.
fn time_of_children(pid: u32) -> Duration {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let ticks: u64 = children.split_whitespace().filter_map(ticks).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Returns the user and system time in kernel ticks; `None` if the process has just ended.
fn ticks(pid: &str) -> Option<u64> {
    let fields = super::stat(pid)?;
    let time = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(time(11)? + time(12)?)
}

/// `PARENT [WORD]...`: executes QEMU, which ends with its parent.
pub(super) fn become_it(args: &[OsString]) -> Outcome {
    let failed = |error: sys::SyscallError| cannot("start QEMU")(error.into());
    let Some((parent, args)) = args.split_first() else {
        return Err(cannot("start QEMU")(io::ErrorKind::InvalidInput.into()));
    };
    end_with(parent)?;
    sys::signal::change_mask(MaskChange::Set, SignalSet::of(&[])).map_err(failed)?;
    let cause = Command::new(EMULATOR).args(args).exec();
    let message = format!("cannot start {EMULATOR}: {cause}");
    Err(Failure::new(Exit::Unsupported, message).help("install the package qemu-system-x86"))
}

/// Has the kernel kill this process when the thread that started it ends.
pub(super) fn end_with(parent: &OsStr) -> Result<(), Failure> {
    sys::prctl::set_parent_death_signal(SIGKILL)
        .map_err(|error| cannot("follow the parent")(error.into()))?;
    // The parent may have ended before that.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    match now {
        Some(now) if *now == *parent => Ok(()),
        _ => Err(cannot("follow the parent")(io::ErrorKind::NotFound.into())),
    }
}

/// Kills a machine.
pub(super) fn end(machine: &mut Child) {
    // Fails only if the machine has ended.
    let _ = machine.kill();
    let _ = machine.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_works_is_waited_for_until_it_has_had_its_time() {
        let own = std::process::id();
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let parent = child.id();
        let deadline = Instant::now() + Duration::from_secs(20);
        while ticks(&parent.to_string()) < Some(2) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(ticks(&parent.to_string()) >= Some(2));
        end(&mut child);
        assert!(ticks("none").is_none());
        assert_eq!(time_of_children(u32::MAX), Duration::ZERO);
        assert!(!BootTimeout::with(own).is_over());
    }
}
