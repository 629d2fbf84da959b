//! HTTPS server that answers what is posted to it, such as the objects that Kubernetes asks a webhook about.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::connections::ClientAddress;
use crate::error::ServeError;
use crate::http::{ConnectionDeadlines, ConnectionLimits, HttpListener};
use crate::listen::{Address, Listener};
use crate::spawn::{WebServer, spawn};
use crate::tls::unusable;
use crate::web::plain;

/// Limits on concurrent connections. API servers are few, and keep theirs; others may connect, too.
const LIMITS: ConnectionLimits = ConnectionLimits {
    all: 64,
    of_one_peer: 16,
};

const DEADLINES: ConnectionDeadlines = ConnectionDeadlines {
    handshake: Duration::from_secs(5),
    request: Duration::from_secs(60),
    write: Duration::from_secs(5),
    age: Duration::from_secs(3600),
    last: Duration::from_secs(10),
};

/// How long a body may take to arrive, and then wait for its turn. The manifests have API servers wait 5 seconds (`timeoutSeconds`).
const ARRIVAL: Duration = Duration::from_secs(2);

/// Path that says whether the server is ready.
const READY: &str = "/readyz";

/// A server's certificate that can be replaced while it serves. Connections keep what they began with.
#[derive(Default)]
pub struct ReplaceableCertificate(RwLock<Option<Arc<CertifiedKey>>>);

impl fmt::Debug for ReplaceableCertificate {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("ReplaceableCertificate")
    }
}

impl ReplaceableCertificate {
    /// Presents another certificate from now on: its chain and its key as PEM. `source` is where they are from, for errors.
    ///
    /// # Errors
    ///
    /// If they cannot be used, or do not belong together. The certificate before stays.
    pub fn replace(&self, source: &Path, chain: &[u8], key: &[u8]) -> Result<(), ServeError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.map_err(|error| unusable(source, &error))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| unusable(source, &error))?;
        let provider = rustls::crypto::ring::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider);
        let key = key.map_err(|error| unusable(source, &error))?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(key));
        Ok(())
    }
}

impl ResolvesServerCert for ReplaceableCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let key = self.0.read().unwrap_or_else(PoisonError::into_inner);
        key.clone()
    }
}

/// An answer to what was posted.
#[derive(Debug)]
pub struct PostAnswer {
    /// Status of HTTP.
    pub status: u16,
    /// Content type.
    pub content_type: &'static str,
    /// Content.
    pub content: Vec<u8>,
}

/// How much is posted at most.
#[derive(Clone, Copy, Debug)]
pub struct PostLimits {
    /// Length of a body in bytes.
    pub body: usize,
    /// Length of all bodies in memory in bytes, whole or not. One peer can have half of it.
    pub all: usize,
    /// Bodies that are answered at the same time.
    pub at_once: usize,
}

/// A listening server that does not serve yet.
pub struct PostListener {
    listener: Listener,
    tls: Arc<ServerConfig>,
}

impl PostListener {
    /// Binds the address. Before there is a certificate, each connection fails.
    ///
    /// # Errors
    ///
    /// The address is in use.
    pub fn bind(
        address: SocketAddr,
        certificate: Arc<ReplaceableCertificate>,
    ) -> Result<Self, ServeError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(rustls::DEFAULT_VERSIONS)
            .map_err(|error| unusable(Path::new("TLS"), &error))?;
        let mut config = config.with_no_client_auth().with_cert_resolver(certificate);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            listener: Listener::bind(&Address::Tcp(address.to_string()))?,
            tls: Arc::new(config),
        })
    }

    /// The bound address.
    ///
    /// # Errors
    ///
    /// If the system does not tell it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match &self.listener {
            Listener::Tcp(socket) => socket.local_addr(),
            Listener::Unix(..) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Starts serving on threads of its own. `answer` gets the path and the body of each POST; `/readyz` says by its status whether
    /// `is_ready`.
    ///
    /// # Errors
    ///
    /// No thread can be created.
    pub fn start(
        self,
        limits: PostLimits,
        is_ready: impl Fn() -> bool + Send + Sync + 'static,
        answer: impl Fn(&str, &[u8]) -> PostAnswer + Send + Sync + 'static,
    ) -> Result<WebServer, ServeError> {
        let server = HttpListener {
            listener: self.listener,
            tls: Some(self.tls),
            clients: None,
            limits: LIMITS,
            deadlines: DEADLINES,
            http2: true,
        };
        let shared = Arc::new(Shared {
            limits,
            budget: Budget::new(limits.all),
            turns: Arc::new(Semaphore::new(limits.at_once)),
            is_ready: Box::new(is_ready),
            answer: Box::new(answer),
        });
        spawn("posts", limits.at_once, server, move |request| {
            let shared = Arc::clone(&shared);
            async move { answer_to(shared, request).await }
        })
    }
}

type AnswerFn = Box<dyn Fn(&str, &[u8]) -> PostAnswer + Send + Sync>;

struct Shared {
    limits: PostLimits,
    budget: Budget,
    /// One for each body that is answered.
    turns: Arc<Semaphore>,
    is_ready: Box<dyn Fn() -> bool + Send + Sync>,
    answer: AnswerFn,
}

/// Bytes that bodies may have: a permit each.
struct Budget {
    all: Arc<Semaphore>,
    of_one_peer: usize,
    peers: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Budget {
    fn new(all: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            of_one_peer: all / 2,
            peers: Mutex::default(),
        }
    }

    /// The budget of a peer, which all its connections share.
    fn of(&self, peer: &str) -> Arc<Semaphore> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = peers.get(peer).and_then(Weak::upgrade) {
            return known;
        }
        peers.retain(|_, semaphore| semaphore.strong_count() > 0);
        let new = Arc::new(Semaphore::new(self.of_one_peer));
        peers.insert(peer.to_owned(), Arc::downgrade(&new));
        new
    }
}

/// A body, and what it takes of the budget until it is dropped.
struct Body {
    bytes: Vec<u8>,
    /// Of the peer, and of all.
    permits: Vec<OwnedSemaphorePermit>,
}

/// Reads a body, as far as the budget goes; waits for more.
async fn read(shared: &Shared, request: Request<Incoming>) -> Result<Body, StatusCode> {
    let address = request.extensions().get::<ClientAddress>();
    // A connection without an address shares the budget of all such.
    let of_peer = shared.budget.of(address.map_or("", |address| &address.0));
    let mut body = Body {
        bytes: Vec::new(),
        permits: Vec::new(),
    };
    let mut incoming = Limited::new(request.into_body(), shared.limits.body);
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => StatusCode::PAYLOAD_TOO_LARGE,
            false => StatusCode::BAD_REQUEST,
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let bytes = u32::try_from(data.len()).map_err(|_too_long| StatusCode::PAYLOAD_TOO_LARGE)?;
        for (at, budget) in [&of_peer, &shared.budget.all].into_iter().enumerate() {
            let permit = Arc::clone(budget).acquire_many_owned(bytes).await;
            let permit = permit.map_err(|_closed| StatusCode::SERVICE_UNAVAILABLE)?;
            match body.permits.get_mut(at) {
                Some(held) => held.merge(permit),
                None => body.permits.push(permit),
            }
        }
        body.bytes.extend_from_slice(&data);
    }
    Ok(body)
}

async fn answer_to(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() == Method::GET && request.uri().path() == READY {
        return plain(match (shared.is_ready)() {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        });
    }
    if request.method() != Method::POST {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED);
        let methods = HeaderValue::from_static("POST");
        response.headers_mut().insert(ALLOW, methods);
        return response;
    }
    let path = request.uri().path().to_owned();
    // No turn is taken before the body is here: whoever sends slowly keeps nobody from an answer.
    let body = match timeout(ARRIVAL, read(&shared, request)).await {
        Err(_elapsed) => return plain(StatusCode::REQUEST_TIMEOUT),
        Ok(Err(status)) => return plain(status),
        Ok(Ok(body)) => body,
    };
    let turn = timeout(ARRIVAL, Arc::clone(&shared.turns).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        return plain(StatusCode::SERVICE_UNAVAILABLE);
    };
    let answered = tokio::task::spawn_blocking(move || {
        // Held until the body is gone, even if no client waits for the answer any more.
        let _turn = turn;
        (shared.answer)(&path, &body.bytes)
    });
    let Ok(answer) = answered.await else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let mut response = Response::new(Full::new(Bytes::from(answer.content)));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content_type = HeaderValue::from_static(answer.content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests;
