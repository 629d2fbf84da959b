//! A running `tollgate serve`, its tokens, and requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::program;

/// A running collector. It is killed when dropped.
#[derive(Debug)]
pub struct Collector {
    /// The process.
    pub child: Child,
    /// Where it listens, such as `https://127.0.0.1:6443`.
    pub url: String,
    /// What it says after the line with its URL.
    pub stderr: BufReader<ChildStderr>,
}

impl Collector {
    /// Starts a collector with these further words, which listens at `listen`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(store: &Path, listen: &str, words: &[&str]) -> Self {
        Self::start_on(&file(store), listen, words)
    }

    /// Starts a collector on the store with this URL.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_on(url: &str, listen: &str, words: &[&str]) -> Self {
        let words = [&["serve", "--store", url, "--listen", listen], words].concat();
        let mut command = Command::new(program());
        command.args(words);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        stderr
            .read_line(&mut line)
            .expect("it says where it listens");
        let mut words = line.split_whitespace();
        let url = words.find(|word| word.starts_with("http"));
        let url = url.unwrap_or_else(|| panic!("{line}"));
        Self {
            child,
            url: url.trim_end_matches(';').to_owned(),
            stderr,
        }
    }

    /// Starts a collector without TLS.
    pub fn without_tls(store: &Path, listen: &str) -> Self {
        Self::start(store, listen, &["--insecure"])
    }

    /// Returns where it listens.
    ///
    /// # Panics
    /// If its URL has no address.
    pub fn address(&self) -> SocketAddr {
        let (_, address) = self.url.split_once("://").expect("a URL");
        address.parse().expect("an address")
    }

    /// Returns the link by which the first user is made.
    ///
    /// # Panics
    /// If it prints none.
    pub fn first_link(&mut self) -> String {
        let mut said = String::new();
        while !said.contains("/setup/") {
            let read = self.stderr.read_line(&mut said).expect("it is text");
            assert!(read > 0, "{said}");
        }
        let link = said
            .split_whitespace()
            .find(|word| word.contains("/setup/"));
        link.expect("a link").to_owned()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command of `tollgate` about a store.
pub fn tollgate(words: &[&str], store: &Path) -> Command {
    let mut command = Command::new(program());
    command.args(words).args(["--store", &file(store)]);
    command
}

fn file(store: &Path) -> String {
    format!("sqlite:{}", store.display())
}

/// Runs a command that succeeds, and returns its output.
///
/// # Panics
/// If it fails.
pub fn output(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}

/// Makes a token and returns it.
pub fn token(store: &Path, words: &[&str]) -> String {
    token_on(&file(store), words)
}

/// Makes a token in the store with this URL and returns it.
pub fn token_on(url: &str, words: &[&str]) -> String {
    let words = [&["serve", "token", "create", "--store", url], words].concat();
    let mut command = Command::new(program());
    output(command.args(words)).trim().to_owned()
}

/// Sends one request and returns status and body; `None` if the server is away.
pub fn request(address: SocketAddr, head: &str, secret: &str, body: &str) -> Option<(u16, Value)> {
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

/// Asks for a path and returns the answer.
///
/// # Panics
/// If it is refused.
pub fn get(address: SocketAddr, path: &str, secret: &str) -> Value {
    let answer = request(address, &format!("GET {path} HTTP/1.1"), secret, "");
    let (status, body) = answer.expect("it answers");
    assert_eq!(status, 200, "{body}");
    body
}

/// Returns an alert as Falco writes it.
pub fn alert(rule: &str, n: u64) -> String {
    json!({"rule": rule, "priority": "Warning", "output": format!("n={n}"),
           "output_fields": {"proc.name": "cat", "n": n}})
    .to_string()
}
