//! Secrets of a collector and its agents are where they belong, and nowhere else: in no message, file, metric or answer.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::collector::{Collector, get, output, token, tollgate};
use e2e::{Scratch, program};
use serde_json::Value;

/// Fires when a file called `mark` is opened.
const MARK: &str = "\
- rule: Mark
  desc: a file that marks a moment
  condition: evt.type in (open, openat) and fd.name endswith /mark
  output: marked file=%fd.name
  priority: WARNING
";

/// Files that have a secret by design: the agent's token and secret, for their owner alone.
const KEEPERS: [&str; 2] = ["token", "identity.json"];

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("readable").flatten() {
        match entry.file_type().expect("a kind") {
            kind if kind.is_dir() => found.extend(files(&entry.path())),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

fn has(bytes: &[u8], secret: &str) -> bool {
    bytes
        .windows(secret.len())
        .any(|part| part == secret.as_bytes())
}

/// The answer to a request, head and body.
fn whole_answer(collector: &Collector, head: &str, secret: &str) -> String {
    use std::io::Write;
    let mut stream = TcpStream::connect(collector.address()).expect("it listens");
    write!(
        stream,
        "{head}\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {secret}\r\nContent-Length: 0\r\n\r\n"
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

/// Runs a command that opens the mark, with all messages there are. Returns what it said.
fn run(scratch: &Path, url: &str) -> String {
    let spool = format!("collector_output.spool={}", scratch.join("spool").display());
    let ran = Command::new(program())
        .args(["run", "-o", &spool, "-o", "log_level=debug"])
        .args(["--collector", url, "-r"])
        .arg(scratch.join("rules.yaml"))
        .args(["--", "cat"])
        .arg(scratch.join("mark"))
        .env("TOLLGATE_TOKEN_FILE", scratch.join("token"))
        .output()
        .expect("it starts");
    assert!(ran.status.success(), "{ran:?}");
    let text = [ran.stdout, ran.stderr].concat();
    String::from_utf8(text).expect("text")
}

/// The answers to requests with these tokens: of agents, of a reader, and one that is revoked.
fn answers(collector: &Collector, [class, reader, revoked]: [&str; 3]) -> String {
    let mut answers = String::new();
    // A token that is refused, and one at the wrong door.
    for (secret, head) in [
        (revoked, "GET /api/v1/agents HTTP/1.1"),
        (reader, "POST /api/v1/batches HTTP/1.1"),
        (class, "GET /api/v1/agents HTTP/1.1"),
        (reader, "GET /api/v1/agents HTTP/1.1"),
        (reader, "GET /api/v1/alerts HTTP/1.1"),
        (reader, "GET /metrics HTTP/1.1"),
    ] {
        answers.push_str(&whole_answer(collector, head, secret));
    }
    answers
}

/// Checks that no file below a folder has a secret, but those that are there for it.
fn check_files(folder: &Path, secrets: &[&str]) {
    for file in files(folder) {
        let name = file.file_name().expect("a name").to_string_lossy();
        if KEEPERS.contains(&&*name) {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&file)
                .expect("it is there")
                .permissions()
                .mode()
                & 0o777;
            assert!(
                name == "token" || mode == 0o600,
                "{}: {mode:o}",
                file.display()
            );
            continue;
        }
        let bytes = fs::read(&file).expect("readable");
        for secret in secrets {
            assert!(!has(&bytes, secret), "{secret} in {}", file.display());
        }
    }
}

#[test]
fn no_secret_is_in_a_message_a_file_or_an_answer() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name);
    let store = path("c.db");
    let class = token(&store, &["--agent-class", "web"]);
    let reader = token(&store, &["--role", "viewer"]);
    let revoked = token(&store, &["--role", "admin"]);
    fs::write(path("token"), &class).expect("writable");
    fs::write(path("rules.yaml"), MARK).expect("writable");
    fs::write(path("mark"), "").expect("writable");
    let mut collector = Collector::without_tls(&store, "127.0.0.1:0");
    let mut said = run(scratch.path(), &collector.url);
    output(&mut tollgate(&["serve", "token", "revoke", "3"], &store));
    said.push_str(&answers(&collector, [&class, &reader, &revoked]));
    let agents = get(collector.address(), "/api/v1/agents", &reader);
    assert_eq!(
        agents["agents"].as_array().map(Vec::len),
        Some(1),
        "{agents}"
    );
    said.push_str(&output(&mut tollgate(&["serve", "token", "list"], &store)));
    // A collector that is away is told, and where it is; not with what the agent asked.
    let url = collector.url.clone();
    collector.child.kill().expect("it runs");
    collector.child.wait().expect("it is our child");
    collector
        .stderr
        .read_to_string(&mut said)
        .expect("it is text");
    said.push_str(&run(scratch.path(), &url));

    let identity = path("spool").join("0/identity.json");
    let identity = fs::read_to_string(identity).expect("it enrolled");
    let identity: Value = serde_json::from_str(&identity).expect("JSON");
    let own = identity["secret"].as_str().expect("a secret");
    assert!(own.starts_with("tga_") && class.starts_with("tgt_"));
    let secrets = [own, &class, &reader, &revoked];
    for secret in secrets {
        assert!(!said.contains(secret), "{secret} in: {said}");
    }
    assert!(
        said.contains("HTTP/1.1 401") && said.contains("HTTP/1.1 403"),
        "{said}"
    );
    check_files(scratch.path(), &secrets);
    // What the search finds if it is there.
    assert!(has(&fs::read(path("token")).expect("readable"), &class));
}
