//! QEMU as a child of one of our processes, with one end of a line to what runs in it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use sys::signal::{MaskChange, SignalSet};

use super::{CONSOLE, GUEST, QEMU, QEMU_LOG, SIGKILL, cannot, guest, this_program};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};

pub(super) const EMULATOR: &str = "qemu-system-x86_64";

/// A machine that is to be.
pub(super) struct Machine<'m> {
    /// Where QEMU and the machine's console say what goes wrong.
    pub(super) folder: &'m Path,
    pub(super) kernel: &'m Path,
    pub(super) initrd: &'m Path,
    pub(super) memory_mib: u64,
}

impl Machine<'_> {
    /// Starts it. It ends with the thread that calls this.
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

/// `PARENT [WORD]...`: QEMU, which ends with its parent.
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

/// Has the kernel end this process when the thread of the parent that started it ends.
pub(super) fn end_with(parent: &OsStr) -> Result<(), Failure> {
    sys::prctl::set_parent_death_signal(SIGKILL)
        .map_err(|error| cannot("follow the parent")(error.into()))?;
    // It may have ended before that.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    match now {
        Some(now) if *now == *parent => Ok(()),
        _ => Err(cannot("follow the parent")(io::ErrorKind::NotFound.into())),
    }
}

/// Ends one, whatever it does.
pub(super) fn end(machine: &mut Child) {
    // Fails only if it has ended.
    let _ = machine.kill();
    let _ = machine.wait();
}
