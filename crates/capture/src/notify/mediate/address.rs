//! Socket addresses as the kernel reads them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Address families (include/linux/socket.h).
const UNSPECIFIED: u16 = 0;
const UNIX: u16 = 1;
const INET: u16 = 2;
const INET6: u16 = 10;

/// Address of a peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address<'a> {
    /// No peer: the kernel dissolves an association, or refuses the address.
    None,
    /// A host and port.
    Internet(IpAddr, u16),
    /// Unix socket with a path.
    Path(&'a [u8]),
    /// Unix socket with a name outside of the file system.
    Abstract(&'a [u8]),
    /// A family that no list can have.
    Other(u16),
}

impl<'a> Address<'a> {
    /// Reads an address. One that is too short for its family is refused by the kernel, too.
    pub(super) fn parse(bytes: &'a [u8]) -> Self {
        let Some((family, rest)) = bytes.split_first_chunk::<2>() else {
            return Self::None;
        };
        match u16::from_ne_bytes(*family) {
            UNSPECIFIED => Self::None,
            UNIX => match rest {
                [] => Self::None,
                [0, name @ ..] => Self::Abstract(name),
                path => {
                    let end = path.iter().position(|byte| *byte == 0);
                    Self::Path(&path[..end.unwrap_or(path.len())])
                }
            },
            INET => match (rest.first_chunk::<2>(), rest.get(2..6)) {
                (Some(port), Some(&[a, b, c, d])) => {
                    Self::Internet(Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes(*port))
                }
                _ => Self::Other(INET),
            },
            INET6 => {
                let address = rest.get(6..22).and_then(|bytes| bytes.first_chunk::<16>());
                match (rest.first_chunk::<2>(), address) {
                    (Some(port), Some(address)) => {
                        Self::Internet(Ipv6Addr::from(*address).into(), u16::from_be_bytes(*port))
                    }
                    _ => Self::Other(INET6),
                }
            }
            family => Self::Other(family),
        }
    }
}

/// Formats an address with its port, as in a list of peers.
pub(super) fn text(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address.to_canonical(), port).to_string()
}

/// Formats an abstract name with the `@` that tools show for its zero byte.
pub(super) fn abstract_text(name: &[u8]) -> String {
    format!("unix:@{}", name.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_reads_them() {
        let family = |number: u16, rest: &[u8]| [&number.to_ne_bytes()[..], rest].concat();
        let inet = family(2, &[1, 187, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let host = "192.0.2.1".parse().expect("an address");
        assert_eq!(Address::parse(&inet), Address::Internet(host, 443));
        let mut six = vec![0, 53, 0, 0, 0, 0];
        six.extend(Ipv6Addr::LOCALHOST.octets());
        six.extend([0; 4]);
        let six = family(10, &six);
        assert_eq!(
            Address::parse(&six),
            Address::Internet(Ipv6Addr::LOCALHOST.into(), 53)
        );
        assert_eq!(Address::parse(&family(1, b"/a\0b")), Address::Path(b"/a"));
        assert_eq!(
            Address::parse(&family(1, b"\0a\0")),
            Address::Abstract(b"a\0")
        );
        assert_eq!(Address::parse(&family(0, &[])), Address::None);
        assert_eq!(Address::parse(&[2]), Address::None);
        assert_eq!(Address::parse(&family(2, &[1])), Address::Other(2));
        assert_eq!(Address::parse(&family(40, &[1])), Address::Other(40));
    }
}
