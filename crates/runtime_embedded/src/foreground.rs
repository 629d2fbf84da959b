//! Foreground mode: this process stands for a container's process, or a session's, until that ends, and serves
//! its terminal, if it has one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abi::{Errno, Signal};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use rustix::pty::OpenptFlags;
use rustix::termios::{self, OptionalActions, OutputModes, Termios};
use sys::poll::{self, PollFd};
use sys::signal::{Disposition, MaskChange, SignalSet, SignalStream};
use sys::wait::{self, Target};
use tempfile::TempDir;

use super::FAILED;

/// All signals that programs may use.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;
/// Signals that are not forwarded to the command in the foreground: those that cannot be caught, those about
/// this process itself, and the two that the C library reserves.
const OWN: [i32; 15] = [
    SIGKILL,
    Signal::SIGSTOP.0,
    SIGCHLD,
    Signal::SIGTSTP.0,
    Signal::SIGTTIN.0,
    Signal::SIGTTOU.0,
    Signal::SIGURG.0,
    SIGWINCH,
    SIGPIPE,
    Signal::SIGILL.0,
    Signal::SIGFPE.0,
    Signal::SIGSEGV.0,
    Signal::SIGBUS.0,
    32,
    33,
];
/// Number of bytes copied at once. A pipe that has room has room for this many, so that a write does not block.
const PIECE: usize = 4096;
/// Largest number of bytes that a terminal holds for a command that has ended; later output is of other
/// processes.
const HELD: usize = 256 * 1024;

/// Socket on which the container's side sends the terminal that it has made.
pub(super) struct Console {
    /// Folder that only this user may enter.
    folder: TempDir,
    listener: UnixListener,
}

/// The host's side of a container's terminal.
pub(super) struct Terminal {
    master: OwnedFd,
    /// The other side. As long as it is open here, the container can close its own and open it again.
    _kept: OwnedFd,
    /// Bytes from standard input that are not yet written to the terminal.
    input: Vec<u8>,
    input_ended: bool,
    /// Bytes from the terminal that are not yet written to standard output.
    output: Vec<u8>,
    /// Restores the caller's terminal modes.
    _callers: Option<Raw>,
}

/// Signals that arrived before the command existed and could receive them.
pub(super) struct Foreground {
    came: Vec<(i32, Arc<AtomicBool>)>,
}

/// Keeps the caller's terminal in raw mode until dropped.
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

    /// Returns the path for `--console-socket`.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("console")
    }

    /// Receives the terminal, once the process has been made. Sets its size to that of the caller's.
    pub(super) fn receive(self) -> Result<Terminal, Failure> {
        let received = || {
            let (socket, _) = self.listener.accept()?;
            // The name of the terminal, which is not needed.
            let mut name = [0; 4096];
            let (_, master) = sys::socket::receive_fd(socket.as_fd(), &mut name)?;
            let closed = || io::Error::from(io::ErrorKind::UnexpectedEof);
            let master = master.ok_or_else(closed)?;
            sys::fd::set_non_blocking(master.as_fd(), true)?;
            // A reader of piped output does not want a terminal's line ends; a terminal makes them itself.
            let mut modes = termios::tcgetattr(&master)?;
            modes.output_modes.remove(OutputModes::ONLCR);
            termios::tcsetattr(&master, OptionalActions::Now, &modes)?;
            io::Result::Ok(master)
        };
        let master = received().map_err(|cause| cannot_attach(&cause))?;
        let callers = Raw::new().map_err(|cause| cannot_attach(&cause))?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let kept = rustix::pty::ioctl_tiocgptpeer(&master, flags);
        let kept = kept.map_err(|cause| cannot_attach(&cause))?;
        let terminal = Terminal {
            master,
            _kept: kept,
            input: Vec::new(),
            input_ended: false,
            output: Vec::new(),
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
    .help(
        "set TMPDIR to a folder with a short path that can be written to, or use --console-socket",
    )
}

impl Raw {
    /// Switches the caller's terminal to raw mode. `None` if standard input is not a terminal.
    fn new() -> io::Result<Option<Self>> {
        let input = rustix::stdio::stdin();
        if !termios::isatty(input) {
            return Ok(None);
        }
        let before = termios::tcgetattr(input)?;
        let mut raw = before.clone();
        raw.make_raw();
        raw.output_modes |= OutputModes::OPOST;
        termios::tcsetattr(input, OptionalActions::Now, &raw)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Fails only if the terminal is gone.
        let _ = termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Result of copying output.
enum Passed {
    /// Nothing to copy now, or no room for it.
    All,
    Some,
    /// The reader is gone, or the terminal has no more output.
    Over,
}

impl Terminal {
    /// Sets the terminal's size to that of the caller's, if that is a terminal.
    fn resize(&self) {
        // Programs that ask for the size can run without one.
        let _ = termios::tcgetwinsize(rustix::stdio::stdin())
            .and_then(|size| termios::tcsetwinsize(&self.master, size));
    }

    /// Returns the descriptors to poll: for reading where a buffer is empty, for writing where it is not.
    fn polled(&self) -> [Option<PollFd<'_>>; 3] {
        let reads = if self.output.is_empty() { poll::IN } else { 0 };
        let writes = if self.input.is_empty() { 0 } else { poll::OUT };
        let takes_input = self.input.is_empty() && !self.input_ended;
        [
            (reads | writes != 0).then(|| PollFd::new(self.master.as_fd(), reads | writes)),
            takes_input.then(|| PollFd::new(rustix::stdio::stdin(), poll::IN)),
            (!self.output.is_empty()).then(|| PollFd::new(rustix::stdio::stdout(), poll::OUT)),
        ]
    }

    /// Copies a piece of input, if there is one, without blocking.
    fn pass_input(&mut self) {
        let stdin = rustix::stdio::stdin();
        if self.input.is_empty() && !self.input_ended && is_ready(stdin, poll::IN) {
            match read(stdin) {
                Ok(Some(piece)) if piece.is_empty() => self.input_ended = true,
                Ok(Some(piece)) => self.input = piece,
                // Another process has read it.
                Ok(None) => {}
                // Treated as the end of input: a read error does not end the command.
                Err(_) => self.input_ended = true,
            }
        }
        if !self.input.is_empty() && write(self.master.as_fd(), &mut self.input).is_err() {
            // No process reads it.
            self.input.clear();
        }
    }

    /// Copies a piece of output, if there is one, without blocking.
    fn pass_output(&mut self) -> Passed {
        // The poll makes the kernel deliver what was written at the other end.
        if self.output.is_empty() && is_ready(self.master.as_fd(), poll::IN) {
            match read(self.master.as_fd()) {
                Ok(Some(piece)) => self.output = piece,
                Ok(None) => {}
                // The terminal was hung up, and only this end is open.
                Err(_) => return Passed::Over,
            }
        }
        if self.output.is_empty() || !is_ready(rustix::stdio::stdout(), poll::OUT) {
            return Passed::All;
        }
        match write(rustix::stdio::stdout(), &mut self.output) {
            Ok(()) => Passed::Some,
            Err(_) => Passed::Over,
        }
    }

    /// Copies the remaining output of a command that has ended, as long as it is read and no signal stops the
    /// wait.
    fn finish(mut self, signals: &SignalStream) {
        let mut pieces = HELD / PIECE;
        while pieces > 0 {
            match self.pass_output() {
                Passed::Some => pieces -= 1,
                Passed::Over => return,
                Passed::All if self.output.is_empty() => return,
                Passed::All => {
                    let mut polled = [
                        PollFd::new(signals.as_fd(), poll::IN),
                        PollFd::new(rustix::stdio::stdout(), poll::OUT),
                    ];
                    let _ = poll::poll(&mut polled, None);
                    while let Ok(Some(signal)) = signals.next() {
                        if !matches!(signal.signal, SIGCHLD | SIGWINCH | SIGCONT) {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Reads a piece. `None` if nothing is available now.
fn read(from: BorrowedFd<'_>) -> sys::Result<Option<Vec<u8>>> {
    let mut piece = vec![0; PIECE];
    match sys::fd::read(from, &mut piece) {
        Ok(len) => {
            piece.truncate(len);
            Ok(Some(piece))
        }
        Err(error) if error.is(Errno::EINTR) || error.is(Errno::EAGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes as many bytes as there is room for.
fn write(to: BorrowedFd<'_>, bytes: &mut Vec<u8>) -> sys::Result<()> {
    match sys::fd::write(to, bytes) {
        Ok(len) => drop(bytes.drain(..len)),
        Err(error) if error.is(Errno::EINTR) || error.is(Errno::EAGAIN) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn is_ready(fd: BorrowedFd<'_>, events: i16) -> bool {
    let mut polled = [PollFd::new(fd, events)];
    poll::poll(&mut polled, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
}

fn forwarded() -> Vec<i32> {
    SIGNALS.filter(|signal| !OWN.contains(signal)).collect()
}

impl Foreground {
    /// Records forwarded signals instead of being killed by them, which would leave a half-made command. The
    /// command inherits no handler: an exec resets them.
    pub(super) fn begin() -> Self {
        let came = forwarded().into_iter().map(|signal| {
            let came = Arc::new(AtomicBool::new(false));
            // Never fails for these signals.
            let _ = signal_hook::flag::register(signal, Arc::clone(&came));
            (signal, came)
        });
        Self {
            came: came.collect(),
        }
    }

    /// Forwards signals, copies the terminal's data, and waits for the end. Returns the exit status.
    pub(super) fn wait_for(self, pid: i32, mut terminal: Option<Terminal>) -> Result<u8, Failure> {
        // A closed output must not end this process before the command.
        sys::signal::set_disposition(SIGPIPE, Disposition::Ignore).map_err(cannot)?;
        let mut all = forwarded();
        all.extend([SIGCHLD, SIGWINCH]);
        sys::signal::change_mask(MaskChange::Block, SignalSet::of(&all)).map_err(cannot)?;
        let stream = SignalStream::new(SignalSet::of(&all)).map_err(cannot)?;
        for (signal, came) in self.came {
            if came.load(Ordering::Acquire) {
                // Fails only if the command has just ended.
                let _ = sys::signal::send(pid, signal);
            }
        }
        if let Some(terminal) = &terminal {
            terminal.resize();
        }
        loop {
            // The command may have ended before this.
            let ended = match wait::wait(Target::Pid(pid), wait::NO_HANG) {
                Ok(Some((_, status))) if status.is_end() => Some(status),
                Ok(_) => None,
                Err(error) if error.is(Errno::EINTR) => None,
                Err(error) => return Err(cannot(error)),
            };
            if let Some(status) = ended {
                if let Some(terminal) = terminal {
                    terminal.finish(&stream);
                }
                let code = status.shell_code().and_then(|code| u8::try_from(code).ok());
                return Ok(code.unwrap_or(u8::MAX));
            }
            let passed = terminal.as_mut().map(|terminal| {
                terminal.pass_input();
                terminal.pass_output()
            });
            if let Some(Passed::Over) = passed {
                // The command sees a closed terminal.
                terminal = None;
            }
            let mut polled = vec![PollFd::new(stream.as_fd(), poll::IN)];
            if let Some(terminal) = &terminal {
                polled.extend(terminal.polled().into_iter().flatten());
            }
            // Whatever woke the poll, all sources are checked.
            let _ = poll::poll(&mut polled, None);
            pass_signals(&stream, pid, terminal.as_ref());
        }
    }
}

fn cannot(error: sys::SyscallError) -> Failure {
    let message = format!("cannot wait for the container: {error}");
    Failure::new(Exit::Internal, message).help("look for it with `list`")
}

/// Forwards the signals that have arrived.
fn pass_signals(stream: &SignalStream, pid: i32, terminal: Option<&Terminal>) {
    while let Ok(Some(signal)) = stream.next() {
        match (signal.signal, terminal) {
            (SIGWINCH, Some(terminal)) => terminal.resize(),
            (SIGWINCH | SIGCHLD, _) => {}
            (signal, _) => {
                // Fails only if the command has just ended.
                let _ = sys::signal::send(pid, signal);
            }
        }
    }
}

pub(super) const SIGPIPE: i32 = Signal::SIGPIPE.0;
const SIGCHLD: i32 = Signal::SIGCHLD.0;
const SIGCONT: i32 = Signal::SIGCONT.0;
pub(super) const SIGKILL: i32 = Signal::SIGKILL.0;
const SIGWINCH: i32 = Signal::SIGWINCH.0;
