//! Connection attempts on the loopback address that are refused at once.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    let address = closed_port()?;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            let socket = rustix::net::socket_with(
                AddressFamily::INET,
                SocketType::STREAM,
                SocketFlags::CLOEXEC,
                None,
            )
            .map_err(Error::call("make a socket"))?;
            match rustix::net::connect(&socket, &address) {
                Err(Errno::CONNREFUSED) => {}
                other => {
                    let expected = Errno::CONNREFUSED.to_string();
                    return Err(Error::Unexpected {
                        expected,
                        got: format!("{other:?}"),
                    });
                }
            }
        }
        Ok(())
    }))
}

/// Returns a port that was free a moment ago.
fn closed_port() -> Result<SocketAddrV4, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    let port = address.map_err(Error::call("find a free port"))?.port();
    Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}
