//! The `syslog` channel: sends alerts to the local syslog socket.
//!
//! Entries have the format of the C library's `openlog("falco", LOG_PID, LOG_USER)`, so filters
//! written for Falco's entries match them.

use std::io::{self, ErrorKind, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use rules::Priority;
use yaml::key::Key;

use crate::channel::{Channel, Delivery, DeliveryError, Peer, ReceiverState};
use crate::kind::{ChannelOpenError, Common, OutputKind};
use crate::time;

/// Name of the program in front of an entry.
const IDENT: &str = "falco";

/// `LOG_USER` of syslog(3), shifted above the three bits of the level.
const FACILITY_USER: usize = 1 << 3;

/// `syslog_output`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyslogOutput {
    /// Send alerts to syslog.
    pub enabled: bool,
}

impl OutputKind for SyslogOutput {
    const GROUP: &'static str = "syslog_output";
    const KEYS: &'static [Key<Self>] = &[Key::boolean("syslog_output.enabled", |output| {
        &mut output.enabled
    })];

    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        let path = PathBuf::from(SyslogChannel::PATH);
        Ok(Box::new(SyslogChannel::new(path, common.timeout)))
    }
}

/// Sends entries to the syslog daemon.
#[derive(Debug)]
pub struct SyslogChannel {
    path: PathBuf,
    timeout: Duration,
    zone: TimeZone,
    socket: Option<Socket>,
    /// A daemon has listened since the start.
    has_listened: bool,
    peer: Arc<Peer>,
}

impl SyslogChannel {
    /// Socket path of the daemon on every Linux.
    pub const PATH: &'static str = "/dev/log";

    /// Creates a channel to the daemon at `path`. The socket is opened at the first alert. An alert
    /// is lost if the daemon does not read for `timeout`.
    pub fn new(path: PathBuf, timeout: Duration) -> Self {
        Self {
            path,
            timeout,
            zone: time::local_zone(),
            socket: None,
            has_listened: false,
            peer: Arc::default(),
        }
    }

    /// Sends a message that is not an alert.
    ///
    /// # Errors
    ///
    /// There is no daemon, or it does not read in time.
    pub fn log(&mut self, priority: Priority, message: &str) -> io::Result<()> {
        let entry = self.entry(time::now_ns(), priority, message);
        self.send(&entry)
    }

    fn entry(&self, time_ns: u64, priority: Priority, line: &str) -> String {
        let stamp = time::syslog_stamp(time_ns, &self.zone);
        let priority = FACILITY_USER + level(priority);
        let pid = std::process::id();
        let line = line.trim_end_matches('\n');
        format!("<{priority}>{stamp} {IDENT}[{pid}]: {line}")
    }

    fn send(&mut self, entry: &str) -> io::Result<()> {
        // The old socket is dead after a restart of the daemon: one more attempt on a new one.
        if let Some(socket) = self.socket.take() {
            match socket.send(entry) {
                Ok(()) => return self.keep(socket),
                Err(error) if !is_gone(&error) => return Err(self.counted(error)),
                Err(_) => {}
            }
        }
        let socket = Socket::connect(&self.path, self.timeout).map_err(|error| {
            let message = format!("cannot reach {}: {error}", self.path.display());
            io::Error::new(error.kind(), message)
        })?;
        self.has_listened = true;
        match socket.send(entry) {
            Ok(()) => self.keep(socket),
            Err(error) => Err(self.counted(error)),
        }
    }

    fn keep(&mut self, socket: Socket) -> io::Result<()> {
        self.socket = Some(socket);
        Ok(())
    }

    fn counted(&self, error: io::Error) -> io::Error {
        if error.kind() != ErrorKind::WouldBlock {
            return error;
        }
        // The kernel's error for an expired time limit of a socket.
        self.peer.count_timeout();
        io::Error::new(ErrorKind::TimedOut, "the log daemon does not read")
    }
}

impl Channel for SyslogChannel {
    fn name(&self) -> &str {
        "syslog"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        let result = DeliveryError::of_each(alerts, |alert| {
            let of = alert.alert();
            let entry = self.entry(of.time_ns, of.priority, alert.line());
            self.send(&entry)
        });
        let kind = |error: &DeliveryError| error.source.kind();
        result.map_err(|error| match kind(&error) {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused if !self.has_listened => {
                DeliveryError {
                    receiver: ReceiverState::Absent,
                    ..error
                }
            }
            _ => error,
        })
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.socket = None;
        Ok(())
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }
}

/// Socket of the daemon: datagrams or, rarely, a stream in which a zero byte ends an entry.
#[derive(Debug)]
enum Socket {
    Datagram(UnixDatagram),
    Stream(UnixStream),
}

/// `EPROTOTYPE`, the same on every Linux: the socket is of the other kind.
const PROTOTYPE: i32 = 91;

impl Socket {
    fn connect(path: &PathBuf, timeout: Duration) -> io::Result<Self> {
        // Zero would disable the limit.
        let limit = Some(timeout.max(Duration::from_millis(1)));
        let datagram = UnixDatagram::unbound()?;
        match datagram.connect(path) {
            Ok(()) => {
                datagram.set_write_timeout(limit)?;
                Ok(Self::Datagram(datagram))
            }
            Err(error) if error.raw_os_error() == Some(PROTOTYPE) => {
                let stream = UnixStream::connect(path)?;
                stream.set_write_timeout(limit)?;
                Ok(Self::Stream(stream))
            }
            Err(error) => Err(error),
        }
    }

    fn send(&self, entry: &str) -> io::Result<()> {
        match self {
            Self::Datagram(socket) => socket.send(entry.as_bytes()).map(|_| ()),
            Self::Stream(socket) => {
                let mut bytes = entry.as_bytes().to_vec();
                bytes.push(0);
                let mut socket = socket;
                socket.write_all(&bytes)
            }
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::NotConnected
            | ErrorKind::BrokenPipe
    )
}

fn level(priority: Priority) -> usize {
    Priority::ALL
        .iter()
        .position(|other| *other == priority)
        .expect("the list has every priority")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;
    use crate::channel::testing::deliveries;
    use crate::format::Format;

    fn channel(path: &Path) -> SyslogChannel {
        SyslogChannel::new(path.to_owned(), Duration::from_millis(50))
    }

    fn receive(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn an_entry_looks_as_the_c_library_makes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let alerts = deliveries(2, Format::default());
        channel(&path).deliver(&alerts).unwrap();
        for alert in &alerts {
            let entry = receive(&daemon);
            // Notice is level 5, user is facility 1.
            let rest = entry.strip_prefix("<13>").expect(&entry);
            let (stamp, rest) = rest.split_at(15);
            assert_eq!(
                stamp,
                time::syslog_stamp(alert.alert().time_ns, &time::local_zone())
            );
            let pid = std::process::id();
            let line = alert.line().trim_end();
            assert_eq!(rest, format!(" falco[{pid}]: {line}"));
        }
    }

    #[test]
    fn a_message_is_an_entry_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        channel(&path).log(Priority::Error, "no disk\n").unwrap();
        let entry = receive(&daemon);
        assert!(entry.starts_with("<11>"), "{entry}");
        assert!(entry.ends_with("]: no disk"), "{entry}");
    }

    #[test]
    fn levels_are_those_of_syslog() {
        assert_eq!(level(Priority::Emergency), 0);
        assert_eq!(level(Priority::Warning), 4);
        assert_eq!(level(Priority::Debug), 7);
    }

    #[test]
    fn a_daemon_that_comes_late_and_comes_back_gets_alerts_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let alerts = deliveries(1, Format::default());
        let mut channel = channel(&path);
        let error = channel.deliver(&alerts).unwrap_err();
        assert_eq!(
            (error.delivered, error.receiver),
            (0, ReceiverState::Absent)
        );
        assert_eq!(error.source.kind(), ErrorKind::NotFound);
        let said = error.source.to_string();
        let start = format!("cannot reach {}: ", path.display());
        assert!(said.starts_with(&start), "{said}");

        let daemon = UnixDatagram::bind(&path).unwrap();
        channel.deliver(&alerts).unwrap();
        assert!(receive(&daemon).ends_with("n=0"));

        drop(daemon);
        let error = channel.deliver(&alerts).unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(error.receiver, ReceiverState::Failing, "there was one");
        fs::remove_file(&path).unwrap();
        let daemon = UnixDatagram::bind(&path).unwrap();
        channel.deliver(&alerts).unwrap();
        assert!(receive(&daemon).ends_with("n=0"));

        // Restarted between two alerts: nothing is lost.
        fs::remove_file(&path).unwrap();
        let successor = UnixDatagram::bind(&path).unwrap();
        drop(daemon);
        channel.deliver(&alerts).unwrap();
        assert!(receive(&successor).ends_with("n=0"));
    }

    #[test]
    fn a_daemon_that_does_not_read_loses_alerts_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let _daemon = UnixDatagram::bind(&path).unwrap();
        let mut channel = channel(&path);
        // More than any default of net.unix.max_dgram_qlen.
        let alerts = deliveries(1, Format::default());
        let error = (0..10_000).find_map(|_| channel.deliver(&alerts).err());
        let error = error.expect("the queue of a socket is bounded");
        assert_eq!(error.source.kind(), ErrorKind::TimedOut);
        assert_eq!(channel.peer().timeouts(), 1);
    }

    #[test]
    fn a_daemon_with_a_stream_gets_entries_that_end_with_a_zero_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let daemon = UnixListener::bind(&path).unwrap();
        let mut channel = channel(&path);
        channel.deliver(&deliveries(2, Format::default())).unwrap();
        drop(channel);
        let mut all = String::new();
        daemon.accept().unwrap().0.read_to_string(&mut all).unwrap();
        let entries: Vec<_> = all.split_terminator('\0').collect();
        assert_eq!(entries.len(), 2);
        assert!(entries[0].ends_with("n=0") && entries[1].ends_with("n=1"));
    }
}
