use std::fs;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use outputs::{Dispatcher, Settings};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rules::{Alert, AlertValue, Priority};

use super::*;
use crate::grpc::{ClientFiles, Output, subscribe};
use crate::tls::ClientCertificates;

const SOON: Duration = Duration::from_secs(20);

fn alert(n: u64) -> Alert {
    Alert {
        time_ns: 1_000_000_007 + n,
        made_ns: 0,
        rule: format!("R{n}").into(),
        priority: Priority::Warning,
        source: "syscall".into(),
        tags: ["t".to_owned()].into(),
        hostname: "box".into(),
        message: format!("n={n}"),
        fields: vec![
            ("evt.num".into(), AlertValue::Uint(n)),
            ("fd.name".into(), AlertValue::Absent),
        ],
        details: rules::AlertDetails::default(),
    }
}

fn dispatcher(channel: &GrpcChannel) -> Dispatcher {
    let settings = Settings::new("box".into(), Arc::new(|problem| panic!("{problem}")));
    Dispatcher::prepare(settings, vec![Box::new(channel.clone())])
        .start()
        .expect("threads can be made")
}

fn anybody() -> PeerCheck {
    Arc::new(|_socket| true)
}

/// Of this machine. Over TCP certificates decide.
fn nobody() -> PeerCheck {
    Arc::new(|_socket| false)
}

fn next(alerts: &Receiver<Result<Output, ServeError>>) -> Output {
    let next = alerts.recv_timeout(SOON).expect("an alert comes");
    next.expect("it can be read")
}

/// An authority, and a certificate of each side that it vouches for.
fn certificates(dir: &Path) {
    let mut params = CertificateParams::new(Vec::new()).expect("good names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("keys can be made");
    let authority = CertifiedIssuer::self_signed(params, key).expect("it can be signed");
    fs::write(dir.join("ca.crt"), authority.pem()).expect("it can be written");
    for side in ["server", "client"] {
        let key = KeyPair::generate().expect("keys can be made");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("good names");
        let certificate = params
            .signed_by(&key, &authority)
            .expect("it can be signed");
        fs::write(dir.join(format!("{side}.crt")), certificate.pem()).expect("it can be written");
        fs::write(dir.join(format!("{side}.key")), key.serialize_pem()).expect("it can be written");
    }
}

fn server_files(dir: &Path) -> ServerFiles {
    ServerFiles {
        certificates: dir.join("server.crt"),
        key: dir.join("server.key"),
        clients: ClientCertificates::Required(dir.join("ca.crt")),
    }
}

fn client_files(dir: &Path, side: &str) -> ClientFiles {
    ClientFiles {
        certificate: dir.join(format!("{side}.crt")),
        key: dir.join(format!("{side}.key")),
        authorities: dir.join("ca.crt"),
    }
}

#[test]
fn alerts_before_and_after_a_subscription_come_in_order() {
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    let address = Address::Unix(dir.path().join("s"));
    let channel = GrpcChannel::default();
    let dispatcher = dispatcher(&channel);
    let listener = GrpcListener::bind(&address, &server_files(dir.path())).expect("a free name");
    let server = listener
        .start(&channel, Version::default(), 2, anybody())
        .expect("threads can be made");
    for n in 0..3 {
        dispatcher.emit(alert(n));
    }
    let files = client_files(dir.path(), "client");
    let alerts = subscribe(&address, &files).expect("it can be reached");
    let first = next(&alerts);
    assert_eq!(first.rule, "R0");
    assert_eq!(first.priority, 4);
    assert_eq!(
        (first.hostname.as_str(), first.source.as_str()),
        ("box", "syscall")
    );
    assert_eq!(first.tags, ["t"]);
    assert!(first.output.ends_with(": Warning n=0"), "{}", first.output);
    assert_eq!(first.output_fields["evt.num"], "0");
    assert_eq!(first.output_fields["fd.name"], "<NA>");
    let time = first.time.expect("it has a time");
    assert_eq!((time.seconds, time.nanos), (1, 7));
    for n in 3..6 {
        dispatcher.emit(alert(n));
    }
    for n in 1..6 {
        assert_eq!(next(&alerts).rule, format!("R{n}"));
    }
    drop(server);
    assert!(!dir.path().join("s").exists(), "the socket is removed");
    let end = alerts.recv_timeout(SOON);
    assert!(!matches!(end, Ok(Ok(_))), "{end:?}");
}

#[test]
fn over_tcp_both_sides_show_certificates() {
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    certificates(dir.path());
    let address = Address::parse("127.0.0.1:0").expect("good");
    let channel = GrpcChannel::default();
    let dispatcher = dispatcher(&channel);
    let listener = GrpcListener::bind(&address, &server_files(dir.path())).expect("a free port");
    let address = Address::Tcp(format!("localhost:{}", listener.port()));
    let _server = listener
        .start(&channel, Version::default(), 1, nobody())
        .expect("threads can be made");
    dispatcher.emit(alert(1));
    let foreign = tempfile::tempdir().expect("a folder for temporary files");
    certificates(foreign.path());
    let stranger = ClientFiles {
        authorities: dir.path().join("ca.crt"),
        ..client_files(foreign.path(), "client")
    };
    // TLS 1.3 lets the client find out only when it reads.
    let refused = match subscribe(&address, &stranger) {
        Err(_) => true,
        Ok(alerts) => matches!(alerts.recv_timeout(SOON), Ok(Err(_)) | Err(_)),
    };
    assert!(
        refused,
        "a certificate of another authority is no certificate"
    );
    let alerts = subscribe(&address, &client_files(dir.path(), "client"));
    assert_eq!(next(&alerts.expect("it is known")).rule, "R1");
}

#[test]
fn who_listens_nowhere_is_said() {
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    let address = Address::Unix(dir.path().join("none"));
    let error = subscribe(&address, &client_files(dir.path(), "client")).expect_err("no server");
    assert!(
        error.to_string().starts_with("cannot connect to unix:///"),
        "{error}"
    );
}

#[test]
fn alerts_that_nobody_takes_are_lost_at_a_limit_and_counted() {
    let channel = GrpcChannel::default();
    let settings = Settings {
        capacity: outputs::QueueCapacity {
            alerts: 100_000,
            bytes: 1 << 30,
        },
        ..Settings::new("box".into(), Arc::new(|_problem| {}))
    };
    let dispatcher = Dispatcher::prepare(settings, vec![Box::new(channel.clone())])
        .start()
        .expect("threads can be made");
    for n in 0..9000 {
        dispatcher.emit(alert(n));
    }
    dispatcher.flush(Instant::now() + SOON);
    let counters = &dispatcher.counters().channels[0];
    assert_eq!(counters.delivered, 8192, "{counters:?}");
    assert!(counters.lost_write_failed >= 9000 - 8192, "{counters:?}");
}

#[test]
fn every_subscriber_gets_every_alert() {
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    let address = Address::Unix(dir.path().join("s"));
    let channel = GrpcChannel::default();
    let dispatcher = dispatcher(&channel);
    let listener = GrpcListener::bind(&address, &server_files(dir.path())).expect("a free name");
    let _server = listener
        .start(&channel, Version::default(), 2, anybody())
        .expect("threads can be made");
    let files = client_files(dir.path(), "client");
    let subscribers: Vec<_> = (0..3)
        .map(|_| subscribe(&address, &files).expect("it can be reached"))
        .collect();
    // The first may come while there is one only.
    let is_there = |count: usize| {
        let subscribed = || channel.queue.subscribers();
        (0..2000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            subscribed() == count
        })
    };
    assert!(is_there(3), "all have subscribed");
    for n in 0..100 {
        dispatcher.emit(alert(n));
    }
    for subscriber in &subscribers {
        for n in 0..100 {
            assert_eq!(next(subscriber).rule, format!("R{n}"));
        }
    }
    assert_eq!((channel.waiting(), channel.missed()), (0, 0));
}

#[test]
fn who_is_refused_gets_nothing() {
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    let address = Address::Unix(dir.path().join("s"));
    let channel = GrpcChannel::default();
    let dispatcher = dispatcher(&channel);
    let listener = GrpcListener::bind(&address, &server_files(dir.path())).expect("a free name");
    let _server = listener
        .start(&channel, Version::default(), 1, nobody())
        .expect("threads can be made");
    dispatcher.emit(alert(0));
    dispatcher.flush(Instant::now() + SOON);
    let files = client_files(dir.path(), "client");
    if let Ok(alerts) = subscribe(&address, &files) {
        let first = alerts.recv_timeout(SOON);
        assert!(!matches!(first, Ok(Ok(_))), "{first:?}");
    }
    assert_eq!(channel.waiting(), 1);
}
