//! Servers of NATS with JetStream, which end with the test.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

/// A server.
pub(crate) struct Nats {
    process: Child,
    port: u16,
    folder: tempfile::TempDir,
}

/// Three servers that keep everything together.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Nats>,
}

fn free_ports<const N: usize>() -> [u16; N] {
    let taken = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let port = |listener: &TcpListener| listener.local_addr().expect("it listens").port();
    std::array::from_fn(|at| port(&taken[at]))
}

impl Nats {
    pub(crate) fn start() -> Self {
        let [port] = free_ports();
        Self::with(port, "")
    }

    fn with(port: u16, config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let jetstream = folder.path().join("js");
        let text = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\" }}\n{config}",
            jetstream.display()
        );
        fs::write(folder.path().join("nats.conf"), text).expect("our folder");
        Self {
            process: spawn(folder.path(), port),
            port,
            folder,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Ends the server as SIGKILL does.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it is our child");
    }

    pub(crate) fn restart(&mut self) {
        self.process = spawn(self.folder.path(), self.port);
    }

    /// Publishes a message with these lines of headers.
    pub(crate) fn publish(&self, subject: &str, headers: &str, body: &str) {
        let head = format!("NATS/1.0\r\n{headers}\r\n");
        let all = head.len() + body.len();
        self.say(&format!(
            "HPUB {subject} {} {all}\r\n{head}{body}\r\n",
            head.len()
        ));
    }

    /// Makes a stream.
    pub(crate) fn make_stream(&self, name: &str, config: &Value) {
        let config = config.to_string();
        let subject = format!("$JS.API.STREAM.CREATE.{name}");
        self.say(&format!(
            "PUB {subject} answers {}\r\n{config}\r\n",
            config.len()
        ));
        // What another connection sees then.
        sleep(Duration::from_millis(300));
    }

    /// Sends a request without a body, and returns the answer.
    pub(crate) fn ask(&self, subject: &str) -> Value {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        let mut writer = &stream;
        let text = format!(
            "SUB answers.{0} 1\r\nPUB {subject} answers.{0} 0\r\n\r\n",
            self.port
        );
        write!(writer, "CONNECT {{\"verbose\":false}}\r\n{text}").expect("it reads");
        let mut reader = BufReader::new(&stream);
        let mut line = String::new();
        while !line.starts_with("MSG") {
            line.clear();
            assert!(reader.read_line(&mut line).expect("it answers") > 0);
            assert!(!line.starts_with("-ERR"), "{line}");
        }
        line.clear();
        reader.read_line(&mut line).expect("it answers");
        serde_json::from_str(&line).expect("an answer")
    }

    /// Says this on a connection of its own, and waits until the server has read it.
    fn say(&self, text: &str) {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        let options = r#"{"verbose":false,"headers":true}"#;
        let mut writer = &stream;
        write!(writer, "CONNECT {options}\r\n{text}PING\r\n").expect("it reads");
        let mut reader = BufReader::new(&stream);
        let mut line = String::new();
        while !line.starts_with("PONG") {
            line.clear();
            assert!(reader.read_line(&mut line).expect("it answers") > 0);
            assert!(!line.starts_with("-ERR"), "{line}");
        }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let ports: [u16; 6] = free_ports();
        let (clients, routes) = ports.split_at(3);
        let all: Vec<String> = routes
            .iter()
            .map(|port| format!("nats-route://127.0.0.1:{port}"))
            .collect();
        let all = all.join(", ");
        let servers = clients.iter().zip(routes).enumerate().map(|(at, (port, route))| {
            let config = format!(
                "server_name: s{at}\ncluster {{ name: c, listen: \"127.0.0.1:{route}\", routes: [{all}] }}\n"
            );
            Nats::with(*port, &config)
        });
        Self {
            servers: servers.collect(),
        }
    }

    /// Returns the addresses of all, as `--queue` takes them.
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<String> = self.servers.iter().map(Nats::url).collect();
        urls.join(",")
    }
}

/// Starts `nats-server` and waits until it listens.
fn spawn(folder: &Path, port: u16) -> Child {
    // Debian has it in a folder that not every user's path names.
    let known = Path::new("/usr/sbin/nats-server");
    let program = if known.exists() {
        known
    } else {
        Path::new("nats-server")
    };
    let log = File::options()
        .append(true)
        .create(true)
        .open(folder.join("log"));
    let process = Command::new(program)
        .arg("-c")
        .arg(folder.join("nats.conf"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.expect("our folder"))
        .spawn()
        .expect("nats-server is installed: ./x test does that");
    let deadline = Instant::now() + LIMIT;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        // Only for the message.
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert!(
            Instant::now() < deadline,
            "the server does not listen: {log}"
        );
        sleep(Duration::from_millis(20));
    }
    process
}
