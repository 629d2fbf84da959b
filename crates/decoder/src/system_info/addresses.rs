//! IP addresses of the host names that rules mention.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use event::Lookup;

/// Time for which an answer is valid.
const FRESH: Duration = Duration::from_secs(60);
/// Time that the first query for a name waits.
const PATIENCE: Duration = Duration::from_millis(20);
/// Maximum number of cached names; rules mention a handful.
const NAME_LIMIT: usize = 256;
/// Maximum number of concurrent queries.
const THREAD_LIMIT: usize = 4;
/// Maximum number of bytes read from the hosts file.
const HOSTS_LIMIT: usize = 1024 * 1024;

#[derive(Debug, Default)]
struct Names {
    answers: HashMap<String, Answer>,
    under_way: usize,
}

#[derive(Clone, Debug)]
struct Answer {
    addresses: Option<Arc<[IpAddr]>>,
    time: Instant,
    pending: bool,
}

/// Resolver with threads of its own, because name servers may answer late.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    shared: Arc<(Mutex<Names>, Condvar)>,
}

impl Resolver {
    /// Returns the known addresses; starts a query if there are none or they are old.
    pub(super) fn addresses(&self, name: &str) -> Lookup<Arc<[IpAddr]>> {
        if let Ok(literal) = name.parse::<IpAddr>() {
            return Lookup::Found(Arc::from([literal]));
        }
        let (names, answered) = &*self.shared;
        let mut guard = names.lock().unwrap_or_else(PoisonError::into_inner);
        let known = guard.answers.get(name).cloned();
        let is_fresh = known
            .as_ref()
            .is_some_and(|answer| answer.pending || answer.time.elapsed() < FRESH);
        if !is_fresh && !self.begin(&mut guard, name) {
            return lookup(known.as_ref());
        }
        if known.is_some() {
            return lookup(known.as_ref());
        }
        let is_pending = |names: &mut Names| {
            names
                .answers
                .get(name)
                .is_some_and(|answer| answer.addresses.is_none())
        };
        let (guard, _) = answered
            .wait_timeout_while(guard, PATIENCE, is_pending)
            .unwrap_or_else(PoisonError::into_inner);
        lookup(guard.answers.get(name))
    }

    /// Returns every name queried so far with its addresses.
    pub(super) fn asked(&self) -> Vec<(String, Lookup<Arc<[IpAddr]>>)> {
        let (names, _) = &*self.shared;
        let names = names.lock().unwrap_or_else(PoisonError::into_inner);
        let answers = names.answers.iter();
        answers
            .map(|(name, answer)| (name.clone(), lookup(Some(answer))))
            .collect()
    }

    /// Starts a query. Returns whether that was possible.
    fn begin(&self, names: &mut Names, name: &str) -> bool {
        let is_new = !names.answers.contains_key(name);
        if names.under_way >= THREAD_LIMIT || (is_new && names.answers.len() >= NAME_LIMIT) {
            return false;
        }
        let shared = Arc::clone(&self.shared);
        let question = name.to_owned();
        let thread = std::thread::Builder::new()
            .name("resolver".to_owned())
            .spawn(move || {
                let addresses = resolve(&question);
                let (names, answered) = &*shared;
                let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
                names.under_way -= 1;
                let answer = Answer {
                    addresses: Some(addresses),
                    time: Instant::now(),
                    pending: false,
                };
                names.answers.insert(question, answer);
                answered.notify_all();
            });
        if thread.is_err() {
            return false;
        }
        names.under_way += 1;
        let answer = names.answers.entry(name.to_owned()).or_insert(Answer {
            addresses: None,
            time: Instant::now(),
            pending: true,
        });
        answer.pending = true;
        true
    }
}

fn lookup(answer: Option<&Answer>) -> Lookup<Arc<[IpAddr]>> {
    match answer.and_then(|answer| answer.addresses.as_ref()) {
        None => Lookup::Unknown,
        Some(addresses) if addresses.is_empty() => Lookup::Missing,
        Some(addresses) => Lookup::Found(Arc::clone(addresses)),
    }
}

/// Resolves a name. Reads the hosts file first, for static builds whose libc cannot load resolver modules.
fn resolve(name: &str) -> Arc<[IpAddr]> {
    let hosts = std::fs::read("/etc/hosts").unwrap_or_default();
    let mut addresses = in_hosts(&hosts[..hosts.len().min(HOSTS_LIMIT)], name);
    if addresses.is_empty() {
        let found = (name, 0).to_socket_addrs().into_iter().flatten();
        addresses.extend(found.map(|address| address.ip()));
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses.into()
}

fn in_hosts(hosts: &[u8], name: &str) -> Vec<IpAddr> {
    let text = String::from_utf8_lossy(hosts);
    text.lines()
        .filter_map(|line| {
            let mut words = line.split('#').next()?.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words
                .any(|word| word.eq_ignore_ascii_case(name))
                .then_some(address)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_lines_are_matched_by_any_name() {
        let hosts = b"127.0.0.1 localhost loopback # 9.9.9.9 comment\n::1\tlocalhost ip6\nx y\n";
        assert_eq!(in_hosts(hosts, "LocalHost").len(), 2);
        assert_eq!(
            in_hosts(hosts, "loopback"),
            ["127.0.0.1".parse::<IpAddr>().unwrap()]
        );
        assert!(in_hosts(hosts, "comment").is_empty());
        assert!(in_hosts(hosts, "y").is_empty());
    }

    #[test]
    fn literals_and_localhost_are_found() {
        let resolver = Resolver::default();
        let literal = resolver.addresses("10.0.0.1");
        assert_eq!(
            literal,
            Lookup::Found(Arc::from(["10.0.0.1".parse::<IpAddr>().unwrap()]))
        );
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match resolver.addresses("localhost") {
                Lookup::Found(addresses) => {
                    break assert!(addresses.iter().all(IpAddr::is_loopback));
                }
                Lookup::Unknown if Instant::now() < end => {}
                other => panic!("{other:?}"),
            }
        }
        let names = resolver.shared.0.lock().unwrap();
        assert_eq!((names.answers.len(), names.under_way), (1, 0));
    }
}
