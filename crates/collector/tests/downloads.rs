//! Downloads of captures stay within their memory, however slowly they are read.

mod started;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use store::{AgentId, Scope};

use self::started::{PART, Started};

/// More than the buffers of two sockets hold.
const PARTS: u64 = 15;

/// Downloads that are answered at the same time.
const TURNS: usize = 16;

struct Fixture {
    started: Started,
    agent: AgentId,
    operator: String,
    path: String,
}

fn fixture() -> Fixture {
    let started = started::start(|_| {});
    let (_, operator) = started.token(Scope::Operator);
    let agent = started.enrol();
    let id = started.capture(agent, PARTS);
    Fixture {
        started,
        agent,
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

impl Fixture {
    /// Asks for the capture, and returns the status.
    fn ask_status(&self) -> u16 {
        let head = head(&mut self.ask()).expect("it answers");
        let status = head.split(' ').nth(1).expect("a status");
        status.parse().expect("a number")
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
fn a_download_beyond_sixteen_waits_until_a_slow_reader_has_its_own() {
    let whole = PART * usize::try_from(PARTS).expect("small");
    let fixture = fixture();
    let mut slow: Vec<_> = (0..TURNS).map(|_| fixture.ask()).collect();
    for stream in &mut slow {
        let head = head(stream).expect("there is a turn");
        assert!(head.contains(&format!("content-length: {whole}")), "{head}");
    }
    let mut further = fixture.ask();
    assert_eq!(head(&mut further), None, "the others are in memory");
    assert_eq!(rest(slow.remove(0)), whole);
    let mut answered = (0..10).filter_map(|_| head(&mut further));
    let head = answered.next().expect("a turn is free");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(rest(further), whole);
    // A reader that goes away gives its turn back.
    drop(slow);
    for _ in 0..3 {
        let mut next = fixture.ask();
        let head = (0..10).find_map(|_| self::head(&mut next));
        assert!(head.is_some_and(|head| head.starts_with("http/1.1 200")));
    }
}

#[test]
fn a_capture_that_is_deleted_meanwhile_is_not_taken_for_whole() {
    let whole = PART * usize::try_from(PARTS).expect("small");
    let fixture = fixture();
    let mut stream = fixture.ask();
    let head = head(&mut stream).expect("there is a turn");
    assert!(head.contains(&format!("content-length: {whole}")), "{head}");
    // Twenty later ones are kept.
    for _ in 0..20 {
        fixture.started.capture(fixture.agent, 1);
    }
    let mut rest = Vec::new();
    // It may end with a reset.
    let _ended = stream.read_to_end(&mut rest);
    assert!(!rest.is_empty() && rest.len() < whole, "{}", rest.len());
    assert_eq!(fixture.ask_status(), 404);
}
