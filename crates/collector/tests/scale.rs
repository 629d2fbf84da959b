//! The page over a store with a million alerts, in SQLite and in PostgreSQL. Prints one JSON object a line; slow.
//!
//!     TOLLGATE_TEST_SLOW=1 cargo test --release -p collector --test scale -- --nocapture --test-threads 1
//!
//! `TOLLGATE_SCALE_ALERTS` sets another number of alerts, a multiple of 2000.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use collector::{Collector, Settings, add_user};
use serde_json::json;
use serve::Address;
use store::{
    AgentId, Batch, NewAgent, NewAlert, NewToken, PostgresStore, Record, Scope, Severity,
    SqliteStore, Store,
};
use ureq::Agent;

/// Number of alerts, if nothing else is asked for.
const ALERTS: u64 = 1_000_000;
const BATCH: u64 = 2000;
const AGENTS: u64 = 200;
const DAYS: u64 = 30;
const UPLOADS: u64 = 16;
const ROUNDS: usize = 60;
const PASSWORD: &str = "correct horse battery";

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
    let token = NewToken {
        scope: Scope::Agents("web".to_owned()),
        hash: [1; 32],
        expires_ns: None,
        actor: "test".to_owned(),
    };
    let token = store.create_token(token).expect("writable");
    let enrol = |n: u64| {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(n + 7).to_le_bytes());
        let host = format!("host-{n}");
        store
            .enrol(NewAgent { token, hash, host })
            .expect("writable")
    };
    let agents: Vec<AgentId> = (0..AGENTS).map(enrol).collect();
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

/// Memory of this process in KiB, which is server and client in one.
fn rss_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.expect("a number").parse().expect("a number")
}

/// Asks for each page many times, prints the times, and returns those that are too slow.
fn measure(client: &Agent, base: &str, cookie: &str) -> Vec<String> {
    let mut slow = Vec::new();
    for (name, limit_ms, path) in PAGES {
        let mut times = Vec::new();
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
        println!(
            "{}",
            json!({"page": name, "path": path, "p50_us": times[ROUNDS / 2], "p95_us": p95, "all_us": times})
        );
        if p95 > limit_ms * 1000 {
            slow.push(format!("{name}: {p95} us"));
        }
    }
    slow
}

#[test]
fn pages_over_a_million_alerts_are_quick() {
    testing::need_slow!();
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let store = SqliteStore::open(&folder.path().join("s.db")).expect("a new store");
    pages_are_quick("SQLite", store.into());
}

#[test]
fn pages_over_a_million_alerts_in_postgresql_are_quick() {
    testing::need_slow!();
    let server = testing::postgres::Server::start();
    let store = PostgresStore::open(&server.database()).expect("a new store");
    pages_are_quick("PostgreSQL", store.into());
}

/// Fills a store and asks for the pages.
fn pages_are_quick(database: &str, store: Arc<dyn Store>) {
    let filled = fill(&*store);
    let rate = u128::from(alerts()) * 1000 / filled.as_millis().max(1);
    let bytes = store.statistics().expect("readable").bytes;
    println!(
        "{}",
        json!({"database": database, "alerts": alerts(), "filled_ms": filled.as_millis(), "alerts_per_second": rate, "store_bytes": bytes})
    );
    let settings = Settings {
        listen: Address::Tcp("127.0.0.1:0".to_owned()),
        files: None,
        max_age: None,
        max_bytes: None,
        propose: None,
        oidc: None,
        queue: None,
    };
    let collector = Collector::start(settings, Arc::clone(&store)).expect("a free port");
    add_user(&*store, ("ann", PASSWORD), Scope::Viewer, "test").expect("it is added");
    let base = format!("http://{}", collector.address().expect("a port"));
    let client = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .build()
        .new_agent();
    let login = client
        .post(format!("{base}/login"))
        .send_form([("name", "ann"), ("password", PASSWORD)]);
    let login = login.expect("it answers");
    let cookie = login.headers()["set-cookie"]
        .to_str()
        .expect("text")
        .split(';')
        .next()
        .expect("one")
        .to_owned();
    let before = rss_kib();
    let slow = measure(&client, &base, &cookie);
    println!(
        "{}",
        json!({"rss_kib_before_pages": before, "rss_kib_after_pages": rss_kib()})
    );
    assert!(slow.is_empty(), "{slow:?}");
}
