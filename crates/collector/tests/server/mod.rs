//! A collector in a process of its own, so that its memory and processor time are measured alone.
//!
//! The process is this test's program, started again. `TOLLGATE_BIN` names a `tollgate` to start in its place.

#![allow(dead_code, reason = "not every test uses everything")]

pub(crate) mod connection;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use collector::{Collector, Settings};
use serde_json::{Value, json};
use serve::Address;
use store::{AgentId, NewAgent, NewToken, PostgresStore, Scope, SqliteStore, Store};

/// Variable with the URL of the store, for the process that serves.
const URL: &str = "TOLLGATE_TEST_SERVE";

/// A running collector. It is killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// What it says, read to the end so that it need not wait.
    reader: Option<std::thread::JoinHandle<()>>,
}

/// Opens the store with a URL, as `tollgate serve --store` does.
pub(crate) fn open(url: &str) -> Arc<dyn Store> {
    match url.strip_prefix("sqlite:") {
        Some(path) => SqliteStore::open(Path::new(path)).expect("a store").into(),
        None => PostgresStore::open(url).expect("a store").into(),
    }
}

/// What a test named `serves` does: serves for another process until it is killed, or tries that out if nobody asks for it.
pub(crate) fn serves() {
    let Ok(url) = std::env::var(URL) else {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let path = folder.path().join("s.db");
        let server = Server::start(&format!("sqlite:{}", path.display()));
        let mut connection = connection::Connection::open(server.address);
        let (status, _) = connection.ask("GET /healthz HTTP/1.1", "none", "");
        assert_eq!(status, 200);
        return;
    };
    let settings = Settings {
        listen: Address::Tcp("127.0.0.1:0".to_owned()),
        files: None,
        max_age: None,
        max_bytes: None,
        propose: None,
        explain: None,
        browse: None,
        capture_on: None,
        oidc: None,
        queue: None,
    };
    let collector = Collector::start(settings, open(&url)).expect("a free port");
    println!("http://{}", collector.address().expect("a port"));
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

impl Server {
    /// Starts a collector on the store with this URL.
    pub(crate) fn start(url: &str) -> Self {
        let mut command = match std::env::var_os("TOLLGATE_BIN") {
            Some(program) => {
                let mut command = Command::new(program);
                command.args(["serve", "--insecure", "--listen", "127.0.0.1:0"]);
                command.args(["--store", url]);
                command
            }
            None => {
                let mut command = Command::new(std::env::current_exe().expect("procfs"));
                command.args(["serves", "--exact", "--nocapture"]);
                command.env(URL, url);
                command
            }
        };
        // `tollgate` says where it listens on the one, a test's program on the other.
        let (reader, writer) = std::io::pipe().expect("descriptors");
        let copy = writer.try_clone().expect("descriptors");
        let command = command.stdin(Stdio::null()).stdout(writer).stderr(copy);
        let child = command.spawn().expect("it starts");
        let mut said = BufReader::new(reader);
        let address = loop {
            let mut line = String::new();
            let read = said.read_line(&mut line).expect("text");
            assert!(read > 0, "the collector ended");
            let mut words = line.split("http://").skip(1);
            if let Some(rest) = words.next() {
                let rest = rest.trim_end().trim_end_matches(';');
                let address = rest.split([' ', ';']).next().expect("one");
                break address.parse().expect("an address");
            }
        };
        let reader = std::thread::spawn(move || {
            let mut rest = Vec::new();
            // It ends with the process.
            let _ = said.read_to_end(&mut rest);
        });
        Self {
            child,
            address,
            reader: Some(reader),
        }
    }

    /// Returns the memory in use and its peak, in KiB: `VmRSS` and `VmHWM`.
    pub(crate) fn memory_kib(&self) -> (u64, u64) {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).expect("procfs");
        let number = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_whitespace().nth(1));
            number.expect("a number").parse().expect("a number")
        };
        (number("VmRSS:"), number("VmHWM:"))
    }

    /// Returns the processor time so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            // It panics with the process only.
            let _ = reader.join();
        }
    }
}

/// Threads that add agents.
const THREADS: usize = 64;

/// Adds agents, and returns their numbers and secrets.
pub(crate) fn enrol(store: &dyn Store, count: usize) -> Vec<(AgentId, String)> {
    let token = NewToken {
        scope: Scope::Agents("web".to_owned()),
        hash: [1; 32],
        expires_ns: None,
        actor: "test".to_owned(),
    };
    let token = store.create_token(token).expect("writable");
    let enrol = &|n: usize| {
        let secret = format!("tga_{n:040}");
        let agent = NewAgent {
            token,
            hash: collector::hash(&secret),
            host: format!("host-{n}"),
        };
        (store.enrol(agent).expect("writable"), secret)
    };
    // Together, so that they share commits.
    let enrolled = std::thread::scope(|scope| {
        let part = |first: usize| {
            let numbers = (first..count).step_by(THREADS);
            scope.spawn(move || numbers.map(|n| (n, enrol(n))).collect::<Vec<_>>())
        };
        let parts: Vec<_> = (0..THREADS).map(part).collect();
        let parts = parts.into_iter().map(|part| part.join().expect("no panic"));
        parts.flatten().collect::<BTreeMap<_, _>>()
    });
    enrolled.into_values().collect()
}

/// Adds a token and returns it.
pub(crate) fn token(store: &dyn Store, scope: Scope) -> String {
    let secret = collector::NewSecret::of_token().expect("random numbers");
    let token = NewToken {
        scope,
        hash: secret.hash,
        expires_ns: None,
        actor: "test".to_owned(),
    };
    store.create_token(token).expect("writable");
    secret.text
}

/// Returns the processor time of this process so far, in seconds.
pub(crate) fn own_cpu_seconds() -> f64 {
    cpu_seconds(std::process::id())
}

fn cpu_seconds(pid: u32) -> f64 {
    /// Ticks of a second in files of procfs.
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("procfs");
    let (_, after) = text.rsplit_once(") ").expect("a name");
    let ticks = after.split(' ').skip(11).take(2);
    let ticks: u32 = ticks.map(|it| it.parse::<u32>().expect("a number")).sum();
    f64::from(ticks) / TICKS
}

/// Returns the load of the machine, so that figures of a machine that does something else are known as such.
pub(crate) fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").expect("procfs");
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Prints a result, and adds it to a file in the folder that `TOLLGATE_COLLECTOR_RESULTS` names.
pub(crate) fn report(file: &str, result: &Value) {
    println!("{result}");
    let Some(folder) = std::env::var_os("TOLLGATE_COLLECTOR_RESULTS") else {
        return;
    };
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder).expect("the folder can be made");
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).append(true).open(folder.join(file));
    let mut file = file.expect("a file");
    std::io::Write::write_all(&mut file, format!("{result}\n").as_bytes()).expect("writable");
}

/// Returns times in microseconds, sorted, with their middle and 95th percentile.
pub(crate) fn summary(mut times: Vec<u64>) -> Value {
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).copied();
    json!({"p50_us": at(50), "p95_us": at(95), "max_us": times.last(), "count": times.len()})
}
