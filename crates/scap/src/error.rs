//! Errors of reading captures.

/// A capture cannot be read further. Everything before the error was read and stays valid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block, list or event is inconsistent.
    #[error("cannot read the capture at byte {offset}: {problem}")]
    Corrupt {
        /// Offset of the block in the uncompressed capture.
        offset: u64,
        /// Description of the error.
        problem: String,
    },
    /// The capture is empty.
    #[error("cannot read the capture: it is empty")]
    Empty,
    /// The file is not a capture.
    #[error("cannot read the capture: it starts with {found:#010x}, which is not scap")]
    Foreign {
        /// The first four bytes, as a number.
        found: u32,
    },
    /// The source returned an error.
    #[error("cannot read the capture at byte {offset}")]
    Io {
        /// Number of bytes read, uncompressed.
        offset: u64,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The capture contains network packets. Files of both formats begin alike.
    #[error(
        "cannot read the capture at byte {offset}: it has network packets (pcapng), not events"
    )]
    Packets {
        /// Offset of the first such block in the uncompressed capture.
        offset: u64,
    },
    /// The capture ends within a block: its writer was killed, or the copy is incomplete.
    #[error("cannot read the capture at byte {offset}: the file ends inside a block")]
    Truncated {
        /// Offset of the block in the uncompressed capture.
        offset: u64,
    },
    /// The capture has a newer major version of the format.
    #[error("cannot read a capture of format version {major}.{minor}")]
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
}

impl Error {
    /// Returns true if the capture is only truncated.
    #[must_use]
    pub fn is_truncation(&self) -> bool {
        matches!(self, Self::Truncated { .. })
    }
}
