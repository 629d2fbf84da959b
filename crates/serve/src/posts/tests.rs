use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;

const PATH: &str = "/answer";

/// A server that answers with the length of what is posted, and its authority.
fn serve(limits: PostLimits) -> (SocketAddr, WebServer, ClientConfig) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned()];
    let own = rcgen::CertificateParams::new(names).unwrap();
    let own = own.self_signed(&key).unwrap();
    let certificate = Arc::new(ReplaceableCertificate::default());
    let (chain, key) = (own.pem(), key.serialize_pem());
    certificate
        .replace(Path::new("test"), chain.as_bytes(), key.as_bytes())
        .unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = PostListener::bind(address, certificate).unwrap();
    let address = listener.address().unwrap();
    let answer = |_: &str, body: &[u8]| PostAnswer {
        status: 200,
        content_type: "text/plain",
        content: body.len().to_string().into_bytes(),
    };
    let server = listener.start(limits, || true, answer).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(own.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (address, server, config)
}

type Client = StreamOwned<ClientConnection, TcpStream>;

/// Connects from an address of this host, and sends the head of a request and the beginning of its body.
fn send(address: SocketAddr, config: &ClientConfig, length: usize, body: &[u8]) -> Client {
    let socket = TcpStream::connect(address).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let name = "localhost".try_into().unwrap();
    let client = ClientConnection::new(Arc::new(config.clone()), name).unwrap();
    let mut client = StreamOwned::new(client, socket);
    let head =
        format!("POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
    client.write_all(head.as_bytes()).unwrap();
    client.write_all(body).unwrap();
    client.flush().unwrap();
    client
}

/// Status of HTTP of an answer.
fn status(mut client: Client) -> u16 {
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    std::str::from_utf8(&head[9..]).unwrap().parse().unwrap()
}

const LIMITS: PostLimits = PostLimits {
    body: 8 << 10,
    all: 32 << 10,
    at_once: 1,
};

#[test]
fn slow_posts_take_no_turn_and_end_after_a_while() {
    let (address, _server, config) = serve(LIMITS);
    let begun = Instant::now();
    let slow: Vec<Client> = (0..8).map(|_| send(address, &config, 1000, b"x")).collect();
    assert_eq!(status(send(address, &config, 3, b"abc")), 200);
    assert!(begun.elapsed() < ARRIVAL, "{:?}", begun.elapsed());
    for client in slow {
        assert_eq!(status(client), 408);
    }
    let most = ARRIVAL + Duration::from_secs(2);
    assert!(begun.elapsed() < most, "{:?}", begun.elapsed());
}

#[test]
fn one_peer_has_half_of_the_bytes_and_they_come_back() {
    let (address, _server, config) = serve(LIMITS);
    let part = vec![0; 8000];
    // 16 KiB are a peer's: the third of these waits, and so does whoever comes later.
    let slow: Vec<Client> = (0..3)
        .map(|_| send(address, &config, 8001, &part))
        .collect();
    let begun = Instant::now();
    // It gets its bytes when the slow ones end, which may be too late for it.
    let waited = status(send(address, &config, 8000, &part));
    assert!([200, 408].contains(&waited), "{waited}");
    assert!(begun.elapsed() > ARRIVAL / 2, "{:?}", begun.elapsed());
    for client in slow {
        assert_eq!(status(client), 408);
    }
    let begun = Instant::now();
    assert_eq!(status(send(address, &config, 8000, &part)), 200);
    assert!(begun.elapsed() < ARRIVAL / 2, "{:?}", begun.elapsed());
    let budget = Budget::new(100);
    let (one, other) = (budget.of("one"), budget.of("other"));
    assert_eq!(
        (one.available_permits(), other.available_permits()),
        (50, 50)
    );
    let _held = one.try_acquire_many(50).unwrap();
    assert_eq!(budget.of("one").available_permits(), 0);
    assert_eq!(budget.of("other").available_permits(), 50);
}
