//! `tollgate serve` as an administrator and a sender meet it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use e2e::{Scratch, program};
use serde_json::{Value, json};

/// A running collector. It is killed when dropped.
struct Collector {
    child: Child,
    address: SocketAddr,
    stderr: BufReader<ChildStderr>,
}

fn tollgate(words: &[&str], store: &Path) -> Command {
    let mut command = Command::new(program());
    command
        .args(words)
        .arg("--store")
        .arg(format!("sqlite:{}", store.display()));
    command
}

/// Starts a collector without TLS on a port of loopback.
fn serve(store: &Path, listen: &str) -> Collector {
    let mut command = tollgate(&["serve", "--insecure", "--listen", listen], store);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    stderr
        .read_line(&mut line)
        .expect("it says where it listens");
    let url = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("http://"));
    let url = url.unwrap_or_else(|| panic!("{line}"));
    let address = url.trim_end_matches(';').parse().expect("an address");
    Collector {
        child,
        address,
        stderr,
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}

fn token(store: &Path, words: &[&str]) -> String {
    let words = [&["serve", "token", "create"], words].concat();
    output(&mut tollgate(&words, store)).trim().to_owned()
}

/// Sends one request and returns status and body; `None` if the server is away.
fn request(address: SocketAddr, head: &str, secret: &str, body: &str) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .ok()?;
    let length = body.len();
    write!(
        stream,
        "{head}\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {secret}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

fn get(address: SocketAddr, path: &str, secret: &str) -> Value {
    let answer = request(address, &format!("GET {path} HTTP/1.1"), secret, "");
    let (status, body) = answer.expect("it answers");
    assert_eq!(status, 200, "{body}");
    body
}

fn alert(rule: &str, n: u64) -> String {
    json!({"rule": rule, "priority": "Warning", "output": format!("n={n}"),
           "output_fields": {"proc.name": "cat", "n": n}})
    .to_string()
}

#[test]
fn tokens_are_printed_once_listed_and_revoked() {
    let scratch = Scratch::new();
    let store = scratch.path().join("c.db");
    let first = token(&store, &["--agent-class", "web", "--expires", "30d"]);
    let second = token(&store, &["--role", "viewer"]);
    assert!(first.starts_with("tgt_") && first != second);
    let listed = output(&mut tollgate(&["serve", "token", "list"], &store));
    assert!(
        listed.contains("agents of web") && listed.contains("until 2"),
        "{listed}"
    );
    assert!(!listed.contains(&first), "{listed}");
    // Nor is it in the file.
    let bytes = std::fs::read(&store).expect("it is there");
    let found = bytes
        .windows(first.len())
        .any(|part| part == first.as_bytes());
    assert!(!found);
    let collector = serve(&store, "127.0.0.1:0");
    let post = |secret: &str| {
        let answer = request(collector.address, "POST / HTTP/1.1", secret, &alert("a", 1));
        answer.expect("it answers").0
    };
    assert_eq!(post(&first), 200);
    assert_eq!(post(&second), 403);
    output(&mut tollgate(&["serve", "token", "revoke", "1"], &store));
    assert_eq!(post(&first), 401);
    let again = tollgate(&["serve", "token", "revoke", "1"], &store)
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(2));
    assert!(
        stderr.contains("cannot revoke token 1: no such token is in force\nhelp: "),
        "{stderr}"
    );
}

#[test]
fn a_backup_of_a_running_collector_is_restored_with_its_tokens() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name);
    let sender = token(&path("c.db"), &["--agent-class", "web"]);
    let reader = token(&path("c.db"), &["--role", "viewer"]);
    let collector = serve(&path("c.db"), "127.0.0.1:0");
    let send = |n| {
        let answer = request(
            collector.address,
            "POST / HTTP/1.1",
            &sender,
            &alert("a", n),
        );
        assert_eq!(answer.expect("it answers").0, 200);
    };
    send(1);
    let copy = path("copy.db").display().to_string();
    output(&mut tollgate(&["serve", "backup", &copy], &path("c.db")));
    send(2);
    output(&mut tollgate(&["serve", "restore", &copy], &path("r.db")));
    let restored = serve(&path("r.db"), "127.0.0.1:0");
    let count = |address| get(address, "/api/v1/groups", &reader)["groups"][0]["count"].clone();
    assert_eq!(count(restored.address), 1);
    assert_eq!(count(collector.address), 2);
    let over = tollgate(&["serve", "restore", &copy], &path("c.db"))
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&over.stderr);
    assert_eq!(over.status.code(), Some(2));
    assert!(stderr.contains("it exists\nhelp: "), "{stderr}");
}

#[test]
fn a_signal_ends_the_collector_and_a_second_address_is_refused() {
    let scratch = Scratch::new();
    let store = scratch.path().join("c.db");
    let mut collector = serve(&store, "127.0.0.1:0");
    let address = collector.address.to_string();
    let taken = tollgate(&["serve", "--insecure", "--listen", &address], &store);
    let taken = { taken }.output().expect("it starts");
    let stderr = String::from_utf8_lossy(&taken.stderr);
    assert_eq!(taken.status.code(), Some(2));
    assert!(
        stderr.contains(&format!("cannot listen on {address}: ")),
        "{stderr}"
    );
    let pid = i32::try_from(collector.child.id()).expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let status = collector.child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0));
    let mut rest = String::new();
    collector
        .stderr
        .read_to_string(&mut rest)
        .expect("it is closed");
    assert!(rest.contains("without TLS"), "{rest}");
    assert!(
        rest.contains("there is no token, so no agent can send\nhelp: ")
            && rest.contains("create the first one, an administrator"),
        "{rest}"
    );
}

/// Reads the numbers of all stored alerts, page by page.
fn stored_numbers(address: SocketAddr, reader: &str) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut path = "/api/v1/alerts?limit=1000".to_owned();
    loop {
        let page = get(address, &path, reader);
        let alerts = page["alerts"].as_array().expect("a list");
        let number = |row: &Value| {
            let number = row["alert"]["output_fields"]["n"].as_u64();
            number.expect("a number")
        };
        numbers.extend(alerts.iter().map(number));
        match page["next"].as_str() {
            Some(next) => path = format!("/api/v1/alerts?limit=1000&after={next}"),
            None => return numbers,
        }
    }
}

/// Enrols an agent and returns its secret.
fn enrol(address: SocketAddr, token: &str) -> String {
    let body = json!({"host": "box"}).to_string();
    let answer = request(address, "POST /api/v1/agents HTTP/1.1", token, &body);
    let (status, answer) = answer.expect("it answers");
    assert_eq!(status, 201, "{answer}");
    answer["secret"].as_str().expect("a secret").to_owned()
}

/// Kills a process after a pause, on a thread of its own.
fn kill_later(child: &Child, pause: Duration) -> std::thread::JoinHandle<()> {
    let pid = i32::try_from(child.id()).expect("a pid");
    std::thread::spawn(move || {
        std::thread::sleep(pause);
        let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
    })
}

/// Kills the collector at random while a sender sends, and counts: what was acknowledged is there, and
/// nothing is there twice.
fn kill_rounds(rounds: u64) {
    let scratch = Scratch::new();
    let store = scratch.path().join("c.db");
    let token_of_agents = token(&store, &["--agent-class", "web"]);
    let reader = token(&store, &["--role", "viewer"]);
    let mut collector = serve(&store, "127.0.0.1:0");
    let secret = enrol(collector.address, &token_of_agents);
    let (mut acknowledged, mut sent, mut random) = (0_u64, 0_u64, 0x9e37_79b9_u64);
    for _ in 0..rounds {
        // A xorshift generator: the same moments in each run.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let address = collector.address;
        let killer = kill_later(&collector.child, Duration::from_micros(random % 30_000));
        loop {
            // What was not acknowledged comes again, with more.
            sent = (sent + 7).min(acknowledged + 50);
            let lines: Vec<_> = (acknowledged + 1..=sent).map(|n| alert("a", n)).collect();
            let head = format!(
                "POST /api/v1/batches HTTP/1.1\r\nTollgate-Sequence: {}",
                acknowledged + 1
            );
            let Some((status, answer)) = request(address, &head, &secret, &lines.join("\n")) else {
                break;
            };
            assert_eq!(status, 200, "{answer}");
            acknowledged = answer["acknowledged"].as_u64().expect("a number");
            assert_eq!(answer["missing"], 0);
        }
        killer.join().expect("it was killed");
        drop(collector);
        collector = serve(&store, "127.0.0.1:0");
    }
    let mut numbers = stored_numbers(collector.address, &reader);
    numbers.sort_unstable();
    let stored = numbers.len() as u64;
    assert!(stored >= acknowledged, "{stored} of {acknowledged}");
    assert_eq!(
        numbers,
        (1..=stored).collect::<Vec<_>>(),
        "each once, without a hole"
    );
    assert!(
        acknowledged > rounds,
        "{acknowledged} in {rounds} rounds: too few to show anything"
    );
    println!(
        "{rounds} rounds: acknowledged {acknowledged}, stored {stored}, lost 0, stored twice 0"
    );
}

#[test]
fn nothing_acknowledged_is_lost_or_stored_twice_when_the_collector_is_killed() {
    kill_rounds(5);
}

#[test]
fn the_same_a_hundred_times() {
    e2e::need_slow!();
    kill_rounds(100);
}

/// Fires when a file called `mark` is opened.
const MARK: &str = "\
- rule: Mark
  desc: a file that marks a moment
  condition: evt.type in (open, openat) and fd.name endswith /mark
  output: marked file=%fd.name
  priority: WARNING
";

/// Runs a command that opens the marks, with the collector at this address.
fn run_marking(scratch: &Scratch, address: SocketAddr, count: u32) -> String {
    let rules = scratch.path().join("rules.yaml");
    std::fs::write(&rules, MARK).expect("writable");
    let mark = scratch.path().join("mark");
    std::fs::write(&mark, "").expect("writable");
    let script = format!("for i in $(seq {count}); do : < {}; done", mark.display());
    let spool = format!(
        "collector_output.spool={}",
        scratch.path().join("spool").display()
    );
    let run = Command::new(program())
        .args([
            "run",
            "-o",
            &spool,
            "--collector",
            &format!("http://{address}"),
            "-r",
        ])
        .arg(&rules)
        .args(["--", "sh", "-c", &script])
        .env("TOLLGATE_TOKEN_FILE", scratch.path().join("token"))
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{stderr}");
    stderr
}

#[test]
fn a_run_sends_its_alerts_and_those_of_a_run_without_a_collector() {
    let scratch = Scratch::new();
    let store = scratch.path().join("c.db");
    let secret = token(&store, &["--agent-class", "web"]);
    std::fs::write(scratch.path().join("token"), secret).expect("writable");
    let reader = token(&store, &["--role", "viewer"]);
    let collector = serve(&store, "127.0.0.1:0");
    let address = collector.address;
    run_marking(&scratch, address, 3);
    let count = |address| {
        let group = get(address, "/api/v1/groups?rule=Mark", &reader)["groups"][0].clone();
        group["count"].as_u64().unwrap_or(0)
    };
    assert_eq!(count(address), 3);
    drop(collector);
    let stderr = run_marking(&scratch, address, 4);
    assert!(
        stderr.contains("collector: 0 alerts lost, 4 not delivered: "),
        "{stderr}"
    );
    let collector = serve(&store, &address.to_string());
    assert_eq!(count(address), 3);
    run_marking(&scratch, address, 5);
    assert_eq!(count(address), 12);
    let agents = get(collector.address, "/api/v1/agents", &reader);
    let agents = agents["agents"].as_array().expect("a list");
    assert_eq!(agents.len(), 1, "each run used the same spool: {agents:?}");
    assert_eq!(
        (&agents[0]["missing"], &agents[0]["class"]),
        (&json!(0), &json!("web"))
    );
    assert_ne!(agents[0]["inventory"]["kernel"], Value::Null);
}
