//! Parser of `/proc/PID/mountinfo`.

use std::borrow::Cow;

/// One mount in its raw form: paths contain octal escapes, see [`unescape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountLine<'a> {
    /// Mount id; reused after unmounting.
    pub id: u64,
    /// Id of the parent mount.
    pub parent: u64,
    /// Device number, such as `8:1`.
    pub device: &'a [u8],
    /// The mounted directory of the file system, escaped.
    pub root: &'a [u8],
    /// Mount point relative to the process's root, escaped.
    pub mount_point: &'a [u8],
    /// Per-mount options.
    pub options: &'a [u8],
    /// Type of the file system.
    pub fs_type: &'a [u8],
    /// Device or other source of the file system, escaped.
    pub source: &'a [u8],
    /// Options of the file system, escaped.
    pub super_options: &'a [u8],
}

impl<'a> MountLine<'a> {
    /// Value of `name=` in the options of the file system, e.g. `upperdir`.
    pub fn super_option(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        self.super_options
            .split(|byte| *byte == b',')
            .find_map(|option| {
                let value = option.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
                Some(unescape(value))
            })
    }

    /// Returns true if the mount or the file system is read-only.
    pub fn is_read_only(&self) -> bool {
        let read_only = |options: &[u8]| options.split(|byte| *byte == b',').any(|o| o == b"ro");
        read_only(self.options) || read_only(self.super_options)
    }
}

/// Iterates over the well-formed lines of the file, and omits others.
pub fn mount_lines(text: &[u8]) -> impl Iterator<Item = MountLine<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line)
}

fn parse_line(line: &[u8]) -> Option<MountLine<'_>> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = super::parse_number(fields.next()?)?;
    let parent = super::parse_number(fields.next()?)?;
    let device = fields.next()?;
    let root = fields.next()?;
    let mount_point = fields.next()?;
    let options = fields.next()?;
    // Any number of optional fields (propagation) up to a single dash.
    fields.find(|field| *field == b"-")?;
    let fs_type = fields.next()?;
    let source = fields.next()?;
    let super_options = fields.next()?;
    Some(MountLine {
        id,
        parent,
        device,
        root,
        mount_point,
        options,
        fs_type,
        source,
        super_options,
    })
}

/// Undoes the kernel's `\040` escapes. An incomplete escape stays as it is.
pub fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if byte == b'\\' => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    Cow::Owned(plain)
}
