//! Readers of the kernel's information on processes: /proc, memory, descriptors, sockets and users.

pub mod deadline;
pub mod memory;
pub mod procfs;
pub mod regular;
pub mod sockets;
pub mod users;
