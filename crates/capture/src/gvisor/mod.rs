//! Capture engine `gvisor`: programs under runsc, from the events of gVisor's kernel.
//!
//! For each point that a trace session names, runsc sends a message to a socket that this engine listens at,
//! on one connection for each sandbox ([`configuration`] makes the session from the plan). The sandbox does
//! not wait for the engine: if it cannot send in time it counts the loss and reports it in its next message.
//! The workload may have taken over the sandbox that sends, so messages are untrusted input to the
//! evaluation: lengths are checked, tables have limits, and each sandbox has a thread, a process table and a
//! socket of its own.

mod calls;
mod message;
mod processes;
mod sandbox;
mod session;
mod system_info;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod wire;

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use event::{Evaluator, Plan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, recv, send, socket_with,
};

use crate::notify::{EngineObserver, Losses, RulesHandle, RulesTarget};
pub use calls::tells_argument;
use sandbox::Sandbox;
pub use session::{configuration, unreported};

/// Maximum length of a message; gVisor's own server accepts as much.
const MESSAGE_LIMIT: usize = 1 << 20;
/// Maximum length of a handshake message, as in gVisor.
const HANDSHAKE_LIMIT: usize = 10_240;
/// Handshake for the only version of the protocol: field 1 is 1.
const HANDSHAKE: [u8; 2] = [0x08, 0x01];
/// Maximum time for a sandbox's handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Maximum number of sandboxes at once; each has a thread.
const SANDBOXES: u64 = 512;
/// Interval at which threads check whether they are to end.
const TICK: Duration = Duration::from_millis(100);
/// Time between two reports of losses.
const LOSS_INTERVAL: Duration = Duration::from_secs(1);

/// Reason why the engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket cannot be created.
    #[error("cannot listen on {}", .path.display())]
    Listen {
        /// Path of the socket.
        path: PathBuf,
        /// Cause.
        #[source]
        cause: io::Error,
    },
    /// Another process listens there.
    #[error("cannot listen on {}: another process already does", .path.display())]
    Taken {
        /// Path of the socket.
        path: PathBuf,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// Components of an engine.
pub struct Parts<J: Evaluator> {
    /// Evaluates events.
    pub evaluator: Arc<J>,
    /// Receives reports about the engine itself.
    pub notices: Arc<dyn EngineObserver>,
    /// Command names that the rules compare with ([`Plan::names`]).
    pub names: BTreeSet<Vec<u8>>,
    /// Socket that sandboxes connect to.
    pub endpoint: Endpoint,
    /// Folder of the state of container runtimes.
    pub state_root: PathBuf,
}

/// Socket that sandboxes connect to; dropping it removes its path.
#[derive(Debug)]
pub struct Endpoint {
    socket: OwnedFd,
    path: PathBuf,
}

impl Endpoint {
    /// Listens at a path that is free, or that holds a stale socket.
    ///
    /// # Errors
    ///
    /// If another process listens there, or the path cannot be used.
    pub fn listen(path: &Path) -> Result<Self, Error> {
        let failed = |cause: rustix::io::Errno| Error::Listen {
            path: path.to_owned(),
            cause: cause.into(),
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let make = || {
            let flags = SocketFlags::CLOEXEC;
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)
        };
        let socket = make()?;
        if let Err(error) = bind(&socket, &address) {
            if error != rustix::io::Errno::ADDRINUSE {
                return Err(failed(error));
            }
            if rustix::net::connect(&make()?, &address).is_ok() {
                return Err(Error::Taken {
                    path: path.to_owned(),
                });
            }
            let is_socket = |data: std::fs::Metadata| {
                std::os::unix::fs::FileTypeExt::is_socket(&data.file_type())
            };
            // Any other file belongs to another program.
            if !std::fs::symlink_metadata(path).is_ok_and(is_socket) {
                return Err(failed(error));
            }
            std::fs::remove_file(path).map_err(|cause| Error::Listen {
                path: path.to_owned(),
                cause,
            })?;
            bind(&socket, &address).map_err(failed)?;
        }
        listen(&socket, 128).map_err(failed)?;
        Ok(Self {
            socket,
            path: path.to_owned(),
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Another process may have removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Running totals.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    sandboxes: AtomicU64,
    connected: AtomicU64,
    refused: AtomicU64,
    messages: AtomicU64,
    evaluated: AtomicU64,
    dropped: AtomicU64,
    malformed: AtomicU64,
    truncated: AtomicU64,
    unknown_messages: AtomicU64,
    unknown_calls: AtomicU64,
    unreadable: AtomicU64,
    undecided: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, number: u64) {
        counter.fetch_add(number, Ordering::Relaxed);
    }
}

/// Copy of the totals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GvisorCounters {
    /// Sandboxes that have connected so far.
    pub sandboxes: u64,
    /// Sandboxes that are connected now.
    pub connected: u64,
    /// Sandboxes that did not speak the protocol, or exceeded the limit.
    pub refused: u64,
    /// Messages received.
    pub messages: u64,
    /// Events evaluated.
    pub evaluated: u64,
    /// Messages that sandboxes report as lost.
    pub dropped: u64,
    /// Messages that could not be parsed.
    pub malformed: u64,
    /// Messages that were too long.
    pub truncated: u64,
    /// Messages of an unknown type.
    pub unknown_messages: u64,
    /// Calls with an unknown number.
    pub unknown_calls: u64,
    /// Calls with arguments that gVisor does not report.
    pub unreadable: u64,
    /// Rules left undecided because data was unavailable.
    pub undecided: u64,
}

/// State that all threads share.
pub(crate) struct Shared<J: Evaluator> {
    evaluator: ArcSwap<J>,
    notices: Arc<dyn EngineObserver>,
    names: ArcSwap<BTreeSet<Vec<u8>>>,
    counters: Counters,
    events: AtomicU64,
    host_name: String,
    state_root: PathBuf,
    stopping: AtomicBool,
    /// True once losses were so high that the engine must end.
    ended: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<J: Evaluator> Shared<J> {
    fn snapshot(&self) -> GvisorCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        GvisorCounters {
            sandboxes: get(&counters.sandboxes),
            connected: get(&counters.connected),
            refused: get(&counters.refused),
            messages: get(&counters.messages),
            evaluated: get(&counters.evaluated),
            dropped: get(&counters.dropped),
            malformed: get(&counters.malformed),
            truncated: get(&counters.truncated),
            unknown_messages: get(&counters.unknown_messages),
            unknown_calls: get(&counters.unknown_calls),
            unreadable: get(&counters.unreadable),
            undecided: get(&counters.undecided),
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl<J: Evaluator> RulesTarget<J> for Shared<J> {
    /// The sessions stay as they are: new rules do not get points that the sessions lack.
    fn replace(&self, evaluator: Arc<J>, plan: &Plan, _paths: &[Vec<u8>]) {
        self.names.store(Arc::new(plan.names.clone()));
        self.evaluator.store(evaluator);
    }

    fn evaluator(&self) -> Arc<J> {
        self.evaluator.load_full()
    }
}

/// A running engine.
pub struct Engine<J: Evaluator> {
    shared: Arc<Shared<J>>,
    acceptor: JoinHandle<LossSnapshot>,
}

impl<J: Evaluator + 'static> Engine<J> {
    /// Starts accepting sandboxes.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(parts: Parts<J>) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            evaluator: ArcSwap::new(parts.evaluator),
            notices: parts.notices,
            names: ArcSwap::from_pointee(parts.names),
            counters: Counters::default(),
            events: AtomicU64::new(0),
            host_name: decoder::host::host_name(),
            state_root: parts.state_root,
            stopping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        let (serving, endpoint) = (Arc::clone(&shared), parts.endpoint);
        let acceptor = std::thread::Builder::new()
            .name("gvisor".to_owned())
            .spawn(move || accept_all(&serving, &endpoint))
            .map_err(Error::Thread)?;
        Ok(Self { shared, acceptor })
    }

    /// Returns a handle that replaces the rules.
    pub fn rulings(&self) -> RulesHandle<J> {
        RulesHandle::new(Arc::clone(&self.shared) as _)
    }

    /// Returns a source of the totals that outlives the engine.
    pub fn counter_source(&self) -> Arc<dyn Fn() -> GvisorCounters + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || shared.snapshot())
    }

    /// Returns whether the engine has ended by itself because of losses.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Stops accepting sandboxes, and reads only messages that have arrived. [`Engine::join`] waits for that.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
    }

    /// Waits until the engine ends.
    pub fn join(self) -> GvisorCounters {
        // A thread that panicked has ended, too.
        let looked = self.acceptor.join();
        let threads = std::mem::take(
            &mut *self
                .shared
                .threads
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for thread in threads {
            let _ = thread.join();
        }
        if let Ok(mut looked) = looked {
            // Losses of the last second; the engine ends anyway.
            let _ = looked.report(&self.shared);
        }
        self.shared.snapshot()
    }
}

/// Totals at the last report of losses.
struct LossSnapshot {
    when: Instant,
    dropped: u64,
    messages: u64,
}

impl LossSnapshot {
    fn now<J: Evaluator>(shared: &Shared<J>) -> Self {
        let counters = &shared.counters;
        Self {
            when: Instant::now(),
            dropped: counters.dropped.load(Ordering::Relaxed),
            messages: counters.messages.load(Ordering::Relaxed),
        }
    }

    /// Reports losses since the last report. Returns whether the engine may go on.
    fn report<J: Evaluator>(&mut self, shared: &Shared<J>) -> ControlFlow<()> {
        let before = std::mem::replace(self, Self::now(shared));
        let dropped = self.dropped - before.dropped;
        if dropped == 0 {
            return ControlFlow::Continue(());
        }
        shared.notices.events_dropped(&Losses {
            dropped,
            sent: self.messages - before.messages,
            // A sandbox does not say which calls it lost.
            ..Losses::default()
        })
    }
}

fn accept_all<J: Evaluator + 'static>(
    shared: &Arc<Shared<J>>,
    endpoint: &Endpoint,
) -> LossSnapshot {
    let mut looked = LossSnapshot::now(shared);
    while !shared.is_stopping() {
        if looked.when.elapsed() >= LOSS_INTERVAL && looked.report(shared).is_break() {
            shared.stopping.store(true, Ordering::Release);
            shared.ended.store(true, Ordering::Release);
            break;
        }
        if !is_readable(&endpoint.socket, TICK) {
            continue;
        }
        // The peer is gone again, or descriptors are short: the next accept may succeed.
        let Ok(connection) = accept_with(&endpoint.socket, SocketFlags::CLOEXEC) else {
            std::thread::sleep(TICK);
            continue;
        };
        let counters = &shared.counters;
        Counters::add(&counters.sandboxes, 1);
        if counters.connected.load(Ordering::Relaxed) >= SANDBOXES {
            Counters::add(&counters.refused, 1);
            continue;
        }
        Counters::add(&counters.connected, 1);
        let serving = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name("sandbox".to_owned())
            .spawn(move || {
                serve(&serving, &connection);
                serving.counters.connected.fetch_sub(1, Ordering::Relaxed);
            });
        let mut threads = shared
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                counters.connected.fetch_sub(1, Ordering::Relaxed);
                shared.notices.engine_trouble(&Error::Thread(error));
            }
        }
    }
    looked
}

/// Serves one sandbox until it disconnects.
fn serve<J: Evaluator + 'static>(shared: &Arc<Shared<J>>, connection: &OwnedFd) {
    if !greet(connection) {
        return Counters::add(&shared.counters.refused, 1);
    }
    let mut sandbox = Sandbox::new(Arc::clone(shared));
    let mut buffer = vec![0_u8; MESSAGE_LIMIT];
    loop {
        if !is_readable(connection, TICK) {
            if shared.is_stopping() {
                return;
            }
            continue;
        }
        match recv(connection, &mut buffer[..], RecvFlags::TRUNC) {
            // An empty read is the end: no message is empty.
            Ok((_, 0)) => return,
            Ok((_, len)) if len > MESSAGE_LIMIT => Counters::add(&shared.counters.truncated, 1),
            Ok((_, len)) => sandbox.receive(&buffer[..len]),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Answers a sandbox's handshake.
fn greet(connection: &OwnedFd) -> bool {
    if !is_readable(connection, HANDSHAKE_TIME) {
        return false;
    }
    let mut buffer = [0_u8; HANDSHAKE_LIMIT];
    let Ok((_, len)) = recv(connection, &mut buffer[..], RecvFlags::TRUNC) else {
        return false;
    };
    let Some(hello) = buffer.get(..len) else {
        return false;
    };
    let version = wire::Fields::of(hello).find_map(|field| match field {
        Ok((1, wire::Value::Number(version))) => Some(version),
        _ => None,
    });
    // A later version understands this one.
    version.is_some_and(|version| version >= 1)
        && send(connection, &HANDSHAKE, SendFlags::NOSIGNAL).is_ok()
}

/// Returns whether there is data to read, or the end of the connection.
fn is_readable(fd: &impl AsFd, patience: Duration) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    let patience = Timespec::try_from(patience).expect("it is short");
    poll(&mut polled, Some(&patience)).is_ok_and(|ready| ready > 0)
}
