//! Reads the lines that are appended to a file, across its rotation.

use std::fmt::Write as _;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Maximum length in bytes of a line that is read as a whole. The alerts of `tollgate runtime` have three texts of at most
/// 64 KiB that a program chooses (its command line twice, and the arguments of the call), and JSON makes six bytes of one.
const MAX_LINE: usize = 2 << 20;
/// Maximum number of bytes that are read at once.
const MAX_READ: u64 = 256 << 10;
/// Maximum number of bytes at the begin of a file by which it is told from others.
const MAX_HEAD: u64 = 4096;

/// How far a file was read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Position {
    /// Number of the file. The number of its device may be another one after a boot.
    inode: u64,
    /// Length in bytes and SHA-256 of the begin of the file: numbers of files are used again.
    head: (u64, String),
    /// Bytes.
    offset: u64,
    /// The offset is inside a line that was too long.
    is_skipping: bool,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line.
    Whole(Vec<u8>),
    /// The begin of a line that is too long. Its rest is skipped.
    Cut(Vec<u8>),
}

/// A file that is open.
#[derive(Debug)]
struct Open {
    file: File,
    /// Device and number.
    identity: (u64, u64),
    offset: u64,
}

/// A file that is followed.
#[derive(Debug)]
pub(crate) struct Follow {
    path: PathBuf,
    open: Option<Open>,
    /// Where to begin; `None`: at the end of what is there at the first look.
    begin: Option<Position>,
    /// The file was looked for once.
    has_looked: bool,
    /// The begin of a line.
    rest: Vec<u8>,
    /// The rest of the line is skipped.
    is_skipping: bool,
    /// Lines without an end, of a file that was replaced.
    pub(crate) skipped: u64,
    /// Times that a file was gone, or cut, and perhaps not read to its end.
    pub(crate) gaps: u64,
}

impl Follow {
    /// Follows a file from where the reader before ended, or else from its end.
    pub(crate) fn new(path: PathBuf, begin: Option<Position>) -> Self {
        Self {
            path,
            open: None,
            begin,
            has_looked: false,
            rest: Vec::new(),
            is_skipping: false,
            skipped: 0,
            gaps: 0,
        }
    }

    /// How far the file was read, in whole lines. A reader that gives out lines and ends before this is kept gives them
    /// out again.
    ///
    /// # Errors
    ///
    /// If the begin of the file cannot be read.
    pub(crate) fn position(&self) -> io::Result<Option<Position>> {
        let Some(open) = &self.open else {
            return Ok(None);
        };
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let offset = open.offset.saturating_sub(rest);
        let length = offset.min(MAX_HEAD);
        Ok(Some(Position {
            inode: open.identity.1,
            head: (length, digest(&open.file, length)?),
            offset,
            is_skipping: self.is_skipping,
        }))
    }

    /// Gives each line that is new to `take`. Returns true if there is more to read at once.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or read. A file that is not there has no lines.
    pub(crate) fn lines(&mut self, mut take: impl FnMut(Line)) -> io::Result<bool> {
        if self.open.is_none() && !self.open()? {
            return Ok(false);
        }
        // Before the end is found: what was written until then is in the file that is open.
        let is_replaced = self.is_replaced()?;
        let Some(open) = &mut self.open else {
            return Ok(false);
        };
        let mut bytes = Vec::new();
        let read = Read::take(&open.file, MAX_READ).read_to_end(&mut bytes)?;
        open.offset += u64::try_from(read).unwrap_or(u64::MAX);
        self.split(&bytes, &mut take);
        if read > 0 {
            return Ok(true);
        }
        if is_replaced {
            self.open = None;
            // No line goes on in another file.
            self.skipped += u64::from(!std::mem::take(&mut self.rest).is_empty());
            self.is_skipping = false;
            return Ok(true);
        }
        Ok(false)
    }

    fn open(&mut self) -> io::Result<bool> {
        let found = open(&self.path)?;
        if let Some(begin) = self.begin.clone() {
            // The file was rotated when nobody read, perhaps.
            let rotated = match &found {
                Some((file, metadata)) if begin.is_in(file, metadata)? => None,
                _ => match open(&older(&self.path))? {
                    Some((file, metadata)) if begin.is_in(&file, &metadata)? => {
                        Some((file, metadata))
                    }
                    _ => None,
                },
            };
            let (file, metadata) = match (rotated, found) {
                (Some(rotated), _) => rotated,
                (None, Some(found)) => found,
                (None, None) => return Ok(false),
            };
            self.begin = None;
            let is_same = begin.is_in(&file, &metadata)?;
            self.gaps += u64::from(!is_same);
            self.is_skipping = is_same && begin.is_skipping;
            let offset = if is_same { begin.offset } else { 0 };
            return self.begin_at(file, &metadata, offset);
        }
        // A file that appears later is new from its begin.
        let has_looked = std::mem::replace(&mut self.has_looked, true);
        match found {
            Some((file, metadata)) => {
                let offset = if has_looked { 0 } else { metadata.len() };
                self.begin_at(file, &metadata, offset)
            }
            None => Ok(false),
        }
    }

    fn begin_at(&mut self, mut file: File, metadata: &Metadata, offset: u64) -> io::Result<bool> {
        self.has_looked = true;
        file.seek(SeekFrom::Start(offset))?;
        self.open = Some(Open {
            file,
            identity: (metadata.dev(), metadata.ino()),
            offset,
        });
        Ok(true)
    }

    /// Returns true if the path leads to another file, or if the file was cut.
    fn is_replaced(&mut self) -> io::Result<bool> {
        let Some(open) = &self.open else {
            return Ok(false);
        };
        match fs::metadata(&self.path) {
            Ok(now) if (now.dev(), now.ino()) != open.identity => Ok(true),
            Ok(now) => {
                let is_cut = now.len() < open.offset;
                self.gaps += u64::from(is_cut);
                Ok(is_cut)
            }
            // Renamed, and the next one is not there yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn split(&mut self, bytes: &[u8], take: &mut impl FnMut(Line)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_whole = part.ends_with(b"\n");
            let part = part.strip_suffix(b"\n").unwrap_or(part);
            if self.is_skipping {
                self.is_skipping = !is_whole;
                continue;
            }
            let room = MAX_LINE - self.rest.len();
            self.rest.extend_from_slice(&part[..part.len().min(room)]);
            match (part.len() > room, is_whole) {
                (true, _) => {
                    take(Line::Cut(std::mem::take(&mut self.rest)));
                    self.is_skipping = !is_whole;
                }
                (false, true) => take(Line::Whole(std::mem::take(&mut self.rest))),
                (false, false) => {}
            }
        }
    }
}

impl Position {
    /// Returns true if this is a position in a file.
    fn is_in(&self, file: &File, metadata: &Metadata) -> io::Result<bool> {
        let (length, expected) = &self.head;
        if metadata.ino() != self.inode || metadata.len() < self.offset.max(*length) {
            return Ok(false);
        }
        Ok(digest(file, (*length).min(MAX_HEAD))? == *expected)
    }
}

/// SHA-256 of the begin of a file.
fn digest(file: &File, length: u64) -> io::Result<String> {
    let mut head = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut head, 0)?;
    let digest = Sha256::digest(&head);
    Ok(digest.iter().fold(String::new(), |mut out, byte| {
        // Writing to a text cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    }))
}

/// Opens a regular file; `None` if there is no file.
fn open(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    let mut options = OpenOptions::new();
    // A FIFO must not block the thread.
    let options = options.read(true).custom_flags(NO_WAIT);
    let file = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok(Some((file, metadata))),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// The name that a rotation gives to the file.
fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

/// `O_NONBLOCK`.
const NO_WAIT: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn add(path: &Path, text: &str) {
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn all(follow: &mut Follow) -> Vec<String> {
        let mut lines = Vec::new();
        let mut take = |line| {
            let (Line::Whole(line) | Line::Cut(line)) = line;
            lines.push(String::from_utf8(line).unwrap());
        };
        while follow.lines(&mut take).unwrap() {}
        lines
    }

    #[test]
    fn lines_are_read_once_across_rotation_and_by_the_next_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts");
        add(&path, "before\n");
        let mut follow = Follow::new(path.clone(), None);
        assert_eq!(all(&mut follow), [] as [&str; 0], "it begins at the end");
        add(&path, "one\ntw");
        assert_eq!(all(&mut follow), ["one"]);
        let position = follow.position().unwrap();
        add(&path, "o\n");
        assert_eq!(all(&mut follow), ["two"]);

        // Another reader goes on at the begin of the line that was not whole.
        let mut next = Follow::new(path.clone(), position.clone());
        assert_eq!(all(&mut next), ["two"]);

        add(&path, "last\n");
        fs::rename(&path, folder.path().join("alerts.1")).unwrap();
        assert_eq!(all(&mut follow), ["last"]);
        add(&path, "new\n");
        assert_eq!(all(&mut follow), ["new"]);
        // A reader whose file was rotated finishes it first.
        let mut next = Follow::new(path.clone(), position.clone());
        assert_eq!(all(&mut next), ["two", "last", "new"]);
        assert_eq!((next.skipped, next.gaps), (0, 0));
        fs::write(&path, "").unwrap();
        add(&path, "x\n");
        assert_eq!(all(&mut follow), ["x"], "the file was cut");
        assert_eq!((follow.skipped, follow.gaps), (0, 1));
    }

    #[test]
    fn a_file_that_comes_later_is_read_from_its_begin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts");
        let mut follow = Follow::new(path.clone(), None);
        assert_eq!(all(&mut follow), [] as [&str; 0]);
        assert_eq!(follow.position().unwrap(), None);
        add(&path, "one\n");
        assert_eq!(all(&mut follow), ["one"]);
    }

    #[test]
    fn a_file_that_is_gone_is_counted_and_one_with_its_number_is_not_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts");
        add(&path, "one\n");
        let mut follow = Follow::new(path.clone(), None);
        assert_eq!(all(&mut follow), [] as [&str; 0]);
        let position = follow.position().unwrap();
        // The same number, as long, and another content.
        fs::write(&path, "two\nthree\n").unwrap();
        let mut next = Follow::new(path.clone(), position.clone());
        assert_eq!(all(&mut next), ["two", "three"]);
        assert_eq!(next.gaps, 1);
        fs::rename(&path, older(&path)).unwrap();
        fs::rename(older(&path), folder.path().join("alerts.2")).unwrap();
        let mut next = Follow::new(path.clone(), next.position().unwrap());
        assert_eq!(all(&mut next), [] as [&str; 0]);
        add(&path, "four\n");
        assert_eq!(all(&mut next), ["four"]);
        assert_eq!(next.gaps, 1);
    }

    #[test]
    fn a_file_is_known_again_after_a_boot_that_numbers_devices_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts");
        add(&path, "one\n");
        let mut follow = Follow::new(path.clone(), None);
        assert_eq!(all(&mut follow), [] as [&str; 0]);
        let position = follow.position().unwrap();
        let kept = serde_json::to_value(&position).unwrap();
        let members: Vec<_> = kept.as_object().unwrap().keys().collect();
        assert_eq!(members, ["inode", "head", "offset", "is_skipping"]);
        add(&path, "two\n");
        let mut next = Follow::new(path, serde_json::from_value(kept).unwrap());
        assert_eq!(all(&mut next), ["two"]);
    }

    #[test]
    fn a_fifo_does_not_block_its_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let read = Follow::new(path, None).lines(|_| ());
            sender.send(read.is_err())
        });
        let read = receiver.recv_timeout(std::time::Duration::from_secs(10));
        assert_eq!(read, Ok(true));
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_and_the_next_reader_skips_its_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts");
        add(&path, "");
        let mut follow = Follow::new(path.clone(), None);
        assert_eq!(all(&mut follow), [] as [&str; 0]);
        let longest = "x".repeat(MAX_LINE);
        add(&path, &format!("a\n{longest}\n{longest}"));
        assert_eq!(all(&mut follow), ["a", &longest]);
        add(&path, "yy");
        assert_eq!(all(&mut follow), [&*longest]);
        let mut next = Follow::new(path.clone(), follow.position().unwrap());
        add(&path, &format!("{longest}\nb\n"));
        assert_eq!(all(&mut follow), ["b"]);
        assert_eq!(all(&mut next), ["b"]);
        add(&path, &format!("{longest}{longest}\nc\n"));
        let mut cut = 0;
        let mut take = |line| cut += u32::from(matches!(line, Line::Cut(_)));
        while follow.lines(&mut take).unwrap() {}
        assert_eq!(cut, 1);
    }
}
