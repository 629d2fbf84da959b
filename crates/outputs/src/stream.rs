//! Writing lines to a file descriptor.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};

use crate::channel::{Delivery, DeliveryError, ReceiverState};
use crate::key_value;
use crate::pretty::{self, Screen};
use crate::queue::{LineOutput, QueueAccount};

/// How the alert stream reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LineFormat {
    /// As in the other outputs: Falco's text, or JSON.
    #[default]
    Shared,
    /// Falco's text.
    Falco,
    /// `key=value`.
    KeyValue,
    /// Two lines for people.
    Pretty(Screen),
}

impl LineFormat {
    /// Returns the lines of an alert, line feed included.
    pub(crate) fn line(self, alert: &Delivery) -> Cow<'_, str> {
        match self {
            Self::Shared => alert.line().into(),
            Self::Falco => alert.text_line().into(),
            Self::KeyValue => key_value::line(alert.alert()).into(),
            Self::Pretty(screen) => pretty::alert(alert.alert(), screen).into(),
        }
    }
}

/// Writes lines and remembers whether the last one was cut off by an error or by its writer's
/// death, so that the next line does not continue it.
#[derive(Debug)]
pub(crate) struct LineStream {
    torn: bool,
    output: LineOutput,
    format: LineFormat,
    account: Option<Arc<dyn QueueAccount>>,
}

impl LineStream {
    pub(crate) fn new(output: LineOutput) -> Self {
        Self {
            torn: false,
            output,
            format: LineFormat::default(),
            account: None,
        }
    }

    /// Sets the format of the lines.
    pub(crate) fn set_format(&mut self, format: LineFormat) {
        self.format = format;
    }

    pub(crate) fn format(&self) -> LineFormat {
        self.format
    }

    pub(crate) fn keep_account(&mut self, account: Arc<dyn QueueAccount>) {
        self.account = Some(account);
    }

    /// Sets whether the file that is written from now on ends within a line.
    pub(crate) fn continue_file(&mut self, is_torn: bool) {
        self.torn = is_torn;
    }

    pub(crate) fn write(
        &mut self,
        file: &File,
        alerts: &[Arc<Delivery>],
    ) -> Result<(), DeliveryError> {
        let format = self.format;
        self.write_lines(file, alerts.iter().map(|alert| format.line(alert)))
    }

    /// Writes lines, each with its line feed. The error counts lines.
    pub(crate) fn write_lines<'l>(
        &mut self,
        file: &File,
        lines: impl Iterator<Item = Cow<'l, str>>,
    ) -> Result<(), DeliveryError> {
        let is_left_torn = self
            .account
            .as_ref()
            .is_some_and(|account| account.begins_lines(self.output));
        let mut bytes = Vec::new();
        if self.torn || is_left_torn {
            bytes.push(b'\n');
        }
        let mut ends = Vec::new();
        for line in lines {
            bytes.extend_from_slice(line.as_bytes());
            ends.push(bytes.len());
        }
        let (written, result) = write_all(file, &bytes);
        if written > 0 {
            self.torn = bytes[written - 1] != b'\n';
        } else {
            self.torn |= is_left_torn;
        }
        if let Some(account) = self.account.as_ref().filter(|_| !self.torn) {
            account.ends_lines(self.output);
        }
        result.map_err(|source| DeliveryError {
            delivered: ends.partition_point(|end| *end <= written),
            rejected: 0,
            receiver: match source.kind() {
                ErrorKind::BrokenPipe => ReceiverState::Gone,
                _ => ReceiverState::Failing,
            },
            source,
        })
    }
}

/// Delay before retrying a file that reports itself writable but accepts nothing.
const RETRY: std::time::Duration = std::time::Duration::from_millis(10);

/// Like [`Write::write_all`], but returns the number of bytes written before an error, and waits if
/// the descriptor is non-blocking: any program that shares an inherited one can make it so.
fn write_all(mut file: &File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    let mut is_said_ready = false;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Err(ErrorKind::WriteZero.into())),
            Ok(count) => {
                written += count;
                is_said_ready = false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if is_said_ready {
                    // Some terminals report this while they are stopped.
                    std::thread::sleep(RETRY);
                }
                is_said_ready = true;
                match poll(&mut [PollFd::new(file, PollFlags::OUT)], None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return (written, Err(error.into())),
                }
            }
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}
