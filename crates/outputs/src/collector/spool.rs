//! Records on disk that the collector has not acknowledged.
//!
//! A spool is a folder. Its segments are files of lines; the name of a segment is the sequence number of its
//! first line, so a number belongs to a line for ever. The last segment stays, even if it is empty: its name
//! is the next number.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::internal;

/// Bytes after which a segment is complete.
const SEGMENT: u64 = 1 << 20;

/// Spools of one folder: agents that run at the same time have one each.
const SPOOLS: u32 = 256;

/// Number that no line reaches, not in a million years.
const LAST: u64 = 1 << 62;

/// Line in place of a record that was dropped, so that the numbers of the others stay.
pub(super) const DROPPED: &str = "-";

/// Bytes and lines of one batch at most.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_LINES: usize = 1000;

/// A spool that this process has locked.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    limit: u64,
    segments: VecDeque<Segment>,
    /// The last segment.
    writer: File,
    /// Position of the first line that is not acknowledged, in the first segment.
    offset: u64,
    /// Number of that line.
    first: u64,
    /// Number after the last line that the collector may have: it was sent, by this process or an earlier one.
    sent: u64,
    /// Something was written since the last synchronisation.
    is_dirty: bool,
    /// Held until the spool is dropped.
    _lock: File,
}

#[derive(Debug)]
struct Segment {
    first: u64,
    lines: u64,
    bytes: u64,
    /// Lines of low priority were dropped.
    is_thinned: bool,
}

/// Lines of a batch.
#[derive(Debug)]
pub(super) struct Pending {
    /// Number of the first line.
    pub(super) first: u64,
    pub(super) lines: usize,
    pub(super) text: Vec<u8>,
}

impl Spool {
    /// Locks a free spool below `root`, and finds what an earlier process left in it: the first one with records, which nobody else
    /// sends, else the first.
    pub(super) fn open(root: &Path, limit: u64) -> io::Result<Self> {
        let mut first = None;
        for number in 0..SPOOLS {
            let folder = root.join(number.to_string());
            if first.is_some() && !folder.exists() {
                // Nor are there others behind it, but those of agents that ran at the same time.
                continue;
            }
            let lock = match lock(&folder) {
                Ok(Some(lock)) => lock,
                Ok(None) => continue,
                // Another user's, or no folder. There is one that will do.
                Err(_) if first.is_some() => continue,
                Err(error) => return Err(error),
            };
            match (Self::read(folder, limit, lock), &first) {
                (Ok(spool), _) if spool.first < spool.next() => return Ok(spool),
                (Ok(spool), None) => first = Some(spool),
                (Err(error), None) => return Err(error),
                // One is enough, and who starts with the other alone is told.
                (Ok(_) | Err(_), Some(_)) => {}
            }
        }
        let message = || format!("{SPOOLS} agents use {}", root.display());
        first.ok_or_else(|| io::Error::other(message()))
    }

    fn read(folder: PathBuf, limit: u64, lock: File) -> io::Result<Self> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            if let Some(number) = name.strip_suffix(".lines") {
                numbers.push(number.parse::<u64>().map_err(io::Error::other)?);
            }
        }
        numbers.sort_unstable();
        if numbers.is_empty() {
            numbers.push(1);
            options().create(true).append(true).open(path(&folder, 1))?;
            sync_folder(&folder)?;
        }
        let mut segments = VecDeque::new();
        let mut free = 1;
        let newest = numbers.last().copied();
        for first in numbers {
            let segment = Segment::read(&folder, first)?;
            if segment.lines == 0 && newest != Some(first) {
                // A damaged one: the lines of the next would wait for its lines.
                fs::remove_file(path(&folder, first))?;
                continue;
            }
            // Two lines with one number, or a number that no later line can follow.
            let end = first.checked_add(segment.lines).filter(|end| *end < LAST);
            let end = end.filter(|_| first >= free);
            free = end.ok_or_else(|| misplaced(&folder, first))?;
            segments.push_back(segment);
        }
        let first = segments.front().map_or(1, |segment| segment.first);
        let sent = segments
            .front()
            .map_or(1, |segment| segment.first + segment.lines);
        let last = segments.back().map_or(1, |segment| segment.first);
        let writer = options().append(true).open(path(&folder, last))?;
        Ok(Self {
            folder,
            limit,
            segments,
            writer,
            offset: 0,
            first,
            sent,
            is_dirty: true,
            _lock: lock,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the number of the first line that is not acknowledged.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number of the next line to be written.
    pub(super) fn next(&self) -> u64 {
        self.segments
            .back()
            .map_or(1, |last| last.first + last.lines)
    }

    /// Writes lines, which have no line feed. Returns the number of older ones that had to go.
    pub(super) fn append(&mut self, lines: &[String]) -> io::Result<u64> {
        let text: String = lines
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .collect();
        let last = self.segments.back().map_or(0, |last| last.bytes);
        if let Err(error) = self.writer.write_all(text.as_bytes()) {
            // Half a line would be read as one.
            self.writer.set_len(last)?;
            return Err(error);
        }
        self.is_dirty = true;
        if let Some(last) = self.segments.back_mut() {
            last.bytes += text.len() as u64;
            last.lines += lines.len() as u64;
            if last.bytes >= SEGMENT {
                self.rotate()?;
            }
        }
        self.shrink()
    }

    fn rotate(&mut self) -> io::Result<()> {
        let first = self.next();
        self.writer.sync_data()?;
        self.writer = options()
            .create(true)
            .append(true)
            .open(path(&self.folder, first))?;
        sync_folder(&self.folder)?;
        self.segments.push_back(Segment {
            first,
            lines: 0,
            bytes: 0,
            is_thinned: false,
        });
        Ok(())
    }

    /// Drops records while there are too many: those of low priority from the oldest segments, then the
    /// oldest segments. Returns their number.
    fn shrink(&mut self) -> io::Result<u64> {
        let mut dropped = 0;
        while self.segments.len() > 1 && self.bytes() > self.limit {
            let complete = self.segments.len() - 1;
            let next = self
                .segments
                .iter()
                .take(complete)
                .position(|s| !s.is_thinned);
            dropped += match next {
                Some(at) => self.thin(at)?,
                None => self.drop_oldest()?,
            };
        }
        Ok(dropped)
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Replaces records of low priority in a segment, except those that the collector has or may have: they
    /// would be counted as dropped although they are stored.
    fn thin(&mut self, at: usize) -> io::Result<u64> {
        let (from, number) = match at {
            0 => (self.offset, self.first),
            at => (0, self.segments[at].first),
        };
        let segment = &mut self.segments[at];
        let source = path(&self.folder, segment.first);
        let text = fs::read_to_string(&source)?;
        let (done, rest) = text.split_at(usize::try_from(from).map_err(io::Error::other)?);
        let mut kept = done.to_owned();
        let mut dropped = 0;
        for (line, number) in rest.lines().zip(number..) {
            let is_low = number >= self.sent && is_low(line);
            dropped += u64::from(is_low);
            kept.push_str(if is_low { DROPPED } else { line });
            kept.push('\n');
        }
        let target = self.folder.join("thinned");
        let mut file = options()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&target)?;
        file.write_all(kept.as_bytes())?;
        file.sync_data()?;
        fs::rename(&target, &source)?;
        segment.bytes = kept.len() as u64;
        segment.is_thinned = true;
        Ok(dropped)
    }

    /// Deletes the first segment. The collector finds its numbers missing.
    fn drop_oldest(&mut self) -> io::Result<u64> {
        let next = self
            .segments
            .get(1)
            .map_or(self.first, |segment| segment.first);
        let dropped = next.saturating_sub(self.first);
        self.acknowledge(next.saturating_sub(1))?;
        Ok(dropped)
    }

    /// Returns the next lines that are not acknowledged. They are on disk when this returns, so that no
    /// number that the collector has seen is used again after a power cut.
    pub(super) fn pending(&mut self, at_most: usize) -> io::Result<Option<Pending>> {
        let Some(segment) = self.segments.front() else {
            return Ok(None);
        };
        if self.first >= segment.first + segment.lines {
            return Ok(None);
        }
        if std::mem::take(&mut self.is_dirty) {
            self.writer.sync_data()?;
        }
        let mut file = File::open(path(&self.folder, segment.first))?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::new(file.take(segment.bytes - self.offset));
        let (mut text, mut lines) = (Vec::new(), 0);
        while lines < at_most.min(BATCH_LINES) && text.len() < BATCH_BYTES {
            if reader.read_until(b'\n', &mut text)? == 0 {
                break;
            }
            lines += 1;
        }
        self.sent = self.sent.max(self.first + lines as u64);
        Ok(Some(Pending {
            first: self.first,
            lines,
            text,
        }))
    }

    /// Forgets lines up to this number, and deletes segments without others.
    pub(super) fn acknowledge(&mut self, up_to: u64) -> io::Result<()> {
        let next = up_to.saturating_add(1).min(self.next());
        while let Some(segment) = self.segments.front() {
            let end = segment.first + segment.lines;
            if next < end || (self.segments.len() == 1 && segment.bytes == 0) {
                break;
            }
            if self.segments.len() == 1 {
                // The name of a new, empty segment keeps the next number.
                self.rotate()?;
            }
            if let Some(done) = self.segments.pop_front() {
                fs::remove_file(path(&self.folder, done.first))?;
            }
            self.offset = 0;
            // Numbers of a file that is gone stay missing, so that the lines behind it keep theirs.
            self.first = self.segments.front().map_or(end, |next| next.first);
        }
        if next > self.first {
            self.offset += self.length(next - self.first)?;
            self.first = next;
        }
        Ok(())
    }

    /// Returns the bytes of the next lines of the first segment.
    fn length(&self, lines: u64) -> io::Result<u64> {
        let Some(segment) = self.segments.front() else {
            return Ok(0);
        };
        let mut file = File::open(path(&self.folder, segment.first))?;
        file.seek(SeekFrom::Start(self.offset))?;
        let (mut reader, mut line, mut length) = (BufReader::new(file), Vec::new(), 0);
        for _ in 0..lines {
            line.clear();
            length += reader.read_until(b'\n', &mut line)? as u64;
        }
        Ok(length)
    }

    /// Numbers what is left from 1 on, for a collector that does not know this agent.
    pub(super) fn renumber(&mut self) -> io::Result<()> {
        let shift = self.first - 1;
        // Under the new numbers nothing was sent.
        self.sent = 1;
        if shift == 0 {
            return Ok(());
        }
        if self.offset > 0 {
            self.cut_acknowledged()?;
        }
        for segment in &mut self.segments {
            let first = segment.first - shift;
            fs::rename(path(&self.folder, segment.first), path(&self.folder, first))?;
            segment.first = first;
        }
        self.first = 1;
        sync_folder(&self.folder)
    }

    /// Rewrites the first segment without its acknowledged lines.
    fn cut_acknowledged(&mut self) -> io::Result<()> {
        let Some(segment) = self.segments.front_mut() else {
            return Ok(());
        };
        let old = path(&self.folder, segment.first);
        let text = fs::read(&old)?;
        let rest = &text[usize::try_from(self.offset).map_err(io::Error::other)?..];
        let new = path(&self.folder, self.first);
        let mut file = options()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&new)?;
        file.write_all(rest)?;
        file.sync_data()?;
        fs::remove_file(old)?;
        segment.lines -= self.first - segment.first;
        segment.first = self.first;
        segment.bytes = rest.len() as u64;
        self.offset = 0;
        if self.segments.len() == 1 {
            self.writer = options().append(true).open(new)?;
        }
        Ok(())
    }
}

/// Makes a folder, if it is not there, and locks it. `None` if another process has.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let lock = options()
        .create(true)
        .append(true)
        .open(folder.join("lock"))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Segment {
    /// Counts the lines of a file, and cuts off a last one that a dead process left incomplete.
    fn read(folder: &Path, first: u64) -> io::Result<Self> {
        let path = path(folder, first);
        let text = fs::read(&path)?;
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        if whole < text.len() {
            options().write(true).open(&path)?.set_len(whole as u64)?;
        }
        let lines = text[..whole].iter().filter(|byte| **byte == b'\n').count();
        Ok(Self {
            first,
            lines: lines as u64,
            bytes: whole as u64,
            is_thinned: false,
        })
    }
}

/// Alerts below warning, and what is dropped already, go first.
fn is_low(line: &str) -> bool {
    const LOW: [&str; 3] = ["Notice", "Informational", "Debug"];
    let value = serde_json::from_str::<serde_json::Value>(line);
    let value = value.unwrap_or(serde_json::Value::Null);
    // What this program says of itself may be that it lost something.
    let is_own = value["source"] == internal::SOURCE;
    let is_low = |priority| LOW.contains(&priority);
    !is_own && value["priority"].as_str().is_some_and(is_low)
}

fn path(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{first:020}.lines"))
}

fn misplaced(folder: &Path, first: u64) -> io::Error {
    let file = path(folder, first);
    let message = format!(
        "{} cannot have a number that a file before it has, or that is not from 1 to {LAST}; move it away",
        file.display()
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Alerts are for their owner alone.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// So that a created or renamed file is still there after a power cut.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests;
