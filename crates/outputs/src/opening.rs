//! Files that a thread of their own writes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Opens a file at the start of the program, which does not wait for the reader of a FIFO. Writing waits for it as usual.
///
/// # Errors
///
/// The file cannot be opened, for example because it is a FIFO without a reader.
pub fn open_without_waiting(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags.difference(OFlags::NONBLOCK))?;
    Ok(file)
}

#[cfg(test)]
pub(crate) mod testing {
    use std::path::PathBuf;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    /// A FIFO in a folder of its own.
    pub(crate) fn fifo() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let path = folder.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("a FIFO");
        (folder, path)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fifo_needs_a_reader_and_then_writing_waits_for_it() {
        let (_folder, path) = testing::fifo();
        let mut options = File::options();
        options.write(true);
        let error = open_without_waiting(&mut options, &path).expect_err("nobody reads");
        assert_eq!(error.raw_os_error(), Some(6), "{error}");
        let mut reader = File::options();
        let mut reader =
            open_without_waiting(reader.read(true), &path).expect("a reader need not wait");
        let mut writer = open_without_waiting(&mut options, &path).expect("there is a reader");
        // More than a pipe holds.
        let length = 1 << 20;
        let writer = thread::spawn(move || writer.write_all(&vec![0; length]));
        thread::sleep(Duration::from_millis(100));
        let mut data = Vec::new();
        reader.read_to_end(&mut data).expect("readable");
        writer.join().expect("no panic").expect("it waits");
        assert_eq!(data.len(), length);
    }
}
