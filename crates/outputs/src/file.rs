//! A file that alerts are appended to.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::channel::{Channel, Delivery, DeliveryError};
use crate::stream::LineStream;

/// Appends lines to a file.
#[derive(Debug)]
pub struct FileChannel {
    path: PathBuf,
    keep_alive: bool,
    file: Option<File>,
    stream: LineStream,
}

/// The file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open alert file {}", path.display())]
pub struct OpenError {
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

impl FileChannel {
    /// Opens the file now, so that a wrong path is an error at the start and not a loss later.
    /// With `keep_alive` it stays open, otherwise each delivery opens it anew.
    ///
    /// # Errors
    ///
    /// If it cannot be opened. A FIFO without a reader cannot.
    pub fn open(path: PathBuf, keep_alive: bool) -> Result<Self, OpenError> {
        let file = match open(&path) {
            Ok(file) => file,
            Err(source) => return Err(OpenError { path, source }),
        };
        let file = keep_alive.then_some(file);
        Ok(Self {
            path,
            keep_alive,
            file,
            stream: LineStream::default(),
        })
    }
}

impl Channel for FileChannel {
    fn name(&self) -> &str {
        "file"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        let file = match self.file.take() {
            Some(file) => file,
            None => open(&self.path).map_err(|source| DeliveryError {
                delivered: 0,
                dead: false,
                source,
            })?,
        };
        let result = self.stream.write(&file, alerts);
        if self.keep_alive && result.is_ok() {
            self.file = Some(file);
        }
        // After an error the next delivery opens the file anew; the reader of a FIFO may be back.
        result.map_err(|error| DeliveryError {
            dead: false,
            ..error
        })
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = None;
        let file = open(&self.path)?;
        self.file = self.keep_alive.then_some(file);
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        // Without this, opening a FIFO that nobody reads would hang the start of the program.
        .custom_flags(NONBLOCK)
        .open(path)
}

/// `O_NONBLOCK`, which is the same on every architecture that this program supports.
const NONBLOCK: i32 = 0o4000;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::channel::testing;
    use crate::format::Format;

    fn deliveries(count: usize) -> Vec<Arc<Delivery>> {
        testing::deliveries(count, Format::default())
    }

    fn lines(path: &Path) -> usize {
        fs::read_to_string(path).unwrap().lines().count()
    }

    #[test]
    fn appends_and_keeps_what_is_there() {
        for keep_alive in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("alerts");
            fs::write(&path, "before\n").unwrap();
            let mut channel = FileChannel::open(path.clone(), keep_alive).unwrap();
            channel.deliver(&deliveries(2)).unwrap();
            channel.deliver(&deliveries(1)).unwrap();
            assert_eq!(lines(&path), 4, "keep_alive {keep_alive}");
            assert!(fs::read_to_string(&path).unwrap().starts_with("before\n"));
        }
    }

    #[test]
    fn a_rotated_file_is_followed_after_reopen_when_kept_alive_and_at_once_otherwise() {
        for keep_alive in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("alerts");
            let mut channel = FileChannel::open(path.clone(), keep_alive).unwrap();
            channel.deliver(&deliveries(1)).unwrap();
            fs::rename(&path, dir.path().join("old")).unwrap();
            channel.deliver(&deliveries(1)).unwrap();
            assert_eq!(path.exists(), !keep_alive);
            channel.reopen().unwrap();
            channel.deliver(&deliveries(1)).unwrap();
            assert_eq!(lines(&path), if keep_alive { 1 } else { 2 });
        }
    }

    #[test]
    fn a_missing_directory_is_an_error_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let error = FileChannel::open(dir.path().join("no/alerts"), true).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_full_device_loses_alerts_and_says_how_many_arrived() {
        let mut channel = FileChannel::open("/dev/full".into(), true).unwrap();
        let error = channel.deliver(&deliveries(3)).unwrap_err();
        assert_eq!((error.delivered, error.dead), (0, false));
        assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
    }
}
