//! Both ends of a connection, because no other host is ever contacted.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};

use workload::Error;

use super::super::Stop;

/// Listens on an address of this host.
pub(super) fn listen(address: &str, port: u16) -> Result<TcpListener, Stop> {
    TcpListener::bind((address, port)).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            Stop::Skipped(format!("needs the right to listen at port {port}"))
        }
        _ => Error::call("listen")(error).into(),
    })
}

/// Connects and sends nothing.
pub(super) fn reach(address: &str, port: u16) -> Result<(), Stop> {
    TcpStream::connect((address, port)).map_err(Error::call("connect"))?;
    Ok(())
}

/// Connects to a service that this process plays.
pub(super) fn contact(address: &str, port: u16) -> Result<(), Stop> {
    let _server = listen(address, port)?;
    reach(address, port)
}
