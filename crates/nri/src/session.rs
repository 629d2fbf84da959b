//! A connection with threads: each event gets one, so that a handler that is stuck holds up no other.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::protocol::{Answer, Event, Options, Protocol, ProtocolError, Step};
use crate::{Demultiplexer, FrameError};

/// How long a runtime may take to accept a plug-in. containerd gives a plug-in 5 s for the same.
const REGISTRATION: Duration = Duration::from_secs(5);
/// How long a runtime may take to read an answer.
const WRITE: Duration = Duration::from_secs(2);
/// Maximum number of handlers that have missed their deadline and still run. With more, an event is answered at once.
const MAX_LATE: usize = 8;

/// Decides about events.
///
/// Methods may run at the same time on several threads.
pub trait Plugin: Send + Sync + 'static {
    /// Decides about an event. It should take milliseconds: the runtime waits, and with it every other container of
    /// the node.
    fn handle(&self, event: &Event) -> Answer;

    /// The answer to an event whose handler has missed its deadline, or that has no handler because too many are stuck.
    /// It must not wait for anything.
    fn too_late(&self, event: &Event) -> Answer;

    /// Hears what a handler answered after its deadline, when the runtime had [`Plugin::too_late`]'s answer already.
    fn late(&self, event: &Event, answer: Answer);
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The socket failed.
    #[error("cannot {doing} the runtime")]
    Socket {
        /// What was being done.
        doing: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The runtime does not follow the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The runtime closed the connection before it accepted the plug-in.
    #[error("the runtime closed the connection before it accepted the plug-in")]
    Closed,
}

impl From<FrameError> for SessionError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.into())
    }
}

/// Registers a plug-in on a connection, and passes events to it until the runtime ends the connection.
///
/// # Errors
///
/// If the runtime refuses the plug-in or does not follow the protocol, or the socket fails. The caller connects again:
/// the runtime then lists everything that exists.
pub fn run(
    stream: UnixStream,
    options: Options,
    plugin: &Arc<dyn Plugin>,
) -> Result<(), SessionError> {
    let socket = |doing| move |source| SessionError::Socket { doing, source };
    stream
        .set_read_timeout(Some(REGISTRATION))
        .map_err(socket("connect to"))?;
    stream
        .set_write_timeout(Some(WRITE))
        .map_err(socket("connect to"))?;
    let mut session = Session {
        workers: Workers {
            plugin: Arc::clone(plugin),
            deadline: options.deadline,
            late: Arc::default(),
        },
        protocol: Protocol::new(options),
        is_registered: false,
        stream,
    };
    session.send(&session.protocol.register()?)?;
    let mut demultiplexer = Demultiplexer::default();
    let mut buffer = [0; 64 << 10];
    loop {
        let length = match session.stream.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(socket("read from")(error)),
        };
        if length == 0 {
            return match session.is_registered {
                true => Ok(()),
                false => Err(SessionError::Closed),
            };
        }
        for message in demultiplexer.push(&buffer[..length])? {
            if session.take(&message)? {
                return Ok(());
            }
        }
    }
}

struct Session {
    stream: UnixStream,
    protocol: Protocol,
    workers: Workers,
    is_registered: bool,
}

impl Session {
    fn send(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.stream
            .write_all(bytes)
            .map_err(|source| SessionError::Socket {
                doing: "write to",
                source,
            })
    }

    /// Takes a message; true if the runtime ends the connection.
    fn take(&mut self, message: &crate::Message) -> Result<bool, SessionError> {
        match self.protocol.receive(message)? {
            Step::Nothing => Ok(false),
            Step::Send(bytes) => self.send(&bytes).map(|()| false),
            Step::Registered => {
                self.is_registered = true;
                // From now on the runtime speaks when something happens.
                let set = self.stream.set_read_timeout(None);
                set.map(|()| false).map_err(|source| SessionError::Socket {
                    doing: "read from",
                    source,
                })
            }
            Step::Deliver { stream, event } => {
                let event = Arc::new(*event);
                let answer = self.workers.answer(&event);
                let bytes = self.protocol.answer(stream, &event, &answer)?;
                self.send(&bytes)?;
                Ok(*event == Event::Shutdown)
            }
        }
    }
}

/// Runs handlers.
struct Workers {
    plugin: Arc<dyn Plugin>,
    deadline: Duration,
    /// Handlers that have missed their deadline and still run.
    late: Arc<AtomicUsize>,
}

impl Workers {
    /// The plug-in's answer, at the latest at the deadline.
    fn answer(&self, event: &Arc<Event>) -> Answer {
        if self.late.load(Ordering::Acquire) >= MAX_LATE {
            return self.plugin.too_late(event);
        }
        let (sender, receiver) = mpsc::sync_channel(0);
        let plugin = Arc::clone(&self.plugin);
        let (of_worker, late) = (Arc::clone(event), Arc::clone(&self.late));
        late.fetch_add(1, Ordering::AcqRel);
        let worker = thread::Builder::new()
            .name("nri-event".to_owned())
            .spawn(move || {
                let count = Countdown(late);
                let answer = plugin.handle(&of_worker);
                // Nobody receives after the deadline.
                if let Err(mpsc::SendError(answer)) = sender.send(answer) {
                    plugin.late(&of_worker, answer);
                }
                drop(count);
            });
        if worker.is_err() {
            self.late.fetch_sub(1, Ordering::AcqRel);
            return self.plugin.too_late(event);
        }
        match receiver.recv_timeout(self.deadline) {
            Ok(answer) => answer,
            // A handler that panicked has no answer, either.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                drop(receiver);
                self.plugin.too_late(event)
            }
        }
    }
}

/// Counts a worker down when it ends, also by a panic.
struct Countdown(Arc<AtomicUsize>);

impl Drop for Countdown {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
