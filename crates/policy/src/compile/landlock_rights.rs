//! The file rights of Landlock (include/uapi/linux/landlock.h).

/// All file access rights of ABI 7.
pub const ALL_RIGHTS: u64 = 0xffff;

/// The right to move files between folders. Every ruleset denies it unless a rule grants it.
pub(in crate::compile) const REFER: u64 = 0x2000;

/// The right to execute a file.
pub const EXECUTE: u64 = 1;
pub(in crate::compile) const READ: u64 = 0b1100;
/// The right to read a file.
pub const READ_FILE: u64 = 0b100;
/// The right to list a folder.
pub const LISTING: u64 = 0b1000;
/// Writing, removing, creating, moving between folders, truncating.
pub(in crate::compile) const WRITE: u64 = WRITE_FILE | REMOVE | MAKE | REFER | TRUNCATE;
/// The parts of [`WRITE`].
pub(in crate::compile) const WRITE_FILE: u64 = 0x2;
pub(in crate::compile) const REMOVE: u64 = 0x30;
pub(in crate::compile) const MAKE: u64 = 0x1fc0;
pub(in crate::compile) const MAKE_FOLDER: u64 = 0x80;
pub(in crate::compile) const MAKE_FILE: u64 = 0x100;
pub(in crate::compile) const MAKE_SOCKET: u64 = 0x200;
pub(in crate::compile) const MAKE_LINK: u64 = 0x1000;
pub(in crate::compile) const TRUNCATE: u64 = 0x4000;
pub(in crate::compile) const IOCTL: u64 = 0x8000;
/// Rights that apply to files; the others apply to folders only.
pub(in crate::compile) const ON_FILES: u64 = 0xc007;
