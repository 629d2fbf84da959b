use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::channel::ReceiverState;
use crate::channel::testing::deliveries;
use crate::format::{Format, JsonParts, TimeFormat};
use crate::net::tls::ClientFiles;

/// What a server saw.
#[derive(Debug)]
struct Request {
    line: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
    connection: usize,
}

struct Server {
    address: SocketAddr,
    requests: Receiver<Request>,
}

impl Server {
    /// Answers each request with `answer`; hangs up after each connection's first `per_connection`.
    fn start(answer: &'static str, per_connection: usize) -> Self {
        Self::serve(answer, per_connection, None)
    }

    fn secure(config: ServerConfig) -> Self {
        Self::serve(OK, usize::MAX, Some(Arc::new(config)))
    }

    fn serve(answer: &'static str, per: usize, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, requests) = channel();
        thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (seen, tls, stream) = (seen.clone(), tls.clone(), stream.unwrap());
                let report = move |request: Request| {
                    // A test that has ended listens no more.
                    let _ = seen.send(Request {
                        connection,
                        ..request
                    });
                };
                thread::spawn(move || match tls {
                    None => answer_all(stream, answer, per, report),
                    Some(config) => {
                        let session = ServerConnection::new(config).unwrap();
                        answer_all(StreamOwned::new(session, stream), answer, per, report);
                    }
                });
            }
        });
        Self { address, requests }
    }

    fn next(&self) -> Request {
        self.requests
            .recv_timeout(Duration::from_secs(10))
            .expect("a request")
    }

    fn url(&self) -> String {
        format!("http://{}/in?source=t", self.address)
    }

    fn secure_url(&self) -> String {
        format!("https://localhost:{}/", self.address.port())
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n";

fn answer_all(stream: impl Read + Write, answer: &str, per: usize, report: impl Fn(Request)) {
    let mut stream = BufReader::new(stream);
    for _ in 0..per {
        let Some(request) = receive(&mut stream) else {
            return;
        };
        report(request);
        if stream.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
        let _ = stream.get_mut().flush();
    }
}

fn receive(stream: &mut impl BufRead) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let headers: HashMap<_, _> = lines[1..]
        .iter()
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers["content-length"].parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Request {
        line: lines[0].clone(),
        headers,
        body,
        connection: 0,
    })
}

fn options(url: String) -> HttpOptions {
    HttpOptions {
        headers: Vec::new(),
        url,
        user_agent: "falcosecurity/falco".to_owned(),
        json: true,
        tls: TlsOptions {
            authority_folder: "/etc/ssl/certs".into(),
            ..TlsOptions::default()
        },
        echo: None,
        compress: false,
        keep_alive: true,
        max_consecutive_timeouts: 0,
        timeout: Duration::from_secs(10),
    }
}

fn open(options: HttpOptions) -> HttpChannel {
    HttpChannel::open(options).unwrap_or_else(|error| panic!("{error}"))
}

fn json() -> Format {
    Format::Json(JsonParts::default(), TimeFormat::Clock)
}

#[test]
fn each_alert_is_a_post_on_one_connection() {
    let server = Server::start(OK, usize::MAX);
    let alerts = deliveries(3, json());
    open(options(server.url())).deliver(&alerts).unwrap();
    for alert in &alerts {
        let request = server.next();
        assert_eq!(request.line, "POST /in?source=t HTTP/1.1");
        assert_eq!(request.headers["content-type"], "application/json");
        assert_eq!(request.headers["user-agent"], "falcosecurity/falco");
        assert!(!request.headers.contains_key("content-encoding"));
        // As Falco sends it: without a line feed.
        assert_eq!(request.body, alert.line().trim_end().as_bytes());
        assert_eq!(request.connection, 0);
    }
}

#[test]
fn text_is_sent_as_text_and_bodies_can_be_compressed() {
    let server = Server::start(OK, usize::MAX);
    let alerts = deliveries(1, Format::default());
    let options = HttpOptions {
        json: false,
        compress: true,
        ..options(server.url())
    };
    open(options).deliver(&alerts).unwrap();
    let request = server.next();
    assert_eq!(request.headers["content-type"], "text/plain");
    assert_eq!(request.headers["content-encoding"], "gzip");
    let mut body = String::new();
    let mut decoder = flate2::read::GzDecoder::new(request.body.as_slice());
    decoder.read_to_string(&mut body).unwrap();
    assert_eq!(body, alerts[0].line().trim_end());
}

#[test]
fn refusals_and_redirections_are_losses_and_the_next_alert_is_sent_all_the_same() {
    for answer in [
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n",
    ] {
        let server = Server::start(answer, usize::MAX);
        let error = open(options(server.url()))
            .deliver(&deliveries(2, json()))
            .unwrap_err();
        assert_eq!(
            (error.delivered, error.receiver),
            (0, ReceiverState::Failing)
        );
        let status = &answer[9..12];
        let text = error.source.to_string();
        assert!(
            text.starts_with(&format!("the server answered {status}")),
            "{text}"
        );
        assert!(server.next().line.starts_with("POST /in"));
        assert!(server.next().line.starts_with("POST /in"));
        assert!(server.requests.try_recv().is_err());
    }
}

#[test]
fn a_server_that_hangs_up_gets_the_alert_on_a_new_connection() {
    let server = Server::start(OK, 1);
    let mut channel = open(options(server.url()));
    for connection in 0..3 {
        channel.deliver(&deliveries(1, json())).unwrap();
        assert_eq!(server.next().connection, connection);
    }
}

/// An address that nobody listens at.
fn dead_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[test]
fn a_server_that_comes_back_gets_what_it_has_missed_once_and_soon() {
    let address = dead_port();
    let mut channel = open(options(format!("http://{address}/")));
    let server = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        let listener = TcpListener::bind(address).unwrap();
        let bodies: Vec<_> = (0..3)
            .map(|_| {
                let (stream, _) = listener.accept().unwrap();
                let mut stream = BufReader::new(stream);
                let request = receive(&mut stream).expect("a request");
                stream.get_mut().write_all(OK.as_bytes()).unwrap();
                request.body
            })
            .collect();
        (bodies, listener.local_addr().unwrap())
    });
    let peer = channel.peer();
    let watcher = thread::spawn(move || {
        thread::sleep(Duration::from_millis(150));
        peer.trouble()
    });
    let alerts = deliveries(3, json());
    let start = Instant::now();
    channel.deliver(&alerts).unwrap();
    // Pauses of 50, 100 and 200 ms, or a few more on a busy machine; a limit would be 10 s.
    assert!(start.elapsed() < Duration::from_secs(8));
    let trouble = watcher.join().unwrap().expect("it waits");
    assert!(trouble.contains("refused"), "{trouble}");
    assert_eq!(channel.peer().trouble(), None);
    let (bodies, _) = server.join().unwrap();
    let lines: Vec<_> = alerts.iter().map(|alert| alert.line().trim_end()).collect();
    let bodies: Vec<_> = bodies
        .iter()
        .map(|body| String::from_utf8_lossy(body).into_owned())
        .collect();
    assert_eq!(bodies, lines);
}

#[test]
fn a_server_that_stays_away_is_waited_for_once_and_what_it_misses_is_lost() {
    let mut channel = open(options(format!("http://{}/", dead_port())));
    channel.outage = Outage::of_at_most(Duration::from_secs(1));
    let start = Instant::now();
    let error = channel.deliver(&deliveries(30, json())).unwrap_err();
    let waited = start.elapsed();
    assert_eq!(error.source.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(
        (error.delivered, error.receiver),
        (0, ReceiverState::Failing)
    );
    // Once, not for each of the 30.
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    assert!(waited < Duration::from_secs(15), "{waited:?}");
    let start = Instant::now();
    channel.deliver(&deliveries(100, json())).unwrap_err();
    assert!(start.elapsed() < waited, "100 alerts did not wait");
    // Whoever ends the program does not wait, either.
    channel.reopen().unwrap();
    channel.peer().kill();
    let start = Instant::now();
    channel.deliver(&deliveries(1, json())).unwrap_err();
    assert!(start.elapsed() < waited, "nor does the end");
}

#[test]
fn a_server_that_never_answers_is_asked_again_so_often_in_a_row() {
    // The kernel takes the connections; nobody reads.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut channel = open(HttpOptions {
        timeout: Duration::from_millis(50),
        max_consecutive_timeouts: 3,
        ..options(format!("http://{}/", listener.local_addr().unwrap()))
    });
    let error = channel.deliver(&deliveries(1, json())).unwrap_err();
    assert_eq!(error.source.kind(), ErrorKind::TimedOut);
    assert_eq!(channel.peer().timeouts(), 4);
    channel.deliver(&deliveries(2, json())).unwrap_err();
    assert_eq!(channel.peer().timeouts(), 6);
}

/// An authority and what it has signed, as PEM.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    /// Certificate and key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// A server for `localhost` that wants a certificate of `clients`.
    fn server(&self, clients: Option<&Authority>) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (certificate, key) = self.sign("localhost");
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(der(&clients.certificate)).unwrap();
                builder.with_client_cert_verifier(
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .unwrap(),
                )
            }
        };
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        builder
            .with_single_cert(vec![der(&certificate)], key)
            .unwrap()
    }
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_server_is_trusted_by_file_by_folder_or_blindly_and_not_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(), Authority::new());
    let file = write(dir.path(), "ca.pem", &ours.certificate);
    let other_file = write(dir.path(), "other.pem", &other.certificate);
    let folder = dir.path().join("plain");
    fs::create_dir(&folder).unwrap();
    write(&folder, "a.crt", &ours.certificate);
    write(&folder, "README", "no PEM certificate");
    let hashed = dir.path().join("hashed");
    fs::create_dir(&hashed).unwrap();
    write(&hashed, "0a1b2c3d.0", &other.certificate);
    // Names that OpenSSL does not look at where it finds those it does.
    write(&hashed, "a.crt", &ours.certificate);

    let by_file = |file: &Path| TlsOptions {
        authorities: Some(file.to_owned()),
        ..TlsOptions::default()
    };
    let by_folder = |folder: &Path| TlsOptions {
        authority_folder: folder.to_owned(),
        ..TlsOptions::default()
    };
    let blind = TlsOptions {
        insecure: true,
        ..TlsOptions::default()
    };
    for (tls, is_trusted) in [
        (by_file(&file), true),
        (by_folder(&folder), true),
        (blind, true),
        (by_file(&other_file), false),
        (by_folder(&hashed), false),
    ] {
        let server = Server::secure(ours.server(None));
        let mut channel = open(HttpOptions {
            tls: tls.clone(),
            ..options(server.secure_url())
        });
        let result = channel.deliver(&deliveries(1, json()));
        assert_eq!(result.is_ok(), is_trusted, "{tls:?}: {result:?}");
        if let Err(error) = result {
            let text = error.source.to_string();
            assert!(text.contains("invalid peer certificate"), "{text}");
        } else {
            server.next();
        }
    }
}

#[test]
fn a_client_shows_its_certificate_where_it_has_one() {
    let dir = tempfile::tempdir().unwrap();
    let (servers, clients) = (Authority::new(), Authority::new());
    let (certificate, key) = clients.sign("client");
    let client = ClientFiles {
        certificate: write(dir.path(), "client.crt", &certificate),
        key: write(dir.path(), "client.key", &key),
    };
    let tls = |client| TlsOptions {
        authorities: Some(write(dir.path(), "ca.pem", &servers.certificate)),
        client,
        ..TlsOptions::default()
    };
    for (client, is_let_in) in [(Some(client), true), (None, false)] {
        let server = Server::secure(servers.server(Some(&clients)));
        let mut channel = open(HttpOptions {
            tls: tls(client),
            ..options(server.secure_url())
        });
        let result = channel.deliver(&deliveries(1, json()));
        assert_eq!(result.is_ok(), is_let_in, "{result:?}");
    }
}

/// Asserts that a channel with this URL and TLS cannot be opened, for a reason with these words.
fn assert_refused(url: &str, tls: TlsOptions, expected: &str) {
    let result = HttpChannel::open(HttpOptions {
        tls,
        ..options(url.to_owned())
    });
    let text = result.expect_err(expected).to_string();
    assert!(text.contains(expected), "{url}: {text}");
}

#[test]
fn a_bad_url_is_an_error_at_the_start() {
    for (url, expected) in [
        ("localhost:80", "it has to start with http:// or https://"),
        (
            "ftp://localhost/",
            "it has to start with http:// or https://",
        ),
        ("http://a b/", "invalid URL"),
        ("http://localhost:99999/", "invalid port `99999`"),
        ("https://user:1@[::1]:0", "invalid port `0`"),
    ] {
        assert_refused(url, TlsOptions::default(), expected);
    }
}

#[test]
fn a_bad_certificate_or_key_is_an_error_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (certificate, _) = authority.sign("client");
    let (_, wrong_key) = authority.sign("client");
    let empty = write(dir.path(), "empty.pem", "");
    let client = |certificate: &Path, key: &Path| TlsOptions {
        authorities: Some(write(dir.path(), "ca.pem", &authority.certificate)),
        client: Some(ClientFiles {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        }),
        ..TlsOptions::default()
    };
    let certificate = write(dir.path(), "client.crt", &certificate);
    let key = write(dir.path(), "client.key", &wrong_key);
    let missing = dir.path().join("missing");
    let authorities = |path: &Path| TlsOptions {
        authorities: Some(path.to_owned()),
        ..TlsOptions::default()
    };
    let folder = |path: &Path| TlsOptions {
        authority_folder: path.to_owned(),
        ..TlsOptions::default()
    };
    let empty_folder = dir.path().join("folder");
    fs::create_dir(&empty_folder).unwrap();
    for (tls, expected) in [
        (authorities(&missing), "cannot read"),
        (authorities(&empty), "the file has no PEM certificate"),
        (folder(&missing), "cannot read"),
        (folder(&empty_folder), "no file there has a certificate"),
        (client(&missing, &key), "cannot read"),
        (
            client(&certificate, &certificate),
            "no PEM private key without a passphrase",
        ),
        (client(&certificate, &key), "not the key of"),
    ] {
        assert_refused("https://localhost/", tls, expected);
    }
}

#[test]
fn reopening_reads_certificates_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    let file = write(dir.path(), "ca.pem", &old.certificate);
    let server = Server::secure(new.server(None));
    let mut channel = open(HttpOptions {
        tls: TlsOptions {
            authorities: Some(file),
            ..TlsOptions::default()
        },
        ..options(server.secure_url())
    });
    let alerts = deliveries(1, json());
    channel.deliver(&alerts).unwrap_err();
    write(dir.path(), "ca.pem", &new.certificate);
    channel.reopen().unwrap();
    channel.deliver(&alerts).unwrap();
    // What is broken now leaves the channel as it was.
    write(dir.path(), "ca.pem", "");
    channel.reopen().unwrap_err();
    channel.deliver(&alerts).unwrap();
}

#[test]
fn further_headers_are_sent_with_each_alert() {
    let server = Server::start(OK, usize::MAX);
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut channel = open(HttpOptions {
        headers: vec![
            header("Authorization", "Bearer x"),
            header("x-scope", "north"),
        ],
        ..options(server.url())
    });
    channel.deliver(&deliveries(2, json())).unwrap();
    for _ in 0..2 {
        let request = server.next();
        assert_eq!(request.headers["authorization"], "Bearer x");
        assert_eq!(request.headers["x-scope"], "north");
    }
    for (name, value, expected) in [
        ("two words", "x", "it is not a header name"),
        ("Content-Type", "x", "it is set by other keys"),
        ("x-a", "a\r\nx-b: b", "its value has characters"),
    ] {
        let error = HttpChannel::open(HttpOptions {
            headers: vec![header(name, value)],
            ..options(server.url())
        })
        .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
