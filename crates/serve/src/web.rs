//! HTTP/1 server for pages such as `/metrics` and the health page.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rustls::ServerConfig;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::ServeError;
use crate::http::{ConnectionDeadlines, ConnectionLimits, HttpListener};
use crate::listen::{Address, Listener};
use crate::spawn::{WebServer, spawn};
use crate::tls::{self, Protocols, ServerFiles};

/// A page of the server.
pub struct Page {
    /// Path of the page, such as `/metrics`.
    pub path: String,
    /// Content type.
    pub content_type: &'static str,
    /// The page is created at once from data of this process. Other pages are created on another
    /// thread, one at a time.
    pub is_instant: bool,
    /// Creates the page at each request.
    pub content: Box<dyn Fn() -> String + Send + Sync>,
}

/// Limits on concurrent connections. The limit per address is lower, so that one host cannot take
/// all.
const LIMITS: ConnectionLimits = ConnectionLimits {
    all: 64,
    of_one_peer: 16,
};

/// Time limits of a connection by state.
#[derive(Clone, Copy, Debug)]
struct Deadlines {
    /// Time limit for the TLS handshake.
    handshake: Duration,
    /// Time limit for a request header, from the connection's start or the previous answer.
    request: Duration,
    /// Time limit for creating a page, including its time in the queue.
    page: Duration,
    /// Time limit for a client that does not read.
    write: Duration,
    /// Age at which a connection begins no more requests. Request bodies are not waited for.
    age: Duration,
}

impl Deadlines {
    fn of_connections(self) -> ConnectionDeadlines {
        ConnectionDeadlines {
            handshake: self.handshake,
            request: self.request,
            write: self.write,
            age: self.age,
            last: self.page + self.write,
        }
    }
}

const DEADLINES: Deadlines = Deadlines {
    handshake: Duration::from_secs(5),
    request: Duration::from_secs(5),
    page: Duration::from_secs(5),
    write: Duration::from_secs(5),
    age: Duration::from_secs(60),
};

/// A listening server that does not serve yet.
pub struct WebListener {
    listener: Listener,
    tls: Option<Arc<ServerConfig>>,
    deadlines: Deadlines,
    health: Option<HealthCheck>,
}

/// Returns why the program does not work, if it does not.
type HealthCheck = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Path of the health check.
const HEALTH: &str = "/healthz";

impl WebListener {
    /// Binds the address; with `files` the server uses TLS.
    ///
    /// # Errors
    ///
    /// The address is in use, or the certificates are invalid.
    pub fn bind(address: SocketAddr, files: Option<&ServerFiles>) -> Result<Self, ServeError> {
        let tls = files
            .map(|files| tls::server(files, Protocols::Http1).map(|(config, _)| config))
            .transpose()?;
        let listener = Listener::bind(&Address::Tcp(address.to_string()))?;
        Ok(Self {
            listener,
            tls,
            deadlines: DEADLINES,
            health: None,
        })
    }

    /// Serves `/healthz` by a check: status 200, or 503 with the cause.
    #[must_use]
    pub fn with_health(
        mut self,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.health = Some(Box::new(check));
        self
    }

    /// Starts serving on a thread of its own.
    ///
    /// # Errors
    ///
    /// No thread can be created.
    pub fn start(self, pages: Vec<Page>) -> Result<WebServer, ServeError> {
        let server = HttpListener {
            listener: self.listener,
            tls: self.tls,
            clients: None,
            limits: LIMITS,
            deadlines: self.deadlines.of_connections(),
            http2: false,
        };
        let site = Arc::new(SharedSite {
            pages: pages.into(),
            making: Arc::new(Semaphore::new(1)),
            deadlines: self.deadlines,
            health: self.health,
        });
        spawn("web", 1, server, move |request| {
            let site = Arc::clone(&site);
            async move { site.answer(request).await }
        })
    }

    #[cfg(test)]
    fn port(&self) -> u16 {
        self.listener.port()
    }
}

/// State that all connections share.
struct SharedSite {
    pages: Arc<[Page]>,
    /// Held while a page that is not instant is created.
    making: Arc<Semaphore>,
    deadlines: Deadlines,
    health: Option<HealthCheck>,
}

impl SharedSite {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        if path == HEALTH
            && let Some(check) = &self.health
        {
            return health(check());
        }
        let Some(at) = self.pages.iter().position(|page| page.path == path) else {
            return plain(StatusCode::NOT_FOUND);
        };
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED);
            let methods = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, methods);
            return response;
        }
        let page = &self.pages[at];
        let content = if page.is_instant {
            (page.content)()
        } else {
            match timeout(self.deadlines.page, self.made(at)).await {
                Ok(Some(content)) => content,
                Ok(None) => return plain(StatusCode::INTERNAL_SERVER_ERROR),
                Err(_elapsed) => return plain(StatusCode::SERVICE_UNAVAILABLE),
            }
        };
        let mut response = Response::new(Full::new(Bytes::from(content)));
        let content_type = HeaderValue::from_static(page.content_type);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }

    /// Creates a page on another thread. Returns `None` if that failed.
    async fn made(&self, at: usize) -> Option<String> {
        let turn = Arc::clone(&self.making).acquire_owned().await.ok()?;
        let pages = Arc::clone(&self.pages);
        let made = tokio::task::spawn_blocking(move || {
            // Held until the page is created, even if no client waits for it any more.
            let _turn = turn;
            (pages[at].content)()
        });
        made.await.ok()
    }
}

fn health(checked: Result<(), String>) -> Response<Full<Bytes>> {
    let (status, text) = match checked {
        Ok(()) => (StatusCode::OK, "ok".to_owned()),
        Err(cause) => (StatusCode::SERVICE_UNAVAILABLE, cause),
    };
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response
}

pub(crate) fn plain(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{status}\n"))));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::thread;

    use super::*;
    use crate::tls::ClientCertificates;

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
            is_instant: false,
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

    const SHORT: Deadlines = Deadlines {
        handshake: Duration::from_millis(300),
        request: Duration::from_millis(300),
        page: Duration::from_millis(300),
        write: Duration::from_millis(300),
        age: Duration::from_secs(60),
    };
    const SOON: Duration = Duration::from_secs(20);

    fn page(
        path: &str,
        is_instant: bool,
        content: impl Fn() -> String + Send + Sync + 'static,
    ) -> Page {
        Page {
            path: path.to_owned(),
            content_type: "text/plain",
            is_instant,
            content: Box::new(content),
        }
    }

    /// A server with an instant page, one of a megabyte and one that takes an hour.
    fn server(deadlines: Deadlines) -> (WebServer, u16) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut listener = WebListener::bind(address, None).expect("a free port");
        listener.deadlines = deadlines;
        let port = listener.port();
        let pages = vec![
            page("/healthz", true, || "ok".to_owned()),
            page("/large", false, || "x".repeat(1 << 20)),
            page("/stuck", false, || {
                thread::sleep(Duration::from_secs(3600));
                String::new()
            }),
        ];
        (listener.start(pages).expect("threads can be made"), port)
    }

    fn connect(port: u16, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
        stream.set_read_timeout(Some(SOON)).expect("a limit");
        stream
            .write_all(request.as_bytes())
            .expect("it is buffered");
        stream
    }

    fn is_healthy_within(port: u16, limit: Duration) {
        let start = std::time::Instant::now();
        let answer = ask(
            port,
            "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        );
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
        assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    }

    /// Far below the time limits, so that they are not what frees a slot.
    #[test]
    fn health_is_told_beside_clients_that_never_read_and_some_that_never_ask() {
        let (_server, port) = server(DEADLINES);
        let many = "GET /large HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50);
        let _deaf: Vec<_> = (0..64).map(|_| connect(port, &many)).collect();
        is_healthy_within(port, Duration::from_secs(4));
        let _mute: Vec<_> = (0..192).map(|_| connect(port, "GET /heal")).collect();
        is_healthy_within(port, Duration::from_secs(4));
    }

    #[test]
    fn health_is_told_while_a_page_is_stuck_and_the_page_is_given_up() {
        let (_server, port) = server(SHORT);
        let mut stuck = connect(
            port,
            "GET /stuck HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        );
        is_healthy_within(port, Duration::from_secs(2));
        let mut answer = String::new();
        stuck.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        // The next waits for the one before, no longer than it may.
        let second = ask(
            port,
            "GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        );
        assert!(second.starts_with("HTTP/1.1 503 "), "{second}");
        is_healthy_within(port, Duration::from_secs(2));
    }

    /// Returns true if the server closes the connection, however much it has sent.
    fn is_closed(mut stream: TcpStream) -> bool {
        let mut sink = Vec::new();
        match stream.read_to_end(&mut sink) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn no_state_lasts_longer_than_its_deadline() {
        let short_life = Deadlines {
            age: Duration::from_millis(300),
            ..DEADLINES
        };
        let get = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
        let body = "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx";
        for (deadlines, request) in [
            (SHORT, ""),
            (SHORT, "GET /"),
            // Idle after an answer, and a body that does not come.
            (SHORT, get),
            (SHORT, body),
            (short_life, get),
        ] {
            let (_server, port) = server(deadlines);
            assert!(is_closed(connect(port, request)), "{request}");
        }
        let (_server, port) = server(SHORT);
        let deaf = connect(port, &"GET /large HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50));
        thread::sleep(Duration::from_secs(2));
        let mut received = Vec::new();
        // Cut off in the middle, not answered fifty times.
        let _ = (&deaf).read_to_end(&mut received);
        assert!(received.len() < 50 << 20, "{}", received.len());
    }

    #[test]
    fn a_handshake_that_does_not_go_on_is_given_up() {
        let dir = tempfile::tempdir().expect("a folder for temporary files");
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
        let made = made.expect("it can be signed");
        let pem = dir.path().join("pem");
        let text = made.cert.pem() + &made.signing_key.serialize_pem();
        std::fs::write(&pem, text).expect("the folder is writable");
        let files = ServerFiles {
            certificates: pem.clone(),
            key: pem,
            clients: ClientCertificates::Ignored,
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut listener = WebListener::bind(address, Some(&files)).expect("a free port");
        // The time for a request begins after the handshake.
        listener.deadlines = Deadlines {
            handshake: Duration::from_millis(300),
            ..DEADLINES
        };
        let port = listener.port();
        let _server = listener.start(Vec::new()).expect("threads can be made");
        for begun in ["", "\x16\x03\x01\x02\x00"] {
            let start = std::time::Instant::now();
            assert!(is_closed(connect(port, begun)));
            assert!(
                start.elapsed() < Duration::from_secs(3),
                "{:?}",
                start.elapsed()
            );
        }
    }

    /// Counterpart: a slow reader gets everything, and one connection serves several requests.
    #[test]
    fn a_slow_reader_gets_all() {
        let (_server, port) = server(SHORT);
        let get = "GET /large HTTP/1.1\r\nHost: x\r\n\r\n".repeat(9);
        let last = "GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let mut stream = connect(port, &(get + last));
        let (mut received, mut chunk) = (0, vec![0; 1 << 20]);
        loop {
            match stream.read(&mut chunk).expect("it goes on") {
                0 => break,
                length => received += length,
            }
            thread::sleep(Duration::from_millis(5));
        }
        assert!(received > 10 << 20, "{received}");
    }

    #[test]
    fn a_failed_health_check_is_status_503_with_its_cause() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        for (checked, status) in [(Ok(()), "200"), (Err("no runtime".to_owned()), "503")] {
            let listener = WebListener::bind(address, None).expect("a free port");
            let port = listener.port();
            let _server = listener
                .with_health(move || checked.clone())
                .start(Vec::new())
                .expect("it starts");
            let request = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let answer = ask(port, request);
            let is_right = answer.starts_with(&format!("HTTP/1.1 {status} "));
            assert!(is_right, "{answer}");
        }
    }
}
