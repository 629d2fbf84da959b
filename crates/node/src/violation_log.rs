//! The log of violations: JSON lines in a file that is rotated.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Length in bytes at which the file is rotated, and number of older files that are kept, as vArmor's.
const MAX_LENGTH: u64 = 10 << 20;
const OLDER: u32 = 3;
/// Access of the owner alone: lines have command lines in them.
const MODE: u32 = 0o600;

/// The log.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    max_length: u64,
    open: Option<(File, u64)>,
    /// The file ends with a part of a line: the disk was full, perhaps.
    is_torn: bool,
}

impl Log {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            max_length: MAX_LENGTH,
            open: None,
            is_torn: false,
        }
    }

    /// Appends a line, in one write.
    ///
    /// # Errors
    ///
    /// If it cannot be written. The next line tries again.
    pub(crate) fn write(&mut self, line: &str) -> io::Result<()> {
        let more = u64::try_from(line.len()).unwrap_or(u64::MAX) + 1;
        let length = match self.open.take() {
            Some((file, length)) if self.is_there(&file) => {
                self.open = Some((file, length));
                length
            }
            _ => self.open()?,
        };
        if length > 0 && length + more > self.max_length {
            self.open = None;
            self.rotate()?;
            self.open()?;
        }
        let Some((mut file, length)) = self.open.take() else {
            return Err(io::Error::other("the log is not open"));
        };
        let (begin, more) = match self.is_torn {
            true => ("\n", more + 1),
            false => ("", more),
        };
        file.write_all(format!("{begin}{line}\n").as_bytes())?;
        self.is_torn = false;
        self.open = Some((file, length + more));
        Ok(())
    }

    /// Opens the file, and makes its folder; returns its length.
    fn open(&mut self) -> io::Result<u64> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(MODE);
        // Whoever may write to the folder must not send lines to another file, nor have a FIFO block the thread.
        options.custom_flags(FLAGS);
        let file = options.open(&self.path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let length = metadata.len();
        let mut last = *b"\n";
        if length > 0 {
            file.read_exact_at(&mut last, length - 1)?;
        }
        self.is_torn = last != *b"\n";
        self.open = Some((file, length));
        Ok(length)
    }

    /// Returns true if the path still leads to the open file: another program may rotate it.
    fn is_there(&self, file: &File) -> bool {
        use std::os::unix::fs::MetadataExt;
        let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
        match (file.metadata(), fs::symlink_metadata(&self.path)) {
            (Ok(ours), Ok(there)) => identity(&ours) == identity(&there),
            _ => false,
        }
    }

    /// Renames `FILE.2` to `FILE.3` and so on, and `FILE` to `FILE.1`.
    fn rotate(&self) -> io::Result<()> {
        for number in (1..OLDER).rev() {
            match fs::rename(self.older(number), self.older(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.older(1))
    }

    fn older(&self, number: u32) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{number}"));
        path.into()
    }

    /// The path, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// `O_NOFOLLOW` and `O_NONBLOCK`.
const FLAGS: i32 = rustix::fs::OFlags::NOFOLLOW
    .union(rustix::fs::OFlags::NONBLOCK)
    .bits()
    .cast_signed();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_rotated_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("varmor").join("violations.log");
        let mut log = Log {
            max_length: 20,
            ..Log::new(path.clone())
        };
        for number in 0..20 {
            log.write(&format!("line {number:02}")).unwrap();
        }
        let read = |name: &str| fs::read_to_string(path.with_file_name(name)).unwrap();
        assert_eq!(read("violations.log"), "line 18\nline 19\n");
        assert_eq!(read("violations.log.1"), "line 16\nline 17\n");
        assert_eq!(read("violations.log.3"), "line 12\nline 13\n");
        let count = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(count, 4);

        // Another program has rotated it.
        fs::rename(&path, path.with_file_name("moved")).unwrap();
        log.write("after").unwrap();
        assert_eq!(read("violations.log"), "after\n");
        // Another log goes on in the same file.
        Log::new(path.clone()).write("next").unwrap();
        assert_eq!(read("violations.log"), "after\nnext\n");
    }

    #[test]
    fn a_link_in_place_of_the_log_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("violations.log");
        std::os::unix::fs::symlink(folder.path().join("other"), &path).unwrap();
        assert!(Log::new(path).write("x").is_err());
        assert!(!folder.path().join("other").exists());
    }

    #[test]
    fn a_line_after_a_torn_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("violations.log");
        fs::write(&path, "{\"level\":\"wa").unwrap();
        let mut log = Log::new(path.clone());
        log.write("one").unwrap();
        log.write("two").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"level\":\"wa\none\ntwo\n");
    }

    #[test]
    fn a_fifo_in_place_of_the_log_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("violations.log");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(Log::new(path).write("x").is_err()));
        let refused = receiver.recv_timeout(std::time::Duration::from_secs(10));
        assert_eq!(refused, Ok(true));
    }
}
