//! Alerts from a file that a detector appends to.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use super::Alert;

/// Interval at which the file is read.
const INTERVAL: Duration = Duration::from_millis(5);

/// Reads what is appended from now on, also after the file was rotated.
pub(super) fn follow(path: &Path, to: Sender<Alert>) -> Result<(), Failure> {
    let refuse = |error: std::io::Error| {
        Failure::new(
            Exit::BadInput,
            format!("cannot read alerts from {}: {error}", path.display()),
        )
        .help("start the detector first, with its file output there")
    };
    let mut file = File::open(path).map_err(refuse)?;
    file.seek(SeekFrom::End(0)).map_err(refuse)?;
    let path = path.to_path_buf();
    std::thread::spawn(move || {
        let mut reader = Reader {
            path,
            file,
            rest: Vec::new(),
        };
        while reader.pass_on(&to) {
            std::thread::sleep(INTERVAL);
        }
    });
    Ok(())
}

struct Reader {
    path: PathBuf,
    file: File,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
}

impl Reader {
    /// Passes new alerts on. Returns false if the receiver is gone.
    fn pass_on(&mut self, to: &Sender<Alert>) -> bool {
        // Data that cannot be read now may be readable later.
        let _ = self.file.read_to_end(&mut self.rest);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let alert = Alert::parse(&String::from_utf8_lossy(&line));
            if alert.is_some_and(|alert| to.send(alert).is_err()) {
                return false;
            }
        }
        self.reopen();
        true
    }

    fn reopen(&mut self) {
        let id = |file: &File| file.metadata().map(|found| (found.dev(), found.ino())).ok();
        if let Ok(file) = File::open(&self.path)
            && id(&file) != id(&self.file)
        {
            self.file = file;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn lines_are_followed_through_a_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts");
        std::fs::write(&path, "{\"rule\":\"old\"}\n").unwrap();
        let (sender, alerts) = channel();
        follow(&path, sender).unwrap();
        let next = || alerts.recv_timeout(Duration::from_secs(10)).unwrap().rule;
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        write!(file, "{{\"rule\":").unwrap();
        write!(file, "\"one\"}}\nno alert\n{{\"rule\":\"two\"}}\n").unwrap();
        assert_eq!((next(), next()), ("one".to_owned(), "two".to_owned()));
        std::fs::rename(&path, folder.path().join("alerts.1")).unwrap();
        std::fs::write(&path, "{\"rule\":\"three\"}\n").unwrap();
        assert_eq!(next(), "three");
    }

    #[test]
    fn a_missing_file_is_refused() {
        let failure = follow(Path::new("/nonexistent"), channel().0).unwrap_err();
        assert!(
            failure
                .render()
                .contains("cannot read alerts from /nonexistent")
        );
    }
}
