//! What a collector takes from 200 agents at once, in a process of its own: alerts a second, memory, processor time, and how long
//! readers wait meanwhile. Slow; prints one JSON object a line.
//!
//!     TOLLGATE_TEST_SLOW=1 TOLLGATE_COLLECTOR_RESULTS=FOLDER cargo test --release -p collector --test load -- \
//!         --nocapture --test-threads 1
//!
//! `TOLLGATE_COLLECTOR_LOAD_SECONDS` sets the time for each database, 30 if it does not. Each object has the load of
//! the machine before, so that figures of a machine that does something else are known as such.

mod server;

use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use store::Scope;

use server::connection::Connection;
use server::{Server, load_average, report, summary};

const SECONDS: &str = "TOLLGATE_COLLECTOR_LOAD_SECONDS";
const AGENTS: usize = 200;
/// Alerts in a batch, as an agent with much to say sends them.
const BATCH: u64 = 500;
/// Different batches. Their texts repeat; numbers and times do not matter to the store.
const BODIES: u64 = 20;
/// Agents with different alerts, if they are spread as usual.
const KINDS: u64 = 40;

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

/// How alerts are spread over groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    /// An agent has 12 groups, as one whose workload breaks a few rules again and again.
    Usual,
    /// An agent has 120 groups, the same as all others.
    Many,
}

fn alert(spread: Spread, agent: u64, n: u64) -> String {
    let random = mixed(n);
    let user = random / 40 % 500;
    let (rule, program) = match spread {
        Spread::Many => (random % 60, random % 40),
        Spread::Usual => (agent * 7 % 60 + random % 6, agent % 40),
    };
    let folder = ["etc", "var", "home", "run"][usize::try_from(random % 4).expect("small")];
    let file = format!("/srv/data/{folder}/file");
    let fields = json!({"proc.name": format!("program-{program}"), "fd.name": file, "proc.pid": random % 32_768,
        "proc.cmdline": format!("program-{program} --config {file}"), "user.name": format!("user{user}")});
    json!({"rule": format!("Rule {rule}"), "priority": "Warning", "output_fields": fields,
           "output": format!("{file} opened by program-{program} of user{user}")})
    .to_string()
}

/// Sends batches from `at` on until the time is over.
fn agent(
    address: SocketAddr,
    (secret, mut at): (&str, usize),
    (bodies, until): (&[String], Instant),
    seen: &Seen,
) {
    let mut connection = Connection::open(address);
    let mut first = 1;
    while Instant::now() < until {
        at = (at + 1) % bodies.len();
        let head = format!("POST /api/v1/batches HTTP/1.1\r\nTollgate-Sequence: {first}");
        let (status, answer) = connection.ask(&head, secret, &bodies[at]);
        match status {
            200 => {
                let answer: Value = serde_json::from_slice(&answer).expect("JSON");
                assert_eq!(answer["stored"], BATCH, "{answer}");
                first += BATCH;
                seen.acknowledged.fetch_add(BATCH, Ordering::Relaxed);
            }
            503 => {
                seen.busy.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(100));
            }
            status => panic!("{status}: {}", String::from_utf8_lossy(&answer)),
        }
    }
}

/// Asks for what the first page shows until `is_over`, and returns how long that took, in microseconds.
fn readers(address: SocketAddr, reader: &str, is_over: &AtomicBool) -> Vec<u64> {
    let (mut times, mut connection) = (Vec::new(), Connection::open(address));
    while !is_over.load(Ordering::Relaxed) {
        for path in ["/api/v1/overview", "/api/v1/groups?limit=50"] {
            let began = Instant::now();
            let (status, _) = connection.ask(&format!("GET {path} HTTP/1.1"), reader, "");
            assert_eq!(status, 200, "{path}");
            times.push(u64::try_from(began.elapsed().as_micros()).expect("short"));
        }
        thread::sleep(Duration::from_millis(200));
    }
    times
}

/// Sends from all agents at once, and returns the times of readers.
fn send(
    server: &Server,
    (secrets, reader): (&[String], &str),
    (spread, seconds): (Spread, u64),
    seen: &Seen,
) -> Vec<u64> {
    let body = |agent: u64, n: u64| {
        let lines = (n * BATCH..(n + 1) * BATCH).map(|n| alert(spread, agent, n));
        lines.collect::<Vec<_>>().join("\n")
    };
    let kinds = if spread == Spread::Many { 1 } else { KINDS };
    let bodies = (0..kinds).map(|agent| (0..BODIES).map(|n| body(agent, n)).collect());
    let bodies: Vec<Vec<String>> = bodies.collect();
    let (start, is_over) = (Barrier::new(AGENTS), AtomicBool::new(false));
    let until = Instant::now() + Duration::from_secs(seconds);
    thread::scope(|scope| {
        let reading = scope.spawn(|| readers(server.address, reader, &is_over));
        let (start, bodies) = (&start, &bodies);
        let agents = secrets.iter().enumerate().map(|(n, secret)| {
            scope.spawn(move || {
                start.wait();
                let bodies = &bodies[n % bodies.len()];
                agent(server.address, (secret, n), (bodies, until), seen);
            })
        });
        for agent in agents.collect::<Vec<_>>() {
            agent.join().expect("no panic");
        }
        is_over.store(true, Ordering::Relaxed);
        reading.join().expect("no panic")
    })
}

/// Loads a collector on a store and reports.
fn load(database: &str, url: &str, spread: Spread) {
    let seconds = std::env::var(SECONDS).map_or(30, |it| it.parse().expect("a number"));
    let load_before = load_average();
    let store = server::open(url);
    let agents = server::enrol(&*store, AGENTS);
    let secrets: Vec<String> = agents.iter().map(|agent| agent.1.clone()).collect();
    let reader = server::token(&*store, Scope::Viewer);
    let server = Server::start(url);
    let (seen, began) = (Seen::default(), Instant::now());
    let (server_before, client_before) = (server.cpu_seconds(), server::own_cpu_seconds());
    let waited = send(&server, (&secrets, &reader), (spread, seconds), &seen);
    let took = began.elapsed();
    let acknowledged = seen.acknowledged.load(Ordering::Relaxed);
    // What the store has is what was acknowledged, no more and no less.
    let stored = store.statistics().expect("readable").alerts;
    let all = store.agents().expect("readable");
    let sum: u64 = all.iter().map(|agent| agent.acknowledged).sum();
    assert_eq!((sum, stored), (acknowledged, acknowledged));
    let (rss, peak) = server.memory_kib();
    let result = json!({
        "database": database, "spread": format!("{spread:?}"), "agents": AGENTS, "alerts_in_a_batch": BATCH, "optimised": !cfg!(debug_assertions),
        "seconds": took.as_secs_f64(), "acknowledged": acknowledged,
        "alerts_per_second": acknowledged * 1000 / u64::try_from(took.as_millis()).expect("short").max(1),
        "busy": seen.busy.load(Ordering::Relaxed), "server_rss_kib": rss, "server_rss_peak_kib": peak,
        "server_cpu_seconds": server.cpu_seconds() - server_before,
        "client_cpu_seconds": server::own_cpu_seconds() - client_before,
        "reads": summary(waited), "load_average_before": load_before, "load_average_after": load_average(),
    });
    report("load.jsonl", &result);
    assert!(acknowledged > 0, "nothing was acknowledged");
}

#[test]
fn serves() {
    server::serves();
}

fn load_sqlite(spread: Spread) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("c.db");
    load("SQLite", &format!("sqlite:{}", path.display()), spread);
}

fn load_postgresql(spread: Spread) {
    let server = testing::postgres::Server::start();
    load("PostgreSQL", &server.database(), spread);
}

#[test]
fn agents_load_a_collector_with_sqlite() {
    testing::need_slow!();
    load_sqlite(Spread::Usual);
}

#[test]
fn agents_load_a_collector_with_postgresql() {
    testing::need_slow!();
    load_postgresql(Spread::Usual);
}

#[test]
fn agents_with_many_groups_load_a_collector_with_sqlite() {
    testing::need_slow!();
    load_sqlite(Spread::Many);
}

#[test]
fn agents_with_many_groups_load_a_collector_with_postgresql() {
    testing::need_slow!();
    load_postgresql(Spread::Many);
}
