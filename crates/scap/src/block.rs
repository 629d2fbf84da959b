//! Block types.

/// Section header, which begins a capture, or one that was appended to another.
pub(crate) const SECTION: u32 = 0x0a0d_0d0a;
/// Byte-order magic in the section header.
pub(crate) const MAGIC: u32 = 0x1a2b_3c4d;
pub(crate) const MACHINE: u32 = 0x201;
pub(crate) const THREADS_V9: u32 = 0x215;
pub(crate) const DESCRIPTORS_V2: u32 = 0x218;
pub(crate) const USERS_V2: u32 = 0x220;
pub(crate) const EVENT_V2: u32 = 0x216;
pub(crate) const FLAGGED_EVENT_V2: u32 = 0x217;
/// Like [`EVENT_V2`], with lengths of 32 bits.
pub(crate) const LARGE_EVENT_V2: u32 = 0x221;
/// Like [`FLAGGED_EVENT_V2`], with lengths of 32 bits.
pub(crate) const FLAGGED_LARGE_EVENT_V2: u32 = 0x222;

/// Content of a block, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Descriptors {
        is_sized: bool,
    },
    Event {
        has_flags: bool,
        is_old: bool,
    },
    Machine,
    /// Interfaces and packets of network captures.
    Packets,
    Section,
    /// A thread list, with its version.
    Threads(u8),
    Users {
        is_sized: bool,
    },
    /// Interfaces, and types that are newer than this program. No rule uses them.
    Other,
}

impl Content {
    #[inline]
    pub(crate) fn of(block_type: u32) -> Self {
        match block_type {
            EVENT_V2 | LARGE_EVENT_V2 => Self::Event {
                has_flags: false,
                is_old: false,
            },
            FLAGGED_EVENT_V2 | FLAGGED_LARGE_EVENT_V2 => Self::Event {
                has_flags: true,
                is_old: false,
            },
            0x204 | 0x8010_abcd => Self::Event {
                has_flags: false,
                is_old: true,
            },
            0x208 => Self::Event {
                has_flags: true,
                is_old: true,
            },
            SECTION => Self::Section,
            MACHINE | 0x8002_abcd => Self::Machine,
            0x202 | 0x8000_abcd => Self::Threads(1),
            0x207 | 0x8013_abcd => Self::Threads(2),
            0x209 | 0x8014_abcd => Self::Threads(3),
            0x210 => Self::Threads(4),
            0x211 => Self::Threads(5),
            0x212 => Self::Threads(6),
            0x213 => Self::Threads(7),
            0x214 => Self::Threads(8),
            THREADS_V9 => Self::Threads(9),
            0x203 | 0x8001_abcd => Self::Descriptors { is_sized: false },
            DESCRIPTORS_V2 => Self::Descriptors { is_sized: true },
            0x206 | 0x8012_abcd => Self::Users { is_sized: false },
            USERS_V2 => Self::Users { is_sized: true },
            1..=6 => Self::Packets,
            _ => Self::Other,
        }
    }
}
