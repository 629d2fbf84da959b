//! What 10,000 agents that have nothing to say cost a collector in a process of its own: memory of each connection, signs of life,
//! and a bundle for all of them. Slow; prints one JSON object a line.
//!
//!     TOLLGATE_TEST_SLOW=1 TOLLGATE_COLLECTOR_RESULTS=FOLDER cargo test --release -p collector --test idle -- \
//!         --nocapture --test-threads 1
//!
//! `TOLLGATE_COLLECTOR_IDLE_AGENTS` sets another number of agents. Each needs a descriptor here and one in the collector.

mod server;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use store::{Assigned, Assignment, Gate, NewBundle, Store, Target};

use server::connection::Connection;
use server::{Server, load_average, report, summary};

const AGENTS: &str = "TOLLGATE_COLLECTOR_IDLE_AGENTS";

/// Threads that speak for the agents.
const THREADS: usize = 32;

/// Size of the bundle in bytes: about that of Falco's stable rules.
const BUNDLE: usize = 64 << 10;

/// What an agent says about itself: as long as that of a real one.
fn inventory(bundle: &str) -> String {
    let digest = "0123456789abcdef".repeat(4);
    json!({"version": "0.1.0", "host": "host", "kernel": "6.18.0", "engine": "notify", "rules": [digest, digest],
           "policy": digest, "enforcement": {"mechanisms": ["landlock", "seccomp"], "not_enforced": []},
           "bundle": {"digest": bundle, "refused": null}, "labels": {"role": "web", "zone": "eu-1a"}})
    .to_string()
}

/// Asks for something on the connection of each agent, and returns the times in microseconds and the answers of the last agent.
fn each(
    agents: &[(String, Mutex<Connection>)],
    ask: impl Fn(&str, &mut Connection) + Sync,
) -> (Vec<u64>, f64) {
    let (next, times) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut own = Vec::new();
                while let Some((secret, connection)) =
                    agents.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let began = Instant::now();
                    ask(secret, &mut connection.lock().expect("no panic"));
                    own.push(u64::try_from(began.elapsed().as_micros()).expect("short"));
                }
                times.lock().expect("no panic").extend(own);
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    (times.into_inner().expect("no panic"), seconds)
}

/// A sign of life. Returns the digest of the bundle that the agent is to have.
fn live(secret: &str, connection: &mut Connection, inventory: &str) -> Option<String> {
    let (status, answer) = connection.ask("PUT /api/v1/inventory HTTP/1.1", secret, inventory);
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!(status, 200, "{answer}");
    answer["bundle"].as_str().map(str::to_owned)
}

/// Adds a bundle for all agents and returns its digest.
fn roll_out(store: &dyn Store) -> String {
    let digest = format!("{:064x}", 7);
    let bundle = NewBundle {
        version: 7,
        digest: digest.clone(),
        key: "tgk_x".to_owned(),
        text: "- rule: some rule of a bundle\n".repeat(BUNDLE / 30),
        actor: "test".to_owned(),
    };
    let bundle = store.add_bundle(bundle).expect("writable");
    let assignment = Assignment {
        target: Target::class("web"),
        priority: 0,
        bundle,
        percent: 100,
        gate: Gate::default(),
        actor: "test".to_owned(),
    };
    let assigned = store.assign(assignment).expect("writable");
    assert!(matches!(assigned, Assigned::Done), "{assigned:?}");
    digest
}

/// Measures one step for all agents.
fn step(
    (database, name): (&str, &str),
    (server, agents): (&Server, &[(String, Mutex<Connection>)]),
    ask: impl Fn(&str, &mut Connection) + Sync,
) {
    let (load, before) = (load_average(), server.cpu_seconds());
    let (times, seconds) = each(agents, ask);
    let (rss, peak) = server.memory_kib();
    let result = json!({"database": database, "step": name, "agents": agents.len(), "seconds": seconds,
        "server_cpu_seconds": server.cpu_seconds() - before, "server_rss_kib": rss, "server_rss_peak_kib": peak,
        "answers": summary(times), "load_average_before": load});
    report("idle.jsonl", &result);
}

fn idle(database: &str, url: &str) {
    let count = std::env::var(AGENTS).map_or(10_000, |it| it.parse().expect("a number"));
    let store = server::open(url);
    let enrolled = server::enrol(&*store, count);
    let server = Server::start(url);
    let (rss, _) = server.memory_kib();
    let load = load_average();
    let connect = |(_, secret)| (secret, Mutex::new(Connection::open(server.address)));
    let agents: Vec<_> = enrolled.into_iter().map(connect).collect();
    // A connection is there for the server once it has answered on it.
    let get = |_: &str, connection: &mut Connection| {
        let (status, _) = connection.ask("GET /healthz HTTP/1.1", "none", "");
        assert_eq!(status, 200);
    };
    each(&agents, get);
    let (connected, _) = server.memory_kib();
    let result = json!({"database": database, "step": "connect", "agents": count, "server_rss_kib_before": rss,
        "server_rss_kib": connected, "bytes_per_connection": connected.saturating_sub(rss) * 1024 / count as u64,
        "load_average_before": load});
    report("idle.jsonl", &result);
    let none = inventory("");
    let on = (&server, &*agents);
    for name in ["first sign of life", "sign of life"] {
        step((database, name), on, |secret, connection| {
            assert_eq!(live(secret, connection, &none), None);
        });
    }
    let digest = roll_out(&*store);
    step(
        (database, "offer of the bundle"),
        on,
        |secret, connection| {
            assert_eq!(live(secret, connection, &none).as_deref(), Some(&*digest));
        },
    );
    step(
        (database, "download of the bundle"),
        on,
        |secret, connection| {
            let (status, text) = connection.ask("GET /api/v1/bundle HTTP/1.1", secret, "");
            assert_eq!(status, 200);
            assert!(text.len() > BUNDLE / 2, "{}", text.len());
        },
    );
    let taken = inventory(&digest);
    step(
        (database, "report of the bundle"),
        on,
        |secret, connection| {
            live(secret, connection, &taken);
        },
    );
    let rollouts = store.rollouts().expect("readable");
    assert_eq!(rollouts[0].health.agents, count as u64);
}

#[test]
fn serves() {
    server::serves();
}

#[test]
fn idle_agents_cost_little_with_sqlite() {
    testing::need_slow!();
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("c.db");
    idle("SQLite", &format!("sqlite:{}", path.display()));
}

#[test]
fn idle_agents_cost_little_with_postgresql() {
    testing::need_slow!();
    let server = testing::postgres::Server::start();
    idle("PostgreSQL", &server.database());
}
