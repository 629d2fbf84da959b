//! Decodes the parameters of events.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bumpalo::Bump;
use event::{Absence, Endpoint, Param};

use crate::bytes::{Bytes, signed, unsigned, until_nul};
use crate::flags::Translation;
use crate::read::Params;

/// Source of a parameter of an event kind.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// Position in the exit event.
    pub(crate) exit: Option<usize>,
    /// Position in the enter event, for captures whose exit events lack it.
    pub(crate) enter: Option<usize>,
    pub(crate) convert: Convert,
}

/// Conversion of the bytes.
#[derive(Clone, Debug)]
pub(crate) enum Convert {
    Address,
    Bytes,
    DescriptorList,
    /// The first byte is the type.
    Dynamic,
    Flags(&'static Translation),
    Nothing,
    Signed,
    Text,
    Tuple,
    Unsigned,
    UnsignedAsInt,
}

impl Slot {
    /// A parameter that no capture has.
    pub(crate) const NOWHERE: Self = Self {
        exit: None,
        enter: None,
        convert: Convert::Nothing,
    };

    /// Returns the bytes; empty if the capture omits them.
    #[inline]
    pub(crate) fn bytes<'b>(&self, exit: &Params<'b>, enter: &Params<'b>) -> Option<&'b [u8]> {
        if let Some(at) = self.exit
            && let Some(bytes) = exit.get(at)
            && !bytes.is_empty()
        {
            return Some(bytes);
        }
        let of_enter = enter.get(self.enter?)?;
        (!of_enter.is_empty()).then_some(of_enter)
    }

    /// Decodes the parameter.
    #[inline]
    pub(crate) fn param<'a>(
        &self,
        exit: &Params<'a>,
        enter: &Params<'a>,
        arena: &'a Bump,
    ) -> Param<'a> {
        let mut param = Param::Absent(Absence::recorded());
        self.put(&mut param, exit, enter, arena);
        param
    }

    /// Decodes the parameter in place, if there is one. Copying a value that was just written in
    /// parts stalls the processor for longer than decoding it.
    #[inline]
    pub(crate) fn put<'a>(
        &self,
        place: &mut Param<'a>,
        exit: &Params<'a>,
        enter: &Params<'a>,
        arena: &'a Bump,
    ) {
        let Some(bytes) = self.bytes(exit, enter) else {
            return;
        };
        match &self.convert {
            Convert::Nothing => {}
            Convert::Signed => {
                if let Some(value) = signed(bytes) {
                    *place = Param::Int(value);
                }
            }
            Convert::Unsigned => {
                if let Some(value) = unsigned(bytes) {
                    *place = Param::Uint(value);
                }
            }
            Convert::UnsignedAsInt => {
                if let Some(value) = unsigned(bytes) {
                    *place = Param::Int(value.cast_signed());
                }
            }
            Convert::Flags(flags) => {
                if let Some(value) = unsigned(bytes) {
                    *place = Param::Uint(flags.to_native(value));
                }
            }
            Convert::Text => {
                let text = until_nul(bytes);
                // Capturing programs write this for an invalid pointer.
                if text != b"<NA>" {
                    *place = Param::Text(text);
                }
            }
            Convert::Bytes => *place = Param::Text(bytes),
            Convert::Tuple => *place = Param::Tuple,
            Convert::Address => {
                if let Some(address) = address(bytes) {
                    *place = shown(&address, arena);
                }
            }
            Convert::DescriptorList => {
                if let Some(list) = descriptor_list(bytes, arena) {
                    *place = list;
                }
            }
            Convert::Dynamic => {
                if let Some(value) = unsigned(&bytes[1..]) {
                    *place = Param::Uint(value);
                }
            }
        }
    }
}

/// `struct sockaddr` families, the same on all Linux systems.
const AF_UNIX: u8 = abi::constant::AF_UNIX.u8();
const AF_INET: u8 = abi::constant::AF_INET.u8();
const AF_INET6: u8 = abi::constant::AF_INET6.u8();

/// An address, or one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address<'b> {
    Inet(Endpoint),
    Unix(&'b [u8]),
}

/// The ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnds<'b> {
    Inet {
        source: Endpoint,
        destination: Endpoint,
    },
    Unix(&'b [u8]),
}

pub(crate) fn address(bytes: &[u8]) -> Option<Address<'_>> {
    let mut rest = Bytes::new(bytes);
    match rest.u8()? {
        AF_UNIX => Some(Address::Unix(until_nul(&bytes[1..]))),
        family => endpoint(&mut rest, family).map(Address::Inet),
    }
}

pub(crate) fn ends(bytes: &[u8]) -> Option<ConnectionEnds<'_>> {
    let mut rest = Bytes::new(bytes);
    let family = rest.u8()?;
    if family == AF_UNIX {
        // Addresses of two kernel structures come first.
        return Some(ConnectionEnds::Unix(until_nul(bytes.get(17..)?)));
    }
    Some(ConnectionEnds::Inet {
        source: endpoint(&mut rest, family)?,
        destination: endpoint(&mut rest, family)?,
    })
}

fn endpoint(bytes: &mut Bytes<'_>, family: u8) -> Option<Endpoint> {
    let ip: IpAddr = match family {
        AF_INET => Ipv4Addr::from(<[u8; 4]>::try_from(bytes.take(4)?).ok()?).into(),
        AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes.take(16)?).ok()?).into(),
        _ => return None,
    };
    let port = bytes.u16()?;
    Some(Endpoint { ip, port })
}

fn shown<'a>(address: &Address<'a>, arena: &'a Bump) -> Param<'a> {
    match address {
        Address::Unix(path) => Param::Text(path),
        Address::Inet(end) => {
            let text = bumpalo::format!(in arena, "{}:{}", end.ip, end.port);
            Param::Text(text.into_bump_str().as_bytes())
        }
    }
}

/// Formats `number:flags` for each polled descriptor.
fn descriptor_list<'a>(bytes: &[u8], arena: &'a Bump) -> Option<Param<'a>> {
    use std::fmt::Write as _;
    let mut rest = Bytes::new(bytes);
    let count = rest.u16()?;
    let mut text = bumpalo::collections::String::new_in(arena);
    for position in 0..count {
        let (number, flags) = (rest.i64()?, rest.u16()?);
        let blank = if position == 0 { "" } else { " " };
        let _ = write!(text, "{blank}{number}:{flags:x}");
    }
    Some(Param::Text(text.into_bump_str().as_bytes()))
}

/// Returns the value of an integer parameter.
pub(crate) fn as_int(param: &Param<'_>) -> Option<i64> {
    match param {
        Param::Int(value) => Some(*value),
        Param::Uint(value) => Some(value.cast_signed()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_connections_are_read_and_short_ones_are_not() {
        let bytes = [2, 127, 0, 0, 1, 0x90, 0x1f, 10, 0, 0, 2, 0x50, 0];
        let Some(ConnectionEnds::Inet {
            source,
            destination,
        }) = ends(&bytes)
        else {
            panic!("not read");
        };
        assert_eq!((source.port, destination.port), (8080, 80));
        for short in 0..bytes.len() {
            assert_eq!(ends(&bytes[..short]), None);
        }
        let unix = [&[1][..], &[0; 16], b"/run/x\0"].concat();
        assert_eq!(ends(&unix), Some(ConnectionEnds::Unix(b"/run/x")));
        assert_eq!(address(b"\x01/run/y\0"), Some(Address::Unix(b"/run/y")));
        assert_eq!(address(&[17, 0, 0]), None);
    }
}
