//! What `tollgate serve` takes from 200 agents at once, as a process of its own: alerts a second, memory, processor
//! time, and how long readers wait meanwhile. Slow; one JSON object a line.
//!
//!     TOLLGATE_TEST_SLOW=1 TOLLGATE_COLLECTOR_LOAD=FOLDER cargo test --release -p e2e --test collector_load -- \
//!         --nocapture --test-threads 1
//!
//! `TOLLGATE_COLLECTOR_LOAD_SECONDS` sets the time for each database, 30 if it does not. Each object has the load of
//! the machine before, so that figures of a machine that does something else are known as such.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use e2e::collector::{Collector, get, request, token_on};
use e2e::{Scratch, need_slow, program};
use serde_json::{Value, json};

/// Folder for the results.
const FOLDER: &str = "TOLLGATE_COLLECTOR_LOAD";
const SECONDS: &str = "TOLLGATE_COLLECTOR_LOAD_SECONDS";
const AGENTS: usize = 200;
/// Alerts in a batch, as an agent with much to say sends them.
const BATCH: u64 = 500;
/// Different batches. Their texts repeat; numbers and times do not matter to the store.
const BODIES: u64 = 20;

/// What agents have seen.
#[derive(Default)]
struct Seen {
    acknowledged: AtomicU64,
    /// Answers that a batch has to come again.
    busy: AtomicU64,
}

/// A number that looks random, and is the same in each run.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n ^ (n >> 27)
}

fn alert(n: u64) -> String {
    let random = mixed(n);
    let (program, user) = (random % 40, random / 40 % 500);
    let file = format!(
        "/srv/data/{}/file",
        ["etc", "var", "home", "run"][(random % 4) as usize]
    );
    let fields = json!({"proc.name": format!("program-{program}"), "fd.name": file, "proc.pid": random % 32_768,
        "proc.cmdline": format!("program-{program} --config {file}"), "user.name": format!("user{user}")});
    json!({"rule": format!("Rule {}", random % 60), "priority": "Warning", "output_fields": fields,
           "output": format!("{file} opened by program-{program} of user{user}")})
    .to_string()
}

/// A connection that is kept, as agents keep theirs.
struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Self {
            reader: BufReader::new(stream),
        }
    }

    fn send(&mut self, (first, secret): (u64, &str), body: &str) -> (u16, Value) {
        let head = format!(
            "POST /api/v1/batches HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\
             Tollgate-Sequence: {first}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let stream = self.reader.get_mut();
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(body.as_bytes()).expect("it reads");
        let (mut status, mut length, mut line) = (0, 0, String::new());
        while line != "\r\n" {
            line.clear();
            assert!(self.reader.read_line(&mut line).expect("it answers") > 0);
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                status = rest[..3].parse().expect("a number");
            }
            if let Some(rest) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = rest.trim().parse().expect("a number");
            }
        }
        let mut answer = vec![0; length];
        self.reader.read_exact(&mut answer).expect("it answers");
        (status, serde_json::from_slice(&answer).expect("JSON"))
    }
}

/// Sends batches until the time is over.
fn agent(address: SocketAddr, secret: &str, bodies: &[String], until: Instant, seen: &Seen) {
    let mut connection = Connection::open(address);
    let (mut first, mut at) = (1, usize::try_from(mixed(first_byte(secret))).unwrap_or(0));
    while Instant::now() < until {
        at = (at + 1) % bodies.len();
        match connection.send((first, secret), &bodies[at]) {
            (200, answer) => {
                assert_eq!(answer["stored"], BATCH, "{answer}");
                first += BATCH;
                seen.acknowledged.fetch_add(BATCH, Ordering::Relaxed);
            }
            (503, _) => {
                seen.busy.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(100));
            }
            (status, answer) => panic!("{status}: {answer}"),
        }
    }
}

fn first_byte(text: &str) -> u64 {
    text.bytes().map(u64::from).sum()
}

fn enrol(address: SocketAddr, token: &str, number: usize) -> String {
    let body = json!({"host": format!("host-{number}")}).to_string();
    let answer = request(address, "POST /api/v1/agents HTTP/1.1", token, &body);
    let (status, answer) = answer.expect("it answers");
    assert_eq!(status, 201, "{answer}");
    answer["secret"].as_str().expect("a secret").to_owned()
}

/// Returns a line of a process's status in KiB.
fn memory(pid: u32, line: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("procfs");
    let found = text
        .lines()
        .find(|it| it.starts_with(line))
        .expect("a line");
    let number = found.split_whitespace().nth(1).expect("a number");
    number.parse().expect("a number")
}

/// Asks for what the first page shows until `is_over`, and returns how long that took, sorted, in microseconds.
fn readers(address: SocketAddr, reader: &str, is_over: &AtomicBool) -> Vec<u64> {
    let mut times = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        for path in ["/api/v1/overview", "/api/v1/groups?limit=50"] {
            let began = Instant::now();
            get(address, path, reader);
            times.push(u64::try_from(began.elapsed().as_micros()).expect("short"));
        }
        thread::sleep(Duration::from_millis(200));
    }
    times.sort_unstable();
    times
}

/// Loads a collector on a store and reports.
fn load(database: &str, url: &str) {
    let seconds = std::env::var(SECONDS).map_or(30, |it| it.parse().expect("a number"));
    let load_before = std::fs::read_to_string("/proc/loadavg").expect("procfs");
    let token = token_on(url, &["--agent-class", "web"]);
    let reader = token_on(url, &["--role", "viewer"]);
    let collector = Collector::start_on(url, "127.0.0.1:0", &["--insecure"]);
    let (address, pid) = (collector.address(), collector.child.id());
    let secrets: Vec<_> = (0..AGENTS).map(|n| enrol(address, &token, n)).collect();
    let body = |n: u64| {
        let lines: Vec<_> = (n * BATCH..(n + 1) * BATCH).map(alert).collect();
        lines.join("\n")
    };
    let bodies: Vec<_> = (0..BODIES).map(body).collect();
    let (seen, is_over) = (Seen::default(), AtomicBool::new(false));
    let start = Barrier::new(AGENTS);
    let began = Instant::now();
    let waited = thread::scope(|scope| {
        let reading = scope.spawn(|| readers(address, &reader, &is_over));
        let agents = secrets.iter().map(|secret| {
            scope.spawn(|| {
                start.wait();
                let until = began + Duration::from_secs(seconds);
                agent(address, secret, &bodies, until, &seen);
            })
        });
        for agent in agents.collect::<Vec<_>>() {
            agent.join().expect("no panic");
        }
        is_over.store(true, Ordering::Relaxed);
        reading.join().expect("no panic")
    });
    let took = began.elapsed();
    let acknowledged = seen.acknowledged.load(Ordering::Relaxed);
    let agents = get(address, "/api/v1/agents", &reader);
    let sum = |member: &str| {
        let agents = agents["agents"].as_array().expect("a list").iter();
        agents
            .filter_map(|agent| agent[member].as_u64())
            .sum::<u64>()
    };
    assert_eq!((sum("acknowledged"), sum("missing")), (acknowledged, 0));
    let at = |part: usize| waited.get(waited.len() * part / 100).copied();
    report(&json!({
        "database": database, "program": program(), "agents": AGENTS, "alerts_in_a_batch": BATCH,
        "seconds": took.as_secs_f64(), "acknowledged": acknowledged,
        "alerts_per_second": acknowledged * 1000 / u64::try_from(took.as_millis()).expect("short").max(1),
        "busy": seen.busy.load(Ordering::Relaxed), "rss_kib": memory(pid, "VmRSS:"), "rss_peak_kib": memory(pid, "VmHWM:"),
        "reads": waited.len(), "read_p50_us": at(50), "read_p95_us": at(95), "load_before": load_before.trim(),
    }));
    assert!(acknowledged > 0, "nothing was acknowledged");
}

/// Prints a result, and adds it to the file in the folder of results.
fn report(result: &Value) {
    println!("{result}");
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("load.jsonl"));
    writeln!(file.expect("a file"), "{result}").expect("the folder is writable");
}

#[test]
fn agents_load_a_collector_with_sqlite() {
    need_slow!();
    let scratch = Scratch::new();
    load(
        "SQLite",
        &format!("sqlite:{}", scratch.path().join("c.db").display()),
    );
}

#[test]
fn agents_load_a_collector_with_postgresql() {
    need_slow!();
    let server = testing::postgres::Server::start();
    load("PostgreSQL", &server.database());
}
