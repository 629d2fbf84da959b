//! Sends a message over the loopback interface and receives it.

use std::net::UdpSocket;
use std::time::Duration;

use workload::Error;
use workload::expect_count;

use super::super::{Action, ActionEnvironment, Stop};

/// Magic number of Java class files.
const CLASS: [u8; 4] = [0xca, 0xfe, 0xba, 0xbe];

pub(super) const ACTION: Action = Action::new(
    "helper.CombinedServerClient",
    "send a datagram with the start of a Java class to itself",
    play,
);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    let server = UdpSocket::bind("127.0.0.1:0").map_err(Error::call("bind a socket"))?;
    let timeout = Some(Duration::from_secs(5));
    server
        .set_read_timeout(timeout)
        .map_err(Error::call("set a timeout"))?;
    let address = server
        .local_addr()
        .map_err(Error::call("ask for an address"))?;
    let client = UdpSocket::bind("127.0.0.1:0").map_err(Error::call("bind a socket"))?;
    client.connect(address).map_err(Error::call("connect"))?;
    client.send(&CLASS).map_err(Error::call("send"))?;
    let mut buffer = [0; 64];
    let (length, _) = server
        .recv_from(&mut buffer)
        .map_err(Error::call("receive"))?;
    expect_count("bytes", CLASS.len(), length)?;
    Ok(())
}
