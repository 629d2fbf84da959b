//! NRI, the Node Resource Interface: a container runtime (containerd, CRI-O) asks plug-ins before it creates and
//! starts a container, and waits for their answers.
//!
//! Frames on one socket carry two connections, of which each carries messages of ttRPC, of which each carries a
//! message of protobuf. [`Demultiplexer`] takes frames and messages apart; [`Protocol`] is the plug-in's side without
//! any I/O; [`run`] connects both with a socket and a [`Plugin`], on threads.
//!
//! The runtime unregisters a plug-in that answers too late (after 2 s), and lets the container run. So each answer has
//! a deadline far below that: [`Options::deadline`]. A handler that misses it goes on without an answer, the runtime
//! gets [`Plugin::too_late`]'s, and [`Plugin::late`] hears what the handler would have said.
//!
//! Everything that the runtime sends is bounded: [`MAX_MESSAGE`], [`MAX_LISTED`].

#[cfg(feature = "testing")]
pub mod fake;
mod frame;
pub mod message;
mod protocol;
mod session;
#[cfg(test)]
mod tests;

pub use frame::{Demultiplexer, FrameError, MAX_MESSAGE, Message, MessageKind, encode};
pub use protocol::{Answer, Event, MAX_LISTED, Options, Protocol, ProtocolError, Step};
pub use session::{Plugin, SessionError, run};

/// Where containerd and CRI-O listen.
pub const SOCKET: &str = "/var/run/nri/nri.sock";
