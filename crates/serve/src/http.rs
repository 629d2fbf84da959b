//! The loop of an HTTP server: accepts connections within limits, and ends those that do not go on.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::client_certificate::{Authorities, ClientCertificate};
use crate::connections::{ClientAddress, ConnectionSlotHandle, Connections, Limits};
use crate::error::ServeError;
use crate::listen::{Address, Listener, RegisteredListener};
use crate::progress::Progress;
use crate::tls::{self, Protocols, ServerFiles};

/// Limits on concurrent connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections in all. For a new one, the one that has been silent for longest is closed.
    pub all: usize,
    /// Connections of one address, or of one IPv6 network.
    pub of_one_peer: usize,
}

/// Time limits of a connection by state.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionDeadlines {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For a request header, from the connection's start or the previous answer.
    pub request: Duration,
    /// For a client that does not read.
    pub write: Duration,
    /// Age at which a connection begins no more requests.
    pub age: Duration,
    /// For the request that is being answered at that age.
    pub last: Duration,
}

/// A listening server that does not serve yet.
pub struct HttpListener {
    pub(crate) listener: Listener,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Verifies certificates that clients may present.
    pub(crate) clients: Option<Arc<Authorities>>,
    pub(crate) limits: ConnectionLimits,
    pub(crate) deadlines: ConnectionDeadlines,
    pub(crate) http2: bool,
}

impl HttpListener {
    /// Binds an address for HTTP/1 and HTTP/2. With `files` the server speaks TLS 1.3. If clients may present a certificate,
    /// their requests have it as a [`ClientCertificate`] in their extensions.
    ///
    /// # Errors
    ///
    /// The address is in use, or the certificates are invalid.
    pub fn bind(
        address: &Address,
        files: Option<&ServerFiles>,
        limits: ConnectionLimits,
        deadlines: ConnectionDeadlines,
    ) -> Result<Self, ServeError> {
        let tls = files.map(|files| tls::server(files, Protocols::Modern));
        let (tls, clients) = tls.transpose()?.unzip();
        Ok(Self {
            tls,
            clients: clients.flatten(),
            listener: Listener::bind(address)?,
            limits,
            deadlines,
            http2: true,
        })
    }

    /// Returns the bound address, if it has a port.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.listener {
            Listener::Tcp(socket) => socket.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }

    /// Serves on the asynchronous runtime of this thread, until the future is dropped.
    ///
    /// # Errors
    ///
    /// The socket cannot be registered with the runtime.
    pub async fn serve<A, F, B>(self, answer: A) -> Result<Infallible, ServeError>
    where
        A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let registered = self.listener.register();
        let listener = registered.map_err(|source| ServeError::Start { source })?;
        let tls = self.tls.map(|config| Tls {
            acceptor: TlsAcceptor::from(config),
            clients: self.clients,
        });
        let settings = Settings {
            deadlines: self.deadlines,
            http2: self.http2,
        };
        let connections = Connections::new(Limits {
            all: self.limits.all,
            of_one_peer: self.limits.of_one_peer,
        });
        loop {
            accept(&listener, tls.clone(), &connections, settings, &answer).await;
        }
    }
}

/// TLS of a server.
#[derive(Clone)]
struct Tls {
    acceptor: TlsAcceptor,
    clients: Option<Arc<Authorities>>,
}

/// What a connection tells about its client, in the extensions of its requests.
#[derive(Clone)]
struct Client {
    address: ClientAddress,
    certificate: Option<ClientCertificate>,
}

impl Client {
    fn add_to<T>(&self, request: &mut Request<T>) {
        let extensions = request.extensions_mut();
        extensions.insert(self.address.clone());
        if let Some(certificate) = &self.certificate {
            extensions.insert(certificate.clone());
        }
    }
}

#[derive(Clone, Copy)]
struct Settings {
    deadlines: ConnectionDeadlines,
    http2: bool,
}

/// Accepts one connection, and serves it on a task of its own.
async fn accept<A, F, B>(
    listener: &RegisteredListener,
    tls: Option<Tls>,
    connections: &Connections,
    settings: Settings,
    answer: &A,
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let Ok((stream, peer)) = listener.accept().await else {
        // Most likely out of descriptors; others may close some.
        tokio::time::sleep(Duration::from_millis(100)).await;
        return;
    };
    let Some(mut slot) = connections.admit(peer).await else {
        return;
    };
    let answer = answer.clone();
    let mut client = Client {
        address: ClientAddress::from(peer),
        certificate: None,
    };
    tokio::spawn(async move {
        let closed = slot.closed();
        let work = async {
            let Some(tls) = tls else {
                return connection(stream, settings, slot.handle(), (client, answer)).await;
            };
            let handshake = settings.deadlines.handshake;
            if let Ok(Ok(stream)) = timeout(handshake, tls.acceptor.accept(stream)).await {
                let chain = stream.get_ref().1.peer_certificates();
                client.certificate = tls.clients.as_ref().and_then(|authorities| {
                    ClientCertificate::new(chain.unwrap_or_default(), authorities)
                });
                connection(stream, settings, slot.handle(), (client, answer)).await;
            }
        };
        tokio::select! {
            () = work => {}
            () = closed => {}
        }
    });
}

/// Serves one connection. Its errors affect no other client.
async fn connection<A, F, B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    settings: Settings,
    slot: ConnectionSlotHandle,
    (client, answer): (Client, A),
) where
    A: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Calls of one connection at the same time.
    const MAX_CALLS: u32 = 16;
    let service = service_fn(move |mut request: Request<Incoming>| {
        slot.is_used();
        client.add_to(&mut request);
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let deadlines = settings.deadlines;
    let stream = TokioIo::new(Progress::new(stream, deadlines.write));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(deadlines.request);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CALLS)
        .keep_alive_interval(deadlines.request)
        .keep_alive_timeout(deadlines.request);
    if !settings.http2 {
        builder = builder.http1_only();
    }
    let mut connection = pin!(builder.serve_connection(stream, service));
    if timeout(deadlines.age, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        // Completes the current answer, within its time limits.
        let _ = timeout(deadlines.last, connection).await;
    }
}
