//! The thread that writes capture files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use outputs::{Dispatcher, Internal, open_without_waiting};
use rules::{AlertValue, Priority};

use super::{Recording, Rotation};

/// A group of blocks that belong together.
pub(super) struct Chunk {
    /// The blocks begin a file: time and number of its first event.
    pub(super) begins: Option<(u64, u64)>,
    pub(super) bytes: Vec<u8>,
    /// The blocks are the last of a capture that has reached this limit in MiB.
    pub(super) too_large: Option<u64>,
}

/// Selection of the files to write.
pub(super) struct Target {
    naming: Naming,
    keep: Option<u64>,
    /// The first file, opened before there was anything to write.
    first: Option<Output>,
    /// Number of files begun.
    count: u64,
}

enum Naming {
    /// One file.
    Single(PathBuf),
    /// A sequence of numbered files.
    Numbered(PathBuf),
    /// One file per match of a rule.
    Matches(String),
}

impl Target {
    pub(super) fn file(path: &Path, rotation: Rotation, is_resumed: bool) -> Result<Self, Failure> {
        let is_numbered = rotation.is_wanted() || is_resumed;
        let naming = if is_numbered {
            Naming::Numbered(path.to_owned())
        } else {
            Naming::Single(path.to_owned())
        };
        let mut target = Self {
            naming,
            keep: rotation.keep,
            first: None,
            count: 0,
        };
        if is_resumed {
            // Files of the previous agent are kept.
            while target.path(0, 0).exists() {
                target.count += 1;
            }
        }
        let path = target.path(0, 0);
        let output = Output::create(&path).map_err(|error| cannot(&path, &error))?;
        target.first = Some(output);
        Ok(target)
    }

    pub(super) fn prefix(prefix: &str) -> Result<Self, Failure> {
        let folder = Path::new(prefix)
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder
            && !folder.is_dir()
        {
            let error = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(cannot(folder, &error));
        }
        Ok(Self {
            naming: Naming::Matches(prefix.to_owned()),
            keep: None,
            first: None,
            count: 0,
        })
    }

    fn path(&self, time_ns: u64, number: u64) -> PathBuf {
        match &self.naming {
            Naming::Single(path) => path.clone(),
            Naming::Numbered(path) => numbered(path, self.count),
            Naming::Matches(prefix) => format!("{prefix}_{time_ns}_{number}.scap").into(),
        }
    }

    /// Begins the next file.
    fn next(&mut self, path: &Path) -> io::Result<Output> {
        let output = match self.first.take() {
            Some(output) => output,
            None => Output::create(path)?,
        };
        if let (Naming::Numbered(path), Some(keep)) = (&self.naming, self.keep)
            && let Some(old) = self.count.checked_sub(keep)
        {
            // A missing file is fine.
            let _ = fs::remove_file(numbered(path, old));
        }
        self.count += 1;
        Ok(output)
    }
}

/// Returns `FILE.scap`, `FILE.scap1`, `FILE.scap2`, named like sysdig's.
fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(number.to_string());
    name.into()
}

fn cannot(path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        Exit::BadInput,
        format!("cannot write {}: {error}", path.display()),
    )
    .help("name a file in a folder that exists and can be written; a FIFO needs a reader")
}

/// An open file. Its content up to `len` is complete at any time.
struct Output {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Output {
    fn create(path: &Path) -> io::Result<Self> {
        // Only the user may read what programs did.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = open_without_waiting(&mut options, path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            len: 0,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let result = self.file.write_all(bytes);
        match result {
            Ok(()) => {
                self.len += u64::try_from(bytes.len()).unwrap_or(0);
                Ok(())
            }
            Err(error) => {
                // An incomplete block would end what can be read. A pipe cannot be truncated.
                let _ = self.file.set_len(self.len);
                let _ = self.file.seek(io::SeekFrom::Start(self.len));
                Err(error)
            }
        }
    }
}

/// A recording with its thread.
pub(crate) struct Writing {
    recording: Arc<Recording>,
    thread: JoinHandle<()>,
}

pub(super) fn start(
    recording: Arc<Recording>,
    chunks: Receiver<Chunk>,
    target: Target,
    dispatcher: Dispatcher,
) -> anyhow::Result<Writing> {
    let own = Arc::clone(&recording);
    let thread = thread::Builder::new()
        .name("recording".to_owned())
        .spawn(move || write(&own, &chunks, target, &dispatcher))
        .context("cannot start the thread that writes the capture")?;
    Ok(Writing { recording, thread })
}

fn write(
    recording: &Recording,
    chunks: &Receiver<Chunk>,
    mut target: Target,
    dispatcher: &Dispatcher,
) {
    let mut output: Option<Output> = None;
    while let Some(chunk) = next(recording, chunks) {
        let size = chunk.bytes.len();
        let result = put(&chunk, &mut target, &mut output);
        recording.written(size);
        if let Err((path, error)) = result {
            recording.fail();
            let written = output.as_ref().map_or(0, |output| output.len);
            dispatcher.emit_internal_once(stopped(&path, &error, written));
            return;
        }
        if let Some(mib) = chunk.too_large
            && let Some(output) = output.take()
        {
            dispatcher.emit_internal(full(mib, &output));
        }
    }
}

/// Writes blocks to their file. An error includes the file.
fn put(
    chunk: &Chunk,
    target: &mut Target,
    output: &mut Option<Output>,
) -> Result<(), (PathBuf, io::Error)> {
    if let Some((time_ns, number)) = chunk.begins {
        let path = target.path(time_ns, number);
        *output = None;
        *output = Some(target.next(&path).map_err(|error| (path, error))?);
    }
    match output {
        Some(output) => output
            .write(&chunk.bytes)
            .map_err(|error| (output.path.clone(), error)),
        None => Ok(()),
    }
}

fn stopped(path: &Path, error: &io::Error, written: u64) -> Internal {
    let path = path.display().to_string();
    let rest = match written {
        0 => "nothing was written to it",
        _ => "the events recorded so far are readable",
    };
    Internal {
        rule: "Tollgate internal: recording stopped",
        priority: Priority::Error,
        message: format!("cannot write {path}: {error}; {rest}"),
        fields: vec![("tollgate.file", AlertValue::Text(path))],
    }
}

/// Creates the alert for a capture that ended early. Rule and fields are Falco's, except for the
/// path.
fn full(mib: u64, output: &Output) -> Internal {
    let path = output.path.display().to_string();
    Internal {
        rule: "Falco internal: capture size limit reached",
        priority: Priority::Informational,
        message: format!("recording to {path} stopped at {mib} MB (capture.max_file_size_mb)"),
        fields: vec![
            ("max_file_size_mb", AlertValue::Uint(mib)),
            ("written_bytes", AlertValue::Uint(output.len)),
            ("tollgate.file", AlertValue::Text(path)),
        ],
    }
}

/// Returns the next blocks; `None` when the recording has ended.
fn next(recording: &Recording, chunks: &Receiver<Chunk>) -> Option<Chunk> {
    loop {
        match chunks.try_recv() {
            Ok(chunk) if chunk.bytes.is_empty() => {}
            Ok(chunk) => return Some(chunk),
            Err(_) if recording.is_over() => return None,
            Err(_) => match chunks.recv() {
                Ok(chunk) if chunk.bytes.is_empty() => {}
                Ok(chunk) => return Some(chunk),
                Err(_disconnected) => return None,
            },
        }
    }
}

impl Writing {
    /// Waits until everything recorded so far is written.
    pub(crate) fn flush(&self, deadline: Instant) {
        let is_behind = || self.recording.waiting.load(Ordering::Relaxed) > 0;
        while is_behind() && !self.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes pending blocks. Returns a message about losses.
    pub(crate) fn finish(self, limit: Duration) -> Option<String> {
        self.recording.end();
        let deadline = Instant::now() + limit;
        while !self.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let lost = self.recording.lost.load(Ordering::Relaxed);
        let recorded = self.recording.recorded.load(Ordering::Relaxed);
        (lost > 0).then(|| format!("{lost} events not recorded, {recorded} recorded"))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_fifo_without_a_reader_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let failure = Target::file(&path, Rotation::default(), false).err();
        let text = failure.expect("nobody reads").render();
        assert!(text.contains("a FIFO needs a reader"), "{text}");
        let mut reader = OpenOptions::new();
        let _reader = open_without_waiting(reader.read(true), &path).unwrap();
        assert!(Target::file(&path, Rotation::default(), false).is_ok());
    }
}
