//! One connection to a NATS server, according to the client protocol of its documentation.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;

use super::address::Address;
use super::credentials::Credentials;
use crate::json::Object;
use crate::net::names::Names;

/// Maximum length of a line: servers of a large cluster list all others in the first one.
const MAX_LINE: usize = 1 << 20;
/// Maximum size of a received message; the expected acknowledgements are short.
const MAX_MESSAGE: usize = 1 << 20;

/// Parameters of a new connection.
pub(super) struct Login<'l> {
    pub(super) credentials: &'l Credentials,
    /// TLS configuration. If set, an unencrypted connection is refused.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// Subject to subscribe to for acknowledgements.
    pub(super) inbox: Option<&'l str>,
}

/// A message from the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// The server has processed everything that was sent before the ping.
    Pong,
    /// `-ERR`: its text, without quotes.
    Error(String),
    /// A message for a subscription.
    Message {
        subject: String,
        /// Status in the header, if there is one.
        status: Option<u16>,
        payload: Vec<u8>,
    },
    /// A message that concerns only the connection.
    Other,
}

pub(super) struct Connection {
    stream: Stream,
    /// Received bytes that are not parsed yet.
    input: Vec<u8>,
    /// Maximum size of a message that the server accepts, headers included.
    max_payload: usize,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref(),
        }
    }
}

impl Connection {
    /// Connects and logs in. A server that refuses the login is an error of the kind `PermissionDenied`.
    pub(super) fn open(
        address: &Address,
        login: &Login<'_>,
        deadline: Instant,
    ) -> io::Result<Self> {
        let socket = connect(address, deadline)?;
        socket.set_nodelay(true)?;
        let mut connection = Self {
            stream: Stream::Plain(socket),
            input: Vec::new(),
            max_payload: usize::MAX,
        };
        let line = connection.line(deadline)?;
        let info = line.strip_prefix("INFO ").ok_or_else(|| {
            let message = format!("{address} is no NATS server");
            io::Error::new(ErrorKind::InvalidData, message)
        })?;
        let info: Value = serde_json::from_str(info).map_err(io::Error::other)?;
        connection.note(&info);
        let wants_tls = info["tls_required"] == true;
        let may_tls = wants_tls || info["tls_available"] == true;
        let stream = match (connection.stream, &login.tls) {
            (Stream::Plain(socket), Some(config)) if may_tls => {
                // Bytes received in plaintext must not be taken for encrypted ones.
                connection.input.clear();
                encrypt(socket, address, Arc::clone(config), deadline)?
            }
            (_, Some(_)) => return Err(refused(format!("{address} has no TLS"))),
            (_, None) if wants_tls => {
                let message = format!("{address} wants TLS: set nats_output.tls.enabled");
                return Err(refused(message));
            }
            (stream, None) => stream,
        };
        connection.stream = stream;
        connection.log_in(login, &info, deadline)?;
        Ok(connection)
    }

    fn log_in(&mut self, login: &Login<'_>, info: &Value, deadline: Instant) -> io::Result<()> {
        let nonce = info["nonce"].as_str().unwrap_or_default();
        let members = login.credentials.answer(nonce).map_err(io::Error::other)?;
        let mut text = String::from("CONNECT ");
        let flag = |value: bool| move |out: &mut String| out.push_str(&value.to_string());
        let mut object = Object::open(&mut text);
        object
            .member("verbose", flag(false))
            .member("pedantic", flag(false))
            .member("tls_required", flag(login.tls.is_some()))
            .member("headers", flag(true))
            .member("no_responders", flag(true))
            .member("echo", flag(false))
            .number("protocol", 1)
            .string("lang", "rust")
            .string("name", "tollgate")
            .string("version", env!("CARGO_PKG_VERSION"));
        for (name, value) in &members {
            object.string(name, value);
        }
        object.close();
        text.push_str("\r\n");
        if let Some(inbox) = login.inbox {
            text.push_str(&format!("SUB {inbox}.* 1\r\n"));
        }
        text.push_str("PING\r\n");
        self.send(text.as_bytes(), deadline)?;
        loop {
            match self.receive(deadline)? {
                Received::Pong => return Ok(()),
                Received::Error(text) => return Err(login_error(&text)),
                Received::Message { .. } | Received::Other => {}
            }
        }
    }

    /// Maximum size of a message that the server accepts, headers included.
    pub(super) fn max_payload(&self) -> usize {
        self.max_payload
    }

    /// Answers pending messages of the server. Fails if the server has closed the connection.
    pub(super) fn catch_up(&mut self, deadline: Instant) -> io::Result<()> {
        // One read at a time: a server that sends without end gets no more memory than for one read, and no
        // more time than until the deadline.
        while self.read_pending()? {
            while self.input.contains(&b'\n') {
                match self.receive(deadline)? {
                    Received::Error(text) => return Err(io::Error::other(text)),
                    Received::Pong | Received::Message { .. } | Received::Other => {}
                }
            }
            left(deadline)?;
        }
        Ok(())
    }

    /// Reads once without waiting. Returns false if nothing was there.
    fn read_pending(&mut self) -> io::Result<bool> {
        self.stream.socket().set_nonblocking(true)?;
        let read = self.read();
        self.stream.socket().set_nonblocking(false)?;
        match read {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends bytes.
    pub(super) fn send(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        let socket = self.stream.socket();
        socket.set_write_timeout(Some(left(deadline)?))?;
        // The TLS stream may have to read before it can write.
        socket.set_read_timeout(Some(left(deadline)?))?;
        let written = match &mut self.stream {
            Stream::Plain(socket) => socket.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        };
        written.map_err(in_time)
    }

    /// Receives the next message. Answers pings itself.
    pub(super) fn receive(&mut self, deadline: Instant) -> io::Result<Received> {
        let line = self.line(deadline)?;
        let (verb, rest) = line.split_once(' ').unwrap_or((line.as_str(), ""));
        match verb {
            "PING" => self.send(b"PONG\r\n", deadline).map(|()| Received::Other),
            "PONG" => Ok(Received::Pong),
            "-ERR" => Ok(Received::Error(rest.trim().trim_matches('\'').to_owned())),
            "MSG" | "HMSG" => self.message(verb, rest, deadline),
            "INFO" => {
                let info = serde_json::from_str(rest).map_err(io::Error::other)?;
                self.note(&info);
                Ok(Received::Other)
            }
            "+OK" => Ok(Received::Other),
            _ => Err(malformed()),
        }
    }

    /// Parses `MSG SUBJECT SID [REPLY] SIZE`, or `HMSG SUBJECT SID [REPLY] HEADERS SIZE`, and reads
    /// that many bytes.
    fn message(&mut self, verb: &str, rest: &str, deadline: Instant) -> io::Result<Received> {
        let words: Vec<_> = rest.split_ascii_whitespace().collect();
        let size = |word: Option<&&str>| {
            let size = word.and_then(|word| word.parse::<usize>().ok());
            size.filter(|size| *size <= MAX_MESSAGE)
                .ok_or_else(malformed)
        };
        let total = size(words.last())?;
        let headers = if verb == "HMSG" {
            size(words.iter().rev().nth(1))?
        } else {
            0
        };
        let subject = words.first().ok_or_else(malformed)?;
        while self.input.len() < total + 2 {
            self.fill(deadline)?;
        }
        let all: Vec<u8> = self.input.drain(..total + 2).take(total).collect();
        let (head, payload) = all.split_at_checked(headers).ok_or_else(malformed)?;
        // `NATS/1.0 503`
        let head = String::from_utf8_lossy(head);
        let status = head.lines().next().and_then(|line| line.split(' ').nth(1));
        Ok(Received::Message {
            subject: (*subject).to_owned(),
            status: status.and_then(|status| status.trim().parse().ok()),
            payload: payload.to_vec(),
        })
    }

    fn note(&mut self, info: &Value) {
        let max = info["max_payload"].as_u64();
        if let Some(max) = max.and_then(|max| usize::try_from(max).ok()) {
            self.max_payload = max;
        }
    }

    /// Returns the next line without its line ending.
    fn line(&mut self, deadline: Instant) -> io::Result<String> {
        loop {
            if let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
            }
            if self.input.len() > MAX_LINE {
                return Err(malformed());
            }
            self.fill(deadline)?;
        }
    }

    /// Reads more bytes into the buffer.
    fn fill(&mut self, deadline: Instant) -> io::Result<()> {
        self.stream
            .socket()
            .set_read_timeout(Some(left(deadline)?))?;
        self.read().map_err(in_time)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 8192];
        let count = match &mut self.stream {
            Stream::Plain(socket) => socket.read(&mut buffer)?,
            Stream::Tls(stream) => stream.read(&mut buffer)?,
        };
        if count == 0 {
            return Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the server closed the connection",
            ));
        }
        self.input.extend(&buffer[..count]);
        Ok(())
    }
}

fn connect(address: &Address, deadline: Instant) -> io::Result<TcpStream> {
    let names = Names::default();
    let mut last = None;
    for ip in names.addresses(&address.host, deadline)? {
        let to = SocketAddr::new(ip, address.port);
        match TcpStream::connect_timeout(&to, left(deadline)?) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| ErrorKind::NotFound.into());
    let message = format!("cannot reach {address}: {error}");
    Err(io::Error::new(error.kind(), message))
}

fn encrypt(
    socket: TcpStream,
    address: &Address,
    config: Arc<ClientConfig>,
    deadline: Instant,
) -> io::Result<Stream> {
    let host = address.host.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).map_err(|error| refused(error.to_string()))?;
    let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
    socket.set_read_timeout(Some(left(deadline)?))?;
    socket.set_write_timeout(Some(left(deadline)?))?;
    let mut stream = StreamOwned::new(tls, socket);
    while stream.conn.is_handshaking() {
        stream
            .conn
            .complete_io(&mut stream.sock)
            .map_err(|error| match error.kind() {
                // An untrusted certificate stays untrusted.
                ErrorKind::InvalidData => refused(format!("cannot encrypt: {error}")),
                _ => in_time(error),
            })?;
    }
    Ok(Stream::Tls(Box::new(stream)))
}

/// Returns the time left until `deadline`, or an error if it has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(in_time(ErrorKind::TimedOut.into()));
    }
    Ok(left)
}

fn in_time(error: io::Error) -> io::Error {
    match error.kind() {
        // The kernel reports the time limit of a socket as `WouldBlock`.
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            io::Error::new(ErrorKind::TimedOut, "the server did not answer in time")
        }
        _ => error,
    }
}

/// An error that a retry does not fix.
fn refused(message: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, message)
}

fn login_error(text: &str) -> io::Error {
    let message = format!("the server refuses this client: {text}");
    let lower = text.to_ascii_lowercase();
    if lower.contains("authorization") || lower.contains("permissions") {
        refused(message)
    } else {
        io::Error::other(message)
    }
}

fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the server sent what is not NATS")
}
