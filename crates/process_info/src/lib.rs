//! Readers of what the kernel tells about processes: /proc, memory, descriptors, sockets and users.

pub mod deadline;
pub mod memory;
pub mod procfs;
pub mod regular;
pub mod sockets;
pub mod users;
