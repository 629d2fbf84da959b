//! The gRPC server.

use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::channel::{Channel as Body, Sender};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::frame;
use super::message::Version;
use super::queue::{GrpcChannel, Queue};
use crate::connections::{ConnectionSlotHandle, Connections, Limits};
use crate::error::ServeError;
use crate::listen::{Address, Listener, RegisteredListener};
use crate::progress::Progress;
use crate::tls::{self, Protocols, ServerFiles};

/// Callback that decides by its socket whether a process on this host may receive alerts.
pub type PeerCheck = Arc<dyn Fn(BorrowedFd<'_>) -> bool + Send + Sync>;

/// Limits on concurrent connections. A connection that receives alerts is not closed for a new one.
const LIMITS: Limits = Limits {
    all: 64,
    of_one_peer: 32,
};
/// Maximum number of concurrent calls of one connection.
const MAX_CALLS: u32 = 8;
/// Time limit for the TLS handshake, and for the first call after it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for a connection without a call.
const IDLE: Duration = Duration::from_secs(300);
/// Time limit for a client that does not read or take the next alert.
const STALL: Duration = Duration::from_secs(30);
/// Interval of pings to a silent client.
const PING: Duration = Duration::from_secs(20);
/// Frames in flight to one client.
const ON_THE_WAY: usize = 16;

/// Status codes of gRPC.
const OK: &str = "0";
const UNIMPLEMENTED: &str = "12";

/// A listening server that does not serve yet.
pub struct GrpcListener {
    listener: Listener,
    tls: Option<Arc<ServerConfig>>,
}

impl GrpcListener {
    /// Binds the address. A unix socket belongs to its owner, and its clients are checked; over TCP
    /// both sides present certificates.
    ///
    /// # Errors
    ///
    /// The address is in use, or the certificates are invalid.
    pub fn bind(address: &Address, files: &ServerFiles) -> Result<Self, ServeError> {
        let tls = match address {
            Address::Unix(_) => None,
            Address::Tcp(_) => Some(tls::server(files, Protocols::Http2)?.0),
        };
        let listener = Listener::bind(address)?;
        Ok(Self { listener, tls })
    }

    /// Starts serving with `threads` threads. `check` decides about clients of a unix socket.
    ///
    /// # Errors
    ///
    /// No thread can be created.
    pub fn start(
        self,
        channel: &GrpcChannel,
        version: Version,
        threads: usize,
        check: PeerCheck,
    ) -> Result<GrpcServer, ServeError> {
        let start = |source| ServeError::Start { source };
        let (stop, stopped) = watch::channel(());
        let path = self.listener.path();
        let shared = Arc::new(Shared {
            queue: Arc::clone(&channel.queue),
            version,
            check,
            connections: Connections::new(LIMITS),
        });
        for _ in 0..threads.max(1) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(start)?;
            let listener = self.listener.try_clone().map_err(start)?;
            let acceptor = self.tls.clone().map(TlsAcceptor::from);
            let (shared, mut stopped) = (Arc::clone(&shared), stopped.clone());
            let work = move || {
                runtime.block_on(async move {
                    let Ok(listener) = listener.register() else {
                        return;
                    };
                    tokio::select! {
                        () = serve(&listener, acceptor, shared) => {}
                        // Also completes when the other end is dropped.
                        _ = stopped.changed() => {}
                    }
                });
            };
            thread::Builder::new()
                .name("grpc".to_owned())
                .spawn(work)
                .map_err(start)?;
        }
        Ok(GrpcServer { _stop: stop, path })
    }

    #[cfg(test)]
    pub(super) fn port(&self) -> u16 {
        self.listener.port()
    }
}

/// A running server. Dropping it stops the server.
#[derive(Debug)]
pub struct GrpcServer {
    _stop: watch::Sender<()>,
    path: Option<PathBuf>,
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // A missing file is fine.
            let _ = std::fs::remove_file(path);
        }
    }
}

struct Shared {
    queue: Arc<Queue>,
    version: Version,
    check: PeerCheck,
    connections: Connections,
}

async fn serve(listener: &RegisteredListener, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Most likely out of descriptors; others may close some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if let Some(socket) = stream.local()
            && !(shared.check)(socket)
        {
            continue;
        }
        let Some(mut place) = shared.connections.admit(peer).await else {
            continue;
        };
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let closed = place.closed();
            let work = async {
                let Some(acceptor) = acceptor else {
                    return connection(stream, shared, place.handle()).await;
                };
                let accepted = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await;
                if let Ok(Ok(stream)) = accepted {
                    connection(stream, shared, place.handle()).await;
                }
            };
            tokio::select! {
                () = work => {}
                () = closed => {}
            }
        });
    }
}

/// Serves one connection. Its errors affect no other client.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    shared: Arc<Shared>,
    place: ConnectionSlotHandle,
) {
    let calls = Calls::new(place);
    let made = calls.clone();
    let service = service_fn(move |request| {
        let (shared, call) = (Arc::clone(&shared), made.begin());
        async move { Ok::<_, Infallible>(answer(request, shared, call)) }
    });
    let stream = Progress::new(stream, STALL);
    let mut connection = pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_CALLS)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PATIENCE)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        _ = connection.as_mut() => return,
        () = calls.none_for_long() => connection.as_mut().graceful_shutdown(),
    }
    // Calls made at the last moment are answered.
    let _ = tokio::time::timeout(PATIENCE, connection).await;
}

fn answer(request: Request<Incoming>, shared: Arc<Shared>, call: Call) -> Response<Body<Bytes>> {
    let path = request.uri().path().to_owned();
    let (sender, body) = Body::new(ON_THE_WAY);
    let mut response = Response::new(body);
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    let requests = request.into_body();
    tokio::spawn(async move {
        let _call = call;
        match path.as_str() {
            "/falco.outputs.service/sub" => subscription(shared, requests, sender).await,
            "/falco.outputs.service/get" => all_that_wait(shared, sender).await,
            "/falco.version.service/version" => version(shared, sender).await,
            _ => end(sender, UNIMPLEMENTED).await,
        }
    });
    response
}

/// Sends alerts until the client ends the call or disconnects.
async fn subscription(shared: Arc<Shared>, mut requests: Incoming, mut sender: Sender<Bytes>) {
    let subscriber = shared.queue.subscribe();
    let mut received = BytesMut::new();
    loop {
        let (number, frame) = tokio::select! {
            next = subscriber.next() => next,
            word = next_data(&mut requests) => match word {
                // Requests are empty, so further data has no meaning.
                Some(data) if received.len() + data.len() < MAX_REQUESTS => {
                    received.extend_from_slice(&data);
                    while let Ok(Some(Empty {})) = frame::decode(&mut received) {}
                    continue;
                }
                _ => return end(sender, OK).await,
            },
        };
        match send(&mut sender, frame).await {
            SendResult::Yes => subscriber.took(number),
            SendResult::No => return,
            SendResult::Stalled => return subscriber.give_up(),
        }
    }
}

/// Result of sending a frame to a client.
enum SendResult {
    Yes,
    /// The client has disconnected.
    No,
    /// The client has not read anything for too long.
    Stalled,
}

async fn send(sender: &mut Sender<Bytes>, frame: Bytes) -> SendResult {
    match tokio::time::timeout(STALL, sender.send_data(frame)).await {
        Ok(Ok(())) => SendResult::Yes,
        Ok(Err(_gone)) => SendResult::No,
        Err(_elapsed) => SendResult::Stalled,
    }
}

/// Maximum size of requests that are not parsed yet, in bytes.
const MAX_REQUESTS: usize = 1 << 16;

/// An empty request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Empty {}

async fn next_data(requests: &mut Incoming) -> Option<Bytes> {
    loop {
        let frame =
            std::future::poll_fn(|context| std::pin::Pin::new(&mut *requests).poll_frame(context))
                .await;
        // An error means that the client has disconnected.
        if let Ok(data) = frame?.ok()?.into_data() {
            return Some(data);
        }
    }
}

async fn all_that_wait(shared: Arc<Shared>, mut sender: Sender<Bytes>) {
    let subscriber = shared.queue.subscribe();
    while let Some((number, frame)) = subscriber.peek() {
        match send(&mut sender, frame).await {
            SendResult::Yes => subscriber.took(number),
            // Untaken frames wait for the next client.
            SendResult::No | SendResult::Stalled => return,
        }
    }
    end(sender, OK).await;
}

async fn version(shared: Arc<Shared>, mut sender: Sender<Bytes>) {
    // A disconnected client needs no answer.
    let _ = send(&mut sender, frame::encode(&shared.version)).await;
    end(sender, OK).await;
}

async fn end(mut sender: Sender<Bytes>, status: &'static str) {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    // A disconnected client needs no answer.
    let _ = tokio::time::timeout(STALL, sender.send_trailers(trailers)).await;
}

/// The calls in progress on a connection.
#[derive(Clone)]
struct Calls {
    count: watch::Sender<usize>,
    place: ConnectionSlotHandle,
}

/// One call in progress, until it is dropped.
struct Call(Calls);

impl Calls {
    fn new(place: ConnectionSlotHandle) -> Self {
        Self {
            count: watch::Sender::new(0),
            place,
        }
    }

    fn begin(&self) -> Call {
        self.count.send_modify(|count| *count += 1);
        self.place.keep(true);
        Call(self.clone())
    }

    /// Completes when there has been no call for too long.
    async fn none_for_long(&self) {
        let mut count = self.count.subscribe();
        let mut limit = PATIENCE;
        loop {
            let first = count.wait_for(|count| *count > 0);
            if tokio::time::timeout(limit, first).await.is_err() {
                return;
            }
            limit = IDLE;
            // Fails only without a sender, which `self` holds.
            let _ = count.wait_for(|count| *count == 0).await;
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count -= 1);
        self.0.place.keep(*self.0.count.borrow() > 0);
        self.0.place.is_used();
    }
}

#[cfg(test)]
mod tests;
