//! Encodes blocks.

use crate::block::{
    EVENT_V2, FLAGGED_EVENT_V2, FLAGGED_LARGE_EVENT_V2, LARGE_EVENT_V2, MACHINE, MAGIC, SECTION,
    USERS_V2,
};
use crate::list::{HOSTNAME_LEN, MachineInfo, UserEntry};
use crate::read::STATE_ONLY;
use crate::table::EventType;

/// Maximum length of an event with its frame that every reader accepts: libscap reads into 64 KiB.
pub(crate) const MAX_EVENT: usize = 60 << 10;

/// Appends blocks to a buffer.
pub(crate) struct Blocks<'o> {
    out: &'o mut Vec<u8>,
}

/// An event to be written.
pub(crate) struct EventDraft<'d> {
    pub(crate) ty: &'static EventType,
    pub(crate) time_ns: u64,
    pub(crate) tid: i64,
    pub(crate) cpu: u16,
    pub(crate) is_state_only: bool,
    pub(crate) values: &'d Values,
}

/// Parameter values of an event, in order.
#[derive(Debug, Default)]
pub(crate) struct Values {
    lens: Vec<usize>,
    bytes: Vec<u8>,
}

impl Values {
    pub(crate) fn clear(&mut self) {
        self.lens.clear();
        self.bytes.clear();
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.lens.push(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Replaces the first value by one of the same length.
    pub(crate) fn set_first(&mut self, bytes: &[u8]) {
        if let Some(first) = self.bytes.get_mut(..bytes.len()) {
            first.copy_from_slice(bytes);
        }
    }

    /// Appends text with a terminating NUL.
    pub(crate) fn push_text(&mut self, text: &[u8]) {
        self.lens.push(text.len() + 1);
        self.bytes.extend_from_slice(text);
        self.bytes.push(0);
    }

    /// Appends a number of `size` bytes.
    pub(crate) fn push_number(&mut self, value: u64, size: u8) {
        let bytes = value.to_le_bytes();
        self.push(&bytes[..usize::from(size.min(8))]);
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl<'o> Blocks<'o> {
    pub(crate) fn new(out: &'o mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Writes a block; `fill` writes its content.
    fn block(&mut self, ty: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.out.len();
        self.out.extend_from_slice(&ty.to_le_bytes());
        self.out.extend_from_slice(&[0; 4]);
        fill(self.out);
        while !(self.out.len() - start).is_multiple_of(4) {
            self.out.push(0);
        }
        let len = u32::try_from(self.out.len() - start + 4).expect("lists are split before that");
        self.out.extend_from_slice(&len.to_le_bytes());
        self.out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    }

    pub(crate) fn section(&mut self) {
        self.block(SECTION, |out| {
            out.extend_from_slice(&MAGIC.to_le_bytes());
            out.extend_from_slice(&1_u16.to_le_bytes());
            out.extend_from_slice(&2_u16.to_le_bytes());
            // Unknown until the end.
            out.extend_from_slice(&u64::MAX.to_le_bytes());
        });
    }

    pub(crate) fn machine(&mut self, machine: &MachineInfo) {
        self.block(MACHINE, |out| {
            out.extend_from_slice(&machine.cpus.to_le_bytes());
            out.extend_from_slice(&machine.memory_bytes.to_le_bytes());
            out.extend_from_slice(&machine.max_pid.to_le_bytes());
            let mut name = [0; HOSTNAME_LEN];
            let len = machine.hostname.len().min(HOSTNAME_LEN - 1);
            name[..len].copy_from_slice(&machine.hostname.as_bytes()[..len]);
            out.extend_from_slice(&name);
            out.extend_from_slice(&machine.boot_ns.to_le_bytes());
            // Flags and two reserved numbers.
            out.extend_from_slice(&[0; 24]);
        });
    }

    pub(crate) fn users<'u>(&mut self, users: impl Iterator<Item = UserEntry<'u>>) {
        self.block(USERS_V2, |out| {
            users.for_each(|user| write_user(out, &user))
        });
    }

    pub(crate) fn event(&mut self, draft: &EventDraft<'_>) {
        /// Size of an event header: time, thread, length, type, number of parameters.
        const HEADER: usize = 8 + 8 + 4 + 2 + 4;
        let ty = match (draft.is_state_only, draft.ty.is_large) {
            (true, false) => FLAGGED_EVENT_V2,
            (false, false) => EVENT_V2,
            (true, true) => FLAGGED_LARGE_EVENT_V2,
            (false, true) => LARGE_EVENT_V2,
        };
        self.block(ty, |out| {
            out.extend_from_slice(&draft.cpu.to_le_bytes());
            if draft.is_state_only {
                out.extend_from_slice(&STATE_ONLY.to_le_bytes());
            }
            let values = draft.values;
            let width = if draft.ty.is_large { 4 } else { 2 };
            let len = HEADER + values.lens.len() * width + values.bytes.len();
            out.extend_from_slice(&draft.time_ns.to_le_bytes());
            out.extend_from_slice(&draft.tid.to_le_bytes());
            out.extend_from_slice(&number(len).to_le_bytes());
            out.extend_from_slice(&draft.ty.code.to_le_bytes());
            out.extend_from_slice(&number(values.lens.len()).to_le_bytes());
            for len in &values.lens {
                out.extend_from_slice(&number(*len).to_le_bytes()[..width]);
            }
            out.extend_from_slice(&values.bytes);
        });
    }
}

/// Converts a length that was limited to less than this before.
fn number(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    let text = &text[..text.len().min(usize::from(u16::MAX))];
    let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text);
}

/// Writes an entry with its length in front, which includes itself.
fn sized(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let len = number(out.len() - start);
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

fn write_user(out: &mut Vec<u8>, user: &UserEntry<'_>) {
    /// Maximum length of a name; readers refuse longer ones.
    const MAX_NAME: usize = 255;
    let short = |text: &[u8]| text[..text.len().min(MAX_NAME)].to_vec();
    sized(out, |out| match *user {
        UserEntry::User {
            uid,
            gid,
            name,
            home,
            shell,
        } => {
            out.push(0);
            out.extend_from_slice(&uid.to_le_bytes());
            out.extend_from_slice(&gid.to_le_bytes());
            for text in [name, home, shell] {
                write_text(out, &short(text));
            }
        }
        UserEntry::Group { gid, name } => {
            out.push(1);
            out.extend_from_slice(&gid.to_le_bytes());
            write_text(out, &short(name));
        }
    });
}
