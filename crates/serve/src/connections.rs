//! Limits on concurrent connections: their number, by peer, and which one is closed for a new one.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Time in which a connection must send its request before it can be closed for another one. Also
/// bounds the rate of new connections.
const GRACE: Duration = Duration::from_millis(100);

/// Peer of a connection, by which connections are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// An IPv4 address, or the network of an IPv6 address, in which one host can have any number of
    /// addresses.
    Address(IpAddr),
    /// The user of a process on this host.
    User(u32),
}

impl Peer {
    pub(crate) fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// Address of a client, in the extensions of its requests: an IPv4 address, the network of an IPv6 address, or the
/// user of a local process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddress(pub String);

impl From<Peer> for ClientAddress {
    fn from(peer: Peer) -> Self {
        Self(match peer {
            Peer::Address(address) => address.to_string(),
            Peer::User(user) => format!("uid {user}"),
        })
    }
}

/// Limits on the number of concurrent connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) all: usize,
    pub(crate) of_one_peer: usize,
}

/// The open connections of a server. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    limits: Limits,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    last_id: u64,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    peer: Peer,
    /// Time of its acceptance or last request.
    since: Instant,
    /// Exempt from being closed for a new connection.
    is_kept: bool,
    /// Closes the connection when it is dropped.
    _close: oneshot::Sender<()>,
}

/// Decision about a new connection.
#[derive(Debug)]
enum Admission {
    Now(ConnectionSlot),
    /// No connection can be closed before this time has passed.
    Later(Duration),
    /// No connection can be closed.
    Never,
}

/// Slot of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    id: u64,
    connections: Connections,
    closed: Option<oneshot::Receiver<()>>,
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            open: Arc::default(),
        }
    }

    /// Waits for a slot. If all are taken, closes the connection that has been silent for longest:
    /// one of the same peer if that has too many, else one of the peer with the most. Returns
    /// `None` if all candidates are kept.
    pub(crate) async fn admit(&self, peer: Peer) -> Option<ConnectionSlot> {
        loop {
            match self.ask(peer, Instant::now()) {
                Admission::Now(place) => return Some(place),
                Admission::Later(wait) => tokio::time::sleep(wait).await,
                Admission::Never => return None,
            }
        }
    }

    fn ask(&self, peer: Peer, now: Instant) -> Admission {
        let mut open = self.open();
        let count = |peer| {
            let of_peer = open.entries.iter().filter(|entry| entry.peer == peer);
            of_peer.count()
        };
        let is_closable = |entry: &&Entry| !entry.is_kept;
        let victim = if count(peer) >= self.limits.of_one_peer {
            let of_peer = open.entries.iter().filter(|entry| entry.peer == peer);
            Some(of_peer.filter(is_closable).min_by_key(|entry| entry.since))
        } else if open.entries.len() >= self.limits.all {
            let entries = open.entries.iter().filter(is_closable);
            let most = entries.clone().map(|entry| count(entry.peer)).max();
            let of_most = entries.filter(|entry| Some(count(entry.peer)) == most);
            Some(of_most.min_by_key(|entry| entry.since))
        } else {
            None
        };
        match victim.map(|victim| victim.map(|entry| (entry.id, entry.since))) {
            None => {}
            Some(None) => return Admission::Never,
            Some(Some((id, since))) => {
                let age = now.saturating_duration_since(since);
                if age < GRACE {
                    return Admission::Later(GRACE.saturating_sub(age));
                }
                open.entries.retain(|entry| entry.id != id);
            }
        }
        let (close, closed) = oneshot::channel();
        open.last_id += 1;
        let id = open.last_id;
        open.entries.push(Entry {
            id,
            peer,
            since: now,
            is_kept: false,
            _close: close,
        });
        Admission::Now(ConnectionSlot {
            id,
            connections: self.clone(),
            closed: Some(closed),
        })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Each change of the list is a single call.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, id: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.open().entries.iter_mut().find(|entry| entry.id == id) {
            change(entry);
        }
    }
}

impl ConnectionSlot {
    /// Completes when the connection must be closed. Only the first call returns a future that
    /// completes.
    pub(crate) fn closed(&mut self) -> impl Future<Output = ()> + use<> {
        let closed = self.closed.take();
        async move {
            match closed {
                // The entry was dropped.
                Some(closed) => drop(closed.await),
                None => std::future::pending().await,
            }
        }
    }

    /// Returns a handle on this slot for the connection's requests.
    pub(crate) fn handle(&self) -> ConnectionSlotHandle {
        ConnectionSlotHandle {
            id: self.id,
            connections: self.connections.clone(),
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let id = self.id;
        self.connections
            .open()
            .entries
            .retain(|entry| entry.id != id);
    }
}

/// Handle through which a connection's requests update its slot.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSlotHandle {
    id: u64,
    connections: Connections,
}

impl ConnectionSlotHandle {
    /// Records a request of the connection.
    pub(crate) fn is_used(&self) {
        self.connections
            .with(self.id, |entry| entry.since = Instant::now());
    }

    /// Sets whether the connection is exempt from being closed for a new one.
    pub(crate) fn keep(&self, is_kept: bool) {
        self.connections
            .with(self.id, |entry| entry.is_kept = is_kept);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::at(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    fn connections() -> Connections {
        Connections::new(Limits {
            all: 4,
            of_one_peer: 2,
        })
    }

    fn now(admission: Admission) -> ConnectionSlot {
        match admission {
            Admission::Now(place) => place,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_oldest_of_the_same_peer_goes_first_and_not_before_its_grace() {
        let (all, start) = (connections(), Instant::now());
        let mut first = now(all.ask(peer(1), start));
        let _second = now(all.ask(peer(1), start + GRACE / 2));
        let _other = now(all.ask(peer(2), start));
        let early = all.ask(peer(1), start + GRACE / 2);
        assert!(matches!(early, Admission::Later(wait) if wait == GRACE / 2));
        let mut third = now(all.ask(peer(1), start + GRACE));
        let closed =
            |place: &mut ConnectionSlot| place.closed.as_mut().expect("not asked").try_recv();
        assert_eq!(
            closed(&mut first),
            Err(oneshot::error::TryRecvError::Closed)
        );
        assert_eq!(closed(&mut third), Err(oneshot::error::TryRecvError::Empty));
        // Its place is another's already.
        drop(first);
        assert_eq!(all.open().entries.len(), 3);
    }

    #[test]
    fn a_peer_with_few_is_let_in_at_the_cost_of_one_with_many() {
        let (all, start) = (connections(), Instant::now());
        let mut places: Vec<_> = [1, 2, 2, 3]
            .map(|last| now(all.ask(peer(last), start)))
            .into();
        places.push(now(all.ask(peer(4), start + GRACE)));
        let peers = |all: &Connections| -> Vec<Peer> {
            all.open().entries.iter().map(|entry| entry.peer).collect()
        };
        assert_eq!(peers(&all), [1, 2, 3, 4].map(peer));
        places.clear();
        assert!(peers(&all).is_empty());
    }

    #[test]
    fn a_kept_connection_stays() {
        let (all, start) = (connections(), Instant::now());
        let kept = [(); 2].map(|()| now(all.ask(peer(1), start)));
        for place in &kept {
            place.handle().keep(true);
        }
        let later = start + 2 * GRACE;
        assert!(matches!(all.ask(peer(1), later), Admission::Never));
        kept[1].handle().keep(false);
        assert!(matches!(all.ask(peer(1), later), Admission::Now(_)));
    }

    #[test]
    fn a_host_has_one_network_of_the_sixth_version() {
        let at = |text: &str| Peer::at(text.parse().expect("an address"));
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:10.0.0.1"), peer(1));
        assert_ne!(peer(1), peer(2));
    }
}
