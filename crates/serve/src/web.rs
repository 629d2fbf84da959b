//! Pages over HTTP/1.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, oneshot};
use tokio_rustls::TlsAcceptor;

use crate::error::ServeError;
use crate::listen::{Address, Listener, Registered};
use crate::tls::{self, ServerFiles};

/// A page.
pub struct Page {
    /// Its path, as `/metrics`.
    pub path: String,
    /// What it is.
    pub content_type: &'static str,
    /// Makes it, each time it is asked for. Called on the server's thread.
    pub content: Box<dyn Fn() -> String + Send + Sync>,
}

/// Connections at a time; more wait.
const MAX_CONNECTIONS: usize = 64;
/// How long a client may take over its request, and over the handshake of TLS.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server that listens and does not answer yet.
pub struct WebListener {
    listener: Listener,
    tls: Option<Arc<ServerConfig>>,
}

impl WebListener {
    /// Listens; with `files` over TLS.
    ///
    /// # Errors
    ///
    /// If somebody listens there already, or the certificates are of no use.
    pub fn bind(address: SocketAddr, files: Option<&ServerFiles>) -> Result<Self, ServeError> {
        let tls = files.map(|files| tls::server(files, false)).transpose()?;
        let listener = Listener::bind(&Address::Tcp(address.to_string()))?;
        Ok(Self { listener, tls })
    }

    /// Answers, on a thread of its own.
    ///
    /// # Errors
    ///
    /// If no thread can be made.
    pub fn start(self, pages: Vec<Page>) -> Result<WebServer, ServeError> {
        let start = |source| ServeError::Start { source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(start)?;
        let (stop, stopped) = oneshot::channel();
        let pages: Arc<[Page]> = pages.into();
        let work = move || {
            runtime.block_on(async move {
                let Ok(listener) = self.listener.register() else {
                    return;
                };
                let acceptor = self.tls.map(TlsAcceptor::from);
                tokio::select! {
                    () = serve(&listener, acceptor, pages) => {}
                    // Also when the other end is dropped.
                    _ = stopped => {}
                }
            });
        };
        thread::Builder::new()
            .name("web".to_owned())
            .spawn(work)
            .map_err(start)?;
        Ok(WebServer { _stop: stop })
    }

    #[cfg(test)]
    fn port(&self) -> u16 {
        self.listener.port()
    }
}

/// A server that answers until this is dropped.
#[derive(Debug)]
pub struct WebServer {
    _stop: oneshot::Sender<()>,
}

async fn serve(listener: &Registered, acceptor: Option<TlsAcceptor>, pages: Arc<[Page]>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        let Ok(stream) = listener.accept().await else {
            // Out of descriptors, most likely: others may close some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (acceptor, pages) = (acceptor.clone(), Arc::clone(&pages));
        tokio::spawn(async move {
            let _place = place;
            match acceptor {
                None => connection(stream, pages).await,
                Some(acceptor) => {
                    let accepted = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await;
                    if let Ok(Ok(stream)) = accepted {
                        connection(stream, pages).await;
                    }
                }
            }
        });
    }
}

/// What goes wrong with one client is nobody else's affair.
async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, pages: Arc<[Page]>) {
    let service = service_fn(move |request| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(answer(&request, &pages)) }
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(request: &Request<Incoming>, pages: &[Page]) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let plain = |status: StatusCode| {
        let text = format!("{status}\n");
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response
    };
    let Some(page) = pages.iter().find(|page| page.path == path) else {
        return plain(StatusCode::NOT_FOUND);
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED);
        let methods = "GET, HEAD".parse().expect("it has no odd characters");
        response.headers_mut().insert(ALLOW, methods);
        return response;
    }
    let mut response = Response::new(Full::new(Bytes::from((page.content)())));
    let content_type = page.content_type.parse();
    let content_type = content_type.expect("types of content have no odd characters");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    fn ask(port: u16, request: &str) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    #[test]
    fn pages_are_made_when_asked_for_and_others_are_not_found() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = WebListener::bind(address, None).expect("a free port");
        let port = listener.port();
        let count = std::sync::atomic::AtomicU64::new(0);
        let page = Page {
            path: "/count".to_owned(),
            content_type: "text/plain",
            content: Box::new(move || {
                let count = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                format!("n={count}")
            }),
        };
        let server = listener.start(vec![page]).expect("threads can be made");
        let get = |path: &str| {
            ask(
                port,
                &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
            )
        };
        let first = get("/count?x");
        assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
        assert!(first.ends_with("\r\n\r\nn=0"), "{first}");
        assert!(get("/count").ends_with("n=1"));
        assert!(get("/other").starts_with("HTTP/1.1 404 "));
        let post = ask(
            port,
            "POST /count HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        );
        assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
        assert!(ask(port, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let again = WebListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), None);
        assert!(again.is_err(), "a port has one listener");
        drop(server);
    }
}
