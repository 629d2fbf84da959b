//! Connects a datagram socket to a host of the Internet; nothing is sent.

use std::net::UdpSocket;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};

pub(super) const ACTION: Action = Action::new(
    "helper.OutboundConnection",
    "connect a datagram socket to a public address",
    play,
)
.needs(&[Requirement::Address(address::PUBLIC)]);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(Error::call("bind a socket"))?;
    socket
        .connect((address::PUBLIC, 53))
        .map_err(Error::call("connect"))?;
    Ok(())
}
