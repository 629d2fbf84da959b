//! Connects a datagram socket; nothing is sent.

use std::net::UdpSocket;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};

pub(super) const ACTION: Action = Action::new(
    "helper.NetworkActivity",
    "connect a datagram socket to a private address",
    play,
)
.needs(&[Requirement::Address(address::PRIVATE)]);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(Error::call("bind a socket"))?;
    socket
        .connect((address::PRIVATE, 8192))
        .map_err(Error::call("connect"))?;
    Ok(())
}
