//! One process that loads plugins.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::protocol::{
    self, Description, PROGRAM, PluginSpec, ProtocolError, RecordedEvent, Reply, Request, VERSION,
    Wanted,
};

/// Limits of a helper process.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// The program; see [`PROGRAM`].
    pub program: PathBuf,
    /// Longest time without an answer, or without a sign of life of an open source.
    pub deadline: Duration,
    /// Most memory for data in bytes (`RLIMIT_DATA`, which counts what is private and writable, from Linux 4.7 on); `None` for any.
    pub memory: Option<u64>,
}

/// How a process ended.
#[derive(Debug)]
pub struct Ending {
    /// Its exit status.
    pub status: ExitStatus,
    /// The memory that it had at most.
    memory: Option<u64>,
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.status)?;
        // What ends a program that gets no memory: a fault, abort(3), or the exit status 2 of Go.
        let may_lack_memory = self.status.signal().is_some() || self.status.code() == Some(2);
        match self.memory.filter(|_| may_lack_memory) {
            Some(bytes) => write!(
                f,
                " (it may take {} MiB of memory: plugin_host.memory)",
                bytes >> 20
            ),
            None => Ok(()),
        }
    }
}

/// Why a helper process is of no use, or no more.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The program is missing.
    #[error(
        "cannot start {}: no such program; plugins need `{PROGRAM}`, which is installed beside this program",
        .0.display()
    )]
    Missing(PathBuf),
    /// The program does not start.
    #[error("cannot start {}: {cause}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The process ended; it was not asked to.
    #[error("the process of the plugin ended: {0}")]
    Ended(Ending),
    /// The process said nothing in time.
    #[error("the plugin did not answer within {} ms", .0.as_millis())]
    Hung(Duration),
    /// The process said what is no message.
    #[error("the process of the plugin sent {0}")]
    Garbage(ProtocolError),
    /// The plugin itself reports a failure.
    #[error("{0}")]
    Plugin(String),
}

/// A process that loads plugins. Dropping it kills the process.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    stream: UnixStream,
    deadline: Duration,
    memory: Option<u64>,
}

impl Helper {
    /// Starts the program. The process ends when the calling thread does.
    ///
    /// # Errors
    ///
    /// Fails if the program is missing or cannot be executed.
    pub fn start(limits: &Limits) -> Result<Self, HelperError> {
        let cannot = |cause: io::Error| start_error(&limits.program, cause);
        let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
        let child = Command::new(&limits.program)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(cannot)?;
        let helper = Self {
            child,
            stream: ours,
            deadline: limits.deadline,
            memory: limits.memory,
        };
        // It loads nothing before it is asked to.
        helper.limit_memory().map_err(cannot)?;
        Ok(helper)
    }

    fn limit_memory(&self) -> io::Result<()> {
        let Some(bytes) = self.memory else {
            return Ok(());
        };
        let pid = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        // A lower limit of this process holds for that one, too, and may not be raised.
        let bytes = getrlimit(Resource::Data)
            .maximum
            .map_or(bytes, |most| most.min(bytes));
        let limit = Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        prlimit(Pid::from_raw(pid), Resource::Data, limit)?;
        Ok(())
    }

    /// Loads plugins, and returns what they say about themselves.
    ///
    /// # Errors
    ///
    /// Fails if a plugin cannot be loaded or initialized, or the process does not answer.
    pub fn load(&mut self, plugins: &[PluginSpec]) -> Result<Vec<Description>, HelperError> {
        let request = Request::Load {
            version: VERSION,
            plugins: plugins.to_vec(),
        };
        self.ask(&request)?;
        let Reply::Loaded(descriptions) = self.reply()? else {
            return Err(self.unasked("another answer than to loading"));
        };
        if descriptions.len() != plugins.len() {
            return Err(self.unasked("another number of plugins"));
        }
        for description in &descriptions {
            description.check().map_err(HelperError::Garbage)?;
        }
        Ok(descriptions)
    }

    /// Opens the source of the plugin that `wanted` names.
    ///
    /// # Errors
    ///
    /// Fails if the plugin does not open it, or the process does not answer.
    pub fn open(&mut self, wanted: &Wanted) -> Result<(), HelperError> {
        self.begin(&Request::Open(wanted.clone()))
    }

    /// Prepares the plugin that `wanted` names for events that it made before. No source is opened.
    ///
    /// # Errors
    ///
    /// Fails if the process does not answer.
    pub fn replay(&mut self, wanted: &Wanted) -> Result<(), HelperError> {
        self.begin(&Request::Replay(wanted.clone()))
    }

    /// Sends events that the source made before; [`Helper::reply`] returns their records. Precondition:
    /// [`Helper::replay`] was called.
    ///
    /// # Errors
    ///
    /// Fails if the process is gone or takes nothing.
    pub fn send(&mut self, events: Vec<RecordedEvent>) -> Result<(), HelperError> {
        self.ask(&Request::Events(events))
    }

    fn begin(&mut self, request: &Request) -> Result<(), HelperError> {
        self.ask(request)?;
        match self.reply()? {
            Reply::Opened => Ok(()),
            _ => Err(self.unasked("another answer than to opening")),
        }
    }

    /// Returns the next message. [`Reply::Failed`] is returned as an error.
    ///
    /// # Errors
    ///
    /// Fails if the process ended, sends garbage or nothing in time, or reports a failure.
    pub fn reply(&mut self) -> Result<Reply, HelperError> {
        let mut timed = Timed {
            stream: &self.stream,
            until: Instant::now() + self.deadline,
        };
        match protocol::read(&mut timed) {
            Ok(Reply::Failed(message)) => Err(HelperError::Plugin(shortened(message))),
            Ok(reply) => Ok(reply),
            Err(ProtocolError::Io(error)) => Err(self.gone(&error)),
            Err(error) => Err(HelperError::Garbage(error)),
        }
    }

    /// Has the process end its open source: the events that it has taken follow, and [`Reply::Ended`]. Nothing can be asked
    /// afterwards.
    pub fn ask_for_the_end(&self) {
        // Fails if the process is gone, which the next reply tells.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Returns what ends the waiting for this process from another thread; `None` without a descriptor to spare.
    pub(crate) fn stopper(&self) -> Option<Stopper> {
        self.stream.try_clone().ok().map(Stopper)
    }

    fn ask(&mut self, request: &Request) -> Result<(), HelperError> {
        let timed = self.stream.set_write_timeout(Some(self.deadline));
        let sent = timed.map_err(ProtocolError::Io);
        let sent = sent.and_then(|()| protocol::write(&mut &self.stream, request));
        sent.map_err(|error| match error {
            ProtocolError::Io(error) => self.gone(&error),
            error => HelperError::Garbage(error),
        })
    }

    /// Returns why nothing more comes.
    fn gone(&mut self, error: &io::Error) -> HelperError {
        let is_late = matches!(
            error.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
        );
        if is_late {
            return HelperError::Hung(self.deadline);
        }
        // The stream is closed, so it has ended, or has closed the stream and is killed.
        let waited = self.wait_briefly();
        match waited {
            Ok(Some(status)) => HelperError::Ended(Ending {
                status,
                memory: self.memory,
            }),
            _ => HelperError::Hung(self.deadline),
        }
    }

    fn wait_briefly(&mut self) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + Duration::from_secs(1);
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || Instant::now() >= until {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn unasked(&self, what: &str) -> HelperError {
        HelperError::Garbage(ProtocolError::Invalid(what.to_owned()))
    }
}

/// Ends the waiting for a process.
#[derive(Debug)]
pub(crate) struct Stopper(UnixStream);

impl Stopper {
    pub(crate) fn stop(&self) {
        // Fails if the process is gone.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_error(program: &Path, cause: io::Error) -> HelperError {
    match cause.kind() {
        io::ErrorKind::NotFound => HelperError::Missing(program.to_owned()),
        _ => HelperError::Start {
            program: program.to_owned(),
            cause,
        },
    }
}

/// Longest message of a plugin that is passed on, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Cuts a message of a plugin, and replaces what would disturb a terminal.
fn shortened(message: String) -> String {
    let mut end = message.len().min(MAX_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let is_plain = |c: char| !c.is_control();
    message[..end]
        .chars()
        .map(|c| if is_plain(c) { c } else { ' ' })
        .collect()
}

/// Reads until a point in time, however the bytes trickle in.
struct Timed<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let limits = Limits {
            program: "/nonexistent/tollgate-plugin-host".into(),
            deadline: Duration::from_secs(1),
            memory: None,
        };
        let error = Helper::start(&limits)
            .expect_err("it is not there")
            .to_string();
        assert!(
            error.contains("/nonexistent/tollgate-plugin-host"),
            "{error}"
        );
        assert!(error.contains("beside this program"), "{error}");
    }

    #[test]
    fn a_process_that_ends_or_says_nothing_is_told_apart() {
        let limits = |program: &str| Limits {
            program: program.into(),
            deadline: Duration::from_millis(200),
            memory: None,
        };
        let mut ends = Helper::start(&limits("/bin/false")).expect("it starts");
        let error = ends.load(&[]).expect_err("it ends");
        assert!(matches!(error, HelperError::Ended(_)), "{error:?}");
        // `tail` reads its input to the end, which never comes, and says nothing before.
        let mut hangs = Helper::start(&limits("/usr/bin/tail")).expect("it starts");
        let error = hangs.load(&[]).expect_err("it hangs");
        assert!(matches!(error, HelperError::Hung(_)), "{error:?}");
    }
}
