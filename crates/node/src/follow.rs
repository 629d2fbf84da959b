//! Reads the lines that are appended to a file, across its rotation.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Maximum length in bytes of a line. Longer ones are skipped.
const MAX_LINE: usize = 64 << 10;
/// Maximum number of bytes that are read at once.
const MAX_READ: u64 = 256 << 10;

/// How far a file was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Position {
    /// Device and number of the file.
    pub(crate) file: (u64, u64),
    /// Bytes.
    pub(crate) offset: u64,
}

/// A file that is followed.
#[derive(Debug)]
pub(crate) struct Follow {
    path: PathBuf,
    open: Option<(File, Position)>,
    /// Where to begin; `None`: at the end of what is there at the first look.
    begin: Option<Position>,
    /// The file was looked for once.
    has_looked: bool,
    /// The begin of a line.
    rest: Vec<u8>,
    /// The rest of the line is skipped.
    is_skipping: bool,
    /// Lines that were skipped.
    pub(crate) skipped: u64,
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
        }
    }

    /// How far the file was read, in whole lines.
    pub(crate) fn position(&self) -> Option<Position> {
        let (_, position) = self.open.as_ref()?;
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        Some(Position {
            offset: position.offset.saturating_sub(rest),
            ..*position
        })
    }

    /// Gives each whole line that is new to `take`. Returns true if there is more to read at once.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or read. A file that is not there has no lines.
    pub(crate) fn lines(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        if self.open.is_none() && !self.open()? {
            return Ok(false);
        }
        // Before the end is found: what was written until then is in the file that is open.
        let is_replaced = self.is_replaced()?;
        let Some((file, position)) = &mut self.open else {
            return Ok(false);
        };
        let mut bytes = Vec::new();
        let read = Read::take(&*file, MAX_READ).read_to_end(&mut bytes)?;
        position.offset += u64::try_from(read).unwrap_or(u64::MAX);
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
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A file that appears later is new from its begin.
                self.has_looked = true;
                return Ok(false);
            }
            file => file?,
        };
        let metadata = file.metadata()?;
        let found = (metadata.dev(), metadata.ino());
        let begin = self.begin.take();
        let offset = match begin {
            Some(begin) if begin.file == found && begin.offset <= metadata.len() => begin.offset,
            None if !self.has_looked => metadata.len(),
            // Another file than the one that was read.
            Some(_) | None => 0,
        };
        self.has_looked = true;
        (&file).seek(SeekFrom::Start(offset))?;
        let position = Position {
            file: found,
            offset,
        };
        self.open = Some((file, position));
        Ok(true)
    }

    /// Returns true if the path leads to another file, or if the file was cut.
    fn is_replaced(&self) -> io::Result<bool> {
        let Some((_, position)) = &self.open else {
            return Ok(false);
        };
        match std::fs::metadata(&self.path) {
            Ok(now) => Ok((now.dev(), now.ino()) != position.file || now.len() < position.offset),
            // Renamed, and the next one is not there yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn split(&mut self, bytes: &[u8], take: &mut impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_whole = part.ends_with(b"\n");
            let part = part.strip_suffix(b"\n").unwrap_or(part);
            if self.rest.len() + part.len() > MAX_LINE && !self.is_skipping {
                self.is_skipping = true;
                self.skipped += 1;
                self.rest.clear();
            }
            match (self.is_skipping, is_whole) {
                (true, _) => self.is_skipping = !is_whole,
                (false, false) => self.rest.extend_from_slice(part),
                (false, true) if self.rest.is_empty() => take(part),
                (false, true) => {
                    self.rest.extend_from_slice(part);
                    take(&std::mem::take(&mut self.rest));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::path::Path;

    use super::*;

    fn add(path: &Path, text: &str) {
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn all(follow: &mut Follow) -> Vec<String> {
        let mut lines = Vec::new();
        let mut take = |line: &[u8]| lines.push(String::from_utf8(line.to_vec()).unwrap());
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
        let position = follow.position();
        add(&path, "o\n");
        assert_eq!(all(&mut follow), ["two"]);

        // Another reader goes on at the begin of the line that was not whole.
        let mut next = Follow::new(path.clone(), position);
        assert_eq!(all(&mut next), ["two"]);

        add(&path, "last\n");
        fs::rename(&path, folder.path().join("alerts.1")).unwrap();
        assert_eq!(all(&mut follow), ["last"]);
        add(&path, "new\n");
        assert_eq!(all(&mut follow), ["new"]);
        // A reader whose file is gone begins with the new one.
        let mut next = Follow::new(path.clone(), position);
        assert_eq!(all(&mut next), ["new"]);
        fs::write(&path, "").unwrap();
        add(&path, "x\n");
        assert_eq!(all(&mut follow), ["x"], "the file was cut");
    }

    #[test]
    fn a_file_that_comes_later_is_read_from_its_begin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts");
        let mut follow = Follow::new(path.clone(), None);
        assert_eq!(all(&mut follow), [] as [&str; 0]);
        assert_eq!(follow.position(), None);
        add(&path, "one\n");
        assert_eq!(all(&mut follow), ["one"]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts");
        add(&path, "");
        let mut follow = Follow::new(path.clone(), None);
        assert_eq!(all(&mut follow), [] as [&str; 0]);
        add(&path, &format!("a\n{}", "x".repeat(MAX_LINE)));
        assert_eq!(all(&mut follow), ["a"]);
        add(&path, &format!("{}\nb\n", "x".repeat(MAX_LINE * 5)));
        assert_eq!(all(&mut follow), ["b"]);
        assert_eq!(follow.skipped, 1);
    }
}
