//! Configuration of network interfaces and addresses by rtnetlink(7).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use abi::constant::{AF_INET, AF_INET6};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const REQUEST_ACK: u16 = 1 | 4;
const CREATE_EXCLUSIVE: u16 = 0x400 | 0x200;
const NLMSG_ERROR: u16 = 2;
const HEADER: usize = 16;

const IFF_UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;

/// Index of the loopback interface, the first of every network namespace.
pub(super) const LOOPBACK: i32 = 1;

/// A netlink socket of the current network namespace.
pub(super) struct Network(OwnedFd);

impl Network {
    pub(super) fn new() -> io::Result<Self> {
        // Protocol 0 is NETLINK_ROUTE.
        let fd = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
        Ok(Self(fd))
    }

    pub(super) fn bring_up(&self, interface: i32) -> io::Result<()> {
        self.request(RTM_NEWLINK, 0, &link(interface))
    }

    /// Makes a dummy interface. EOPNOTSUPP where the kernel has no such driver.
    pub(super) fn make_dummy(&self, interface: i32, name: &str) -> io::Result<()> {
        let mut body = link(interface);
        attribute(&mut body, IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
        let mut kind = Vec::new();
        attribute(&mut kind, IFLA_INFO_KIND, b"dummy\0");
        attribute(&mut body, IFLA_LINKINFO, &kind);
        self.request(RTM_NEWLINK, CREATE_EXCLUSIVE, &body)
    }

    /// Gives an interface an address without a network.
    pub(super) fn add_address(&self, interface: i32, address: IpAddr) -> io::Result<()> {
        let (family, bits, bytes) = match address {
            IpAddr::V4(address) => (AF_INET.u8(), 32, address.octets().to_vec()),
            IpAddr::V6(address) => (AF_INET6.u8(), 128, address.octets().to_vec()),
        };
        let mut body = vec![family, bits, IFA_F_NODAD, 0];
        body.extend(interface.to_ne_bytes());
        attribute(&mut body, IFA_LOCAL, &bytes);
        attribute(&mut body, IFA_ADDRESS, &bytes);
        self.request(RTM_NEWADDR, CREATE_EXCLUSIVE, &body)
    }

    fn request(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((REQUEST_ACK | flags).to_ne_bytes());
        // Sequence number and port are 0: there is one request at a time.
        message.extend([0; 8]);
        message.extend(body);
        sendto(
            &self.0,
            &message,
            SendFlags::empty(),
            &SocketAddrNetlink::new(0, 0),
        )?;
        let mut answer = [0; 4096];
        let (length, _) = recv(&self.0, &mut answer, RecvFlags::empty())?;
        acknowledged(&answer[..length])
    }
}

/// Makes a `struct ifinfomsg` with IFF_UP.
fn link(interface: i32) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(interface.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    body
}

fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("names and addresses are short");
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok());
    let code = answer
        .get(HEADER..HEADER + 4)
        .and_then(|bytes| bytes.try_into().ok());
    match (kind.map(u16::from_ne_bytes), code.map(i32::from_ne_bytes)) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(-code)),
        _ => Err(io::Error::other(
            "the kernel's answer is no acknowledgement",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_say_their_length() {
        let mut body = Vec::new();
        attribute(&mut body, IFLA_IFNAME, b"lo\0");
        let mut expected = 7_u16.to_ne_bytes().to_vec();
        expected.extend(IFLA_IFNAME.to_ne_bytes());
        expected.extend(b"lo\0\0");
        assert_eq!(body, expected);
    }

    #[test]
    fn answers_are_told_apart() {
        let answer = |kind: u16, code: i32| {
            let mut bytes = vec![0; HEADER];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes.extend(code.to_ne_bytes());
            bytes
        };
        assert!(acknowledged(&answer(NLMSG_ERROR, 0)).is_ok());
        let refused = acknowledged(&answer(NLMSG_ERROR, -95)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(95));
        assert!(acknowledged(&answer(RTM_NEWADDR, 0)).is_err());
        assert!(acknowledged(&[]).is_err());
    }
}
