//! The server.

use std::convert::Infallible;
use std::path::PathBuf;
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
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::authority::Renamed;
use super::frame;
use super::message::Version;
use super::queue::{GrpcChannel, Queue};
use crate::error::ServeError;
use crate::listen::{Address, Listener, Registered};
use crate::tls::{self, ServerFiles};

/// How long the handshake of TLS may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Frames on their way to one client.
const ON_THE_WAY: usize = 16;

/// Status codes of gRPC.
const OK: &str = "0";
const UNIMPLEMENTED: &str = "12";

/// A server that listens and does not answer yet.
pub struct GrpcListener {
    listener: Listener,
    tls: Option<Arc<ServerConfig>>,
}

impl GrpcListener {
    /// Listens. A socket in the file system asks nobody who they are; over TCP both sides show
    /// certificates.
    ///
    /// # Errors
    ///
    /// If somebody listens there already, or the certificates are of no use.
    pub fn bind(address: &Address, files: &ServerFiles) -> Result<Self, ServeError> {
        let tls = match address {
            Address::Unix(_) => None,
            Address::Tcp(_) => Some(tls::server(files, true)?),
        };
        let listener = Listener::bind(address)?;
        Ok(Self { listener, tls })
    }

    /// Answers, on so many threads.
    ///
    /// # Errors
    ///
    /// If no thread can be made.
    pub fn start(
        self,
        channel: &GrpcChannel,
        version: Version,
        threads: usize,
    ) -> Result<GrpcServer, ServeError> {
        let start = |source| ServeError::Start { source };
        let (stop, stopped) = watch::channel(());
        let path = self.listener.path();
        let shared = Arc::new(Shared {
            queue: Arc::clone(&channel.queue),
            version,
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
                        // Also when the other end is dropped.
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

/// A server that answers until this is dropped.
#[derive(Debug)]
pub struct GrpcServer {
    _stop: watch::Sender<()>,
    path: Option<PathBuf>,
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // If it is gone already, so much the better.
            let _ = std::fs::remove_file(path);
        }
    }
}

struct Shared {
    queue: Arc<Queue>,
    version: Version,
}

async fn serve(listener: &Registered, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: others may close some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            match acceptor {
                None => connection(stream, shared).await,
                Some(acceptor) => {
                    let accepted = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await;
                    if let Ok(Ok(stream)) = accepted {
                        connection(stream, shared).await;
                    }
                }
            }
        });
    }
}

/// What goes wrong with one client is nobody else's affair.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    shared: Arc<Shared>,
) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(request, shared)) }
    });
    let _ = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(Renamed::new(stream)), service)
        .await;
}

fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Response<Body<Bytes>> {
    let path = request.uri().path().to_owned();
    let (sender, body) = Body::new(ON_THE_WAY);
    let mut response = Response::new(body);
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    let requests = request.into_body();
    match path.as_str() {
        "/falco.outputs.service/sub" => {
            tokio::spawn(subscription(shared, requests, sender));
        }
        "/falco.outputs.service/get" => {
            tokio::spawn(all_that_wait(shared, sender));
        }
        "/falco.version.service/version" => {
            tokio::spawn(version(shared, sender));
        }
        _ => {
            tokio::spawn(end(sender, UNIMPLEMENTED));
        }
    }
    response
}

/// Alerts as they come, until the client has said its last word or is gone.
async fn subscription(shared: Arc<Shared>, mut requests: Incoming, mut sender: Sender<Bytes>) {
    let mut received = BytesMut::new();
    loop {
        let frame = tokio::select! {
            frame = shared.queue.next() => frame,
            word = next_data(&mut requests) => match word {
                // Requests are empty; that there is one more means nothing.
                Some(data) if received.len() + data.len() < MAX_REQUESTS => {
                    received.extend_from_slice(&data);
                    while let Ok(Some(Empty {})) = frame::decode(&mut received) {}
                    continue;
                }
                _ => return end(sender, OK).await,
            },
        };
        if sender.send_data(frame.clone()).await.is_err() {
            return shared.queue.put_back(frame);
        }
    }
}

/// Bytes of requests that are not taken apart yet.
const MAX_REQUESTS: usize = 1 << 16;

/// A request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Empty {}

async fn next_data(requests: &mut Incoming) -> Option<Bytes> {
    loop {
        let frame =
            std::future::poll_fn(|context| std::pin::Pin::new(&mut *requests).poll_frame(context))
                .await;
        // An error is the client's end.
        if let Ok(data) = frame?.ok()?.into_data() {
            return Some(data);
        }
    }
}

async fn all_that_wait(shared: Arc<Shared>, mut sender: Sender<Bytes>) {
    while let Some(frame) = shared.queue.pop() {
        if sender.send_data(frame.clone()).await.is_err() {
            return shared.queue.put_back(frame);
        }
    }
    end(sender, OK).await;
}

async fn version(shared: Arc<Shared>, mut sender: Sender<Bytes>) {
    // A client that is gone needs no answer.
    let _ = sender.send_data(frame::encode(&shared.version)).await;
    end(sender, OK).await;
}

async fn end(mut sender: Sender<Bytes>, status: &'static str) {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    // A client that is gone needs no answer.
    let _ = sender.send_trailers(trailers).await;
}

#[cfg(test)]
mod tests;
