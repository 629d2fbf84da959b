//! The `file` channel: appends alerts to a file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use yaml::key::Key;

use crate::channel::{Channel, Delivery, DeliveryError, ReceiverState};
use crate::kind::{ChannelOpenError, Common, Missing, OutputKind};
use crate::queue::{LineOutput, QueueAccount};
use crate::stream::{LineFormat, LineStream};

/// `file_output`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOutput {
    /// Append alerts to a file.
    pub enabled: bool,
    /// Keep the file open between alerts.
    pub keep_alive: bool,
    /// Path of the file.
    pub filename: PathBuf,
}

impl Default for FileOutput {
    fn default() -> Self {
        Self {
            enabled: false,
            keep_alive: false,
            filename: PathBuf::from("./events.txt"),
        }
    }
}

impl OutputKind for FileOutput {
    const GROUP: &'static str = "file_output";
    const KEYS: &'static [Key<Self>] = &[
        Key::boolean("file_output.enabled", |output| &mut output.enabled),
        Key::file("file_output.filename", |output| &mut output.filename),
        Key::boolean("file_output.keep_alive", |output| &mut output.keep_alive),
    ];

    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn missing(&self) -> Option<Missing> {
        Missing::if_empty(&self.filename, "filename", "FILE")
    }

    fn open(&self, _: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        let help = "name a writable file with -o file_output.filename=FILE; a FIFO needs a reader";
        match FileChannel::open(self.filename.clone(), self.keep_alive) {
            Ok(channel) => Ok(Box::new(channel)),
            Err(error) => Err(ChannelOpenError::new(error, help)),
        }
    }
}

/// Appends lines to a file.
///
/// Before and after writing, the channel checks that its path still leads to the file it keeps
/// open. If the file was renamed, removed or replaced, the channel opens the path again. A path
/// that was not a symbolic link at the start is never followed through one, and a regular file is
/// only replaced by a regular file.
#[derive(Debug)]
pub struct FileChannel {
    name: &'static str,
    path: PathBuf,
    keep_alive: bool,
    file: Option<File>,
    stream: LineStream,
    /// Kind of the path at the start.
    was: Kind,
    /// Device and inode of the file that was last written.
    written: Option<(u64, u64)>,
    /// Length in bytes of the open file after the last alert.
    length: u64,
    notice: Option<String>,
}

/// Properties of the path that a replacement must preserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    is_link: bool,
    is_regular: bool,
}

/// The file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open alert file {}", path.display())]
pub struct OpenError {
    /// Path of the file.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

impl FileChannel {
    /// Opens the file at once, so that a wrong path is an error at the start rather than a later
    /// loss. With `keep_alive` the file stays open; otherwise each delivery opens it again.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, for example because it is a FIFO without a reader.
    pub fn open(path: PathBuf, keep_alive: bool) -> Result<Self, OpenError> {
        Self::of("file", LineOutput::File, path, keep_alive)
    }

    /// Opens the file of `--log`, which stays open.
    ///
    /// # Errors
    ///
    /// Those of [`FileChannel::open`].
    pub(crate) fn log(path: PathBuf, format: LineFormat) -> Result<Self, OpenError> {
        let mut channel = Self::of("log", LineOutput::Stream, path, true)?;
        channel.stream.set_format(format);
        Ok(channel)
    }

    fn of(
        name: &'static str,
        output: LineOutput,
        path: PathBuf,
        keep_alive: bool,
    ) -> Result<Self, OpenError> {
        let opened = open(&path, 0).and_then(|file| {
            let was = Kind {
                is_link: fs::symlink_metadata(&path)?.is_symlink(),
                is_regular: file.metadata()?.is_file(),
            };
            Ok((was, file.metadata()?.len(), file))
        });
        match opened {
            Err(source) => Err(OpenError { path, source }),
            Ok((was, length, file)) => Ok(Self {
                name,
                path,
                keep_alive,
                file: keep_alive.then_some(file),
                stream: LineStream::new(output),
                was,
                written: None,
                length,
                notice: None,
            }),
        }
    }

    /// Returns the file to write to: the open one if the path still leads to it.
    fn current(&mut self) -> io::Result<File> {
        let Some(file) = self.file.take() else {
            return self.open_again();
        };
        let own = file.metadata()?;
        if !self.leads_to(&own) {
            self.say(
                "was renamed, removed or replaced; alerts now go to the new file of that name",
            );
            return self.open_again();
        }
        if own.is_file() && own.len() < self.length {
            self.say("was truncated; alerts that were in it are lost");
        }
        Ok(file)
    }

    fn open_again(&self) -> io::Result<File> {
        let file = open(&self.path, if self.was.is_link { 0 } else { NO_FOLLOW })?;
        if self.was.is_regular && !file.metadata()?.is_file() {
            return Err(io::Error::other(
                "it was replaced by something that is not a regular file",
            ));
        }
        Ok(file)
    }

    /// Checks whether a file that this process has not written yet ends within a line, because its
    /// writer may have been killed. A file that cannot be read is assumed to end with a whole line
    /// unless the account says otherwise.
    fn look_at_end(&mut self, file: &File) -> io::Result<()> {
        let metadata = file.metadata()?;
        let identity = (metadata.dev(), metadata.ino());
        if self.written.replace(identity) == Some(identity) {
            return Ok(());
        }
        let ends_within_line =
            metadata.is_file() && last_byte(file).is_some_and(|byte| byte != b'\n');
        self.stream.continue_file(ends_within_line);
        Ok(())
    }

    fn leads_to(&self, own: &Metadata) -> bool {
        let there = if self.was.is_link {
            fs::metadata(&self.path)
        } else {
            fs::symlink_metadata(&self.path)
        };
        there.is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()))
    }

    fn say(&mut self, what: &str) {
        self.notice = Some(format!("alert file {} {what}", self.path.display()));
    }

    /// Writes alerts to the file. Returns true if they can be found there.
    fn write(&mut self, alerts: &[Arc<Delivery>]) -> Result<bool, DeliveryError> {
        let file = self.current().map_err(DeliveryError::of_all)?;
        self.look_at_end(&file).map_err(DeliveryError::of_all)?;
        let result = self.stream.write(&file, alerts);
        let own = file.metadata().map_err(DeliveryError::of_all)?;
        self.length = own.len();
        // After an error the next delivery reopens the file; the reader of a FIFO may be back.
        if result.is_ok() && self.keep_alive {
            self.file = Some(file);
        }
        result.map_err(|error| DeliveryError {
            receiver: ReceiverState::Failing,
            ..error
        })?;
        // The content of an unlinked file cannot be found.
        Ok(!own.is_file() || own.nlink() > 0)
    }
}

/// Returns the last byte of a file, if it has one and can be read.
fn last_byte(file: &File) -> Option<u8> {
    let readable = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let length = readable.metadata().ok()?.len();
    let mut byte = [0];
    readable
        .read_exact_at(&mut byte, length.checked_sub(1)?)
        .ok()?;
    Some(byte[0])
}

impl Channel for FileChannel {
    fn name(&self) -> &str {
        self.name
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        for _ in 0..ATTEMPTS {
            if self.write(alerts)? {
                return Ok(());
            }
        }
        let source = io::Error::other("it is removed each time alerts are written");
        Err(DeliveryError::of_all(source))
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = None;
        let file = self.open_again()?;
        self.length = file.metadata()?.len();
        self.file = self.keep_alive.then_some(file);
        Ok(())
    }

    fn keep_account(&mut self, account: Arc<dyn QueueAccount>) {
        self.stream.keep_account(account);
    }

    fn notice(&mut self) -> Option<String> {
        self.notice.take()
    }
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        // Without this, opening a FIFO without a reader would block the start of the program.
        .custom_flags(NONBLOCK | flags)
        .open(path)
}

/// Number of times alerts are written again after a removal of the file lost them.
const ATTEMPTS: usize = 3;
/// `O_NONBLOCK`, the same on every supported architecture.
const NONBLOCK: i32 = 0o4000;
/// `O_NOFOLLOW`, which differs between architectures.
const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

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

    /// A channel whose file has two alerts, and its path.
    fn opened(keep_alive: bool) -> (tempfile::TempDir, PathBuf, FileChannel) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerts");
        let mut channel = FileChannel::open(path.clone(), keep_alive).unwrap();
        channel.deliver(&deliveries(2)).unwrap();
        assert_eq!(channel.notice(), None);
        (dir, path, channel)
    }

    #[test]
    fn a_rotated_file_is_followed_at_once_and_a_file_kept_open_says_so() {
        for keep_alive in [false, true] {
            let (dir, path, mut channel) = opened(keep_alive);
            fs::rename(&path, dir.path().join("old")).unwrap();
            channel.deliver(&deliveries(1)).unwrap();
            let notice = channel.notice();
            assert_eq!(
                notice.is_some_and(|text| text.contains("was renamed")),
                keep_alive
            );
            channel.deliver(&deliveries(1)).unwrap();
            assert_eq!((channel.notice(), lines(&path)), (None, 2));
            // The rotating program also asks for a reopen.
            fs::rename(&path, dir.path().join("older")).unwrap();
            channel.reopen().unwrap();
            channel.deliver(&deliveries(1)).unwrap();
            assert_eq!((channel.notice(), lines(&path)), (None, 1));
        }
    }

    #[test]
    fn a_file_that_was_removed_or_replaced_gets_no_more_alerts() {
        let exchanges: [fn(&Path); 3] = [
            |path| fs::remove_file(path).unwrap(),
            |path| {
                fs::write(path.with_extension("new"), "other\n").unwrap();
                fs::rename(path.with_extension("new"), path).unwrap();
            },
            |path| {
                fs::rename(
                    path.parent().unwrap(),
                    path.parent().unwrap().with_extension("o"),
                )
                .and_then(|()| fs::create_dir(path.parent().unwrap()))
                .unwrap();
            },
        ];
        for exchange in exchanges {
            let (dir, path, mut channel) = opened(true);
            exchange(&path);
            channel.deliver(&deliveries(3)).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches("n=").count(), 3, "{text}");
            assert!(channel.notice().is_some());
            drop(dir);
        }
    }

    #[test]
    fn a_path_that_was_no_link_is_not_followed_through_one() {
        for keep_alive in [false, true] {
            let (dir, path, mut channel) = opened(keep_alive);
            let victim = dir.path().join("victim");
            fs::write(&victim, "").unwrap();
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(&victim, &path).unwrap();
            let error = channel.deliver(&deliveries(1)).unwrap_err();
            assert_eq!((error.delivered, lines(&victim)), (0, 0), "{error:?}");
            // Nor to something that is not a file; and to the file again when there is one.
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/dev/null", &path).unwrap();
            assert!(channel.deliver(&deliveries(1)).is_err());
            fs::remove_file(&path).unwrap();
            channel.deliver(&deliveries(1)).unwrap();
            assert_eq!(lines(&path), 1);
        }
    }

    #[test]
    fn a_line_that_another_process_left_without_its_end_does_not_swallow_an_alert() {
        for keep_alive in [false, true] {
            let dir = tempfile::tempdir().expect("a folder");
            let path = dir.path().join("alerts");
            fs::write(&path, "whole\n{\"torn\": ").expect("the folder is writable");
            let mut channel = FileChannel::open(path.clone(), keep_alive).expect("it is writable");
            channel.deliver(&deliveries(1)).expect("it is writable");
            channel.deliver(&deliveries(1)).expect("it is writable");
            let text = fs::read_to_string(&path).expect("it is there");
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!((lines.len(), lines[1]), (4, "{\"torn\": "), "{text}");
            assert!(lines[2].ends_with("n=0"), "{text}");
        }
    }

    /// Counterpart: no separator is written before alerts in whole files.
    #[test]
    fn a_file_that_is_empty_or_whole_gets_no_empty_line() {
        for before in ["", "whole\n"] {
            let dir = tempfile::tempdir().expect("a folder");
            let path = dir.path().join("alerts");
            fs::write(&path, before).expect("the folder is writable");
            let mut channel = FileChannel::open(path.clone(), true).expect("it is writable");
            channel.deliver(&deliveries(1)).expect("it is writable");
            let text = fs::read_to_string(&path).expect("it is there");
            assert!(text.lines().all(|line| !line.is_empty()), "{text:?}");
        }
    }

    /// Counterpart: a path that is a link from the start is followed.
    #[test]
    fn a_path_that_is_a_link_from_the_start_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("alerts"), dir.path().join("target"));
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let mut channel = FileChannel::open(path.clone(), true).unwrap();
        channel.deliver(&deliveries(1)).unwrap();
        fs::rename(&target, dir.path().join("old")).unwrap();
        channel.deliver(&deliveries(1)).unwrap();
        assert_eq!(lines(&target), 1);
        assert!(channel.notice().is_some());
    }

    #[test]
    fn alerts_that_were_cut_out_of_the_file_are_said_to_be_lost() {
        let (_dir, path, mut channel) = opened(true);
        File::create(&path).unwrap();
        channel.deliver(&deliveries(1)).unwrap();
        assert!(channel.notice().unwrap().contains("was truncated"));
        channel.deliver(&deliveries(1)).unwrap();
        assert_eq!((channel.notice(), lines(&path)), (None, 2));
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
        assert_eq!(
            (error.delivered, error.receiver),
            (0, ReceiverState::Failing)
        );
        assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
    }
}
