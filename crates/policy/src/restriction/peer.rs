//! Peers that a workload may connect to.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{PortRange, read_network};
use crate::pattern::Pattern;

/// A peer that stays reachable where [`super::Restriction::OnlyPeers`] denies all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedPeer {
    /// A host, by its name or address.
    Host {
        /// The host.
        host: PeerHost,
        /// The ports; empty means all.
        ports: Vec<PortRange>,
    },
    /// Unix sockets with a path.
    Socket(Pattern),
}

/// A host of [`AllowedPeer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerHost {
    /// A host name, resolved when a connection is made.
    Name(String),
    /// A network of addresses.
    Network(IpNet),
}

impl AllowedPeer {
    /// Parses `HOST:PORT`, `HOST:FIRST-LAST`, `HOST:*` or `unix:PATTERN`. A host is a name, an address or a
    /// network; an IPv6 address is in brackets.
    ///
    /// # Errors
    /// Describes what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let pattern = Pattern::parse(path).map_err(|error| error.to_string())?;
            return match path.starts_with('/') {
                true => Ok(Self::Socket(pattern)),
                false => Err(format!(
                    "`{text}` needs an absolute path after `unix:`, as in unix:/run/x.sock"
                )),
            };
        }
        let expected = || {
            format!(
                "`{text}` is no peer: expected HOST:PORT, such as example.org:443, or unix:PATH"
            )
        };
        let (host, ports) = text.rsplit_once(':').ok_or_else(expected)?;
        let ports = match ports {
            "*" => Vec::new(),
            ports => vec![read_ports(ports).ok_or_else(expected)?],
        };
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = match (bare, read_network(bare.unwrap_or(host))) {
            (_, Some(network)) => PeerHost::Network(network),
            (None, None) if is_name(host) => PeerHost::Name(host.to_lowercase()),
            _ => return Err(expected()),
        };
        Ok(Self::Host { host, ports })
    }

    /// Returns true if the host is given by its name.
    #[must_use]
    pub fn has_name(&self) -> bool {
        matches!(
            self,
            Self::Host {
                host: PeerHost::Name(_),
                ..
            }
        )
    }

    /// Returns true if the peer is this address, or has a name, and this port.
    #[must_use]
    pub fn may_be(&self, address: IpAddr, port: u16) -> bool {
        let Self::Host { host, ports } = self else {
            return false;
        };
        let has_port = |range: &PortRange| (range.first..=range.last).contains(&port);
        let is_host = match host {
            PeerHost::Name(_) => true,
            PeerHost::Network(network) => network.contains(&address.to_canonical()),
        };
        is_host && (ports.is_empty() || ports.iter().any(has_port))
    }
}

fn read_ports(text: &str) -> Option<PortRange> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = PortRange {
        first: first.parse().ok()?,
        last: last.parse().ok()?,
    };
    (range.first <= range.last).then_some(range)
}

/// Returns true for a host name (RFC 1123). A wildcard is none: names are resolved to addresses, and not back.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() < 64 && label.bytes().all(plain)
    };
    text.len() < 254 && text.split('.').all(is_label)
}

impl fmt::Display for AllowedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, ports) = match self {
            Self::Socket(path) => return write!(f, "unix:{path}"),
            Self::Host { host, ports } => (host, ports),
        };
        match host {
            PeerHost::Name(name) => f.write_str(name)?,
            PeerHost::Network(network) => {
                let is_one = network.prefix_len() == network.max_prefix_len();
                let text = match is_one {
                    true => network.addr().to_string(),
                    false => network.to_string(),
                };
                match network {
                    IpNet::V4(_) => f.write_str(&text)?,
                    IpNet::V6(_) => write!(f, "[{text}]")?,
                }
            }
        }
        match ports.first() {
            None => f.write_str(":*"),
            Some(range) => write!(f, ":{range}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_written_as_it_is_read() {
        for text in [
            "example.org:443",
            "localhost:*",
            "127.0.0.0/8:1-1024",
            "10.0.0.1:22",
            "[::1]:*",
            "[fd00::/8]:53",
            "unix:/run/user/**",
        ] {
            let peer = AllowedPeer::parse(text).expect(text);
            assert_eq!(peer.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_peer_is_refused() {
        for text in [
            "example.org",
            "*.example.org:443",
            "a b:1",
            ":443",
            "x:70000",
            "x:2-1",
            "unix:relative",
            "[example.org]:1",
        ] {
            AllowedPeer::parse(text).expect_err(text);
        }
    }

    #[test]
    fn an_address_is_a_peer_by_network_and_port() {
        let is = |peer: &str, address: &str, port| {
            let peer = AllowedPeer::parse(peer).expect("valid");
            peer.may_be(address.parse().expect("an address"), port)
        };
        assert!(is("127.0.0.0/8:*", "127.3.2.1", 1));
        assert!(is("127.0.0.0/8:*", "::ffff:127.3.2.1", 1));
        assert!(!is("127.0.0.0/8:*", "128.0.0.1", 1));
        assert!(!is("10.0.0.1:22", "10.0.0.1", 23));
        // Whose address it is remains to be found out.
        assert!(is("example.org:443", "192.0.2.1", 443));
        assert!(!is("unix:/x", "192.0.2.1", 443));
    }
}
