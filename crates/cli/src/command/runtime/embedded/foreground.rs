//! Standing for a container's process, or a session's, until that ends; and for its terminal, if it has one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use rustix::termios::{self, OptionalActions, Termios};
use sys::poll::{self, PollFd};
use sys::signal::{MaskChange, SignalSet, SignalStream};
use sys::wait::{self, Target};
use tempfile::TempDir;

use super::FAILED;
use crate::exit::Exit;
use crate::failure::Failure;

/// Signals that are the command's, if it runs in the foreground: all that can be caught but those that
/// are about this process itself.
const OWN: [i32; 8] = [
    SIGKILL, SIGSTOP, SIGCHLD, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH,
];
const SIGNALS: std::ops::Range<i32> = 1..32;

/// Where a container's side hands the terminal over that it has made.
pub(super) struct Console {
    /// Only this user may connect.
    folder: TempDir,
    listener: UnixListener,
}

/// The end of a terminal that is not the container's.
pub(super) struct Terminal {
    master: File,
    /// What was read from standard input and is not in the terminal yet.
    pending: Vec<u8>,
    input_ended: bool,
    /// Nobody in the container has it any more.
    is_gone: bool,
    /// How the caller's terminal was.
    _callers: Option<Raw>,
}

/// Has the caller's terminal pass everything on, and puts it back at the end.
struct Raw(Termios);

impl Console {
    pub(super) fn new() -> Result<Self, Failure> {
        let made = || {
            let folder = tempfile::Builder::new().prefix("tollgate-").tempdir()?;
            let listener = UnixListener::bind(folder.path().join("console"))?;
            Ok(Self { folder, listener })
        };
        made().map_err(|cause: io::Error| cannot_attach(&cause))
    }

    /// What the runtime is told as `--console-socket`.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("console")
    }

    /// The terminal, once the process has been made. It gets the size of the caller's.
    pub(super) fn receive(self) -> Result<Terminal, Failure> {
        let received = || {
            let (socket, _) = self.listener.accept()?;
            // The name of the terminal, which nobody needs.
            let mut name = [0; 4096];
            let (_, master) = sys::socket::receive_fd(socket.as_fd(), &mut name)?;
            let closed = || io::Error::from(io::ErrorKind::UnexpectedEof);
            let master = master.ok_or_else(closed)?;
            sys::fd::set_non_blocking(master.as_fd(), true)?;
            io::Result::Ok(master)
        };
        let master = received().map_err(|cause| cannot_attach(&cause))?;
        let callers = Raw::new().map_err(|cause| cannot_attach(&cause))?;
        let terminal = Terminal {
            master: master.into(),
            pending: Vec::new(),
            input_ended: false,
            is_gone: false,
            _callers: callers,
        };
        terminal.resize();
        Ok(terminal)
    }
}

fn cannot_attach(cause: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        Exit::Command(FAILED),
        format!("cannot attach a terminal: {cause}"),
    )
    .help("set TMPDIR to a folder that can be written to, or use --console-socket")
}

impl Raw {
    /// `None`: standard input is no terminal.
    fn new() -> io::Result<Option<Self>> {
        let input = rustix::stdio::stdin();
        if !termios::isatty(input) {
            return Ok(None);
        }
        let before = termios::tcgetattr(input)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(input, OptionalActions::Now, &raw)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}

impl Terminal {
    /// Gives it the size of the caller's, if that is a terminal.
    fn resize(&self) {
        // Programs that ask for the size get along without one.
        let _ = termios::tcgetwinsize(rustix::stdio::stdin())
            .and_then(|size| termios::tcsetwinsize(&self.master, size));
    }

    /// What is to be waited for: its output, and input or room for some.
    fn polled(&self) -> [Option<PollFd<'_>>; 2] {
        let room = if self.pending.is_empty() {
            0
        } else {
            poll::OUT
        };
        let takes_input = self.pending.is_empty() && !self.input_ended;
        [
            (!self.is_gone).then(|| PollFd::new(self.master.as_fd(), poll::IN | room)),
            takes_input.then(|| PollFd::new(input(), poll::IN)),
        ]
    }

    /// Passes on what there is, without waiting for more.
    fn pass_on(&mut self) {
        if self.pending.is_empty() && !self.input_ended && is_ready(input()) {
            self.read_input();
        }
        self.write_pending();
        self.drain();
    }

    fn read_input(&mut self) {
        let mut buffer = [0; 4096];
        match sys::fd::read(input(), &mut buffer) {
            Ok(0) => self.input_ended = true,
            Ok(len) => self.pending.extend_from_slice(&buffer[..len]),
            Err(error) if error.is(EINTR) || error.is(EAGAIN) => {}
            // As when it ends: what cannot be read does not end the command.
            Err(_) => self.input_ended = true,
        }
    }

    fn write_pending(&mut self) {
        while !self.pending.is_empty() {
            match self.master.write(&self.pending) {
                Ok(len) => drop(self.pending.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Nobody is there to read it.
                Err(_) => self.pending.clear(),
            }
        }
    }

    /// Passes output on that is there. Whoever does not want it any more does not hold the command up.
    fn drain(&mut self) {
        let mut buffer = [0; 16 * 1024];
        // To ask has the kernel bring here what was written at the other end.
        while !self.is_gone && is_ready(self.master.as_fd()) {
            match self.master.read(&mut buffer) {
                Ok(0) => self.is_gone = true,
                Ok(len) => {
                    let mut output = io::stdout().lock();
                    let _ = output
                        .write_all(&buffer[..len])
                        .and_then(|()| output.flush());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // EIO: its last user has closed it.
                Err(_) => self.is_gone = true,
            }
        }
    }
}

fn input() -> BorrowedFd<'static> {
    rustix::stdio::stdin()
}

fn is_ready(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(fd, poll::IN)];
    poll::poll(&mut polled, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
}

/// Passes signals on, and what goes over the terminal, and waits for the end.
pub(super) fn wait_for(pid: i32, mut terminal: Option<Terminal>) -> Result<u8, Failure> {
    let cannot = |error: sys::SyscallError| {
        Failure::new(
            Exit::Internal,
            format!("cannot wait for the container: {error}"),
        )
        .help("look for it with `list`")
    };
    let forwarded: Vec<i32> = SIGNALS.filter(|signal| !OWN.contains(signal)).collect();
    let mut all = forwarded.clone();
    all.extend([SIGCHLD, SIGWINCH]);
    sys::signal::change_mask(MaskChange::Block, SignalSet::of(&all)).map_err(cannot)?;
    let stream = SignalStream::new(SignalSet::of(&all)).map_err(cannot)?;
    loop {
        // It may have ended before its end was waited for.
        let ended = match wait::wait(Target::Pid(pid), wait::NO_HANG) {
            Ok(Some((_, status))) if status.is_end() => Some(status),
            Ok(_) => None,
            Err(error) if error.is(EINTR) => None,
            Err(error) => return Err(cannot(error)),
        };
        if let Some(terminal) = &mut terminal {
            terminal.pass_on();
        }
        if let Some(status) = ended {
            let code = status.shell_code().and_then(|code| u8::try_from(code).ok());
            return Ok(code.unwrap_or(u8::MAX));
        }
        let mut polled = vec![PollFd::new(stream.as_fd(), poll::IN)];
        if let Some(terminal) = &terminal {
            polled.extend(terminal.polled().into_iter().flatten());
        }
        // Whatever woke it, everything is looked at.
        let _ = poll::poll(&mut polled, None);
        while let Ok(Some(signal)) = stream.next() {
            match (signal.signal, &terminal) {
                (SIGWINCH, Some(terminal)) => terminal.resize(),
                (signal, _) if forwarded.contains(&signal) => {
                    // Fails only if it has just ended.
                    let _ = sys::signal::send(pid, signal);
                }
                _ => {}
            }
        }
    }
}

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const SIGCHLD: i32 = 17;
pub(super) const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;
const SIGTSTP: i32 = 20;
const SIGTTIN: i32 = 21;
const SIGTTOU: i32 = 22;
const SIGURG: i32 = 23;
const SIGWINCH: i32 = 28;
