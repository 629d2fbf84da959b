//! Creates a packet socket, below IP, which can read and forge the packets of others.

use rustix::net::{AddressFamily, SocketType, socket};
use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.PacketSocketCreatedInContainer",
    "make a packet socket",
    play,
)
.rule("Packet socket created in container")
.inside()
.needs(&[Requirement::Capability("CAP_NET_RAW")]);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    socket(AddressFamily::PACKET, SocketType::RAW, None)
        .map_err(Error::call("make a packet socket"))?;
    Ok(())
}
