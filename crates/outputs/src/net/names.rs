//! Resolves host names: `/etc/hosts`, then DNS.
//!
//! The C library would load the plug-ins that `/etc/nsswitch.conf` names. A statically linked
//! program that is copied into arbitrary images has no matching plug-ins, so this resolver uses
//! only the two sources that containers use.

mod message;
#[cfg(feature = "testing")]
pub(crate) mod testing;

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::http::uri::Scheme;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use self::message::{Answer, Kind};

/// A resolver of host names.
#[derive(Debug)]
pub(crate) struct Names {
    hosts: PathBuf,
    resolv_conf: PathBuf,
    port: u16,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            hosts: "/etc/hosts".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            port: 53,
        }
    }
}

impl Resolver for Names {
    fn resolve(
        &self,
        uri: &Uri,
        _: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let host = uri.host().ok_or(ureq::Error::HostNotFound)?;
        let default = if uri.scheme() == Some(&Scheme::HTTPS) {
            443
        } else {
            80
        };
        let port = uri.port_u16().unwrap_or(default);
        // "Never" dereferences to a duration that no clock can represent.
        let deadline = Instant::now() + (*timeout.after).min(MAX_WAIT);
        let addresses = self.addresses(host, deadline).map_err(|error| {
            if error.kind() == ErrorKind::TimedOut {
                ureq::Error::Timeout(timeout.reason)
            } else {
                ureq::Error::Io(error)
            }
        })?;
        let mut resolved = self.empty();
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            resolved.push(SocketAddr::new(address, port));
        }
        Ok(resolved)
    }
}

/// Maximum time for a lookup without a deadline.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Capacity of the address list.
const MAX_ADDRESSES: usize = 16;

impl Names {
    /// Returns at least one address, or an error.
    pub(crate) fn addresses(&self, host: &str, deadline: Instant) -> io::Result<Vec<IpAddr>> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse() {
            return Ok(vec![address]);
        }
        let hosts = fs::read_to_string(&self.hosts).unwrap_or_default();
        let listed = in_hosts(&hosts, host);
        if !listed.is_empty() {
            return Ok(listed);
        }
        // RFC 6761: never resolved by a server.
        if host.eq_ignore_ascii_case("localhost") {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let text = fs::read_to_string(&self.resolv_conf).unwrap_or_default();
        let configuration = Configuration::parse(&text);
        let mut last = None;
        for name in configuration.candidates(host) {
            match self.ask_all(&configuration, &name, deadline) {
                Ok(addresses) if !addresses.is_empty() => return Ok(addresses),
                Ok(_) => {}
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            io::Error::new(ErrorKind::NotFound, format!("no address for {host}"))
        }))
    }

    /// Queries IPv4 addresses, then IPv6 addresses if the name has none.
    fn ask_all(
        &self,
        configuration: &Configuration,
        name: &str,
        deadline: Instant,
    ) -> io::Result<Vec<IpAddr>> {
        for kind in [Kind::V4, Kind::V6] {
            match self.ask(configuration, name, kind, deadline)? {
                Answer::Addresses(addresses) if !addresses.is_empty() => return Ok(addresses),
                Answer::Addresses(_) => {}
                Answer::NoSuchName => break,
            }
        }
        Ok(Vec::new())
    }

    /// Returns the first usable answer of a server.
    fn ask(
        &self,
        configuration: &Configuration,
        name: &str,
        kind: Kind,
        deadline: Instant,
    ) -> io::Result<Answer> {
        let mut last = io::Error::new(ErrorKind::NotFound, "no name server answers");
        for _ in 0..configuration.attempts {
            for server in &configuration.servers {
                let server = SocketAddr::new(*server, self.port);
                let end = deadline.min(Instant::now() + configuration.timeout);
                match ask_one(server, name, kind, end) {
                    Ok(Some(answer)) => return Ok(answer),
                    Ok(None) => {
                        last = io::Error::other(format!("name server {server} failed"));
                    }
                    Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(error),
                    Err(error) => last = error,
                }
                if Instant::now() >= deadline {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
        }
        Err(last)
    }
}

/// Returns all addresses of a host name, IPv4 and IPv6.
///
/// # Errors
/// Fails if the name has none, or cannot be looked up within `limit`.
pub fn addresses(host: &str, limit: Duration) -> io::Result<Vec<IpAddr>> {
    let (names, deadline) = (Names::default(), Instant::now() + limit);
    let first = names.addresses(host, deadline)?;
    let text = fs::read_to_string(&names.hosts).unwrap_or_default();
    if first.iter().any(IpAddr::is_ipv6) || in_hosts(&text, host) == first {
        return Ok(first);
    }
    let text = fs::read_to_string(&names.resolv_conf).unwrap_or_default();
    let configuration = Configuration::parse(&text);
    let mut all = first;
    for name in configuration.candidates(host) {
        // Without an answer for IPv6 those for IPv4 count.
        if let Ok(Answer::Addresses(more)) = names.ask(&configuration, &name, Kind::V6, deadline) {
            all.extend(more);
        }
    }
    Ok(all)
}

/// Queries one server. Returns `None` if the server reports a failure.
fn ask_one(server: SocketAddr, name: &str, kind: Kind, end: Instant) -> io::Result<Option<Answer>> {
    let query = message::query(name, kind)
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, format!("invalid name `{name}`")))?;
    let any: IpAddr = if server.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    // The kernel selects the port; only this server's datagrams are received.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    socket.send(&query)?;
    let mut buffer = [0; 4096];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut buffer) {
            // An answer to another question is ignored.
            Ok(length) => {
                if let Some(answer) = message::answer(&buffer[..length], &query, kind) {
                    return Ok(answer);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(ErrorKind::TimedOut.into());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the addresses of a name in a hosts(5) file.
fn in_hosts(hosts: &str, name: &str) -> Vec<IpAddr> {
    let name = name.trim_end_matches('.');
    let mut addresses = Vec::new();
    for line in hosts.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse) else {
            continue;
        };
        if words.any(|word| word.eq_ignore_ascii_case(name)) && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Settings of resolv.conf(5), with its defaults and limits.
#[derive(Debug, PartialEq, Eq)]
struct Configuration {
    servers: Vec<IpAddr>,
    search: Vec<String>,
    dots: usize,
    timeout: Duration,
    attempts: usize,
}

impl Configuration {
    fn parse(text: &str) -> Self {
        const MAX_SERVERS: usize = 3;
        let mut it = Self {
            servers: Vec::new(),
            search: Vec::new(),
            dots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") if it.servers.len() < MAX_SERVERS => {
                    it.servers
                        .extend(words.next().and_then(|word| word.parse::<IpAddr>().ok()));
                }
                Some("search" | "domain") => it.search = words.map(str::to_owned).collect(),
                Some("options") => words.for_each(|option| it.option(option)),
                _ => {}
            }
        }
        if it.servers.is_empty() {
            it.servers.push(Ipv4Addr::LOCALHOST.into());
        }
        it
    }

    fn option(&mut self, option: &str) {
        let Some((name, Ok(number))) = option
            .split_once(':')
            .map(|(name, number)| (name, number.parse::<u8>()))
        else {
            return;
        };
        match name {
            "ndots" => self.dots = number.min(15).into(),
            "timeout" => self.timeout = Duration::from_secs(number.clamp(1, 30).into()),
            "attempts" => self.attempts = number.clamp(1, 5).into(),
            _ => {}
        }
    }

    /// Returns the names to try, in order.
    fn candidates(&self, host: &str) -> Vec<String> {
        if let Some(absolute) = host.strip_suffix('.') {
            return vec![absolute.to_owned()];
        }
        let searched = self.search.iter().map(|domain| {
            let domain = domain.trim_matches('.');
            format!("{host}.{domain}")
        });
        let mut names: Vec<_> = searched.collect();
        let is_first = host.matches('.').count() >= self.dots;
        names.insert(if is_first { 0 } else { names.len() }, host.to_owned());
        names
    }
}

#[cfg(test)]
mod tests;
