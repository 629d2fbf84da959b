//! Connection between the process that creates a container (the creator) and the monitor that
//! stands for it. The creator may be killed at any moment; an unfinished container is then removed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use abi::Errno;
use abi::constant::SOCK_SEQPACKET;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};

use super::cannot;

/// The directory belongs to this container.
const FOLDER: u8 = b'F';
/// Boot a machine for the container.
const BOOT: u8 = b'B';
/// Use a warm machine. The connection to it and its hold descriptor follow.
const LINE: u8 = b'L';
const HOLD: u8 = b'H';
/// The container is created and outlives its creator.
const KEEP: u8 = b'K';

/// A machine that was kept ready.
#[derive(Debug)]
pub(super) struct WarmMachine {
    /// Connection to the guest.
    pub(super) line: UnixStream,
    /// The machine ends when this is closed.
    pub(super) hold: UnixStream,
}

/// The creator's end.
#[derive(Debug)]
pub(super) struct ContainerCreator(OwnedFd);

/// The monitor's end.
#[derive(Debug)]
pub(super) struct Caller(OwnedFd);

/// Creates both ends. The second is inherited by the monitor.
pub(super) fn pair() -> Result<(ContainerCreator, OwnedFd), Failure> {
    let failed = |error: sys::SyscallError| cannot("make a line")(error.into());
    let (ours, theirs) = sys::socket::pair(SOCK_SEQPACKET.i32()).map_err(failed)?;
    sys::fd::set_close_on_exec(theirs.as_fd(), false).map_err(failed)?;
    Ok((ContainerCreator(ours), theirs))
}

impl ContainerCreator {
    /// Has the directory removed if the creator dies before the container is created.
    pub(super) fn own_folder(&self) -> io::Result<()> {
        self.send(FOLDER, None)
    }

    /// Has the machine start. Fails if the monitor has ended.
    pub(super) fn begin(&self, warm: Option<WarmMachine>) -> io::Result<()> {
        let Some(WarmMachine { line, hold }) = warm else {
            return self.send(BOOT, None);
        };
        self.send(LINE, Some(line))?;
        self.send(HOLD, Some(hold))
    }

    /// Detaches the container from its creator.
    pub(super) fn keep(&self) -> io::Result<()> {
        self.send(KEEP, None)
    }

    fn send(&self, word: u8, line: Option<UnixStream>) -> io::Result<()> {
        let line = line.as_ref().map(AsFd::as_fd);
        sys::socket::send_fd(self.0.as_fd(), &[word], line)?;
        Ok(())
    }
}

impl Caller {
    /// Takes over the inherited descriptor whose number is the argument.
    pub(super) fn inherited(number: Option<&OsString>) -> Result<Self, Failure> {
        inherited(number).map(Self)
    }

    /// Waits until the directory exists. Returns false if the creator has died and there is none.
    pub(super) fn has_folder(&self) -> Result<bool, Failure> {
        match self.receive() {
            Ok((Some(FOLDER), _)) => Ok(true),
            Ok((None, _)) => Ok(false),
            other => Err(misunderstood(other.err())),
        }
    }

    /// Waits for the order to start. Returns `None` if the creator has died.
    pub(super) fn order(&self) -> Result<Option<Option<WarmMachine>>, Failure> {
        match self.receive() {
            Ok((Some(BOOT), _)) => Ok(Some(None)),
            Ok((Some(LINE), Some(line))) => match self.receive() {
                Ok((Some(HOLD), Some(hold))) => Ok(Some(Some(WarmMachine {
                    line: line.into(),
                    hold: hold.into(),
                }))),
                Ok((None, _)) => Ok(None),
                other => Err(misunderstood(other.err())),
            },
            Ok((None, _)) => Ok(None),
            other => Err(misunderstood(other.err())),
        }
    }

    /// Waits until the container is created. If the creator dies before, everything ends.
    pub(super) fn stay_or_end(&self, folder: &Path) {
        match self.receive() {
            Ok((Some(KEEP), _)) => {}
            _ => {
                let _same_end = forget(folder);
                // The machine ends with this process.
                std::process::exit(Exit::Internal.code().into());
            }
        }
    }

    fn receive(&self) -> sys::Result<(Option<u8>, Option<OwnedFd>)> {
        let mut word = [0];
        loop {
            match sys::socket::receive_fd(self.0.as_fd(), &mut word) {
                Ok((0, _)) => return Ok((None, None)),
                Ok((_, fd)) => return Ok((Some(word[0]), fd)),
                Err(error) if error.is(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Removes the notes of a creator that was killed.
pub(super) fn forget(folder: &Path) -> Outcome {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(cannot("remove what is left of a container")(error))
        }
        _ => Ok(Exit::Ok),
    }
}

/// Detaches this process from the caller's terminal and working directory.
pub(super) fn leave(folder: &Path) -> Result<(), Failure> {
    let broken = |error: rustix::io::Errno| cannot("leave the caller")(error.into());
    rustix::process::setsid().map_err(broken)?;
    rustix::process::chdir(folder).map_err(broken)
}

/// Takes over an inherited descriptor by its number and sets its close-on-exec flag.
pub(super) fn inherited(number: Option<&OsString>) -> Result<OwnedFd, Failure> {
    let number = number
        .and_then(|word| word.to_str()?.parse().ok())
        .unwrap_or(-1);
    let fd = sys::fd::duplicate_number(number);
    sys::fd::close_number(number);
    fd.map_err(|error| cannot("take over a line")(error.into()))
}

/// Returns the directory, which is the first argument of this runtime's own processes.
pub(super) fn folder(args: &[OsString]) -> Result<PathBuf, Failure> {
    let lacks = || cannot("begin")(io::Error::other("no folder is named"));
    args.first().map(PathBuf::from).ok_or_else(lacks)
}

/// Formats a descriptor's number for a child's arguments.
pub(super) fn number(fd: &impl AsRawFd) -> String {
    fd.as_raw_fd().to_string()
}

fn misunderstood(cause: Option<sys::SyscallError>) -> Failure {
    let cause = cause.map_or_else(|| io::ErrorKind::InvalidData.into(), io::Error::from);
    cannot("understand who makes the container")(cause)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn both() -> (ContainerCreator, Caller) {
        let (maker, caller) = pair().unwrap();
        (maker, Caller(caller))
    }

    #[test]
    fn a_machine_is_handed_over_with_what_holds_it() {
        let (maker, caller) = both();
        let (line, mut machine) = UnixStream::pair().unwrap();
        let (hold, mut holder) = UnixStream::pair().unwrap();
        maker.begin(Some(WarmMachine { line, hold })).unwrap();
        let mut warm = caller.order().unwrap().unwrap().unwrap();
        warm.line.write_all(b"x").unwrap();
        let mut byte = [0];
        machine.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
        drop(warm);
        assert_eq!(holder.read(&mut byte).unwrap(), 0);
        maker.keep().unwrap();
        caller.stay_or_end(Path::new("/no/such"));
    }

    #[test]
    fn without_its_maker_nothing_begins_and_nothing_stays() {
        let (maker, caller) = both();
        maker.begin(None).unwrap();
        assert!(caller.order().unwrap().unwrap().is_none());
        let (maker, caller) = both();
        maker.own_folder().unwrap();
        assert!(caller.has_folder().unwrap());
        drop(maker);
        assert!(caller.order().unwrap().is_none());
        let (maker, caller) = both();
        drop(maker);
        assert!(!caller.has_folder().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let noted = folder.path().join("noted");
        fs::create_dir(&noted).unwrap();
        fs::write(noted.join("file"), "x").unwrap();
        for _ in 0..2 {
            assert_eq!(forget(&noted).unwrap(), Exit::Ok);
        }
        assert!(!noted.exists());
    }
}
