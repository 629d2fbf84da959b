//! Connections at a time: how many, from whom, and which one is closed when another comes.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Time that each connection has to send its request before it can be closed for another one. It also bounds
/// how many come in a second.
const GRACE: Duration = Duration::from_millis(100);

/// The other end of a connection, as far as connections are counted by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// An IPv4 address, or the network of an IPv6 address: a host has as many addresses there as it likes.
    Address(IpAddr),
    /// The user of a process on this machine.
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

/// How many connections there may be.
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
    /// When it was accepted, or made its last request.
    since: Instant,
    /// Whether it stays when another one comes.
    is_kept: bool,
    /// Closes the connection when it is dropped.
    _close: oneshot::Sender<()>,
}

/// What becomes of a new connection.
#[derive(Debug)]
enum Admission {
    Now(ConnectionSlot),
    /// None can be closed before this time has passed.
    Later(Duration),
    /// None can be closed at all.
    Never,
}

/// The place of one connection among all. It is free again when this is dropped.
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

    /// Finds a place, if need be that of the connection that has been silent for longest: one of the same peer if it
    /// has too many, else one of the peer that has most. `None` if all that could be closed are kept.
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
        // A list is changed by one call each time.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, id: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.open().entries.iter_mut().find(|entry| entry.id == id) {
            change(entry);
        }
    }
}

impl ConnectionSlot {
    /// Ends when the connection is to be closed. Only the first call gives something that ends.
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

    /// A handle on this place for the connection's requests.
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

/// Tells of what a connection does.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSlotHandle {
    id: u64,
    connections: Connections,
}

impl ConnectionSlotHandle {
    /// The connection has made a request.
    pub(crate) fn is_used(&self) {
        self.connections
            .with(self.id, |entry| entry.since = Instant::now());
    }

    /// The connection stays when others come, or does not any more.
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
