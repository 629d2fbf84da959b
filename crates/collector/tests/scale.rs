//! The page over a store with a million alerts, in SQLite and in PostgreSQL, of a collector in a process of its own. Prints one JSON
//! object a line; slow.
//!
//!     TOLLGATE_TEST_SLOW=1 TOLLGATE_COLLECTOR_RESULTS=FOLDER cargo test --release -p collector --test scale -- \
//!         --nocapture --test-threads 1
//!
//! `TOLLGATE_SCALE_ALERTS` sets another number of alerts, a multiple of 2000.

mod server;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use collector::add_user;
use serde_json::json;
use store::{AgentId, Batch, NewAlert, Record, Scope, Severity, Store};
use ureq::Agent;

use server::{Server, load_average, report};

/// Number of alerts, if nothing else is asked for.
const ALERTS: u64 = 1_000_000;
const BATCH: u64 = 2000;
const AGENTS: u64 = 200;
const DAYS: u64 = 30;
const UPLOADS: u64 = 16;
const ROUNDS: usize = 60;
const PASSWORD: &str = "correct horse battery";
/// Limit of the memory of the collector.
const MEMORY_KIB: u64 = 100 << 10;

/// What is asked: name, limit of the 95th percentile in milliseconds, and path.
const PAGES: [(&str, u64, &str); 14] = [
    ("overview 24h", 100, "/"),
    ("overview 30d", 100, "/?range=30d"),
    ("groups", 100, "/alerts"),
    ("groups of a day", 100, "/alerts?range=24h"),
    ("groups by severity", 100, "/alerts?severity=Error"),
    ("groups of a host", 100, "/alerts?host=host-7"),
    ("groups of a program", 100, "/alerts?program=program-3"),
    ("each", 100, "/alerts?view=each"),
    ("each of a rule", 100, "/alerts?view=each&rule=Rule+5"),
    (
        "each of a host and program",
        100,
        "/alerts?view=each&host=host-9&program=program-3",
    ),
    (
        "search for a rare word",
        200,
        "/alerts?view=each&q=number+4711",
    ),
    (
        "search for a common word",
        200,
        "/alerts?view=each&q=opened",
    ),
    ("search in groups", 200, "/alerts?q=user77"),
    ("fleet", 100, "/fleet"),
];

/// A number that looks random, and is the same in each run.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).expect("small")
}

/// Returns the number of alerts.
fn alerts() -> u64 {
    let asked = std::env::var("TOLLGATE_SCALE_ALERTS").ok();
    asked.map_or(ALERTS, |asked| asked.parse().expect("a number"))
}

fn alert(n: u64, end_ns: u64) -> NewAlert {
    let random = mixed(n);
    let rule = format!("Rule {}", random % 60);
    let program = format!("program-{}", random / 60 % 40);
    let file = format!(
        "/srv/data/{}/file",
        ["etc", "var", "home", "run", "opt"][usize::try_from(random / 7 % 5).expect("small")]
    );
    let span = DAYS * 86_400_000_000_000;
    let time_ns = signed(end_ns - span + span / alerts() * n);
    let message = format!(
        "{rule}: {file} opened by {program} with number {} and user user{}",
        random % 100_000,
        random % 500
    );
    let fields = json!({"proc.name": program, "fd.name": file, "proc.pid": random % 32768, "user.name": "deploy",
        "proc.cmdline": format!("{program} --config {file}"), "container.id": format!("{:012x}", random & 0xffff_ffff_ffff)});
    NewAlert {
        time_ns,
        severity: Severity::new(u8::try_from(1 + random % 7).expect("small")).expect("a number"),
        body:
            json!({"rule": rule, "priority": "Warning", "output": message, "output_fields": fields})
                .to_string(),
        rule,
        host: String::new(),
        program,
        object: file,
        message,
    }
}

fn fill(store: &dyn Store) -> Duration {
    let agents = server::enrol(store, usize::try_from(AGENTS).expect("small"));
    let agents: Vec<AgentId> = agents.iter().map(|agent| agent.0).collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let end = u64::try_from(now.expect("a clock").as_nanos()).expect("before 2554");
    let began = Instant::now();
    let (sender, receiver) = channel();
    let batches = alerts() / BATCH;
    for at in 0..batches {
        let alerts = (at * BATCH..(at + 1) * BATCH).map(|n| alert(n, end));
        let batch = Batch {
            sender: agents[usize::try_from(at % AGENTS).expect("small")],
            first: Some(1 + at / AGENTS * BATCH),
            records: alerts.map(|alert| Record::Alert(alert, None)).collect(),
            received_ns: signed(end),
        };
        let sender = sender.clone();
        let done = move |result: Result<_, _>| sender.send(result.is_ok()).expect("it waits");
        store.append(batch, Box::new(done)).expect("not busy");
        // The server takes 16 uploads at a time.
        if at >= UPLOADS {
            assert!(receiver.recv().expect("an answer"), "it is stored");
        }
    }
    for _ in 0..UPLOADS.min(batches) {
        assert!(receiver.recv().expect("an answer"), "it is stored");
    }
    began.elapsed()
}

/// Asks for each page many times, reports the times, and returns those that are too slow.
fn measure(file: &str, client: &Agent, (base, cookie): (&str, &str)) -> Vec<String> {
    let mut slow = Vec::new();
    for (name, limit_ms, path) in PAGES {
        let (mut times, load) = (Vec::new(), load_average());
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let answer = client
                .get(format!("{base}{path}"))
                .header("Cookie", cookie)
                .call();
            let mut answer = answer.expect("it answers");
            let length = answer.body_mut().read_to_string().expect("text").len();
            times.push(u64::try_from(began.elapsed().as_micros()).expect("short"));
            assert_eq!(answer.status(), 200, "{path}");
            assert!(length > 1000, "{path}");
        }
        times.sort_unstable();
        let p95 = times[ROUNDS * 95 / 100];
        let result = json!({"page": name, "path": path, "limit_ms": limit_ms, "p50_us": times[ROUNDS / 2], "p95_us": p95,
            "all_us": times, "load_average_before": load});
        report(file, &result);
        if p95 > limit_ms * 1000 {
            slow.push(format!("{name}: {p95} us"));
        }
    }
    slow
}

#[test]
fn serves() {
    server::serves();
}

#[test]
fn pages_over_a_million_alerts_are_quick() {
    testing::need_slow!();
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("s.db");
    pages_are_quick("sqlite", &format!("sqlite:{}", path.display()));
}

#[test]
fn pages_over_a_million_alerts_in_postgresql_are_quick() {
    testing::need_slow!();
    let server = testing::postgres::Server::start();
    pages_are_quick("postgresql", &server.database());
}

/// Returns the cookie of a user who has logged in.
fn log_in(client: &Agent, base: &str) -> String {
    let login = client
        .post(format!("{base}/login"))
        .send_form([("name", "ann"), ("password", PASSWORD)]);
    let login = login.expect("it answers");
    let cookie = login.headers()["set-cookie"].to_str().expect("text");
    cookie.split(';').next().expect("one").to_owned()
}

/// Fills a store and asks for the pages.
fn pages_are_quick(database: &str, url: &str) {
    let file = format!("{database}.jsonl");
    let store = server::open(url);
    let load = load_average();
    let filled = fill(&*store);
    let rate = u128::from(alerts()) * 1000 / filled.as_millis().max(1);
    let bytes = store.statistics().expect("readable").bytes;
    let result = json!({"database": database, "alerts": alerts(), "filled_ms": filled.as_millis(), "alerts_per_second": rate,
        "store_bytes": bytes, "optimised": !cfg!(debug_assertions), "load_average_before": load});
    report(&file, &result);
    add_user(&*store, ("ann", PASSWORD), Scope::Viewer, "test").expect("it is added");
    drop(store);
    let server = Server::start(url);
    let base = format!("http://{}", server.address);
    let client = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .build()
        .new_agent();
    let cookie = log_in(&client, &base);
    let (before, _) = server.memory_kib();
    let slow = measure(&file, &client, (&base, &cookie));
    let (rss, peak) = server.memory_kib();
    let result = json!({"server_rss_kib_before_pages": before, "server_rss_kib": rss, "server_rss_peak_kib": peak,
        "server_cpu_seconds": server.cpu_seconds()});
    report(&file, &result);
    assert!(peak < MEMORY_KIB, "{peak} KiB");
    assert!(slow.is_empty(), "{slow:?}");
}
