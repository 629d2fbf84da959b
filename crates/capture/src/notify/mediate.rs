//! Connects allowed peers in the caller's place.
//!
//! A policy can list the only peers that may be connected to. The address is in the caller's memory, which can
//! change until the kernel reads it; so no such call is ever continued. It is answered here: the address is
//! read once, decided on, and used for a connect on a copy of the caller's socket.

mod address;
mod unix;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use abi::{Errno, Syscall};
use bumpalo::Bump;
use event::{Evaluator, LiveProcess, Outcome, Process, Stage};
use policy::EnforcerKind;
use policy::{AllowedPeer, PeerHost};
use sys::notify::Notification;
use sys::time::{Clock, now_ns};

use self::address::Address;
use super::confine::Violation;
use super::worker::{CallEvaluator, CallView};
use super::{Shared, argument_check, denial_paths};
use decoder::call::Call;
use decoder::counters::Counters;
use decoder::decode;
use process_info::memory::{Access, Memory};

/// Maximum number of calls that wait for a name or a peer at once.
const WAITING_LIMIT: usize = 512;
/// Time after which a name is resolved again for an address that it did not have.
const STALE: Duration = Duration::from_secs(1);
/// Maximum number of addresses remembered for a name.
const ADDRESS_LIMIT: usize = 1024;
/// Largest address that the kernel accepts.
const LARGEST: usize = 128;
const EACCES: Errno = Errno(13);
const EFAULT: Errno = Errno(14);
const EINVAL: Errno = Errno(22);

/// State of the connections of a workload.
#[derive(Debug, Default)]
pub(super) struct Mediator {
    names: Mutex<HashMap<String, KnownName>>,
    sockets: unix::OwnSockets,
    waiting: Mutex<usize>,
}

/// Addresses that a name has had since the start.
#[derive(Debug, Default)]
struct KnownName {
    addresses: HashSet<IpAddr>,
    asked: Option<Instant>,
    /// Why the last look-up failed.
    failure: Option<String>,
}

/// Reason for a refusal.
struct Refusal {
    errno: Errno,
    /// The peer, and what is wrong with it if that is not the list.
    peer: Option<String>,
    /// Allowed names that could not be looked up.
    note: Option<String>,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self {
            errno,
            peer: None,
            note: None,
        }
    }
}

/// Answers the call in a thread of its own: looking up a name and connecting take any time. The call counts as
/// held by that thread, so that it is refused if this process dies.
pub(super) fn hold<J: Evaluator + 'static>(
    shared: Arc<Shared<J>>,
    call: Call,
    notification: Notification,
    process: Arc<Process>,
) {
    let work = Arc::clone(&shared);
    let made = shared.mediator.begins().then(|| {
        std::thread::Builder::new()
            .name("tg-connect".to_owned())
            .spawn(move || {
                let seat = work.pulse.seat();
                seat.received(&notification);
                seat.took_over(&notification);
                let serve = std::panic::AssertUnwindSafe(|| answer(&work, &call, &process));
                if std::panic::catch_unwind(serve).is_err() {
                    // The panic hook has printed the reason. The call must not stay parked.
                    work.answer_instead(call.id, Err(EACCES.0));
                }
                seat.done();
                work.mediator.ends();
            })
    });
    match made {
        Some(Ok(_)) => {}
        Some(Err(_)) => {
            shared.mediator.ends();
            shared.answer_instead(call.id, Err(EACCES.0));
        }
        None => shared.answer_instead(call.id, Err(EACCES.0)),
    }
}

fn answer<J: Evaluator + 'static>(shared: &Arc<Shared<J>>, call: &Call, process: &Process) {
    let memory = Memory::new(Arc::default());
    memory.allow(Access::Free);
    let result = match connect(shared, call, &memory, process) {
        Ok(()) => Ok(0),
        Err(refusal) => {
            if let Some(peer) = &refusal.peer {
                report(shared, call, process, &memory, &refusal, peer);
            }
            Err(refusal.errno.0)
        }
    };
    shared.answer_instead(call.id, result);
}

/// Connects the caller's socket, or says why not.
fn connect<J: Evaluator>(
    shared: &Shared<J>,
    call: &Call,
    memory: &Memory,
    process: &Process,
) -> Result<(), Refusal> {
    let length = usize::try_from(call.int(2)).map_err(|_negative| EINVAL)?;
    if length > LARGEST {
        return Err(EINVAL.into());
    }
    let mut bytes = vec![0; length];
    memory
        .read_exact(call.tid, call.raw(1), &mut bytes)
        .map_err(|_unreadable| EFAULT)?;
    let socket = take(call)?;
    if !shared.listener.is_valid(call.id).unwrap_or(false) {
        // The descriptor may belong to another process by now.
        return Err(EACCES.into());
    }
    let denied = |peer: String| Refusal {
        errno: EACCES,
        peer: Some(peer),
        note: None,
    };
    // A user may allow what the list does not have.
    let unless_asked = |peer: String| match shared.notices.allows_connect(process, &peer) {
        true => Ok(()),
        false => Err(denied(peer)),
    };
    let target = match Address::parse(&bytes) {
        Address::None => bytes,
        Address::Internet(address, port) => {
            if let Err(note) = shared.mediator.allows(shared, address, port) {
                let refused = unless_asked(address::text(address, port));
                refused.map_err(|refusal| Refusal { note, ..refusal })?;
            }
            bytes
        }
        Address::Path(path) => match unix::find(shared, call, path) {
            Ok(found) => {
                if let Some(peer) = found.unlisted() {
                    unless_asked(peer)?;
                }
                return found.connect(&socket).map_err(Refusal::from);
            }
            Err(unix::Missing::Denied(text)) => return Err(denied(text)),
            Err(unix::Missing::Failed(errno)) => return Err(errno.into()),
        },
        Address::Abstract(name) => match shared.mediator.sockets.has_abstract(name) {
            true => bytes,
            false => return Err(denied(address::abstract_text(name))),
        },
        Address::Other(family) => return Err(denied(format!("family {family}"))),
    };
    connect_to(&socket, &target).map_err(Refusal::from)
}

fn connect_to(socket: &OwnedFd, address: &[u8]) -> Result<(), Errno> {
    sys::socket::connect(socket.as_fd(), address).map_err(|error| Errno(error.errno()))
}

/// Copies the caller's descriptor.
fn take(call: &Call) -> Result<OwnedFd, Errno> {
    let thread = sys::pidfd::open_thread(call.tid.0).or_else(|_| sys::pidfd::open(call.tid.0));
    let thread = thread.map_err(|error| Errno(error.errno()))?;
    sys::pidfd::take_fd(thread.as_fd(), call.int(0)).map_err(|error| Errno(error.errno()))
}

fn report<J: Evaluator + 'static>(
    shared: &Arc<Shared<J>>,
    call: &Call,
    process: &Process,
    memory: &Memory,
    refusal: &Refusal,
    peer: &str,
) {
    let arena = Bump::new();
    let outcome = Outcome::Returned(-i64::from(refusal.errno.0));
    let decoded = decode::decode(call, memory, &arena).returned(call, outcome, &arena);
    let live = LiveProcess::default();
    let view = CallView {
        outcome,
        ..CallView::at_entry(call, now_ns(Clock::Real), decoded, &live, &arena)
    };
    // Policies can be exchanged meanwhile: the denial is then reported without the name of its rule.
    let rule = shared.confiner.mediating_rule().unwrap_or_default();
    Counters::add(&shared.counters.violations);
    let violation = Violation {
        rule,
        enforcer: EnforcerKind::Seccomp,
        errno: Some(refusal.errno),
        call: call.syscall,
        args: call.args,
        object: Some(peer),
        access: Some("connect"),
        note: refusal.note.as_deref(),
    };
    let mut worker = CallEvaluator::new(Arc::clone(shared));
    worker.tell_violation(&view, process, &violation);
    if shared.is_evaluated(call) {
        worker.conclude(&view, Stage::Exit, process);
    }
}

impl Mediator {
    fn begins(&self) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let may = *waiting < WAITING_LIMIT;
        *waiting += usize::from(may);
        may
    }

    fn ends(&self) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
    }

    /// Notes the socket that a process of the workload has bound.
    pub(super) fn bound<J: Evaluator>(&self, shared: &Shared<J>, call: &Call) {
        if call.syscall.base() != Syscall::BIND || shared.confiner.peers().is_none() {
            return;
        }
        // Whoever is gone has closed its socket.
        if let Ok(socket) = take(call) {
            self.sockets.note(shared, call, &socket);
        }
    }

    /// Looks for the address in the list. Names are resolved when an address could be theirs.
    ///
    /// # Errors
    /// If the list does not have it, with the names for which that is not known.
    fn allows<J: Evaluator>(
        &self,
        shared: &Shared<J>,
        address: IpAddr,
        port: u16,
    ) -> Result<(), Option<String>> {
        let address = address.to_canonical();
        // Without a list nothing is on it.
        let peers = shared.confiner.peers().unwrap_or_default();
        let mut names = Vec::new();
        for peer in peers.iter().filter(|peer| peer.may_be(address, port)) {
            match peer {
                AllowedPeer::Host {
                    host: PeerHost::Name(name),
                    ..
                } => names.push(name),
                _ => return Ok(()),
            }
        }
        let is_known = names.iter().any(|name| self.has(name, address));
        let is_found = is_known
            || names.iter().any(|name| {
                self.ask(shared, name);
                self.has(name, address)
            });
        match is_found {
            true => Ok(()),
            false => Err(self.unresolved(&names)),
        }
    }

    /// Describes names whose last look-up failed: one with its cause, and how many others there are.
    fn unresolved(&self, asked: &[&String]) -> Option<String> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failed = asked.iter().filter_map(|name| {
            let failure = names.get(*name)?.failure.as_ref()?;
            Some((*name, failure))
        });
        let (name, failure) = failed.next()?;
        let more = match failed.count() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        Some(format!(
            "cannot look up allowed hosts with this port: {name}{more}: {failure}"
        ))
    }

    fn has(&self, name: &str, address: IpAddr) -> bool {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names
            .get(name)
            .is_some_and(|known| known.addresses.contains(&address))
    }

    /// Resolves a name unless that was done just now.
    fn ask<J: Evaluator>(&self, shared: &Shared<J>, name: &str) {
        {
            let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            let known = names.entry(name.to_owned()).or_default();
            if known.asked.is_some_and(|asked| asked.elapsed() < STALE) {
                return;
            }
            known.asked = Some(Instant::now());
        }
        // A name that cannot be resolved has no address that could be allowed.
        let (found, failure) = match shared.notices.addresses(name) {
            Ok(found) => (found, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.entry(name.to_owned()).or_default();
        known.failure = failure;
        let left = ADDRESS_LIMIT.saturating_sub(known.addresses.len());
        let found = found.into_iter().map(|address| address.to_canonical());
        known.addresses.extend(found.take(left));
    }
}
