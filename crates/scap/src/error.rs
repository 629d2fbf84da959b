//! What can be wrong with a capture.

/// Why a capture cannot be read further. What came before it was read and stands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block, list or event contradicts itself.
    #[error("cannot read the capture at byte {offset}: {problem}")]
    Corrupt {
        /// Where the block begins, in the uncompressed capture.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// There is nothing in it.
    #[error("cannot read the capture: it is empty")]
    Empty,
    /// It does not begin as a capture does.
    #[error("cannot read the capture: it starts with {found:#010x}, which is not scap")]
    Foreign {
        /// The first four bytes, as a number.
        found: u32,
    },
    /// Reading the bytes failed.
    #[error("cannot read the capture at byte {offset}")]
    Io {
        /// How much was read, uncompressed.
        offset: u64,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// It has packets of a network in it. Files of both sorts begin alike.
    #[error(
        "cannot read the capture at byte {offset}: it has network packets (pcapng), not events"
    )]
    Packets {
        /// Where the first block of that sort begins, in the uncompressed capture.
        offset: u64,
    },
    /// It ends within a block: the writer was killed, or the copy is not whole.
    #[error("cannot read the capture at byte {offset}: the file ends inside a block")]
    Truncated {
        /// Where the block begins, in the uncompressed capture.
        offset: u64,
    },
    /// It was written by a newer major version of the format.
    #[error("cannot read a capture of format version {major}.{minor}")]
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
}

impl Error {
    /// Whether the capture merely ends too early.
    #[must_use]
    pub fn is_truncation(&self) -> bool {
        matches!(self, Self::Truncated { .. })
    }
}
