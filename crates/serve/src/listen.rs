//! Listening addresses and sockets.

use std::fmt;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::num::IntErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connections::Peer;
use crate::error::ServeError;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket, `unix:///PATH`.
    Unix(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
}

impl Address {
    /// Parses an address in the format of Falco's configuration.
    ///
    /// # Errors
    ///
    /// The address is invalid.
    pub fn parse(text: &str) -> Result<Self, ServeError> {
        if let Some(path) = text.strip_prefix("unix://") {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let wrong = |problem| {
            Err(ServeError::Address {
                address: text.to_owned(),
                problem,
            })
        };
        let port = text.rsplit_once(':').map(|(_, port)| port);
        match port.map(str::parse::<u16>) {
            Some(Ok(_)) => Ok(Self::Tcp(text.to_owned())),
            Some(Err(error)) if *error.kind() == IntErrorKind::PosOverflow => {
                wrong("the port is larger than 65535")
            }
            _ => wrong("expected unix:///PATH or HOST:PORT"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> Result<Self, ServeError> {
        let result = match address {
            Address::Unix(path) => bind_unix(path).map(|socket| Self::Unix(socket, path.clone())),
            Address::Tcp(address) => TcpListener::bind(address.as_str()).map(Self::Tcp),
        };
        let result = result.and_then(|listener| {
            match &listener {
                Self::Unix(socket, _) => socket.set_nonblocking(true)?,
                Self::Tcp(socket) => socket.set_nonblocking(true)?,
            }
            Ok(listener)
        });
        result.map_err(|source| ServeError::Listen {
            address: address.to_string(),
            source,
        })
    }

    /// Duplicates the socket for another thread.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(socket, path) => Self::Unix(socket.try_clone()?, path.clone()),
            Self::Tcp(socket) => Self::Tcp(socket.try_clone()?),
        })
    }

    /// Registers the socket with the asynchronous runtime of this thread.
    pub(crate) fn register(self) -> io::Result<RegisteredListener> {
        Ok(match self {
            Self::Unix(socket, _) => {
                RegisteredListener::Unix(tokio::net::UnixListener::from_std(socket)?)
            }
            Self::Tcp(socket) => {
                RegisteredListener::Tcp(tokio::net::TcpListener::from_std(socket)?)
            }
        })
    }

    /// Returns the path of the socket file, to be removed at the end.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Unix(_, path) => Some(path.clone()),
            Self::Tcp(_) => None,
        }
    }

    #[cfg(test)]
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Tcp(socket) => socket.local_addr().expect("it is bound").port(),
            Self::Unix(..) => panic!("a file has no port"),
        }
    }
}

/// Binds a unix socket that only its owner can connect to. Replaces a socket file without a
/// listener.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let refused = UnixStream::connect(path).map_err(|error| error.kind());
            if !matches!(refused, Err(io::ErrorKind::ConnectionRefused)) {
                return Err(error);
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        result => result,
    }?;
    // Until this is done another user may connect, and is refused by its credentials.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// A listening socket that is registered with an asynchronous runtime.
pub(crate) enum RegisteredListener {
    Unix(tokio::net::UnixListener),
    Tcp(tokio::net::TcpListener),
}

impl RegisteredListener {
    pub(crate) async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer::User(stream.peer_cred()?.uid());
                Ok((Stream::Unix(stream), peer))
            }
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((Stream::Tcp(stream), Peer::at(address.ip())))
            }
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream),
}

impl Stream {
    /// Returns the socket, if the peer is a process on this host.
    pub(crate) fn local(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Unix(stream) => Some(stream.as_fd()),
            Self::Tcp(_) => None,
        }
    }

    pub(crate) async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => Ok(Self::Unix(tokio::net::UnixStream::connect(path).await?)),
            Address::Tcp(address) => Ok(Self::Tcp(tokio::net::TcpStream::connect(address).await?)),
        }
    }
}

macro_rules! each {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Self::Unix($stream) => $call,
            Self::Tcp($stream) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(context, buffer))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(context, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tcp(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_falcos_configuration() {
        let unix = Address::parse("unix:///run/falco.sock").expect("good");
        assert_eq!(unix, Address::Unix("/run/falco.sock".into()));
        assert_eq!(unix.to_string(), "unix:///run/falco.sock");
        for good in ["0.0.0.0:5060", "localhost:1", "[::1]:5060"] {
            assert_eq!(Address::parse(good).expect("good").to_string(), good);
        }
        for bad in ["", "localhost", "localhost:", "localhost:99999", "a:b"] {
            let error = Address::parse(bad).expect_err(bad).to_string();
            let is_large = bad.contains("99999");
            assert_eq!(error.contains("larger than 65535"), is_large, "{error}");
            assert_eq!(error.contains("HOST:PORT"), !is_large, "{error}");
        }
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().expect("a folder for temporary files");
        let address = Address::Unix(dir.path().join("deep/s"));
        drop(Listener::bind(&address).expect("a new one"));
        let mode = fs::metadata(dir.path().join("deep/s")).expect("it is there");
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        let _live = Listener::bind(&address).expect("nobody listens at the old one");
        assert!(Listener::bind(&address).is_err());
    }
}
