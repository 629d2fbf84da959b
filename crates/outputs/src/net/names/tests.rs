use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;

/// A name server on loopback that knows some IPv4 addresses, and what it was asked.
struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

const FAIL: u16 = 2;
const NO_SUCH_NAME: u16 = 3;

impl Server {
    fn start(ip: &str, port: u16, known: &[(&str, [u8; 4])]) -> Self {
        let socket = UdpSocket::bind((ip, port)).unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let known: HashMap<String, [u8; 4]> = known
            .iter()
            .map(|(name, address)| ((*name).to_owned(), *address))
            .collect();
        let log = Arc::clone(&asked);
        thread::spawn(move || {
            let mut buffer = [0; 512];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                let query = &buffer[..length];
                let name = name(query);
                log.lock().unwrap().push(name.clone());
                let mut noise = reply(query, 0, &[]);
                noise[0] ^= 0xff;
                socket.send_to(&noise, from).unwrap();
                let answer = match known.get(&name) {
                    Some([0, 0, 0, 0]) => reply(query, FAIL, &[]),
                    Some([0, 0, 0, 1]) => continue,
                    Some(address) => reply(query, 0, &[*address]),
                    None => reply(query, NO_SUCH_NAME, &[]),
                };
                socket.send_to(&answer, from).unwrap();
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn name(query: &[u8]) -> String {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8(query[at + 1..end].to_vec()).unwrap());
        at = end;
    }
    labels.join(".")
}

/// An answer with an alias in front of the addresses, as most are.
fn reply(query: &[u8], code: u16, addresses: &[[u8; 4]]) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2..4].copy_from_slice(&(0x8180 | code).to_be_bytes());
    let mut records = 0_u16;
    let mut record = |kind: u16, data: &[u8]| {
        records += 1;
        message.extend([0xc0, 12]);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1, 0, 0, 0, 60]);
        message.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        message.extend(data);
    };
    if !addresses.is_empty() {
        record(5, b"\x05alias\xc0\x0c");
    }
    for address in addresses {
        record(1, address);
    }
    message[6..8].copy_from_slice(&records.to_be_bytes());
    message
}

fn names(folder: &tempfile::TempDir, hosts: &str, resolv_conf: &str, port: u16) -> Names {
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    Names {
        hosts: write("hosts", hosts),
        resolv_conf: write("resolv.conf", resolv_conf),
        port,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn numbers_hosts_and_localhost_need_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = "10.0.0.1 one # 10.0.0.9 two\n# 10.0.0.8 one\n::1 one ONE.example\nbad two\n";
    let names = names(&folder, hosts, "", 1);
    for (host, expected) in [
        ("192.0.2.7", vec!["192.0.2.7"]),
        ("[2001:db8::1]", vec!["2001:db8::1"]),
        ("One", vec!["10.0.0.1", "::1"]),
        ("one.example.", vec!["::1"]),
        ("localhost", vec!["127.0.0.1", "::1"]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(ip).collect();
        assert_eq!(names.addresses(host, soon()).unwrap(), expected, "{host}");
    }
    // Nobody listens there.
    let error = names.addresses("two", soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn search_domains_are_tried_by_the_number_of_dots() {
    let folder = tempfile::tempdir().unwrap();
    let known = [("sink.ns.svc", [10, 1, 2, 3]), ("a.b", [10, 4, 5, 6])];
    let server = Server::start("127.0.0.1", 0, &known);
    let conf = "nameserver 127.0.0.1\nsearch other ns.svc.\noptions ndots:2\n";
    let names = names(&folder, "", conf, server.address.port());
    assert_eq!(names.addresses("sink", soon()).unwrap(), [ip("10.1.2.3")]);
    assert_eq!(server.asked(), ["sink.other", "sink.ns.svc"]);
    assert_eq!(names.addresses("a.b", soon()).unwrap(), [ip("10.4.5.6")]);
    assert_eq!(names.addresses("a.b.", soon()).unwrap(), [ip("10.4.5.6")]);
    let before = server.asked().len();
    let error = names.addresses("x.y.z", soon()).unwrap_err();
    assert_eq!(error.to_string(), "no address for x.y.z");
    let asked = server.asked()[before..].to_vec();
    assert_eq!(asked, ["x.y.z", "x.y.z.other", "x.y.z.ns.svc"]);
}

#[test]
fn a_server_that_fails_or_is_silent_leaves_the_question_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    // All of 127.0.0.0/8 is loopback, so that servers can share a port.
    let failing = [("broken", [0, 0, 0, 0]), ("silent", [0, 0, 0, 1])];
    let first = Server::start("127.0.0.1", 0, &failing);
    let port = first.address.port();
    let good = [("broken", [10, 0, 0, 1]), ("silent", [10, 0, 0, 2])];
    let second = Server::start("127.0.0.2", port, &good);
    let conf = "nameserver 127.0.0.1\nnameserver 127.0.0.2\noptions timeout:1\n";
    let both = names(&folder, "", conf, port);
    assert_eq!(both.addresses("broken", soon()).unwrap(), [ip("10.0.0.1")]);
    assert_eq!(both.addresses("silent", soon()).unwrap(), [ip("10.0.0.2")]);
    assert_eq!(second.asked(), ["broken", "silent"]);

    let alone = names(&folder, "", "nameserver 127.0.0.1", port);
    let start = Instant::now();
    let error = alone
        .addresses("silent", start + Duration::from_millis(200))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(start.elapsed() < Duration::from_secs(4));
}

#[test]
fn resolv_conf_has_defaults_and_limits() {
    let none = Configuration::parse("");
    assert_eq!(none.servers, [ip("127.0.0.1")]);
    assert_eq!((none.dots, none.attempts), (1, 2));
    let text = "; comment\nnameserver ::1\nnameserver x\nnameserver 1.1.1.1\nnameserver 2.2.2.2\n\
                nameserver 3.3.3.3\ndomain a\nsearch b c\noptions ndots:99 timeout:0 attempts:9 rotate\n";
    let all = Configuration::parse(text);
    assert_eq!(all.servers, [ip("::1"), ip("1.1.1.1"), ip("2.2.2.2")]);
    assert_eq!(all.search, ["b", "c"]);
    assert_eq!((all.dots, all.attempts), (15, 5));
    assert_eq!(all.timeout, Duration::from_secs(1));
}

#[test]
fn no_message_however_broken_is_more_than_no_answer() {
    let query = message::query("host.example", Kind::V4).unwrap();
    let whole = reply(&query, 0, &[[10, 0, 0, 1], [10, 0, 0, 2]]);
    let both = vec![ip("10.0.0.1"), ip("10.0.0.2")];
    let read = |bytes: &[u8]| message::answer(bytes, &query, Kind::V4);
    assert_eq!(read(&whole), Some(Some(Answer::Addresses(both))));
    for length in 0..whole.len() {
        match read(&whole[..length]) {
            None => assert!(length < query.len()),
            Some(Some(Answer::Addresses(some))) => assert!(some.len() < 2, "{length}"),
            other => panic!("{length}: {other:?}"),
        }
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut broken = whole.clone();
            broken[at] ^= 1 << bit;
            // Not to panic is all that is asked.
            let _ = read(&broken);
        }
    }
    // Not an answer but the question itself.
    assert_eq!(read(&query), None);
}

#[test]
fn what_is_no_name_is_not_asked() {
    let long = "a".repeat(64);
    for name in ["", ".", "a..b", long.as_str(), &"a.".repeat(130)] {
        assert_eq!(message::query(name, Kind::V4), None, "{name}");
    }
}
