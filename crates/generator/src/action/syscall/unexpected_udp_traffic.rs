//! Sends a datagram, which is seldom inspected, to this host.

use std::net::UdpSocket;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};

pub(super) const ACTION: Action = Action::new(
    "syscall.UnexpectedUDPTraffic",
    "send a datagram to a public address at a port of SSH",
    play,
)
.optional_rule("Unexpected UDP Traffic")
.needs(&[Requirement::Address(address::PUBLIC)]);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(Error::call("bind a socket"))?;
    socket
        .connect((address::PUBLIC, 22))
        .map_err(Error::call("connect"))?;
    // No process listens, which the kernel may report at once.
    let _refused = socket.send(b"hello");
    Ok(())
}
