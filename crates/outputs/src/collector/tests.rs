mod captures;
mod slow;
mod stuck;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;

use flate2::read::GzDecoder;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ServerConfig, ServerConnection};

use super::*;
use crate::channel::testing::deliveries;
use crate::format::Format;

/// A request: its first line, its sequence number, and its lines.
type Got = (String, Option<u64>, Vec<String>);

/// In place of a status: there is no answer.
const NO_ANSWER: &str = "no answer";

/// A collector that answers with these statuses, and then takes everything.
#[derive(Clone)]
struct Fake {
    address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
    statuses: Arc<Mutex<VecDeque<&'static str>>>,
    /// What the agent is to record, as JSON.
    capture: Arc<Mutex<String>>,
    /// Answers of this status go to requests with this text in their first line.
    refused: Arc<Mutex<Option<(&'static str, &'static str)>>>,
}

fn fake() -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let fake = Fake {
        address: listener.local_addr().expect("a port"),
        got: Arc::default(),
        statuses: Arc::default(),
        capture: Arc::new(Mutex::new("null".to_owned())),
        refused: Arc::default(),
    };
    let server = fake.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            server.serve(BufReader::new(stream));
        }
    });
    fake
}

impl Fake {
    fn serve(&self, mut stream: BufReader<TcpStream>) {
        while let Some((line, sequence, lines)) = request(&mut stream) {
            let refused = *self.refused.lock().expect("no panic");
            let refused = refused.filter(|(part, _)| line.contains(part));
            let status = match refused {
                Some((_, NO_ANSWER)) => {
                    self.got
                        .lock()
                        .expect("no panic")
                        .push((line, sequence, lines));
                    // Until the sender goes.
                    let _ = request(&mut stream);
                    return;
                }
                Some((_, status)) => Some(status),
                None => self.statuses.lock().expect("no panic").pop_front(),
            };
            let status = status.unwrap_or(if line.contains("/agents") {
                "201 Created"
            } else {
                "200 OK"
            });
            let up_to = sequence.unwrap_or(0) + lines.len() as u64 - 1;
            let capture = self.capture.lock().expect("no panic").clone();
            let part = line
                .split_once("/chunks/")
                .and_then(|(_, rest)| rest.split(' ').next());
            let next = part.map_or(0, |part| part.parse::<usize>().expect("a number") + 1);
            let body = format!(
                "{{\"secret\":\"tga_x\",\"acknowledged\":{up_to},\"capture\":{capture},\"parts\":0,\"next\":{next}}}"
            );
            self.got
                .lock()
                .expect("no panic")
                .push((line, sequence, lines));
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            if stream.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// Sequence numbers and sizes of the batches.
    fn batches(&self) -> Vec<(u64, usize)> {
        let got = self.got.lock().expect("no panic");
        let batches = got
            .iter()
            .filter_map(|(_, first, lines)| Some(((*first)?, lines.len())));
        batches.collect()
    }
}

fn request(stream: &mut BufReader<TcpStream>) -> Option<Got> {
    let mut line = String::new();
    (stream.read_line(&mut line).ok()? > 0).then_some(())?;
    let (mut length, mut sequence, mut is_gzip) = (0, None, false);
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).ok()?;
        let header = header.trim_end().to_lowercase();
        let Some((name, value)) = header.split_once(": ") else {
            break;
        };
        match name {
            "content-length" => length = value.parse().ok()?,
            SEQUENCE_HEADER => sequence = value.parse().ok(),
            "content-encoding" => is_gzip = true,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let mut text = String::new();
    match is_gzip {
        true => GzDecoder::new(&*body).read_to_string(&mut text).ok()?,
        false => (&*body).read_to_string(&mut text).ok()?,
    };
    Some((line, sequence, text.lines().map(str::to_owned).collect()))
}

struct Fixture {
    folder: tempfile::TempDir,
    options: CollectorOptions,
}

fn fixture(address: SocketAddr) -> Fixture {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "tgt_x\n").expect("writable");
    let options = CollectorOptions {
        url: format!("http://{address}"),
        token_file: Some(token_file),
        tls: TlsOptions::default(),
        labels: Labels::default(),
        capture_on_alert: CaptureOnAlert::default(),
        spool: folder.path().join("spool"),
        spool_limit: 64 << 20,
        timeout: Duration::from_secs(2),
    };
    Fixture { folder, options }
}

/// A channel that sends at each delivery, however slow this machine is.
fn open(fixture: &Fixture) -> CollectorChannel {
    let channel = CollectorChannel::open(fixture.options.clone());
    CollectorChannel {
        turn: Duration::from_secs(3600),
        ..channel.expect("usable")
    }
}

/// A port at which nobody listens.
fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a port")
}

#[test]
fn alerts_are_held_until_they_are_acknowledged() {
    let fake = fake();
    let fixture = fixture(fake.address);
    let mut channel = open(&fixture);
    channel
        .deliver(&deliveries(3, Format::default()))
        .expect("delivered");
    assert_eq!((fake.batches(), channel.held()), (vec![(1, 3)], 0));
    *fake.statuses.lock().expect("no panic") = ["503 Busy"].into();
    channel
        .deliver(&deliveries(2, Format::default()))
        .expect("on disk");
    assert_eq!(channel.held(), 2);
    channel.release(false).expect("delivered");
    assert_eq!(
        (fake.batches(), channel.held()),
        (vec![(1, 3), (4, 2), (4, 2)], 0)
    );
    // Always JSON, whatever the alert stream is.
    let got = fake.got.lock().expect("no panic");
    assert!(got.last().expect("a batch").2[0].starts_with("{\"hostname\":"));
}

#[test]
fn a_run_without_a_collector_leaves_its_alerts_to_the_next() {
    let mut fixture = fixture(nobody());
    let mut channel = open(&fixture);
    channel
        .deliver(&deliveries(3, Format::default()))
        .expect("on disk");
    assert_eq!(channel.held(), 3);
    let error = loop {
        if let Err(error) = channel.release(true) {
            break error.source.to_string();
        }
    };
    assert!(error.starts_with("3 alerts wait in "), "{error}");
    assert_eq!(channel.held(), 0, "the end of the run goes on");
    drop(channel);
    let fake = fake();
    fixture.options.url = format!("http://{}", fake.address);
    let mut channel = open(&fixture);
    channel.release(false).expect("delivered");
    assert_eq!(fake.batches(), [(1, 3)]);
    channel
        .deliver(&deliveries(1, Format::default()))
        .expect("delivered");
    assert_eq!(fake.batches(), [(1, 3), (4, 1)]);
}

#[test]
fn an_agent_that_the_collector_does_not_know_enrols_again_and_numbers_anew() {
    let fake = fake();
    let fixture = fixture(fake.address);
    let mut channel = open(&fixture);
    channel
        .deliver(&deliveries(3, Format::default()))
        .expect("delivered");
    *fake.statuses.lock().expect("no panic") = ["401 Unauthorized", "401 Unauthorized"].into();
    channel
        .deliver(&deliveries(2, Format::default()))
        .expect("on disk");
    assert_eq!(channel.held(), 2);
    channel.release(false).expect("delivered");
    assert_eq!(
        (fake.batches(), channel.held()),
        (vec![(1, 3), (4, 2), (1, 2)], 0)
    );
}

/// Starts a dispatcher with a channel. Returns it, and what it tells the user.
fn telling(channel: CollectorChannel) -> (crate::Dispatcher, std::sync::mpsc::Receiver<String>) {
    let (sender, told) = std::sync::mpsc::channel();
    let sender = Mutex::new(sender);
    // The test may have ended.
    let on_problem = move |text: &str| drop(sender.lock().expect("no panic").send(text.to_owned()));
    let settings = crate::Settings::new("box".into(), Arc::new(on_problem));
    let prepared = crate::Dispatcher::prepare(settings, vec![Box::new(channel)]);
    (prepared.start().expect("a thread"), told)
}

/// Nothing ever happens in the program that is watched.
#[test]
fn an_agent_without_alerts_tells_that_its_token_is_refused_and_when_it_is_taken() {
    let fake = fake();
    let fixture = fixture(fake.address);
    *fake.statuses.lock().expect("no panic") = ["401 Unauthorized"; 3].into();
    let (dispatcher, told) = telling(open(&fixture));
    let next = || {
        told.recv_timeout(Duration::from_secs(20))
            .expect("it is told")
    };
    let first = next();
    assert!(
        first.contains("the collector answered 401 Unauthorized"),
        "{first}"
    );
    assert!(first.contains("; make a new token with "), "{first}");
    assert_eq!(next(), "the collector gets alerts now");
    drop(dispatcher);
    assert!(told.iter().next().is_none(), "not at each attempt");
}

/// What an agent tells whose folder was changed, when its failures have lasted for some seconds.
fn told_after(change: impl FnOnce(&Fixture, &mut CollectorChannel)) -> String {
    let fake = fake();
    let fixture = fixture(fake.address);
    let mut channel = open(&fixture);
    change(&fixture, &mut channel);
    let (_dispatcher, told) = telling(channel);
    told.recv_timeout(Duration::from_secs(30))
        .expect("it is told")
        .replace(&fixture.folder.path().display().to_string(), "")
}

const LASTING: &str = "; it is of this machine, not of the collector; this goes on trying";

#[test]
fn what_fails_on_this_machine_is_told_with_its_path() {
    let told =
        told_after(|fixture, _| std::fs::write(&fixture.options.spool, "").expect("writable"));
    let begin = "the collector gets no alerts, they are lost: cannot open the spool /spool: ";
    assert!(told.starts_with(begin) && told.ends_with(LASTING), "{told}");
    // It was readable at the start.
    let told = told_after(|fixture, _| {
        std::fs::remove_file(fixture.folder.path().join("token")).expect("it is there");
    });
    let begin =
        "the collector gets no alerts, they wait in /spool: cannot read the token in /token: ";
    assert!(told.starts_with(begin) && told.ends_with(LASTING), "{told}");
    let told = told_after(|fixture, channel| {
        channel.spool().expect("usable");
        let identity = fixture.options.spool.join("0/identity.json");
        std::os::unix::fs::symlink("/no/such/file", identity).expect("writable");
    });
    let begin =
        "the collector gets no alerts, they wait in /spool: cannot write /spool/0/identity.json: ";
    assert!(told.starts_with(begin) && told.ends_with(LASTING), "{told}");
}

/// A server with a certificate that nobody trusts, which shakes hands for ever.
fn stranger() -> SocketAddr {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(own.signing_key.serialize_pem().as_bytes());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("usual versions")
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.expect("a key"))
        .expect("they match");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a port");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut session = ServerConnection::new(Arc::clone(&config)).expect("usable");
            // The client hangs up.
            let _ = session.complete_io(&mut stream);
        }
    });
    address
}

#[test]
fn an_agent_tells_how_to_trust_an_unknown_certificate() {
    let mut fixture = fixture(nobody());
    let authorities = fixture.folder.path().join("ca.pem");
    let other = rcgen::generate_simple_self_signed(["other".to_owned()]).expect("a certificate");
    std::fs::write(&authorities, other.cert.pem()).expect("writable");
    fixture.options.url = format!("https://localhost:{}", stranger().port());
    fixture.options.tls.authorities = Some(authorities);
    let (_dispatcher, told) = telling(open(&fixture));
    let first = told
        .recv_timeout(Duration::from_secs(20))
        .expect("it is told");
    assert!(
        first.ends_with("trust its certificate with --collector-ca FILE"),
        "{first}"
    );
}

#[test]
fn a_record_that_the_collector_refuses_does_not_stop_the_others() {
    let fake = fake();
    let fixture = fixture(fake.address);
    let mut channel = open(&fixture);
    // Enrolment and inventory, then batches.
    let statuses = ["201 Created", "200 OK", "400 Bad", "200 OK", "400 Bad"];
    *fake.statuses.lock().expect("no panic") = statuses.into();
    channel
        .deliver(&deliveries(3, Format::default()))
        .expect("delivered");
    // All, the first alone, which is taken; the rest, the second alone, that it is lost, the third.
    let sizes: Vec<_> = fake.batches().into_iter().map(|(first, _)| first).collect();
    assert_eq!(
        (sizes.first(), sizes.last(), channel.held()),
        (Some(&1), Some(&3), 0)
    );
}

#[test]
fn a_missing_token_is_an_error_at_the_start() {
    let fixture = fixture(nobody());
    std::fs::write(fixture.folder.path().join("token"), "\n").expect("writable");
    let error = CollectorChannel::open(fixture.options.clone()).expect_err("no token");
    assert!(
        error.to_string().starts_with("cannot read the token in "),
        "{error}"
    );
}

#[test]
fn the_inventory_goes_again_when_something_else_is_in_force() {
    let fake = fake();
    let fixture = fixture(fake.address);
    let mut channel = open(&fixture);
    let slot = ReportSlot::default();
    channel.keep_reports(&slot);
    let mut deliver = || {
        channel
            .deliver(&deliveries(1, Format::default()))
            .expect("delivered");
        let mut got = fake.got.lock().expect("no panic");
        let got = std::mem::take(&mut *got).into_iter();
        let sent = got.filter(|(line, ..)| line.starts_with("PUT /api/v1/inventory "));
        sent.map(|(_, _, lines)| lines.concat()).collect::<Vec<_>>()
    };
    // After enrolment, at once.
    let first = deliver();
    assert!(
        first.len() == 1 && !first[0].contains("engine"),
        "{first:?}"
    );
    assert!(deliver().is_empty());
    let report = crate::AgentReport {
        engine: "notify".to_owned(),
        ..crate::AgentReport::default()
    };
    slot.fill(Box::new(move || report.clone()));
    let started = deliver();
    assert!(
        started.len() == 1 && started[0].contains("\"engine\":\"notify\""),
        "{started:?}"
    );
    assert!(deliver().is_empty());
    slot.change();
    assert_eq!(deliver(), started);
}
