//! Standing for a container's process, or a session's, until that ends; and for its terminal, if it has one.

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

/// All that the kernel lets programs use.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;
/// Those that are not the command's, if it runs in the foreground: what cannot be caught, what is about this process
/// itself, and the two that the C library has for itself.
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
/// What goes over at once: a pipe that has room has it for this much, so that nothing waits.
const PIECE: usize = 4096;
/// The most that a terminal holds of a command that has ended; what comes after that is of others.
const HELD: usize = 256 * 1024;

/// Where a container's side hands the terminal over that it has made.
pub(super) struct Console {
    /// Only this user may connect.
    folder: TempDir,
    listener: UnixListener,
}

/// The end of a terminal that is not the container's.
pub(super) struct Terminal {
    master: OwnedFd,
    /// The other end: as long as it is open here, the container can close its own and open it again.
    _kept: OwnedFd,
    /// What was read from standard input and is not in the terminal yet.
    input: Vec<u8>,
    input_ended: bool,
    /// What the terminal has said and nobody has yet.
    output: Vec<u8>,
    /// How the caller's terminal was.
    _callers: Option<Raw>,
}

/// Signals that came while the command was made, which then was nobody to pass them on to.
pub(super) struct Foreground {
    came: Vec<(i32, Arc<AtomicBool>)>,
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
            // Whoever reads the output does not want a terminal's line ends; a terminal makes them itself.
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
    /// `None`: standard input is no terminal.
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
        // A terminal that is gone needs nothing.
        let _ = termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}

/// What became of the output.
enum Passed {
    /// There is no more, or nobody takes more now.
    All,
    Some,
    /// Nobody will ever take it, or say more.
    Over,
}

impl Terminal {
    /// Gives it the size of the caller's, if that is a terminal.
    fn resize(&self) {
        // Programs that ask for the size get along without one.
        let _ = termios::tcgetwinsize(rustix::stdio::stdin())
            .and_then(|size| termios::tcsetwinsize(&self.master, size));
    }

    /// What is to be waited for: something to read, and room for what was read.
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

    /// Passes a piece of input on, if there is some, without waiting.
    fn pass_input(&mut self) {
        let stdin = rustix::stdio::stdin();
        if self.input.is_empty() && !self.input_ended && is_ready(stdin, poll::IN) {
            match read(stdin) {
                Ok(Some(piece)) if piece.is_empty() => self.input_ended = true,
                Ok(Some(piece)) => self.input = piece,
                // Somebody else has read it.
                Ok(None) => {}
                // As when it ends: what cannot be read does not end the command.
                Err(_) => self.input_ended = true,
            }
        }
        if !self.input.is_empty() && write(self.master.as_fd(), &mut self.input).is_err() {
            // Nobody is there to read it.
            self.input.clear();
        }
    }

    /// Passes a piece of output on, if there is some, without waiting.
    fn pass_output(&mut self) -> Passed {
        // To ask has the kernel bring here what was written at the other end.
        if self.output.is_empty() && is_ready(self.master.as_fd(), poll::IN) {
            match read(self.master.as_fd()) {
                Ok(Some(piece)) => self.output = piece,
                Ok(None) => {}
                // It has been hung up, as all that has it open but this end.
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

    /// Passes on what a command has left that has ended, as long as somebody takes it and no signal says that it is
    /// not to be waited for.
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

/// Reads a piece; `None`: there is none now.
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

/// Writes what there is room for.
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
    /// From now on no signal that is the command's ends this process, which would leave half of one. The command
    /// inherits nothing of that: an exec forgets it.
    pub(super) fn begin() -> Self {
        let came = forwarded().into_iter().map(|signal| {
            let came = Arc::new(AtomicBool::new(false));
            // Fails for no signal of these.
            let _ = signal_hook::flag::register(signal, Arc::clone(&came));
            (signal, came)
        });
        Self {
            came: came.collect(),
        }
    }

    /// Passes signals on, and what goes over the terminal, and waits for the end.
    pub(super) fn wait_for(self, pid: i32, mut terminal: Option<Terminal>) -> Result<u8, Failure> {
        // Whoever does not take the output any more is not to end this process before the command.
        sys::signal::set_disposition(SIGPIPE, Disposition::Ignore).map_err(cannot)?;
        let mut all = forwarded();
        all.extend([SIGCHLD, SIGWINCH]);
        sys::signal::change_mask(MaskChange::Block, SignalSet::of(&all)).map_err(cannot)?;
        let stream = SignalStream::new(SignalSet::of(&all)).map_err(cannot)?;
        for (signal, came) in self.came {
            if came.load(Ordering::Acquire) {
                // Fails only if it has just ended.
                let _ = sys::signal::send(pid, signal);
            }
        }
        if let Some(terminal) = &terminal {
            terminal.resize();
        }
        loop {
            // It may have ended before its end was waited for.
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
                // The command is told as by a terminal that was closed.
                terminal = None;
            }
            let mut polled = vec![PollFd::new(stream.as_fd(), poll::IN)];
            if let Some(terminal) = &terminal {
                polled.extend(terminal.polled().into_iter().flatten());
            }
            // Whatever woke it, everything is looked at.
            let _ = poll::poll(&mut polled, None);
            pass_signals(&stream, pid, terminal.as_ref());
        }
    }
}

fn cannot(error: sys::SyscallError) -> Failure {
    let message = format!("cannot wait for the container: {error}");
    Failure::new(Exit::Internal, message).help("look for it with `list`")
}

/// Passes on the signals that have come.
fn pass_signals(stream: &SignalStream, pid: i32, terminal: Option<&Terminal>) {
    while let Ok(Some(signal)) = stream.next() {
        match (signal.signal, terminal) {
            (SIGWINCH, Some(terminal)) => terminal.resize(),
            (SIGWINCH | SIGCHLD, _) => {}
            (signal, _) => {
                // Fails only if it has just ended.
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
