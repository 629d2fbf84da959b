//! Capture engine `gvisor`: programs under runsc, by what gVisor's kernel tells of them.
//!
//! runsc sends a message for each point that a trace session names to a socket that this engine listens
//! at, one connection for each sandbox ([`configuration`] makes the session from the plan). Nobody
//! waits for the engine: a sandbox that cannot send in time counts what it loses and says so in its next
//! message. The sender may be a sandbox that its workload has taken over, so nothing it says is
//! trusted further than to be judged: lengths are checked, tables have limits, and each sandbox has a
//! thread, a process table and a socket of its own.

mod calls;
mod message;
mod processes;
mod sandbox;
mod session;
mod system_info;
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
pub use session::{configuration, untold};

/// Longest message that is taken; gVisor's own server takes as much.
const MESSAGE_LIMIT: usize = 1 << 20;
/// Longest greeting, as gVisor has it.
const HANDSHAKE_LIMIT: usize = 10_240;
/// The only version of the protocol that there is: field 1 is 1.
const HANDSHAKE: [u8; 2] = [0x08, 0x01];
/// How long a sandbox may take to say hello.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Sandboxes at once; each has a thread.
const SANDBOXES: u64 = 512;
/// How often the threads look whether they are to end.
const TICK: Duration = Duration::from_millis(100);
/// Time between two looks at losses.
const LOSS_INTERVAL: Duration = Duration::from_secs(1);

/// Why the engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket cannot be made.
    #[error("cannot listen at {}", .path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// Something else listens there.
    #[error("cannot listen at {}: somebody does already", .path.display())]
    Taken {
        /// Where.
        path: PathBuf,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// What an engine is made of.
pub struct Parts<J: Evaluator> {
    /// Evaluates events.
    pub judge: Arc<J>,
    /// Is told about the engine's own troubles.
    pub notices: Arc<dyn EngineObserver>,
    /// Command names that the rules compare with ([`Plan::names`]).
    pub names: BTreeSet<Vec<u8>>,
    /// Where sandboxes connect to.
    pub endpoint: Endpoint,
    /// Where the state of container runtimes is looked for.
    pub state_root: PathBuf,
}

/// The socket that sandboxes connect to; its name goes with it.
#[derive(Debug)]
pub struct Endpoint {
    socket: OwnedFd,
    path: PathBuf,
}

impl Endpoint {
    /// Listens at a path, where nothing is or what somebody left who does not listen any more.
    ///
    /// # Errors
    ///
    /// If somebody listens there, or the path cannot be used.
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
            // Whatever else is there is somebody's.
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
        // It may have been removed by somebody who cleaned up.
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
    judged: AtomicU64,
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

/// The totals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GvisorCounters {
    /// Sandboxes that have connected so far.
    pub sandboxes: u64,
    /// Those that are connected.
    pub connected: u64,
    /// Those that did not speak the protocol, or were too many.
    pub refused: u64,
    /// Messages received.
    pub messages: u64,
    /// Events shown to the rules.
    pub judged: u64,
    /// Messages that sandboxes say they lost.
    pub dropped: u64,
    /// Messages that could not be read.
    pub malformed: u64,
    /// Messages that were too long.
    pub truncated: u64,
    /// Messages of a type that is not known here.
    pub unknown_messages: u64,
    /// Calls whose number is not known here.
    pub unknown_calls: u64,
    /// Calls with arguments that gVisor does not tell.
    pub unreadable: u64,
    /// Rules that stayed undecided because something is not told.
    pub undecided: u64,
}

/// What all threads share.
pub(crate) struct Shared<J: Evaluator> {
    judge: ArcSwap<J>,
    notices: Arc<dyn EngineObserver>,
    names: ArcSwap<BTreeSet<Vec<u8>>>,
    counters: Counters,
    events: AtomicU64,
    host_name: String,
    state_root: PathBuf,
    stopping: AtomicBool,
    /// Losses were such that it is not to go on.
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
            judged: get(&counters.judged),
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
    /// The sessions stay as they are: rules that ask for more do not get it.
    fn replace(&self, judge: Arc<J>, plan: &Plan, _paths: &[Vec<u8>]) {
        self.names.store(Arc::new(plan.names.clone()));
        self.judge.store(judge);
    }

    fn judge(&self) -> Arc<J> {
        self.judge.load_full()
    }
}

/// A running engine.
pub struct Engine<J: Evaluator> {
    shared: Arc<Shared<J>>,
    acceptor: JoinHandle<LossSnapshot>,
}

impl<J: Evaluator + 'static> Engine<J> {
    /// Starts taking sandboxes.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(parts: Parts<J>) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            judge: ArcSwap::new(parts.judge),
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

    /// A handle that replaces the rules.
    pub fn rulings(&self) -> RulesHandle<J> {
        RulesHandle::new(Arc::clone(&self.shared) as _)
    }

    /// A handle on the totals that outlives the engine.
    pub fn counter_source(&self) -> Arc<dyn Fn() -> GvisorCounters + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || shared.snapshot())
    }

    /// Whether it has ended by itself: because of losses that are not to be borne.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Takes no more sandboxes, and no more messages than there are. [`Engine::join`] waits for that.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
    }

    /// Waits for the end.
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
            // The last second's; it ends anyway.
            let _ = looked.report(&self.shared);
        }
        self.shared.snapshot()
    }
}

/// What was known at the last look at losses.
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

    /// Tells of losses since the last look. Answers whether the engine may go on.
    fn report<J: Evaluator>(&mut self, shared: &Shared<J>) -> ControlFlow<()> {
        let before = std::mem::replace(self, Self::now(shared));
        let dropped = self.dropped - before.dropped;
        if dropped == 0 {
            return ControlFlow::Continue(());
        }
        shared.notices.events_dropped(&Losses {
            dropped,
            sent: self.messages - before.messages,
            // A sandbox does not say of which calls.
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
        // One that has gone again, or a shortage of descriptors: the next may do better.
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

/// Serves one sandbox to its end.
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
            // Nothing is the end: no message is empty.
            Ok((_, 0)) => return,
            Ok((_, len)) if len > MESSAGE_LIMIT => Counters::add(&shared.counters.truncated, 1),
            Ok((_, len)) => sandbox.receive(&buffer[..len]),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Answers a sandbox that says hello.
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

/// Whether there is something to read, or the end.
fn is_readable(fd: &impl AsFd, patience: Duration) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    let patience = Timespec::try_from(patience).expect("it is short");
    poll(&mut polled, Some(&patience)).is_ok_and(|ready| ready > 0)
}
