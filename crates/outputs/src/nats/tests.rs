mod closed;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::*;
use crate::channel::ReceiverState;
use crate::channel::testing::deliveries;
use crate::format::Format;

const INFO: &str = r#"INFO {"max_payload":400,"headers":true}"#;

/// One connection of a client, as a server sees it.
struct Client {
    stream: BufReader<TcpStream>,
}

/// What a client publishes.
enum Published {
    /// An alert: its line and what follows that.
    Alert(String, String),
    /// The empty message to the client itself.
    Barrier(String),
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

    /// The next message. Pings are answered, subscriptions taken.
    fn published(&mut self) -> Option<Published> {
        loop {
            let line = self.line()?;
            let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match verb {
                "PING" => self.say("PONG\r\n"),
                "PUB" | "HPUB" => {
                    let size: usize = rest.rsplit(' ').next()?.parse().ok()?;
                    let mut body = vec![0; size + 2];
                    self.stream.read_exact(&mut body).ok()?;
                    body.truncate(size);
                    if rest.starts_with("_INBOX.") {
                        let subject = rest.split(' ').next()?.to_owned();
                        return Some(Published::Barrier(subject));
                    }
                    return Some(Published::Alert(line, String::from_utf8(body).ok()?));
                }
                "SUB" => assert!(rest.starts_with("_INBOX."), "{line}"),
                "PONG" => return Some(Published::Alert(line, String::new())),
                _ => panic!("the client says {line}"),
            }
        }
    }

    /// The alerts before a barrier, and the barrier.
    fn batch(&mut self) -> Option<(Vec<(String, String)>, String)> {
        let mut alerts = Vec::new();
        loop {
            match self.published()? {
                Published::Alert(line, body) => alerts.push((line, body)),
                Published::Barrier(subject) => return Some((alerts, subject)),
            }
        }
    }

    /// Lets a barrier arrive. The subscription to it is the client's first.
    fn acknowledge(&mut self, barrier: &str) {
        self.say(&format!("MSG {barrier} 1 0\r\n\r\n"));
    }

    /// Lets it in; gives what it said of itself.
    fn log_in(&mut self) -> String {
        self.say(&format!("{INFO}\r\n"));
        let connect = self.line().expect("CONNECT");
        assert_eq!(self.line().expect("more"), "PING");
        self.say("PONG\r\n");
        connect
    }

    /// Serves until the client goes.
    fn swallow(&mut self) {
        while self.published().is_some() {}
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

/// Makes a channel try once, and wait longer than any server here needs, however busy the machine is.
fn once_in_good_time(channel: &mut NatsChannel) {
    channel.outage = Outage::of_at_most(Duration::ZERO);
    channel.options.timeout = Duration::from_secs(20);
}

fn opened(options: NatsOptions) -> NatsChannel {
    let mut channel = NatsChannel::open(options).unwrap();
    channel.outage = Outage::of_at_most(Duration::from_secs(2));
    channel
}

/// Serves until the client goes; gives the alerts.
fn collecting() -> (Part, Receiver<(String, String)>) {
    let (sender, got) = channel();
    let part = move |mut client: Client| {
        client.log_in();
        while let Some((alerts, barrier)) = client.batch() {
            for alert in alerts {
                sender.send(alert).expect("the test waits");
            }
            client.acknowledge(&barrier);
        }
    };
    (Box::new(part), got)
}

#[test]
fn alerts_are_published_in_order_and_delivered_when_the_barrier_arrives() {
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
        client.swallow();
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
fn pings_of_the_server_are_answered() {
    let (sender, answers) = channel();
    let pinging = move |mut client: Client| {
        client.log_in();
        client.say("PING\r\n");
        while let Some(published) = client.published() {
            match published {
                Published::Barrier(barrier) => client.acknowledge(&barrier),
                Published::Alert(line, _) if line == "PONG" => sender.send(()).unwrap(),
                Published::Alert(..) => {}
            }
        }
    };
    let url = server(vec![Box::new(pinging)]);
    opened(options(&url))
        .deliver(&deliveries(1, Format::default()))
        .unwrap();
    answers.recv_timeout(Duration::from_secs(5)).unwrap();
}

/// The counters and the error of some alerts at a server that answers a batch so.
fn answered(count: usize, answer: fn(&str, usize) -> String) -> DeliveryError {
    let answering = move |mut client: Client| {
        client.log_in();
        while let Some((alerts, barrier)) = client.batch() {
            client.say(&answer(&barrier, alerts.len()));
        }
    };
    let url = server(vec![Box::new(answering)]);
    let mut channel = opened(options(&url));
    let alerts = deliveries(count, Format::default());
    channel.deliver(&alerts).unwrap_err()
}

#[test]
fn what_a_server_refuses_is_counted_apart_and_not_sent_again() {
    let error = answered(1, |barrier, _| {
        format!("-ERR 'Permissions Violation for Publish to \"a.t\"'\r\nMSG {barrier} 1 0\r\n\r\n")
    });
    assert_eq!(
        (error.delivered, error.rejected, error.receiver),
        (0, 1, ReceiverState::Failing)
    );
    let said = error.source.to_string();
    assert!(said.contains("Permissions Violation"), "{said}");
}

#[test]
fn no_refusal_of_a_large_batch_is_missed() {
    // All at once, so that the client reads the barrier before it has passed on the last refusal.
    let error = answered(256, |barrier, count| {
        let refusal =
            |subject| format!("-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n");
        format!(
            "{}{}MSG {barrier} 1 0\r\n\r\n",
            refusal(barrier).repeat(count - 1),
            refusal("a.t")
        )
    });
    assert_eq!((error.delivered, error.rejected), (0, 256));
}

#[test]
fn a_refused_barrier_proves_that_the_server_has_read_it() {
    let refusing = |mut client: Client| {
        client.log_in();
        while let Some((_, barrier)) = client.batch() {
            client.say(&format!(
                "-ERR 'Permissions Violation for Publish to \"{barrier}\"'\r\n"
            ));
        }
    };
    let url = server(vec![Box::new(refusing)]);
    let mut channel = opened(options(&url));
    channel.deliver(&deliveries(3, Format::default())).unwrap();
}

#[test]
fn an_account_without_subscriptions_is_told_what_it_needs() {
    let error = answered(2, |_, _| {
        "-ERR 'Permissions Violation for Subscription to \"_INBOX.x.*\"'\r\n".to_owned()
    });
    assert_eq!((error.delivered, error.rejected), (0, 2));
    let said = error.source.to_string();
    assert!(said.contains("needs to subscribe to `_INBOX.>`"), "{said}");
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
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "it waits 10 s for a server that is away"
    );
}

#[test]
fn alerts_are_lost_in_time_while_nobody_listens() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let mut channel = opened(options(&format!("nats://{address}")));
    channel.outage = Outage::of_at_most(Duration::from_secs(1));
    let alerts = deliveries(1, Format::default());
    let error = channel.deliver(&alerts).unwrap_err();
    assert_eq!((error.delivered, error.rejected), (0, 0));
    assert_eq!(error.source.kind(), ErrorKind::ConnectionRefused);
    let began = Instant::now();
    channel.deliver(&alerts).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(1), "tried once");
}

#[test]
fn a_second_server_is_used_while_the_first_is_away() {
    let (part, got) = collecting();
    let url = server(vec![part]);
    let mut options = options(&url);
    options.urls.insert(0, "nats://127.0.0.1:1".to_owned());
    let mut channel = opened(options);
    once_in_good_time(&mut channel);
    channel.deliver(&deliveries(1, Format::default())).unwrap();
    assert_eq!(got.try_iter().count(), 1);
}

#[test]
fn no_secret_is_sent_to_a_server_without_the_encryption_that_is_asked_for() {
    let (sender, got) = channel();
    let plain = move |mut client: Client| {
        client.say(&format!("{INFO}\r\n"));
        let mut greeting = [0; 16];
        client.stream.read_exact(&mut greeting).unwrap();
        client.say("-ERR 'Unknown Protocol Operation'\r\n");
        let mut rest = greeting.to_vec();
        client.stream.read_to_end(&mut rest).unwrap();
        sender.send(rest).unwrap();
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
    once_in_good_time(&mut channel);
    let error = channel
        .deliver(&deliveries(1, Format::default()))
        .unwrap_err();
    assert_eq!((error.delivered, error.rejected), (0, 1));
    let said = error.source.to_string();
    assert!(said.starts_with("cannot encrypt the connection"), "{said}");
    let got = got.recv_timeout(Duration::from_secs(5)).unwrap();
    // A handshake record, not `CONNECT`.
    assert_eq!(got[0], 0x16, "{got:?}");
    let has = |text: &[u8]| got.windows(text.len()).any(|window| window == text);
    assert!(!has(b"secret") && !has(b"CONNECT"), "{got:?}");
}

/// The identifier of the alert that a client publishes, and the subject for the answer.
fn stored(client: &mut Client) -> (String, String) {
    let Some(Published::Alert(line, body)) = client.published() else {
        panic!("no alert");
    };
    let reply = line.split(' ').nth(2).unwrap().to_owned();
    let id = body.lines().find(|line| line.starts_with("Nats-Msg-Id: "));
    assert!(body.contains("Nats-Expected-Stream: S\r\n"), "{body}");
    (id.unwrap().to_owned(), reply)
}

fn jetstream(url: &str) -> NatsChannel {
    opened(NatsOptions {
        jetstream: true,
        stream: "S".to_owned(),
        ..options(url)
    })
}

#[test]
fn a_stream_delivers_by_its_answer_and_an_alert_keeps_its_identifier() {
    let ids = |mut client: Client, answers: bool| {
        client.log_in();
        let (id, reply) = stored(&mut client);
        if answers {
            let answer = r#"{"stream":"S","seq":1}"#;
            client.say(&format!("MSG {reply} 0 {}\r\n{answer}\r\n", answer.len()));
        }
        client.swallow();
        id
    };
    let (sender, got) = channel();
    let again = sender.clone();
    let url = server(vec![
        Box::new(move |client| sender.send(ids(client, false)).unwrap()),
        Box::new(move |client| again.send(ids(client, true)).unwrap()),
    ]);
    let mut channel = jetstream(&url);
    channel.deliver(&deliveries(1, Format::default())).unwrap();
    drop(channel);
    let all: Vec<_> = got.iter().collect();
    assert_eq!(all.len(), 2);
    assert_eq!(all[0], all[1]);
}

/// What becomes of an alert when the stream answers so, and what is said of it.
fn by_answer(header: &'static str, answer: &'static str) -> (State, String) {
    let answering = move |mut client: Client| {
        client.log_in();
        let (_, reply) = stored(&mut client);
        let (head, total) = (header.len(), header.len() + answer.len());
        let message = match head {
            0 => format!("MSG {reply} 0 {total}"),
            _ => format!("HMSG {reply} 0 {head} {total}"),
        };
        client.say(&format!("{message}\r\n{header}{answer}\r\n"));
        client.swallow();
    };
    let url = server(vec![Box::new(answering)]);
    let mut channel = jetstream(&url);
    once_in_good_time(&mut channel);
    let mut letters = [Letter {
        subject: "a.t".to_owned(),
        id: "1".to_owned(),
        stream: Some("S".to_owned()),
        payload: b"text".to_vec(),
        state: State::Waiting,
    }];
    let error = channel.publish(&mut letters).err();
    let [letter] = letters;
    (
        letter.state,
        error.map_or_else(String::new, |error| error.to_string()),
    )
}

#[test]
fn answers_of_streams_are_told_apart() {
    let (state, _) = by_answer("", r#"{"stream":"S","seq":7}"#);
    assert_eq!(state, State::Delivered);
    let full = r#"{"error":{"code":400,"description":"maximum bytes exceeded"}}"#;
    let (state, _) = by_answer("", full);
    let State::Refused(why) = state else {
        panic!("{state:?}");
    };
    assert!(
        why.starts_with("the stream answered: ") && why.contains("maximum bytes exceeded"),
        "{why}"
    );
    let (state, said) = by_answer("", r#"{"error":{"code":503,"description":"no leader"}}"#);
    assert!(matches!(state, State::Untaken(_)), "{state:?}");
    assert!(said.contains("no leader"), "{said}");
    for other in ["{}", "hello"] {
        let (state, _) = by_answer("", other);
        assert!(matches!(state, State::Refused(_)), "{other}: {state:?}");
    }
    let (state, said) = by_answer("NATS/1.0 503\r\n\r\n", "");
    assert!(matches!(state, State::Untaken(_)), "{state:?}");
    assert_eq!(said, "no stream takes the subject");
}
