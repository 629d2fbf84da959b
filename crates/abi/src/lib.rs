//! The Linux system-call interface as data: call tables, argument kinds, flag and errno names.
//!
//! Everything comes from the text files in `data/`: adding a call is one line in `calls.txt`,
//! adding a flag one line in `flags/SET.txt`. This crate does no input or output.

#![no_std]

extern crate alloc;

pub mod always_trapped;
pub mod arch;
pub mod argument;
pub mod capability;
pub mod constant;
mod deniable;
pub mod errno;
pub mod flags;
pub mod harmless;
pub mod register;
pub mod ring;
pub mod signal;
pub mod syscall;

pub use always_trapped::{FLOOR, STATE, TrappedCall};
pub use arch::Arch;
pub use argument::{ArgKind, ArgSpec, RegisterWidth};
pub use capability::Capabilities;
pub use deniable::Deniable;
pub use errno::Errno;
pub use flags::FlagSet;
pub use harmless::is_harmless;
pub use register::{RegisterTest, TestOp, TestWidth};
pub use ring::{RING_CALLS, RING_OPERATIONS, RingOperation, ring_may_do};
pub use signal::Signal;
pub use syscall::Syscall;
