//! What a container in a machine of its own needs: an archive with its files, a kernel, and a form for what
//! goes between the two sides.

pub mod archive;
pub mod frame;
pub mod kernel;
pub mod unpack;

pub use archive::Archive;
pub use frame::{Frame, FrameError, Kind};
pub use kernel::Kernel;
pub use unpack::unpack;
