//! What others can ask of a running agent: pages over HTTP, alerts over gRPC, metrics in a file.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use e2e::{Engine, Scratch, need_root, program};
use serde_json::Value;
use serve::Address;
use serve::grpc::{ClientFiles, subscribe};

const SOON: Duration = Duration::from_secs(120);

const RULES: &str = "- rule: Read it\n  desc: d\n  condition: evt.type in (open, openat) and fd.name endswith /it\n  \
    output: read %fd.name by %proc.name\n  priority: WARNING\n  tags: [t-1]\n";

/// A command that reads a file again and again, watched by an agent with servers.
struct Agent {
    /// Until it is ended.
    child: Option<Child>,
    scratch: Scratch,
    port: u16,
}

impl Agent {
    fn start(further: &str) -> Self {
        Self::start_by(&[], further)
    }

    /// `engine`: options of `run` that choose it.
    fn start_by(engine: &[&str], further: &str) -> Self {
        Self::start_first(engine, further, |_folder| String::new())
    }

    /// The command does something first, by a shell script about the scratch folder.
    fn start_first(engine: &[&str], further: &str, first: impl Fn(&str) -> String) -> Self {
        let scratch = Scratch::new();
        let at = |name: &str| scratch.path().join(name);
        // Somebody else may take it before the agent does, but hardly in this moment.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        fs::write(at("rules.yaml"), RULES).expect("the scratch folder is writable");
        fs::write(at("it"), "").expect("the scratch folder is writable");
        let folder = scratch.path().display().to_string();
        let config = format!(
            "rules_files: [{folder}/rules.yaml]\nstdout_output: {{enabled: false}}\n\
             webserver: {{enabled: true, listen_address: 127.0.0.1, listen_port: {port}, \
             prometheus_metrics_enabled: true}}\n\
             metrics: {{enabled: true, interval: 500ms, output_file: {folder}/metrics, output_rule: true}}\n\
             grpc: {{enabled: true, bind_address: 'unix://{folder}/sock', threadiness: 2}}\n\
             grpc_output: {{enabled: true}}\n\
             file_output: {{enabled: true, keep_alive: true, filename: {folder}/alerts}}\n{further}"
        );
        fs::write(at("config.yaml"), config).expect("the scratch folder is writable");
        let first = first(&folder);
        let script = format!("{first}\nwhile :; do : < {folder}/it; sleep 0.05; done");
        let mut command = Command::new(program());
        command
            .args(["run", "-c"])
            .arg(at("config.yaml"))
            .arg("-P")
            .arg(at("pid"))
            .args(engine)
            .args(["--", "sh", "-c", &script]);
        let child = command
            .stdin(Stdio::null())
            .stderr(fs::File::create(at("stderr")).expect("the scratch folder is writable"))
            .spawn()
            .expect("the program was built");
        Self {
            child: Some(child),
            scratch,
            port,
        }
    }

    /// What a page says, once the server answers.
    fn get(&self, path: &str) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            match TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) {
                Ok(mut stream) => {
                    let request =
                        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
                    stream.write_all(request.as_bytes()).expect("it reads");
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).expect("it answers");
                    return answer;
                }
                Err(error) => {
                    assert!(Instant::now() < deadline, "no server: {error}");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    fn wait_for(&self, name: &str, is_there: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            let text = fs::read_to_string(self.scratch.path().join(name)).unwrap_or_default();
            if is_there(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "{name}: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn address(&self) -> Address {
        Address::Unix(self.scratch.path().join("sock"))
    }
}

impl Agent {
    /// Ends the command, and the agent with it.
    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            child.wait().expect("it is ours");
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

fn no_files() -> ClientFiles {
    let none = || Path::new("").to_owned();
    ClientFiles {
        certificate: none(),
        key: none(),
        authorities: none(),
    }
}

/// What one server with no address of its own says on standard error, and whether it can be reached by an address
/// that is no loopback's, here the one of all.
fn warned(address: &str) -> String {
    let scratch = Scratch::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    drop(listener);
    fs::write(scratch.path().join("rules.yaml"), RULES).expect("the scratch folder is writable");
    let output = Command::new(program())
        .args(["run", "-r"])
        .arg(scratch.path().join("rules.yaml"))
        .args([
            "-o",
            "webserver.enabled=true",
            "-o",
            &format!("webserver.listen_port={port}"),
        ])
        .args(address.split_ascii_whitespace())
        // The table of listening sockets has each address as the kernel keeps it.
        .args(["--", "cat", "/proc/net/tcp"])
        .output()
        .expect("the program was built");
    let table = String::from_utf8_lossy(&output.stdout);
    let expected = if address.contains("0.0.0.0") {
        "00000000"
    } else {
        "0100007F"
    };
    let listening = format!("{expected}:{port:04X} 00000000:0000 0A");
    assert!(table.contains(&listening), "{table}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn pages_are_served_to_this_machine_unless_more_is_asked_for() {
    let silent = warned("");
    assert!(!silent.contains("webserver"), "{silent}");
    let silent = warned("-o webserver.listen_address=127.0.0.1");
    assert!(!silent.contains("webserver"), "{silent}");
    let loud = warned("-o webserver.listen_address=0.0.0.0");
    assert!(
        loud.contains("is reachable from other hosts, without authentication"),
        "{loud}"
    );
}

#[test]
fn health_versions_and_metrics_are_served_with_falcos_names() {
    let agent = Agent::start("");
    let health = agent.get("/healthz");
    assert!(health.starts_with("HTTP/1.1 200 OK\r\n"), "{health}");
    assert!(health.ends_with("{\"status\": \"ok\"}"), "{health}");
    let versions = agent.get("/versions");
    let body = versions.split("\r\n\r\n").nth(1).expect("a body");
    let versions: Value = serde_json::from_str(body).expect("JSON");
    assert!(versions["engine_version_semver"].is_string(), "{versions}");
    agent.wait_for("alerts", |alerts| alerts.matches("read ").count() > 3);
    let page = agent.get("/metrics");
    assert!(
        page.contains("content-type: text/plain; version=0.0.4\r\n"),
        "{page}"
    );
    let value = |name: &str| number(&page, name);
    let rule = "falcosecurity_falco_rules_matches_total{priority=\"4\",rule_name=\"Read it\",\
                source=\"syscall\",tag_t_1=\"true\"}";
    assert!(value(rule) > 3.0);
    assert!(value("falcosecurity_scap_n_evts_total ") > 3.0);
    for name in [
        "falcosecurity_scap_n_drops_total ",
        "falcosecurity_falco_version_info{",
        "falcosecurity_scap_engine_name_info{",
        "falcosecurity_evt_hostname_info{",
        "falcosecurity_falco_sha256_rules_files_info{",
        "falcosecurity_falco_memory_rss_bytes ",
        "falcosecurity_falco_outputs_queue_num_drops_total ",
        "falcosecurity_falco_duration_seconds_total ",
        "tollgate_output_delivered_total{channel=\"file\"}",
        "tollgate_alert_latency_ns_count ",
        "tollgate_events_evaluated_total{call=\"open",
        "tollgate_engine_events_total{kind=\"trapped\"}",
    ] {
        value(name);
    }
    assert!(agent.get("/nothing").starts_with("HTTP/1.1 404 "));
}

/// A number of a page.
fn number(page: &str, name: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("{name}: {page}"));
    let (_, value) = line.rsplit_once(' ').expect("a value");
    value.parse().expect("a number")
}

/// What is not in Falco: what each rule costs, which calls are looked at, what was lost and why, and how
/// long an alert takes.
#[test]
fn every_engine_serves_metrics_of_our_own() {
    need_root!();
    // All at once: most of it is waiting.
    std::thread::scope(|scope| {
        for (engine, known_as, lost) in [
            (Engine::Notify, "notify", "passed_unwatched"),
            (Engine::Ptrace, "ptrace", "passed_unwatched"),
            (Engine::Ebpf, "modern_bpf", "lost_critical"),
        ] {
            scope.spawn(move || serves_metrics_of_our_own(engine, known_as, lost));
        }
    });
}

/// `known_as`: name of the engine for others. `lost`: what counts that it has lost something.
fn serves_metrics_of_our_own(engine: Engine, known_as: &str, lost: &str) {
    let agent = Agent::start_by(engine.options(), "");
    // One in 64 evaluations is timed and counted, for as many.
    agent.wait_for("alerts", |alerts| alerts.matches("read ").count() > 140);
    let page = agent.get("/metrics");
    let story = |name: &str| format!("{engine:?} {name}: {page}");
    let scap = format!("engine_name=\"{known_as}\"");
    assert!(page.contains(&scap), "{}", story(&scap));
    let of_rule = |name: &str| number(&page, &format!("{name}{{rule_name=\"Read it\"}}"));
    let evaluations = of_rule("tollgate_rule_evaluations_total");
    assert!(evaluations >= 128.0, "{}", story("evaluations"));
    let time = of_rule("tollgate_rule_time_nanoseconds_total");
    let each = time / evaluations;
    assert!((1.0..1e8).contains(&each), "{}", story("time"));
    let matches = "falcosecurity_falco_rules_matches_total{priority=\"4\",rule_name=\"Read it\"";
    assert!(number(&page, matches) > 140.0, "{}", story(matches));
    let calls = number(&page, "tollgate_events_evaluated_total{call=\"openat\"}");
    assert!(calls > 140.0, "{}", story("calls"));
    for name in [
        &format!("tollgate_engine_events_total{{kind=\"{lost}\"}}"),
        "falcosecurity_scap_n_drops_total ",
        "falcosecurity_falco_outputs_queue_num_drops_total ",
        "tollgate_output_lost_queue_full_total{channel=\"file\"}",
        "tollgate_output_lost_write_failed_total{channel=\"file\"}",
    ] {
        assert_eq!(number(&page, name), 0.0, "{}", story(name));
    }
    // From the call to its alert: more than nothing, less than a second for each on the whole.
    let count = number(&page, "tollgate_alert_latency_ns_count ");
    let mean = number(&page, "tollgate_alert_latency_ns_sum ") / count;
    assert!(count > 140.0, "{}", story("latency"));
    assert!(
        (1_000.0..1e9).contains(&mean),
        "{mean} {}",
        story("latency")
    );
    let all = number(&page, "tollgate_alert_latency_ns_bucket{le=\"+Inf\"}");
    assert_eq!(all, count, "{}", story("classes"));
}

#[test]
fn metrics_come_on_the_interval_to_the_file_and_as_internal_events() {
    let agent = Agent::start("json_output: true\n");
    let lines = agent.wait_for("metrics", |text| text.lines().count() >= 3);
    let last: Value = serde_json::from_str(lines.lines().nth(2).expect("three")).expect("JSON");
    assert_eq!(last["sample"], 3);
    let fields = &last["output_fields"];
    assert!(fields["scap.n_evts"].as_u64() > Some(0), "{fields}");
    assert!(fields["falco.rules.Read_it"].as_u64() > Some(0), "{fields}");
    assert!(
        fields["scap.evts_rate_sec"].as_f64() > Some(1.0),
        "{fields}"
    );
    assert!(
        fields["falco.memory_rss_mb"].as_f64() > Some(1.0),
        "{fields}"
    );
    let alerts = agent.wait_for("alerts", |text| text.contains("metrics snapshot"));
    let snapshot = alerts
        .lines()
        .find(|line| line.contains("metrics snapshot"));
    let snapshot: Value = serde_json::from_str(snapshot.expect("one")).expect("JSON");
    assert_eq!(snapshot["rule"], "Falco internal: metrics snapshot");
    assert_eq!(snapshot["source"], "internal");
    assert!(snapshot["output_fields"]["falco.version"].is_string());
}

#[test]
fn servers_and_metrics_are_exchanged_while_the_agent_runs() {
    let agent = Agent::start("watch_config_files: true\n");
    agent.get("/healthz");
    let config = fs::read_to_string(agent.scratch.path().join("config.yaml"));
    let config = config.expect("it was written");
    // One that cannot be had changes nothing, and the old ones answer on.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = |listener: &TcpListener| listener.local_addr().expect("it is bound").port();
    let old = format!("listen_port: {}", agent.port);
    let with = |port: u16| config.replace(&old, &format!("listen_port: {port}"));
    let write = |text: &str| {
        let new = agent.scratch.path().join("new");
        fs::write(&new, text).expect("the scratch folder is writable");
        fs::rename(&new, agent.scratch.path().join("config.yaml")).expect("it is our folder");
    };
    write(&with(port(&taken)));
    agent.wait_for("alerts", |alerts| {
        alerts.contains("the old rules remain in force")
    });
    assert!(
        agent
            .get("/metrics")
            .contains("falcosecurity_scap_n_evts_total")
    );
    let new_port = port(&taken);
    drop(taken);
    let moved = with(new_port).replace("/sock'", "/moved'");
    write(&moved.replace(
        "prometheus_metrics_enabled: true",
        "prometheus_metrics_enabled: false",
    ));
    let before = Agent {
        child: None,
        scratch: Scratch::new(),
        port: new_port,
    };
    assert!(before.get("/healthz").starts_with("HTTP/1.1 200 OK"));
    assert!(before.get("/metrics").starts_with("HTTP/1.1 404 "));
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, agent.port)).is_err());
    let address = Address::Unix(agent.scratch.path().join("moved"));
    let alerts = subscribe(&address, &no_files()).expect("it answers");
    alerts
        .recv_timeout(SOON)
        .expect("an alert comes")
        .expect("it can be read");
    assert!(!agent.scratch.path().join("sock").exists());
}

/// Begins to speak HTTP/2 at the socket, as a client of gRPC does, and writes what comes of it.
const CLIENT: &str = r#"
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.settimeout(20)
try:
    client.connect(sys.argv[1])
    client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
    said = "answered" if client.recv(1) else "refused"
except (ConnectionResetError, BrokenPipeError):
    said = "refused"
except Exception as error:
    said = repr(error)
with open(sys.argv[2] + ".new", "w") as out:
    out.write(said)
os.rename(sys.argv[2] + ".new", sys.argv[2])
"#;

/// A workload that asks for the alerts about it: by itself, as an orphan in a session of its own, and from
/// namespaces of its own.
#[test]
fn a_watched_process_gets_no_alerts_by_grpc_and_others_get_all() {
    need_root!();
    // All at once: most of it is waiting.
    std::thread::scope(|scope| {
        for engine in [
            Engine::Notify,
            Engine::Ptrace,
            Engine::EveryCall,
            Engine::Ebpf,
        ] {
            scope.spawn(move || only_others_get_alerts(engine));
        }
    });
}

fn only_others_get_alerts(engine: Engine) {
    let agent = Agent::start_first(engine.options(), "", |folder| {
        fs::write(format!("{folder}/client.py"), CLIENT).expect("the folder is writable");
        let client = |name| format!("python3 {folder}/client.py {folder}/sock {folder}/{name}");
        format!(
            "{}\n(setsid {} &)\nunshare --user --map-root-user --pid --fork {}",
            client("child"),
            client("orphan"),
            client("namespace")
        )
    });
    for name in ["child", "orphan", "namespace"] {
        let said = agent.wait_for(name, |said| !said.is_empty());
        assert_eq!(said, "refused", "{name} under {engine:?}");
    }
    // This process is none of the workload's, nor is one that it starts.
    let folder = agent.scratch.path().display().to_string();
    let status = Command::new("python3")
        .arg(format!("{folder}/client.py"))
        .args([format!("{folder}/sock"), format!("{folder}/outside")])
        .status();
    assert!(status.expect("python is installed").success());
    assert_eq!(
        agent.wait_for("outside", |_| true),
        "answered",
        "{engine:?}"
    );
    let subscribers: Vec<_> = (0..2)
        .map(|_| subscribe(&agent.address(), &no_files()).expect("it answers"))
        .collect();
    let time = |alerts: &std::sync::mpsc::Receiver<Result<serve::grpc::Output, _>>| {
        let next = alerts.recv_timeout(SOON).expect("an alert comes");
        let next: Result<_, serve::ServeError> = next;
        next.expect("it can be read").time
    };
    // One came later than the other, and none of them misses one since.
    let late: Vec<_> = (0..20).map(|_| time(&subscribers[1])).collect();
    let from = (0..10_000).find(|_| time(&subscribers[0]) == late[0]);
    assert!(
        from.is_some(),
        "{engine:?}: the first got all that the second got"
    );
    let early: Vec<_> = (1..20).map(|_| time(&subscribers[0])).collect();
    assert_eq!(early, late[1..], "{engine:?}");
    agent.wait_for("alerts", |alerts| {
        alerts.contains("a process was refused alerts over gRPC")
    });
}

#[test]
fn alerts_are_taken_by_grpc_and_an_agent_leaves_its_addresses() {
    let mut agent = Agent::start("");
    agent.get("/healthz");
    let alerts = subscribe(&agent.address(), &no_files()).expect("it answers");
    for _ in 0..3 {
        let alert = alerts.recv_timeout(SOON).expect("an alert comes");
        let alert = alert.expect("it can be read");
        if alert.source == "internal" {
            continue;
        }
        assert_eq!(alert.rule, "Read it");
        assert_eq!(alert.output_fields["proc.name"], "sh");
        assert!(alert.output.contains(": Warning read "), "{}", alert.output);
    }
    let socket = agent.scratch.path().join("sock");
    assert!(socket.exists());
    agent.end();
    // `run` ends with its command, the agent when nobody is left to watch.
    let end = Instant::now() + SOON;
    let is_free = || TcpListener::bind((Ipv4Addr::LOCALHOST, agent.port)).is_ok();
    while socket.exists() || !is_free() {
        assert!(Instant::now() < end, "the socket or the port is not left");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(subscribe(&agent.address(), &no_files()).is_err());
}

/// Nobody asks for them: an agent that is killed takes them with it, and one that ends says so.
#[test]
fn alerts_that_wait_for_a_client_are_counted() {
    let mut agent = Agent::start("");
    agent.wait_for("alerts", |alerts| alerts.matches("read ").count() > 20);
    let stats = || {
        let page = agent.get("/metrics");
        number(
            &page,
            "tollgate_engine_events_total{kind=\"alerts_lost_with_agent\"}",
        )
    };
    assert_eq!(stats(), 0.0);
    let pid = fs::read_to_string(agent.scratch.path().join("pid")).expect("it was written");
    let pid = pid
        .trim()
        .parse()
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let pid = pid.expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it lives");
    agent.wait_for("alerts", |alerts| alerts.contains("killed by signal 9"));
    assert!(stats() > 20.0, "{}", stats());
    agent.end();
    agent.wait_for("stderr", |text| {
        text.contains("alerts waited for a client, and none took them")
    });
}

/// A client of HTTP/2 that calls the server whatever it likes.
struct RawClient(UnixStream);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

impl RawClient {
    fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).expect("it listens");
        stream.set_read_timeout(Some(SOON)).expect("it is ours");
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        stream.write_all(preface).expect("it reads");
        let mut client = Self(stream);
        client.send(SETTINGS, 0, 0, &[]);
        client
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u8, payload: &[u8]) {
        let length = u8::try_from(payload.len()).expect("a short one");
        let header = [0, 0, length, kind, flags, 0, 0, 0, stream];
        self.0.write_all(&header).expect("it reads");
        self.0.write_all(payload).expect("it reads");
    }

    /// Sends a request without fields; headers are as the standard for their compression has them.
    fn call(&mut self, stream: u8, headers: &[u8], is_last: bool) {
        self.send(HEADERS, END_HEADERS, stream, headers);
        let flags = if is_last { END_STREAM } else { 0 };
        self.send(DATA, flags, stream, &[0; 5]);
    }

    /// The first bytes that a stream brings.
    fn data(&mut self, stream: u8) -> String {
        loop {
            let mut header = [0; 9];
            self.0.read_exact(&mut header).expect("a frame comes");
            let [a, b, c, kind, flags, _, _, _, of] = header;
            let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).expect("it fits");
            let mut payload = vec![0; length];
            self.0.read_exact(&mut payload).expect("the rest comes");
            match kind {
                DATA if of == stream => return String::from_utf8_lossy(&payload).into_owned(),
                SETTINGS if flags == 0 => self.send(SETTINGS, 1, 0, &[]),
                HEADERS if of == stream => assert_eq!(flags & END_STREAM, 0, "an answer comes"),
                DATA | HEADERS | SETTINGS | WINDOW_UPDATE => {}
                // Without an error: the answer was whole before the request had ended (RFC 9113, 8.1).
                RESET if payload == [0; 4] => {}
                other => panic!("frame {other} on stream {of}: {payload:x?}"),
            }
        }
    }
}

fn header(start: &[u8], value: &str) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("a short one");
    [start, &[length], value.as_bytes()].concat()
}

#[test]
fn clients_refer_to_headers_that_they_sent_before() {
    let agent = Agent::start("");
    agent.get("/healthz");
    let mut client = RawClient::connect(&agent.scratch.path().join("sock"));
    let (post, http): (&[u8], &[u8]) = (&[0x83], &[0x86]);
    let version = [
        post,
        http,
        &header(&[0x44], "/falco.version.service/version"),
        &header(&[0x41], "localhost"),
        &header(&[0x5f], "application/grpc"),
        &header(b"\x40\x02te", "trailers"),
    ];
    client.call(1, &version.concat(), true);
    let version = client.data(1);
    assert!(version.contains('.'), "{version:?}");
    // The name and what stands behind it again, by their places in the table.
    let path = header(&[0x04], "/falco.outputs.service/sub");
    let again: &[u8] = &[0x80 | 64, 0x80 | 63, 0x80 | 62];
    client.call(3, &[post, http, &path, again].concat(), false);
    let alert = client.data(3);
    assert!(
        alert.contains("read ") || alert.contains("internal"),
        "{alert:?}"
    );
}
