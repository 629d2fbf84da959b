//! Downloads of captures stay within their memory, however slowly they are read.

mod started;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use collector::NewSecret;
use store::{CaptureAsked, CaptureEnd, NewAgent, NewCapture, Scope};

use self::started::Started;

/// More than the buffers of two sockets hold.
const PARTS: u64 = 15;
const PART: usize = 1 << 20;

struct Fixture {
    started: Started,
    operator: String,
    path: String,
}

fn fixture() -> Fixture {
    let started = started::start(|_| {});
    let (agents, _) = started.token(Scope::Agents("web".to_owned()));
    let (_, operator) = started.token(Scope::Operator);
    let store = &started.store;
    let agent = NewAgent {
        token: agents,
        hash: NewSecret::of_token().expect("random numbers").hash,
        host: "box".to_owned(),
    };
    let agent = store.enrol(agent).expect("writable");
    let new = NewCapture {
        agent,
        seconds: 1,
        actor: "test".to_owned(),
    };
    let CaptureAsked::Added(id) = store.request_capture(new).expect("writable") else {
        panic!("the agent has none")
    };
    for number in 0..PARTS {
        let next = store.add_chunk(agent, id, number, vec![7; PART]);
        assert_eq!(next.expect("writable"), Some(number + 1));
    }
    let end = CaptureEnd {
        chunks: PARTS,
        events: 1,
        lost: 0,
        failure: None,
    };
    assert!(store.end_capture(agent, id, end).expect("writable"));
    Fixture {
        started,
        operator,
        path: format!("/api/v1/captures/{}/file", id.0),
    }
}

impl Fixture {
    /// Asks for the capture, and reads nothing of the answer.
    fn ask(&self) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.started.address).expect("it listens");
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: c\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
            self.path, self.operator
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        BufReader::new(stream)
    }
}

/// Reads the head of an answer. Returns `None` if there is none within a second.
fn head(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let limit = Some(Duration::from_secs(1));
    stream.get_ref().set_read_timeout(limit).expect("a limit");
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (stream.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    Some(head.to_lowercase())
}

fn rest(mut stream: BufReader<TcpStream>) -> usize {
    let limit = Some(Duration::from_secs(30));
    stream.get_ref().set_read_timeout(limit).expect("a limit");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("it sends all");
    assert!(rest.iter().all(|byte| *byte == 7));
    rest.len()
}

#[test]
fn a_fifth_download_waits_until_a_slow_reader_has_one_of_four() {
    let whole = PART * usize::try_from(PARTS).expect("small");
    let fixture = fixture();
    let mut slow: Vec<_> = (0..4).map(|_| fixture.ask()).collect();
    for stream in &mut slow {
        let head = head(stream).expect("there is a turn");
        assert!(head.contains(&format!("content-length: {whole}")), "{head}");
    }
    let mut fifth = fixture.ask();
    assert_eq!(head(&mut fifth), None, "four are in memory");
    assert_eq!(rest(slow.remove(0)), whole);
    let mut answered = (0..10).filter_map(|_| head(&mut fifth));
    let head = answered.next().expect("a turn is free");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(rest(fifth), whole);
    // A reader that goes away gives its turn back.
    drop(slow);
    for _ in 0..3 {
        let mut next = fixture.ask();
        let head = (0..10).find_map(|_| self::head(&mut next));
        assert!(head.is_some_and(|head| head.starts_with("http/1.1 200")));
    }
}
