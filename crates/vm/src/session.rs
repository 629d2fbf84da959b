//! A host process that stands for a program in a machine: it forwards standard input, output, error
//! and signals, and exits with the program's status.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use runtime::Call;
use sys::signal::{SignalSet, SignalStream};

use super::{OWN, caller, cannot, process, this_program, write_pid};
use crate::frame::PIECE;
use crate::{Frame, FrameError, Kind};

/// Signals that are forwarded: all that can be caught, except those that concern this process
/// (SIGCHLD, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH) or report its own faults.
const PASSED_ON: [i32; 9] = [1, 2, 3, 10, 12, 14, 15, 18, 29];
/// Exit status if the machine ends before the program, as a shell reports SIGKILL.
const LOST: u8 = 137;

/// End of a program in a machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The program exited with this status, as in a shell.
    Exited(u8),
    /// The program did not start.
    Failed(String),
}

impl SessionEnd {
    pub(super) fn outcome(self) -> Outcome {
        match self {
            Self::Exited(code) => Ok(Exit::Command(code)),
            Self::Failed(why) => Err(Failure::new(Exit::Internal, why)
                .help("check console.log in the folder of the container")),
        }
    }
}

/// Starts another program in a machine and stands for it, or leaves that to another process.
pub(super) fn begin(mut stream: UnixStream, process: &[u8], call: &Call) -> Outcome {
    let signals = catch()?;
    Frame::new(OWN, Kind::Start, process::start(process))
        .write(&mut stream)
        .map_err(cannot("reach the machine"))?;
    match Frame::read(&mut stream) {
        Ok(answer) if answer.kind == Kind::Done => {}
        Ok(answer) => {
            let why = String::from_utf8_lossy(&answer.content).into_owned();
            return SessionEnd::Failed(why).outcome();
        }
        Err(error) => return Err(cannot("reach the machine")(io::Error::other(error))),
    }
    let file = call.values(&["pid-file"]).last();
    if !call.detaches {
        file.map_or(Ok(()), |file| write_pid(file, std::process::id()))?;
        return attend(stream, signals, StartState::Yes).outcome();
    }
    rustix::io::fcntl_setfd(&stream, rustix::io::FdFlags::empty())
        .map_err(|error| cannot("start a process")(error.into()))?;
    let child = this_program()
        .arg(super::SESSION)
        .arg(caller::number(&stream))
        .process_group(0)
        .spawn();
    let child = child.map_err(cannot("start a process"))?;
    file.map_or(Ok(()), |file| write_pid(file, child.id()))?;
    Ok(Exit::Ok)
}

/// Stands for a detached program. The argument is the number of its descriptor.
pub(super) fn hold(args: &[OsString]) -> Outcome {
    super::monitor::name_this();
    let signals = catch()?;
    let line = caller::inherited(args.first())?;
    attend(line.into(), signals, StartState::Yes).outcome()
}

/// Blocks signals for forwarding. Must be called before other threads start.
pub(super) fn catch() -> Result<SignalStream, Failure> {
    SignalStream::new(SignalSet::of(&PASSED_ON))
        .map_err(|error| cannot("wait for signals")(error.into()))
}

/// State of the program in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartState {
    Yes,
    NotYet,
}

/// Stands for a program in a machine until it ends.
pub(super) fn attend(stream: UnixStream, signals: SignalStream, began: StartState) -> SessionEnd {
    let lost =
        |error: io::Error| SessionEnd::Failed(format!("cannot reach the virtual machine: {error}"));
    let writer = match stream.try_clone() {
        Ok(writer) => Arc::new(Mutex::new(writer)),
        Err(error) => return lost(error),
    };
    let (taken, was_taken) = mpsc::channel();
    let mut feeders = Some((signals, was_taken));
    let mut begin = || {
        if let Some(feeders) = feeders.take() {
            feed(&writer, feeders);
        }
    };
    if began == StartState::Yes {
        begin();
    }
    let mut reader = io::BufReader::new(stream);
    loop {
        let frame = match Frame::read(&mut reader) {
            Ok(frame) => frame,
            Err(FrameError::Ended) => return SessionEnd::Exited(LOST),
            Err(error) => return lost(io::Error::other(error)),
        };
        match frame.kind {
            Kind::Done => begin(),
            Kind::Failed => {
                return SessionEnd::Failed(String::from_utf8_lossy(&frame.content).into_owned());
            }
            Kind::Exited => {
                return SessionEnd::Exited(frame.content.first().copied().unwrap_or(LOST));
            }
            Kind::Output | Kind::Error => {
                // If the reader of the output is gone, the program is not informed: it ends by
                // itself or by a signal.
                let _ = match frame.kind {
                    Kind::Output => put(&mut io::stdout().lock(), &frame.content),
                    _ => put(&mut io::stderr().lock(), &frame.content),
                };
                send(&writer, Kind::Taken, &[frame.kind.byte()]);
            }
            Kind::Taken => answered(&taken),
            _ => {}
        }
    }
}

fn answered(taken: &Sender<()>) {
    // The reader is gone once the standard input has ended.
    let _ = taken.send(());
}

fn put(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

fn feed(writer: &Arc<Mutex<UnixStream>>, (signals, was_taken): (SignalStream, Receiver<()>)) {
    let line = Arc::clone(writer);
    std::thread::spawn(move || pass_input_on(&line, &was_taken));
    let line = Arc::clone(writer);
    std::thread::spawn(move || pass_signals_on(&line, &signals));
}

/// Forwards the input one chunk at a time, and an empty chunk at its end.
fn pass_input_on(line: &Mutex<UnixStream>, was_taken: &Receiver<()>) {
    let mut bytes = vec![0; PIECE];
    loop {
        // An input that cannot be read has ended.
        let size = io::stdin().lock().read(&mut bytes).unwrap_or(0);
        send(line, Kind::Input, &bytes[..size]);
        if size == 0 || was_taken.recv().is_err() {
            return;
        }
    }
}

fn pass_signals_on(line: &Mutex<UnixStream>, signals: &SignalStream) {
    loop {
        let mut polled = [sys::poll::PollFd::new(signals.as_fd(), sys::poll::IN)];
        // The reason for waking does not matter; everything is checked.
        let _ = sys::poll::poll(&mut polled, None);
        while let Ok(Some(signal)) = signals.next() {
            if let Ok(number) = u8::try_from(signal.signal) {
                send(line, Kind::Signal, &[number]);
            }
        }
    }
}

/// Sends a frame. A failed connection ends its reader, which reports it.
fn send(line: &Mutex<UnixStream>, kind: Kind, content: &[u8]) {
    let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = Frame::new(OWN, kind, content).write(&mut *line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_as_the_other_side_says_or_with_it() {
        let attended = |frames: &[Frame]| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            for frame in frames {
                frame.write(&mut theirs).unwrap();
            }
            drop(theirs);
            // No signal is caught: other tests run in this process.
            let none = SignalStream::new(SignalSet::of(&[])).unwrap();
            attend(ours, none, StartState::NotYet)
        };
        let frame = |kind, content: &[u8]| Frame::new(OWN, kind, content);
        assert_eq!(
            attended(&[frame(Kind::Exited, &[7])]),
            SessionEnd::Exited(7)
        );
        assert_eq!(attended(&[]), SessionEnd::Exited(LOST));
        let failed = attended(&[frame(Kind::Taken, &[]), frame(Kind::Failed, b"no")]);
        assert_eq!(failed, SessionEnd::Failed("no".to_owned()));
    }
}
