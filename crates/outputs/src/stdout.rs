//! The alert stream: writes alerts to the standard output, the standard error or a file.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl};
use yaml::key::Key;

use crate::channel::{Channel, Delivery, DeliveryError};
use crate::file::FileChannel;
use crate::kind::{ChannelOpenError, Common, OutputKind};
use crate::pretty::Screen;
use crate::queue::{LineOutput, QueueAccount};
use crate::stream::{LineFormat, LineStream};
use crate::terminal::Terminal;

/// Where the alert stream goes. The command line chooses it; `stdout_output.enabled` says whether
/// it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StreamTarget {
    /// The standard output.
    #[default]
    Stdout,
    /// The standard error: where a watched command has the standard output to itself.
    Stderr,
    /// A file, to which alerts are appended.
    File(PathBuf),
}

/// How the alert stream reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFormat {
    /// Two lines for people; on a terminal with colours, and repetitions are counted.
    Pretty,
    /// One line of `key=value`.
    Line,
    /// Falco's text.
    Falco,
    /// Falco's JSON, with more members.
    Json,
}

/// `stdout_output`: the alert stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StdoutOutput {
    /// Write the alert stream.
    pub enabled: bool,
    /// Where it goes.
    pub target: StreamTarget,
    /// Where programs and answers of other outputs are printed.
    pub others: StandardStream,
    /// The format, if it was chosen.
    pub format: Option<StreamFormat>,
    /// Lines for people are not cut at the width of the terminal.
    pub wide: bool,
    /// The default on a terminal is `Pretty`; elsewhere, and where this is false, it is Falco's text.
    pub is_for_people: bool,
}

impl Default for StdoutOutput {
    fn default() -> Self {
        Self {
            enabled: true,
            target: StreamTarget::default(),
            others: StandardStream::default(),
            format: None,
            wide: false,
            is_for_people: false,
        }
    }
}

impl OutputKind for StdoutOutput {
    const GROUP: &'static str = "stdout_output";
    const KEYS: &'static [Key<Self>] = &[Key::boolean("stdout_output.enabled", |output| {
        &mut output.enabled
    })];

    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        let which = match &self.target {
            StreamTarget::Stdout => StandardStream::Output,
            StreamTarget::Stderr => StandardStream::Error,
            StreamTarget::File(path) => return self.open_log(path, common),
        };
        let help = "open it, or switch it off with -o stdout_output.enabled=false";
        match which.duplicate() {
            Ok(shared) => Ok(Box::new(self.styled(which.name(), shared, common))),
            Err(source) => {
                let stream = which.name();
                Err(ChannelOpenError::new(StdioError { stream, source }, help))
            }
        }
    }
}

impl StdoutOutput {
    /// Returns the format that the stream has; `json` if the other outputs write JSON.
    fn effective(&self, json: bool, is_terminal: bool) -> StreamFormat {
        match self.format {
            Some(format) => format,
            None if json => StreamFormat::Json,
            None if is_terminal && self.is_for_people => StreamFormat::Pretty,
            None => StreamFormat::Falco,
        }
    }

    /// Returns true if the stream shows what is known about process, file and container; `json` if
    /// the other outputs write JSON.
    pub fn shows_context(&self, json: bool) -> bool {
        let format = self.effective(json, self.is_terminal());
        self.enabled && matches!(format, StreamFormat::Pretty | StreamFormat::Line)
    }

    /// Returns true if the stream is JSON; `json` if the other outputs write JSON.
    pub fn is_json(&self, json: bool) -> bool {
        self.effective(json, self.is_terminal()) == StreamFormat::Json
    }

    fn is_terminal(&self) -> bool {
        match &self.target {
            StreamTarget::Stdout => io::stdout().is_terminal(),
            StreamTarget::Stderr => io::stderr().is_terminal(),
            StreamTarget::File(path) => terminal_at(path).is_some(),
        }
    }

    /// Opens the file of `--log`, which may be another terminal.
    fn open_log(&self, path: &Path, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        if let Some(terminal) = terminal_at(path) {
            return Ok(Box::new(self.styled("log", terminal, common)));
        }
        let format = of_file(self.effective(common.json, false), common.json);
        let help = "name a writable file after --log; a FIFO needs a reader";
        match FileChannel::log(path.to_owned(), format) {
            Ok(channel) => Ok(Box::new(channel)),
            Err(error) => Err(ChannelOpenError::new(error, help)),
        }
    }

    /// Creates the channel of a stream with the chosen format.
    fn styled(&self, name: &'static str, shared: File, common: &Common) -> StdioChannel {
        let is_terminal = shared.is_terminal();
        let mut channel = StdioChannel::of(name, shared);
        channel.beside_command = (self.target == StreamTarget::Stderr).then_some(None);
        let format = self.effective(common.json, is_terminal);
        channel.stream.set_format(of_file(format, common.json));
        if is_terminal {
            let folds = format == StreamFormat::Pretty;
            channel.terminal = Some(Terminal::new(folds, self.wide));
        }
        channel
    }
}

/// Returns the format of lines in a file; `json` if the other outputs write JSON.
fn of_file(format: StreamFormat, json: bool) -> LineFormat {
    match format {
        StreamFormat::Falco if json => LineFormat::Falco,
        StreamFormat::Falco | StreamFormat::Json => LineFormat::Shared,
        StreamFormat::Line => LineFormat::KeyValue,
        StreamFormat::Pretty => LineFormat::Pretty(Screen {
            columns: None,
            colour: false,
        }),
    }
}

/// Opens the terminal that a path names, if it names one.
fn terminal_at(path: &Path) -> Option<File> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    if !kind.is_char_device() {
        return None;
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    let file = options.write(true).custom_flags(flags.bits().cast_signed());
    file.open(path).ok().filter(IsTerminal::is_terminal)
}

/// How long an alert beside a command waits after a pause, so that a line that the command writes in
/// parts (`cat: FILE`, `: Permission denied`) ends first.
const SETTLE: Duration = Duration::from_millis(10);

/// A pause: no alert was written for this time.
const PAUSE: Duration = Duration::from_millis(100);

/// A standard stream cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot write alerts to {stream}")]
pub struct StdioError {
    /// Name of the stream.
    pub stream: &'static str,
    /// The cause.
    pub source: io::Error,
}

/// One of the two streams that every process can write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StandardStream {
    /// `stdout`.
    #[default]
    Output,
    /// `stderr`.
    Error,
}

impl StandardStream {
    fn name(self) -> &'static str {
        match self {
            Self::Output => "stdout",
            Self::Error => "stderr",
        }
    }

    /// Duplicates the descriptor.
    pub(crate) fn duplicate(self) -> io::Result<File> {
        let copy = match self {
            Self::Output => io::stdout().as_fd().try_clone_to_owned(),
            Self::Error => io::stderr().as_fd().try_clone_to_owned(),
        };
        copy.map(File::from)
    }
}

/// Writes lines to a standard stream, each with one `write(2)`, so that they do not mix with the
/// output of the watched program.
///
/// The watched program shares the open file description and can change its flags. The channel
/// therefore reopens a terminal, a pipe or a file in append mode. A file without append mode is
/// shared with its offset, which keeps both writers' output in order; a socket cannot be reopened.
#[derive(Debug)]
pub struct StdioChannel {
    name: &'static str,
    file: File,
    stream: LineStream,
    /// Set if the stream is a terminal.
    terminal: Option<Terminal>,
    /// Length in bytes of a regular file after the last alert.
    length: u64,
    notice: Option<String>,
    /// Set if a command writes to the same stream: the time of the last alert.
    beside_command: Option<Option<Instant>>,
}

impl StdioChannel {
    /// Reopens the stream, or takes the descriptor where it cannot be reopened.
    fn of(name: &'static str, shared: File) -> Self {
        // Fails, for example, for another user's file, or without /proc.
        let file = reopened(&shared).ok().flatten().unwrap_or(shared);
        Self {
            name,
            terminal: None,
            length: length(&file),
            file,
            stream: LineStream::new(LineOutput::Stream),
            notice: None,
            beside_command: None,
        }
    }

    /// Waits, after a pause, for the end of the line that the command may be writing.
    fn settle(&mut self) {
        let Some(last) = &mut self.beside_command else {
            return;
        };
        if last.is_none_or(|last| last.elapsed() > PAUSE) {
            std::thread::sleep(SETTLE);
        }
        *last = Some(Instant::now());
    }

    /// Adapts the lines to the present size of the terminal.
    fn measure(&mut self) {
        if let (LineFormat::Pretty(_), Some(terminal)) = (self.stream.format(), &self.terminal) {
            let screen = terminal.screen(&self.file);
            self.stream.set_format(LineFormat::Pretty(screen));
        }
    }
}

/// Device number of terminals that name a different terminal at each opening (`/dev/tty`,
/// `/dev/ptmx`).
const MAJOR_OF_ALIASES: u64 = 5;

/// Reopens the file with flags of its own, if it is of a kind that allows this.
fn reopened(shared: &File) -> io::Result<Option<File>> {
    let metadata = shared.metadata()?;
    let kind = metadata.file_type();
    let is_terminal = shared.is_terminal() && metadata.rdev() >> 8 != MAJOR_OF_ALIASES;
    let flags = if kind.is_file() && fcntl_getfl(shared)?.contains(OFlags::APPEND) {
        OFlags::APPEND
    } else if kind.is_fifo() || is_terminal {
        // The writing thread can wait for a stopped terminal, and for the end.
        OFlags::NONBLOCK
    } else {
        return Ok(None);
    };
    let flags = flags | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(flags.bits().cast_signed())
        .open(format!("/proc/self/fd/{}", shared.as_raw_fd()))?;
    let of_file = file.metadata()?;
    let is_same = (of_file.dev(), of_file.ino(), of_file.rdev())
        == (metadata.dev(), metadata.ino(), metadata.rdev());
    Ok(is_same.then_some(file))
}

/// Length in bytes of a regular file; 0 for anything else.
fn length(file: &File) -> u64 {
    let metadata = file.metadata().ok().filter(|metadata| metadata.is_file());
    metadata.map_or(0, |metadata| metadata.len())
}

impl Channel for StdioChannel {
    fn name(&self) -> &str {
        self.name
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        self.settle();
        if length(&self.file) < self.length {
            let notice = format!(
                "the file of {} was truncated; earlier alerts may be lost",
                self.name
            );
            self.notice = Some(notice);
        }
        self.measure();
        let result = match &mut self.terminal {
            Some(terminal) => terminal.deliver(&mut self.stream, &self.file, alerts),
            None => self.stream.write(&self.file, alerts),
        };
        self.length = length(&self.file);
        result
    }

    fn held(&self) -> usize {
        self.terminal.as_ref().map_or(0, Terminal::held)
    }

    fn due(&self) -> Option<Instant> {
        self.terminal.as_ref()?.due()
    }

    fn release(&mut self, everything: bool) -> Result<(), DeliveryError> {
        self.measure();
        match &mut self.terminal {
            Some(terminal) => terminal.release(&mut self.stream, &self.file, everything),
            None => Ok(()),
        }
    }

    fn keep_account(&mut self, account: Arc<dyn QueueAccount>) {
        self.stream.keep_account(account);
    }

    fn notice(&mut self) -> Option<String> {
        self.notice.take()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Seek, Write};

    use rustix::fs::fcntl_setfl;

    use super::*;
    use crate::channel::testing;
    use crate::format::Format;

    fn deliveries(count: usize) -> Vec<Arc<Delivery>> {
        testing::deliveries(count, Format::default())
    }

    /// The watched program can change the flags of a shared descriptor.
    #[test]
    fn alerts_are_appended_whatever_is_done_to_the_shared_flags() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("out");
        fs::write(&path, "before\n").expect("the folder is writable");
        let mut shared = File::options()
            .append(true)
            .open(&path)
            .expect("it is there");
        let mut channel = StdioChannel::of("stdout", shared.try_clone().expect("a descriptor"));
        fcntl_setfl(&shared, OFlags::empty()).expect("flags can be taken off");
        shared.rewind().expect("it is a file");
        channel.deliver(&deliveries(2)).expect("it is writable");
        let text = fs::read_to_string(&path).expect("it is there");
        assert!(
            text.starts_with("before\n") && text.lines().count() == 3,
            "{text}"
        );
        assert_eq!(channel.notice(), None);
        shared.set_len(0).expect("it is a file");
        channel.deliver(&deliveries(1)).expect("it is writable");
        let notice = channel.notice().expect("alerts are lost");
        assert!(notice.contains("was truncated"), "{notice}");
        channel.deliver(&deliveries(1)).expect("it is writable");
        assert_eq!(channel.notice(), None);
    }

    /// Counterpart: `> file` shares the offset, or the program would overwrite alerts.
    #[test]
    fn a_file_that_is_not_appended_to_keeps_the_order_of_both() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("out");
        let mut shared = File::create(&path).expect("the folder is writable");
        let mut channel = StdioChannel::of("stdout", shared.try_clone().expect("a descriptor"));
        shared.write_all(b"one\n").expect("it is writable");
        channel.deliver(&deliveries(1)).expect("it is writable");
        shared.write_all(b"two\n").expect("it is writable");
        channel.deliver(&deliveries(1)).expect("it is writable");
        let text = fs::read_to_string(&path).expect("it is there");
        let kinds: Vec<bool> = text.lines().map(|line| line.contains("n=0")).collect();
        assert_eq!(kinds, [false, true, false, true], "{text}");
    }

    #[test]
    fn a_pipe_and_a_terminal_have_flags_of_their_own_and_aliases_are_not_opened() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let shared = File::from(std::os::fd::OwnedFd::from(writer));
        let mut channel = StdioChannel::of("stdout", shared.try_clone().expect("a descriptor"));
        let flags = |file: &File| {
            fcntl_getfl(file)
                .expect("it is open")
                .contains(OFlags::NONBLOCK)
        };
        assert!(flags(&channel.file) && !flags(&shared));
        channel.deliver(&deliveries(1)).expect("it is read");
        drop((channel, shared));
        let mut text = String::new();
        reader
            .read_to_string(&mut text)
            .expect("all ends are closed");
        assert!(text.ends_with("n=0\n"), "{text}");
        let master = File::options().read(true).write(true).open("/dev/ptmx");
        let master = master.expect("terminals can be made");
        assert!(reopened(&master).expect("it is looked at").is_none());
    }

    #[test]
    fn a_socket_is_written_to_as_it_is() {
        let (mut here, there) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let mut channel = StdioChannel::of("stdout", File::from(std::os::fd::OwnedFd::from(there)));
        channel.deliver(&deliveries(1)).expect("it is read");
        drop(channel);
        let mut text = String::new();
        here.read_to_string(&mut text).expect("it is closed");
        assert!(text.ends_with("n=0\n"), "{text}");
    }
}
