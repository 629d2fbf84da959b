//! Alerts arrive at a collector of OpenTelemetry as log records, whatever it answers.
//!
//! The collector here knows Protocol Buffers by the specification of their encoding, and the records by the numbers
//! of their fields in OpenTelemetry's `logs.proto`: it shares no code with what it tests.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use e2e::marks::{self, THRICE, run_loudly, work};
use e2e::{Watch, WatchResult, wait_for};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

/// Fires when a file called `mark` is opened.
const MARK: &str = "\
- rule: Mark
  desc: a file that marks a moment
  condition: evt.type in (open, openat) and fd.name endswith /mark
  output: marked file=%fd.name process=%proc.name dup=%evt.num
  priority: WARNING
  tags: [host, T1555]
";

fn set(watch: Watch, settings: &[&str]) -> Watch {
    marks::set(marks::set(watch, &["otlp_output.enabled=true"]), settings)
}

fn marks(watched: &WatchResult) -> Vec<Value> {
    let is_mark = |line: &&str| line.contains("marked file=");
    let lines = watched.log.lines().filter(is_mark);
    lines
        .map(|line| serde_json::from_str(line).expect("it is JSON"))
        .collect()
}

fn marking(script: &str) -> Watch {
    marks::marking_by(script, MARK)
}

/// Delivered, lost by writing, lost because they were refused.
fn outcome(watched: &WatchResult) -> [u64; 3] {
    let text = fs::read_to_string(watched.scratch.path().join("stats")).expect("a stats file");
    let last = text.lines().last().expect("it has a line");
    let line: Value = serde_json::from_str(last).expect("it is JSON");
    let counters = &line["alerts"]["channels"]["otlp"];
    ["delivered", "lost_write_failed", "lost_rejected"]
        .map(|name| counters[name].as_u64().expect("a number"))
}

/// Head in lower case, and body.
type Request = (String, Vec<u8>);

fn request(stream: &mut impl BufRead) -> Option<Request> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (stream.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    head.make_ascii_lowercase();
    let length = head.split("content-length: ").nth(1)?.lines().next()?;
    let mut body = vec![0; length.parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// Answers requests with one of these after another, and with the last for ever.
fn collector(
    address: SocketAddr,
    answers: &'static [(&str, &[u8])],
) -> (SocketAddr, Receiver<Request>) {
    let listener = TcpListener::bind(address).expect("the port is free");
    let address = listener.local_addr().expect("it is bound");
    let (got, requests) = channel();
    thread::spawn(move || {
        let mut answers = answers.iter().peekable();
        for stream in listener.incoming().flatten() {
            let mut stream = BufReader::new(stream);
            while let Some(request) = request(&mut stream) {
                let (head, body) = *answers.peek().expect("the last stays");
                if answers.len() > 1 {
                    answers.next();
                }
                let head = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n", body.len());
                let answer = [head.as_bytes(), body].concat();
                if stream.get_mut().write_all(&answer).is_err() || got.send(request).is_err() {
                    return;
                }
            }
        }
    });
    (address, requests)
}

fn free() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

fn endpoint(address: SocketAddr) -> String {
    format!("otlp_output.endpoint=http://{address}")
}

/// A message: its fields by number, as bytes, and as a number where they are one.
#[derive(Debug, Default)]
struct Message(BTreeMap<u64, Vec<Field>>);

#[derive(Clone, Debug)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Message {
    fn parse(mut bytes: &[u8]) -> Self {
        let mut message = Self::default();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let field = match tag & 7 {
                0 => Field::Number(varint(&mut bytes)),
                1 => Field::Number(u64::from_le_bytes(
                    take(&mut bytes, 8).try_into().expect("8"),
                )),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)).expect("a length");
                    Field::Bytes(take(&mut bytes, length).to_vec())
                }
                5 => {
                    let bytes = take(&mut bytes, 4).try_into().expect("4");
                    Field::Number(u32::from_le_bytes(bytes).into())
                }
                other => panic!("no wire type: {other}"),
            };
            message.0.entry(tag >> 3).or_default().push(field);
        }
        message
    }

    fn number(&self, field: u64) -> u64 {
        match self.0[&field][..] {
            [Field::Number(number)] => number,
            ref other => panic!("{field}: {other:?}"),
        }
    }

    fn all(&self, field: u64) -> Vec<Message> {
        let bytes = self.0.get(&field).into_iter().flatten();
        bytes
            .map(|field| match field {
                Field::Bytes(bytes) => Self::parse(bytes),
                Field::Number(number) => panic!("a number: {number}"),
            })
            .collect()
    }

    fn one(&self, field: u64) -> Message {
        let mut all = self.all(field);
        assert_eq!(all.len(), 1, "{field}: {self:?}");
        all.remove(0)
    }

    fn text(&self, field: u64) -> String {
        match &self.0[&field][..] {
            [Field::Bytes(bytes)] => String::from_utf8(bytes.clone()).expect("it is text"),
            other => panic!("{field}: {other:?}"),
        }
    }
}

fn take<'b>(bytes: &mut &'b [u8], count: usize) -> &'b [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = take(bytes, 1)[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

/// `KeyValue`: the key is 1, and the value is 2, in which a text is 1, a number 3 and a list 5.
fn attributes(message: &Message, field: u64) -> BTreeMap<String, Value> {
    let pairs = message.all(field).into_iter();
    pairs
        .map(|pair| (pair.text(1), any(&pair.one(2))))
        .collect()
}

fn any(value: &Message) -> Value {
    match value.0.keys().next() {
        None => Value::Null,
        Some(1) => value.text(1).into(),
        Some(2) => (value.number(2) != 0).into(),
        Some(3) => value.number(3).cast_signed().into(),
        Some(5) => value.one(5).all(1).iter().map(any).collect(),
        Some(other) => panic!("a value of kind {other}"),
    }
}

/// The alert's time in nanoseconds, from the field that every alert in JSON has.
fn time(alert: &Value) -> u64 {
    alert["output_fields"]["evt.time"].as_u64().expect("a time")
}

fn message(alert: &Value) -> String {
    let output = alert["output"].as_str().expect("a text");
    output
        .split_once("Warning ")
        .expect("a priority")
        .1
        .to_owned()
}

#[test]
fn alerts_arrive_as_records_in_protobuf() {
    let (address, requests) = collector(free(), &[("200 OK", b"")]);
    let settings = [
        &endpoint(address),
        "otlp_output.headers={x-scope: north}",
        "otlp_output.resource_attributes={deployment.environment.name: test}",
    ];
    let watched = set(marking(THRICE), &settings).run();
    let expected = marks(&watched);
    assert_eq!(expected.len(), 3, "{}", watched.story());
    assert_eq!(outcome(&watched), [3, 0, 0], "{}", watched.story());
    for alert in &expected {
        let (head, body) = requests.recv_timeout(LIMIT).expect("a request");
        assert!(head.starts_with("post /v1/logs http/1.1\r\n"), "{head}");
        assert!(
            head.contains("content-type: application/x-protobuf\r\n"),
            "{head}"
        );
        assert!(head.contains("x-scope: north\r\n"), "{head}");
        let logs = Message::parse(&body).one(1);
        let resource = attributes(&logs.one(1), 1);
        assert_eq!(resource["service.name"], "tollgate");
        assert_eq!(resource["host.name"], alert["hostname"]);
        assert_eq!(resource["deployment.environment.name"], "test");
        let record = logs.one(2).one(2);
        assert_eq!(record.number(1), time(alert));
        assert!(record.number(11) >= time(alert), "observed later");
        assert_eq!(
            (record.number(2), record.text(3)),
            (13, "Warning".to_owned())
        );
        assert_eq!(record.one(5).text(1), message(alert));
        let attributes = attributes(&record, 6);
        assert_eq!(attributes["falco.rule"], "Mark");
        assert_eq!(attributes["falco.source"], "syscall");
        assert_eq!(attributes["falco.tags"], alert["tags"]);
        for field in ["fd.name", "proc.name", "evt.num"] {
            assert_eq!(attributes[field], alert["output_fields"][field], "{field}");
        }
    }
}

#[test]
fn alerts_arrive_as_records_in_json() {
    let (address, requests) = collector(free(), &[("200 OK", b"{}")]);
    let settings = [&endpoint(address), "otlp_output.protocol=http/json"];
    let watched = set(marking(THRICE), &settings).run();
    assert_eq!(outcome(&watched), [3, 0, 0], "{}", watched.story());
    for alert in &marks(&watched) {
        let (head, body) = requests.recv_timeout(LIMIT).expect("a request");
        assert!(
            head.contains("content-type: application/json\r\n"),
            "{head}"
        );
        let body: Value = serde_json::from_slice(&body).expect("it is JSON");
        let record = &body["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
        assert_eq!(record["timeUnixNano"], time(alert).to_string());
        assert_eq!(record["severityNumber"], 13);
        assert_eq!(record["body"]["stringValue"], message(alert));
        let attributes = record["attributes"].as_array().expect("a list");
        let name = attributes.iter().find(|pair| pair["key"] == "fd.name");
        let name = &name.expect("the field is there")["value"]["stringValue"];
        assert_eq!(*name, alert["output_fields"]["fd.name"]);
    }
}

#[test]
fn a_collector_that_is_busy_gets_alerts_again_and_one_that_refuses_does_not() {
    let (address, requests) = collector(
        free(),
        &[
            ("503 Service Unavailable\r\nRetry-After: 1", b""),
            ("429 Too Many Requests", b""),
            ("200 OK", b""),
            ("400 Bad Request", b""),
            // partial_success: one record rejected, because.
            ("200 OK", b"\x0a\x0b\x08\x01\x12\x07because"),
        ],
    );
    let watch = marking(&format!("{THRICE}; sleep 2"));
    let watched = set(watch, &[&endpoint(address)]).run();
    assert_eq!(outcome(&watched), [1, 0, 2], "{}", watched.story());
    // The channel also tells what was lost, which is refused as well.
    let is_mark = |body: &Vec<u8>| body.windows(12).any(|part| part == b"marked file=");
    let bodies = requests.try_iter().map(|(_, body)| body).filter(is_mark);
    let bodies: Vec<_> = bodies.collect();
    assert_eq!(bodies.len(), 5);
    assert!(bodies[0] == bodies[1] && bodies[1] == bodies[2]);

    let (address, _requests) = collector(free(), &[("200 OK", b"\x0a\x0b\x08\x01\x12\x07because")]);
    let watch = set(marking(": < %W/mark; exit 3"), &[&endpoint(address)]);
    let finished = run_loudly(&watch, LIMIT);
    assert_eq!(finished.code(), 3);
    let said = "cannot write alerts to otlp: the collector refused 1 of the alerts: because";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
}

#[test]
fn alerts_wait_for_a_collector_that_comes_later() {
    let free = TcpListener::bind(free()).and_then(|listener| listener.local_addr());
    let address = free.expect("loopback has a free port");
    let watch = marking(&format!("{THRICE}; : > %W/ready; sleep 3"));
    let ready = work(&watch).join("ready");
    let watch = set(watch, &[&endpoint(address)]);
    let running = watch.start();
    wait_for(&ready);
    let (_, requests) = collector(address, &[("200 OK", b"")]);
    let watched = watch.watched(running.finish(b""));
    assert_eq!(outcome(&watched), [3, 0, 0], "{}", watched.story());
    assert_eq!(requests.try_iter().count(), 3);
}

/// A collector that wants a certificate by the authority, which is also its own.
fn encrypted(folder: &Path) -> (SocketAddr, Receiver<Request>) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("a certificate");
    let issuer = Issuer::new(params, key);
    let own = KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned()];
    let params = CertificateParams::new(names).expect("a name");
    let certificate = params.signed_by(&own, &issuer).expect("a certificate");
    for (name, text) in [
        ("ca.pem", authority.pem()),
        ("own.pem", certificate.pem()),
        ("own.key", own.serialize_pem()),
    ] {
        fs::write(folder.join(name), text).expect("it can be written");
    }
    let parsed = |name: &str| CertificateDer::from_pem_file(folder.join(name)).expect("a PEM file");
    let mut roots = RootCertStore::empty();
    roots.add(parsed("ca.pem")).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(roots);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let key = PrivateKeyDer::from_pem_file(folder.join("own.key")).expect("a key");
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_client_cert_verifier(verifier.build().expect("there is an authority"))
        .with_single_cert(vec![parsed("own.pem")], key)
        .expect("they belong together");
    let config = Arc::new(config);
    let listener = TcpListener::bind(free()).expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let (got, requests) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tls = ServerConnection::new(Arc::clone(&config)).expect("a configuration");
            let mut stream: BufReader<StreamOwned<ServerConnection, TcpStream>> =
                BufReader::new(StreamOwned::new(tls, stream));
            while let Some(request) = request(&mut stream) {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                if stream.get_mut().write_all(answer).is_err() || got.send(request).is_err() {
                    break;
                }
            }
        }
    });
    (address, requests)
}

#[test]
fn an_encrypted_collector_and_client_know_one_another_by_their_certificates() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, requests) = encrypted(folder.path());
    let key = |name: &str, file: &str| {
        format!(
            "otlp_output.tls.{name}={}",
            folder.path().join(file).display()
        )
    };
    let endpoint = format!("otlp_output.endpoint=https://localhost:{}", address.port());
    let known = key("ca_file", "ca.pem");
    let (cert, own) = (key("cert_file", "own.pem"), key("key_file", "own.key"));
    let gzip = "otlp_output.compression=gzip";
    let watched = set(marking(THRICE), &[&endpoint, &known, &cert, &own, gzip]).run();
    assert_eq!(outcome(&watched), [3, 0, 0], "{}", watched.story());
    for _ in 0..3 {
        let (head, body) = requests.recv_timeout(LIMIT).expect("a request");
        assert!(head.contains("content-encoding: gzip\r\n"), "{head}");
        assert_eq!(body[..2], [0x1f, 0x8b]);
    }
    // Without its certificate it gets nothing through.
    let watched = set(marking(THRICE), &[&endpoint, &known]).run();
    assert_eq!(outcome(&watched)[0], 0, "{}", watched.story());
    assert_eq!(requests.try_iter().count(), 0);
}

#[test]
fn settings_that_cannot_be_used_stop_the_start() {
    for (settings, problem) in [
        (&[][..], "`otlp_output` is enabled and has no `endpoint`"),
        (
            &["otlp_output.endpoint=c:4318"],
            "cannot send alerts to `c:4318/v1/logs`",
        ),
        (
            &["otlp_output.endpoint=http://c", "otlp_output.protocol=grpc"],
            "expected http/protobuf or http/json, found `grpc`",
        ),
        (
            &[
                "otlp_output.endpoint=https://c",
                "otlp_output.tls.ca_file=/none",
            ],
            "cannot read /none: No such file",
        ),
        (
            &[
                "otlp_output.endpoint=http://c",
                "otlp_output.headers={host: x}",
            ],
            "cannot send the header `host`",
        ),
    ] {
        let finished = run_loudly(&set(marking("exit 3"), settings), LIMIT);
        assert_eq!(finished.code(), 2, "{}", finished.stderr);
        assert!(finished.stderr.contains(problem), "{}", finished.stderr);
        assert!(finished.stderr.contains("help: "), "{}", finished.stderr);
    }
}
