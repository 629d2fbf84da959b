use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::*;
use crate::channel::testing::deliveries;
use crate::format::Format;

const INFO: &str = r#"INFO {"max_payload":400,"headers":true}"#;

/// One connection of a client, as a server sees it.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn say(&mut self, text: &str) {
        let written = self.stream.get_mut().write_all(text.as_bytes());
        written.expect("the client reads");
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.stream.read_line(&mut line).ok()?;
        (count > 0).then(|| line.trim_end().to_owned())
    }

    /// The line of a message and what follows it.
    fn message(&mut self) -> Option<(String, String)> {
        let line = self.line()?;
        if !line.contains("PUB ") {
            return Some((line, String::new()));
        }
        let size: usize = line.rsplit(' ').next()?.parse().ok()?;
        let mut body = vec![0; size + 2];
        self.stream.read_exact(&mut body).ok()?;
        body.truncate(size);
        Some((line, String::from_utf8(body).ok()?))
    }

    /// Lets it in; gives what it said of itself.
    fn log_in(&mut self) -> String {
        self.say(&format!("{INFO}\r\n"));
        let connect = self.line().expect("CONNECT");
        let mut line = self.line().expect("more");
        if line.starts_with("SUB ") {
            line = self.line().expect("PING");
        }
        assert_eq!(line, "PING");
        self.say("PONG\r\n");
        connect
    }
}

/// What a server does with one connection.
type Part = Box<dyn FnOnce(Client) + Send>;

/// A server at which each connection is served by the next of these functions.
fn server(parts: Vec<Part>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for part in parts {
            let (stream, _) = listener.accept().unwrap();
            part(Client {
                stream: BufReader::new(stream),
            });
        }
    });
    format!("nats://{address}")
}

fn options(url: &str) -> NatsOptions {
    NatsOptions {
        urls: vec![url.to_owned()],
        subject: "a.<rule>".to_owned(),
        credentials: Credentials::None,
        tls: None,
        jetstream: false,
        stream: String::new(),
        timeout: Duration::from_millis(300),
    }
}

fn opened(options: NatsOptions) -> NatsChannel {
    let mut channel = NatsChannel::open(options).unwrap();
    channel.outage = Outage::of_at_most(Duration::from_secs(2));
    channel
}

/// Serves until the client goes; gives the messages.
fn collecting() -> (Part, Receiver<(String, String)>) {
    let (sender, got) = channel();
    let part = move |mut client: Client| {
        client.log_in();
        while let Some((line, body)) = client.message() {
            if line == "PING" {
                client.say("PONG\r\n");
            } else if sender.send((line, body)).is_err() {
                return;
            }
        }
    };
    (Box::new(part), got)
}

#[test]
fn alerts_are_published_in_order_and_delivered_when_the_ping_is_answered() {
    let (part, got) = collecting();
    let url = server(vec![part]);
    let mut channel = opened(options(&url));
    let alerts = deliveries(3, Format::default());
    channel.deliver(&alerts).unwrap();
    channel.deliver(&alerts[..1]).unwrap();
    let got: Vec<_> = got.try_iter().collect();
    assert_eq!(got.len(), 4);
    for ((line, body), alert) in got.iter().zip(&alerts) {
        assert!(line.starts_with("PUB a.t "), "{line}");
        assert_eq!(body, alert.line().trim_end());
    }
}

#[test]
fn an_alert_is_not_delivered_before_the_server_has_answered() {
    let silent = |mut client: Client| {
        client.log_in();
        while client.message().is_some() {}
    };
    let (part, got) = collecting();
    let url = server(vec![Box::new(silent), part]);
    let mut channel = opened(options(&url));
    let alerts = deliveries(1, Format::default());
    channel.deliver(&alerts).unwrap();
    assert_eq!(channel.peer().timeouts(), 1);
    assert_eq!(
        got.try_iter().count(),
        1,
        "published again on a new connection"
    );
}

#[test]
fn a_connection_that_the_server_has_closed_meanwhile_is_replaced_without_a_wait() {
    let once = |mut client: Client| {
        client.log_in();
        client.message().unwrap();
        client.message().unwrap();
        client.say("PONG\r\n");
    };
    let (part, got) = collecting();
    let url = server(vec![Box::new(once), part]);
    let mut channel = opened(options(&url));
    let alerts = deliveries(2, Format::default());
    channel.deliver(&alerts[..1]).unwrap();
    thread::sleep(Duration::from_millis(100));
    channel.outage = Outage::of_at_most(Duration::ZERO);
    channel.deliver(&alerts[1..]).unwrap();
    assert_eq!(got.try_iter().count(), 1);
}

#[test]
fn pings_of_the_server_are_answered() {
    let (sender, answers) = channel();
    let pinging = move |mut client: Client| {
        client.log_in();
        client.say("PING\r\n");
        while let Some((line, _)) = client.message() {
            match line.as_str() {
                "PING" => client.say("PONG\r\n"),
                "PONG" => sender.send(()).unwrap(),
                _ => {}
            }
        }
    };
    let url = server(vec![Box::new(pinging)]);
    opened(options(&url))
        .deliver(&deliveries(1, Format::default()))
        .unwrap();
    answers.recv_timeout(Duration::from_secs(5)).unwrap();
}

#[test]
fn what_a_server_refuses_is_counted_apart_and_not_sent_again() {
    let refusing = |mut client: Client| {
        client.log_in();
        client.message().unwrap();
        client.message().unwrap();
        client.say("-ERR 'Permissions Violation for Publish to \"a.t\"'\r\nPONG\r\n");
        while client.message().is_some() {}
    };
    let url = server(vec![Box::new(refusing)]);
    let mut channel = opened(options(&url));
    let error = channel
        .deliver(&deliveries(1, Format::default()))
        .unwrap_err();
    assert_eq!((error.delivered, error.rejected, error.dead), (0, 1, false));
    let said = error.source.to_string();
    assert!(said.contains("Permissions Violation"), "{said}");
}

#[test]
fn an_alert_that_is_too_large_is_refused_and_the_others_arrive() {
    let (part, got) = collecting();
    let url = server(vec![part]);
    let mut channel = opened(options(&url));
    let mut alerts = deliveries(2, Format::default());
    let mut large = deliveries(1, Format::default()).remove(0).alert().clone();
    large.message = "x".repeat(401);
    let formatter = Arc::new(crate::format::Formatter::new(Format::default()));
    alerts.insert(1, Arc::new(Delivery::new(large, formatter)));
    let error = channel.deliver(&alerts).unwrap_err();
    assert_eq!((error.delivered, error.rejected), (2, 1));
    assert_eq!(got.try_iter().count(), 2);
}

#[test]
fn a_server_that_refuses_the_login_gets_no_second_try() {
    let refusing = |mut client: Client| {
        client.say(&format!("{INFO}\r\n"));
        client.line().unwrap();
        client.say("-ERR 'Authorization Violation'\r\n");
    };
    let url = server(vec![Box::new(refusing)]);
    let mut channel = opened(options(&url));
    let began = Instant::now();
    let error = channel
        .deliver(&deliveries(2, Format::default()))
        .unwrap_err();
    assert_eq!((error.delivered, error.rejected), (0, 2));
    let said = error.source.to_string();
    assert_eq!(
        said,
        "the server refuses this client: Authorization Violation"
    );
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[test]
fn alerts_are_lost_in_time_while_nobody_listens() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let mut channel = opened(options(&format!("nats://{address}")));
    channel.outage = Outage::of_at_most(Duration::from_millis(200));
    let alerts = deliveries(1, Format::default());
    let error = channel.deliver(&alerts).unwrap_err();
    assert_eq!((error.delivered, error.rejected), (0, 0));
    assert_eq!(error.source.kind(), ErrorKind::ConnectionRefused);
    let began = Instant::now();
    channel.deliver(&alerts).unwrap_err();
    assert!(began.elapsed() < Duration::from_millis(100), "tried once");
}

#[test]
fn a_second_server_is_used_while_the_first_is_away() {
    let (part, got) = collecting();
    let url = server(vec![part]);
    let mut options = options(&url);
    options.urls.insert(0, "nats://127.0.0.1:1".to_owned());
    let mut channel = opened(options);
    channel.outage = Outage::of_at_most(Duration::ZERO);
    channel.deliver(&deliveries(1, Format::default())).unwrap();
    assert_eq!(got.try_iter().count(), 1);
}

#[test]
fn no_secret_is_sent_to_a_server_without_the_encryption_that_is_asked_for() {
    let (sender, got) = channel();
    let plain = move |mut client: Client| {
        client.say(&format!("{INFO}\r\n"));
        sender.send(client.line()).unwrap();
    };
    let url = server(vec![Box::new(plain)]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "secret").unwrap();
    let authority = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let authorities = dir.path().join("ca.pem");
    std::fs::write(&authorities, authority.cert.pem()).unwrap();
    let mut channel = opened(NatsOptions {
        credentials: Credentials::Token(file),
        tls: Some(TlsOptions {
            authorities: Some(authorities),
            ..TlsOptions::default()
        }),
        ..options(&url)
    });
    let error = channel
        .deliver(&deliveries(1, Format::default()))
        .unwrap_err();
    assert!(
        error.source.to_string().ends_with("has no TLS"),
        "{error:?}"
    );
    assert_eq!(got.recv_timeout(Duration::from_secs(5)).unwrap(), None);
}

#[test]
fn a_stream_delivers_by_its_answer_and_an_alert_keeps_its_identifier() {
    let ids = |mut client: Client, answers: bool| {
        client.log_in();
        let (line, body) = client.message().unwrap();
        let reply = line.split(' ').nth(2).unwrap().to_owned();
        let id = body.lines().find(|line| line.starts_with("Nats-Msg-Id: "));
        let id = id.unwrap().to_owned();
        assert!(body.contains("Nats-Expected-Stream: S\r\n"), "{body}");
        assert_eq!(client.message().unwrap().0, "PING");
        client.say("PONG\r\n");
        if answers {
            let answer = r#"{"stream":"S","seq":1}"#;
            client.say(&format!("MSG {reply} 1 {}\r\n{answer}\r\n", answer.len()));
        }
        while client.message().is_some() {}
        id
    };
    let (sender, got) = channel();
    let again = sender.clone();
    let url = server(vec![
        Box::new(move |client| sender.send(ids(client, false)).unwrap()),
        Box::new(move |client| again.send(ids(client, true)).unwrap()),
    ]);
    let mut channel = opened(NatsOptions {
        jetstream: true,
        stream: "S".to_owned(),
        ..options(&url)
    });
    channel.deliver(&deliveries(1, Format::default())).unwrap();
    drop(channel);
    let all: Vec<_> = got.iter().collect();
    assert_eq!(all.len(), 2);
    assert_eq!(all[0], all[1]);
}

#[test]
fn answers_of_streams_are_told_apart() {
    let answer = |text: &str| acknowledged(None, text.as_bytes());
    assert_eq!(answer(r#"{"stream":"S","seq":7}"#), State::Delivered);
    let full = r#"{"error":{"code":400,"description":"maximum bytes exceeded"}}"#;
    let why = "the stream answered: maximum bytes exceeded".to_owned();
    assert_eq!(answer(full), State::Refused(why));
    let leaderless = r#"{"error":{"code":503,"description":"no leader"}}"#;
    let why = "the stream answered: no leader".to_owned();
    assert_eq!(answer(leaderless), State::Untaken(why));
    assert!(matches!(answer("{}"), State::Refused(_)));
    assert!(matches!(answer("hello"), State::Refused(_)));
    assert!(matches!(acknowledged(Some(503), b""), State::Untaken(_)));
}
