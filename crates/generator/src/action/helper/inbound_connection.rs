//! Accepts a connection from another host; this process plays both.

use std::net::{TcpListener, TcpStream};

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};

pub(super) const ACTION: Action = Action::new(
    "helper.InboundConnection",
    "listen, and accept a connection",
    play,
)
.needs(&[Requirement::Address(address::PUBLIC)]);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    let listener = TcpListener::bind((address::PUBLIC, 0)).map_err(Error::call("listen"))?;
    let at = listener
        .local_addr()
        .map_err(Error::call("ask for an address"))?;
    let _client = TcpStream::connect(at).map_err(Error::call("connect"))?;
    listener.accept().map_err(Error::call("accept"))?;
    Ok(())
}
